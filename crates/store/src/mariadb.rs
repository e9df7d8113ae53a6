//! Records in MariaDB, beside the business tables (design 4).
//!
//! Each verb is one round trip, by compound statements that look, decide and write on the server. `Yes` means committed, and
//! with `innodb_flush_log_at_trx_commit = 1` flushed. Several processes may share the database; its clock is the only one
//! that counts (R16).
//!
//! What to know about MariaDB, each a test:
//!
//! - **A deadlock rolls the whole transaction back, behind the handler's back.** A handler that goes on would write into a new
//!   transaction, so handlers' connections never commit by themselves (`autocommit = 0`), and the end is checked: a
//!   savepoint and the claim's own row have to be there still, else everything is rolled back
//!   ([`Undone::Lost`](crate::transactional::Undone::Lost)).
//! - **DDL commits what was done before it**, also without a word. The row that holds the address in an open transaction
//!   says *uncertain*, so that whoever sees it, because it was committed half way, never runs the request again by itself.
//! - **Tables that know no transactions** (MyISAM, Aria) keep what was rolled back. `doctor` looks for them; nothing else can.
//! - Without a binary log, InnoDB shows a commit to readers a moment before its flush ends. A power cut in that moment can
//!   take back what a *loser* was just told; the winner's answer always waits for the flush.
//! - A failover to an asynchronous replica loses what it had not received (protocol 27).
//! - `MySQL` has no sequences and no compound statements outside of procedures; it is refused at opening.
//!
//! Tested on MariaDB 10.11.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use retrysafe_core::{
    address::{Account, Address, Namespace},
    contract::ClaimMethod,
    fingerprint::DeploymentKey,
    ids::StatusId,
    orphans::Day,
    record::{Expect, Record, RemoveIf, ResourceId, Write},
    time::Wall,
};

use crate::{
    Capability, Census, Due, Filter, Store, StoreError, StoreFuture, Written,
    doctor::Finding,
    meters::{Calls, timed},
    sql::{Driver, clock::DatabaseClock},
};

use texts::Texts;
use ticker::Ticker;

pub use driver::{MysqlConnection, MysqlDriver, PoolSize};
pub use fault::OpenError;
pub use open::MariaTransaction;
pub use options::{Isolation, MariaOptions};
pub use schema::{LAYOUT, MIGRATIONS, Migration, script};

mod begin;
mod calls;
mod days;
mod doctor;
mod driver;
mod effects;
mod fault;
mod journal;
mod lists;
mod open;
mod options;
mod partitions;
mod schema;
mod settle;
mod texts;
mod ticker;
mod verbs;

/// How much longer than the server allows an answer may take before the connection is given up.
const ANSWER_GRACE: Duration = Duration::from_secs(1);

/// A store in a MariaDB database. Opened and used inside a Tokio runtime.
pub struct MariaStore<D: Driver = MysqlDriver> {
    shared: Arc<Shared<D>>,
    /// Reads the clock for as long as the store is there.
    _ticker: Ticker,
}

/// What the calls and the clock's task share.
struct Shared<D> {
    /// Connections for the store's own statements.
    own: D,
    /// Connections for handlers' transactions.
    handlers: D,
    texts: Texts,
    journal: journal::Texts,
    clock: DatabaseClock,
    /// How often a call may be sent again on another connection: once for each that may have died in the pool.
    connections: usize,
    /// How long an answer may take: what the server allows, and a moment more.
    answer_timeout: Duration,
    /// The server's `max_allowed_packet`.
    packet_max: usize,
    flushes_every_commit: bool,
    days_ahead: u16,
    /// How handlers' transactions are isolated.
    isolation: Isolation,
    handler_waits: Duration,
    /// The day for which partitions were last looked after.
    partitions_day: AtomicI64,
    meters: Calls,
}

impl MariaStore {
    /// Opens the store whose tables [`MariaStore::migrate`] has made.
    ///
    /// # Errors
    /// [`OpenError`] says what is missing and what to do.
    pub async fn open(options: MariaOptions) -> Result<Self, OpenError> {
        let (own, handlers) = drivers(&options);
        Self::on(own, handlers, &options).await
    }

