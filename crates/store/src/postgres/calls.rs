//! Sending a statement: bounded in time, tried again where that is safe.

use std::time::Duration;

use super::{
    fault::{Does, failed, is_conflict},
    inner::Inner,
};
use crate::{
    ErrorKind, StoreError,
    sql::{Connection, Driver, FailureKind, Ran, Rows, Statement},
};

/// How often a statement is tried that the database gave up for another transaction, or that returned nothing. Fifty
/// claims of one key at once need two.
pub(super) const TRIES: u32 = 24;

/// The first pause between two tries; it grows with each.
const PAUSE: Duration = Duration::from_millis(1);

/// How often a statement is sent again because its answer was lost with the connection. A server that was restarted has
/// left one dead connection for each place in the pool.
pub(super) const RESENDS: u32 = 3;

/// Before try number `tries`, counted from zero. The first two follow at once: what was in the way has just ended.
pub(super) async fn pause(tries: u32) {
    if tries > 1 {
        tokio::time::sleep(PAUSE * tries).await;
    }
}

impl<D: Driver> Inner<D> {
    /// Runs one statement on a connection of its own.
    pub(super) async fn one(
        &self,
        statement: Statement,
        doing: &'static str,
        does: Does,
    ) -> Result<Rows, StoreError> {
        let statement = std::slice::from_ref(&statement);
        let resends = if does == Does::Read { RESENDS } else { 0 };
        let mut rows = self.sent(statement, doing, does, resends).await?;
        rows.pop().ok_or_else(|| StoreError::new(ErrorKind::Corrupt, doing))
    }

    /// As [`Inner::one`], for a write that recognises itself (R6): where its answer was lost, it is sent again, and the
    /// second time says what the first time would have said.
    pub(super) async fn one_again(
        &self,
        statement: &Statement,
        doing: &'static str,
    ) -> Result<Rows, StoreError> {
        let statement = std::slice::from_ref(statement);
        let mut rows = self.sent(statement, doing, Does::Write, RESENDS).await?;
        rows.pop().ok_or_else(|| StoreError::new(ErrorKind::Corrupt, doing))
    }

    async fn sent(
        &self,
        statements: &[Statement],
        doing: &'static str,
        does: Does,
        mut resends: u32,
    ) -> Result<Vec<Rows>, StoreError> {
        let mut tries = 0;
        loop {
            let mut connection =
                self.driver.acquire().await.map_err(|failure| failed(failure, doing, does))?;
            let Some(ran) = self.in_time(&mut connection, statements).await else {
                // Still running, for all we know. The connection is of no use to anybody else.
                connection.discard();
                let kind = if does == Does::Write { ErrorKind::Unknown } else { ErrorKind::Busy };
                return Err(StoreError::new(kind, doing));
            };
            match ran.failure {
                None => return Ok(ran.done),
                Some(failure) if is_conflict(&failure) && tries < TRIES => tries += 1,
                Some(failure) => {
                    connection.discard_if_lost(&failure.kind);
                    let gone = matches!(failure.kind, FailureKind::Lost(_) | FailureKind::Unreachable);
                    if !gone || resends == 0 {
                        return Err(failed(failure, doing, does));
                    }
                    resends -= 1;
                    continue;
                }
            }
            drop(connection);
            pause(tries).await;
        }
    }

    /// Runs the list; `None`: it did not end in time.
    pub(super) async fn in_time<C: Connection>(
        &self,
        connection: &mut C,
        statements: &[Statement],
    ) -> Option<Ran> {
        tokio::time::timeout(self.options.call_timeout, connection.run(statements)).await.ok()
    }
}

/// What becomes of a connection after a failure of a statement outside a transaction.
trait AfterFailure {
    fn discard_if_lost(self, kind: &FailureKind);
}

impl<C: Connection> AfterFailure for C {
    fn discard_if_lost(self, kind: &FailureKind) {
        match kind {
            FailureKind::Refused(_) => drop(self),
            FailureKind::Lost(_) | FailureKind::Unreachable | FailureKind::Malformed => self.discard(),
        }
    }
}
