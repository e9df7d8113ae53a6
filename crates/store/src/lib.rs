//! Where claims live.
//!
//! A store is one arbiter verb, [`Store::write_if`], and a few helpers around it (design 3). Policy is written once, above
//! it, in `retrysafe-core`; a backend only promises to apply a [`Write`] whole or not at all, and not to say `Yes` before
//! it is as durable as its [`Capability`] claims.
//!
//! Backends: [`memory`], `sqlite` (feature). Every backend passes the public suite in `conformance` (feature), gated by
//! its capability.

#![forbid(unsafe_code)]
// Without a backend, what the backends share has no user.
#![cfg_attr(not(any(feature = "memory", feature = "sqlite")), allow(dead_code))]

pub mod clock;
pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod doctor;
mod error;
pub mod journal;
#[cfg(feature = "mysql")]
pub mod mariadb;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(any(feature = "sqlite", feature = "sql"))]
mod meters;
#[cfg(feature = "sql")]
pub mod postgres;
#[cfg(feature = "sql")]
pub mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod transactional;
pub mod upkeep;

use std::{future::Future, pin::Pin, time::Duration};

use retrysafe_core::{
    address::{Account, Address, Namespace},
    contract::ClaimMethod,
    ids::{Fence, StatusId},
    orphans::Day,
    record::{Record, RemoveIf, ResourceId, State, Write},
    time::Wall,
};

pub use error::{ErrorKind, StoreError};

/// What a store call returns: boxed, so that a store can be chosen at run time.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A place that keeps records and arbitrates who changes them.
///
/// Every method may be called from many tasks at once. Dropping a returned future does not undo what it asked for: a
/// caller must treat a dropped write as one whose result is unknown (protocol 19).
pub trait Store: Send + Sync + 'static {
    /// What this store can promise. Constant for the life of the store.
    fn capability(&self) -> Capability;

    /// The store's clock: never behind an instant it has told or stored before, in any process (protocol 10). Fails
    /// with [`ErrorKind::ClockJumped`] once a jump beyond the bound was seen, until somebody acknowledges it.
    fn now(&self) -> Result<Wall, StoreError>;

    /// The record at `address`, as committed.
    fn load<'a>(&'a self, address: &'a Address) -> StoreFuture<'a, Option<Record>>;

    /// The record at `address`, as committed, where it can be told at once: without I/O, and as fresh as
    /// [`Store::load`] would tell it. `None` says nothing. A replay from a store in memory then makes no write ready to lose.
    fn at_hand(&self, _address: &Address) -> Option<Record> {
        None
    }

    /// Applies `write` if its expectation holds, atomically; otherwise returns what is there instead.
    ///
    /// Requires nothing of the caller's isolation. `Yes` means committed, and as durable as the capability says. An own
    /// write that was already applied (a re-sent or timed-out call: same attempt id in the same state as `next`) is
    /// `Yes` again, with the fence issued the first time (R6). A replay must not cost a write: an
    /// [`Expect::Absent`](retrysafe_core::record::Expect::Absent) on a present record is answered from a read.
    fn write_if<'a>(&'a self, address: &'a Address, write: &'a Write) -> StoreFuture<'a, Written>;

    /// Removes the record if `guard` holds. `false`: it was not there or not in that state.
    fn remove_if<'a>(&'a self, address: &'a Address, guard: RemoveIf) -> StoreFuture<'a, bool>;

    /// Records that need upkeep at `now`, oldest first, at most `limit`.
    fn due<'a>(&'a self, due: Due, now: Wall, limit: usize) -> StoreFuture<'a, Vec<(Address, Record)>>;

    /// The address behind a status id (protocol 31).
    fn locate<'a>(&'a self, namespace: &'a Namespace, status: StatusId) -> StoreFuture<'a, Option<Address>>;

    /// Ends the replay window of every completed record of `account` bound to `resource`: its `expires_at` becomes the
    /// earlier of what it is and `expires_at` (SPEC 3.2); `reap_at` is left. Returns how many records changed.
    fn end_resource<'a>(
        &'a self,
        namespace: &'a Namespace,
        account: &'a Account,
        resource: &'a ResourceId,
        expires_at: Wall,
    ) -> StoreFuture<'a, usize>;

    /// Records that match `filter`, by address, from after `cursor`; at most `limit`.
    fn list<'a>(
        &'a self,
        filter: &'a Filter,
        cursor: Option<&'a Address>,
        limit: usize,
    ) -> StoreFuture<'a, Vec<(Address, Record)>>;

    /// Counts of records by state, for metrics. May be approximate and a few seconds old.
    fn census<'a>(&'a self) -> StoreFuture<'a, Census>;

    /// Deletes at most `limit` completed records whose reap threshold has passed at `now`, each as
    /// [`RemoveIf::Reapable`] would; returns how many. `None`: this store has no better way than one by one, from
    /// [`Store::due`].
    fn reap_batch<'a>(&'a self, now: Wall, limit: usize) -> StoreFuture<'a, Option<usize>> {
        let _ = (now, limit);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// How long a statement of a handler's transaction may wait for a lock, or run. `None`: nobody holds one up.
    fn handler_waits(&self) -> Option<Duration> {
        None
    }

    /// How this store, as it was opened, arbitrates claims: every method whose promise it keeps (SPEC 4.2).
    fn claims_by(&self) -> &'static [ClaimMethod] {
        &[ClaimMethod::Unique]
    }

    /// How many rows of the effect ledger, written in `[from, to)`, repeat a row of the same (address, step) that is less
    /// than `within` older: effects that happened twice (SPEC 10.3). Counted from the ledger alone, which the claim path
    /// neither reads nor guards. `None`: this store keeps no ledger.
    fn duplicate_effects<'a>(
        &'a self,
        from: Wall,
        to: Wall,
        within: Duration,
    ) -> StoreFuture<'a, Option<u64>> {
        let _ = (from, to, within);
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Adds what one process counted since it last did: claims that were won and requests that were found abandoned, to the
    /// row of `day`. A count whose answer was lost is not added again: it is a rate that is looked at, not a sum.
    fn count_day<'a>(&'a self, day: Day) -> StoreFuture<'a, ()> {
        let _ = day;
        Box::pin(std::future::ready(Ok(())))
    }

    /// The days that were counted: the first ones, which are the baseline, and the latest.
    fn days<'a>(&'a self) -> StoreFuture<'a, Vec<Day>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// This store as one that keeps journals. `None`: requests of several steps cannot be guarded here.
    fn journals(&self) -> Option<&dyn journal::Journal> {
        None
    }

    /// Deletes at most `limit` rows of the effect ledger that were written before `before`. Returns how many.
    fn forget_effects<'a>(&'a self, before: Wall, limit: usize) -> StoreFuture<'a, usize> {
        let _ = (before, limit);
        Box::pin(std::future::ready(Ok(0)))
    }
}

