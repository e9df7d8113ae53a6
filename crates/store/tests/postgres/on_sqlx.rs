//! The driver on sqlx: the whole suite, and what sqlx does that a store must not fall for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use retrysafe_core::record::{Expect, Write};
use retrysafe_store::{
    Store, StoreError,
    conformance::{self, Place},
    postgres::{
        PostgresOptions, PostgresStore, PostgresTransaction, Schema, SqlxMode, SqlxPool, SqlxPostgres,
        migrate,
    },
    transactional::{Begun, Committed, OpenTransaction, Transactional, Undone},
};
use retrysafe_testbed::{
    pgbouncer::PgBouncer,
    postgres::{Database, host_and_port, shared},
};
use sqlx::{Connection, Executor, PgConnection, Row};

use crate::samples::{address, completing, done_with_body, held};

const WAYS: [(&str, SqlxPool); 3] = [
    ("joined", pool(SqlxMode::Joined)),
    ("one by one", pool(SqlxMode::OneByOne)),
    ("simple", pool(SqlxMode::Simple)),
];

const fn pool(mode: SqlxMode) -> SqlxPool {
    SqlxPool { size: 8, wait: Duration::from_secs(5), mode }
}

struct SqlxPlace {
    url: String,
    pool: SqlxPool,
    schema: Schema,
}

impl SqlxPlace {
    fn new(url: &str, pool: SqlxPool) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let schema = Schema::new(&format!("sqlx_{}", COUNT.fetch_add(1, Ordering::Relaxed))).unwrap();
        let place = Self { url: url.to_owned(), pool, schema };
        wait(async { migrate(&place.driver(), &place.schema).await.unwrap() });
        place
    }

    fn driver(&self) -> SqlxPostgres {
        SqlxPostgres::new(self.url.parse().unwrap(), self.pool)
    }

    fn store(&self) -> PostgresStore<SqlxPostgres> {
        let options = PostgresOptions { schema: self.schema.clone(), ..PostgresOptions::default() };
        wait(async { PostgresStore::open(self.driver(), options).await.unwrap() })
    }
}

impl Place for SqlxPlace {
    fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(self.store()))
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

type Open = PostgresTransaction<SqlxPostgres>;

fn opening(n: u128) -> Write {
    Write { expect: Expect::Absent, next: held(n) }
}

