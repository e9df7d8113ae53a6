//! Handlers that write through the transaction that holds their claim (design 4): rows, claim and answer are committed
//! together or not at all.
//!
//! Two shapes, chosen by the contract (`transaction = "one"` or `"claim_first"`), and two kinds of database: those that
//! implement [`Transactional`](retrysafe_store::transactional::Transactional), and SQLite, whose business part is a
//! synchronous closure on its writer thread. The ways meet here: whatever ran where, it [`Ended`], and the answer is made of
//! that and of nothing else. So no byte of it leaves before the commit that decided it (protocol 18).
//!
//! **The handler, not the status, chooses** (protocol 16): a reply commits what was written, whatever its status; a refusal
//! takes it back and keeps the record as the failure policy says; an error and a panic leave nothing.
//!
//! # Limits
//! - What a handler does outside of the transaction is not taken back by it. Nothing foreign belongs into one.
//! - In the shape `one` a claim is invisible until it commits: a mismatch shows only then, and there is no 202
//!   (protocol 12).

mod handle;
mod open;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::sync::Arc;

use http::{Response, StatusCode};
use retrysafe_core::{
    address::Address,
    codes::Code,
    decide::Refusal,
    fingerprint::Fingerprint,
    ids::AttemptId,
    record::{RecoveryClass, State},
};
use retrysafe_store::{Store, transactional::Undone};

pub use handle::Tx;

use crate::{
    body::Body,
    engine::RETRY_AFTER_OUTAGE,
    guard::{Guard, Job},
    plan::Plan,
};

/// How often an unknown commit is looked for before the caller is told to come again.
const LOOKS_MAX: u32 = 5;
/// The pause before the second look, doubled each time: a third of a second in all.
const LOOK_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// How a transaction with a handler's work in it ended.
pub(crate) enum Ended {
    /// It is committed, the answer with it.
    Committed { live: Response<Body>, status: u16 },
    /// The handler did not know; the record says so, and what was written is taken back.
    Held,
    /// It is rolled back, and the handler's answer is passed on. `None`: the caller is told to come again.
    Freed(Option<Response<Body>>),
    /// It is rolled back: a statement failed, or the database did.
    Failed,
    /// The database rolled it back at its end.
    Undone(Undone),
    /// What was written may be kept, and another attempt has the key: what stands is its result.
    Overtaken,
    /// Nobody knows yet (protocol 19). The answer, where it outlived that.
    Unknown(Option<Response<Body>>),
}

impl Ended {
    /// Nothing of it is kept, for certain.
    fn is_rolled_back(&self) -> bool {
        match self {
            Ended::Freed(_) | Ended::Failed | Ended::Undone(_) => true,
            Ended::Committed { .. } | Ended::Held | Ended::Overtaken | Ended::Unknown(_) => false,
        }
    }
}

/// What is known of the attempt that ended.
pub(crate) struct Attempted {
    pub(crate) attempt: AttemptId,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) ended: Ended,
}

impl Guard {
    /// Refuses to run `job` in a transaction on `database` where the contract does not say so, or where it is not the
    /// database that decides: that would be the silent failure that this crate exists against.
    pub(crate) fn refuse_to_transact<D: Store>(
        &self,
        job: &Job,
        database: &Arc<D>,
    ) -> Option<Response<Body>> {
        let endpoint = &job.plan.endpoint;
        let fault = if endpoint.recovery != RecoveryClass::Atomic {
            "a handler runs in a transaction where the contract does not say so; write recovery = \"atomic\""
        } else if !std::ptr::addr_eq(Arc::as_ptr(database), Arc::as_ptr(&self.engine.store)) {
            "a handler runs in a transaction of another database than the one its claims are in; pass the store that the \
             layer was built with"
        } else {
            return None;
        };
        tracing::error!(endpoint = %endpoint.name, "{fault}");
        Some(plain(StatusCode::INTERNAL_SERVER_ERROR))
    }

    /// The answer that may be sent now that it has ended.
    pub(crate) async fn answer_ended(&self, job: &Job, attempted: Attempted) -> Response<Body> {
        let Attempted { attempt, fingerprint, ended } = attempted;
        self.engine.meters.ended(&ended);
        let (plan, address) = (&job.plan, &job.address);
        match ended {
            Ended::Committed { live, status } => {
                self.ended(&plan.endpoint, address, job.resource.clone(), status).await;
                live
            }
            Ended::Held => self.refuse(Refusal::of(Code::OutcomeUnknown)),
            Ended::Freed(Some(live)) => live,
            // The handler panicked, and nothing of it is left.
            Ended::Freed(None) => self.refuse(Refusal::after(Code::UpstreamUnavailable, RETRY_AFTER_OUTAGE)),
            Ended::Failed | Ended::Undone(Undone::Conflict) => self.come_again(),
            Ended::Undone(Undone::Lost) => {
                tracing::error!(
                    endpoint = %plan.endpoint.name,
                    "the transaction was gone before its end: a statement of the handler ended it, or the database did and \
                     the handler went on; nothing of it is kept"
                );
                self.come_again()
            }
            // Coming again would fail again. Nothing of it is kept, and the key is free for a request that can be done.
            Ended::Undone(Undone::Constraint) => {
                tracing::error!(endpoint = %plan.endpoint.name, "a deferred constraint does not hold at the commit");
                plain(StatusCode::INTERNAL_SERVER_ERROR)
            }
            // All of it is rolled back, so where nobody else's attempt is there any more, the key is free.
            Ended::Undone(Undone::Stale) => match self.engine.store.load(address).await {
                Ok(Some(record)) => self.answer_standing(plan, &record, &fingerprint),
                Ok(None) | Err(_) => self.come_again(),
            },
            Ended::Overtaken => self.answer_stale(plan, address, &fingerprint).await,
            Ended::Unknown(live) => self.answer_unknown(plan, address, attempt, live).await,
        }
    }

    /// After a commit whose result is unknown: what is there decides, and absence decides nothing (protocol 19). Only a
    /// claim that is won may run again, so the caller is sent to make one.
    async fn answer_unknown(
        &self,
        plan: &Plan,
        address: &Address,
        attempt: AttemptId,
        live: Option<Response<Body>>,
    ) -> Response<Body> {
        let mut pause = LOOK_PAUSE;
        for look in 1..=LOOKS_MAX {
            if let Ok(Some(record)) = self.engine.store.load(address).await
                && record.attempt == attempt
            {
                match &record.state {
                    State::Completed { outcome, .. } => {
                        self.engine.waiters.wake(address);
                        return live.unwrap_or_else(|| self.replay(plan, outcome));
                    }
                    State::Uncertain { .. } => return self.refuse(Refusal::of(Code::OutcomeUnknown)),
                    // Claimed first, and its end is not there yet.
                    State::InFlight { .. } => {}
                }
            }
            if look < LOOKS_MAX {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
        tracing::warn!(endpoint = %plan.endpoint.name, %attempt, "whether a transaction was committed is not known");
        self.come_again()
    }

    /// Nothing was kept, or nobody knows: the same request with the same key finds out.
    fn come_again(&self) -> Response<Body> {
        self.refuse(Refusal::after(Code::StoreUnavailable, RETRY_AFTER_OUTAGE))
    }
}

fn plain(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
