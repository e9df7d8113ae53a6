//! Sending a statement, and sending it again where that is safe.

use std::time::Duration;

use super::{
    Shared,
    fault::{Does, failed, is_conflict},
};
use crate::{
    ErrorKind, StoreError,
    sql::{Connection, Driver, Failure, FailureKind, Ran, Rows, Statement, Value, row},
};
use retrysafe_core::address::{Account, Address};

/// How often a statement that lost against another (a deadlock, a lock that did not come free) is sent again.
pub(super) const CONFLICTS_MAX: u32 = 5;

/// The first pause between two of these; it doubles.
const CONFLICT_PAUSE: Duration = Duration::from_millis(1);

/// The longest key that the tables hold, in bytes; a contract allows no longer one.
const KEY_MAX_BYTES: usize = 1024;

/// Room in a packet for everything but the answer's body.
const PACKET_RESERVE_BYTES: usize = 64 * 1024;

/// Whether a statement whose answer was lost may be sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// It changes nothing, or what it changed is recognised as its own.
    Safe,
    /// The second answer would be about the second time.
    Unsafe,
}

impl<D: Driver> Shared<D> {
    /// Runs one statement on a connection of the store's own.
    pub(super) async fn ask(
        &self,
        statement: Statement,
        doing: &'static str,
        does: Does,
        again: Again,
    ) -> Result<Rows, StoreError> {
        let mut conflicts = 0;
        let mut dead = 0;
        loop {
            let failure = match self.once(&statement).await {
                Ok(rows) => return Ok(rows),
                Err(failure) => failure,
            };
            match failure.kind {
                FailureKind::Refused(_) if is_conflict(&failure) && conflicts < CONFLICTS_MAX => {
                    tokio::time::sleep(CONFLICT_PAUSE * (1 << conflicts)).await;
                    conflicts += 1;
                }
                // The server was started anew: every connection of the pool may be dead, each of them found out alone.
                FailureKind::Lost(_) if again == Again::Safe && dead <= self.connections => dead += 1,
                _ => return Err(failed(failure, doing, does)),
            }
        }
    }

    async fn once(&self, statement: &Statement) -> Result<Rows, Failure> {
        let mut connection = self.own.acquire().await?;
        let ran = self.in_time(&mut connection, statement).await;
        match ran.failure {
            None => ran.done.into_iter().next().ok_or_else(no_answer),
            Some(failure) => {
                match failure.kind {
                    FailureKind::Refused(_) => connection.abandon(),
                    _ => connection.discard(),
                }
                Err(failure)
            }
        }
    }

    /// Runs one statement, or gives up on an answer: the server ends what takes too long, but a network may swallow
    /// everything.
    pub(super) async fn in_time(&self, connection: &mut D::Connection, statement: &Statement) -> Ran {
        let run = connection.run(std::slice::from_ref(statement));
        match tokio::time::timeout(self.answer_timeout, run).await {
            Ok(ran) => ran,
            Err(_) => {
                let failure = Failure::new(FailureKind::Lost(None), NoAnswer(self.answer_timeout));
                Ran { done: Vec::new(), failure: Some(failure) }
            }
        }
    }

    /// What the tables cannot hold is refused before anything is sent.
    pub(super) fn fits(&self, address: &Address, columns: Option<&row::Columns>) -> Result<(), StoreError> {
        let full = || StoreError::new(ErrorKind::Full, "writing a record that is too long for the database");
        // The account's own bound is that of the column.
        const { assert!(Account::MAX_BYTES == 1024) };
        if address.key().as_str().len() > KEY_MAX_BYTES {
            return Err(full());
        }
        let Some(columns) = columns else { return Ok(()) };
        let body = columns.long.as_ref().map_or(0, |long| long.body.len());
        let data = columns.data.as_bytes().map_or(0, |data| data.len());
        let resource = columns.resource.as_bytes().map_or(0, |resource| resource.len());
        if body.saturating_add(data).saturating_add(resource) > self.room()
            || resource > usize::from(u16::MAX)
        {
            return Err(full());
        }
        Ok(())
    }

    /// Whether the arguments of one statement fit into a packet: a longer one would end the connection.
    pub(super) fn fits_packet(&self, values: &[Value], doing: &'static str) -> Result<(), StoreError> {
        let size: usize = values.iter().filter_map(Value::as_bytes).map(|bytes| bytes.len()).sum();
        if size > self.room() { Err(StoreError::new(ErrorKind::Full, doing)) } else { Ok(()) }
    }

    fn room(&self) -> usize {
        self.packet_max.saturating_sub(PACKET_RESERVE_BYTES)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the database did not answer within {0:?}")]
struct NoAnswer(Duration);

fn no_answer() -> Failure {
    Failure::new(FailureKind::Malformed, "the database gave no answer")
}

/// The arguments of [`row::Columns`], in the order of the texts.
pub(super) fn column_values(columns: &row::Columns) -> [Value; 8] {
    [
        columns.attempt.clone(),
        columns.status.clone(),
        columns.state.into(),
        columns.due_ms.clone(),
        columns.expires_ms.clone(),
        columns.resource.clone(),
        columns.long.as_ref().map(|long| long.day).into(),
        columns.data.clone(),
    ]
}

/// The arguments of a body that is kept apart.
pub(super) fn body_values(columns: &row::Columns) -> Option<[Value; 3]> {
    let long = columns.long.as_ref()?;
    Some([long.day.into(), columns.attempt.clone(), long.body.clone().into()])
}
