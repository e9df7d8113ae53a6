//! Consumers on a database whose transactions are driven from here.

use std::{panic::AssertUnwindSafe, sync::Arc};

use bytes::Bytes;
use futures_util::FutureExt;
use retrysafe_core::{claim::Opened, record::RecoveryClass};
use retrysafe_store::{
    ErrorKind, Store,
    transactional::{Begun, Committed, OpenTransaction, Transactional, Undone},
};
use tokio::sync::Mutex;

use super::{ConsumeError, Consumed, Consumer, Delivery, Event, ROUNDS_MAX, Step, too_many_rounds};
use crate::{body::BoxError, transaction::Tx};

impl<D: Store + Transactional> Consumer<D> {
    /// Runs `work` in a transaction that holds `event`, unless it was done before. In a task of its own: a consumer that is
    /// dropped in the middle does not cut a commit in two (protocol 19).
    ///
    /// # Errors
    /// [`ConsumeError`]: nothing is kept, but for [`ConsumeError::Unknown`].
    pub async fn guard<W, F, E>(&self, event: &Event<'_>, work: W) -> Result<Consumed, ConsumeError>
    where
        W: FnOnce(Tx<D::Open>) -> F + Send + 'static,
        F: Future<Output = Result<Bytes, E>> + Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        let delivery = self.deliver(event)?;
        let consumer = self.clone();
        let task = tokio::spawn(async move { consumer.consume(delivery, work).await });
        task.await.unwrap_or(Err(ConsumeError::Unknown))
    }

    async fn consume<W, F, E>(&self, delivery: Delivery, work: W) -> Result<Consumed, ConsumeError>
    where
        W: FnOnce(Tx<D::Open>) -> F + Send,
        F: Future<Output = Result<Bytes, E>> + Send,
        E: Into<BoxError> + Send,
    {
        let mut seen = None;
        for _ in 0..ROUNDS_MAX {
            let write = match self
                .step(&delivery, seen.as_ref(), RecoveryClass::Atomic)
                .map_err(ConsumeError::Store)?
            {
                Step::Told(consumed) => return Ok(consumed),
                Step::Try(write) => write,
            };
            match self.database.begin(&delivery.address, &write).await.map_err(ConsumeError::Store)? {
                Begun::Won(open) => {
                    let Some(opened) = Opened::of(*write) else { break };
                    return self.work_in(&delivery, open, opened, work).await;
                }
                Begun::Seen(present) => seen = present,
                Begun::Locked => return Ok(Consumed::InFlight),
            }
        }
        Err(ConsumeError::Store(too_many_rounds()))
    }

    async fn work_in<W, F, E>(
        &self,
        delivery: &Delivery,
        open: D::Open,
        opened: Opened,
        work: W,
    ) -> Result<Consumed, ConsumeError>
    where
        W: FnOnce(Tx<D::Open>) -> F,
        F: Future<Output = Result<Bytes, E>>,
        E: Into<BoxError>,
    {
        let (address, attempt) = (&delivery.address, opened.attempt());
        let home = Arc::new(Mutex::new(open));
        let tx = Tx::new(Arc::clone(&home).lock_owned().await, address.clone(), attempt, None);
        let worked = AssertUnwindSafe(async move { work(tx).await }).catch_unwind().await;
        // Given to something that outlives the function: rolled back when that lets it go.
        let Some(open) = Arc::into_inner(home).map(Mutex::into_inner) else {
            return Err(ConsumeError::Undone(Undone::Lost));
        };
        let result = match worked {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => {
                open.roll_back().await;
                return Err(ConsumeError::Failed(error.into()));
            }
            Err(_) => {
                open.roll_back().await;
                return Err(ConsumeError::Panicked);
            }
        };
        let now = match self.database.now() {
            Ok(now) => now,
            Err(error) => {
                open.roll_back().await;
                return Err(ConsumeError::Store(error));
            }
        };
        match open.commit(address, &self.ending(opened, &result, now)).await {
            Ok(Committed::Yes(_)) => Ok(Consumed::Done(result)),
            Ok(Committed::No(why)) => Err(ConsumeError::Undone(why)),
            Err(error) if error.kind() == ErrorKind::Unknown => {
                self.look(address, attempt, Some(result)).await
            }
            Err(error) => Err(ConsumeError::Store(error)),
        }
    }
}
