//! Places on a server.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use retrysafe_store::{
    Store, StoreError,
    conformance::Place,
    postgres::{Mode, PoolOptions, PostgresOptions, PostgresStore, Schema, TokioPostgres, migrate},
};
use retrysafe_testbed::postgres::Database;

pub(crate) type PgStore = PostgresStore<TokioPostgres>;

/// A driver for `url`.
pub(crate) fn driver(url: &str, mode: Mode) -> TokioPostgres {
    TokioPostgres::new(url.parse().unwrap(), PoolOptions { mode, size: 8, ..PoolOptions::default() }).unwrap()
}

/// A driver with so many connections and prepared statements.
pub(crate) fn driver_of(url: &str, size: usize) -> TokioPostgres {
    TokioPostgres::new(url.parse().unwrap(), PoolOptions { size, ..PoolOptions::default() }).unwrap()
}

/// A schema of its own in a database.
pub(crate) struct SchemaPlace {
    pub(crate) url: String,
    pub(crate) mode: Mode,
    pub(crate) schema: Schema,
}

impl SchemaPlace {
    pub(crate) fn new(url: &str, mode: Mode) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let schema = Schema::new(&format!("place_{}", COUNT.fetch_add(1, Ordering::Relaxed))).unwrap();
        let place = Self { url: url.to_owned(), mode, schema };
        let driver = driver(&place.url, mode);
        wait(async { migrate(&driver, &place.schema).await.unwrap() });
        place
    }

    pub(crate) fn options(&self) -> PostgresOptions {
        PostgresOptions { schema: self.schema.clone(), ..PostgresOptions::default() }
    }

    pub(crate) fn store(&self) -> PgStore {
        wait(async { PostgresStore::open(driver(&self.url, self.mode), self.options()).await.unwrap() })
    }
}

impl Place for SchemaPlace {
    fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(self.store()))
    }
}

/// The suite opens stores from inside its runtime, and without awaiting.
fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

/// A store on a schema of its own in a database of its own.
pub(crate) fn fresh() -> (Database, PgStore) {
    let database = Database::create();
    let store = SchemaPlace::new(&database.url(), Mode::Prepared).store();
    (database, store)
}
