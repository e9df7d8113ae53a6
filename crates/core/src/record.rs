//! The record of one address, and the only way to change it.
//!
//! A record is what the store keeps for (namespace, account, key). It changes by a [`Write`]: a next record together
//! with the state it may replace. The store applies a write whole or not at all; that conditional write is the one
//! arbiter of who won (SPEC 4.1, design 3).
//!
//! **Why the guard is a random attempt id and not the fence** (protocol 6): B reads an expired claim; A completes under
//! its still current fence; B's takeover still matches that fence and runs the effect again. The attempt id changes
//! with every takeover, and a takeover tests attempt, state *and* expiry in one condition.

use std::sync::Arc;

use crate::{
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence, StatusId},
    outcome::Outcome,
    time::Wall,
};

/// What is known about one address. An absent record means: never received, or reaped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Guards every write of the holder. Set anew by each claim and takeover, kept by renewals (protocol 6).
    pub attempt: AttemptId,
    /// Grows with every claim; for downstream systems that compare it. Issued by the store, durably, before anybody
    /// sees it (protocol 7).
    pub fence: Fence,
    /// Random name of this operation in status URLs (protocol 31). Survives takeovers.
    pub status_id: StatusId,
    /// What the request was: verified with the version and key it was made with (F18).
    pub fingerprint: Fingerprint,
    /// What may be done when the holder disappears; stored, so that today's contract cannot change it (protocol 8).
    pub recovery: RecoveryClass,
    /// Version of the contract under which the claim was made (protocol 8).
    pub contract_version: u32,
    /// Method and path template of the endpoint, for people and metrics: `POST /orders`.
    pub endpoint: Arc<str>,
    /// When the first claim of this record was made.
    pub opened_at: Wall,
    /// Where the request is.
    pub state: State,
}

/// The three states in which a received request can be (SPEC 5.1); the uncertain one is in flight to the protocol,
/// and "needs a person or a probe" to everybody else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// Somebody holds the claim.
    InFlight {
        /// The holder renews this. Past it, the [`RecoveryClass`] says what happens.
        lease_until: Wall,
    },
    /// It may have happened, and nobody knows. Never expires, never re-run by itself (protocol 9, 21).
    Uncertain {
        /// When the holder was lost.
        since: Wall,
        /// What made it uncertain.
        why: Uncertainty,
    },
    /// Done; its answer is replayed until the window ends.
    Completed {
        /// The stored answer. Shared: a replay must not copy it.
        outcome: Arc<Outcome>,
        /// When it completed. The replay window starts here, not at the claim (protocol 9).
        at: Wall,
        /// Up to here (exclusive) the answer is replayed; from here on the same key is a new request (SPEC 3.3).
        expires_at: Wall,
        /// From here on the record may be deleted. Never before `expires_at` (SPEC 3.1).
        reap_at: Wall,
        /// The resource whose life the window is bound to (SPEC 3.2), if any.
        resource: Option<ResourceId>,
    },
}

/// The name of a resource that a replay window is bound to: the API's own id, as text.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ResourceId(pub Box<str>);

/// Why nobody knows what became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Uncertainty {
    /// The holder's lease ran out: it crashed, or hangs, after it may have caused the effect.
    HolderLost,
    /// The upstream took the request and gave no answer, or an answer that does not say what happened.
    UpstreamLost,
    /// The handler panicked.
    Panicked,
    /// The handler itself said that it does not know.
    Declared,
    /// The effect happened, but its result could not be stored (S14).
    ResultNotStored,
    /// A request of several steps cannot go on by itself; its journal says why.
    Stopped,
}

/// What a lost holder means (design 4, the table of takeovers).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecoveryClass {
    /// The effect commits with the claim or is guarded by its attempt id: taking over is safe, run again.
    Atomic,
    /// Resume from the last recovery point.
    Phased,
    /// The effect is outside (a gateway, a detached handler): uncertain, never run again by itself.
    Outside,
    /// Outside, but whoever executes it de-duplicates by the same key: sending again is safe.
    Deduplicated,
}

