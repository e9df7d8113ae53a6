//! Business rows and the stored answer in one commit.
//!
//! **Two added round trips.** The opening rides on `BEGIN`: limits, the lock of the address and the mark of the transaction in
//! one statement, then, *as a later statement*, the record, then the savepoint. The completing write rides on `COMMIT`.
//!
//! **The lock is tried, never waited for**, and ends with the transaction, so it works behind a pooler and dies with its
//! holder (R12). Its id is made with a secret, so that nobody can choose two keys that block each other. What is committed
//! is judged before the lock: the read came after the lock was tried, so a lock that was taken means that the read is the
//! last word, and a lock that was not means "in flight" only while nothing committed says more (protocol 11).
//!
//! **The completing write fails where it does not apply.** `COMMIT` is behind it already, and would commit the handler's work
//! alone if the write only changed no row. It also carries the mark of the transaction that was begun: where a handler
//! ended that transaction, the write has nothing to stand on (protocol 17).
//!
//! **A lost answer to `COMMIT` is settled by the same lock**: once it can be taken anew, the transaction is over one way
//! or the other, and what is committed is the truth (protocol 19).

use std::{fmt, sync::Arc};

use hmac::{Hmac, KeyInit, Mac};
use retrysafe_core::{
    address::Address,
    ids::{AttemptId, Fence},
    record::{Expect, Write},
};
use sha2::Sha256;

use super::{
    PostgresStore,
    calls::{RESENDS, TRIES, pause},
    fault::{Does, failed, is_conflict},
    inner::Inner,
    settle::{lost, undone},
};
use crate::{
    ErrorKind, StoreError,
    journal::Notes,
    sql::{
        Connection, Driver, FailureKind, Ran, Rows, Statement, Value,
        row::{Columns, Guard, Row, address_values, corrupt},
    },
    transactional::{Begun, Committed, OpenTransaction, Transactional},
};

const BEGINNING: &str = "beginning a transaction";
const COMMITTING: &str = "committing a transaction";
const UNDOING: &str = "rolling back to the savepoint";

/// An open transaction. Dropping it rolls it back.
pub struct PostgresTransaction<D: Driver> {
    connection: D::Connection,
    inner: Arc<Inner<D>>,
    hold: Hold,
}

/// What a transaction is recognised by.
#[derive(Clone, Copy)]
pub(super) struct Hold {
    /// The advisory lock that it holds from its first statement to its end.
    pub(super) lock: i64,
    /// Random, in a setting that ends with the transaction.
    pub(super) mark: [u8; 16],
}

impl<D: Driver> Transactional for PostgresStore<D> {
    type Open = PostgresTransaction<D>;

    async fn begin(&self, address: &Address, opening: &Write) -> Result<Begun<Self::Open>, StoreError> {
        let lock = self.inner.lock_of(address);
        if let Some(present) = self.inner.likely_present(address, lock, opening).await? {
            return Ok(Begun::Seen(Some(present)));
        }
        let hold = Hold { lock, mark: random(BEGINNING)? };
        let (mut connection, done) =
            self.inner.begin_with(&self.inner.texts.begin, hold, Some(address)).await?;
        let (held, present) = match opened(&done) {
            Ok(opened) => opened,
            Err(error) => {
                connection.abandon();
                return Err(error);
            }
        };
        let record = present.as_ref().map(Row::record).transpose();
        let expected = record.as_ref().is_ok_and(|record| opening.expect.allows(record.as_ref()));
        if expected && held {
            return Ok(Begun::Won(PostgresTransaction { connection, inner: Arc::clone(&self.inner), hold }));
        }
        // Given back before anything else is asked: who did not win holds nothing.
        connection.abandon();
        drop(connection);
        match (record?, present) {
            (Some(_), Some(row)) if !expected => {
                let present = self.inner.whole(row).await?;
                self.inner.note(lock, &present);
                Ok(Begun::Seen(Some(present)))
            }
            (None, _) if !expected => Ok(Begun::Seen(None)),
            _ => Ok(Begun::Locked),
        }
    }

