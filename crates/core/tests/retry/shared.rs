//! One account for a whole fleet: what its instances spend together, whatever gets lost on the way.

use std::{collections::VecDeque, time::Duration};

use proptest::prelude::*;
use retrysafe_core::{
    retry::{
        budget::{Entry, Fleet, FleetRule, Lease, Name, Ratio, Report, Rules},
        *,
    },
    time::Wall,
};

use crate::Entropy;

/// One process: its end of the budget, and the retries it has under way.
struct Instance {
    id: u64,
    budget: Budget,
    entry: Entry,
    permits: Vec<Permit>,
}

impl Instance {
    fn start(id: u64, now: Mono) -> Self {
        let budget = Budget::new(Rules { fleet: true, ..Rules::NONE });
        let entry = budget.enter(now);
        Self { id, budget, entry, permits: Vec::new() }
    }

    fn exchange(&self, fleet: &mut Fleet, ms: u64) -> (Report, Lease) {
        let report = self.budget.report(mono(ms)).unwrap();
        let lease = fleet.exchange(self.id, &report, wall(ms));
        (report, lease)
    }
}

fn mono(ms: u64) -> Mono {
    Mono::from_elapsed(Duration::from_millis(ms))
}

fn wall(ms: u64) -> Wall {
    Wall::from_unix_ms(1_700_000_000_000 + ms as i64)
}

fn balances(fleet: &mut Fleet, ms: u64) {
    let books = fleet.reading(wall(ms));
    assert_eq!(
        i128::from(books.held) + i128::from(books.spent) + i128::from(books.balance),
        i128::from(books.capacity)
    );
}

