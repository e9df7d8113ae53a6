//! The end of a claim: from what the work left behind to the answer that may be sent.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use retrysafe_core::{
    address::Address,
    claim::{Claim, Settled, Stale, Times},
    codes::Code,
    contract::Endpoint,
    decide::Refusal,
    outcome::Outcome,
    policy::{Answer, Effect, Settlement, settle},
    record::{RecoveryClass, ResourceId, Uncertainty},
};

use crate::{
    answer,
    body::Body,
    engine::{RETRY_AFTER_OUTAGE, SettleFault},
    guard::{Disposition, Guard, NoUpstreamAnswer, Ran},
    plan::Plan,
};

impl Guard {
    /// Settles the claim and gives the answer that may be sent *now that it is settled* (protocol 18).
    pub(crate) async fn finish(
        &self,
        claim: Claim,
        plan: &Plan,
        ran: Ran,
        ended: Option<ResourceId>,
        headers: Option<http::HeaderMap>,
    ) -> Response<Body> {
        let endpoint = &plan.endpoint;
        let address = claim.address().clone();
        let fingerprint = *claim.fingerprint();
        let now = match self.engine.store.now() {
            Ok(now) => now,
            Err(error) => return self.not_stored(&error),
        };
        let end = self.conclude(endpoint, claim.recovery(), ran);
        let released = matches!(end, End::Release(_));
        let (settling, live) = match end {
            End::Complete(Complete { outcome, times, resource, live, .. }) => {
                (claim.complete(outcome, times, resource, now), Some(live))
            }
            End::Release(live) => (claim.release(), live),
            End::Resend => (claim.release(), None),
            End::Hold(why) => (claim.hold(why, now), None),
        };
        match (self.engine.settle_own(settling, endpoint.windows.lease).await, live) {
            (Ok(Settled::Stored(outcome)), Some(live)) => {
                self.ended(endpoint, &address, ended, outcome.status).await;
                live
            }
            (Ok(Settled::Released), Some(live)) => live,
            (Ok(Settled::Released | Settled::Stored(_)), None) => {
                self.refuse(Refusal::after(Code::UpstreamUnavailable, RETRY_AFTER_OUTAGE))
            }
            (Ok(Settled::Held), _) => {
                let headers = headers.unwrap_or_default();
                match self.engine.store.load(&address).await {
                    Ok(Some(record)) => Box::pin(self.uncertain(plan, &address, record, &headers)).await,
                    Ok(None) | Err(_) => self.refuse(Refusal::of(Code::OutcomeUnknown)),
                }
            }
            (Err(SettleFault::Stale(Stale)), _) => {
                Box::pin(self.answer_stale(plan, &address, &fingerprint)).await
            }
            // Nothing happened and nothing was stored: the answer stands. Its key stays taken; what that means is
            // decided by the recovery class when the lease ends.
            (Err(SettleFault::Store(error)), live) => {
                live.filter(|_| released).unwrap_or_else(|| self.not_stored(&error))
            }
        }
    }

    /// What is to become of a claim of the class `recovery` (protocol 8: the record's, not the contract's), given what its
    /// work left behind.
    pub(crate) fn conclude(&self, endpoint: &Endpoint, recovery: RecoveryClass, ran: Ran) -> End {
        let settlement = match &ran {
            Ran::Answered { parts, body, .. } => self.judge(endpoint, recovery, parts, Some(body)),
            Ran::Unkept { parts, .. } => self.judge(endpoint, recovery, parts, None),
            Ran::Lost => lost(recovery, Uncertainty::UpstreamLost),
            Ran::Panicked => panicked(recovery),
        };
        match (settlement, ran) {
            (Settlement::Store { replay }, Ran::Answered { parts, body, trailers }) => {
                let outcome = answer::outcome(&parts, &body, trailers.as_ref(), &endpoint.headers);
                let keeps_effect = parts.extensions.get::<Effect>() != Some(&Effect::None);
                let live = Response::from_parts(parts, Body::full_with_trailers(body, trailers));
                End::Complete(Complete::of(endpoint, replay, outcome, live, keeps_effect))
            }
            (Settlement::Store { replay }, Ran::Unkept { parts, body, why }) => {
                self.engine.meters.tombstone();
                let outcome = answer::tombstone(&parts, why, &endpoint.headers);
                let keeps_effect = parts.extensions.get::<Effect>() != Some(&Effect::None);
                let live = Response::from_parts(parts, body);
                End::Complete(Complete::of(endpoint, replay, outcome, live, keeps_effect))
            }
            (Settlement::Release, ran) => End::Release(ran.into_response()),
            (Settlement::Resend, _) => End::Resend,
            (Settlement::Hold(why), _) => End::Hold(why),
            // `lost` and `panicked` never store.
            (Settlement::Store { .. }, Ran::Lost | Ran::Panicked) => End::Hold(Uncertainty::UpstreamLost),
        }
    }

    /// After a request that ends a resource: the windows bound to it end too, if it succeeded.
    pub(crate) async fn ended(
        &self,
        endpoint: &Endpoint,
        address: &Address,
        ended: Option<ResourceId>,
        status: u16,
    ) {
        if let (Some(resource), true) = (ended, status < 300) {
            Box::pin(self.end_resource(endpoint, address, &resource)).await;
        }
    }