    async fn open(&self) -> Result<Self::Open, StoreError> {
        let mark = random(BEGINNING)?;
        // A lock of its own: by it one can tell that this transaction is over.
        let [a, b, c, d, e, f, g, h, ..] = random(BEGINNING)?;
        let hold = Hold { lock: i64::from_be_bytes([a, b, c, d, e, f, g, h]), mark };
        let (connection, _) = self.inner.begin_with(&self.inner.texts.begin, hold, None).await?;
        Ok(PostgresTransaction { connection, inner: Arc::clone(&self.inner), hold })
    }
}

impl<D: Driver> OpenTransaction for PostgresTransaction<D> {
    type Handle = <D::Connection as Connection>::Handle;

    fn handle(&mut self) -> &mut Self::Handle {
        self.connection.handle()
    }

    async fn effect(&mut self, address: &Address, attempt: AttemptId, step: &str) -> Result<(), StoreError> {
        self.inner.effect(&mut self.connection, address, attempt, step).await
    }

    async fn note(&mut self, address: &Address, notes: &Notes) -> Result<(), StoreError> {
        self.inner.append(&mut self.connection, address, notes).await
    }

    async fn undo(&mut self) -> Result<(), StoreError> {
        let undo = [Statement::plain(&self.inner.texts.undo)];
        let Some(ran) = self.inner.in_time(&mut self.connection, &undo).await else {
            return Err(StoreError::new(ErrorKind::Unavailable, UNDOING));
        };
        match ran.failure {
            None => Ok(()),
            // There is no such savepoint, or no transaction: the handler has ended it, and what it did may be committed.
            Some(failure) if failure.code().is_some_and(|code| matches!(code.state(), "3B001" | "25P01")) => {
                Err(StoreError::with_source(ErrorKind::Unknown, UNDOING, failure))
            }
            Some(failure) => Err(failed(failure, UNDOING, Does::Read)),
        }
    }

    async fn commit(mut self, address: &Address, write: &Write) -> Result<Committed, StoreError> {
        let texts = &self.inner.texts;
        let statements = [
            // Deferred constraints speak now, while there is still somebody to tell (protocol 18).
            Statement::plain(&texts.constraints),
            self.inner.completing(address, write, self.hold)?,
            Statement::plain(&texts.commit),
        ];
        let Some(Ran { done, failure }) = self.inner.in_time(&mut self.connection, &statements).await else {
            return self.settle(address, write).await;
        };
        match failure {
            // The write was applied in the transaction that was begun, so the COMMIT right behind it was no rollback.
            None => match done.get(1).and_then(|rows| rows.only(0)).and_then(Value::int) {
                Some(fence) => {
                    self.inner.note(self.hold.lock, &write.next);
                    Ok(Committed::Yes(Fence::from_u64(fence.cast_unsigned())))
                }
                None => self.settle(address, write).await,
            },
            Some(failure) => match failure.kind {
                FailureKind::Refused(code) => undone(done.len(), code).map_or_else(
                    || Err(failed(failure, COMMITTING, Does::Read)),
                    |why| Ok(Committed::No(why)),
                ),
                // The connection was gone before anything was sent: the server has rolled back.
                FailureKind::Unreachable => Err(failed(failure, COMMITTING, Does::Read)),
                // The server's last word came before it reached the COMMIT.
                FailureKind::Lost(Some(code)) if done.len() < 2 => lost(code, failure),
                FailureKind::Lost(_) | FailureKind::Malformed => self.settle(address, write).await,
            },
        }
    }

    async fn roll_back(mut self) {
        let rollback = [Statement::plain(&self.inner.texts.rollback)];
        // What does not end in time, the drop of the transaction ends.
        let _ = self.inner.in_time(&mut self.connection, &rollback).await;
    }
}

impl<D: Driver> PostgresTransaction<D> {
    async fn settle(self, address: &Address, write: &Write) -> Result<Committed, StoreError> {
        let (inner, lock) = (Arc::clone(&self.inner), self.hold.lock);
        drop(self);
        inner.settle(address, write, lock).await
    }
}

impl<D: Driver> Drop for PostgresTransaction<D> {
    /// Whatever is still open is rolled back before anybody else uses the connection. After a commit this does nothing.
    fn drop(&mut self) {
        self.connection.abandon();
    }
}

