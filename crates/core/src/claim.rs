//! A won claim: a value you must hold.
//!
//! A [`Claim`] cannot be cloned and is consumed by [`complete`](Claim::complete), [`hold`](Claim::hold) or
//! [`release`](Claim::release). Each yields a [`Settling`]: a conditional write to hand to the store, and then
//! [`Settling::settle`] with the store's answer. Only the holder, or the end of its lease, ends a claim; a waiter that gives
//! up never does (R2).
//!
//! ```compile_fail
//! # use retrysafe_core::claim::Claim;
//! fn settled_twice(claim: Claim) {
//!     let _ = claim.release();
//!     let _ = claim.release(); // the claim was given away above
//! }
//! ```
//!
//! A claim that is dropped is simply not renewed any more. That is deliberate: a drop tells nothing about whether the
//! effect happened (D9), so the end of the lease decides, by the record's recovery class.

use std::{sync::Arc, time::Duration};

use crate::{
    address::Address,
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence},
    outcome::Outcome,
    record::{Expect, Record, RecoveryClass, RemoveIf, ResourceId, State, Uncertainty, Write},
    time::Wall,
};

/// The right to run one request, until the lease ends.
#[derive(Debug)]
#[must_use = "a claim that is dropped blocks its key until the lease ends"]
pub struct Claim {
    address: Address,
    record: Record,
}

impl Claim {
    /// The claim that `write` won at `address`, with the fence the store issued. `None` when the write does not open a
    /// claim, so that nobody can make one out of a renewal.
    pub fn won(address: Address, write: &Write, fence: Fence) -> Option<Claim> {
        let record = Record { fence, ..write.next.clone() };
        let open = write.opens_claim() && matches!(record.state, State::InFlight { .. });
        open.then_some(Claim { address, record })
    }

    /// Where it is held.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Guards this holder's writes.
    pub fn attempt(&self) -> AttemptId {
        self.record.attempt
    }

    /// For downstream systems that compare it.
    pub fn fence(&self) -> Fence {
        self.record.fence
    }

    /// What the request was.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.record.fingerprint
    }

    /// What happens when this holder is lost; the record's own, not today's contract (protocol 8).
    pub fn recovery(&self) -> RecoveryClass {
        self.record.recovery
    }

    /// The write that keeps the claim until `now + lease`. It leaves the attempt id alone, so it never invalidates a
    /// completion that is under way (protocol 6); applied after one, or after a hold, it changes nothing.
    pub fn renewal(&self, now: Wall, lease: Duration) -> Write {
        renewal(&self.record, now, lease)
    }

    /// Ends the claim with its outcome.
    pub fn complete(
        self,
        outcome: Outcome,
        times: Times,
        resource: Option<ResourceId>,
        now: Wall,
    ) -> Settling {
        let write = self.own(completed(outcome, times, resource, now));
        Settling { address: self.address, change: Change::Write(Box::new(write)) }
    }

    /// Ends the claim as uncertain: it may have happened, and nobody runs it again by itself.
    pub fn hold(self, why: Uncertainty, now: Wall) -> Settling {
        let write = self.own(State::Uncertain { since: now, why });
        Settling { address: self.address, change: Change::Write(Box::new(write)) }
    }

    /// Ends the claim as if it had never been: nothing happened, or running again is safe.
    pub fn release(self) -> Settling {
        let guard = RemoveIf::Attempt(self.record.attempt);
        Settling { address: self.address, change: Change::Remove(guard) }
    }

    /// The end of this claim as a write that can ride in a business transaction (design 4, claim first). It is guarded by
    /// the attempt id like every end, so a holder that was taken over fails, and its rows go with it. The claim itself
    /// stays: it is renewed meanwhile, and released if the transaction was rolled back.
    pub fn in_transaction(&self) -> Opened {
        let expect = Expect::Attempt(self.record.attempt);
        Opened { opening: Write { expect, next: self.record.clone() } }
    }

    fn own(&self, state: State) -> Write {
        own_write(&self.record, state)
    }
}

/// A claim that lives in an open transaction and nowhere else (design 4, one transaction): nobody sees it before the
/// commit, which also makes it complete. So there is no lease, nothing to renew, and nothing to release: a transaction
/// that does not commit leaves no claim behind.
#[derive(Debug)]
#[must_use = "the transaction holds the key until it ends"]
pub struct Opened {
    opening: Write,
}

impl Opened {
    /// The claim that `opening` would win. `None` when the write does not open one. Only a transaction that holds the
    /// address's lock, or its row, may say that the expectation of `opening` holds.
    pub fn of(opening: Write) -> Option<Opened> {
        let open = opening.opens_claim() && matches!(opening.next.state, State::InFlight { .. });
        open.then_some(Opened { opening })
    }

    /// Guards the completing write.
    pub fn attempt(&self) -> AttemptId {
        self.opening.next.attempt
    }

    /// What has to be there when the transaction begins.
    pub fn expect(&self) -> Expect {
        self.opening.expect
    }

