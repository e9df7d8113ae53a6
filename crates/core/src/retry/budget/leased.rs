//! One instance's end of a fleet's budget: tokens that it holds and spends without asking ([`super::fleet`]).

use std::time::Duration;

use super::{
    Account, Denied, Name,
    fleet::{Lease, Report},
};
use crate::retry::deadline::Mono;

/// The tokens of one instance. What is held and what was spent since the last report follow them until the account has
/// heard of it.
#[derive(Default)]
pub(super) struct Pool {
    balance: u32,
    held: u32,
    /// Since the last report.
    spent: u32,
    first_attempts: u32,
    wanted: u32,
    quota: u32,
    until: Mono,
    /// The report that has no answer yet, or the last one.
    report: Report,
    answered: bool,
    /// Raised when tokens lapse: a permit of an earlier life is none of this one's.
    life: u64,
}

impl Pool {
    pub(super) fn new() -> Self {
        Self { answered: true, ..Self::default() }
    }

    pub(super) fn entered(&mut self) {
        self.first_attempts = self.first_attempts.saturating_add(1);
    }

    pub(super) fn affords(&mut self, now: Mono) -> Result<(), Denied> {
        self.lapse(now);
        self.wanted = self.wanted.saturating_add(1);
        if self.balance > 0 {
            return Ok(());
        }
        let capacity = u64::from(self.held) + u64::from(self.spent);
        Err(Denied { rule: Name::Fleet, balance: 0, cost: 1, capacity })
    }

    /// Only after [`Pool::affords`], under one lock. Returns the life it belongs to.
    pub(super) fn take(&mut self) -> u64 {
        self.balance = self.balance.saturating_sub(1);
        self.held += 1;
        self.life
    }

    pub(super) fn give_back(&mut self, life: u64) {
        if self.life == life {
            self.held = self.held.saturating_sub(1);
            self.balance += 1;
        }
    }

    pub(super) fn spend(&mut self, life: u64) {
        if self.life == life {
            self.held = self.held.saturating_sub(1);
            self.spent += 1;
        }
    }

    /// The retry was not sent after all. Where a report has told of it meanwhile, it stays spent.
    pub(super) fn unspend(&mut self, life: u64) -> bool {
        let known = self.life == life && self.spent > 0;
        if known {
            self.spent -= 1;
            self.held += 1;
        }
        known
    }

    /// What to tell the account: the last report again while it has no answer.
    pub(super) fn report(&mut self, now: Mono) -> Report {
        self.lapse(now);
        if self.answered {
            let returned = self.balance.saturating_sub(self.quota);
            self.balance -= returned;
            self.report = Report {
                number: self.report.number + 1,
                first_attempts: std::mem::take(&mut self.first_attempts),
                spent: std::mem::take(&mut self.spent),
                returned,
                wanted: std::mem::take(&mut self.wanted),
            };
            self.answered = false;
        }
        self.report
    }

    pub(super) fn leased(&mut self, lease: &Lease, sent: Mono) {
        if self.answered || lease.number != self.report.number {
            return;
        }
        self.answered = true;
        self.balance = lease.tokens.saturating_sub(self.held).saturating_sub(self.spent);
        self.quota = lease.quota;
        self.until = sent.plus(lease.valid.max(Duration::from_nanos(1)));
    }

    /// The account counts as spent what it has heard nothing of; so does this end, and no later.
    fn lapse(&mut self, now: Mono) {
        if now >= self.until && self.balance + self.held > 0 {
            self.spent += self.balance + self.held;
            (self.balance, self.held) = (0, 0);
            self.life += 1;
        }
    }

    pub(super) fn reading(&mut self, now: Mono) -> Account {
        self.lapse(now);
        let (held, spent, balance) = (u64::from(self.held), u64::from(self.spent), i64::from(self.balance));
        Account { capacity: held + spent + u64::from(self.balance), held, spent, balance }
    }
}
