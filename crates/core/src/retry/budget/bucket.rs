//! The token bucket of the AWS SDKs (V1).
//!
//! A full bucket pays for 35 transient retries in a row (or 100 throttled ones), then none. With three attempts and
//! failures at a rate f it drains above f = 0.215 (V4): in an outage the load of a target that has drained its bucket
//! is its first attempts and nothing more.

use super::{Account, Denied, Name};
use crate::retry::backoff::Pace;

/// The numbers of the bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// Tokens when nothing is spent.
    pub capacity: u32,
    /// Cost of a retry after a transient failure.
    pub transient_cost: u32,
    /// Cost of a retry after throttling. Lower: the server is well enough to say so.
    pub throttled_cost: u32,
    /// Tokens that a success at the first attempt brings back, out of the spent ones.
    pub refill: u32,
}

impl Default for Bucket {
    /// SPEC 7.5: 500, 14, 5; one back for each call that succeeds at once.
    fn default() -> Self {
        Self { capacity: 500, transient_cost: 14, throttled_cost: 5, refill: 1 }
    }
}

impl Bucket {
    fn cost(&self, pace: Pace) -> u32 {
        match pace {
            Pace::Transient => self.transient_cost,
            Pace::Throttled => self.throttled_cost,
        }
    }
}

/// Where the tokens are. The balance is what is neither held nor spent, so that no path can make or lose a token.
pub(super) struct Tokens {
    rule: Bucket,
    held: u32,
    spent: u32,
}

impl Tokens {
    pub(super) fn new(rule: Bucket) -> Self {
        Self { rule, held: 0, spent: 0 }
    }

    fn balance(&self) -> u32 {
        self.rule.capacity - self.held - self.spent
    }

    pub(super) fn affords(&self, pace: Pace) -> Result<(), Denied> {
        let (balance, cost) = (self.balance(), self.rule.cost(pace));
        if balance >= cost {
            return Ok(());
        }
        let (balance, cost) = (i64::from(balance), u64::from(cost));
        Err(Denied { rule: Name::Bucket, balance, cost, capacity: u64::from(self.rule.capacity) })
    }

    /// Only after [`Tokens::affords`], under one lock.
    pub(super) fn take(&mut self, pace: Pace) -> u32 {
        let cost = self.rule.cost(pace).min(self.balance());
        self.held += cost;
        cost
    }

    pub(super) fn give_back(&mut self, tokens: u32) {
        self.held -= tokens.min(self.held);
    }

    pub(super) fn spend(&mut self, tokens: u32) {
        let tokens = tokens.min(self.held);
        self.held -= tokens;
        self.spent += tokens;
    }

    pub(super) fn refill(&mut self) {
        self.spent = self.spent.saturating_sub(self.rule.refill);
    }

    pub(super) fn reading(&self) -> Account {
        Account {
            capacity: u64::from(self.rule.capacity),
            held: u64::from(self.held),
            spent: u64::from(self.spent),
            balance: i64::from(self.balance()),
        }
    }
}
