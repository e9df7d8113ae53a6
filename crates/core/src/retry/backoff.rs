//! How long to sleep before a retry (SPEC 7.3).
//!
//! `sleep = random(0, min(cap, base * 2^retry))`, the first retry being 0. The cap comes **before** the jitter: the
//! other way round, nine in ten of the late retries sleep exactly the cap and come back together (M7).
//!
//! | jitter | range of the sleep | for |
//! |---|---|---|
//! | [`Jitter::Full`] | 0 to the bound | the default: fewest calls |
//! | [`Jitter::Decorrelated`] | base to three times the last sleep | a person who waits: done sooner below about 130 clients, at up to 31% more calls |
//!
//! A job that runs as one instance has nobody to synchronise with; jitter costs it nothing either.
//!
//! ```
//! use retrysafe_core::retry::{Backoff, Pace};
//! use std::time::Duration;
//!
//! let backoff = Backoff::default();
//! assert_eq!(backoff.bound(Pace::Transient, 0), Duration::from_millis(50));
//! assert_eq!(backoff.bound(Pace::Throttled, 2), Duration::from_secs(4));
//! assert_eq!(backoff.bound(Pace::Transient, 1_000), backoff.cap);
//! ```

use std::time::Duration;

use super::deadline::nanos;

/// SPEC 7.3.
const BASE: Duration = Duration::from_millis(50);
const THROTTLED_BASE: Duration = Duration::from_secs(1);
const CAP: Duration = Duration::from_secs(20);
/// Decorrelated jitter: how far above the last sleep the next may lie.
const DECORRELATED_SPREAD: u64 = 3;

/// How the sleep is drawn below its bound.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Jitter {
    /// Between nothing and the bound.
    Full,
    /// Between the base and three times the last sleep.
    Decorrelated,
}

/// Why a retry is needed, as far as its pace is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pace {
    /// Something broke.
    Transient,
    /// The server has too much to do.
    Throttled,
}

/// The numbers of the formula. Any values work: a base above the cap is the cap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Backoff {
    /// How the sleep is drawn.
    pub jitter: Jitter,
    /// Bound of the first retry's sleep.
    pub base: Duration,
    /// The same after the server said that it is throttling.
    pub throttled_base: Duration,
    /// Bound of every sleep.
    pub cap: Duration,
}

impl Default for Backoff {
    /// SPEC 7.3: full jitter, 50 ms, 1 s throttled, 20 s.
    fn default() -> Self {
        Self { jitter: Jitter::Full, base: BASE, throttled_base: THROTTLED_BASE, cap: CAP }
    }
}

impl Backoff {
    /// The longest sleep that full jitter can draw before retry number `retry`, the first being 0.
    pub fn bound(&self, pace: Pace, retry: u32) -> Duration {
        let base = nanos(self.base_of(pace));
        let grown = if retry < u64::BITS { base.saturating_mul(1 << retry) } else { u64::MAX };
        // A base of nothing stays nothing, however often it is doubled.
        let grown = if base == 0 { 0 } else { grown };
        Duration::from_nanos(grown.min(nanos(self.cap)))
    }

    /// The sleep before retry number `retry`, where the last one was `previous` (zero before the first). `entropy` is
    /// uniform over its whole range.
    pub fn delay(&self, pace: Pace, retry: u32, previous: Duration, entropy: u64) -> Duration {
        match self.jitter {
            Jitter::Full => share(self.bound(pace, retry), entropy),
            Jitter::Decorrelated => {
                let low = self.base_of(pace).min(self.cap);
                let spread = nanos(previous.max(low)).saturating_mul(DECORRELATED_SPREAD);
                let high = Duration::from_nanos(spread).min(self.cap).max(low);
                low + share(high - low, entropy)
            }
        }
    }

    /// The longest sleep of either jitter before retry number `retry` after a transient failure.
    pub(super) fn longest(&self, retry: u32) -> Duration {
        match self.jitter {
            Jitter::Full => self.bound(Pace::Transient, retry),
            Jitter::Decorrelated => {
                let low = self.base.min(self.cap);
                let times = DECORRELATED_SPREAD.checked_pow(retry.saturating_add(1)).unwrap_or(u64::MAX);
                Duration::from_nanos(nanos(low).saturating_mul(times)).min(self.cap)
            }
        }
    }

    fn base_of(&self, pace: Pace) -> Duration {
        match pace {
            Pace::Transient => self.base,
            Pace::Throttled => self.throttled_base,
        }
    }
}

/// The share of `whole` that `entropy` stands for: nothing at 0, the whole at its maximum, uniform in between.
pub(super) fn share(whole: Duration, entropy: u64) -> Duration {
    let scaled = u128::from(nanos(whole)) * (u128::from(entropy) + 1);
    Duration::from_nanos(u64::try_from(scaled >> u64::BITS).unwrap_or(u64::MAX))
}
