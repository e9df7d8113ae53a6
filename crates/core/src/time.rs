//! Wall-clock instants, as the store tells them.
//!
//! Leases and windows are wall time of the store's clock; deadlines of the client are monotonic and use another
//! type, so that the two cannot be mixed (design 3). `core` never reads a clock: every instant is an argument.

use std::time::Duration;

/// An instant of the store's wall clock, in milliseconds since the Unix epoch.
///
/// ```
/// use retrysafe_core::time::Wall;
/// use std::time::Duration;
/// let opened = Wall::from_unix_ms(1_000);
/// assert_eq!(opened.plus(Duration::from_secs(30)), Wall::from_unix_ms(31_000));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Wall(i64);

impl Wall {
    /// The instant `ms` milliseconds after the Unix epoch.
    pub const fn from_unix_ms(ms: i64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the Unix epoch.
    pub const fn unix_ms(self) -> i64 {
        self.0
    }

    /// This instant moved forward. Saturates instead of wrapping: an absurd duration means "never expires",
    /// it must not come round to the past.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(ms))
    }

    /// How long after `earlier` this instant is; zero when it is not after it.
    pub fn since(self, earlier: Wall) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// How long from `now` until this instant; zero when it has passed.
    pub fn from_now(self, now: Wall) -> Duration {
        self.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absurd_duration_never_wraps_to_the_past() {
        let now = Wall::from_unix_ms(1_700_000_000_000);
        assert!(now.plus(Duration::MAX) > now);
    }

    #[test]
    fn time_that_has_passed_is_zero_not_negative() {
        let (early, late) = (Wall::from_unix_ms(1), Wall::from_unix_ms(5));
        assert_eq!(late.since(early), Duration::from_millis(4));
        assert_eq!(early.since(late), Duration::ZERO);
    }
}