async fn won(store: &PostgresStore<SqlxPostgres>, key: &str, n: u128) -> Open {
    for _ in 0..5_000 {
        match store.begin(&address(key), &opening(n)).await.unwrap() {
            Begun::Won(open) => return open,
            Begun::Seen(seen) => panic!("seen {seen:?}"),
            // The holder of before is being rolled back.
            Begun::Locked => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    panic!("locked for five seconds");
}

fn business(pool: SqlxPool) -> (Database, PostgresStore<SqlxPostgres>) {
    let database = Database::create();
    database.psql("CREATE TABLE invoice (id bigint PRIMARY KEY, amount bigint CHECK (amount > 0))");
    let store = SqlxPlace::new(&database.url(), pool).store();
    (database, store)
}

async fn insert(connection: &mut PgConnection, id: i64) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO public.invoice VALUES ($1, 5)").bind(id).execute(connection).await.map(drop)
}

fn invoices(database: &Database) -> String {
    database.psql("SELECT count(*) FROM invoice")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_on_sqlx_in_every_way_of_sending() {
    for (name, pool) in WAYS {
        eprintln!("{name}");
        let database = Database::create();
        conformance::run(|| SqlxPlace::new(&database.url(), pool)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_on_sqlx_behind_a_pooler_in_transaction_mode() {
    let database = Database::create();
    let (host, port) = host_and_port(shared());
    let pooler = PgBouncer::start(&host, port, 3);
    let url = database.url_at(&pooler.address());
    conformance::run(|| SqlxPlace::new(&url, WAYS[2].1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn business_rows_and_the_answer_are_committed_together_on_sqlx() {
    for (name, pool) in WAYS {
        let (database, store) = business(pool);
        for (n, length) in [(1, 10), (2, 5_000), (3, 200_000)] {
            let key = format!("k{n}");
            let mut open = won(&store, &key, n).await;
            insert(open.handle(), n as i64).await.unwrap();
            assert_eq!(invoices(&database), (n - 1).to_string(), "{name}: nothing before the commit");
            let next = done_with_body(&held(n), vec![7; length]);
            let complete = Write { expect: Expect::Absent, next };
            let committed = open.commit(&address(&key), &complete).await.unwrap();
            assert!(matches!(committed, Committed::Yes(_)), "{name}: {committed:?}");
            let stored = store.load(&address(&key)).await.unwrap().unwrap();
            assert_eq!(stored.state, complete.next.state, "{name}, {length} bytes");
        }
        assert_eq!(invoices(&database), "3", "{name}");
    }
}

/// What the trap is, and that the store does not fall into it.
#[tokio::test(flavor = "multi_thread")]
async fn protocol_17_an_error_that_a_handler_swallows_before_the_commit_commits_nothing() {
    for (name, pool) in WAYS {
        let (database, store) = business(pool);
        // sqlx by itself: the commit of a transaction that failed is "Ok", and nothing is there.
        let mut plain = PgConnection::connect(&database.url()).await.unwrap();
        let mut transaction = plain.begin().await.unwrap();
        insert(&mut transaction, 1).await.unwrap();
        assert!(insert(&mut transaction, 1).await.is_err());
        assert!(transaction.commit().await.is_ok(), "the trap is still there");
        assert_eq!(invoices(&database), "0", "{name}");

        let mut open = won(&store, "k", 1).await;
        insert(open.handle(), 1).await.unwrap();
        let swallowed = insert(open.handle(), 1).await;
        assert!(swallowed.is_err());
        let committed = open.commit(&address("k"), &completing(&opening(1))).await.unwrap();
        assert_eq!(committed, Committed::No(Undone::Lost), "{name}");
        assert_eq!(invoices(&database), "0", "{name}");
        assert_eq!(store.load(&address("k")).await.unwrap(), None, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_17_a_handlers_own_commit_is_found_out_on_sqlx() {
    let (database, store) = business(WAYS[0].1);
    let mut open = won(&store, "k", 1).await;
    insert(open.handle(), 1).await.unwrap();
    open.handle().execute("COMMIT").await.unwrap();
    let committed = open.commit(&address("k"), &completing(&opening(1))).await.unwrap();
    assert_eq!(committed, Committed::No(Undone::Lost));
    assert_eq!(invoices(&database), "1", "what was committed by hand cannot be taken back");
    assert_eq!(store.load(&address("k")).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_transaction_holds_neither_locks_nor_rows_on_sqlx() {
    for (name, pool) in WAYS {
        let (database, store) = business(SqlxPool { size: 2, ..pool });
        for n in 1..=10 {
            let mut open = won(&store, "k", n).await;
            insert(open.handle(), 1).await.unwrap();
            if n % 2 == 0 {
                // Dropped in the middle of a statement; the server notices at its end.
                let slow = open.handle().execute("SELECT pg_sleep(0.5)");
                let _ = tokio::time::timeout(Duration::from_millis(20), slow).await;
            }
            drop(open);
        }
        // Those that waited, and the losers, did not wear the pool out either.
        let held_open = won(&store, "k", 99).await;
        for n in 100..120 {
            assert!(
                matches!(store.begin(&address("k"), &opening(n)).await.unwrap(), Begun::Locked),
                "{name}"
            );
        }
        held_open.roll_back().await;
        assert_eq!(invoices(&database), "0", "{name}");
        assert_eq!(store.load(&address("k")).await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_refusal_takes_the_rows_back_on_sqlx() {
    let (database, store) = business(WAYS[0].1);
    let mut open = won(&store, "k", 1).await;
    insert(open.handle(), 1).await.unwrap();
    open.undo().await.unwrap();
    let one = open.handle().fetch_one("SELECT count(*) FROM public.invoice").await.unwrap();
    assert_eq!(one.get::<i64, _>(0), 0);
    assert!(matches!(open.commit(&address("k"), &completing(&opening(1))).await, Ok(Committed::Yes(_))));
    assert_eq!(invoices(&database), "0");
    assert!(store.load(&address("k")).await.unwrap().is_some());
}
