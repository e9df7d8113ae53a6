//! recovery.5: a fleet of four completer processes clears 100,000 abandoned requests on PostgreSQL, each once.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence, StatusId},
    record::{Expect, Record, RecoveryClass, State, Write},
    recovery::{Entry, Event, Snapshot, StepName},
    time::Wall,
};
use retrysafe_store::{
    Store, Written,
    journal::{Journal, Notes},
    postgres::{PostgresOptions, StoreAddress, migrate},
};
use retrysafe_testbed::postgres::Database;

use super::Scale;
use crate::process::{Server, own};
use crate::sweep::{self, ENDPOINT, NAMESPACE, Orphan, TABLE};
use crate::tools::scratch;

const ORPHANS: usize = 100_000;
const QUICK_ORPHANS: usize = 1_000;
const PROCESSES: usize = 4;
/// How many orphans are made at once.
const MADE_AT_ONCE: usize = 12;
/// How long nothing may move before the fleet counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let orphans = scale.of(ORPHANS, QUICK_ORPHANS);
    let database = Database::create();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    database.psql(TABLE);
    let began = Instant::now();
    runtime.block_on(abandon(&database.url(), orphans))?;
    println!(
        "  {orphans} requests abandoned past their first phase, in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let scratch = scratch()?;
    let began = Instant::now();
    let fleet: Vec<Server> = (0..PROCESSES)
        .map(|number| {
            let name = format!("completer-{number}");
            Server::start(&name, own(&["sweep", "--store", &database.url()])?, scratch.path())
        })
        .collect::<Result<_>>()?;
    let number = |sql: &str| -> Result<usize> { database.psql(sql).trim().parse().context("a count") };
    let mut left = orphans;
    let mut moved = Instant::now();
    while left > 0 {
        std::thread::sleep(POLL);
        let now = number("SELECT count(*) FROM retrysafe.key WHERE state <> 2")?;
        if now < left {
            moved = Instant::now();
        } else if moved.elapsed() > STUCK_AFTER {
            bail!("{left} orphans are left, and nothing moves:\n{}", fleet[0].log_tail());
        }
        left = now;
    }
    let took = began.elapsed().as_secs_f64();
    for server in fleet {
        server.stop()?;
    }
    let (rows, different) =
        (number("SELECT count(*) FROM swept")?, number("SELECT count(DISTINCT number) FROM swept")?);
    let completed = number("SELECT count(*) FROM retrysafe.key WHERE state = 2")?;
    let shares = database.psql("SELECT count(*) FROM swept GROUP BY process ORDER BY 1 DESC");
    let shares: Vec<&str> = shares.split_whitespace().collect();
    println!("  shares of the processes: {}", shares.join(", "));
    #[allow(clippy::cast_precision_loss)] // counts are far below 2^53
    let rate = orphans as f64 / took;
    println!(
        "{PROCESSES} processes cleared {orphans} orphans in {took:.1} s, {rate:.0} a second; {rows} rows for {different} orphans, \
         {completed} completed"
    );
    Ok(rows == orphans && different == orphans && completed == orphans && shares.len() == PROCESSES)
}

/// Requests whose holder committed the first phase and was lost; their callers still wait.
async fn abandon(url: &str, orphans: usize) -> Result<()> {
    let address: StoreAddress = url.parse()?;
    migrate(&address.driver()?, &PostgresOptions::default().schema).await?;
    let store = sweep::store(url).await?;
    let now = store.now()?;
    let makes = stream::iter(0..orphans).map(|number| orphan(&store, number, now));
    let mut makes = makes.buffer_unordered(MADE_AT_ONCE);
    while let Some(made) = makes.next().await {
        made?;
    }
    Ok(())
}

async fn orphan(store: &impl Journal, number: usize, now: Wall) -> Result<()> {
    let (number, id) = (i64::try_from(number)?, u128::try_from(number)? + 1);
    let address = Address::new(
        Namespace::new(NAMESPACE)?,
        Account::new(&["fleet"])?,
        Key::trusted(&format!("orphan-{number}"))?,
    );
    let record = Record {
        attempt: AttemptId::new(id),
        fence: Fence::from_u64(0),
        status_id: StatusId::new(id),
        fingerprint: Fingerprint::from_parts(1, 1, [0; 32]),
        recovery: RecoveryClass::Phased,
        contract_version: 1,
        endpoint: ENDPOINT.into(),
        opened_at: now,
        state: State::InFlight { lease_until: now },
    };
    let fields = Bytes::from(serde_json::to_vec(&Orphan { number })?);
    let request = Snapshot { principal: "fleet".into(), fields };
    let deadline = now.plus(Duration::from_secs(24 * 3600));
    let done =
        Event::Done { step: StepName::new("begin")?, result: Bytes::from(serde_json::to_vec(&number)?) };
    let events = [Event::Opened { plan: sweep::shape()?.text(), request, deadline }, done];
    let entry = |(seq, event)| Entry { seq, attempt: record.attempt, at: now, event };
    let notes = Notes::entries(record.status_id, (0..).zip(events).map(entry).collect());
    let write = Write { expect: Expect::Absent, next: record.clone() };
    match store.note_if(&address, &write, &notes).await? {
        Written::Yes(_) => Ok(()),
        Written::No(_) => bail!("orphan {number} was there"),
    }
}