    /// What the request was.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.opening.next.fingerprint
    }

    /// What happens when this holder is lost, once there is a record.
    pub fn recovery(&self) -> RecoveryClass {
        self.opening.next.recovery
    }

    /// The one write of this claim: from what the opening expected straight to the completed record.
    pub fn complete(self, outcome: Outcome, times: Times, resource: Option<ResourceId>, now: Wall) -> Write {
        self.to(completed(outcome, times, resource, now))
    }

    /// The same, for a handler that says that it does not know: what it wrote is taken back, what it did elsewhere may
    /// have happened, and nobody runs it again by itself.
    pub fn hold(self, why: Uncertainty, now: Wall) -> Write {
        self.to(State::Uncertain { since: now, why })
    }

    fn to(self, state: State) -> Write {
        let Write { expect, next } = self.opening;
        Write { expect, next: Record { state, ..next } }
    }
}

/// The right to settle an uncertain record with evidence from elsewhere (a probe, a person), but not to run it. Guarded
/// by the original attempt, which may still settle it too: whoever comes first with a completed answer wins (protocol 9).
#[derive(Debug)]
pub struct Unsettled {
    address: Address,
    record: Record,
}

impl Unsettled {
    /// `None` unless `record` is uncertain.
    pub fn of(address: Address, record: Record) -> Option<Unsettled> {
        matches!(record.state, State::Uncertain { .. }).then_some(Unsettled { address, record })
    }

    /// The fence of the lost run. A probe that fences carries it (protocol 22).
    pub fn fence(&self) -> Fence {
        self.record.fence
    }

    /// It was done: this is its outcome.
    pub fn complete(&self, outcome: Outcome, times: Times, now: Wall) -> Settling {
        let write = own_write(&self.record, completed(outcome, times, None, now));
        Settling { address: self.address.clone(), change: Change::Write(Box::new(write)) }
    }

    /// It was not done and can no longer be: the next retry runs it. Only for evidence that fences.
    pub fn release(&self) -> Settling {
        Settling {
            address: self.address.clone(),
            change: Change::Remove(RemoveIf::Attempt(self.record.attempt)),
        }
    }
}

fn own_write(record: &Record, state: State) -> Write {
    Write { expect: Expect::Attempt(record.attempt), next: Record { state, ..record.clone() } }
}

fn renewal(record: &Record, now: Wall, lease: Duration) -> Write {
    let state = State::InFlight { lease_until: now.plus(lease) };
    Write { expect: Expect::Holding(record.attempt), ..own_write(record, state) }
}

fn completed(outcome: Outcome, times: Times, resource: Option<ResourceId>, now: Wall) -> State {
    let expires_at = now.plus(times.replay);
    State::Completed {
        outcome: Arc::new(outcome),
        at: now,
        expires_at,
        // Never before the window ends (SPEC 3.1), however the two were configured.
        reap_at: now.plus(times.reap).max(expires_at),
        resource,
    }
}

/// How long a completed record is replayed and kept, from completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// Length of the replay window.
    pub replay: Duration,
    /// How long the record is kept for people.
    pub reap: Duration,
}

/// A claim on its way to its end: hand [`change`](Settling::change) to the store. It can be offered more than once, since
/// a store recognises a write it has already applied.
#[derive(Debug)]
#[must_use = "nothing is settled until the store has applied it"]
pub struct Settling {
    address: Address,
    change: Change,
}

/// What the store is asked to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Apply this write.
    Write(Box<Write>),
    /// Remove the record.
    Remove(RemoveIf),
}

impl Settling {
    /// Where.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What.
    pub fn change(&self) -> &Change {
        &self.change
    }

    /// The write that keeps the claim until `now + lease`, while the store takes its time. `None` for a release: nobody
    /// has to be kept out of a key that is to be free.
    pub fn renewal(&self, now: Wall, lease: Duration) -> Option<Write> {
        let Change::Write(write) = &self.change else { return None };
        Some(renewal(&write.next, now, lease))
    }

    /// Ends it with what the store said: whether the change was applied. A holder that was taken over gets [`Stale`] and
    /// must not answer with its own result (R3).
    pub fn settle(self, applied: bool) -> Result<Settled, Stale> {
        if !applied {
            return Err(Stale);
        }
        Ok(match self.change {
            Change::Write(write) => match write.next.state {
                State::Completed { outcome, .. } => Settled::Stored(outcome),
                State::Uncertain { .. } | State::InFlight { .. } => Settled::Held,
            },
            Change::Remove(_) => Settled::Released,
        })
    }
}

/// How a claim ended. What is sent is what was stored, byte for byte (design 10.4).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Settled {
    /// With this outcome.
    Stored(Arc<Outcome>),
    /// As uncertain.
    Held,
    /// Removed.
    Released,
}

/// The claim was taken over: somebody else decides now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the claim was taken over by another attempt; its result stands, not this one's")]
pub struct Stale;
