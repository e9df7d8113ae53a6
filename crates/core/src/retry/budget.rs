//! Retry budgets: what all calls to one target may spend on retries together (SPEC 7.5).
//!
//! A hundred instances that retry three times each look harmless one by one, and are three hundred times the load on a
//! server that is already down. A per-call limit cannot see that; a budget that the calls share can. First attempts are
//! never blocked: a budget rations retries only.
//!
//! A [`Budget`] is a cheap handle, shared per target (a process-wide one for all targets would let one dead host
//! silence the retries to all others). Its rules can be combined; a retry needs the consent of each:
//!
//! | rule | a retry is allowed while |
//! |---|---|
//! | [`Bucket`] | tokens are left: 14 for a transient failure, 5 for a throttled one, of 500 |
//! | [`Ratio`] | retries stay below a share of the first attempts of the last 10 s, plus a reserve |
//! | [`Concurrency`] | retries under way stay below a share of the calls under way |
//! | [`Throttle`] | failures do not outweigh successes (gRPC A6) |
//! | [`Fleet`] | tokens are left of those that the account of the whole fleet has leased to this process |
//!
//! **Nothing leaks.** A [`Permit`] is a value: it cannot be cloned, and whatever happens to it happens to its tokens. It
//! is given back (the retry succeeded, or was never sent), spent, or dropped, which is either, by whether the retry was
//! sent. So `held + balance + spent = capacity` holds at every moment, under cancellation and panic too (M1, I-35).
//!
//! ```
//! use retrysafe_core::retry::{Budget, Mono, Pace, budget::{Bucket, Rules}};
//!
//! let budget = Budget::new(Rules { bucket: Some(Bucket::default()), ..Rules::NONE });
//! let mut call = budget.enter(Mono::START);
//! let permit = call.take(Pace::Transient, Mono::START).unwrap();
//! assert_eq!(budget.reading(Mono::START).bucket.unwrap().balance, 486);
//! drop(permit); // cancelled before it was sent
//! assert_eq!(budget.reading(Mono::START).bucket.unwrap().balance, 500);
//! ```
//!
//! Limits: the arithmetic is under a lock of this process, held for a few dozen instructions. What a fleet shares is an
//! account that the host keeps in a store; it asks for tokens with [`Budget::report`] and brings them with
//! [`Budget::leased`]. `tests/threads.rs` holds all this to every order of its threads.

mod bucket;
mod fleet;
mod leased;
mod lock;
mod ratio;
mod throttle;

use std::{fmt, sync::PoisonError};

pub use bucket::Bucket;
use bucket::Tokens;
pub use fleet::{Books, Fleet, FleetRule, Holder, INSTANCES_MAX, Lease, Report, Slot};
use leased::Pool;
use lock::{Arc, Mutex, MutexGuard};
pub use ratio::Ratio;
use ratio::Shares;
use throttle::Score;
pub use throttle::Throttle;

use super::{backoff::Pace, deadline::Mono};

/// At most this share of the calls under way may be retries, and never fewer than the minimum (Envoy).
///
/// Under way is every call from its first attempt to its end, asleep or not, counted once: a call whose retry sleeps
/// does not make room for another (I-31).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Concurrency {
    /// Retries per hundred calls under way.
    pub percent: u32,
    /// Allowed however few calls are under way.
    pub retries_min: u32,
}

impl Default for Concurrency {
    /// Envoy's: 20%, 3.
    fn default() -> Self {
        Self { percent: 20, retries_min: 3 }
    }
}

impl Concurrency {
    /// Retries that may be under way beside `calls`.
    pub fn allowed(&self, calls: u32) -> u32 {
        let share = u64::from(calls) * u64::from(self.percent) / 100;
        u32::try_from(share).unwrap_or(u32::MAX).max(self.retries_min)
    }
}

/// The rules of a budget. Each may be left out; none at all allows every retry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// A token bucket.
    pub bucket: Option<Bucket>,
    /// A share of the traffic over a window.
    pub ratio: Option<Ratio>,
    /// A share of the calls under way.
    pub concurrency: Option<Concurrency>,
    /// Failures against successes.
    pub throttle: Option<Throttle>,
    /// A share of the traffic of a whole fleet, in tokens that [`Budget::leased`] brings. Without any, no retry.
    pub fleet: bool,
}

impl Rules {
    /// No rule.
    pub const NONE: Rules =
        Rules { bucket: None, ratio: None, concurrency: None, throttle: None, fleet: false };
}

impl Default for Rules {
    /// SPEC 7.5: 20% over 10 s, and the bucket of 500.
    fn default() -> Self {
        Self { bucket: Some(Bucket::default()), ratio: Some(Ratio::default()), ..Self::NONE }
    }
}

/// A budget, shared by all calls to one target. Cloning makes another handle to the same one.
#[derive(Clone)]
pub struct Budget(Arc<Mutex<Ledger>>);

