//! What a handler writes through.

use std::fmt;

use retrysafe_core::{
    address::Address,
    ids::{AttemptId, Fence},
};
use retrysafe_store::{StoreError, transactional::OpenTransaction};
use tokio::sync::OwnedMutexGuard;

/// The transaction that holds the claim. It goes back when it is dropped: a handler that is done lets it go, and one that
/// gives it to a task that outlives it has its work rolled back.
pub struct Tx<O: OpenTransaction> {
    open: OwnedMutexGuard<O>,
    address: Address,
    attempt: AttemptId,
    fence: Option<Fence>,
}

impl<O: OpenTransaction> Tx<O> {
    pub(crate) fn new(
        open: OwnedMutexGuard<O>,
        address: Address,
        attempt: AttemptId,
        fence: Option<Fence>,
    ) -> Self {
        Self { open, address, attempt, fence }
    }

    /// The driver's own connection, inside the transaction.
    pub fn db(&mut self) -> &mut O::Handle {
        self.open.handle()
    }

    /// Writes a row of the effect ledger in this transaction: `step` has its effect here. Not unique and not guarded by the
    /// claim, so that it tells when the claim path is broken (SPEC 10.3).
    ///
    /// # Errors
    /// As any statement.
    pub async fn effect(&mut self, step: &str) -> Result<(), StoreError> {
        self.open.effect(&self.address, self.attempt, step).await
    }

    /// Where the claim is; its key goes to whoever de-duplicates further on.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// For downstream systems that compare it. `None` in one transaction: a fence that is not durable yet must not leave
    /// (protocol 7).
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }
}

impl<O: OpenTransaction> fmt::Debug for Tx<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("attempt", &self.attempt).finish_non_exhaustive()
    }
}
