//! The writer: one thread, one transaction for everybody who waits.
//!
//! Each round gathers jobs, takes the turn among the processes, begins a transaction, runs every job that is there,
//! commits, and only then tells anybody anything (protocol 18). What is lost is lost together: whenever the
//! transaction is gone, or may be, every job of the batch is told so (protocol 17).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use metrics::{Counter, Histogram, counter, histogram};
use rusqlite::Connection;

use super::{
    checkpoint::{Checkpointer, RESTART_FACTOR},
    fault::{SharedFault, kind_of},
    jobs::{Failed, Job},
    queue::{Pace, Queue},
    transaction::{RELEASE, SAVEPOINT, TAKE_BACK, Transaction},
    turns::{NoTurn, Turns},
    watch::Watch,
};
use crate::{ErrorKind, StoreError, clock::TimeKeeper};

const TURN: &str = "waiting for a turn among the processes on this store";
const BEGINNING: &str = "beginning a batch";
const RUNNING: &str = "running a batch";
const COMMITTING: &str = "committing a batch";

pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) watch: Watch,
    pub(super) queue: Arc<Queue>,
    pub(super) turns: Arc<Turns>,
    pub(super) time: Arc<TimeKeeper>,
    pub(super) checkpointer: Checkpointer,
    pub(super) batch_max: usize,
    pub(super) busy_timeout: Duration,
    /// Pages in the write-ahead log after the last commit, told by SQLite.
    pub(super) wal_pages: Arc<AtomicU32>,
    /// How long the log may get before it is copied.
    pub(super) checkpoint_pages: u32,
    /// How long the log was when a checkpoint was last asked for.
    pub(super) pages_at_checkpoint: u32,
    pub(super) meters: Meters,
    pub(super) buffer: Vec<u8>,
}

/// What the writer counts.
pub(super) struct Meters {
    batch_jobs: Histogram,
    commit_seconds: Histogram,
    commits: Counter,
    batch_faults: Counter,
}

impl Meters {
    pub(super) fn new() -> Self {
        Self {
            batch_jobs: histogram!("retrysafe_store_batch_jobs"),
            commit_seconds: histogram!("retrysafe_store_commit_seconds"),
            commits: counter!("retrysafe_store_commits_total"),
            batch_faults: counter!("retrysafe_store_batch_faults_total"),
        }
    }
}

impl Writer {
    /// Until the queue is closed and empty.
    pub(super) fn run(mut self) {
        // Whatever ends this thread, nobody may wait for it any longer.
        let _closing = CloseOnDrop(Arc::clone(&self.queue));
        let mut pace = Pace::unknown();
        while self.queue.gather(&pace) {
            let mut jobs = Vec::new();
            let started = Instant::now();
            let result = self.batch(&mut jobs);
            if let Err(fault) = &result {
                self.meters.batch_faults.increment(1);
                tracing::warn!(error = %fault.to_error(), jobs = jobs.len(), "a batch was not committed");
            }
            self.meters.batch_jobs.record(jobs.len() as f64);
            let done = jobs.len();
            for job in jobs {
                job.settle(result.as_ref().map(|_| ()));
            }
            let commit_cost = result.unwrap_or_else(|_| started.elapsed());
            pace.observe(done, self.queue.len(), commit_cost, self.batch_max);
            self.keep_the_log_short();
        }
        self.checkpointer.stop();
    }

