//! client.3: a thousand tasks with random cancels and panics on one budget, which balances at every moment and at the end.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use retrysafe_client::{Host, Retries, retry};
use retrysafe_core::retry::{
    Budget, Idempotence, Mono, RetryPolicy,
    budget::{Account, Bucket, Concurrency, Ratio, Reading, Rules, Throttle},
};

use super::runtime;
use crate::{prove::Scale, suite};

const TASKS: usize = 1_000;
const ROUNDS: usize = 30;
const QUICK_ROUNDS: usize = 3;
/// The same claim over every order of the operations of three callers, over any sequence of them, and over threads.
const MODEL: [&str; 5] = [
    "fleet::budgets_conserve_in_every_order_of_three_callers",
    "properties::budgets_conserve_under_any_interleaving",
    "fleet::a_thousand_calls_with_cancels_and_panics_leave_nothing_behind",
    "fleet::m6a_threads_never_get_more_than_there_is",
    "fleet::m1_a_dropped_call_never_leaves_before_its_retry",
];

#[derive(Default)]
struct Counts {
    cancelled: AtomicU64,
    panicked: AtomicU64,
    readings: AtomicU64,
    unbalanced: AtomicU64,
}

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let counts = Arc::new(Counts::default());
    let rounds = scale.of(ROUNDS, QUICK_ROUNDS);
    let mut left_behind = 0;
    for round in 0..rounds {
        let seed = scale.seed.wrapping_add(round as u64);
        let rest = runtime()?.block_on(one_round(seed, &counts))?;
        left_behind += u64::from(!at_rest(&rest));
    }
    let model = if scale.quick() { MODEL[..1].to_vec() } else { MODEL.to_vec() };
    let ends = suite::run(&model)?;
    let modelled = model.iter().filter(|name| ends.get(**name) == Some(&true)).count();
    // Only the full proof: it is a build of its own.
    let threads = if scale.quick() { BTreeMap::new() } else { suite::threads()? };
    let ordered = threads.values().filter(|passed| **passed).count();
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (cancelled, panicked) = (count(&counts.cancelled), count(&counts.panicked));
    let (readings, unbalanced) = (count(&counts.readings), count(&counts.unbalanced));
    println!("  {modelled} of {} model checks of the same hold", model.len());
    if !scale.quick() {
        println!("  {ordered} of {} tests of threads hold in every order, under loom", threads.len());
    }
    println!(
        "{} calls, {cancelled} cancelled, {panicked} panicked: {unbalanced} of {readings} readings out of balance, \
         {left_behind} of {rounds} budgets not at rest at the end",
        rounds * TASKS
    );
    let exercised = cancelled > 0 && panicked > 0 && readings > 0;
    Ok(exercised
        && unbalanced == 0
        && left_behind == 0
        && modelled == model.len()
        && ordered == threads.len())
}

async fn one_round(seed: u64, counts: &Arc<Counts>) -> Result<Reading> {
    let budget = Budget::new(Rules {
        bucket: Some(Bucket::default()),
        ratio: Some(Ratio { reserve: 300, ..Ratio::default() }),
        concurrency: Some(Concurrency { percent: 50, retries_min: 100 }),
        throttle: Some(Throttle { tokens_max: 1_000_000, ratio_milli: 1_000 }),
        ..Rules::NONE
    });
    let mut policy = RetryPolicy::default();
    policy.backoff.base = Duration::from_millis(2);
    let retries = Retries::to("proof")
        .policy(policy)
        .budget(budget.clone())
        .idempotence(Idempotence::Keyed)
        .host(Host::default().seeded(seed));
    let stop = Arc::new(AtomicBool::new(false));
    let observer = std::thread::spawn({
        let (budget, stop, counts) = (budget.clone(), Arc::clone(&stop), Arc::clone(counts));
        move || {
            while !stop.load(Ordering::Relaxed) {
                observe(&budget, &counts);
                std::thread::yield_now();
            }
        }
    });
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut tasks = Vec::new();
    for number in 0..TASKS {
        let mut own = chance.fork();
        let (retries, dies) = (retries.clone(), chance.u8(..) < 128);
        let (budget, counts) = (budget.clone(), Arc::clone(counts));
        let task = tokio::spawn(async move {
            retry(&retries, |attempt| {
                let (luck, nap) = (own.u8(..), own.u64(0..3_000));
                // Between the permit of one and the end of another.
                observe(&budget, &counts);
                async move {
                    tokio::time::sleep(Duration::from_micros(nap)).await;
                    // A panic without the hook: it is the experiment, and not worth a thousand backtraces.
                    match luck {
                        0..60 if dies && attempt.number > 1 => std::panic::resume_unwind(Box::new(number)),
                        0..150 => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
                        _ => Ok(()),
                    }
                }
            })
            .await
        });
        let cancel_after = (chance.u8(..) < 80).then(|| Duration::from_micros(chance.u64(0..8_000)));
        tasks.push(tokio::spawn(async move {
            let handle = task.abort_handle();
            if let Some(delay) = cancel_after {
                tokio::time::sleep(delay).await;
                handle.abort();
            }
            task.await
        }));
    }
    for task in tasks {
        match task.await.context("a task of the proof")? {
            Err(error) if error.is_cancelled() => counts.cancelled.fetch_add(1, Ordering::Relaxed),
            Err(error) if error.is_panic() => counts.panicked.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }
    stop.store(true, Ordering::Relaxed);
    observer.join().map_err(|_| anyhow::anyhow!("the observer died"))?;
    Ok(budget.reading(Host::default().now()))
}

fn observe(budget: &Budget, counts: &Counts) {
    let reading = budget.reading(Mono::START);
    counts.readings.fetch_add(1, Ordering::Relaxed);
    let accounts = [reading.bucket, reading.ratio];
    if !accounts.into_iter().flatten().all(balanced) || reading.retries > reading.calls {
        counts.unbalanced.fetch_add(1, Ordering::Relaxed);
    }
}

fn balanced(account: Account) -> bool {
    let (held, spent) = (i128::from(account.held), i128::from(account.spent));
    held + spent + i128::from(account.balance) == i128::from(account.capacity)
}

/// Nothing is held, nobody is under way.
fn at_rest(reading: &Reading) -> bool {
    let accounts = [reading.bucket, reading.ratio];
    reading.calls == 0
        && reading.retries == 0
        && accounts.into_iter().flatten().all(|account| account.held == 0 && balanced(account))
}
