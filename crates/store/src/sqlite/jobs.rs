//! A unit of work on the writer thread: one closure, and somebody who waits for what it says.
//!
//! The closure is any synchronous work inside the batch's transaction, which is what the one-transaction shape needs
//! too (protocol 28). What it returned is told only once the commit is known (protocol 18). The work of this crate does not
//! panic: that would end the writer, and with it the store. Business code may, and is caught where it is called.

use tokio::sync::oneshot;

use super::{fault::SharedFault, transaction::Transaction};
use crate::StoreError;

/// What the writer sees of a job.
pub(super) trait Job: Send {
    /// Does the work. `Err`: the work failed; what it changed has to go, the others of the batch may stay.
    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Failed>;

    /// Whether it changes several rows, so that a failure in the middle has to be undone by itself.
    fn needs_savepoint(&self) -> bool;

    /// Tells who waits. `Err`: nothing of the batch was kept, or nobody knows.
    fn settle(self: Box<Self>, batch: Result<(), &SharedFault>);
}

/// The work of a job failed. Why is told to who waits.
pub(super) struct Failed;

/// The number of statements that a job changes rows with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Changes {
    /// At most one: SQLite itself makes it whole or absent.
    One,
    /// Several: a savepoint does.
    Several,
}

pub(super) struct Task<T, F> {
    work: Option<F>,
    changes: Changes,
    said: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Task<T, F>
where
    T: Send + 'static,
    F: FnOnce(&mut Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
{
    /// A job, and where its answer will come.
    pub(super) fn of(changes: Changes, work: F) -> (Box<dyn Job>, oneshot::Receiver<Result<T, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        (Box::new(Self { work: Some(work), changes, said: None, reply }), answer)
    }
}

impl<T, F> Job for Task<T, F>
where
    T: Send + 'static,
    F: FnOnce(&mut Transaction<'_>) -> Result<T, StoreError> + Send + 'static,
{
    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<(), Failed> {
        let Some(work) = self.work.take() else { return Ok(()) };
        let said = self.said.insert(work(transaction));
        if said.is_ok() { Ok(()) } else { Err(Failed) }
    }

    fn needs_savepoint(&self) -> bool {
        self.changes == Changes::Several
    }

    fn settle(self: Box<Self>, batch: Result<(), &SharedFault>) {
        let answer = match (batch, self.said) {
            // Its own fault says more than that of the batch.
            (_, Some(Err(error))) => Err(error),
            (Ok(()), Some(Ok(said))) => Ok(said),
            (Err(fault), _) => Err(fault.to_error()),
            // Not run, and no fault: only a writer that ends too early does that.
            (Ok(()), None) => Err(StoreError::new(crate::ErrorKind::Unavailable, "waiting for a batch")),
        };
        // Whoever asked may have gone; what was committed stays committed (protocol 19).
        let _ = self.reply.send(answer);
    }
}