    /// Runs the jobs that are in line, in one transaction. Returns how long the commit took.
    fn batch(&mut self, jobs: &mut Vec<Box<dyn Job>>) -> Result<Duration, SharedFault> {
        let turns = Arc::clone(&self.turns);
        let turn = match turns.take(self.busy_timeout) {
            Ok(turn) => turn,
            Err(no_turn) => {
                self.queue.pop_into(jobs, self.batch_max);
                let kind = match no_turn {
                    NoTurn::Timeout => ErrorKind::Busy,
                    NoTurn::Io(error) => {
                        tracing::error!(%error, "the lock files cannot be locked");
                        ErrorKind::Unavailable
                    }
                };
                return Err(SharedFault::new(kind, TURN));
            }
        };
        let result = self.transaction(jobs);
        if !self.connection.is_autocommit() {
            // The transaction failed and is still open. If even this fails, SQLite has rolled it back by itself.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        drop(turn);
        result
    }

    fn transaction(&mut self, jobs: &mut Vec<Box<dyn Job>>) -> Result<Duration, SharedFault> {
        let Self { connection, watch, queue, buffer, time, meters, batch_max, .. } = self;
        watch.begin();
        let begun = execute(connection, "BEGIN IMMEDIATE");
        if let Err(error) = begun {
            queue.pop_into(jobs, *batch_max);
            return Err(SharedFault::of(kind_of(&error), BEGINNING, error));
        }
        let mut transaction = match Transaction::begun(connection, watch, buffer) {
            Ok(transaction) => transaction,
            Err(error) => {
                queue.pop_into(jobs, *batch_max);
                return Err(shared(&error));
            }
        };
        // Who comes while the others are run comes along.
        while jobs.len() < *batch_max
            && let Some(mut job) = queue.pop()
        {
            let ran = run_one(connection, watch, &mut *job, &mut transaction);
            jobs.push(job);
            ran?;
        }
        let changed = transaction.finish(time).map_err(|error| shared(&error))?;
        still_there(connection, watch)?;
        let started = Instant::now();
        execute(connection, "COMMIT")
            .map_err(|error| SharedFault::of(kind_of_commit(&error), COMMITTING, error))?;
        let took = started.elapsed();
        // A batch of refusals writes nothing and syncs nothing.
        if changed {
            meters.commits.increment(1);
            meters.commit_seconds.record(took.as_secs_f64());
        }
        Ok(took)
    }

    /// After the answers are out. The log shrinks only when a writer finds it fully copied and unread. The copying is done
    /// by another connection beside the commits; should it never catch up, this thread pauses for the rest.
    fn keep_the_log_short(&mut self) {
        let pages = self.wal_pages.load(Ordering::Relaxed);
        if pages < self.pages_at_checkpoint {
            // It has started over.
            self.pages_at_checkpoint = 0;
        }
        if pages >= self.checkpoint_pages.saturating_mul(RESTART_FACTOR) {
            // In a turn of its own, since it takes SQLite's write lock. None now: the next batch tries again.
            if let Ok(_turn) = self.turns.take(self.busy_timeout) {
                self.checkpointer.restart(&self.connection);
            }
        } else if pages >= self.pages_at_checkpoint.saturating_add(self.checkpoint_pages) {
            self.pages_at_checkpoint = pages;
            self.checkpointer.wake();
        }
    }
}

/// What a failed COMMIT leaves. A disk that was full did not take the last page of the transaction, without which the log
/// does not count it; a lock that was busy did not let it begin. Anything else, a failed sync above all, may have
/// brought it to the disk or not.
fn kind_of_commit(error: &rusqlite::Error) -> ErrorKind {
    match kind_of(error) {
        known @ (ErrorKind::Full | ErrorKind::Busy) => known,
        _ => ErrorKind::Unknown,
    }
}

/// Runs one job. `Err`: the transaction is lost, and with it the batch.
fn run_one(
    connection: &Connection,
    watch: &Watch,
    job: &mut dyn Job,
    transaction: &mut Transaction<'_>,
) -> Result<(), SharedFault> {
    let lost = |error| SharedFault::of(kind_of(&error), RUNNING, error);
    let before = transaction.meta();
    if job.needs_savepoint() {
        execute(connection, SAVEPOINT).map_err(lost)?;
    }
    let ran = job.run(transaction);
    still_there(connection, watch)?;
    if let Err(Failed) = ran {
        transaction.restore(before);
        if job.needs_savepoint() {
            execute(connection, TAKE_BACK).map_err(lost)?;
        }
    }
    if job.needs_savepoint() {
        execute(connection, RELEASE).map_err(lost)?;
    }
    Ok(())
}

/// A full disk or a failed read can end the whole transaction inside of a statement (protocol 17), and what came after
/// it would commit statement by statement.
fn still_there(connection: &Connection, watch: &Watch) -> Result<(), SharedFault> {
    if watch.is_whole(connection) { Ok(()) } else { Err(SharedFault::new(ErrorKind::Unavailable, RUNNING)) }
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}

fn shared(error: &StoreError) -> SharedFault {
    SharedFault::new(error.kind(), RUNNING)
}

struct CloseOnDrop(Arc<Queue>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
        // After a panic: who is still in line is told by its dropped reply.
        while self.0.pop().is_some() {}
    }
}
