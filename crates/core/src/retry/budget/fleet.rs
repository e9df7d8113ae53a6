//! The budget of a fleet: one share for all instances, leased to them in tokens (SPEC 7.5).
//!
//! A ratio in each process has a reserve in each process: with a hundred instances that is a hundred times the load that
//! was meant. Here all instances share one account, kept in a store. An instance asks it for a few tokens at a time,
//! each good for one retry, and spends them without asking ([`super::Budget::report`], [`super::Budget::leased`]). The
//! account is a value: the host loads it, calls [`Fleet::exchange`], and writes it back if nobody was quicker.
//!
//! **Nothing leaks.** A token is in the balance, or held by an instance, or spent, and
//! `held + balance + spent = capacity`. What an instance holds is spent when it says so, comes back when it says so, and
//! counts as spent when the lease ends without a word: an instance that died may have used it.
//!
//! **An exchange can be repeated.** Reports are numbered; one that was applied already is answered again and changes
//! nothing, so a lost answer costs no token and counts no attempt twice.
//!
//! **No burst.** What is granted in a slot, and what may be spent in it of older grants, is at most the slot's part of the
//! window (a tenth), so that an outage does not get the whole window's retries in its first second. Where that part is less
//! than one token for each instance, the first half of the window goes to who has none: else a fleet of many quiet instances
//! could never retry.
//!
//! ```
//! use retrysafe_core::{retry::budget::{Fleet, FleetRule, Report}, time::Wall};
//!
//! let now = Wall::from_unix_ms(0);
//! let mut fleet = Fleet::new(FleetRule::default());
//! let first = Report { number: 1, first_attempts: 1_000, wanted: 5, ..Report::default() };
//! let lease = fleet.exchange(7, &first, now);
//! assert_eq!(lease.tokens, 21); // a tenth of 10 in reserve and 20% of 1,000
//! assert_eq!(fleet.exchange(7, &first, now), lease);
//!
//! let second = Report { number: 2, spent: 20, ..Report::default() };
//! fleet.exchange(7, &second, now);
//! let books = fleet.reading(now);
//! assert_eq!(books.held + books.spent + books.balance as u64, books.capacity);
//! ```
//!
//! Limits: time is the store's, and an exchange is as old as the interval between two of them, so the window is kept to
//! within one interval. A busy instance finds fewer tokens in a slot that others have emptied before it.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Account,
    ratio::{RETRY, Ratio, SLOTS},
};
use crate::time::Wall;

/// How long a lease lasts unless the rule says otherwise: three slots of the default window, so that two exchanges in a
/// row may fail before tokens are lost.
const LEASE: Duration = Duration::from_secs(3);
/// Instances that can hold a lease. Further ones get none, and do not retry.
pub const INSTANCES_MAX: usize = 1_000;

/// The numbers of a fleet's budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FleetRule {
    /// The share, its reserve and its window, over all instances.
    pub ratio: Ratio,
    /// How long tokens can be spent without an exchange. An instance exchanges three times in it, or more often.
    pub lease: Duration,
}

impl Default for FleetRule {
    /// 20% over 10 s and 10 in reserve for the whole fleet; leases of 3 s.
    fn default() -> Self {
        Self { ratio: Ratio::default(), lease: LEASE }
    }
}

/// What an instance tells the account, and asks of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Counts the reports of one instance from 1. The same number is the same report, sent again.
    pub number: u64,
    /// First attempts since the last report.
    pub first_attempts: u32,
    /// Tokens spent since then.
    pub spent: u32,
    /// Tokens given back.
    pub returned: u32,
    /// Retries that were wanted since then, had or not.
    pub wanted: u32,
}

/// What the account answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Of the report that it answers.
    pub number: u64,
    /// Tokens that the instance now holds, what it had left included.
    pub tokens: u32,
    /// Tokens above this are to be given back with the next report.
    pub quota: u32,
    /// How long they can be spent, counted from when the report was sent.
    pub valid: Duration,
}

/// The account.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fleet {
    rule: FleetRule,
    books: Books,
}

/// What is in the account: what a store keeps of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Books {
    /// Slots of the window, oldest first.
    pub slots: Vec<Slot>,
    /// Who holds tokens, by the random number that an instance draws when it starts.
    pub holders: BTreeMap<u64, Holder>,
}

/// A part of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Counted from the clock's origin.
    pub number: i64,
    /// First attempts that were reported in it.
    pub first_attempts: u64,
    /// Tokens spent in it.
    pub spent: u64,
    /// Tokens granted in it, and those spent in it that were granted before the last exchange.
    pub paced: u64,
}

impl Slot {
    fn new(number: i64) -> Self {
        Self { number, first_attempts: 0, spent: 0, paced: 0 }
    }
}

/// An instance with a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its last report.
    pub report: u64,
    /// Tokens it holds.
    pub tokens: u32,
    /// Of them, those that its last exchange brought.
    pub fresh: u32,
    /// What it was told to keep.
    pub quota: u32,
    /// When its tokens count as spent.
    pub until: Wall,
}

impl Fleet {
    /// A full account.
    pub fn new(rule: FleetRule) -> Self {
        Self::from_books(rule, Books::default())
    }

    /// The account as a store kept it. The rule may have changed meanwhile.
    pub fn from_books(rule: FleetRule, books: Books) -> Self {
        Self { rule, books }
    }