    /// Makes the tables, or brings them to this build's layout. Returns what was applied.
    ///
    /// # Errors
    /// As [`MariaStore::open`].
    pub async fn migrate(options: &MariaOptions) -> Result<Vec<Migration>, OpenError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(OpenError::NoRuntime);
        }
        // Without the store's setup: a migration may take longer than a call.
        let driver =
            MysqlDriver::of_the_store(&options.opts, options.pool, "SET SESSION autocommit = 1".into());
        let migrated = schema::migrate(&driver).await;
        driver.close().await;
        migrated
    }

    /// Looks at the database as the store would meet it, without changing anything: what is wrong, and how to mend it.
    /// `business` names tables that handlers write, which have to know transactions.
    ///
    /// # Errors
    /// The database cannot be reached, or does not answer.
    pub async fn doctor(options: &MariaOptions, business: &[String]) -> Result<Vec<Finding>, OpenError> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(OpenError::NoRuntime);
        }
        let driver = MysqlDriver::of_the_store(&options.opts, options.pool, options.own_setup());
        let findings = doctor::doctor(&driver, business).await;
        driver.close().await;
        Ok(findings?)
    }

    /// Gives every connection back, waiting a bounded time for those in use. Dropping the store does the same later.
    pub async fn close(&self) {
        self.shared.own.close().await;
        self.shared.handlers.close().await;
    }
}

fn drivers(options: &MariaOptions) -> (MysqlDriver, MysqlDriver) {
    let own = MysqlDriver::of_the_store(&options.opts, options.pool, options.own_setup());
    let handlers = MysqlDriver::of_handlers(&options.opts, options.handlers, options.handler_setup());
    (own, handlers)
}

impl<D: Driver> MariaStore<D> {
    /// Opens it on two pools: one for the store's own statements, one for handlers' transactions.
    async fn on(own: D, handlers: D, options: &MariaOptions) -> Result<Self, OpenError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| OpenError::NoRuntime)?;
        let server = schema::look(&own).await?;
        let shared = Arc::new(Shared {
            own,
            handlers,
            texts: Texts::new(),
            journal: journal::Texts::new(),
            clock: DatabaseClock::new(options.clock_limits),
            connections: options.pool.max.max(options.handlers.max),
            answer_timeout: options.call_timeout.max(options.statement_timeout) + ANSWER_GRACE,
            packet_max: server.packet_max,
            flushes_every_commit: server.flushes_every_commit,
            days_ahead: options.days_ahead,
            isolation: options.isolation,
            handler_waits: options.lock_timeout.max(options.statement_timeout),
            partitions_day: AtomicI64::new(i64::MIN),
            meters: Calls::new(),
        });
        // Before the first answer: whoever opens the store has a time, and knows what was told before.
        ticker::tick(&shared).await.map_err(OpenError::Meta)?;
        let ticker = Ticker::start(&runtime, &shared);
        Ok(Self { shared, _ticker: ticker })
    }

    /// Takes the database's clock as it is after a jump, once a person has looked (protocol 10). Every other process
    /// learns of it within seconds.
    ///
    /// # Errors
    /// As a write.
    pub async fn acknowledge_clock_jump(&self) -> Result<(), StoreError> {
        ticker::acknowledge(&self.shared).await
    }

    /// Whether this store is used with this secret of fingerprints, by its number and
    /// [proof](retrysafe_core::fingerprint::DeploymentKey::proof). The first to ask decides: a process with another secret
    /// would take every retry for another request, and has to be stopped before it serves one.
    ///
    /// # Errors
    /// As a write.
    pub async fn has_secret(&self, key: &DeploymentKey) -> Result<bool, StoreError> {
        self.shared.has_secret(key.id(), &key.proof()).await
    }

    /// Begins a new epoch of fences: to be called once after a backup was restored, whose fences may have been issued
    /// before (protocol 7). Returns its number.
    ///
    /// # Errors
    /// As a write; [`ErrorKind::Full`](crate::ErrorKind::Full) after 32,767 epochs: a sequence has 63 bits.
    pub async fn bump_epoch(&self) -> Result<u16, StoreError> {
        self.shared.bump_epoch().await
    }
}

/// What a store in MariaDB promises, on a server that flushes at every commit. One that does not is found when it is opened.
pub const CAPABILITY: Capability = Capability {
    name: "mariadb",
    survives_process: true,
    survives_power_cut: true,
    survives_failover: false,
    shared: true,
    transactions: true,
};

impl<D> fmt::Debug for MariaStore<D>
where
    D: Driver,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MariaStore").field("clock", &self.shared.clock).finish_non_exhaustive()
    }
}

