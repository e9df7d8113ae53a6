//! Databases in which business writes and the stored answer commit together (design 4).
//!
//! Two shapes, one trait:
//!
//! - **One transaction.** [`Transactional::begin`] opens a transaction that holds the address: by a transaction-scoped
//!   lock, or by the uncommitted row. The handler writes through the [`handle`](OpenTransaction::handle), and
//!   [`commit`](OpenTransaction::commit) writes the completed record last. A crash leaves nothing: no claim, no effect.
//! - **Claim first.** The claim was won with [`Store::write_if`](crate::Store::write_if) and is visible to everybody; the
//!   handler's transaction comes from [`Transactional::open`], and `commit` carries the completing write, guarded by the
//!   attempt id. A holder that was taken over rolls back.
//!
//! What a caller may rely on, in both shapes: the record and the business writes are committed together or not at all, and
//! [`Committed::Yes`] is said only after the database said that this very transaction is committed. What it has to expect:
//! [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) from `commit`, which is settled by looking again (protocol 19).
//!
//! Nothing here may be dropped half way by a caller that goes on to decide: a `commit` that was polled once and dropped
//! still commits.

use std::future::{Future, ready};

use retrysafe_core::{
    address::Address,
    ids::{AttemptId, Fence},
    record::{Record, Write},
};

use crate::{ErrorKind, StoreError, journal::Notes};

/// A database that keeps records and business rows alike.
pub trait Transactional: Send + Sync + 'static {
    /// An open transaction.
    type Open: OpenTransaction;

    /// Opens a transaction that holds `address`, if what `opening` expects is there and nobody else holds it.
    ///
    /// Never waits for another holder. Serialization failures and deadlocks on the way are tried again here, a bounded
    /// number of times, since nothing of the caller's has run yet.
    fn begin(
        &self,
        address: &Address,
        opening: &Write,
    ) -> impl Future<Output = Result<Begun<Self::Open>, StoreError>> + Send;

    /// Opens a transaction that holds no address, for a claim that was won before.
    fn open(&self) -> impl Future<Output = Result<Self::Open, StoreError>> + Send;
}

/// The answer to [`Transactional::begin`]. Only the first carries a transaction: a caller that did not win holds nothing.
#[derive(Debug)]
pub enum Begun<O> {
    /// The address is held and the expectation is true, until the transaction ends.
    Won(O),
    /// The expectation is not true: this is there instead.
    Seen(Option<Record>),
    /// Another transaction holds the address, and nothing that is committed says more.
    Locked,
}

/// A transaction that the handler writes through. Dropping it rolls it back.
pub trait OpenTransaction: Send + Sized + 'static {
    /// What a handler runs its statements on.
    type Handle: Send + ?Sized;

    /// The driver's own connection, inside the transaction and behind its savepoint.
    fn handle(&mut self) -> &mut Self::Handle;

    /// Writes a row of the effect ledger in this transaction: `step` of the request at `address` has its effect here. Not
    /// unique, and not guarded by the claim: it is what tells a broken claim path (SPEC 10.3). Taken back by
    /// [`undo`](OpenTransaction::undo) with everything else.
    fn effect(
        &mut self,
        address: &Address,
        attempt: AttemptId,
        step: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        let _ = (address, attempt, step);
        ready(Err(StoreError::new(
            ErrorKind::Unavailable,
            "writing to an effect ledger that this store does not keep",
        )))
    }

    /// Writes `notes` of the request at `address` in this transaction: they are committed with everything else, guarded by
    /// the write that [`commit`](OpenTransaction::commit) is given. Taken back by [`undo`](OpenTransaction::undo).
    ///
    /// An entry whose place is taken fails, and the transaction with it.
    fn note(
        &mut self,
        address: &Address,
        notes: &Notes,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        let _ = (address, notes);
        ready(Err(StoreError::new(
            ErrorKind::Unavailable,
            "writing to a journal that this store does not keep",
        )))
    }

    /// Takes back everything that was done through the handle, and keeps the address.
    fn undo(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Applies `write` to `address` and commits. Checks that the transaction which is committed is the one that was begun:
    /// a handler, or the database after a deadlock, may have ended it (protocol 17).
    fn commit(
        self,
        address: &Address,
        write: &Write,
    ) -> impl Future<Output = Result<Committed, StoreError>> + Send;

    /// Gives everything up. A failure is not reported: the database rolls back what it loses.
    fn roll_back(self) -> impl Future<Output = ()> + Send;
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Committed {
    /// It is committed, with this fence.
    Yes(Fence),
    /// It is rolled back, all of it.
    No(Undone),
}

/// Why a transaction was rolled back at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Undone {
    /// The record is no longer what the write expects: the claim was taken over.
    Stale,
    /// The database chose another transaction (a serialization failure, a deadlock): the same work may succeed next time.
    Conflict,
    /// A constraint that is checked at the end does not hold: the same work fails again.
    Constraint,
    /// The transaction had ended before: a statement of the handler ended it, or the database did and the handler went on.
    Lost,
}