/// A reserve and no share, so that the bound is one number.
fn reserve(reserve: u32) -> FleetRule {
    let ratio = Ratio { per_million: 0, reserve, ..Ratio::default() };
    FleetRule { ratio, ..FleetRule::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Requests and answers of exchanges get lost, old requests arrive again, instances die with permits in hand: in no
    /// nine seconds (a window has nine to ten tenths of its length) are more retries sent than there are tokens, and
    /// when everybody is quiet all tokens are back.
    #[test]
    fn a_fleet_never_spends_more_than_its_account(seed in any::<u64>()) {
        const RESERVE: u32 = 12;
        let mut chance = Entropy::seeded(seed);
        let mut fleet = Fleet::new(reserve(RESERVE));
        let mut instances: Vec<_> = (0..5).map(|id| Instance::start(id, Mono::START)).collect();
        let mut stray: Vec<(u64, Report)> = Vec::new();
        let mut sends: VecDeque<u64> = VecDeque::new();
        let (mut ms, mut next_id, mut total) = (0_u64, 5_u64, 0_u64);
        for _ in 0..3_000 {
            ms += chance.next() % 24;
            // One of them does most of it: an even load meets the limits of each instance before that of all.
            let one = (chance.next() % 9).saturating_sub(4) as usize;
            let Instance { id, budget, entry, permits } = &mut instances[one];
            match chance.next() % 16 {
                0..5 => match entry.take(Pace::Transient, mono(ms)) {
                    Ok(permit) => permits.push(permit),
                    Err(denied) => prop_assert_eq!(denied.rule, Name::Fleet),
                },
                5..9 => if let Some(mut permit) = permits.pop() {
                    match chance.next() % 4 {
                        0 => drop(permit),
                        1 => {
                            permit.sent();
                            permit.not_sent();
                        }
                        _ => {
                            sends.push_back(ms);
                            total += 1;
                            permit.spend();
                        }
                    }
                },
                9..14 => {
                    let report = budget.report(mono(ms)).unwrap();
                    if !chance.next().is_multiple_of(8) {
                        let lease = fleet.exchange(*id, &report, wall(ms));
                        if !chance.next().is_multiple_of(8) {
                            budget.leased(&lease, mono(ms));
                        }
                        stray.push((*id, report));
                    }
                }
                14 => if let Some((id, report)) = stray.get(chance.next() as usize % stray.len().max(1)) {
                    // Not one of a life that is over: the network does not keep requests as long as a lease.
                    if instances.iter().any(|instance| instance.id == *id) {
                        fleet.exchange(*id, report, wall(ms));
                    }
                },
                _ => if chance.next().is_multiple_of(8) {
                    instances[one] = Instance::start(next_id, mono(ms));
                    next_id += 1;
                },
            }
            balances(&mut fleet, ms);
            while sends.front().is_some_and(|sent| *sent + 9_000 < ms) {
                sends.pop_front();
            }
            prop_assert!(sends.len() <= RESERVE as usize, "{} sends in nine seconds", sends.len());
        }
        // Not bounded by being useless: a good part of what there was has been spent, deaths and losses aside.
        let there_was = u64::from(RESERVE) * ms / 10_000;
        prop_assert!(total * 4 > there_was, "{total} of {there_was}");
        drop(instances);
        fleet.reading(wall(ms + 4_000));
        let books = fleet.reading(wall(ms + 20_000));
        prop_assert_eq!((books.held, books.spent), (0, 0));
    }

    /// Without losses the account knows of each token that an instance holds.
    #[test]
    fn account_and_instances_agree_to_the_token(seed in any::<u64>()) {
        let mut chance = Entropy::seeded(seed);
        let mut fleet = Fleet::new(reserve(100));
        let mut instances: Vec<_> = (0..4).map(|id| Instance::start(id, Mono::START)).collect();
        for step in 0..400_u64 {
            let ms = step * 10;
            let instance = &mut instances[(chance.next() % 4) as usize];
            if chance.next().is_multiple_of(2) {
                if let Ok(permit) = instance.entry.take(Pace::Throttled, mono(ms)) {
                    instance.permits.push(permit);
                }
            } else if let Some(mut permit) = instance.permits.pop()
                && chance.next().is_multiple_of(2)
            {
                permit.sent();
            }
            // Each exchanges every 40 ms, so nothing lapses.
            let instance = &instances[(step % 4) as usize];
            let (_, lease) = instance.exchange(&mut fleet, ms);
            instance.budget.leased(&lease, mono(ms));
            let own = instance.budget.reading(mono(ms)).fleet.unwrap();
            prop_assert_eq!(own.capacity, u64::from(lease.tokens));
            prop_assert_eq!(own.held, instance.permits.len() as u64);
        }
    }
}

/// The same report twice (its answer was lost) counts its attempts once and grants once.
#[test]
fn a_repeated_report_changes_nothing() {
    let mut fleet = Fleet::new(FleetRule::default());
    let report = Report { number: 1, first_attempts: 500, wanted: 4, ..Report::default() };
    let lease = fleet.exchange(1, &report, wall(0));
    let books = fleet.books().clone();
    assert_eq!(fleet.exchange(1, &report, wall(0)), lease);
    assert_eq!(fleet.books(), &books);
    // Nor does an older one that arrives late.
    let second = Report { number: 2, spent: 1, ..Report::default() };
    let lease = fleet.exchange(1, &second, wall(10));
    let books = fleet.books().clone();
    assert_eq!(fleet.exchange(1, &report, wall(20)).tokens, lease.tokens);
    assert_eq!(fleet.books(), &books);
}

/// Who died may have used what it held.
#[test]
fn a_lease_that_nobody_renews_counts_as_spent() {
    let mut fleet = Fleet::new(reserve(50));
    let lease = fleet.exchange(1, &Report { number: 1, wanted: 5, ..Report::default() }, wall(0));
    assert_eq!(lease.tokens, 5);
    assert_eq!(fleet.reading(wall(2_999)).held, 5_000_000);
    let books = fleet.reading(wall(3_000));
    assert_eq!((books.held, books.spent), (0, 5_000_000));
    assert_eq!(fleet.reading(wall(13_000)).balance, 50_000_000);
}

/// An instance whose exchanges fail stops by itself before its lease is over at the account.
#[test]
fn tokens_lapse_at_the_instance_too() {
    let mut fleet = Fleet::new(reserve(50));
    let mut instance = Instance::start(1, Mono::START);
    let (_, lease) = instance.exchange(&mut fleet, 100);
    instance.budget.leased(&lease, mono(50));
    let asleep = instance.entry.take(Pace::Transient, mono(200)).unwrap();
    assert!(instance.entry.take(Pace::Transient, mono(3_050)).is_err());
    // A permit of the lapsed lease brings nothing back into the next one.
    let (report, lease) = instance.exchange(&mut fleet, 3_060);
    assert_eq!((report.spent, report.returned), (5, 0));
    instance.budget.leased(&lease, mono(3_060));
    let before = instance.budget.reading(mono(3_060)).fleet.unwrap();
    drop(asleep);
    assert_eq!(instance.budget.reading(mono(3_060)).fleet.unwrap(), before);
}

/// What one second of a quiet fleet, and then one of an outage, sends. `rate` first attempts a second in each of 100 instances.
fn retries_by_second(rate: u64, quiet_s: u64, outage_s: u64) -> Vec<u64> {
    let mut fleet = Fleet::new(FleetRule::default());
    let mut instances: Vec<_> = (0..100).map(|id| Instance::start(id, Mono::START)).collect();
    let mut seconds = Vec::new();
    for second in 0..quiet_s + outage_s {
        let mut sent = 0;
        for tick in 0..100 {
            let ms = second * 1_000 + tick * 10;
            for (place, instance) in instances.iter_mut().enumerate() {
                if (tick * rate).div_euclid(100) < ((tick + 1) * rate).div_euclid(100) {
                    let mut call = instance.budget.enter(mono(ms));
                    if second >= quiet_s
                        && let Ok(permit) = call.take(Pace::Transient, mono(ms))
                    {
                        permit.spend();
                        sent += 1;
                    }
                }
                // Once a second, each at its own time.
                if tick == place as u64 {
                    let (_, lease) = instance.exchange(&mut fleet, ms);
                    instance.budget.leased(&lease, mono(ms));
                }
            }
        }
        seconds.push(sent);
    }
    seconds
}

/// A hundred instances, each of which has nothing but failures: at most a quarter more load in every second, from the first
/// one on, and the share that was promised over the window.
#[test]
fn an_outage_gets_no_burst() {
    let seconds = retries_by_second(10, 15, 20);
    let outage = &seconds[15..];
    assert!(outage.iter().all(|retries| *retries <= 220), "{outage:?}");
    assert!(outage.windows(10).all(|window| window.iter().sum::<u64>() <= 2_010 + 201), "{outage:?}");
    assert!(outage.windows(10).all(|window| window.iter().sum::<u64>() >= 1_500), "{outage:?}");
}

/// Where the share is less than one token a second for each instance, a quiet fleet still has one in every hand.
#[test]
fn every_instance_of_a_quiet_fleet_can_retry() {
    let mut fleet = Fleet::new(FleetRule::default());
    let instances: Vec<_> = (0..100).map(|id| Instance::start(id, Mono::START)).collect();
    for second in 0..20 {
        for instance in &instances {
            drop(instance.budget.enter(mono(second * 1_000)));
            let (_, lease) = instance.exchange(&mut fleet, second * 1_000);
            instance.budget.leased(&lease, mono(second * 1_000));
        }
    }
    let without =
        instances.iter().filter(|one| one.budget.reading(mono(19_000)).fleet.unwrap().balance == 0).count();
    assert_eq!(without, 0);
    let burst = retries_by_second(1, 15, 20);
    assert!(burst[15..].windows(10).all(|window| window.iter().sum::<u64>() <= 210 + 21), "{burst:?}");
}
