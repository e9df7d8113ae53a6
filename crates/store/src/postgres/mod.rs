//! Records in PostgreSQL, for services and gateways that run several times.
//!
//! The claim is a row under a primary key. One round trip decides: a claim that loses returns the row that is there, so
//! winner, replay and in-flight cost the same. `Yes` is as durable as the server makes a commit (`synchronous_commit`); it
//! survives a failover only where the replica is synchronous (protocol 27).
//!
//! The store is written once above a [`Driver`]; [`TokioPostgres`] is one. It implements
//! [`Transactional`](crate::transactional::Transactional) too: business rows and the stored answer commit together.
//!
//! - All times are the database's (R16). See [`Store::now`].
//! - It works behind a pooler in transaction mode: no session state, only locks that end with the transaction (R12), and
//!   statements without names ([`Mode::Unnamed`]).
//! - Serialization failures and deadlocks of the store's own statements are tried again here, a bounded number of times.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use retrysafe_store::postgres::{PoolOptions, PostgresOptions, PostgresStore, TokioPostgres};
//!
//! let config = "postgres://shop@db.internal/shop".parse()?;
//! let driver = TokioPostgres::new(config, PoolOptions::default())?;
//! let options = PostgresOptions::default();
//! retrysafe_store::postgres::migrate(&driver, &options.schema).await?; // or: retrysafe migrate
//! let store = PostgresStore::open(driver, options).await?;
//! # Ok(())
//! # }
//! ```

use std::{fmt, sync::Arc, time::Duration};

use retrysafe_core::{
    address::{Account, Address, Namespace},
    contract::ClaimMethod,
    fingerprint::DeploymentKey,
    ids::StatusId,
    orphans::Day,
    record::{Record, RemoveIf, ResourceId, Write},
    time::Wall,
};

use crate::{
    Capability, Census, Due, Filter, Store, StoreError, StoreFuture, Written,
    meters::timed,
    sql::{Driver, Failure},
};
use inner::Inner;
use upkeep::Upkeep;

#[cfg(feature = "postgres")]
mod address;
mod calls;
mod days;
mod doctor;
#[cfg(feature = "postgres")]
mod driver;
mod effects;
mod fault;
mod find;
mod finished;
mod inner;
mod journal;
#[cfg(any(feature = "postgres", feature = "sqlx"))]
mod literals;
#[cfg(feature = "sqlx")]
mod on_sqlx;
mod options;
mod schema;
mod settings;
mod settle;
mod texts;
#[cfg(feature = "postgres-tls")]
mod tls;
mod transaction;
mod upkeep;
mod verbs;
#[cfg(feature = "postgres")]
mod wire;

#[cfg(feature = "postgres")]
pub use address::{AddressFault, StoreAddress};
pub use doctor::doctor;
#[cfg(feature = "postgres")]
pub use driver::{Handle, Mode, PoolOptions, Pooled, TokioPostgres};
pub use fault::OpenError;
#[cfg(feature = "sqlx")]
pub use on_sqlx::{SqlxConnection, SqlxMode, SqlxPool, SqlxPostgres};
pub use options::{Isolation, PostgresOptions};
pub use schema::{LAYOUT, MIGRATIONS, Migration, migrate, script};
pub use texts::{Schema, SchemaFault};
pub use transaction::PostgresTransaction;

/// Why the tables could not be brought to this build's layout.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// They were made by a later version.
    #[error("the tables have layout {found}, and this build knows {known}; use a later version")]
    Later {
        /// The layout that is there.
        found: i64,
        /// The layout that is known.
        known: i64,
    },
    /// The database cannot be reached, or refuses.
    #[error("the database does not do it: {0}")]
    Database(Failure),
}

/// A store in PostgreSQL. Clones are the same store.
pub struct PostgresStore<D: Driver> {
    inner: Arc<Inner<D>>,
    upkeep: Arc<Upkeep>,
}

impl<D: Driver> PostgresStore<D> {
    /// Opens the store: looks whether the tables are there, learns the time, and keeps it from then on in a task of the
    /// Tokio runtime that calls it.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong and what can be done. A clock that has jumped is no reason not to open: the store
    /// answers [`ErrorKind::ClockJumped`](crate::ErrorKind::ClockJumped) until somebody has looked.
    pub async fn open(driver: D, options: PostgresOptions) -> Result<Self, OpenError> {
        let inner = Arc::new(Inner::open(driver, options).await?);
        let upkeep = Arc::new(Upkeep::start(&inner)?);
        Ok(Self { inner, upkeep })
    }

    /// Takes the database's clock as it is after a jump, once a person has looked (protocol 10). The other processes learn
    /// it within [`CLOCK_INTERVAL`].
    ///
    /// # Errors
    /// As a write.
    pub async fn acknowledge_clock_jump(&self) -> Result<(), StoreError> {
        self.inner.acknowledge_clock_jump().await
    }

    /// Begins a new epoch of fences: to be called once after a backup was restored or an asynchronous replica took over,
    /// either of which may have forgotten fences that were issued (protocol 7). Returns its number.
    ///
    /// # Errors
    /// As a write; [`ErrorKind::Full`](crate::ErrorKind::Full) after 32,767 epochs.
    pub async fn bump_epoch(&self) -> Result<u16, StoreError> {
        self.inner.bump_epoch().await
    }