    fn judge(
        &self,
        endpoint: &Endpoint,
        recovery: RecoveryClass,
        parts: &http::response::Parts,
        body: Option<&Bytes>,
    ) -> Settlement {
        match parts.extensions.get::<NoUpstreamAnswer>() {
            Some(NoUpstreamAnswer::NotSent) => return Settlement::Resend,
            Some(NoUpstreamAnswer::Lost) => return lost(recovery, Uncertainty::UpstreamLost),
            None => {}
        }
        if let Some(Disposition::Release) = parts.extensions.get::<Disposition>() {
            return Settlement::Release;
        }
        let effect = parts.extensions.get::<Effect>().copied();
        let answer = Answer { status: parts.status.as_u16(), body: body.map(Bytes::as_ref), effect };
        settle(endpoint, recovery, self.place, answer)
    }

    /// The effect may have happened and its result could not be stored (S14). Sending the result anyway would send what
    /// no replay will ever repeat.
    pub(crate) fn not_stored(&self, error: &dyn std::error::Error) -> Response<Body> {
        tracing::error!(%error, "a result was not stored; its key becomes uncertain when the lease ends");
        self.refuse(Refusal::of(Code::OutcomeUnknown))
    }

    /// The request that ends a resource also ends the replay windows bound to it, after a grace (SPEC 3.2).
    pub(crate) async fn end_resource(&self, endpoint: &Endpoint, address: &Address, resource: &ResourceId) {
        let Some(rule) = &endpoint.ends_resource else { return };
        let end = async {
            let expires_at = self.engine.store.now()?.plus(rule.grace);
            self.engine.store.end_resource(address.namespace(), address.account(), resource, expires_at).await
        };
        if let Err(error) = end.await {
            // The windows then end at their upper bound: later than wanted, which is the safe side.
            tracing::warn!(%error, endpoint = %endpoint.name, "the end of a resource was not recorded");
        }
    }
}

/// What is to become of a claim.
pub(crate) enum End {
    /// It completes with an answer.
    Complete(Complete),
    /// Nothing happened: it is freed, and the answer is passed on.
    Release(Option<Response<Body>>),
    /// Sending it again is safe: it is freed, and the caller is told to.
    Resend,
    /// Nobody knows what happened.
    Hold(Uncertainty),
}

/// How a claim completes, and what is sent then.
pub(crate) struct Complete {
    pub(crate) outcome: Outcome,
    pub(crate) times: Times,
    pub(crate) resource: Option<ResourceId>,
    pub(crate) live: Response<Body>,
    /// `false`: the handler refused, so what it wrote in the claim's transaction is taken back (protocol 16).
    pub(crate) keeps_effect: bool,
}

impl Complete {
    fn of(
        endpoint: &Endpoint,
        replay: Duration,
        outcome: Outcome,
        live: Response<Body>,
        keeps_effect: bool,
    ) -> Self {
        let (times, resource) = times(endpoint, replay, &outcome);
        Self { outcome, times, resource, live, keeps_effect }
    }
}

impl Ran {
    fn into_response(self) -> Option<Response<Body>> {
        match self {
            Ran::Answered { parts, body, trailers } => {
                Some(Response::from_parts(parts, Body::full_with_trailers(body, trailers)))
            }
            Ran::Unkept { parts, body, .. } => Some(Response::from_parts(parts, body)),
            Ran::Lost | Ran::Panicked => None,
        }
    }
}

/// The work is lost without an answer.
fn lost(recovery: RecoveryClass, why: Uncertainty) -> Settlement {
    match recovery {
        RecoveryClass::Deduplicated => Settlement::Resend,
        RecoveryClass::Atomic | RecoveryClass::Phased | RecoveryClass::Outside => Settlement::Hold(why),
    }
}

/// A panic tells nothing about the effect (D9), except where the effect is rolled back with its transaction.
fn panicked(recovery: RecoveryClass) -> Settlement {
    match recovery {
        RecoveryClass::Atomic => Settlement::Resend,
        other => lost(other, Uncertainty::Panicked),
    }
}

/// How long an outcome is replayed and kept, and the resource its window is bound to. A failure made no resource, and
/// keeps the time of its class.
pub(crate) fn times(endpoint: &Endpoint, replay: Duration, outcome: &Outcome) -> (Times, Option<ResourceId>) {
    let plain = Times { replay, reap: endpoint.windows.reap };
    let made_it = outcome.status < 400;
    let Some(bound) = endpoint.windows.resource.as_ref().filter(|_| made_it) else { return (plain, None) };
    match resource_of(&bound.id, outcome) {
        Some(resource) => (Times { replay: bound.at_most, ..plain }, Some(resource)),
        None => (plain, None),
    }
}

fn resource_of(pointer: &str, outcome: &Outcome) -> Option<ResourceId> {
    let retrysafe_core::outcome::Body::Kept(body) = &outcome.body else { return None };
    let document: serde_json::Value = serde_json::from_slice(body).ok()?;
    match document.pointer(pointer)? {
        serde_json::Value::String(text) => Some(ResourceId(text.as_str().into())),
        serde_json::Value::Number(number) => Some(ResourceId(number.to_string().into())),
        _ => None,
    }
}
