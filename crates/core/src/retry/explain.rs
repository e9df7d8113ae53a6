//! What a policy will do, before it does it.

use std::{fmt, time::Duration};

use super::policy::RetryPolicy;

/// A policy's schedule and its worst case.
///
/// ```
/// use retrysafe_core::retry::RetryPolicy;
///
/// let plan = RetryPolicy::default().explain();
/// assert_eq!(plan.requests_max, 3);
/// assert!(plan.to_string().contains("after a sleep of 0 to 100ms"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The longest sleep before each retry, in order.
    pub sleeps: Vec<Duration>,
    /// Requests that one call makes at most, polls and waits for an operation in flight aside.
    pub requests_max: u32,
    /// Time that one call takes at most.
    pub time_max: Duration,
    /// Time that one attempt takes at most.
    pub attempt_max: Duration,
    policy: RetryPolicy,
}

/// Retries that are printed one by one.
const ROWS_MAX: usize = 10;

impl RetryPolicy {
    /// The schedule and the worst case: what a call may cost, read before anything runs.
    pub fn explain(&self) -> Plan {
        let attempt_max = self.attempt_timeout.unwrap_or(self.elapsed).min(self.elapsed);
        let sleeps: Vec<Duration> = self.sleep_bounds().collect();
        let slept = sleeps.iter().copied().fold(Duration::ZERO, Duration::saturating_add);
        let all = attempt_max.saturating_mul(self.attempts.get()).saturating_add(slept);
        Plan {
            sleeps,
            requests_max: self.attempts.get(),
            // A hint of the server can lengthen every sleep, so only the elapsed time bounds the sum.
            time_max: if self.attempts.get() == 1 { all.min(self.elapsed) } else { self.elapsed },
            attempt_max,
            policy: *self,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "attempt 1: at once, at most {:?}", self.attempt_max)?;
        for (retry, sleep) in self.sleeps.iter().take(ROWS_MAX).enumerate() {
            writeln!(f, "attempt {}: after a sleep of {}{sleep:?}", retry + 2, self.from(*sleep))?;
        }
        if self.sleeps.len() > ROWS_MAX {
            writeln!(f, "... {} more", self.sleeps.len() - ROWS_MAX)?;
        }
        writeln!(f, "retried: {:?}, and lost connections where that is safe", self.policy.statuses)?;
        writeln!(f, "a server that asks for a longer wait gets it, or the call ends")?;
        write!(f, "at most {} requests in {:?} for one call", self.requests_max, self.time_max)
    }
}

impl Plan {
    fn from(&self, sleep: Duration) -> String {
        match self.policy.backoff.jitter {
            super::backoff::Jitter::Full => "0 to ".to_owned(),
            super::backoff::Jitter::Decorrelated => {
                format!("{:?} to ", self.policy.backoff.base.min(sleep))
            }
        }
    }
}
