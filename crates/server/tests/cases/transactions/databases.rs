//! Handlers and consumers on real servers: what one process does is seen by another, which has its own store on the same
//! database.

mod consumers;
mod handlers;

use std::sync::Arc;

use mysql_async::prelude::Queryable;
use retrysafe_store::{
    Store,
    mariadb::{MariaOptions, MariaStore},
    postgres::{self, PoolOptions, PostgresOptions, PostgresStore, TokioPostgres},
    transactional::{OpenTransaction, Transactional},
};
use retrysafe_testbed as testbed;

/// What a handler on `S` runs its statements on.
pub(super) type Handle<S> = <<S as Transactional>::Open as OpenTransaction>::Handle;

/// A database of its own on a server, with the store's tables and one of orders.
pub(super) trait Place: Send + Sync + Sized + 'static {
    type Store: Store + Transactional;

    async fn make() -> Self;

    /// A store on it, as another process would open one.
    async fn open(&self) -> Arc<Self::Store>;

    /// Runs SQL; returns what its client prints.
    fn sql(&self, sql: &str) -> String;

    /// Runs one statement of a handler. The error is what a handler passes on with `?`.
    fn run(
        handle: &mut Handle<Self::Store>,
        sql: &str,
    ) -> impl Future<Output = Result<(), std::io::Error>> + Send;

    /// Orders that are committed, and rows of the effect ledger, which each order writes too.
    fn rows(&self) -> i64 {
        let orders: i64 = self.sql("SELECT COUNT(*) FROM orders").parse().unwrap();
        let effects: i64 = self.sql(Self::COUNT_EFFECTS).parse().unwrap();
        assert_eq!(orders, effects, "the ledger and the table agree");
        orders
    }

    const COUNT_EFFECTS: &'static str;
}

pub(super) struct Postgres(testbed::postgres::Database);

impl Postgres {
    fn driver(&self) -> TokioPostgres {
        TokioPostgres::new(self.0.url().parse().unwrap(), PoolOptions::default()).unwrap()
    }
}

impl Place for Postgres {
    type Store = PostgresStore<TokioPostgres>;

    const COUNT_EFFECTS: &'static str = "SELECT count(*) FROM retrysafe.effect";

    async fn make() -> Self {
        let place = Self(testbed::postgres::Database::create());
        postgres::migrate(&place.driver(), &PostgresOptions::default().schema).await.unwrap();
        place.sql("CREATE TABLE orders (amount bigint, once bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)");
        place
    }

    async fn open(&self) -> Arc<Self::Store> {
        Arc::new(PostgresStore::open(self.driver(), PostgresOptions::default()).await.unwrap())
    }

    fn sql(&self, sql: &str) -> String {
        self.0.psql(sql)
    }

    async fn run(handle: &mut Handle<Self::Store>, sql: &str) -> Result<(), std::io::Error> {
        handle.batch_execute(sql).await.map_err(std::io::Error::other)
    }
}

pub(super) struct MariaDb(testbed::mariadb::Database);

impl Place for MariaDb {
    type Store = MariaStore;

    const COUNT_EFFECTS: &'static str = "SELECT COUNT(*) FROM retrysafe_effect";

    async fn make() -> Self {
        let place = Self(testbed::mariadb::Database::create());
        MariaStore::migrate(&MariaOptions::new(&place.0.url()).unwrap()).await.unwrap();
        place.sql("CREATE TABLE orders (amount BIGINT, once BIGINT UNIQUE) ENGINE = InnoDB");
        place
    }

    async fn open(&self) -> Arc<Self::Store> {
        Arc::new(MariaStore::open(MariaOptions::new(&self.0.url()).unwrap()).await.unwrap())
    }

    fn sql(&self, sql: &str) -> String {
        self.0.run(sql)
    }

    async fn run(handle: &mut Handle<Self::Store>, sql: &str) -> Result<(), std::io::Error> {
        handle.query_drop(sql).await.map_err(std::io::Error::other)
    }
}

/// Each test on each database.
macro_rules! on_both {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        mod on_postgres {
            $($(#[$doc])* #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() { super::$name::<super::super::Postgres>().await; })*
        }
        mod on_mariadb {
            $($(#[$doc])* #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() { super::$name::<super::super::MariaDb>().await; })*
        }
    };
}
use on_both;