struct Ledger {
    bucket: Option<Tokens>,
    ratio: Option<Shares>,
    concurrency: Option<Concurrency>,
    throttle: Option<Score>,
    fleet: Option<Pool>,
    calls: u32,
    retries: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(Rules::default())
    }
}

impl Budget {
    /// A full budget with these rules.
    pub fn new(rules: Rules) -> Self {
        Self(Arc::new(Mutex::new(Ledger {
            bucket: rules.bucket.map(Tokens::new),
            ratio: rules.ratio.map(Shares::new),
            concurrency: rules.concurrency,
            throttle: rules.throttle.map(Score::new),
            fleet: rules.fleet.then(Pool::new),
            calls: 0,
            retries: 0,
        })))
    }

    /// A call begins, with its first attempt. Never refused.
    pub fn enter(&self, now: Mono) -> Entry {
        let mut ledger = self.ledger();
        ledger.calls = ledger.calls.saturating_add(1);
        if let Some(ratio) = &mut ledger.ratio {
            ratio.deposit(now);
        }
        if let Some(fleet) = &mut ledger.fleet {
            fleet.entered();
        }
        drop(ledger);
        Entry { budget: self.clone() }
    }

    /// What to tell the fleet's account ([`Fleet::exchange`]). Until [`Budget::leased`] has brought the answer, the same
    /// report again. `None` without the rule.
    pub fn report(&self, now: Mono) -> Option<Report> {
        self.ledger().fleet.as_mut().map(|fleet| fleet.report(now))
    }

    /// The account's answer to a report that was sent at the instant `sent`.
    pub fn leased(&self, lease: &Lease, sent: Mono) {
        if let Some(fleet) = &mut self.ledger().fleet {
            fleet.leased(lease, sent);
        }
    }

    /// What is in it.
    pub fn reading(&self, now: Mono) -> Reading {
        let mut ledger = self.ledger();
        Reading {
            bucket: ledger.bucket.as_ref().map(Tokens::reading),
            ratio: ledger.ratio.as_mut().map(|ratio| ratio.reading(now)),
            throttle: ledger.throttle.as_ref().map(Score::milli),
            fleet: ledger.fleet.as_mut().map(|fleet| fleet.reading(now)),
            calls: ledger.calls,
            retries: ledger.retries,
        }
    }

    /// Every change under the lock is complete or not begun, so a panic elsewhere leaves the numbers good.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ledger = self.ledger();
        f.debug_struct("Budget").field("calls", &ledger.calls).field("retries", &ledger.retries).finish()
    }
}

/// A call under way. Dropping it ends the call.
#[derive(Debug)]
pub struct Entry {
    budget: Budget,
}

impl Entry {
    /// Takes what one retry costs, from every rule or from none.
    ///
    /// # Errors
    /// [`Denied`] names the first rule that has not enough left; nothing was taken then.
    pub fn take(&mut self, pace: Pace, now: Mono) -> Result<Permit, Denied> {
        let mut ledger = self.budget.ledger();
        let Ledger { bucket, ratio, concurrency, throttle, fleet, calls, retries } = &mut *ledger;
        if let Some(bucket) = &bucket {
            bucket.affords(pace)?;
        }
        if let Some(ratio) = ratio {
            ratio.affords(now)?;
        }
        if let Some(concurrency) = concurrency {
            let allowed = concurrency.allowed(*calls);
            if *retries >= allowed {
                let (balance, capacity) = (i64::from(allowed) - i64::from(*retries), u64::from(allowed));
                return Err(Denied { rule: Name::Concurrency, balance, cost: 1, capacity });
            }
        }
        if let Some(throttle) = throttle {
            throttle.affords()?;
        }
        if let Some(fleet) = fleet {
            fleet.affords(now)?;
        }
        *retries = retries.saturating_add(1);
        let tokens = bucket.as_mut().map_or(0, |bucket| bucket.take(pace));
        let slot = ratio.as_mut().map(|ratio| ratio.take(now));
        let lease = fleet.as_mut().map(Pool::take);
        drop(ledger);
        Ok(Permit { budget: self.budget.clone(), tokens, slot, lease, sent: false })
    }

    /// An attempt failed in a way that counts against the target.
    pub fn failed(&mut self) {
        if let Some(throttle) = &mut self.budget.ledger().throttle {
            throttle.failed();
        }
    }