/// A conditional change of one address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// What must be there for the write to happen.
    pub expect: Expect,
    /// The record afterwards. For a claim ([`Write::opens_claim`]) the store replaces its fence by a new one.
    pub next: Record,
}

/// The state a write may replace. Each is tested by the store in one atomic step with the write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// Nothing is there.
    Absent,
    /// The holder's own: in flight or uncertain under this attempt. Never over a completed record, so that a late holder
    /// cannot disturb an answer that others may have replayed.
    Attempt(AttemptId),
    /// Renewing: in flight under this attempt, and nothing else. A renewal that was dropped can still arrive, and after a
    /// hold it would make an uncertain record look alive, with a lease whose end lets an atomic one run again.
    Holding(AttemptId),
    /// Taking over, or marking uncertain: in flight under this attempt *and* its lease ended at or before `expired_by`.
    Takeover {
        /// The attempt that was read.
        attempt: AttemptId,
        /// The reader's now.
        expired_by: Wall,
    },
    /// Starting anew: completed under this attempt *and* its window ended at or before `expired_by`.
    Expired {
        /// The attempt that was read.
        attempt: AttemptId,
        /// The reader's now.
        expired_by: Wall,
    },
}

/// What must be there for a record to be removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoveIf {
    /// Releasing: in flight or uncertain under this attempt.
    Attempt(AttemptId),
    /// Reaping: completed under this attempt and its reap threshold at or before `by`. Never an in-flight or uncertain
    /// record (T4).
    Reapable {
        /// The attempt that was read.
        attempt: AttemptId,
        /// The reaper's now.
        by: Wall,
    },
}

impl Record {
    /// The end of the lease, while the request is in flight.
    pub fn lease_until(&self) -> Option<Wall> {
        match self.state {
            State::InFlight { lease_until } => Some(lease_until),
            State::Uncertain { .. } | State::Completed { .. } => None,
        }
    }
}

impl Expect {
    /// Whether `seen` is what this write may replace. The one definition: every store that can run Rust at its
    /// arbitration point calls it, those that cannot (SQL, scripts) are tested against it.
    pub fn allows(&self, seen: Option<&Record>) -> bool {
        match (self, seen) {
            (Expect::Absent, None) => true,
            (Expect::Absent, Some(_)) | (_, None) => false,
            (Expect::Attempt(attempt), Some(record)) => {
                record.attempt == *attempt && !matches!(record.state, State::Completed { .. })
            }
            (Expect::Holding(attempt), Some(record)) => {
                record.attempt == *attempt && matches!(record.state, State::InFlight { .. })
            }
            (Expect::Takeover { attempt, expired_by }, Some(record)) => {
                record.attempt == *attempt
                    && matches!(record.state, State::InFlight { lease_until } if lease_until <= *expired_by)
            }
            (Expect::Expired { attempt, expired_by }, Some(record)) => {
                record.attempt == *attempt
                    && matches!(&record.state, State::Completed { expires_at, .. } if expires_at <= expired_by)
            }
        }
    }
}

impl Write {
    /// Whether this write starts an execution under a new attempt id, so that the store must issue a new fence.
    pub fn opens_claim(&self) -> bool {
        match self.expect {
            Expect::Absent => true,
            Expect::Attempt(attempt)
            | Expect::Holding(attempt)
            | Expect::Takeover { attempt, .. }
            | Expect::Expired { attempt, .. } => attempt != self.next.attempt,
        }
    }
}

impl RemoveIf {
    /// Whether `seen` may be removed.
    pub fn allows(&self, seen: &Record) -> bool {
        match *self {
            RemoveIf::Attempt(attempt) => {
                seen.attempt == attempt && !matches!(seen.state, State::Completed { .. })
            }
            RemoveIf::Reapable { attempt, by } => {
                seen.attempt == attempt
                    && matches!(&seen.state, State::Completed { reap_at, .. } if *reap_at <= by)
            }
        }
    }
}