impl<D: Driver> Store for MariaStore<D> {
    fn capability(&self) -> Capability {
        Capability { survives_power_cut: self.shared.flushes_every_commit, ..CAPABILITY }
    }

    fn now(&self) -> Result<Wall, StoreError> {
        self.shared.clock.now(Instant::now())
    }

    fn load<'a>(&'a self, address: &'a Address) -> StoreFuture<'a, Option<Record>> {
        Box::pin(timed(&self.shared.meters.load, self.shared.load(address)))
    }

    fn write_if<'a>(&'a self, address: &'a Address, write: &'a Write) -> StoreFuture<'a, Written> {
        Box::pin(timed(&self.shared.meters.write, async move {
            match write.expect {
                Expect::Absent => self.shared.claim(address, write).await,
                _ => self.shared.update(address, write).await,
            }
        }))
    }

    fn remove_if<'a>(&'a self, address: &'a Address, guard: RemoveIf) -> StoreFuture<'a, bool> {
        Box::pin(timed(&self.shared.meters.remove, self.shared.remove(address, guard)))
    }

    fn due<'a>(&'a self, due: Due, now: Wall, limit: usize) -> StoreFuture<'a, Vec<(Address, Record)>> {
        Box::pin(async move {
            if due == Due::Reapable {
                self.shared.look_after_partitions(now).await;
            }
            self.shared.due(due, now, limit).await
        })
    }

    fn locate<'a>(&'a self, namespace: &'a Namespace, status: StatusId) -> StoreFuture<'a, Option<Address>> {
        Box::pin(self.shared.locate(namespace, status))
    }

    fn end_resource<'a>(
        &'a self,
        namespace: &'a Namespace,
        account: &'a Account,
        resource: &'a ResourceId,
        expires_at: Wall,
    ) -> StoreFuture<'a, usize> {
        Box::pin(self.shared.end_resource(namespace, account, resource, expires_at))
    }

    fn list<'a>(
        &'a self,
        filter: &'a Filter,
        cursor: Option<&'a Address>,
        limit: usize,
    ) -> StoreFuture<'a, Vec<(Address, Record)>> {
        Box::pin(self.shared.list(filter, cursor, limit))
    }

    fn census<'a>(&'a self) -> StoreFuture<'a, Census> {
        Box::pin(self.shared.census())
    }

    fn reap_batch<'a>(&'a self, now: Wall, limit: usize) -> StoreFuture<'a, Option<usize>> {
        Box::pin(async move {
            self.shared.look_after_partitions(now).await;
            self.shared.reap(now, limit).await.map(Some)
        })
    }

    fn handler_waits(&self) -> Option<Duration> {
        Some(self.shared.handler_waits)
    }

    fn count_day<'a>(&'a self, day: Day) -> StoreFuture<'a, ()> {
        Box::pin(self.shared.count_day(day))
    }

    fn days<'a>(&'a self) -> StoreFuture<'a, Vec<Day>> {
        Box::pin(self.shared.days())
    }

    fn journals(&self) -> Option<&dyn crate::journal::Journal> {
        Some(self)
    }

    /// Every write names the state that it replaces, and a new row has one place. What a handler read is guarded as well where
    /// its transactions are serializable.
    fn claims_by(&self) -> &'static [ClaimMethod] {
        match self.shared.isolation {
            Isolation::ReadCommitted | Isolation::RepeatableRead => {
                &[ClaimMethod::Unique, ClaimMethod::Conditional]
            }
            Isolation::Serializable => &ClaimMethod::ALL,
        }
    }

    fn duplicate_effects<'a>(
        &'a self,
        from: Wall,
        to: Wall,
        within: Duration,
    ) -> StoreFuture<'a, Option<u64>> {
        Box::pin(self.shared.duplicate_effects(from, to, within))
    }

    fn forget_effects<'a>(&'a self, before: Wall, limit: usize) -> StoreFuture<'a, usize> {
        Box::pin(self.shared.forget_effects(before, limit))
    }
}

impl<D> Shared<D> {
    /// Whether `day` is one for which nobody in this process has looked yet.
    fn is_new_day(&self, day: i64) -> bool {
        self.partitions_day.swap(day, Ordering::Relaxed) != day
    }
}

#[cfg(test)]
mod tests;
