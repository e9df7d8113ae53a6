//! What became of a commit whose answer was lost (protocol 19).
//!
//! The transaction of a lost connection holds its rows until the server has ended it. So the row is read *under a lock*:
//! whoever gets it knows that the transaction is over. In one transaction it wrote that row first, and its absence then means
//! rolled back. Where the claim was made before, the row may not have been touched yet when the connection broke, and a
//! message on its way may still commit: then nothing is certain but the presence of the completed record.

use retrysafe_core::{address::Address, ids::Fence, record::Write};

use super::{
    Shared,
    calls::Again,
    fault::{Does, failed},
};
use crate::{
    ErrorKind, StateName, StoreError,
    sql::{
        Driver, Failure, Statement, Value,
        row::{self, state_number},
    },
    transactional::{Committed, Undone},
};

const SETTLING: &str = "settling a commit of unknown result";

/// How often the row is asked for, each time for as long as a call may wait for a lock.
const LOOKS_MAX: u32 = 3;

impl<D: Driver> Shared<D> {
    pub(super) async fn settle(
        &self,
        address: &Address,
        write: &Write,
        in_one_transaction: bool,
        failure: Failure,
    ) -> Result<Committed, StoreError> {
        let statement = Statement::new(&self.texts.settle, row::address_values(address).into());
        for _ in 0..LOOKS_MAX {
            let rows = match self.ask(statement.clone(), SETTLING, Does::Read, Again::Safe).await {
                Ok(rows) => rows,
                // Still held, or the server is not back yet.
                Err(error) if error.may_retry() => continue,
                Err(_) => break,
            };
            let found = rows.rows.first().map(Vec::as_slice);
            if let Some([attempt, state, fence]) = found
                && attempt.as_bytes().map(|bytes| &bytes[..])
                    == Some(&write.next.attempt.as_u128().to_be_bytes())
                && state.int() == Some(state_number(StateName::of(&write.next.state)))
            {
                let fence = fence.int().ok_or_else(row::corrupt)?;
                return Ok(Committed::Yes(Fence::from_u64(fence.cast_unsigned())));
            }
            if in_one_transaction {
                return Ok(Committed::No(Undone::Lost));
            }
            if found.is_none_or(|row| !is_of(row, write)) {
                return Ok(Committed::No(Undone::Stale));
            }
            break;
        }
        let unknown = failed(failure, COMMITTING, Does::Write);
        Err(StoreError::with_source(ErrorKind::Unknown, SETTLING, unknown))
    }
}

const COMMITTING: &str = "committing a transaction";

fn is_of(row: &[Value], write: &Write) -> bool {
    row.first().and_then(Value::as_bytes).map(|bytes| &bytes[..])
        == Some(&write.next.attempt.as_u128().to_be_bytes())
}
