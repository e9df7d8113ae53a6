//! Retries as a share of the traffic, over a sliding window (V6).
//!
//! Each first attempt deposits a share of a retry, each retry takes a whole one, both in the window's present slot. At
//! the moment of every retry the window's retries are at most its deposits plus the reserve.
//!
//! Whole numbers, in millionths of a retry: dividing once per deposit and rounding there makes a budget of 60% one of
//! 100% (M3). Idle time costs nothing: the slots that have passed are cleared at the next use, ten at most (M6b).

use std::time::Duration;

use super::{Account, Denied, Name};
use crate::retry::deadline::{Mono, nanos};

/// One retry, in the unit of the accounts.
pub(super) const RETRY: u64 = 1_000_000;
/// Resolution of the window.
pub(super) const SLOTS: u64 = 10;

/// The numbers of the ratio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ratio {
    /// Retries per million first attempts: 200,000 is 20%.
    pub per_million: u32,
    /// Retries per window that need no traffic: without them a client that calls once a minute could never retry.
    pub reserve: u32,
    /// Length of the window.
    pub window: Duration,
}

impl Default for Ratio {
    /// SPEC 7.5: 20% over 10 s; one a second in reserve.
    fn default() -> Self {
        Self { per_million: 200_000, reserve: 10, window: Duration::from_secs(10) }
    }
}

/// The window. Every slot knows what was paid in and what of it is held or spent; the balance follows from them.
pub(super) struct Shares {
    rule: Ratio,
    slots: [Slot; SLOTS as usize],
    /// Number of the newest slot, counted from the clock's origin.
    newest: u64,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    paid: u64,
    held: u64,
    spent: u64,
}

impl Shares {
    pub(super) fn new(rule: Ratio) -> Self {
        Self { rule, slots: [Slot::default(); SLOTS as usize], newest: 0 }
    }

    pub(super) fn deposit(&mut self, now: Mono) {
        let share = u64::from(self.rule.per_million);
        let slot = self.advance(now);
        slot.paid = slot.paid.saturating_add(share);
    }

    pub(super) fn affords(&mut self, now: Mono) -> Result<(), Denied> {
        let Account { balance, capacity, .. } = self.reading(now);
        if i128::from(balance) >= i128::from(RETRY) {
            return Ok(());
        }
        Err(Denied { rule: Name::Ratio, balance, cost: RETRY, capacity })
    }

    /// Only after [`Shares::affords`], under one lock. Returns the slot it was taken from.
    pub(super) fn take(&mut self, now: Mono) -> u64 {
        self.advance(now).held += RETRY;
        self.newest
    }

    pub(super) fn give_back(&mut self, slot: u64) {
        if let Some(slot) = self.within_window(slot) {
            slot.held = slot.held.saturating_sub(RETRY);
        }
    }

    pub(super) fn spend(&mut self, slot: u64) {
        if let Some(slot) = self.within_window(slot) {
            slot.held = slot.held.saturating_sub(RETRY);
            slot.spent += RETRY;
        }
    }

    pub(super) fn unspend(&mut self, slot: u64) {
        if let Some(slot) = self.within_window(slot) {
            slot.spent = slot.spent.saturating_sub(RETRY);
            slot.held += RETRY;
        }
    }

    pub(super) fn reading(&mut self, now: Mono) -> Account {
        self.advance(now);
        let sum = |part: fn(&Slot) -> u64| self.slots.iter().map(part).fold(0, u64::saturating_add);
        let reserve = u64::from(self.rule.reserve) * RETRY;
        let capacity = reserve.saturating_add(sum(|slot| slot.paid));
        let (held, spent) = (sum(|slot| slot.held), sum(|slot| slot.spent));
        let balance = i128::from(capacity) - i128::from(held) - i128::from(spent);
        Account { capacity, held, spent, balance: i64::try_from(balance).unwrap_or(i64::MAX) }
    }

    /// The slot of `now`, after those that have passed were cleared. A clock reading that is older than one already seen
    /// (another thread was quicker) counts as the newest.
    fn advance(&mut self, now: Mono) -> &mut Slot {
        let length = (nanos(self.rule.window) / SLOTS).max(1);
        let present = (now.nanos() / length).max(self.newest);
        let passed = (present - self.newest).min(SLOTS);
        for number in 0..passed {
            self.slots[((present - number) % SLOTS) as usize] = Slot::default();
        }
        self.newest = present;
        &mut self.slots[(present % SLOTS) as usize]
    }

    fn within_window(&mut self, slot: u64) -> Option<&mut Slot> {
        (self.newest - slot < SLOTS).then(|| &mut self.slots[(slot % SLOTS) as usize])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn rows(name: &str) -> Vec<Value> {
        let text = include_str!("../../../../../vectors/retry/budgets.json");
        let file: Value = serde_json::from_str(text).unwrap();
        file["ratio"][name].as_array().unwrap().clone()
    }

    fn number(value: &Value) -> u32 {
        u32::try_from(value.as_u64().unwrap()).unwrap()
    }

    fn at(ms: &Value) -> Mono {
        Mono::from_elapsed(Duration::from_millis(ms.as_u64().unwrap()))
    }

    fn granted(shares: &mut Shares, now: Mono) -> bool {
        let affords = shares.affords(now).is_ok();
        if affords {
            let slot = shares.take(now);
            shares.spend(slot);
        }
        affords
    }

    /// M3: rounding once for each deposit makes 60%, 70% and 90% the same 100%.
    #[test]
    fn v6_m3_the_share_is_not_rounded() {
        for case in rows("granted") {
            let window = Duration::from_secs(10);
            let mut shares =
                Shares::new(Ratio { per_million: number(&case["per_million"]), reserve: 0, window });
            (0..10_000).for_each(|_| shares.deposit(Mono::START));
            let retries = case["retries"].as_u64().unwrap();
            assert_eq!(shares.reading(Mono::START).balance as u64 / RETRY, retries, "{case}");
            // Granting millions one by one shows nothing that thousands do not.
            if retries <= 30_000 {
                let count = (0..).take_while(|_| granted(&mut shares, Mono::START)).count();
                assert_eq!(count as u64, retries, "{case}");
            }
        }
    }

    #[test]
    fn v6_m6b_the_window_slides() {
        for case in rows("plays") {
            let window = Duration::from_millis(case["window_ms"].as_u64().unwrap());
            let rule = Ratio {
                per_million: number(&case["per_million"]),
                reserve: number(&case["reserve"]),
                window,
            };
            let mut shares = Shares::new(rule);
            for _ in 0..case["takes"].as_u64().unwrap_or(0) {
                assert!(granted(&mut shares, Mono::START), "{case}");
            }
            for step in case["steps"].as_array().unwrap() {
                match step[1].as_str().unwrap() {
                    "enter" => shares.deposit(at(&step[0])),
                    "take" => assert!(granted(&mut shares, at(&step[0])), "{case}: {step}"),
                    "denied" => assert!(!granted(&mut shares, at(&step[0])), "{case}: {step}"),
                    other => panic!("{other}"),
                }
            }
        }
    }

    #[test]
    fn a_permit_that_outlives_its_window_changes_nothing() {
        let window = Duration::from_secs(1);
        let mut shares = Shares::new(Ratio { per_million: 0, reserve: 1, window });
        let (slot, late) = (shares.take(Mono::START), Mono::from_elapsed(Duration::from_secs(5)));
        let before = shares.reading(late);
        shares.give_back(slot);
        shares.spend(slot);
        shares.unspend(slot);
        assert_eq!(shares.reading(late), before);
    }
}
