//! A rate limiter that spaces attempts out: GCRA, the leaky bucket as one instant.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use retrysafe_core::retry::Mono;

/// How many attempts a target gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateLimit {
    /// Attempts per `per`.
    pub attempts: u32,
    /// Over this long.
    pub per: Duration,
    /// Attempts that may come at once after a pause.
    pub burst: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Rate {
    rule: RateLimit,
    /// When the next attempt would come if attempts were evenly spaced.
    even: Arc<Mutex<Mono>>,
}

impl Rate {
    pub(super) fn new(rule: RateLimit) -> Self {
        Self { rule, even: Arc::new(Mutex::new(Mono::START)) }
    }

    /// Lets an attempt through, or says how long not; in that case nothing is taken.
    pub(super) fn admit(&self, now: Mono) -> Result<(), Duration> {
        let space = self.rule.per / self.rule.attempts.max(1);
        let ahead = space.saturating_mul(self.rule.burst.max(1) - 1);
        let mut even = self.even.lock().unwrap_or_else(PoisonError::into_inner);
        let due = (*even).max(now);
        let early = due.since(now);
        if early > ahead {
            return Err(early - ahead);
        }
        *even = due.plus(space);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_is_told_when() {
        let rate = Rate::new(RateLimit { attempts: 10, per: Duration::from_secs(1), burst: 3 });
        let now = Mono::from_elapsed(Duration::from_secs(5));
        (0..3).for_each(|_| assert_eq!(rate.admit(now), Ok(())));
        for _ in 0..4 {
            // Asking takes nothing: the wait stays the same.
            assert_eq!(rate.admit(now), Err(Duration::from_millis(100)));
        }
        assert_eq!(rate.admit(now.plus(Duration::from_millis(100))), Ok(()));
    }
}
