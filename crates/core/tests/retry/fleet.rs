//! Many calls on one budget: in a row (V4), in every order (a small model checker), and at the same time.

use std::{
    num::NonZeroU32,
    panic::{self, AssertUnwindSafe},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use retrysafe_core::retry::{
    budget::{Account, Bucket, Ratio, Rules},
    *,
};

use crate::{Entropy, vectors};

const KEYED: Request = Request::new(Idempotence::Keyed);

fn bucket(rule: Bucket) -> Budget {
    Budget::new(Rules { bucket: Some(rule), ..Rules::NONE })
}

fn account(budget: &Budget) -> Account {
    budget.reading(Mono::START).bucket.unwrap()
}

/// Retries that one request after the other makes, each attempt failing by chance.
fn retries_per_request(failures: f64, cost: u32, requests: u32) -> f64 {
    let budget = bucket(Bucket { transient_cost: cost, ..Bucket::default() });
    let policy = presets::aws_2_1();
    let mut entropy = Entropy::seeded(1);
    let mut sent = 0_u64;
    for _ in 0..requests {
        let (mut call, mut step) = Call::open(&policy, &budget, KEYED, Deadline::UNSET, Mono::START);
        loop {
            step = match step {
                Step::Send { .. } => {
                    sent += 1;
                    let failed = (entropy.next() as f64) < failures * u64::MAX as f64;
                    call.observe(&Seen::status(if failed { 500 } else { 200 }), 0, Mono::START)
                }
                Step::Sleep(pause) => call.woke(Mono::START.plus(pause.delay)),
                Step::Poll { .. } => panic!("nothing to poll"),
                Step::Finish(_) => break,
            };
        }
    }
    sent as f64 / f64::from(requests) - 1.0
}

/// V4: a drained bucket rations retries; in a full outage the load is the first attempts and nothing more.
#[test]
fn v4_what_the_bucket_does_to_a_fleet() {
    for row in vectors("fleet.json")["rates"].as_array().unwrap() {
        let failures = row["failures"].as_f64().unwrap();
        for (name, cost) in [("cost_5", 5), ("cost_14", 14)] {
            let (found, expected) =
                (retries_per_request(failures, cost, 40_000), row[name].as_f64().unwrap());
            assert!((found - expected).abs() <= 0.01, "{failures}, {name}: {found}, not {expected}");
        }
    }
}

/// The choices of one run, and how to get to the next one: every path is run from the start.
struct Choices {
    made: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    fn choose(&mut self, among: usize) -> usize {
        if self.at == self.made.len() {
            self.made.push((0, among));
        }
        let (chosen, same) = self.made[self.at];
        assert_eq!(same, among, "a run is the same up to its last choice");
        self.at += 1;
        chosen
    }

    /// Whether there is another path.
    fn next_path(&mut self) -> bool {
        self.at = 0;
        while let Some((chosen, among)) = self.made.pop() {
            if chosen + 1 < among {
                self.made.push((chosen + 1, among));
                return true;
            }
        }
        false
    }
}

/// Where one of the model's callers is.
enum Caller {
    Before,
    Holding(Permit),
    Sent(Permit),
    Over,
}

/// Every interleaving of three callers, each of which may be cancelled at every point. The bucket has room for one transient
/// retry and one throttled one, so that they get into each other's way.
#[test]
fn budgets_conserve_in_every_order_of_three_callers() {
    let rule = Bucket { capacity: 20, refill: 0, ..Bucket::default() };
    let mut choices = Choices { made: Vec::new(), at: 0 };
    let mut paths = 0_u64;
    let mut denied_ever = false;
    loop {
        let budget = bucket(rule);
        let mut entries = [0; 3].map(|_| budget.enter(Mono::START));
        let mut callers = [0; 3].map(|_| Caller::Before);
        let costs = [14, 14, 5];
        let (mut held, mut spent) = (0, 0);
        loop {
            let alive: Vec<_> = (0..3).filter(|one| !matches!(callers[*one], Caller::Over)).collect();
            if alive.is_empty() {
                break;
            }
            let one = alive[choices.choose(alive.len())];
            let cost = costs[one];
            callers[one] = match std::mem::replace(&mut callers[one], Caller::Over) {
                Caller::Before => {
                    let pace = if cost == 14 { Pace::Transient } else { Pace::Throttled };
                    let room = 20 - held - spent >= cost;
                    match entries[one].take(pace, Mono::START) {
                        Ok(permit) => {
                            assert!(room);
                            held += cost;
                            Caller::Holding(permit)
                        }
                        Err(_) => {
                            assert!(!room, "a refusal without need");
                            denied_ever = true;
                            Caller::Over
                        }
                    }
                }
                Caller::Holding(mut permit) => match choices.choose(2) {
                    0 => {
                        permit.sent();
                        Caller::Sent(permit)
                    }
                    _ => {
                        drop(permit);
                        held -= cost;
                        Caller::Over
                    }
                },
                Caller::Sent(permit) => {
                    held -= cost;
                    match choices.choose(3) {
                        0 => permit.give_back(),
                        1 => {
                            permit.spend();
                            spent += cost;
                        }
                        _ => {
                            drop(permit);
                            spent += cost;
                        }
                    }
                    Caller::Over
                }
                Caller::Over => Caller::Over,
            };
            let Account { capacity, held: found_held, spent: found_spent, balance } = account(&budget);
            assert_eq!((found_held, found_spent), (held, spent), "{:?}", choices.made);
            assert_eq!(capacity as i64, found_held as i64 + found_spent as i64 + balance);
        }
        paths += 1;
        if !choices.next_path() {
            break;
        }
    }
    assert!(paths > 5_000 && denied_ever, "{paths} paths");
}

/// 1,000 calls on 8 threads, cancelled and panicking at random points: the books balance to the token.
#[test]
fn a_thousand_calls_with_cancels_and_panics_leave_nothing_behind() {
    const CALLS: u64 = 1_000;
    const THREADS: u64 = 8;
    let rule = Bucket { capacity: 100_000, refill: 0, ..Bucket::default() };
    let rules = Rules {
        bucket: Some(rule),
        ratio: Some(Ratio { reserve: 10_000, ..Ratio::default() }),
        ..Rules::NONE
    };
    let budget = Budget::new(rules);
    let expected = AtomicU64::new(0);
    let panics = AtomicU64::new(0);
    let (budget_ref, expected_ref, panics_ref) = (&budget, &expected, &panics);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut entropy = Entropy::seeded(thread);
                for _ in 0..CALLS / THREADS {
                    let mut sent_at_cost = 0;
                    let run = panic::catch_unwind(AssertUnwindSafe(|| {
                        one_call(budget_ref, &mut entropy, &mut sent_at_cost)
                    }));
                    panics_ref.fetch_add(u64::from(run.is_err()), Ordering::Relaxed);
                    expected_ref.fetch_add(sent_at_cost, Ordering::Relaxed);
                }
            });
        }
    });
    let reading = budget.reading(Mono::START);
    let account = reading.bucket.unwrap();
    assert_eq!((reading.calls, reading.retries, account.held), (0, 0, 0));
    assert_eq!(account.spent, expected.load(Ordering::Relaxed));
    assert_eq!(account.balance as u64, account.capacity - account.spent);
    assert_eq!(reading.ratio.unwrap().held, 0);
    assert!(panics.load(Ordering::Relaxed) > 50 && account.spent > 1_000);
}

