//! The business transaction, bare and with its claim and answer, on tokio-postgres and on sqlx.

use std::future::Future;
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
use retrysafe_store::Store;
use retrysafe_store::postgres::{
    Handle, PostgresOptions, PostgresStore, Schema, SqlxPool, SqlxPostgres, StoreAddress, TokioPostgres,
    migrate,
};
use retrysafe_store::sql::{Connection as _, Driver as _};
use retrysafe_store::transactional::{Begun, Committed, OpenTransaction, Transactional};
use sqlx::{Connection as _, PgConnection};

const POOL: usize = 40;
const ACCOUNTS: u64 = 10_000;
const WINDOW: Duration = Duration::from_secs(24 * 3600);
const REAP: Duration = Duration::from_secs(72 * 3600);

/// The business's own tables.
pub(super) const TABLES: &str = "CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL); \
    CREATE TABLE payment (id bigint PRIMARY KEY, account bigint NOT NULL, amount bigint NOT NULL); \
    CREATE TABLE entry (payment bigint NOT NULL, amount bigint NOT NULL); \
    INSERT INTO account SELECT n, 0 FROM generate_series(0, 9999) AS n";
const READ: &str = "SELECT balance FROM public.account WHERE id = $1";
const PAY: &str = "INSERT INTO public.payment VALUES ($1, $2, 5)";
const ADD: &str = "UPDATE public.account SET balance = balance + 5 WHERE id = $1";
const ENTER: &str = "INSERT INTO public.entry VALUES ($1, 5)";

/// What a request is: one number, its payment's and its key's.
pub(super) fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[derive(Clone, Copy)]
pub(super) enum Side {
    Bare,
    Kept,
    /// A plain indexed `SELECT` of what a replay reads.
    Select,
    Replay,
}

pub(super) trait Subject: Send + Sync + 'static {
    /// One request.
    fn one(&self, side: Side) -> impl Future<Output = Result<()>> + Send;
}

