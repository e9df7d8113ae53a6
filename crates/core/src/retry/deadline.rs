//! One deadline for a whole call, and the time that each attempt may take of it (SPEC 7.6).
//!
//! The deadline is set before the first attempt and only ever moves closer. Nothing resets it: not an attempt, not a
//! sleep, not a nested call. What is left is computed again **after** every sleep: a client that remembered it from
//! before a 3 s sleep ran 3 s past its limit (V13).
//!
//! Instants are monotonic ([`Mono`]) and cannot be mixed up with the store's wall time ([`crate::time::Wall`]): a
//! clock that is set back must not make a call wait for an hour.

pub mod wire;

use std::time::Duration;

/// An instant of a monotonic clock, in nanoseconds since some origin that the host chose (its start, say). Two instants
/// compare only within one process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Mono(u64);

impl Mono {
    /// The origin.
    pub const START: Mono = Mono(0);

    /// The instant `nanos` after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The instant `elapsed` after the origin; saturates after 584 years.
    pub fn from_elapsed(elapsed: Duration) -> Self {
        Self::START.plus(elapsed)
    }

    /// Nanoseconds since the origin.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// This instant moved forward. Saturates: an absurd duration never comes round to the past.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// How long after `earlier` this instant is; zero when it is not after it.
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A duration in whole nanoseconds, 584 years at most.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The instant by which a call has ended, whatever happens.
///
/// ```
/// use retrysafe_core::retry::{Deadline, Mono};
/// use std::time::Duration;
///
/// let seconds = Duration::from_secs;
/// let outer = Deadline::within(Mono::START, seconds(10));
/// // A nested call may tighten what it inherits, never loosen it.
/// let nested = outer.tighten(Deadline::within(Mono::START, seconds(60)));
/// assert_eq!(nested.left(Mono::from_elapsed(seconds(9))), seconds(1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Deadline(Mono);

impl Deadline {
    /// No deadline of the caller's own. The policy's elapsed time still ends the call.
    pub const UNSET: Deadline = Deadline(Mono(u64::MAX));

    /// The deadline at this instant.
    pub const fn at(instant: Mono) -> Self {
        Self(instant)
    }

    /// The deadline `limit` from `now`.
    pub fn within(now: Mono, limit: Duration) -> Self {
        Self(now.plus(limit))
    }

    /// The earlier of two deadlines.
    #[must_use]
    pub fn tighten(self, other: Deadline) -> Self {
        self.min(other)
    }

    /// The instant it stands for.
    pub const fn instant(self) -> Mono {
        self.0
    }

    /// Time left; zero when it has passed.
    pub fn left(self, now: Mono) -> Duration {
        self.0.since(now)
    }

    /// How long an attempt that starts `now` may take: `cap`, or what is left. `None` when less than `useful` is left:
    /// such an attempt would only be abandoned on its way, and an abandoned write has an unknown outcome.
    pub fn attempt_timeout(self, now: Mono, cap: Option<Duration>, useful: Duration) -> Option<Duration> {
        let left = self.left(now);
        let timeout = cap.map_or(left, |cap| cap.min(left));
        (!timeout.is_zero() && left >= useful).then_some(timeout)
    }

    /// Whether an attempt of `useful` length still fits after a sleep of `delay`. A sleep that ends on the deadline does
    /// not: with `<` instead of `<=` a client could spin at zero left and zero delay (V13).
    pub fn fits(self, now: Mono, delay: Duration, useful: Duration) -> bool {
        let left = self.left(now);
        delay < left && left - delay >= useful
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Mono {
        Mono::from_elapsed(Duration::from_millis(ms))
    }

    #[test]
    fn an_absurd_duration_never_wraps_to_the_past() {
        let far = at(5).plus(Duration::MAX);
        assert!(far > at(5));
        assert_eq!(at(5).since(far), Duration::ZERO);
    }

    #[test]
    fn a_deadline_only_moves_closer() {
        let outer = Deadline::within(at(0), Duration::from_secs(1));
        assert_eq!(outer.tighten(Deadline::UNSET), outer);
        assert_eq!(Deadline::UNSET.tighten(outer), outer);
        assert_eq!(outer.left(at(2_000)), Duration::ZERO);
    }

    /// V13: at zero left and zero delay a client could spin.
    #[test]
    fn v13_a_sleep_that_ends_on_the_deadline_does_not_fit() {
        let deadline = Deadline::within(at(0), Duration::from_secs(1));
        assert!(deadline.fits(at(0), Duration::from_millis(999), Duration::ZERO));
        assert!(!deadline.fits(at(0), Duration::from_secs(1), Duration::ZERO));
        assert!(!deadline.fits(at(1_000), Duration::ZERO, Duration::ZERO));
        assert_eq!(deadline.attempt_timeout(at(1_000), None, Duration::ZERO), None);
    }
}
