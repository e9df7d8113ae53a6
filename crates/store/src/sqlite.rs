//! Records in one SQLite file, with group commit.
//!
//! `Yes` means committed with `synchronous = FULL`: it survives a crash of the process and a power cut. What that costs
//! is the sync, so all writes that wait share one: a single writer thread puts them into one transaction and answers
//! them after its commit. Replays never go there: an [`Expect::Absent`] on a key that is present is answered from
//! a read.
//!
//! Several processes may open one file; they take turns fairly. A process that does not get its turn within
//! [`SqliteOptions::busy_timeout`] answers [`ErrorKind::Busy`]. What nobody can help: a process that is *stopped* (not
//! killed) inside its turn blocks every key until it goes on or is killed.
//!
//! The file has to be on a disk of this machine. Network file systems lie about locks and about syncs.
//!
//! ```
//! use retrysafe_store::{Store, sqlite::{SqliteOptions, SqliteStore}};
//! # let dir = tempfile::tempdir()?;
//! let store = SqliteStore::open(SqliteOptions::new(dir.path().join("keys.db")))?;
//! assert!(store.capability().survives_power_cut);
//! store.close();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{
    fmt,
    future::ready,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use retrysafe_core::{
    address::{Account, Address, Namespace},
    clock::Limits,
    contract::ClaimMethod,
    ids::StatusId,
    orphans::Day,
    record::{Expect, Record, RemoveIf, ResourceId, Write},
    time::Wall,
};

use crate::{
    Capability, Census, Due, ErrorKind, Filter, Store, StoreError, StoreFuture, Written,
    clock::{Clock, SystemClock, TimeKeeper},
    is_own_write,
    meters::Calls,
};
use rusqlite::{Connection, TransactionBehavior};

use checkpoint::Checkpointer;
use jobs::{Changes, Task};
use queue::Queue;
use readers::Readers;
use transaction::Transaction;
use watch::Watch;
use writer::Writer;

pub use business::{SqliteTx, Transacted, Verdict};
pub use open_error::OpenError;
/// What business code runs its statements on.
pub use rusqlite::Connection as SqliteConnection;

mod business;
mod checkpoint;
mod days;
mod fault;
mod jobs;
mod journal;
mod open_error;
mod place;
mod queue;
mod readers;
mod schema;
mod transaction;
mod turns;
mod watch;
mod writer;

/// The most jobs of one commit.
pub const BATCH_MAX: usize = 256;

/// Where the store is and how it behaves.
#[derive(Clone)]
pub struct SqliteOptions {
    /// The database file. Its folder has to exist; the file is made. Four more files appear beside it.
    pub path: PathBuf,
    /// How safe `Yes` is. [`Synchronous::Full`] unless the contract can do with less.
    pub synchronous: Synchronous,
    /// How long another process may keep the store from this one before the answer is [`ErrorKind::Busy`].
    pub busy_timeout: Duration,
    /// The most jobs of one commit, up to [`BATCH_MAX`]. One: a commit for each, which is only good for comparing.
    pub batch_max: usize,
    /// How many pages of 4 KiB the write-ahead log may hold before they are copied into the database, in the background.
    /// It is four times as long at most, and one batch.
    pub checkpoint_pages: u32,
    /// The name of the SQLite VFS to use, which has to be registered already; `None`: SQLite's own.
    pub vfs: Option<String>,
    /// What the store reads the time from.
    pub clock: Arc<dyn Clock>,
    /// How far that clock may be off.
    pub clock_limits: Limits,
}

/// When SQLite waits for the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Synchronous {
    /// At every commit. `Yes` survives a power cut.
    Full,
    /// At checkpoints. A power cut may take back what was answered; the file stays whole.
    Normal,
    /// Never. A power cut may take back anything, and damage the file.
    Off,
}

impl Synchronous {
    fn pragma(self) -> &'static str {
        match self {
            Synchronous::Full => "FULL",
            Synchronous::Normal => "NORMAL",
            Synchronous::Off => "OFF",
        }
    }
}

impl SqliteOptions {
    /// The defaults for a store at `path`: as safe as it gets, two seconds of patience with other processes.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            synchronous: Synchronous::Full,
            busy_timeout: Duration::from_secs(2),
            batch_max: BATCH_MAX,
            checkpoint_pages: 4096,
            vfs: None,
            clock: Arc::new(SystemClock::new()),
            clock_limits: Limits::default(),
        }
    }
}

/// A store in a SQLite file. Dropping it is [`SqliteStore::close`].
pub struct SqliteStore {
    queue: Arc<Queue>,
    readers: Readers,
    time: Arc<TimeKeeper>,
    writer: Mutex<Option<JoinHandle<()>>>,
    synchronous: Synchronous,
    meters: Calls,
}