/// How many requests of one side so many clients get done, and in what time.
pub(super) async fn rate(
    subject: &Arc<impl Subject>,
    clients: usize,
    side: Side,
    length: Duration,
) -> Result<(u64, Duration)> {
    let started = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let subject = Arc::clone(subject);
            tokio::spawn(async move {
                let mut done = 0;
                while started.elapsed() < length {
                    subject.one(side).await?;
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

pub(super) struct OnTokio {
    pub(super) store: PostgresStore<TokioPostgres>,
    driver: TokioPostgres,
    select: String,
    replayed: u64,
}

impl OnTokio {
    /// Tables of its own in `schema`, if they are not there, and one stored answer.
    pub(super) async fn open(url: &str, schema: &str) -> Result<Self> {
        let mut address: StoreAddress = url.parse()?;
        address.pool.size = POOL;
        let schema = Schema::new(schema)?;
        let driver = address.driver()?;
        migrate(&driver, &schema).await?;
        let select = format!(
            "SELECT fence, expires_ms, response_day, data FROM {schema}.key \
             WHERE namespace = $1 AND account = $2 AND key = $3"
        );
        let options = PostgresOptions { schema, ..PostgresOptions::default() };
        let store = PostgresStore::open(driver.clone(), options).await?;
        let opened = Self { store, driver, select, replayed: next() };
        opened.kept(opened.replayed).await?;
        Ok(opened)
    }

    async fn bare(&self, id: u64) -> Result<()> {
        let mut connection = self.driver.acquire().await?;
        let client = connection.handle();
        let begin = client.prepare_cached("BEGIN").await?;
        let commit = client.prepare_cached("COMMIT").await?;
        client.execute(&begin, &[]).await?;
        business(client, id).await?;
        client.execute(&commit, &[]).await?;
        Ok(())
    }

    pub(super) async fn kept(&self, id: u64) -> Result<()> {
        let mut open = won(&self.store, id).await?;
        business(open.handle(), id).await?;
        end(&self.store, open, id).await
    }

    async fn select(&self) -> Result<()> {
        let at = address(self.replayed)?;
        let parts = [at.namespace().as_str(), at.account().as_str(), at.key().as_str()].map(str::as_bytes);
        let mut connection = self.driver.acquire().await?;
        let client = connection.handle();
        let select = client.prepare_cached(&self.select).await?;
        client.query_one(&select, &[&parts[0], &parts[1], &parts[2]]).await?;
        Ok(())
    }
}

impl Subject for OnTokio {
    async fn one(&self, side: Side) -> Result<()> {
        match side {
            Side::Bare => self.bare(next()).await,
            Side::Kept => self.kept(next()).await,
            Side::Select => self.select().await,
            Side::Replay => replay(&self.store, self.replayed).await,
        }
    }
}

async fn business(client: &Handle, id: u64) -> Result<()> {
    let (account, id) = rows_of(id)?;
    let [read, pay, add, enter] = [READ, PAY, ADD, ENTER];
    client.query(&client.prepare_cached(read).await?, &[&account]).await?;
    client.execute(&client.prepare_cached(pay).await?, &[&id, &account]).await?;
    client.execute(&client.prepare_cached(add).await?, &[&account]).await?;
    client.execute(&client.prepare_cached(enter).await?, &[&id]).await?;
    Ok(())
}

pub(super) struct OnSqlx {
    store: PostgresStore<SqlxPostgres>,
    driver: SqlxPostgres,
    replayed: u64,
}

impl OnSqlx {
    /// On tables that are there.
    pub(super) async fn open(url: &str, schema: &str) -> Result<Self> {
        let pool = SqlxPool { size: u32::try_from(POOL)?, ..SqlxPool::default() };
        let driver = SqlxPostgres::new(url.parse()?, pool);
        let options = PostgresOptions { schema: Schema::new(schema)?, ..PostgresOptions::default() };
        let store = PostgresStore::open(driver.clone(), options).await?;
        let opened = Self { store, driver, replayed: next() };
        opened.kept(opened.replayed).await?;
        Ok(opened)
    }

    async fn kept(&self, id: u64) -> Result<()> {
        let mut open = won(&self.store, id).await?;
        business_on_sqlx(open.handle(), id).await?;
        end(&self.store, open, id).await
    }
}

impl Subject for OnSqlx {
    async fn one(&self, side: Side) -> Result<()> {
        match side {
            Side::Bare => {
                let mut connection = self.driver.acquire().await?;
                let mut transaction = connection.handle().begin().await?;
                business_on_sqlx(&mut transaction, next()).await?;
                Ok(transaction.commit().await?)
            }
            Side::Kept => self.kept(next()).await,
            Side::Replay => replay(&self.store, self.replayed).await,
            Side::Select => bail!("only on tokio-postgres"),
        }
    }
}

async fn business_on_sqlx(connection: &mut PgConnection, id: u64) -> Result<()> {
    let (account, id) = rows_of(id)?;
    sqlx::query(READ).bind(account).fetch_one(&mut *connection).await?;
    sqlx::query(PAY).bind(id).bind(account).execute(&mut *connection).await?;
    sqlx::query(ADD).bind(account).execute(&mut *connection).await?;
    sqlx::query(ENTER).bind(id).execute(&mut *connection).await?;
    Ok(())
}

fn rows_of(id: u64) -> Result<(i64, i64)> {
    Ok((i64::try_from(id % ACCOUNTS)?, i64::try_from(id)?))
}

pub(super) async fn won<S: Transactional>(store: &S, id: u64) -> Result<S::Open> {
    match store.begin(&address(id)?, &opening(id)).await? {
        Begun::Won(open) => Ok(open),
        Begun::Seen(_) | Begun::Locked => bail!("request {id} was there before"),
    }
}

async fn end<O: OpenTransaction>(store: &impl Store, open: O, id: u64) -> Result<()> {
    let opening = opening(id);
    let write = Write { next: done(&opening.next, store.now()?), ..opening };
    match open.commit(&address(id)?, &write).await? {
        Committed::Yes(_) => Ok(()),
        Committed::No(why) => bail!("request {id} was undone: {why:?}"),
    }
}

/// A second request with the key of `id`, which is stored.
pub(super) async fn replay(store: &impl Transactional, id: u64) -> Result<()> {
    match store.begin(&address(id)?, &opening(next())).await? {
        Begun::Seen(Some(_)) => Ok(()),
        Begun::Won(_) | Begun::Seen(None) | Begun::Locked => bail!("the answer to {id} is not there"),
    }
}

pub(super) fn address(id: u64) -> Result<Address> {
    // Scattered, as keys of clients are.
    let key = format!("{:016x}-{id}", id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let account = Account::new(&["alice"]).context("an account")?;
    Ok(Address::new(Namespace::new("shop")?, account, Key::trusted(&key)?))
}

pub(super) fn opening(id: u64) -> Write {
    let n = u128::from(id);
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

fn done(record: &Record, now: Wall) -> Record {
    let outcome = Outcome {
        status: 201,
        headers: vec![HeaderPair { name: "location".into(), value: Bytes::from_static(b"/payments/1") }],
        body: Body::Kept(Bytes::from(vec![b'x'; 300])),
        trailers: Vec::new(),
    };
    let state = State::Completed {
        outcome: Arc::new(outcome),
        at: now,
        expires_at: now.plus(WINDOW),
        reap_at: now.plus(REAP),
        resource: None,
    };
    Record { state, ..record.clone() }
}
