//! What group commit is worth: many tasks claim and complete keys, with one commit for all who wait and with a commit
//! for each, on a disk whose every sync takes 4 ms longer.
//!
//! `cargo run --release -p retrysafe-sim --example group_commit -- [tasks] [ms of handler work]`

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence, StatusId},
    outcome::{Body, HeaderPair, Outcome},
    record::{Expect, Record, RecoveryClass, State, Write},
    time::Wall,
};
use retrysafe_sim::SyncCounter;
use retrysafe_store::{
    Store, Written,
    sqlite::{BATCH_MAX, SqliteOptions, SqliteStore},
};

const SYNC: Duration = Duration::from_millis(4);

struct Measured {
    requests: u64,
    seconds: f64,
    syncs: u64,
}

impl Measured {
    fn per_second(&self) -> f64 {
        self.requests as f64 / self.seconds
    }
}

fn measure(
    batch_max: usize,
    tasks: u64,
    per_task: u64,
    sync: Duration,
    work: Duration,
) -> Result<Measured, Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let disk = SyncCounter::with_delay(sync);
    let options = SqliteOptions {
        vfs: Some(disk.vfs().to_owned()),
        batch_max,
        busy_timeout: Duration::from_secs(60),
        ..SqliteOptions::new(dir.path().join("keys.db"))
    };
    let store = Arc::new(SqliteStore::open(options)?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let before = disk.count();
    let started = Instant::now();
    runtime.block_on(async {
        let running: Vec<_> = (0..tasks)
            .map(|task| {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    for n in 0..per_task {
                        request(&store, task * per_task + n, work)
                            .await
                            .map_err(|error| error.to_string())?;
                    }
                    Ok::<(), String>(())
                })
            })
            .collect();
        for task in running {
            task.await.map_err(|error| error.to_string())??;
        }
        Ok::<(), String>(())
    })?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(Measured { requests: tasks * per_task, seconds, syncs: disk.count() - before })
}

async fn request(store: &SqliteStore, n: u64, work: Duration) -> Result<(), Box<dyn std::error::Error>> {
    let address = Address::new(
        Namespace::new("shop")?,
        Account::new(&["alice"])?,
        Key::trusted(&format!("key-{n:08}"))?,
    );
    // Spread over the table, as random keys are.
    let random = u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let now = store.now()?;
    let record = Record {
        attempt: AttemptId::new(random),
        fence: Fence::from_u64(0),
        status_id: StatusId::new(random.rotate_left(64)),
        fingerprint: Fingerprint::from_parts(1, 1, [9; 32]),
        recovery: RecoveryClass::Outside,
        contract_version: 1,
        endpoint: "POST /orders".into(),
        opened_at: now,
        state: State::InFlight { lease_until: now.plus(Duration::from_secs(30)) },
    };
    let claim = Write { expect: Expect::Absent, next: record.clone() };
    let Written::Yes(fence) = store.write_if(&address, &claim).await? else {
        return Err("lost a race alone".into());
    };
    if !work.is_zero() {
        tokio::time::sleep(work).await;
    }
    let header = |name: &str, value: &'static str| HeaderPair {
        name: name.into(),
        value: Bytes::from_static(value.as_bytes()),
    };
    let outcome = Outcome {
        status: 201,
        headers: vec![header("content-type", "application/json"), header("location", "/orders/1")],
        body: Body::Kept(Bytes::from_static(&[b'x'; 300])),
        trailers: Vec::new(),
    };
    let state = State::Completed {
        outcome: Arc::new(outcome),
        at: now,
        expires_at: now.plus(Duration::from_secs(86_400)),
        reap_at: Wall::from_unix_ms(i64::MAX),
        resource: None,
    };
    let completion =
        Write { expect: Expect::Attempt(record.attempt), next: Record { fence, state, ..record } };
    match store.write_if(&address, &completion).await? {
        Written::Yes(_) => Ok(()),
        Written::No(_) => Err("a holder was refused".into()),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (tasks, work) = (number(64)?, Duration::from_millis(number(0)?));
    println!("{tasks} tasks, {work:?} of work between claim and completion");
    for sync in [Duration::ZERO, SYNC] {
        let grouped = measure(BATCH_MAX, tasks, 200, sync, work)?;
        let single = measure(1, tasks, 4, sync, work)?;
        for (name, measured) in [("grouped", &grouped), ("one by one", &single)] {
            println!(
                "sync +{sync:?} {name:>10}: {:8.0} requests/s, {:.4} syncs a request",
                measured.per_second(),
                measured.syncs as f64 / measured.requests as f64,
            );
        }
        println!("sync +{sync:?} ratio: {:.1}x", grouped.per_second() / single.per_second());
    }
    Ok(())
}