impl SqliteStore {
    /// Opens the store, making the file if it is not there. Blocks for as long as other processes have their turn.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong with the place and what can be done.
    pub fn open(options: SqliteOptions) -> Result<Self, OpenError> {
        place::check(&options.path)?;
        let turns = turns::Turns::open(&options.path)
            .map_err(|source| OpenError::Io { path: options.path.clone(), source })?;
        let mut connection = schema::connect(&options)?;
        let time = Arc::new(TimeKeeper::new(options.clock.clone(), options.clock_limits));
        {
            let _turn = turns
                .take(options.busy_timeout)
                .map_err(|no_turn| OpenError::no_turn(&options.path, no_turn))?;
            schema::prepare(&mut connection, &options)?;
            agree_on_time(&mut connection, &time, &options.path)?;
        }
        let readers = Readers::open(&options)?;
        let wal_pages = Arc::new(AtomicU32::new(0));
        let told = Arc::clone(&wal_pages);
        connection
            .wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
                told.store(u32::try_from(pages).unwrap_or(0), Ordering::Relaxed);
                Ok(())
            }))
            .map_err(|error| OpenError::of(&options.path, error))?;
        let watch = Watch::over(&mut connection).map_err(|error| OpenError::of(&options.path, error))?;
        let threads = |source| OpenError::Io { path: options.path.clone(), source };
        let queue = Arc::new(Queue::new());
        let writer = Writer {
            connection,
            watch,
            queue: Arc::clone(&queue),
            turns: Arc::new(turns),
            time: Arc::clone(&time),
            checkpointer: Checkpointer::start(schema::connect(&options)?, options.busy_timeout)
                .map_err(threads)?,
            batch_max: options.batch_max.clamp(1, BATCH_MAX),
            busy_timeout: options.busy_timeout,
            wal_pages,
            checkpoint_pages: options.checkpoint_pages.max(1),
            pages_at_checkpoint: 0,
            meters: writer::Meters::new(),
            buffer: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("retrysafe-writer".into())
            .spawn(move || writer.run())
            .map_err(threads)?;
        let meters = Calls::new();
        let synchronous = options.synchronous;
        Ok(Self { queue, readers, time, writer: Mutex::new(Some(thread)), synchronous, meters })
    }

    /// Commits what is in line, then stops the writer. Blocks until that is done; afterwards every write answers
    /// [`ErrorKind::Unavailable`].
    pub fn close(&self) {
        self.queue.close();
        let thread = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the writer thread panicked; what it had in hand is of unknown result");
        }
    }

    /// Takes the clock as it is after a jump, once a person has looked (protocol 10). Also for every other process on
    /// this file.
    ///
    /// # Errors
    /// As a write.
    pub async fn acknowledge_clock_jump(&self) -> Result<(), StoreError> {
        let mark = self.time.acknowledge();
        self.submit(Changes::One, move |transaction| {
            transaction.set_mark(mark);
            Ok(())
        })
        .await
    }

    /// Begins a new epoch of fences: to be called once after a backup was restored, whose fences may have been issued
    /// before (protocol 7). Returns its number.
    ///
    /// # Errors
    /// As a write; [`ErrorKind::Full`] after 65,535 epochs.
    pub async fn bump_epoch(&self) -> Result<u16, StoreError> {
        self.submit(Changes::One, |transaction| transaction.bump_epoch()).await
    }

    /// Has `work` done on the writer thread, inside the transaction of the next batch, and waits for its commit.
    async fn submit<T, F>(&self, changes: Changes, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
    {
        let (job, answer) = Task::of(changes, work);
        self.queue.push(job).await?;
        // The writer died with the job in hand: nobody knows how far it came (protocol 19).
        answer.await.unwrap_or_else(|_| Err(StoreError::new(ErrorKind::Unknown, "waiting for a commit")))
    }

    /// Reads beside the writer.
    fn read<T>(&self, read: impl FnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.readers.read(read)
    }

    /// The answer that a read can give to a claim on a key that is taken.
    fn answer_from_read(&self, address: &Address, write: &Write) -> Result<Option<Written>, StoreError> {
        if write.expect != Expect::Absent {
            return Ok(None);
        }
        let Some(present) = self.readers.load(address)? else { return Ok(None) };
        let own = is_own_write(write, &present);
        Ok(Some(own.map_or_else(|| Written::No(Some(present)), Written::Yes)))
    }

    /// Another process may have acknowledged the jump that this one still sees.
    fn now_after_a_jump(&self, jumped: StoreError) -> Result<Wall, StoreError> {
        if jumped.kind() != ErrorKind::ClockJumped {
            return Err(jumped);
        }
        if let Some(mark) = self.readers.meta()?.mark {
            self.time.learn(mark);
        }
        self.time.now().map(|mark| mark.now)
    }
}

