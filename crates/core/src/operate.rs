//! What a person may do about a key: resume it, resolve it, release it.
//!
//! Three different verbs, because they say three different things (design 7): *go on from the recovery point*, *it was done
//! and this is the outcome*, *it was not done and the next retry runs it from its beginning*. Each is a conditional write like
//! any other, guarded by the state that was read. None of them touches a claim whose lease is alive: its holder may be about
//! to answer, and a person who looks at a screen cannot know.
//!
//! ```
//! # use retrysafe_core::{ids::AttemptId, operate::{self, Refused, Standing}, record::*, time::Wall};
//! # use std::time::Duration;
//! # let (_, rules, fresh, now) = retrysafe_core::decide::example();
//! # let fingerprint = retrysafe_core::fingerprint::Fingerprint::from_parts(1, 1, [0; 32]);
//! # let record = Record {
//! #     attempt: fresh.attempt, fence: retrysafe_core::ids::Fence::from_u64(1), status_id: fresh.status_id, fingerprint,
//! #     recovery: RecoveryClass::Phased, contract_version: 1, endpoint: rules.endpoint.clone(), opened_at: now,
//! #     state: State::InFlight { lease_until: now.plus(Duration::from_secs(30)) },
//! # };
//! // Somebody works on it.
//! assert!(matches!(operate::release(&record, AttemptId::new(9), now), Err(Refused::Held { .. })));
//! // Nobody does any more.
//! let later = now.plus(Duration::from_secs(31));
//! assert_eq!(operate::standing(&record, later), Standing::Abandoned);
//! assert!(operate::release(&record, AttemptId::new(9), later).is_ok());
//! ```
//!
//! # Limits
//! - A released key runs again *with the first run perhaps still on its way*, and its foreign calls get other downstream keys.
//!   Nothing here can know whether that is right; whoever says it takes the responsibility, which is why it is logged.

use std::sync::Arc;

use crate::{
    claim::Times,
    ids::AttemptId,
    outcome::Outcome,
    record::{Expect, Record, RecoveryClass, RemoveIf, State, Uncertainty, Write},
    recovery::{Progress, StepName},
    time::Wall,
};

/// Where a record is, as far as a person is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Standing {
    /// Somebody works on it until then, or longer.
    Held {
        /// The end of the lease.
        until: Wall,
    },
    /// It is in flight, and nobody has kept its lease.
    Abandoned,
    /// Nobody knows what became of it.
    Uncertain,
    /// It is done and replayed.
    Completed,
    /// It is done, its window is over, and it waits to be reaped.
    Expired,
}

impl Standing {
    /// One word for it.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Held { .. } => "in_flight",
            Standing::Abandoned => "abandoned",
            Standing::Uncertain => "uncertain",
            Standing::Completed => "completed",
            Standing::Expired => "expired",
        }
    }
}

/// Why a person may not do that.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// A claim under a live lease is its holder's.
    #[error("somebody works on it, and its lease is alive; look again when that has ended")]
    Held {
        /// The end of the lease.
        until: Wall,
    },
    /// What is done is done: its answer may have been replayed.
    #[error("it is completed, and its answer may have been replayed; nothing is left to be decided")]
    Completed,
    /// There is no recovery point to go on from.
    #[error(
        "its endpoint is not of several steps, so there is no point to go on from; find out what happened, then resolve or \
         release it"
    )]
    NotOfSteps,
    /// Nothing of that step is waiting to be found out.
    #[error("no call of that step is waiting for its result; `retrysafe keys show` tells which is")]
    NoSuchCall,
}

/// Where `record` is.
pub fn standing(record: &Record, now: Wall) -> Standing {
    match &record.state {
        State::InFlight { lease_until } if now < *lease_until => Standing::Held { until: *lease_until },
        State::InFlight { .. } => Standing::Abandoned,
        State::Uncertain { .. } => Standing::Uncertain,
        State::Completed { expires_at, .. } if now < *expires_at => Standing::Completed,
        State::Completed { .. } => Standing::Expired,
    }
}

/// The write after which a completer, or the caller's retry, goes on with `record` from its recovery point: in flight, with
/// nobody's lease. A new attempt id, so that of two people one wins, and a holder that comes back late is refused.
///
/// # Errors
/// [`Refused`] says why not.
pub fn resume(record: &Record, attempt: AttemptId, now: Wall) -> Result<Write, Refused> {
    let expect = undecided(record, now)?;
    if record.recovery != RecoveryClass::Phased {
        return Err(Refused::NotOfSteps);
    }
    let state = State::InFlight { lease_until: now };
    Ok(Write { expect, next: Record { attempt, state, ..record.clone() } })
}

/// The write after which somebody goes on with `record`, whose call of `step` a person looked up at the provider: to be
/// committed together with its [`Event::Result`](crate::recovery::Event::Result). As [`resume`] otherwise.
///
/// # Errors
/// [`Refused`] says why not.
pub fn resolve_call(
    record: &Record,
    progress: &Progress,
    step: &StepName,
    attempt: AttemptId,
    now: Wall,
) -> Result<Write, Refused> {
    let write = resume(record, attempt, now)?;
    progress.intent(step).map(|_| write).ok_or(Refused::NoSuchCall)
}

/// The write that settles `record` with an outcome that a person found out. The attempt id stays, as it does when the
/// holder itself comes back with the answer (protocol 9); whoever is first is believed.
///
/// # Errors
/// [`Refused`] says why not.
pub fn resolve(record: &Record, outcome: Outcome, times: Times, now: Wall) -> Result<Write, Refused> {
    let expect = undecided(record, now)?;
    let expires_at = now.plus(times.replay);
    let state = State::Completed {
        outcome: Arc::new(outcome),
        at: now,
        expires_at,
        // Never before the window ends (SPEC 3.1).
        reap_at: now.plus(times.reap).max(expires_at),
        resource: None,
    };
    Ok(Write { expect, next: Record { state, ..record.clone() } })
}

/// How the key of `record` is freed: first it becomes the person's own, under a new attempt id, in the commit that logs the
/// act; then it goes. So nothing is freed that is not in the log, a holder that comes back in between is refused, and a
/// release that was cut in two leaves an uncertain record that can be released again.
///
/// # Errors
/// [`Refused`] says why not.
pub fn release(record: &Record, attempt: AttemptId, now: Wall) -> Result<(Write, RemoveIf), Refused> {
    let expect = undecided(record, now)?;
    let state = match record.state {
        State::Uncertain { since, why } => State::Uncertain { since, why },
        State::InFlight { .. } | State::Completed { .. } => {
            State::Uncertain { since: now, why: Uncertainty::HolderLost }
        }
    };
    let write = Write { expect, next: Record { attempt, state, ..record.clone() } };
    Ok((write, RemoveIf::Attempt(attempt)))
}

/// What has to be there still for a person to decide.
fn undecided(record: &Record, now: Wall) -> Result<Expect, Refused> {
    match standing(record, now) {
        Standing::Held { until } => Err(Refused::Held { until }),
        Standing::Completed | Standing::Expired => Err(Refused::Completed),
        Standing::Abandoned => Ok(Expect::Takeover { attempt: record.attempt, expired_by: now }),
        // No attempt id is in flight again once it was uncertain: resuming makes a new one.
        Standing::Uncertain => Ok(Expect::Attempt(record.attempt)),
    }
}
