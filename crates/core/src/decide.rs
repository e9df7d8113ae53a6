//! What to do with a keyed request, given what the store holds for its address.
//!
//! [`decide`] is pure: the layer, the gateway, the simulator and the model checker call the same function. It runs
//! after authentication, key syntax, scope and body limit, and keeps the rest of the order of design 5: **mismatch before
//! in-flight** (F14: a caller told to wait would wait for a mismatch), in-flight, replay, claim.
//!
//! The first attempt is optimistic: with nothing known (`seen = None`) the answer is a claim that expects absence. Losing
//! it returns the present record, and a second call decides on that. So winner, replay and in-flight each cost one
//! round trip.
//!
//! ```
//! # use retrysafe_core::decide::*;
//! # use retrysafe_core::record::Expect;
//! # let (asked, rules, fresh, now) = retrysafe_core::decide::example();
//! match decide(None, &asked, &rules, fresh, now) {
//!     Decision::Claim(write) => assert_eq!(write.expect, Expect::Absent),
//!     other => panic!("nothing is there, so it is ours: {other:?}"),
//! }
//! ```

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use crate::{
    codes::Code,
    contract::{InFlight, InFlightAnswer},
    fingerprint::{Fingerprint, Match},
    ids::{AttemptId, Fence, StatusId},
    outcome::Outcome,
    record::{Expect, Record, RecoveryClass, State, Uncertainty, Write},
    time::Wall,
};

/// A keyed request, as far as the decision is concerned.
pub struct Asked<'a> {
    /// Its fingerprint under the current version and deployment key: what a new claim stores.
    pub fingerprint: Fingerprint,
    /// Compares a stored fingerprint with this request, with the version and key the stored one was made with (F18).
    pub verify: &'a (dyn Fn(&Fingerprint) -> Match + Sync),
    /// The caller sent `Prefer: respond-async` (protocol 31).
    pub prefers_async: bool,
}

/// What the contract says, as far as the decision is concerned.
#[derive(Clone, Debug)]
pub struct Rules<'a> {
    /// Name of the endpoint, for the record.
    pub endpoint: &'a Arc<str>,
    /// Version of the contract, for the record.
    pub contract_version: u32,
    /// Recovery class of new claims. Takeovers obey the record's own (protocol 8).
    pub recovery: RecoveryClass,
    /// Length of a lease.
    pub lease: Duration,
    /// The in-flight answer.
    pub in_flight: &'a InFlight,
}

/// Randomness for a claim.
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    /// Guards the new claim.
    pub attempt: AttemptId,
    /// Names a new operation in status URLs. A takeover keeps the old name.
    pub status_id: StatusId,
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Try to win with this write. Only its success permits running.
    Claim(Write),
    /// Answer with what the first run answered.
    Replay(Arc<Outcome>),
    /// Answer that it is in flight, refused, or unknown.
    Refuse(Refusal),
    /// Wait for the result, up to this long; then decide again, and refuse if it is still in flight.
    Wait(Duration),
    /// Answer 202 with this operation's status URL.
    Accept {
        /// Names the operation in the URL.
        status_id: StatusId,
        /// When to poll.
        retry_after: Duration,
    },
    /// It may have happened. Answer `idempotency_outcome_unknown`, unless a probe can settle this record now.
    Uncertain(Box<Record>),
    /// The holder is gone and nobody may run it again: write this (it marks the record uncertain), then decide again.
    MarkUncertain(Write),
}

/// One of the layer's own answers. Never stored (S3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What happened.
    pub code: Code,
    /// When trying again makes sense, for the codes where it does.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// A refusal without a time.
    pub fn of(code: Code) -> Self {
        Self { code, retry_after: None }
    }

    /// A refusal with a Retry-After.
    pub fn after(code: Code, retry_after: Duration) -> Self {
        Self { code, retry_after: Some(retry_after) }
    }
}

/// Decides. `now` is the store's clock.
pub fn decide(
    seen: Option<&Record>,
    asked: &Asked<'_>,
    rules: &Rules<'_>,
    fresh: Fresh,
    now: Wall,
) -> Decision {
    let Some(record) = seen else {
        return Decision::Claim(claim(Expect::Absent, None, asked, rules, fresh, now));
    };
    let attempt = record.attempt;

    // Past its window the key is free, whatever request it was (SPEC 3.3): not even a mismatch.
    if let State::Completed { expires_at, .. } = &record.state
        && *expires_at <= now
    {
        let expect = Expect::Expired { attempt, expired_by: now };
        return Decision::Claim(claim(expect, None, asked, rules, fresh, now));
    }

    match (asked.verify)(&record.fingerprint) {
        Match::Same => {}
        Match::Different => return Decision::Refuse(Refusal::of(Code::PayloadMismatch)),
        // Made by a version or key this build does not have. Guessing "same" could replay a stranger's answer, guessing
        // "different" would send an honest retry away for good: it may have happened is all that is true.
        Match::Unknown => return Decision::Refuse(Refusal::of(Code::OutcomeUnknown)),
    }

    match &record.state {
        State::Completed { outcome, .. } => Decision::Replay(outcome.clone()),
        State::Uncertain { .. } => Decision::Uncertain(Box::new(record.clone())),
        State::InFlight { lease_until } if now < *lease_until => in_flight(record, asked, rules.in_flight),
        State::InFlight { .. } => {
            let expect = Expect::Takeover { attempt, expired_by: now };
            match record.recovery {
                RecoveryClass::Atomic | RecoveryClass::Deduplicated | RecoveryClass::Phased => {
                    Decision::Claim(claim(expect, Some(record), asked, rules, fresh, now))
                }
                RecoveryClass::Outside => {
                    Decision::MarkUncertain(uncertain(record, expect, Uncertainty::HolderLost, now))
                }
            }
        }
    }
}

