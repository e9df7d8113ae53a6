//! Identifiers made by the machinery, not by callers.
//!
//! An [`AttemptId`] guards every write of one claim's holder (protocol 6), a [`Fence`] travels to downstream systems
//! that compare it (protocol 7), a [`StatusId`] names the status page of a 202 answer (protocol 31). This crate draws
//! no randomness: the random ones are built from a `u128` that the caller drew.

use std::fmt;
use std::str::FromStr;

/// Which run of a keyed request holds its claim: 128 random bits, new for every claim and every takeover.
///
/// A counter would not do as a guard: after a crash it can be handed out twice, and then one holder's completion
/// matches another's claim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(u128);

impl AttemptId {
    /// An attempt id from 128 bits of randomness.
    #[must_use]
    pub const fn new(random: u128) -> Self {
        Self(random)
    }

    /// The number itself, for storage.
    #[must_use]
    pub const fn as_u128(self) -> u128 {
        self.0
    }
}

impl fmt::Display for AttemptId {
    /// 32 lower-case hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttemptId({self})")
    }
}

/// The name of a status page: 128 random bits, so that nobody can guess another caller's page.
///
/// It is as private as the key: `Debug` does not show it. `Display` does, because it is part of the status URL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StatusId(u128);

impl StatusId {
    /// A status id from 128 bits of randomness.
    #[must_use]
    pub const fn new(random: u128) -> Self {
        Self(random)
    }

    /// The number itself, for storage.
    #[must_use]
    pub const fn as_u128(self) -> u128 {
        self.0
    }
}

impl fmt::Display for StatusId {
    /// 32 lower-case hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StatusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatusId(..)")
    }
}

/// The text is not a status id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a status id is 32 lower-case hexadecimal digits")]
pub struct NotAStatusId;

impl FromStr for StatusId {
    type Err = NotAStatusId;

    /// Reads exactly what `Display` writes: one id has one spelling, so one status page has one URL.
    fn from_str(text: &str) -> Result<Self, NotAStatusId> {
        let digits = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() != 32 || !digits {
            return Err(NotAStatusId);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| NotAStatusId)
    }
}

/// A number that only grows, sent with every run so that a downstream system which *compares* it can refuse a holder
/// whose claim was taken over. It protects nothing that does not compare it.
///
/// The top 16 bits are an epoch that a restore or a failover of the store bumps; the low 48 bits count within it. So
/// fences handed out after a restore are above all those handed out before, even the ones the restore forgot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(u64);

impl Fence {
    const NUMBER_BITS: u32 = 48;

    /// The largest number within one epoch.
    pub const MAX_NUMBER: u64 = (1 << Self::NUMBER_BITS) - 1;

    /// The fence `number` of `epoch`; `None` above [`Fence::MAX_NUMBER`], since wrapping would let it shrink.
    #[must_use]
    pub const fn new(epoch: u16, number: u64) -> Option<Self> {
        if number > Self::MAX_NUMBER {
            return None;
        }
        Some(Self(((epoch as u64) << Self::NUMBER_BITS) | number))
    }

    /// How often the store was restored or failed over.
    #[must_use]
    pub const fn epoch(self) -> u16 {
        (self.0 >> Self::NUMBER_BITS) as u16
    }

    /// The number within the epoch.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0 & Self::MAX_NUMBER
    }

    /// The fence that follows in the same epoch; `None` when the epoch is used up.
    #[must_use]
    pub const fn next(self) -> Option<Self> {
        Self::new(self.epoch(), self.number() + 1)
    }

    /// Epoch and number as one integer. Fences are ordered as these are.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The fence that [`Fence::as_u64`] gave.
    #[must_use]
    pub const fn from_u64(fence: u64) -> Self {
        Self(fence)
    }
}

impl fmt::Display for Fence {
    /// Decimal, as it is sent downstream.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_id_has_one_spelling_and_stays_out_of_debug() {
        let id = StatusId::new(0xab);
        let text = id.to_string();
        assert_eq!(text, "000000000000000000000000000000ab");
        assert_eq!(text.parse(), Ok(id));
        for other in ["", "ab", &text.to_uppercase(), &format!("+{}", &text[1..]), &format!("{text}0")] {
            assert_eq!(other.parse::<StatusId>(), Err(NotAStatusId), "{other:?}");
        }
        assert!(!format!("{id:?}").contains("ab"));
    }

    #[test]
    fn a_bumped_epoch_is_above_every_fence_before_it() {
        let last = Fence::new(6, Fence::MAX_NUMBER).unwrap();
        let bumped = Fence::new(7, 0).unwrap();
        assert!(bumped > last);
        assert_eq!((bumped.epoch(), bumped.number()), (7, 0));
        assert_eq!(Fence::from_u64(last.as_u64()), last);
    }

    #[test]
    fn a_fence_never_wraps_into_the_next_epoch() {
        assert_eq!(Fence::new(6, Fence::MAX_NUMBER + 1), None);
        assert_eq!(Fence::new(6, Fence::MAX_NUMBER).unwrap().next(), None);
        assert_eq!(Fence::new(6, 1).unwrap().next(), Fence::new(6, 2));
    }
}
