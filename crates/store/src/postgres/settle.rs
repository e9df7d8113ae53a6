//! How a transaction ended: by the server's code, or by looking again.

use std::time::{Duration, Instant};

use retrysafe_core::{address::Address, ids::Fence, record::Write};

use super::{
    fault::{Does, failed},
    inner::Inner,
    transaction::{Hold, opened, random},
};
use crate::{
    ErrorKind, StoreError, is_own_write,
    sql::{Connection, Driver, Failure, ServerCode},
    transactional::{Committed, Undone},
};

const SETTLING: &str = "settling a commit whose answer was lost";

/// How often it is looked whether the transaction is over, and the pause in between: five seconds in all, in which a
/// server has noticed that its client is gone, or has been started again.
const LOOKS: u32 = 50;
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// No look begins later than this: where the server does not answer, a single one takes as long as a call may.
const SETTLE_FOR: Duration = Duration::from_secs(10);

/// Statements of the end of a transaction, by their place in the list.
const CONSTRAINTS: usize = 0;
const WRITE: usize = 1;

/// Why the server refused statement `at` of the end, and so rolled back. `None`: for a reason that says nothing about
/// the work.
pub(super) fn undone(at: usize, code: ServerCode) -> Option<Undone> {
    match (at, code.state()) {
        // A statement of the handler failed, and the handler went on.
        (_, "25P02") => Some(Undone::Lost),
        // Serialization failures, deadlocks, and waits that ended at a limit.
        (_, "40001" | "40P01" | "40003" | "55P03" | "57014") => Some(Undone::Conflict),
        (_, _) if matches!(code.class(), "53" | "54" | "57" | "58" | "XX") => None,
        // The primary key: somebody claimed first without the lock. A division by zero: the guard matched no row.
        (WRITE, "23505" | "22012") => Some(Undone::Stale),
        // The mark is not there (no fence, or no number): this is not the transaction that was begun.
        (WRITE, "23502" | "22P02" | "25P01") => Some(Undone::Lost),
        (WRITE, _) => None,
        // Whatever a deferred constraint or the trigger behind it says.
        (CONSTRAINTS, _) => Some(Undone::Constraint),
        (_, _) => (code.class() == "23").then_some(Undone::Constraint),
    }
}

/// The session ended while the handler had it.
pub(super) fn lost(code: ServerCode, failure: Failure) -> Result<Committed, StoreError> {
    match code.state() {
        // It rested for longer than it may.
        "25P03" => Ok(Committed::No(Undone::Lost)),
        _ => Err(failed(failure, SETTLING, Does::Read)),
    }
}

impl<D: Driver> Inner<D> {
    /// Finds out whether the transaction that held `lock` has committed `write` (protocol 19). Absence alone says nothing:
    /// only under the lock is the other transaction over.
    pub(super) async fn settle(
        &self,
        address: &Address,
        write: &Write,
        lock: i64,
    ) -> Result<Committed, StoreError> {
        let mut last = None;
        let started = Instant::now();
        for look in 0..LOOKS {
            if look > 0 && started.elapsed() >= SETTLE_FOR {
                break;
            }
            if look > 0 {
                tokio::time::sleep(LOOK_PAUSE).await;
            }
            match self.look(address, write, lock).await {
                Ok(Found::Open) => {}
                Ok(Found::Committed(fence)) => return Ok(Committed::Yes(fence)),
                Ok(Found::RolledBack) => return Err(StoreError::new(ErrorKind::Unavailable, SETTLING)),
                Ok(Found::Unclear) => return Err(StoreError::new(ErrorKind::Unknown, SETTLING)),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or_else(
            || StoreError::new(ErrorKind::Unknown, SETTLING),
            |error| StoreError::with_source(ErrorKind::Unknown, SETTLING, error),
        ))
    }

    async fn look(&self, address: &Address, write: &Write, lock: i64) -> Result<Found, StoreError> {
        let hold = Hold { lock, mark: random(SETTLING)? };
        let (mut connection, done) = self.begin_with(&self.texts.begin_to_look, hold, Some(address)).await?;
        connection.abandon();
        drop(connection);
        let (held, row) = opened(&done)?;
        if !held {
            return Ok(Found::Open);
        }
        let Some(row) = row else { return Ok(Found::RolledBack) };
        let present = self.whole(row).await?;
        if let Some(fence) = is_own_write(write, &present) {
            return Ok(Found::Committed(fence));
        }
        Ok(if write.expect.allows(Some(&present)) { Found::RolledBack } else { Found::Unclear })
    }
}

/// What can be seen of a transaction whose end nobody told.
enum Found {
    /// It still holds its lock.
    Open,
    Committed(Fence),
    RolledBack,
    /// It is over, and another attempt has the record: it was rolled back before that, or it committed, expired and was
    /// replaced.
    Unclear,
}