/// Decides about an address whose lock another transaction holds while nothing committed says more: its claim is
/// invisible, so a mismatch shows only once it has committed (protocol 12), and there is no name to poll it by.
pub fn locked(policy: &InFlight) -> Decision {
    match policy.answer {
        InFlightAnswer::Wait { at_most } => Decision::Wait(at_most),
        // `check` refuses a 202 for endpoints that complete in one transaction.
        InFlightAnswer::Refuse | InFlightAnswer::AcceptPreferred | InFlightAnswer::AcceptAlways => {
            Decision::Refuse(Refusal::after(Code::KeyInFlight, policy.retry_after))
        }
    }
}

fn in_flight(record: &Record, asked: &Asked<'_>, policy: &InFlight) -> Decision {
    let accept = Decision::Accept { status_id: record.status_id, retry_after: policy.retry_after };
    match policy.answer {
        InFlightAnswer::Wait { at_most } => Decision::Wait(at_most),
        InFlightAnswer::AcceptAlways => accept,
        // A client that reads 202 as success is misled, so only those that asked get it (protocol 31).
        InFlightAnswer::AcceptPreferred if asked.prefers_async => accept,
        InFlightAnswer::AcceptPreferred | InFlightAnswer::Refuse => {
            Decision::Refuse(Refusal::after(Code::KeyInFlight, policy.retry_after))
        }
    }
}

/// The record of a new claim. A takeover goes on under the terms of the first claim: its class and contract version are
/// kept (protocol 8), and so is its name in status URLs, which callers may be polling.
fn claim(
    expect: Expect,
    taken_over: Option<&Record>,
    asked: &Asked<'_>,
    rules: &Rules<'_>,
    fresh: Fresh,
    now: Wall,
) -> Write {
    let state = State::InFlight { lease_until: now.plus(rules.lease) };
    let next = match taken_over {
        Some(record) => Record { attempt: fresh.attempt, state, ..record.clone() },
        None => Record {
            attempt: fresh.attempt,
            fence: Fence::from_u64(0), // the store issues it (protocol 7)
            status_id: fresh.status_id,
            fingerprint: asked.fingerprint,
            recovery: rules.recovery,
            contract_version: rules.contract_version,
            endpoint: Arc::clone(rules.endpoint),
            opened_at: now,
            state,
        },
    };
    Write { expect, next }
}

/// The attempt id stays: the original attempt may still settle the record with its true result (protocol 9).
fn uncertain(record: &Record, expect: Expect, why: Uncertainty, now: Wall) -> Write {
    Write { expect, next: Record { state: State::Uncertain { since: now, why }, ..record.clone() } }
}

/// What upkeep does with a record that is due (T1, T4): it never reaps what is in flight or uncertain, and marks
/// abandoned work of the outside class, so that people see it even if no client ever retries.
pub fn upkeep(record: &Record, now: Wall) -> Upkeep {
    match &record.state {
        State::InFlight { lease_until }
            if *lease_until <= now && record.recovery == RecoveryClass::Outside =>
        {
            let expect = Expect::Takeover { attempt: record.attempt, expired_by: now };
            Upkeep::Mark(Box::new(uncertain(record, expect, Uncertainty::HolderLost, now)))
        }
        State::Completed { reap_at, .. } if *reap_at <= now => Upkeep::Reap(record.attempt),
        State::InFlight { .. } | State::Uncertain { .. } | State::Completed { .. } => Upkeep::Leave,
    }
}

/// See [`upkeep`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Upkeep {
    /// Nothing to do now.
    Leave,
    /// Mark it uncertain.
    Mark(Box<Write>),
    /// Delete it, guarded by this attempt and its reap threshold.
    Reap(AttemptId),
}

/// Arguments of a first request, for the doctests.
#[doc(hidden)]
pub fn example() -> (Asked<'static>, Rules<'static>, Fresh, Wall) {
    const POLICY: InFlight = InFlight { answer: InFlightAnswer::Refuse, retry_after: Duration::from_secs(1) };
    let asked = Asked {
        fingerprint: Fingerprint::from_bytes(&[7; 37]).unwrap_or_else(|| unreachable!()),
        verify: &|_| Match::Same,
        prefers_async: false,
    };
    static ENDPOINT: LazyLock<Arc<str>> = LazyLock::new(|| "POST /orders".into());
    let rules = Rules {
        endpoint: &ENDPOINT,
        contract_version: 1,
        recovery: RecoveryClass::Outside,
        lease: Duration::from_secs(30),
        in_flight: &POLICY,
    };
    let fresh = Fresh { attempt: AttemptId::new(1), status_id: StatusId::new(2) };
    (asked, rules, fresh, Wall::from_unix_ms(1_000_000))
}
