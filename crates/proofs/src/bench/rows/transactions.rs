//! What a claim and a stored answer cost a business transaction of four statements in PostgreSQL, one-transaction shape.
//!
//! Bare and kept take turns on one throwaway server, whose settings are stated: the ratio is of the same minute and the same
//! caches. WAL bytes are the way that the server's position goes in each side's rounds.
//!
//! # Limits
//! The driver runs in the process of the bench and shares the machine with the server. The tables are almost empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use retrysafe_core::address::{Account, Address, Key, Namespace};
use retrysafe_core::fingerprint::Fingerprint;
use retrysafe_core::ids::{AttemptId, Fence, StatusId};
use retrysafe_core::outcome::{Body, HeaderPair, Outcome};
use retrysafe_core::record::{Expect, Record, RecoveryClass, State, Write};
use retrysafe_core::time::Wall;
use retrysafe_store::postgres::{
    Handle, PostgresOptions, PostgresStore, Schema, StoreAddress, TokioPostgres, migrate,
};
use retrysafe_store::sql::{Connection, Driver};
use retrysafe_store::transactional::{Begun, Committed, OpenTransaction, Transactional};
use retrysafe_testbed::postgres::{Database, Throwaway};
use tokio::runtime::Runtime;

use crate::bench::Options;
use crate::bench::figures::{Bound, Row, Sample, describe_rate, ratio};
use crate::report::Progress;

/// Clients, and the least share of the bare rate that is kept.
const CLIENTS: [(usize, f64); 3] = [(1, 0.85), (8, 0.72), (32, 0.62)];
/// Of the rate of a plain indexed `SELECT`.
const REPLAY: f64 = 0.9;
const ROUND: Duration = Duration::from_secs(2);
const POOL: usize = 40;
const SETTINGS: [(&str, &str); 2] = [("shared_buffers", "256MB"), ("max_connections", "100")];
const ACCOUNTS: u64 = 10_000;
/// The address that is asked for again and again.
const REPLAYED: u64 = 0;

const TABLES: &str = "CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL); \
    CREATE TABLE payment (id bigint PRIMARY KEY, account bigint NOT NULL, amount bigint NOT NULL); \
    CREATE TABLE entry (payment bigint NOT NULL, amount bigint NOT NULL); \
    INSERT INTO account SELECT n, 0 FROM generate_series(0, 9999) AS n";
const FOUND: &str = "SELECT fence, expires_ms, response_day, data FROM bench_keys.key \
    WHERE namespace = $1 AND account = $2 AND key = $3";

#[derive(Clone, Copy)]
enum Side {
    Bare,
    Kept,
    Select,
    Replay,
}

struct Bench {
    store: PostgresStore<TokioPostgres>,
    driver: TokioPostgres,
    next: AtomicU64,
}

pub(super) fn run(options: &Options) -> Result<Vec<Row>> {
    let server = Throwaway::start(&SETTINGS);
    let database = Database::on(&server.address());
    database.psql(TABLES);
    let runtime = Runtime::new()?;
    let bench = Arc::new(runtime.block_on(Bench::open(&database.url()))?);
    runtime.block_on(bench.kept(REPLAYED))?;
    let mut rows = Vec::new();
    for (clients, least) in CLIENTS {
        let pair = Pair { base: Side::Bare, ours: Side::Kept, clients };
        rows.push(pair.row(
            "transactions: four statements",
            Some(least),
            &bench,
            &runtime,
            &database,
            options,
        )?);
    }
    for (clients, _) in CLIENTS {
        let pair = Pair { base: Side::Select, ours: Side::Replay, clients };
        rows.push(pair.row("transactions: replay", Some(REPLAY), &bench, &runtime, &database, options)?);
    }
    Ok(rows)
}

/// Bytes of WAL that the server has written so far. Its position, since the counters of `pg_stat_wal` come late.
fn written(database: &Database) -> Result<f64> {
    database.psql("SELECT pg_current_wal_insert_lsn() - '0/0'").parse().context("the position of the WAL")
}

struct Pair {
    base: Side,
    ours: Side,
    clients: usize,
}

#[derive(Default)]
struct Cost {
    requests: f64,
    bytes: f64,
}

impl Pair {
    fn row(
        &self,
        name: &str,
        least: Option<f64>,
        bench: &Arc<Bench>,
        runtime: &Runtime,
        database: &Database,
        options: &Options,
    ) -> Result<Row> {
        let (mut samples, mut costs) = ([Vec::new(), Vec::new()], [Cost::default(), Cost::default()]);
        let length = ROUND / u32::try_from(options.shrink.max(1))?;
        let progress = Progress::new(name, options.rounds);
        for _ in 0..options.rounds {
            for (index, side) in [self.base, self.ours].into_iter().enumerate() {
                // Caches and statements come back first; it is not measured.
                runtime.block_on(rate(bench, self.clients, side, length / 4))?;
                let before = written(database)?;
                let (requests, took) = runtime.block_on(rate(bench, self.clients, side, length))?;
                let after = written(database)?;
                let cost = &mut costs[index];
                cost.requests += requests as f64;
                cost.bytes += after - before;
                samples[index]
                    .push(Sample { per_second: requests as f64 / took.as_secs_f64(), ..Sample::default() });
            }
            progress.step();
        }
        let [base, ours] = samples;
        let (figure, spread) = ratio(&ours, &base, |sample| sample.per_second);
        let each = |cost: &Cost| format!("{:.0} WAL bytes a request", cost.bytes / cost.requests.max(1.0));
        Ok(Row {
            name: format!("{name}, {} clients", self.clients),
            baseline: format!("{} bare, {}", describe_rate(&base), each(&costs[0])),
            ratio: figure,
            spread,
            bound: least.map(Bound::AtLeast),
            detail: format!(
                "{} on tokio-postgres, {}; shared_buffers {}",
                describe_rate(&ours),
                each(&costs[1]),
                SETTINGS[0].1
            ),
        })
    }
}

