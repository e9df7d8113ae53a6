//! Business rows in the store's own file: written in the transaction that holds the claim (design 4, one transaction).
//!
//! The business part is a synchronous closure on the writer thread, one savepoint for each member of the group commit
//! (protocol 28). The writer is the only one who writes, so a claim is judged and completed without anybody in
//! between: what a second caller finds is either nothing or the finished answer, never a lock.
//!
//! **A closure that does not end holds up every key of the file**, in every process on it, and nobody can take over from
//! it (protocol 29): do no network call, no sleep and no long computation in one. What waits behind it is told *busy* or
//! waits as its contract says; nothing of it runs.

use std::{fmt, ops::Deref, panic::AssertUnwindSafe};

use retrysafe_core::{
    address::Address,
    ids::{AttemptId, Fence},
    record::{Expect, Record, Write},
};
use rusqlite::{Connection, params};

use super::{
    SqliteStore,
    fault::failed,
    jobs::Changes,
    transaction::{Transaction, key_of},
    watch::{Handed, Holder, Watch},
};
use crate::{ErrorKind, StoreError, Written};

const PANICKED: &str = "running business code that panicked; what it wrote was taken back";

/// What a handler writes through: derefs to the connection, inside the transaction that holds its claim.
pub struct SqliteTx<'a> {
    connection: &'a Connection,
    watch: &'a Watch,
    address: &'a Address,
    attempt: AttemptId,
    now_ms: Option<i64>,
}

impl SqliteTx<'_> {
    /// Writes a row of the effect ledger in this transaction: `step` has its effect here. Not unique and not guarded by the
    /// claim, so that it tells when the claim path is broken (SPEC 10.3).
    ///
    /// # Errors
    /// As any statement.
    pub fn effect(&self, step: &str) -> Result<(), StoreError> {
        const WRITING: &str = "writing to the effect ledger";
        let at = self.now_ms.ok_or_else(|| StoreError::new(ErrorKind::ClockJumped, WRITING))?;
        let _ours = self.watch.hand_to(Holder::Store);
        let [namespace, account, key] = key_of(self.address);
        self.connection
            .prepare_cached(
                "INSERT INTO retrysafe_effect (namespace, account, key, step, attempt, at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )
            .and_then(|mut statement| {
                let attempt = self.attempt.as_u128().to_be_bytes();
                statement.execute(params![namespace, account, key, step.as_bytes(), attempt, at])
            })
            .map(|_| ())
            .map_err(failed(WRITING))
    }
}

impl SqliteTx<'_> {
    pub(super) fn hand_to(&self, holder: Holder) -> Handed<'_> {
        self.watch.hand_to(holder)
    }

    /// Where the claim is: whose request it is, and its key for whoever de-duplicates further on.
    pub fn address(&self) -> &Address {
        self.address
    }
}

impl Deref for SqliteTx<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl fmt::Debug for SqliteTx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTx").field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

/// What business code says of its own work.
#[derive(Debug)]
pub enum Verdict<T> {
    /// Commit what was written, with this write of the record.
    Keep(Box<Write>, T),
    /// Take back what was written, and commit this write of the record alone.
    Undo(Box<Write>, T),
    /// Take back what was written, and leave the record as it is.
    GiveUp(T),
}

/// How [`SqliteStore::transact`] ended. Told after the commit of the batch, whichever it is (protocol 18).
#[derive(Debug)]
pub enum Transacted<T> {
    /// Rows and record are committed, with this fence.
    Committed(Fence, T),
    /// The work gave up, and nothing of it is left.
    GivenUp(T),
    /// The work panicked, and nothing of it is left.
    Panicked,
    /// The work was not run: the record is not what was expected; this is there instead.
    Seen(Option<Record>),
}