/// How many of the first days, and of the latest, are read to tell a trend.
#[cfg(any(feature = "sqlite", feature = "sql"))]
pub(crate) const DAYS_READ: i64 = retrysafe_core::orphans::BASELINE_DAYS;

/// The answer to a conditional write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Written {
    /// Applied and committed. Carries the record's fence: newly issued for a claim, else the present one.
    Yes(Fence),
    /// Not applied; what is there instead (`None`: nothing is).
    No(Option<Record>),
}

/// What upkeep looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// In flight with a lease that has ended.
    LeaseEnded,
    /// Completed, with a reap threshold that has passed.
    Reapable,
}

impl Due {
    /// The state that such records are in.
    #[cfg(any(feature = "sqlite", feature = "sql"))]
    pub(crate) fn state(self) -> StateName {
        match self {
            Due::LeaseEnded => StateName::InFlight,
            Due::Reapable => StateName::Completed,
        }
    }
}

/// Which records to list.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Filter {
    /// Only this hop's.
    pub namespace: Option<Namespace>,
    /// Only this account's.
    pub account: Option<Account>,
    /// Only in this state.
    pub state: Option<StateName>,
    /// Only this endpoint's (`POST /orders`).
    pub endpoint: Option<Box<str>>,
}

/// The name of a state without its content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StateName {
    /// [`State::InFlight`](retrysafe_core::record::State::InFlight)
    InFlight,
    /// [`State::Uncertain`](retrysafe_core::record::State::Uncertain)
    Uncertain,
    /// [`State::Completed`](retrysafe_core::record::State::Completed)
    Completed,
}

impl StateName {
    /// The name of `state`.
    pub fn of(state: &State) -> Self {
        match state {
            State::InFlight { .. } => StateName::InFlight,
            State::Uncertain { .. } => StateName::Uncertain,
            State::Completed { .. } => StateName::Completed,
        }
    }
}

impl Filter {
    pub(crate) fn allows_address(&self, address: &Address) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| namespace == address.namespace())
            && self.account.as_ref().is_none_or(|account| account == address.account())
    }

    pub(crate) fn allows_record(&self, record: &Record) -> bool {
        self.state.is_none_or(|state| state == StateName::of(&record.state))
            && self.endpoint.as_ref().is_none_or(|endpoint| **endpoint == *record.endpoint)
    }
}

/// How many records are in each state.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Census {
    /// Claims held, or whose holder is lost but not yet judged.
    pub in_flight: u64,
    /// Uncertain records.
    pub uncertain: u64,
    /// Completed records, within their window or waiting to be reaped.
    pub completed: u64,
}

/// What a store can promise. `Contract::check` compares it with what the contract needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capability {
    /// Name for messages: `memory`, `sqlite`.
    pub name: &'static str,
    /// `Yes` survives a crash of the process.
    pub survives_process: bool,
    /// `Yes` survives a power cut.
    pub survives_power_cut: bool,
    /// `Yes` survives the failover to a replica (protocol 27).
    pub survives_failover: bool,
    /// Several processes may share it.
    pub shared: bool,
    /// A business transaction can commit with the claim.
    pub transactions: bool,
}

/// Whether `present` is the result of `next` having been applied before: the caller's own write whose reply was lost
/// (R6). Fence is left out: the store issues it.
pub(crate) fn is_own_write(write: &Write, present: &Record) -> Option<Fence> {
    let next = &write.next;
    let same = present.attempt == next.attempt
        && present.state == next.state
        && present.fingerprint == next.fingerprint
        && present.status_id == next.status_id;
    same.then_some(present.fence)
}
