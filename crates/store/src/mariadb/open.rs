//! An open transaction of a handler.

use std::{fmt, sync::Arc};

use retrysafe_core::{
    address::Address,
    ids::{AttemptId, Fence},
    record::{Expect, Write},
};

use super::{
    Shared,
    calls::{body_values, column_values},
    fault::{Does, failed, is_interrupted, number},
    verbs::Answer,
};
use crate::{
    ErrorKind, StoreError,
    journal::Notes,
    sql::{
        Connection, Driver, Failure, FailureKind, ServerCode, Statement, Value,
        row::{self, Columns, Guard},
    },
    transactional::{Committed, OpenTransaction, Undone},
};

const UNDOING: &str = "undoing a handler's work";
const COMMITTING: &str = "committing a transaction";

/// A transaction in MariaDB. Dropping it rolls it back.
pub struct MariaTransaction<D: Driver> {
    shared: Arc<Shared<D>>,
    connection: D::Connection,
    /// In one transaction: what its own row is guarded by, and its fence. `None`: the claim was made before.
    own: Option<(Expect, Fence)>,
}

impl<D: Driver> MariaTransaction<D> {
    pub(super) fn new(
        shared: &Arc<Shared<D>>,
        connection: D::Connection,
        own: Option<(Expect, Fence)>,
    ) -> Self {
        Self { shared: Arc::clone(shared), connection, own }
    }
}

impl<D: Driver> fmt::Debug for MariaTransaction<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MariaTransaction").field("own", &self.own).finish_non_exhaustive()
    }
}

impl<D: Driver> Drop for MariaTransaction<D> {
    /// Whatever is still open is rolled back before anybody else uses the connection. After a commit this resets it.
    fn drop(&mut self) {
        self.connection.abandon();
    }
}

impl<D: Driver> OpenTransaction for MariaTransaction<D> {
    type Handle = <D::Connection as Connection>::Handle;

    fn handle(&mut self) -> &mut Self::Handle {
        self.connection.handle()
    }

    async fn effect(&mut self, address: &Address, attempt: AttemptId, step: &str) -> Result<(), StoreError> {
        self.shared.effect(&mut self.connection, address, attempt, step).await
    }

    async fn note(&mut self, address: &Address, notes: &Notes) -> Result<(), StoreError> {
        self.shared.append(&mut self.connection, address, notes).await
    }

    async fn undo(&mut self) -> Result<(), StoreError> {
        let undo = Statement::plain(&self.shared.texts.undo);
        match self.shared.in_time(&mut self.connection, &undo).await.failure {
            None => Ok(()),
            // The server rolled the transaction back, or the handler ended it: what it did may be committed.
            Some(failure) if is_no_savepoint(&failure) => {
                Err(StoreError::with_source(ErrorKind::Unknown, UNDOING, failure))
            }
            Some(failure) => Err(failed(failure, UNDOING, Does::Read)),
        }
    }

    async fn commit(mut self, address: &Address, write: &Write) -> Result<Committed, StoreError> {
        let statement = self.last_message(address, write)?;
        let ran = self.shared.in_time(&mut self.connection, &statement).await;
        let failure = match (ran.failure, ran.done.first().map(Answer::of)) {
            (Some(failure), _) => failure,
            (None, Some(Ok(Answer::Done(fence)))) => return Ok(Committed::Yes(fence)),
            (None, Some(Ok(Answer::Lost))) => return Ok(Committed::No(Undone::Lost)),
            (None, Some(Ok(Answer::Seen(_)))) => {
                // Its own row was there when it was begun.
                let undone = if self.own.is_some() { Undone::Lost } else { Undone::Stale };
                return Ok(Committed::No(undone));
            }
            (None, _) => {
                Failure::new(FailureKind::Malformed, "the database did not say whether it committed")
            }
        };
        if let Some(undone) = rolled_back(&failure) {
            return Ok(Committed::No(undone));
        }
        if let FailureKind::Refused(code) = failure.kind
            && !is_interrupted(&failure)
            && was_refused(code)
        {
            return Err(failed(failure, COMMITTING, Does::Read));
        }
        // Whether the commit was done is not known (protocol 19).
        let (shared, own) = (Arc::clone(&self.shared), self.own.is_some());
        drop(self);
        shared.settle(address, write, own, failure).await
    }

    async fn roll_back(mut self) {
        // The reset of the connection would do the same, but later: the address is free for the caller's next.
        let statement = Statement::plain(&self.shared.texts.roll_back);
        let _ = self.shared.in_time(&mut self.connection, &statement).await;
    }
}

impl<D: Driver> MariaTransaction<D> {
    fn last_message(&self, address: &Address, write: &Write) -> Result<Statement, StoreError> {
        // In one transaction the row that was inserted is replaced, whatever the opening expected.
        let expect = self.own.map_or(write.expect, |(expect, _)| expect);
        // A claim that nobody made cannot be completed.
        let guard = Guard::of(expect).ok_or_else(|| lost(COMMITTING))?;
        let columns = Columns::of(&write.next)?;
        self.shared.fits(address, Some(&columns))?;
        let body = body_values(&columns);
        let mut values: Vec<Value> = body.iter().flatten().cloned().collect();
        values
            .extend([&column_values(&columns), &row::address_values(address)[..], &guard.values()].concat());
        Ok(Statement::new(self.shared.texts.commit(body.is_some()), values))
    }
}

fn lost(doing: &'static str) -> StoreError {
    StoreError::new(ErrorKind::Unavailable, doing)
}

fn is_no_savepoint(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::Refused(code) if code.number == number::NO_SUCH_SAVEPOINT)
}

/// The end was refused in a way that says how: the message rolls back before it passes the refusal on.
fn rolled_back(failure: &Failure) -> Option<Undone> {
    let FailureKind::Refused(code) = failure.kind else { return None };
    match code.number {
        number::DEADLOCK | number::LOCK_WAIT_TIMEOUT | number::RECORD_CHANGED => Some(Undone::Conflict),
        _ if code.class() == "23" => Some(Undone::Constraint),
        _ => None,
    }
}

/// Refusals that come before anything is done: a full disk, a value or packet too long, tables or permissions missing.
fn was_refused(code: ServerCode) -> bool {
    number::FULL.contains(&code.number) || matches!(code.class(), "42" | "22")
}