impl<D: Driver> fmt::Debug for PostgresTransaction<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostgresTransaction(..)")
    }
}

impl<D: Driver> Inner<D> {
    /// A connection with a transaction on it. Nothing of the caller's has run, so whatever goes wrong is tried again.
    pub(super) async fn begin_with(
        &self,
        begin: &Arc<str>,
        hold: Hold,
        address: Option<&Address>,
    ) -> Result<(D::Connection, Vec<Rows>), StoreError> {
        let texts = &self.texts;
        let mut statements = Vec::with_capacity(4);
        statements.push(Statement::plain(begin));
        statements.push(Statement::new(&texts.hold, vec![hold.lock.into(), Value::bytes(&hold.mark)]));
        if let Some(address) = address {
            statements.push(Statement::new(&texts.load, address_values(address).into()));
        }
        statements.push(Statement::plain(&texts.savepoint));

        let (mut tries, mut resends) = (0, RESENDS);
        loop {
            let acquired = self.driver.acquire().await;
            let mut connection = acquired.map_err(|failure| failed(failure, BEGINNING, Does::Read))?;
            let Some(ran) = self.in_time(&mut connection, &statements).await else {
                connection.discard();
                return Err(StoreError::new(ErrorKind::Busy, BEGINNING));
            };
            let Some(failure) = ran.failure else { return Ok((connection, ran.done)) };
            connection.abandon();
            match failure.kind {
                FailureKind::Refused(_) if is_conflict(&failure) && tries < TRIES => {
                    drop(connection);
                    tries += 1;
                    pause(tries).await;
                }
                FailureKind::Lost(_) | FailureKind::Unreachable if resends > 0 => {
                    connection.discard();
                    resends -= 1;
                }
                _ => return Err(failed(failure, BEGINNING, Does::Read)),
            }
        }
    }

    /// The write that decides, which fails unless it applies.
    fn completing(&self, address: &Address, write: &Write, hold: Hold) -> Result<Statement, StoreError> {
        let columns = Columns::of(&write.next)?;
        let guard = Guard::of(write.expect);
        let texts = &self.texts;
        let text = match (&guard, &columns.long) {
            (None, None) => &texts.complete,
            (None, Some(_)) => &texts.complete_long,
            (Some(_), None) => &texts.finish,
            (Some(_), Some(_)) => &texts.finish_long,
        };
        // A claim that nobody saw before it was completed never had a status page, and its random id would only make
        // an index grow.
        let status = if write.expect == Expect::Absent { Value::Null } else { columns.status.clone() };
        let mut values: Vec<Value> = Vec::with_capacity(18);
        values.extend(address_values(address));
        let body = columns.extend(&mut values, status);
        if let Some(guard) = guard {
            values.extend(guard.values());
            values.push(i64::from(write.opens_claim()).into());
        }
        values.push(Value::bytes(&hold.mark));
        values.extend(body);
        Ok(Statement::new(text, values))
    }

    /// The advisory lock of an address.
    pub(super) fn lock_of(&self, address: &Address) -> i64 {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.lock_secret) else { return 0 };
        for part in [address.namespace().as_str(), address.account().as_str(), address.key().as_str()] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        let digest = mac.finalize().into_bytes();
        digest.iter().take(8).fold(0_i64, |id, byte| id << 8 | i64::from(*byte))
    }
}

/// Whether the lock was taken, and the row that was read after it.
pub(super) fn opened(done: &[Rows]) -> Result<(bool, Option<Row>), StoreError> {
    let held = done.get(1).and_then(|rows| rows.only(0)).and_then(Value::int).ok_or_else(corrupt)?;
    let rows = done.get(2).ok_or_else(corrupt)?;
    let row = rows.rows.first().map(|columns| Row::of(columns).ok_or_else(corrupt)).transpose()?;
    Ok((held == 1, row))
}

pub(super) fn random(doing: &'static str) -> Result<[u8; 16], StoreError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| StoreError::with_source(ErrorKind::Unavailable, doing, error))?;
    Ok(bytes)
}