    /// Whether this store is used with this secret of fingerprints, by its number and
    /// [proof](retrysafe_core::fingerprint::DeploymentKey::proof). The first to ask decides: a process with another secret
    /// would take every retry for another request, and has to be stopped before it serves one.
    ///
    /// # Errors
    /// As a write.
    pub async fn has_secret(&self, key: &DeploymentKey) -> Result<bool, StoreError> {
        self.inner.has_secret(key.id(), &key.proof()).await
    }

    /// Deletes up to `limit` completed records that may be reaped at `now`, in one statement. Records that somebody is
    /// changing are left for the next time (T5). Returns how many were deleted.
    ///
    /// # Errors
    /// As a write.
    pub async fn reap(&self, now: Wall, limit: usize) -> Result<usize, StoreError> {
        self.inner.reap(now, limit).await
    }

    /// Makes tables for the long answers of the days ahead, and drops those of days that are over and to which no record
    /// refers. Also done by the store itself, every [`PARTITION_INTERVAL`], where the role may.
    ///
    /// # Errors
    /// As a write.
    pub async fn tend_responses(&self) -> Result<Tended, StoreError> {
        self.inner.tend_responses().await
    }
}

/// What a store in PostgreSQL promises.
pub const CAPABILITY: Capability = Capability {
    name: "postgres",
    survives_process: true,
    survives_power_cut: true,
    survives_failover: false,
    shared: true,
    transactions: true,
};

/// How often the database's clock is read.
pub const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

/// How often the tables of long answers are looked after.
pub const PARTITION_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// What [`PostgresStore::tend_responses`] did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tended {
    /// Tables that were made.
    pub made: usize,
    /// Tables that were dropped.
    pub dropped: usize,
}

impl<D: Driver> Clone for PostgresStore<D> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), upkeep: Arc::clone(&self.upkeep) }
    }
}

impl<D: Driver> fmt::Debug for PostgresStore<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("schema", &self.inner.options.schema).finish_non_exhaustive()
    }
}

impl<D: Driver> Store for PostgresStore<D> {
    fn capability(&self) -> Capability {
        CAPABILITY
    }

    fn now(&self) -> Result<Wall, StoreError> {
        self.inner.clock.now(std::time::Instant::now())
    }

    fn load<'a>(&'a self, address: &'a Address) -> StoreFuture<'a, Option<Record>> {
        Box::pin(timed(&self.inner.meters.load, self.inner.load(address)))
    }

    fn write_if<'a>(&'a self, address: &'a Address, write: &'a Write) -> StoreFuture<'a, Written> {
        Box::pin(timed(&self.inner.meters.write, self.inner.write_if(address, write)))
    }

    fn remove_if<'a>(&'a self, address: &'a Address, guard: RemoveIf) -> StoreFuture<'a, bool> {
        Box::pin(timed(&self.inner.meters.remove, self.inner.remove_if(address, guard)))
    }

    fn due<'a>(&'a self, due: Due, now: Wall, limit: usize) -> StoreFuture<'a, Vec<(Address, Record)>> {
        Box::pin(self.inner.due(due, now, limit))
    }

    fn locate<'a>(&'a self, namespace: &'a Namespace, status: StatusId) -> StoreFuture<'a, Option<Address>> {
        Box::pin(self.inner.locate(namespace, status))
    }

    fn end_resource<'a>(
        &'a self,
        namespace: &'a Namespace,
        account: &'a Account,
        resource: &'a ResourceId,
        expires_at: Wall,
    ) -> StoreFuture<'a, usize> {
        Box::pin(self.inner.end_resource(namespace, account, resource, expires_at))
    }

    fn list<'a>(
        &'a self,
        filter: &'a Filter,
        cursor: Option<&'a Address>,
        limit: usize,
    ) -> StoreFuture<'a, Vec<(Address, Record)>> {
        Box::pin(self.inner.list(filter, cursor, limit))
    }

    fn census<'a>(&'a self) -> StoreFuture<'a, Census> {
        Box::pin(self.inner.census())
    }

    fn reap_batch<'a>(&'a self, now: Wall, limit: usize) -> StoreFuture<'a, Option<usize>> {
        Box::pin(async move { self.inner.reap(now, limit).await.map(Some) })
    }

    fn handler_waits(&self) -> Option<Duration> {
        Some(self.inner.options.lock_timeout.max(self.inner.options.statement_timeout))
    }

    fn count_day<'a>(&'a self, day: Day) -> StoreFuture<'a, ()> {
        Box::pin(self.inner.count_day(day))
    }

    fn days<'a>(&'a self) -> StoreFuture<'a, Vec<Day>> {
        Box::pin(self.inner.days())
    }

    fn journals(&self) -> Option<&dyn crate::journal::Journal> {
        Some(self)
    }

    /// Every write names the state that it replaces, and a new row has one place. What a handler read is guarded as well where
    /// its transactions are serializable.
    fn claims_by(&self) -> &'static [ClaimMethod] {
        match self.inner.options.isolation {
            Isolation::ReadCommitted => &[ClaimMethod::Unique, ClaimMethod::Conditional],
            Isolation::Serializable => &ClaimMethod::ALL,
        }
    }

    fn duplicate_effects<'a>(
        &'a self,
        from: Wall,
        to: Wall,
        within: Duration,
    ) -> StoreFuture<'a, Option<u64>> {
        Box::pin(self.inner.duplicate_effects(from, to, within))
    }

    fn forget_effects<'a>(&'a self, before: Wall, limit: usize) -> StoreFuture<'a, usize> {
        Box::pin(self.inner.forget_effects(before, limit))
    }
}