    /// The call succeeded, with the permit of its last retry, or at the first attempt.
    pub fn succeeded(&mut self, last: Option<Permit>) {
        let first = last.is_none();
        if let Some(permit) = last {
            permit.give_back();
        }
        let mut ledger = self.budget.ledger();
        if let (true, Some(bucket)) = (first, &mut ledger.bucket) {
            bucket.refill();
        }
        if let Some(throttle) = &mut ledger.throttle {
            throttle.succeeded();
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut ledger = self.budget.ledger();
        ledger.calls = ledger.calls.saturating_sub(1);
    }
}

/// What one retry took from the budget. Not `Clone`: it is given back or spent, and by dropping it one of the two.
#[must_use = "a dropped permit is a retry that does not happen"]
pub struct Permit {
    budget: Budget,
    tokens: u32,
    /// The slot of the ratio's window it was taken from.
    slot: Option<u64>,
    /// The life of the fleet's tokens it was taken from.
    lease: Option<u64>,
    sent: bool,
}

impl Permit {
    /// The retry is being sent. From now on, losing the permit spends it.
    pub fn sent(&mut self) {
        if !self.sent {
            self.sent = true;
            let ledger = &mut *self.budget.ledger();
            if let (Some(ratio), Some(slot)) = (&mut ledger.ratio, self.slot) {
                ratio.spend(slot);
            }
            if let (Some(fleet), Some(life)) = (&mut ledger.fleet, self.lease) {
                fleet.spend(life);
            }
        }
    }

    /// It was not sent after all: something on this side kept it back.
    pub fn not_sent(&mut self) {
        if self.sent {
            self.sent = false;
            let ledger = &mut *self.budget.ledger();
            if let (Some(ratio), Some(slot)) = (&mut ledger.ratio, self.slot) {
                ratio.unspend(slot);
            }
            // Where the fleet has been told, the token is gone: the permit goes on without one.
            if let (Some(fleet), Some(life)) = (&mut ledger.fleet, self.lease)
                && !fleet.unspend(life)
            {
                self.lease = None;
            }
        }
    }

    /// The retry succeeded: what it cost goes back to the bucket. The ratio keeps it: the load was there.
    pub fn give_back(mut self) {
        let tokens = std::mem::take(&mut self.tokens);
        if let Some(bucket) = &mut self.budget.ledger().bucket {
            bucket.give_back(tokens);
        }
    }

    /// The retry failed.
    pub fn spend(mut self) {
        self.sent();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut ledger = self.budget.ledger();
        ledger.retries = ledger.retries.saturating_sub(1);
        if let Some(bucket) = &mut ledger.bucket {
            if self.sent {
                bucket.spend(self.tokens);
            } else {
                bucket.give_back(self.tokens);
            }
        }
        if let (false, Some(ratio), Some(slot)) = (self.sent, &mut ledger.ratio, self.slot) {
            ratio.give_back(slot);
        }
        if let (false, Some(fleet), Some(life)) = (self.sent, &mut ledger.fleet, self.lease) {
            fleet.give_back(life);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("tokens", &self.tokens).field("sent", &self.sent).finish()
    }
}

/// What a budget holds at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Tokens of the bucket.
    pub bucket: Option<Account>,
    /// Of the ratio, in millionths of a retry.
    pub ratio: Option<Account>,
    /// Of the gRPC throttle, in thousandths of a token.
    pub throttle: Option<u32>,
    /// Of the fleet's tokens, those that this process holds or has not told the account of.
    pub fleet: Option<Account>,
    /// Calls under way.
    pub calls: u32,
    /// Retries under way, asleep or sent.
    pub retries: u32,
}

/// Where the tokens are. `held + balance + spent = capacity`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Account {
    /// All there are.
    pub capacity: u64,
    /// In permits.
    pub held: u64,
    /// Gone.
    pub spent: u64,
    /// Left. Below zero where what was granted against past traffic outlives it (ratio only).
    pub balance: i64,
}

/// The rule of a budget.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Name {
    /// [`Bucket`].
    Bucket,
    /// [`Ratio`].
    Ratio,
    /// [`Concurrency`].
    Concurrency,
    /// [`Throttle`].
    Throttle,
    /// [`Fleet`].
    Fleet,
}

/// A retry that the budget does not allow (I-38: which one, what is left, how to size it).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied {
    /// Which rule.
    pub rule: Name,
    /// What is left, in the rule's unit.
    pub balance: i64,
    /// What the retry costs.
    pub cost: u64,
    /// What there is when nothing is spent.
    pub capacity: u64,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Denied { balance, cost, capacity, .. } = self;
        match self.rule {
            Name::Bucket => write!(
                f,
                "the retry budget: {balance} of {capacity} tokens left, a retry costs {cost}; successes refill it, \
                 and a larger capacity lets more failures in a row be retried"
            ),
            Name::Ratio => write!(
                f,
                "the retry budget: {:.2} of {:.2} retries left in this window; it grows with first attempts, by its percent",
                *balance as f64 / ratio::RETRY as f64,
                *capacity as f64 / ratio::RETRY as f64
            ),
            Name::Concurrency => write!(
                f,
                "the retry budget: {capacity} retries under way are all there may be beside the present calls"
            ),
            Name::Throttle => write!(
                f,
                "the retry budget: failures outweigh successes ({:.3} of {:.3} tokens, retries need more than half)",
                *balance as f64 / f64::from(throttle::TOKEN),
                *capacity as f64 / f64::from(throttle::TOKEN)
            ),
            Name::Fleet => f.write_str(
                "the fleet's retry budget: none of the tokens leased to this process are left; more come with its next \
                 report, by the share of the whole fleet's first attempts",
            ),
        }
    }
}
