//! A budget under threads, in every order of their steps: a step is what happens while its lock is held.
//!
//! Built only for the model checker, which `cargo xtask prove client.3` runs:
//! `RUSTFLAGS="--cfg retrysafe_loom" cargo test -p retrysafe-core --release --test threads`.
#![expect(unexpected_cfgs, reason = "set by whoever runs the model checker")]
#![cfg(retrysafe_loom)]

use std::{num::NonZeroU32, time::Duration};

use loom::thread;
use retrysafe_core::retry::{
    budget::{Account, Bucket, Concurrency, Ratio, Reading, Rules},
    *,
};

const KEYED: Request = Request::new(Idempotence::Keyed);
/// Preemptions of one run; most faults of threads need no more than two (CHESS, PLDI 2007).
const PREEMPTIONS_MAX: usize = 3;

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(model);
}

/// Room for one retry of two.
fn narrow() -> Budget {
    Budget::new(Rules {
        bucket: Some(Bucket { capacity: 20, ..Bucket::default() }),
        ratio: Some(Ratio { reserve: 2, ..Ratio::default() }),
        concurrency: Some(Concurrency { percent: 100, retries_min: 1 }),
        ..Rules::NONE
    })
}

fn balanced(account: Account) -> bool {
    let (held, spent) = (i128::from(account.held), i128::from(account.spent));
    held + spent + i128::from(account.balance) == i128::from(account.capacity)
}

fn look(budget: &Budget) -> Reading {
    let reading = budget.reading(Mono::START);
    assert!(reading.bucket.is_none_or(balanced) && reading.ratio.is_none_or(balanced), "{reading:?}");
    assert!(reading.retries <= reading.calls, "a call left before its retry: {reading:?}");
    reading
}

fn at_rest(budget: &Budget) -> Reading {
    let reading = look(budget);
    assert_eq!((reading.calls, reading.retries), (0, 0));
    assert_eq!(reading.bucket.map(|account| account.held), Some(0));
    reading
}

/// How a call ends.
#[derive(Clone, Copy, PartialEq)]
enum End {
    /// Dropped while its retry sleeps.
    Asleep,
    /// Dropped while its retry is on its way.
    Sent,
    /// Its retry succeeds.
    Done,
}

/// Makes a call whose first attempt fails. Says whether it was allowed a retry.
fn one_call(budget: &Budget, end: End) -> bool {
    let policy = RetryPolicy { attempts: NonZeroU32::MIN.saturating_add(1), ..RetryPolicy::default() };
    let (mut call, _) = Call::open(&policy, budget, KEYED, Deadline::UNSET, Mono::START);
    let Step::Sleep(pause) = call.observe(&Seen::status(503), 7, Mono::START) else { return false };
    if !matches!(pause.cause, Cause::Retry(_)) {
        return false;
    }
    if end != End::Asleep {
        let woken = call.woke(Mono::START.plus(Duration::from_secs(5)));
        assert!(matches!(woken, Step::Send { attempt: 2, .. }));
    }
    if end == End::Done {
        call.observe(&Seen::status(200), 7, Mono::START);
    }
    true
}

#[test]
fn m1_two_calls_share_what_is_enough_for_one() {
    for (mine, theirs) in [(End::Asleep, End::Done), (End::Sent, End::Done), (End::Sent, End::Sent)] {
        check(move || {
            let budget = narrow();
            let other = budget.clone();
            let thread = thread::spawn(move || one_call(&other, theirs));
            let allowed = one_call(&budget, mine);
            let allowed = u64::from(allowed) + u64::from(thread.join().unwrap());
            let spent = at_rest(&budget).bucket.map_or(0, |account| account.spent);
            let kept = [mine, theirs].into_iter().filter(|end| *end == End::Sent).count() as u64;
            assert!(allowed >= 1, "a budget of one retry allowed none");
            assert!(spent <= kept * 14, "{spent} spent by {kept}");
        });
    }
}

#[test]
fn m1_whoever_looks_in_between_sees_it_balance() {
    for end in [End::Asleep, End::Sent, End::Done] {
        check(move || {
            let budget = narrow();
            let (calling, looking) = (budget.clone(), budget.clone());
            let calls = thread::spawn(move || one_call(&calling, end));
            let looks = thread::spawn(move || [look(&looking), look(&looking)]);
            one_call(&budget, End::Asleep);
            calls.join().unwrap();
            looks.join().unwrap();
            at_rest(&budget);
        });
    }
}

#[test]
fn m1_a_hedged_call_leaves_nothing_behind() {
    check(|| {
        let budget = narrow();
        let other = budget.clone();
        let thread = thread::spawn(move || one_call(&other, End::Asleep));
        let policy = RetryPolicy { attempts: NonZeroU32::MIN.saturating_add(1), ..RetryPolicy::default() };
        let hedging = HedgePolicy { delay: Duration::ZERO };
        let (mut hedge, _) = Hedge::open(&policy, hedging, &budget, KEYED, Deadline::UNSET, Mono::START);
        hedge.next(Mono::START);
        look(&budget);
        drop(hedge);
        thread.join().unwrap();
        at_rest(&budget);
    });
}
