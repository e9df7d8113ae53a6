//! Who says that a claiming write won, and what a caller holds or is told then.

use std::{sync::Arc, time::Duration};

use retrysafe_core::{
    address::Address,
    claim::Claim,
    decide::Refusal,
    ids::StatusId,
    outcome::Outcome,
    record::{Record, RemoveIf, Write},
};
use retrysafe_store::{ErrorKind, StoreError, Written};
use tokio::sync::OwnedSemaphorePermit;

use super::{CLAIM_OFFERS_MAX, Engine};

/// The answer to [`Engine::claim`].
pub(crate) enum Claimed<W> {
    /// It is this caller's.
    Won(Box<Held<W>>),
    /// It is not.
    Told(Told),
}

/// What a caller is told that did not win.
pub(crate) enum Told {
    /// Answer with this.
    Replay {
        outcome: Arc<Outcome>,
        /// Whose journal tells of it.
        journal: Option<StatusId>,
    },
    /// Answer with this.
    Refuse(Refusal),
    /// Answer 202.
    Accept { status_id: StatusId, retry_after: Duration },
    /// It may have happened; a probe could tell.
    Uncertain(Box<Record>),
}

/// A won claim with what it needs while it runs. The permit was taken before the claim and lives as long: a client that
/// resets streams does not free it (protocol 14).
#[must_use = "a claim that is dropped blocks its key until the lease ends"]
pub(crate) struct Held<W> {
    pub(crate) won: W,
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Who says whether a claiming write wins.
pub(crate) trait Arbiter: Send {
    /// What the winner holds.
    type Won: Send;

    /// Whether [`Tried::Locked`] is ever said. Only then somebody may have to wait for what cannot be read.
    const MAY_LOCK: bool;

    /// Tries to win with `write`. An error means that nothing was won.
    fn attempt(
        &mut self,
        address: &Address,
        write: &Write,
    ) -> impl Future<Output = Result<Tried<Self::Won>, StoreError>> + Send;
}

/// What became of a claiming write.
pub(crate) enum Tried<W> {
    /// It won.
    Won(W),
    /// This is there instead.
    Seen(Option<Record>),
    /// A transaction holds the address, and its claim cannot be seen.
    Locked,
}

/// A claim of its own, in the store: visible to everybody, and held by a lease.
pub(crate) struct InStore<'a>(pub(crate) &'a Engine);

impl Arbiter for InStore<'_> {
    type Won = Claim;

    const MAY_LOCK: bool = false;

    async fn attempt(&mut self, address: &Address, write: &Write) -> Result<Tried<Claim>, StoreError> {
        let Self(engine) = self;
        match engine.offer(address, write, CLAIM_OFFERS_MAX).await {
            Ok(Written::Yes(fence)) => Ok(match Claim::won(address.clone(), write, fence) {
                Some(claim) => Tried::Won(claim),
                // `decide` makes no other claims.
                None => Tried::Seen(None),
            }),
            Ok(Written::No(present)) => Ok(Tried::Seen(present)),
            Err(error) => {
                // It may have been committed, and nobody will run it: leave nothing behind if possible, else the key is
                // blocked until a lease ends that nobody holds.
                if error.kind() == ErrorKind::Unknown {
                    let guard = RemoveIf::Attempt(write.next.attempt);
                    let _ = engine.store.remove_if(address, guard).await;
                }
                Err(error)
            }
        }
    }
}
