//! The numbers of a call's retries (SPEC 7).
//!
//! The default is on and bounded: three attempts, 30 s in all, full jitter. From a contract come the same numbers that
//! the server's documents print:
//!
//! ```
//! use retrysafe_core::{contract::Contract, retry::RetryPolicy};
//!
//! # let text = include_str!("../../tests/contract/small.toml");
//! let contract = Contract::parse(text, "retrysafe.toml")?;
//! let policy = RetryPolicy::from(&contract.client);
//! assert!(policy.statuses.contains(503) && !policy.statuses.contains(500));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{fmt, num::NonZeroU32, ops::RangeInclusive, time::Duration};

use super::{after::Hint, backoff::Backoff};
use crate::{
    contract::{ClientPolicy, Contract, Endpoint},
    policy::Place,
};

/// SPEC 7.4.
const ATTEMPTS: NonZeroU32 = NonZeroU32::new(3).unwrap();
const ELAPSED: Duration = Duration::from_secs(30);
/// SPEC 7.1. 500 is a choice.
const STATUSES: [u16; 4] = [429, 502, 503, 504];
/// An attempt that would have less than this is not started: a round trip within one continent needs about as much.
const USEFUL_ATTEMPT: Duration = Duration::from_millis(10);

/// What a call may do. A plain value, cheap to copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryPolicy {
    /// Attempts in all, the first included. Waiting for an operation that is in flight is not counted.
    pub attempts: NonZeroU32,
    /// Elapsed time over all attempts, sleeps included.
    pub elapsed: Duration,
    /// The sleeps.
    pub backoff: Backoff,
    /// Longest time of one attempt; `None`: whatever is left. See [`RetryPolicy::advise`].
    pub attempt_timeout: Option<Duration>,
    /// Shortest time worth starting an attempt for.
    pub useful_attempt: Duration,
    /// Statuses that are retried.
    pub statuses: StatusSet,
    /// Failures that the server stores and replays under the key: asking again with the same key fetches them again.
    pub stored: StatusSet,
    /// What to do when the budget is used up.
    pub exhausted: Exhausted,
    /// What to do when the server says that it does not know the outcome of the key.
    pub uncertain: Uncertain,
    /// How hints are obeyed.
    pub obedience: Obedience,
}

/// What to do when a retry would be right and the budget does not allow it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Exhausted {
    /// End the call at once.
    FailFast,
    /// End it after the sleep that the retry would have had: for callers that loop, and would come back at once (I-32).
    Pace,
}

/// What to do with `idempotency_outcome_unknown`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Uncertain {
    /// End the call, unless the answer itself advises a retry.
    End,
    /// Keep asking with the same key until the deadline: somebody is looking it up.
    Ask,
}

/// How far a hint is obeyed: in full. What other clients do instead can be had in their [`super::presets`] only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Obedience(pub(super) Obeyed);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Obeyed {
    /// Never earlier than asked.
    #[default]
    InFull,
    /// AWS: between our own delay and this much more.
    Clamped(Duration),
    /// Old AWS: cut to the cap.
    Cut,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: ATTEMPTS,
            elapsed: ELAPSED,
            backoff: Backoff::default(),
            attempt_timeout: None,
            useful_attempt: USEFUL_ATTEMPT,
            statuses: STATUSES.into_iter().collect(),
            stored: StatusSet::EMPTY,
            exhausted: Exhausted::FailFast,
            uncertain: Uncertain::End,
            obedience: Obedience::default(),
        }
    }
}

impl From<&ClientPolicy> for RetryPolicy {
    fn from(client: &ClientPolicy) -> Self {
        let default = Self::default();
        Self {
            attempts: NonZeroU32::new(client.attempts).unwrap_or(NonZeroU32::MIN),
            elapsed: client.elapsed,
            backoff: Backoff {
                base: client.base,
                throttled_base: client.throttled_base,
                cap: client.cap,
                ..default.backoff
            },
            statuses: client.retry_statuses.iter().copied().collect(),
            ..default
        }
    }
}

impl RetryPolicy {
    /// The policy for one endpoint of a contract: its client numbers, and which failures the server stores under the key
    /// (SPEC 6.4). `place` is where the server enforces the contract. A status that clients are told to retry and that is
    /// stored leaves the list only where the contract says so; without that statement `check` refuses it.
    pub fn for_endpoint(contract: &Contract, endpoint: &Endpoint, place: Place) -> Self {
        let policy = Self::from(&contract.client);
        let kept = |status: &u16| contract.client.drop_stored_statuses || !policy.statuses.contains(*status);
        let all = StatusSet::FIRST..=StatusSet::LAST;
        let stored = all.filter(|status| endpoint.stores(*status, place)).filter(kept).collect();
        Self { stored, ..policy }
    }