/// How many requests of one side so many clients get done, and in what time.
async fn rate(bench: &Arc<Bench>, clients: usize, side: Side, length: Duration) -> Result<(u64, Duration)> {
    let started = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let bench = Arc::clone(bench);
            tokio::spawn(async move {
                let mut done = 0;
                while started.elapsed() < length {
                    bench.one(side).await?;
                    done += 1;
                }
                anyhow::Ok(done)
            })
        })
        .collect();
    let mut requests = 0;
    for task in tasks {
        requests += task.await??;
    }
    Ok((requests, started.elapsed()))
}

impl Bench {
    async fn open(url: &str) -> Result<Self> {
        let mut address: StoreAddress = url.parse()?;
        address.pool.size = POOL;
        address.schema = Schema::new("bench_keys")?;
        let driver = address.driver()?;
        migrate(&driver, &address.schema).await?;
        let options = PostgresOptions { schema: address.schema, ..PostgresOptions::default() };
        let store = PostgresStore::open(driver.clone(), options).await?;
        Ok(Self { store, driver, next: AtomicU64::new(REPLAYED + 1) })
    }

    async fn one(&self, side: Side) -> Result<()> {
        match side {
            Side::Bare => self.bare().await,
            Side::Kept => self.kept(self.next.fetch_add(1, Ordering::Relaxed)).await,
            Side::Select => self.select().await,
            Side::Replay => match self.store.begin(&address(REPLAYED)?, &opening(1)).await? {
                Begun::Seen(Some(_)) => Ok(()),
                other => bail!("a replay met {other:?}"),
            },
        }
    }

    async fn bare(&self) -> Result<()> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut connection = self.driver.acquire().await?;
        let client = connection.handle();
        let begin = client.prepare_cached("BEGIN").await?;
        let commit = client.prepare_cached("COMMIT").await?;
        client.execute(&begin, &[]).await?;
        business(client, id).await?;
        client.execute(&commit, &[]).await?;
        Ok(())
    }

    async fn kept(&self, id: u64) -> Result<()> {
        let (at, opening) = (address(id)?, opening(u128::from(id) + 2));
        let Begun::Won(mut open) = self.store.begin(&at, &opening).await? else { bail!("{id} was there") };
        business(open.handle(), id).await?;
        let write = Write { next: done(&opening.next), ..opening };
        match open.commit(&at, &write).await? {
            Committed::Yes(_) => Ok(()),
            Committed::No(why) => bail!("{id} was undone: {why:?}"),
        }
    }

    async fn select(&self) -> Result<()> {
        let at = address(REPLAYED)?;
        let parts = [at.namespace().as_str(), at.account().as_str(), at.key().as_str()].map(str::as_bytes);
        let mut connection = self.driver.acquire().await?;
        let client = connection.handle();
        let select = client.prepare_cached(FOUND).await?;
        client.query_one(&select, &[&parts[0], &parts[1], &parts[2]]).await?;
        Ok(())
    }
}

async fn business(client: &Handle, id: u64) -> Result<()> {
    let (account, id) = (i64::try_from(id % ACCOUNTS)?, i64::try_from(id)?);
    let read = client.prepare_cached("SELECT balance FROM public.account WHERE id = $1").await?;
    let pay = client.prepare_cached("INSERT INTO public.payment VALUES ($1, $2, 5)").await?;
    let add = client.prepare_cached("UPDATE public.account SET balance = balance + 5 WHERE id = $1").await?;
    let enter = client.prepare_cached("INSERT INTO public.entry VALUES ($1, 5)").await?;
    client.query(&read, &[&account]).await?;
    client.execute(&pay, &[&id, &account]).await?;
    client.execute(&add, &[&account]).await?;
    client.execute(&enter, &[&id]).await?;
    Ok(())
}

fn address(id: u64) -> Result<Address> {
    // Scattered, as keys of clients are.
    let key = format!("{:016x}-{id}", id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Ok(Address::new(Namespace::new("shop")?, Account::new(&["alice"])?, Key::trusted(&key)?))
}

fn opening(n: u128) -> Write {
    let next = Record {
        attempt: AttemptId::new(n),
        fence: Fence::from_u64(0),
        status_id: StatusId::new(n),
        fingerprint: Fingerprint::from_parts(1, 1, [7; 32]),
        recovery: RecoveryClass::Atomic,
        contract_version: 1,
        endpoint: "POST /payments".into(),
        opened_at: Wall::from_unix_ms(0),
        state: State::InFlight { lease_until: Wall::from_unix_ms(30_000) },
    };
    Write { expect: Expect::Absent, next }
}

fn done(record: &Record) -> Record {
    let outcome = Outcome {
        status: 201,
        headers: vec![HeaderPair { name: "location".into(), value: Bytes::from_static(b"/payments/1") }],
        body: Body::Kept(Bytes::from(vec![b'x'; 300])),
        trailers: Vec::new(),
    };
    let days = |days: i64| Wall::from_unix_ms(days * 86_400_000);
    let state = State::Completed {
        outcome: Arc::new(outcome),
        at: days(0),
        expires_at: days(30_000),
        reap_at: days(30_002),
        resource: None,
    };
    Record { state, ..record.clone() }
}