/// A call that is dropped while its retry sleeps leaves after the retry. The other way round one retry more than there
/// are calls was to be seen now and then by another thread.
#[test]
fn m1_a_dropped_call_never_leaves_before_its_retry() {
    const CALLS_MAX: u32 = 5_000_000;
    const SIGHTINGS: u64 = 2_000;
    let budget = Budget::new(Rules::NONE);
    let (done, ahead, seen) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let reading = budget.reading(Mono::START);
                seen.fetch_add(u64::from(reading.retries > 0), Ordering::Relaxed);
                ahead.fetch_add(u64::from(reading.retries > reading.calls), Ordering::Relaxed);
            }
        });
        let policy =
            RetryPolicy { attempts: NonZeroU32::new(2).unwrap_or(NonZeroU32::MIN), ..RetryPolicy::default() };
        let hedging = HedgePolicy { delay: Duration::ZERO };
        for _ in 0..CALLS_MAX {
            // How often the two threads meet is up to the machine, so the calls go on until they have met often.
            if seen.load(Ordering::Relaxed) >= SIGHTINGS {
                break;
            }
            let (mut call, _) = Call::open(&policy, &budget, KEYED, Deadline::UNSET, Mono::START);
            call.observe(&Seen::status(503), 7, Mono::START);
            drop(call);
            let (mut hedge, _) = Hedge::open(&policy, hedging, &budget, KEYED, Deadline::UNSET, Mono::START);
            hedge.next(Mono::START);
            drop(hedge);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(seen.into_inner() >= SIGHTINGS, "few retries were seen under way");
    assert_eq!(ahead.into_inner(), 0);
}

/// One call that may end anywhere. Adds up what its retries cost for good.
fn one_call(budget: &Budget, entropy: &mut Entropy, spent: &mut u64) {
    let policy = RetryPolicy { elapsed: Duration::MAX, ..RetryPolicy::default() };
    let (mut call, mut step) = Call::open(&policy, budget, KEYED, Deadline::UNSET, Mono::START);
    let mut now = Mono::START;
    loop {
        match entropy.next() % 20 {
            0 => return,
            // Unwinds without the noise of a panic message.
            1 => panic::resume_unwind(Box::new(())),
            _ => {}
        }
        step = match step {
            Step::Send { .. } if entropy.next().is_multiple_of(3) => {
                // The last retry succeeds and gets its tokens back.
                *spent -= if call.attempts() > 1 { 14 } else { 0 };
                call.observe(&Seen::status(200), entropy.next(), now)
            }
            Step::Send { .. } => call.observe(&Seen::status(503), entropy.next(), now),
            Step::Sleep(pause) => {
                now = now.plus(pause.delay);
                let step = call.woke(now);
                *spent += 14;
                step
            }
            Step::Poll { .. } => panic!("nothing to poll"),
            Step::Finish(_) => return,
        };
    }
}

/// M6a: eight threads and 6,000 tokens; another budget granted 6,001.
#[test]
fn m6a_threads_never_get_more_than_there_is() {
    for _ in 0..20 {
        let budget = bucket(Bucket { capacity: 600, transient_cost: 1, ..Bucket::default() });
        let granted = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut entry = budget.enter(Mono::START);
                    while let Ok(permit) = entry.take(Pace::Transient, Mono::START) {
                        permit.spend();
                        granted.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(granted.load(Ordering::Relaxed), 600);
    }
}