/// Before the first answer, and durably: two processes that each took their own wall clock for the first time told would
/// never agree again (R16).
fn agree_on_time(connection: &mut Connection, time: &TimeKeeper, path: &Path) -> Result<(), OpenError> {
    let failed = |error| OpenError::of(path, error);
    let immediate = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let mut buffer = Vec::new();
    let watch = Watch::default();
    let mut transaction = Transaction::begun(&immediate, &watch, &mut buffer)?;
    transaction.agree_on_time(time);
    transaction.finish(time)?;
    immediate.commit().map_err(failed)
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("synchronous", &self.synchronous).finish_non_exhaustive()
    }
}

impl Store for SqliteStore {
    fn capability(&self) -> Capability {
        Capability {
            name: "sqlite",
            survives_process: true,
            survives_power_cut: self.synchronous == Synchronous::Full,
            survives_failover: false,
            shared: true,
            transactions: true,
        }
    }

    fn now(&self) -> Result<Wall, StoreError> {
        self.time.now().map(|mark| mark.now).or_else(|error| self.now_after_a_jump(error))
    }

    fn load<'a>(&'a self, address: &'a Address) -> StoreFuture<'a, Option<Record>> {
        let started = Instant::now();
        let loaded = self.readers.load(address);
        self.meters.load.record(started.elapsed());
        Box::pin(ready(loaded))
    }

    fn write_if<'a>(&'a self, address: &'a Address, write: &'a Write) -> StoreFuture<'a, Written> {
        Box::pin(async move {
            let started = Instant::now();
            if let Some(written) = self.answer_from_read(address, write)? {
                self.meters.load.record(started.elapsed());
                return Ok(written);
            }
            let (address, write) = (address.clone(), write.clone());
            let written =
                self.submit(Changes::One, move |transaction| transaction.write_if(&address, &write)).await;
            self.meters.write.record(started.elapsed());
            written
        })
    }

    fn remove_if<'a>(&'a self, address: &'a Address, guard: RemoveIf) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let started = Instant::now();
            let address = address.clone();
            let removed =
                self.submit(Changes::One, move |transaction| transaction.remove_if(&address, guard)).await;
            self.meters.remove.record(started.elapsed());
            removed
        })
    }

    fn due<'a>(&'a self, due: Due, now: Wall, limit: usize) -> StoreFuture<'a, Vec<(Address, Record)>> {
        Box::pin(ready(self.readers.due(due, now, limit)))
    }

    fn locate<'a>(&'a self, namespace: &'a Namespace, status: StatusId) -> StoreFuture<'a, Option<Address>> {
        Box::pin(ready(self.readers.locate(namespace, status)))
    }

    fn end_resource<'a>(
        &'a self,
        namespace: &'a Namespace,
        account: &'a Account,
        resource: &'a ResourceId,
        expires_at: Wall,
    ) -> StoreFuture<'a, usize> {
        let (namespace, account, resource) = (namespace.clone(), account.clone(), resource.clone());
        Box::pin(self.submit(Changes::Several, move |transaction| {
            transaction.end_resource(&namespace, &account, &resource, expires_at)
        }))
    }

    fn list<'a>(
        &'a self,
        filter: &'a Filter,
        cursor: Option<&'a Address>,
        limit: usize,
    ) -> StoreFuture<'a, Vec<(Address, Record)>> {
        Box::pin(ready(self.readers.list(filter, cursor, limit)))
    }

    fn census<'a>(&'a self) -> StoreFuture<'a, Census> {
        Box::pin(ready(self.readers.meta().map(|meta| meta.census)))
    }

    fn count_day<'a>(&'a self, day: Day) -> StoreFuture<'a, ()> {
        Box::pin(self.submit(Changes::One, move |transaction| {
            let (connection, _) = transaction.parts();
            transaction.touch();
            days::add(connection, day)
        }))
    }

    fn days<'a>(&'a self) -> StoreFuture<'a, Vec<Day>> {
        Box::pin(ready(self.read(days::read)))
    }

    fn journals(&self) -> Option<&dyn crate::journal::Journal> {
        Some(self)
    }

    /// One writer at a time: whatever a transaction read is still true when it commits.
    fn claims_by(&self) -> &'static [ClaimMethod] {
        &ClaimMethod::ALL
    }

    fn duplicate_effects<'a>(
        &'a self,
        from: Wall,
        to: Wall,
        within: Duration,
    ) -> StoreFuture<'a, Option<u64>> {
        Box::pin(ready(self.readers.duplicate_effects(from, to, within).map(Some)))
    }

    fn forget_effects<'a>(&'a self, before: Wall, limit: usize) -> StoreFuture<'a, usize> {
        Box::pin(self.submit(Changes::Several, move |transaction| transaction.forget_effects(before, limit)))
    }
}

#[cfg(test)]
mod tests;
