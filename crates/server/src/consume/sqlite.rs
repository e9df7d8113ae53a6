//! Consumers on SQLite: the function runs on the store's writer thread.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use retrysafe_core::{claim::Opened, record::RecoveryClass};
use retrysafe_store::{
    ErrorKind, Store, StoreError,
    sqlite::{SqliteStore, SqliteTx, Transacted, Verdict},
};

use super::{ConsumeError, Consumed, Consumer, Event, ROUNDS_MAX, Step, too_many_rounds};
use crate::body::BoxError;

/// What the writer thread hands back beside the rows.
enum Said {
    Result(Bytes),
    Failed(BoxError),
    NoTime(StoreError),
}

impl Consumer<SqliteStore> {
    /// As [`Consumer::guard`], on SQLite: `work` must not wait for anything, since every key of the file waits for it.
    ///
    /// # Errors
    /// As [`Consumer::guard`].
    pub async fn guard_sync<W, E>(&self, event: &Event<'_>, work: W) -> Result<Consumed, ConsumeError>
    where
        W: FnOnce(&SqliteTx<'_>) -> Result<Bytes, E> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let delivery = self.deliver(event)?;
        let work = Arc::new(Mutex::new(Some(work)));
        let mut seen = None;
        for _ in 0..ROUNDS_MAX {
            let write = match self
                .step(&delivery, seen.as_ref(), RecoveryClass::Atomic)
                .map_err(ConsumeError::Store)?
            {
                Step::Told(consumed) => return Ok(consumed),
                Step::Try(write) => write,
            };
            let Some(opened) = Opened::of(*write) else { break };
            let (attempt, expect) = (opened.attempt(), opened.expect());
            let (consumer, work) = (self.clone(), Arc::clone(&work));
            let run = move |tx: &SqliteTx<'_>| {
                let taken = work.lock().unwrap_or_else(PoisonError::into_inner).take();
                let Some(work) = taken else { return Verdict::GiveUp(Said::NoTime(too_many_rounds())) };
                match (work(tx), consumer.database.now()) {
                    (Ok(result), Ok(now)) => {
                        Verdict::Keep(Box::new(consumer.ending(opened, &result, now)), Said::Result(result))
                    }
                    (Ok(_), Err(error)) => Verdict::GiveUp(Said::NoTime(error)),
                    (Err(error), _) => Verdict::GiveUp(Said::Failed(error.into())),
                }
            };
            // The writer finishes what it was given, whether anybody waits for it or not (protocol 19).
            match self.database.transact(&delivery.address, expect, attempt, run).await {
                Ok(Transacted::Seen(present)) => seen = present,
                Ok(Transacted::Committed(_, Said::Result(result))) => return Ok(Consumed::Done(result)),
                Ok(
                    Transacted::Committed(_, Said::Failed(error)) | Transacted::GivenUp(Said::Failed(error)),
                ) => {
                    return Err(ConsumeError::Failed(error));
                }
                Ok(
                    Transacted::Committed(_, Said::NoTime(error)) | Transacted::GivenUp(Said::NoTime(error)),
                ) => {
                    return Err(ConsumeError::Store(error));
                }
                Ok(Transacted::GivenUp(Said::Result(_))) => {
                    return Err(ConsumeError::Store(too_many_rounds()));
                }
                Ok(Transacted::Panicked) => return Err(ConsumeError::Panicked),
                Err(error) if error.kind() == ErrorKind::Unknown => {
                    return self.look(&delivery.address, attempt, None).await;
                }
                Err(error) => return Err(ConsumeError::Store(error)),
            }
        }
        Err(ConsumeError::Store(too_many_rounds()))
    }
}
