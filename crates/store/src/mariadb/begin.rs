//! Opening a handler's transaction.

use std::{future::Future, sync::Arc};

use retrysafe_core::{
    address::Address,
    record::{Expect, Record, State, Uncertainty, Write},
};

use super::{
    MariaStore, Shared,
    calls::{CONFLICTS_MAX, column_values},
    fault::{Does, failed, is_conflict},
    open::MariaTransaction,
    verbs::Answer,
};
use crate::{
    ErrorKind, StoreError,
    sql::{
        Connection, Driver, Failure, FailureKind, Statement,
        row::{self, Columns, Guard},
    },
    transactional::{Begun, Transactional},
};

const BEGINNING: &str = "beginning a transaction";

/// How often a transaction is begun again because another claim came and went in between.
const RACES_MAX: u32 = 10;

impl<D: Driver> Transactional for MariaStore<D> {
    type Open = MariaTransaction<D>;

    fn begin(
        &self,
        address: &Address,
        opening: &Write,
    ) -> impl Future<Output = Result<Begun<Self::Open>, StoreError>> + Send {
        begin(&self.shared, address, opening)
    }

    fn open(&self) -> impl Future<Output = Result<Self::Open, StoreError>> + Send {
        open(&self.shared)
    }
}

async fn begin<D: Driver>(
    shared: &Arc<Shared<D>>,
    address: &Address,
    opening: &Write,
) -> Result<Begun<MariaTransaction<D>>, StoreError> {
    let columns = Columns::of(&guard_record(opening))?;
    shared.fits(address, Some(&columns))?;
    let at = row::address_values(address);
    let (text, values) = match Guard::of(opening.expect) {
        None => (&shared.texts.begin_absent, [&at[..], &at[..], &column_values(&columns), &at[..]].concat()),
        Some(guard) => {
            let update = [&column_values(&columns), &at[..], &guard.values(), &at[..]].concat();
            (&shared.texts.begin_over, update)
        }
    };
    let statement = Statement::new(text, values);
    for _ in 0..=RACES_MAX {
        let (connection, answer) = first_message(shared, &statement).await?;
        match answer {
            Answer::Done(fence) => {
                let guard = Expect::Attempt(opening.next.attempt);
                return Ok(Begun::Won(MariaTransaction::new(shared, connection, Some((guard, fence)))));
            }
            Answer::Locked => return Ok(Begun::Locked),
            // There was nothing to be found, or it is gone again.
            Answer::Seen(None) if opening.expect != Expect::Absent => return Ok(Begun::Seen(None)),
            Answer::Seen(None) | Answer::Raced => {}
            // The body is read on a connection of the store's own, where it holds no partition.
            Answer::Seen(Some(found)) => {
                if let Some(record) = shared.whole(found).await? {
                    return Ok(Begun::Seen(Some(record)));
                }
            }
            Answer::Lost => return Err(row::corrupt()),
        }
    }
    Err(StoreError::new(ErrorKind::Busy, BEGINNING))
}

async fn open<D: Driver>(shared: &Arc<Shared<D>>) -> Result<MariaTransaction<D>, StoreError> {
    let statement = Statement::plain(&shared.texts.open);
    let (connection, _) = shared.send_first(&statement).await?;
    Ok(MariaTransaction::new(shared, connection, None))
}

async fn first_message<D: Driver>(
    shared: &Shared<D>,
    statement: &Statement,
) -> Result<(D::Connection, Answer), StoreError> {
    let (mut connection, rows) = shared.send_first(statement).await?;
    match rows.first().map(Answer::of) {
        Some(Ok(answer)) => Ok((connection, answer)),
        Some(Err(error)) => {
            connection.abandon();
            Err(error)
        }
        None => {
            connection.abandon();
            Err(row::corrupt())
        }
    }
}

impl<D: Driver> Shared<D> {
    /// The first message of a transaction. Nothing of the caller's has run yet, so conflicts and connections that turn out
    /// to be dead are tried again.
    async fn send_first(
        &self,
        statement: &Statement,
    ) -> Result<(D::Connection, Vec<crate::sql::Rows>), StoreError> {
        let (mut conflicts, mut dead) = (0, 0);
        loop {
            let mut connection = self.handlers.acquire().await.map_err(failed_to_begin)?;
            let ran = self.in_time(&mut connection, statement).await;
            let Some(failure) = ran.failure else { return Ok((connection, ran.done)) };
            match failure.kind {
                FailureKind::Refused(_) if is_conflict(&failure) && conflicts < CONFLICTS_MAX => {
                    connection.abandon();
                    conflicts += 1;
                }
                // What was begun on a connection that ended is rolled back, and its claim with it.
                FailureKind::Lost(_) if dead <= self.connections => {
                    connection.discard();
                    dead += 1;
                }
                FailureKind::Refused(_) => {
                    connection.abandon();
                    return Err(failed_to_begin(failure));
                }
                _ => {
                    connection.discard();
                    return Err(failed_to_begin(failure));
                }
            }
        }
    }
}

/// Nothing was changed, whatever went wrong: what is not committed is not there.
fn failed_to_begin(failure: Failure) -> StoreError {
    failed(failure, BEGINNING, Does::Read)
}

/// What holds the address until the commit. Nobody sees it, unless the transaction is committed half way by DDL or by a
/// statement of the handler: then part of the work is done and its answer is not, which is what the record says. An
/// in-flight one would have a lease whose end lets the request run again.
fn guard_record(opening: &Write) -> Record {
    let state = State::Uncertain { since: opening.next.opened_at, why: Uncertainty::ResultNotStored };
    Record { state, ..opening.next.clone() }
}
