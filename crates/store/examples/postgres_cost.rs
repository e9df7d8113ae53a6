//! What a claim and a stored answer cost a business transaction in PostgreSQL.
//!
//! The same four statements with and without retrysafe, in turns, at 1, 8 and 32 clients; then a replay against a plain
//! indexed `SELECT`. Prints requests per second and their ratio. The figures of one run may be compared with each other
//! and with nothing else.
//!
//! ```sh
//! cargo run --release -p retrysafe-store --features postgres --example postgres_cost -- postgres://postgres@127.0.0.1/DATABASE
//! ```
//!
//! It makes a schema `cost` and tables in it, which is best done in a database that is thrown away.

#![allow(clippy::unwrap_used, clippy::panic, reason = "an example that cannot measure says so by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
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
use retrysafe_store::{
    Store,
    postgres::{PostgresOptions, PostgresStore, Schema, StoreAddress, TokioPostgres, migrate},
    sql::{Connection, Driver},
    transactional::{Begun, Committed, OpenTransaction, Transactional},
};
use tokio_postgres::Client;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
const CLIENTS: [usize; 3] = [1, 8, 32];

const TABLES: &str = "CREATE SCHEMA IF NOT EXISTS cost;
    CREATE TABLE IF NOT EXISTS cost.account (id bigint PRIMARY KEY, balance bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS cost.payment (id bigint PRIMARY KEY, account bigint NOT NULL, amount bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS cost.entry (payment bigint NOT NULL, amount bigint NOT NULL);
    INSERT INTO cost.account SELECT n, 0 FROM generate_series(0, 9999) AS n ON CONFLICT DO NOTHING";

static NEXT: AtomicI64 = AtomicI64::new(0);

struct Bench {
    store: PostgresStore<TokioPostgres>,
    driver: TokioPostgres,
}

#[tokio::main]
async fn main() {
    let url =
        std::env::args().nth(1).unwrap_or_else(|| panic!("name a database: postgres://USER@HOST/DATABASE"));
    let mut address: StoreAddress = url.parse().unwrap();
    address.pool.size = 40;
    address.schema = Schema::new("cost_keys").unwrap();
    let driver = address.driver().unwrap();
    migrate(&driver, &address.schema).await.unwrap();
    driver.acquire().await.unwrap().script(TABLES).await.unwrap();
    NEXT.store(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64, Ordering::Relaxed);
    let options = PostgresOptions { schema: address.schema.clone(), ..PostgresOptions::default() };
    let store = PostgresStore::open(driver.clone(), options).await.unwrap();
    let bench = Arc::new(Bench { store, driver });
    for clients in CLIENTS {
        let (mut bare, mut kept, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let one = rate(&bench, clients, Kind::Bare).await;
            let two = rate(&bench, clients, Kind::Kept).await;
            // The first prepares statements and warms caches.
            if round > 0 {
                bare.push(one);
                kept.push(two);
                ratios.push(two / one);
            }
        }
        println!(
            "{clients:>2} clients: bare {:>8.0}/s, with retrysafe {:>8.0}/s, ratio {:.2}",
            median(&mut bare),
            median(&mut kept),
            median(&mut ratios)
        );
    }
    let done = bench.kept(i64::MAX - 1).await;
    let record = bench.store.load(&done).await.unwrap().unwrap();
    for clients in CLIENTS {
        let mut table = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let kinds = [
                Kind::Select,
                Kind::Load(done.clone()),
                Kind::Replay(done.clone()),
                Kind::Seen(done.clone()),
            ];
            for (rates, kind) in table.iter_mut().zip(kinds) {
                rates.push(rate(&bench, clients, kind).await);
            }
        }
        let [select, load, replay, seen] = table.map(|mut rates| median(&mut rates));
        println!(
            "{clients:>2} clients: SELECT {select:>8.0}/s, load {load:>8.0}/s ({:.2}), replay by write_if {replay:>8.0}/s \
             ({:.2}), by begin {seen:>8.0}/s ({:.2})",
            load / select,
            replay / select,
            seen / select
        );
    }
    drop(record);
}

#[derive(Clone)]
enum Kind {
    Bare,
    Kept,
    Select,
    Load(Address),
    Replay(Address),
    Seen(Address),
}

async fn rate(bench: &Arc<Bench>, clients: usize, kind: Kind) -> f64 {
    let (count, started) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let (bench, count, kind) = (Arc::clone(bench), Arc::clone(&count), kind.clone());
            tokio::spawn(async move {
                while started.elapsed() < ROUND {
                    match &kind {
                        Kind::Bare => bench.bare().await,
                        Kind::Kept => drop(bench.kept(NEXT.fetch_add(1, Ordering::Relaxed)).await),
                        Kind::Select => bench.select().await,
                        Kind::Load(address) => drop(bench.store.load(address).await.unwrap()),
                        Kind::Replay(address) => {
                            drop(bench.store.write_if(address, &opening(1)).await.unwrap());
                        }
                        Kind::Seen(address) => drop(bench.store.begin(address, &opening(1)).await.unwrap()),
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    count.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64()
}

impl Bench {
    async fn bare(&self) {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut connection = self.driver.acquire().await.unwrap();
        let client = connection.handle();
        let [begin, commit] =
            [client.prepare_cached("BEGIN").await.unwrap(), client.prepare_cached("COMMIT").await.unwrap()];
        client.execute(&begin, &[]).await.unwrap();
        business(client, id).await;
        client.execute(&commit, &[]).await.unwrap();
    }

    async fn kept(&self, id: i64) -> Address {
        let at = address(id);
        let opening = opening(id as u128 + 2);
        let Begun::Won(mut open) = self.store.begin(&at, &opening).await.unwrap() else { return at };
        business(open.handle(), id).await;
        let write = Write { next: done(&opening.next), ..opening };
        let Committed::Yes(_) = open.commit(&at, &write).await.unwrap() else { panic!("committed") };
        at
    }

    async fn select(&self) {
        let mut connection = self.driver.acquire().await.unwrap();
        let client = connection.handle();
        let select = "SELECT fence, expires_ms, response_day, data FROM cost_keys.key \
                      WHERE namespace = $1 AND account = $2 AND key = $3";
        let select = client.prepare_cached(select).await.unwrap();
        let at = address(i64::MAX - 1);
        let parts = [at.namespace().as_str(), at.account().as_str(), at.key().as_str()].map(str::as_bytes);
        let row = client.query_one(&select, &[&parts[0], &parts[1], &parts[2]]).await.unwrap();
        assert!(!row.get::<_, &[u8]>(3).is_empty());
    }
}

async fn business(client: &retrysafe_store::postgres::Handle, id: i64) {
    let account = id % 10_000;
    let statements = [
        "SELECT balance FROM cost.account WHERE id = $1",
        "INSERT INTO cost.payment VALUES ($1, $2, 5)",
        "UPDATE cost.account SET balance = balance + 5 WHERE id = $1",
        "INSERT INTO cost.entry VALUES ($1, 5)",
    ];
    let mut prepared = Vec::new();
    for text in statements {
        prepared.push(client.prepare_cached(text).await.unwrap());
    }
    let client: &Client = client;
    client.query(&prepared[0], &[&account]).await.unwrap();
    client.execute(&prepared[1], &[&id, &account]).await.unwrap();
    client.execute(&prepared[2], &[&account]).await.unwrap();
    client.execute(&prepared[3], &[&id]).await.unwrap();
}

fn address(id: i64) -> Address {
    // Scattered, as keys of clients are.
    let key = format!("{:016x}-{id}", (id as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (namespace, account) = (Namespace::new("shop").unwrap(), Account::new(&["alice"]).unwrap());
    Address::new(namespace, account, Key::trusted(&key).unwrap())
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

fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