    /// What a store has to keep.
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// Takes an instance's report and gives it a lease. `instance` is a number that nobody else has, drawn anew whenever the
    /// instance starts: a second life with the numbers of its first would be taken for a repetition.
    pub fn exchange(&mut self, instance: u64, report: &Report, now: Wall) -> Lease {
        self.advance(now);
        if let Some(holder) = self.books.holders.get(&instance)
            && report.number <= holder.report
        {
            let Holder { report: number, tokens, quota, .. } = *holder;
            return Lease { number, tokens, quota, valid: self.rule.lease };
        }
        let before = self.books.holders.remove(&instance);
        let (held, fresh) = before.map_or((0, 0), |holder| (holder.tokens, holder.fresh));
        let spent = report.spent.min(held);
        let kept = held - spent - report.returned.min(held - spent);
        let crowded = self.books.holders.len() >= INSTANCES_MAX;
        let slot = self.present();
        slot.first_attempts = slot.first_attempts.saturating_add(u64::from(report.first_attempts));
        slot.spent = slot.spent.saturating_add(u64::from(spent));
        slot.paced = slot.paced.saturating_add(u64::from(spent.saturating_sub(fresh)));
        if crowded {
            slot.spent = slot.spent.saturating_add(u64::from(kept));
            return Lease { number: report.number, tokens: 0, quota: 0, valid: self.rule.lease };
        }
        // Held by the instance again before what is left is counted: its own tokens are no room for more.
        let until = now.plus(self.rule.lease);
        let holder = Holder { report: report.number, tokens: kept, fresh: 0, quota: 0, until };
        self.books.holders.insert(instance, holder);
        let (granted, quota) = self.grant(kept, report.wanted);
        let slot = self.present();
        slot.paced = slot.paced.saturating_add(u64::from(granted));
        let tokens = kept + granted;
        self.books.holders.insert(instance, Holder { tokens, fresh: granted, quota, ..holder });
        Lease { number: report.number, tokens, quota, valid: self.rule.lease }
    }

    /// Where the tokens are, in millionths of a retry.
    pub fn reading(&mut self, now: Wall) -> Account {
        self.advance(now);
        self.account()
    }

    /// Tokens on top of what is `kept`, and what the instance should keep of them.
    fn grant(&self, kept: u32, wanted: u32) -> (u32, u32) {
        let Account { capacity, balance, .. } = self.account();
        let balance = u64::try_from(balance).unwrap_or(0);
        let part = capacity / RETRY / SLOTS;
        let fair = part / self.books.holders.len().max(1) as u64;
        let target = fair.max(u64::from(wanted)).max(1);
        let paced = self.books.slots.last().map_or(0, |slot| slot.paced);
        let older: u64 =
            self.books.holders.values().map(|one| u64::from(one.tokens - one.fresh.min(one.tokens))).sum();
        let room = part.saturating_sub(paced).saturating_sub(older);
        let first = u64::from(fair == 0 && kept == 0 && balance >= capacity / 2);
        let granted = target.saturating_sub(u64::from(kept)).min(balance / RETRY).min(room.max(first));
        let narrow = |tokens| u32::try_from(tokens).unwrap_or(u32::MAX - kept);
        (narrow(granted), narrow(target))
    }

    fn account(&self) -> Account {
        let slots = &self.books.slots;
        let share = u64::from(self.rule.ratio.per_million);
        let paid = slots
            .iter()
            .fold(0_u64, |sum, slot| sum.saturating_add(slot.first_attempts.saturating_mul(share)));
        let capacity = u64::from(self.rule.ratio.reserve).saturating_mul(RETRY).saturating_add(paid);
        let spent =
            slots.iter().fold(0_u64, |sum, slot| sum.saturating_add(slot.spent)).saturating_mul(RETRY);
        let held = self.books.holders.values().map(|holder| u64::from(holder.tokens) * RETRY).sum();
        let balance = i128::from(capacity) - i128::from(held) - i128::from(spent);
        Account { capacity, held, spent, balance: i64::try_from(balance).unwrap_or(i64::MAX) }
    }

    /// Opens the slot of `now`, forgets those that the window has left behind, and ends the leases that nobody renewed.
    /// An instant older than the newest slot counts as that.
    fn advance(&mut self, now: Wall) {
        let slot_ms = (self.rule.ratio.window.as_millis() / u128::from(SLOTS)).max(1);
        let number = now.unix_ms().div_euclid(i64::try_from(slot_ms).unwrap_or(i64::MAX));
        let newest = self.books.slots.last().map_or(number, |slot| slot.number.max(number));
        if self.books.slots.last().is_none_or(|slot| slot.number < newest) {
            self.books.slots.push(Slot::new(newest));
        }
        let mut lapsed = 0_u64;
        self.books.holders.retain(|_, holder| {
            let alive = now < holder.until;
            lapsed += if alive { 0 } else { u64::from(holder.tokens) };
            alive
        });
        let slot = self.present();
        slot.spent = slot.spent.saturating_add(lapsed);
        let oldest = newest.saturating_sub(SLOTS as i64);
        self.books.slots.retain(|slot| slot.number > oldest);
    }

    /// The newest slot; [`Fleet::advance`] has opened it.
    fn present(&mut self) -> &mut Slot {
        let last = self.books.slots.len().saturating_sub(1);
        if self.books.slots.is_empty() {
            self.books.slots.push(Slot::new(0));
        }
        &mut self.books.slots[last]
    }
}