impl SqliteStore {
    /// Runs `work` on the writer thread, if what `expect` says is there, and commits what it wrote together with the
    /// record that its [`Verdict`] names.
    ///
    /// `attempt` is that of the write to come. Dropping the returned future undoes nothing.
    ///
    /// # Errors
    /// As a write: the batch was lost, with everything in it, or ([`ErrorKind::Unknown`]) nobody knows. `work` may have run.
    pub async fn transact<T, W>(
        &self,
        address: &Address,
        expect: Expect,
        attempt: AttemptId,
        work: W,
    ) -> Result<Transacted<T>, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&SqliteTx<'_>) -> Verdict<T> + Send + 'static,
    {
        // A replay does not wait for the writer, nor for a sync.
        let present = self.readers.load(address)?;
        if present.is_some() && !expect.allows(present.as_ref()) {
            return Ok(Transacted::Seen(present));
        }
        let (address, time) = (address.clone(), std::sync::Arc::clone(&self.time));
        self.submit(Changes::Several, move |transaction| {
            let present = transaction.load(&address)?;
            if !expect.allows(present.as_ref()) {
                return Ok(Transacted::Seen(present));
            }
            let now_ms = time.now().ok().map(|mark| mark.now.unix_ms());
            let verdict = transaction.with_handler(Holder::Handler, |connection, watch| {
                work(&SqliteTx { connection, watch, address: &address, attempt, now_ms })
            });
            match verdict? {
                None => {
                    transaction.take_back()?;
                    Ok(Transacted::Panicked)
                }
                Some(Verdict::GiveUp(said)) => {
                    transaction.take_back()?;
                    Ok(Transacted::GivenUp(said))
                }
                Some(Verdict::Undo(write, said)) => {
                    transaction.take_back()?;
                    transaction.complete(&address, &write).map(|fence| Transacted::Committed(fence, said))
                }
                Some(Verdict::Keep(write, said)) => {
                    transaction.complete(&address, &write).map(|fence| Transacted::Committed(fence, said))
                }
            }
        })
        .await
    }

    /// Runs business code on the writer thread in a transaction of its own, guarded by no key. An `Err` takes back what it
    /// wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] with what `work` said, else as a write.
    pub async fn run<T, W>(&self, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        self.in_a_transaction(Holder::Handler, work).await
    }

    /// Defines business tables: `sql` is any number of `CREATE ... IF NOT EXISTS`, `ALTER` and `DROP`. Names that begin
    /// with `retrysafe_` are the store's. Deferred foreign keys cannot be used: they would fail the commit of others.
    ///
    /// # Errors
    /// As [`SqliteStore::run`].
    pub async fn define(&self, sql: impl Into<String>) -> Result<(), StoreError> {
        let sql = sql.into();
        if sql.to_ascii_uppercase().contains("INITIALLY DEFERRED") {
            let what =
                "a deferred constraint would be checked at a commit that others share; leave DEFERRED out";
            return Err(StoreError::with_source(ErrorKind::Unavailable, "defining business tables", what));
        }
        self.in_a_transaction(Holder::Definition, move |connection| connection.execute_batch(&sql)).await
    }

    async fn in_a_transaction<T, W>(&self, holder: Holder, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        self.submit(Changes::Several, move |transaction| {
            match transaction.with_handler(holder, |connection, _| work(connection))? {
                Some(said) => said.inspect(|_| transaction.touch()).map_err(|error| {
                    StoreError::with_source(ErrorKind::Unavailable, "running business code", error)
                }),
                None => Err(StoreError::new(ErrorKind::Unavailable, PANICKED)),
            }
        })
        .await
    }
}

impl Transaction<'_> {
    /// Hands the connection out. `None`: the work panicked, which must not end the writer. `Err`: the transaction is gone.
    fn with_handler<T>(
        &mut self,
        holder: Holder,
        work: impl FnOnce(&Connection, &Watch) -> T,
    ) -> Result<Option<T>, StoreError> {
        let (connection, watch) = self.parts();
        let handed = watch.hand_to(holder);
        // What the closure may have left half done are rows, and those are taken back.
        let done = std::panic::catch_unwind(AssertUnwindSafe(|| work(connection, watch)));
        drop(handed);
        if !watch.is_whole(connection) {
            return Err(StoreError::new(
                ErrorKind::Unavailable,
                "running business code that lost the transaction",
            ));
        }
        Ok(done.ok())
    }

    /// The record that ends a claim. Nobody has written since the expectation was checked.
    fn complete(&mut self, address: &Address, write: &Write) -> Result<Fence, StoreError> {
        match self.write_if(address, write)? {
            Written::Yes(fence) => Ok(fence),
            Written::No(_) => Err(StoreError::new(
                ErrorKind::Unavailable,
                "completing a claim with a write that expects something else",
            )),
        }
    }
}