    /// Timeouts for one attempt that measure up to a 99th percentile: two to three times it (SPEC 7.6). Below, healthy
    /// slow answers become unknown outcomes; above, a hang eats the deadline.
    ///
    /// ```
    /// use retrysafe_core::retry::RetryPolicy;
    /// use std::time::Duration;
    ///
    /// let advice = RetryPolicy::default().advise(Duration::from_secs(2));
    /// assert_eq!(advice.timeouts, Duration::from_secs(4)..=Duration::from_secs(6));
    /// assert!(advice.all_attempts_fit);
    /// ```
    pub fn advise(&self, p99: Duration) -> Advice {
        let (low, high) = (p99.saturating_mul(2), p99.saturating_mul(3));
        let sleeps = self.sleep_bounds().fold(Duration::ZERO, Duration::saturating_add);
        let needed = low.saturating_mul(self.attempts.get()).saturating_add(sleeps);
        Advice { timeouts: low..=high, needed, all_attempts_fit: needed <= self.elapsed }
    }

    /// The longest sleep before each retry, in order.
    pub(super) fn sleep_bounds(&self) -> impl Iterator<Item = Duration> + '_ {
        (0..self.attempts.get() - 1).map(|retry| self.backoff.longest(retry))
    }

    /// The wait that `hint` makes of our own `delay`. `bound` is the longest that delay could have been, `entropy`
    /// spreads what comes on top.
    pub(super) fn obey(&self, hint: Hint, delay: Duration, bound: Duration, entropy: u64) -> Duration {
        let Some(asked) = hint.delay() else { return delay };
        match (self.obedience.0, hint) {
            (Obeyed::Clamped(over), _) => asked.clamp(delay, delay.saturating_add(over)),
            (Obeyed::Cut, _) => asked.min(self.backoff.cap),
            (Obeyed::InFull, Hint::Pushback(_)) => asked,
            // The jitter only adds: a tenth of what was asked, or as much as we would have slept anyway.
            (Obeyed::InFull, _) => {
                let spread = (asked / HINT_JITTER_PART).min(self.backoff.cap).max(bound);
                asked.saturating_add(super::backoff::share(spread, entropy))
            }
        }
    }
}

/// The part of a hint that is added to it as jitter, at most.
const HINT_JITTER_PART: u32 = 10;

/// What a measured latency says about a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    /// Good timeouts of one attempt.
    pub timeouts: RangeInclusive<Duration>,
    /// Time that all attempts take at the shortest of them, with the longest sleeps.
    pub needed: Duration,
    /// Whether that is within the policy's elapsed time.
    pub all_attempts_fit: bool,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = (self.timeouts.start(), self.timeouts.end());
        write!(
            f,
            "a timeout of {low:?} to {high:?} for one attempt; all attempts need up to {:?}",
            self.needed
        )?;
        if self.all_attempts_fit {
            return Ok(());
        }
        f.write_str(", more than the elapsed time allows: fewer attempts, or more time")
    }
}

/// A set of failure statuses, 400 to 599.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StatusSet([u128; 2]);

impl StatusSet {
    /// No status.
    pub const EMPTY: StatusSet = StatusSet([0; 2]);
    const FIRST: u16 = 400;
    const LAST: u16 = 599;
    const HUNDRED: u16 = 100;

    /// Whether `status` is in it.
    pub fn contains(&self, status: u16) -> bool {
        Self::place(status).is_some_and(|(word, bit)| self.0[word] & bit != 0)
    }

    /// The statuses, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (Self::FIRST..=Self::LAST).filter(|status| self.contains(*status))
    }

    fn place(status: u16) -> Option<(usize, u128)> {
        let offset = status.checked_sub(Self::FIRST).filter(|_| status <= Self::LAST)?;
        Some((usize::from(offset / Self::HUNDRED), 1 << (offset % Self::HUNDRED)))
    }
}

impl FromIterator<u16> for StatusSet {
    /// Statuses that are no failures are left out.
    fn from_iter<T: IntoIterator<Item = u16>>(statuses: T) -> Self {
        let mut set = Self::EMPTY;
        for (word, bit) in statuses.into_iter().filter_map(Self::place) {
            set.0[word] |= bit;
        }
        set
    }
}

impl fmt::Debug for StatusSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
