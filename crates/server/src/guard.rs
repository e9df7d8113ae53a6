//! One keyed request from claim to answer.
//!
//! Everything from the claim on runs in a task of its own that nobody can cancel: a client that disconnects, a timeout
//! layer outside or a stream reset drops only the *wait* for the answer (D1, D2). A request that was dropped between its
//! effect and its record is how retries run twice.

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, request::Parts};
use http_body::Body as HttpBody;
use retrysafe_core::{
    address::Address,
    claim::{Claim, Settled, Stale, Times, Unsettled},
    codes::Code,
    contract::{Endpoint, InFlightAnswer, StoreDown, WhenAbsent},
    decide::{Asked, Refusal},
    fingerprint::{Fingerprint, FingerprintInput, FingerprintKeys, Match, compute, verify},
    ids::Fence,
    outcome::{NotKept, Outcome},
    policy::{Answer, Effect, Place, Settlement, settle},
    record::{Record, RecoveryClass, ResourceId, State, Uncertainty},
};
use retrysafe_store::ErrorKind;
use tokio_util::task::TaskTracker;

use crate::{
    answer,
    body::{Body, BoxError, Collected, collect},
    engine::{Claimed, Engine, Held, RETRY_AFTER_OUTAGE, SettleFault},
    inquire::Inquire,
    plan::Plan,
    respond::Responder,
};

/// How much longer than waiting and working may take a caller is kept, for the store to claim and to complete.
const STORE_GRACE: Duration = Duration::from_secs(10);

/// What a handler or a proxy finds in the extensions of a keyed request.
#[derive(Clone, Debug)]
pub struct Guarded {
    /// For downstream systems that compare it; forwarded by the gateway. Zero where the contract lets requests run
    /// without a claim while the store is down.
    pub fence: Fence,
    /// The request's address; its key goes downstream unchanged.
    pub address: Address,
}

/// Put into a *response's* extensions by a proxy that got no answer from its upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoUpstreamAnswer {
    /// No byte of the request was sent: nothing can have happened.
    NotSent,
    /// It was sent, in part or whole, and no complete answer came back.
    Lost,
}

/// Put into a *response's* extensions by a handler that rules over the failure policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disposition {
    /// Free the key, whatever the policy says about the status.
    Release,
}

/// Everything the layer shares between requests.
pub(crate) struct Guard {
    pub(crate) engine: Engine,
    pub(crate) plans: HashMap<Box<str>, Arc<Plan>>,
    pub(crate) keys: FingerprintKeys,
    pub(crate) place: Place,
    pub(crate) respond: Responder,
    pub(crate) inquire: Option<Arc<dyn Inquire>>,
    pub(crate) tasks: TaskTracker,
}

/// A keyed request that was admitted: identified, read whole, not yet claimed.
pub(crate) struct Job {
    pub(crate) plan: Arc<Plan>,
    pub(crate) address: Address,
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    /// Path and query as the client sent them, whatever nested routers left in `parts`.
    pub(crate) path: Box<str>,
    pub(crate) query: Option<Box<str>>,
    /// Values of the path template.
    pub(crate) resource: Option<ResourceId>,
    pub(crate) prefers_async: bool,
    /// When its caller stops waiting, if it said so.
    pub(crate) deadline: Option<tokio::time::Instant>,
}

/// What the work left behind.
enum Ran {
    Answered {
        parts: http::response::Parts,
        body: Bytes,
        trailers: Option<http::HeaderMap>,
    },
    /// Longer than the limit, or a stream by its nature.
    Unkept {
        parts: http::response::Parts,
        body: Body,
        why: NotKept,
    },
    /// No answer, or one that broke off.
    Lost,
    Panicked,
}

impl Guard {
    /// Runs `job` detached and waits for its answer. `work` runs at most once, and only with a won claim.
    pub(crate) async fn run<W, F, B, E>(self: Arc<Self>, job: Box<Job>, work: W) -> Response<Body>
    where
        W: FnOnce(Request<Body>) -> F + Send + 'static,
        F: Future<Output = Result<Response<B>, E>> + Send + 'static,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        E: Send + 'static,
    {
        let guard = Arc::clone(&self);
        let in_flight = &job.plan.endpoint.in_flight;
        let retry_after = in_flight.retry_after;
        let waits = match in_flight.answer {
            InFlightAnswer::Wait { at_most } => at_most,
            InFlightAnswer::Refuse | InFlightAnswer::AcceptPreferred | InFlightAnswer::AcceptAlways => {
                Duration::ZERO
            }
        };
        let patience = waits.saturating_add(self.engine.contract.answer_timeout).saturating_add(STORE_GRACE);
        let span = tracing::Span::current();
        // Boxed before anything wraps it: the wrappers would each copy some kilobytes.
        let task = Box::pin(async move { guard.claim_and_run(job, work).await });
        let task = tracing::Instrument::instrument(task, span);
        match tokio::time::timeout(patience, self.tasks.spawn(task)).await {
            Ok(Ok(response)) => response,
            // Only a bug in this layer can panic here: handlers are caught inside. Whatever happened is not known.
            Ok(Err(_)) => self.refuse(Refusal::of(Code::OutcomeUnknown)),
            // A handler that hangs: it goes on, and its caller is told what every other caller is told. Once the lease
            // has ended too, the next attempt learns what the record has become.
            Err(_) => self.refuse(Refusal::after(Code::KeyInFlight, retry_after)),
        }
    }

    async fn claim_and_run<W, F, B, E>(&self, job: Box<Job>, work: W) -> Response<Body>
    where
        W: FnOnce(Request<Body>) -> F + Send,
        F: Future<Output = Result<Response<B>, E>> + Send,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let claimed = {
            let selected = job.plan.selected_headers(&job.parts.headers);
            let input = job.input(&selected);
            let fingerprint = compute(&input, self.keys.current());
            let verify = |stored: &Fingerprint| match *stored == fingerprint {
                true => Match::Same,
                false => verify(stored, &input, &self.keys),
            };
            let asked = Asked { fingerprint, verify: &verify, prefers_async: job.prefers_async };
            self.engine.claim(&job.plan.endpoint, &job.address, &asked, job.deadline).await
        };
        match claimed {
            Ok(Claimed::Run(held)) => self.execute(*held, job, work).await,
            Ok(other) => {
                // Not the winner: this answer tells something about another request, so the caller must be allowed to see
                // it (K4; protocol 1: replay, mismatch and in-flight alike).
                if let Err(refused) = self.authorise(&job.plan, &job.parts).await {
                    return refused;
                }
                match other {
                    Claimed::Replay(outcome) => self.replay(&job.plan, &outcome),
                    other => Box::pin(self.answer_loser(other, &job)).await,
                }
            }
            Err(error) => {
                tracing::error!(%error, endpoint = %job.plan.endpoint.name, "the store failed a claim");
                match (error.kind(), job.plan.endpoint.store_down) {
                    // The store is there, and so is a record that this build cannot read (S20): it may have happened.
                    (ErrorKind::UnknownVersion | ErrorKind::Corrupt, _) => {
                        self.refuse(Refusal::of(Code::OutcomeUnknown))
                    }
                    (_, StoreDown::Closed) => {
                        self.refuse(Refusal::after(Code::StoreUnavailable, RETRY_AFTER_OUTAGE))
                    }
                    (_, StoreDown::Open) => {
                        self.engine.meters.ran_open();
                        Box::pin(self.unguarded(job, work)).await
                    }
                }
            }
        }
    }

    /// The contract says that this endpoint is rather run twice than not at all (O1).
    async fn unguarded<W, F, B, E>(&self, job: Box<Job>, work: W) -> Response<Body>
    where
        W: FnOnce(Request<Body>) -> F,
        F: Future<Output = Result<Response<B>, E>>,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let mut parts = job.parts;
        // No claim, so no fence: the lowest there is, which whoever compares fences refuses.
        parts.extensions.insert(Guarded { fence: Fence::from_u64(0), address: job.address });
        match work(Request::from_parts(parts, Body::full(job.body))).await {
            Ok(response) => response.map(Body::stream),
            Err(_) => self.refuse(Refusal::of(Code::OutcomeUnknown)),
        }
    }

    async fn execute<W, F, B, E>(&self, held: Held, job: Box<Job>, work: W) -> Response<Body>
    where
        W: FnOnce(Request<Body>) -> F + Send,
        F: Future<Output = Result<Response<B>, E>> + Send,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Held { claim, permit: _permit } = held;
        let Job { plan, address, mut parts, body, resource, .. } = *job;
        let endpoint = &plan.endpoint;
        let _running = self.engine.meters.running();
        parts.extensions.insert(Guarded { fence: claim.fence(), address });
        let headers = endpoint_needs_headers(endpoint).then(|| parts.headers.clone());
        let request = Request::from_parts(parts, Body::full(body));
        let limit = endpoint.limits.response_body_max;
        let work = AssertUnwindSafe(async move {
            match work(request).await {
                Ok(response) => read_answer(response, limit).await,
                Err(_) => Ran::Lost,
            }
        })
        .catch_unwind();
        let longest = self.engine.contract.answer_timeout;
        let lease = endpoint.windows.lease;
        let renewal = |now| Some(claim.renewal(now, lease));
        let ran = self.engine.keep(claim.address(), renewal, lease, longest, work).await;
        let ran = ran.unwrap_or_else(|_| {
            self.engine.meters.panicked();
            tracing::error!(endpoint = %plan.endpoint.name, attempt = %claim.attempt(), "the handler panicked");
            Ran::Panicked
        });
        self.finish(claim, &plan, ran, resource, headers).await
    }

    /// Settles the claim and gives the answer that may be sent *now that it is settled* (protocol 18).
    async fn finish(
        &self,
        claim: Claim,
        plan: &Plan,
        ran: Ran,
        ended: Option<ResourceId>,
        headers: Option<http::HeaderMap>,
    ) -> Response<Body> {
        let endpoint = &plan.endpoint;
        let recovery = claim.recovery();
        let address = claim.address().clone();
        let fingerprint = *claim.fingerprint();
        let settlement = match &ran {
            Ran::Answered { parts, body, .. } => self.judge(endpoint, recovery, parts, Some(body)),
            Ran::Unkept { parts, .. } => self.judge(endpoint, recovery, parts, None),
            Ran::Lost => lost(recovery, Uncertainty::UpstreamLost),
            Ran::Panicked => panicked(recovery),
        };
        let now = match self.engine.store.now() {
            Ok(now) => now,
            Err(error) => return self.not_stored(&error),
        };
        let (settling, live) = match (settlement, ran) {
            (Settlement::Store { replay }, Ran::Answered { parts, body, trailers }) => {
                let outcome = answer::outcome(&parts, body.clone(), trailers.as_ref(), &endpoint.headers);
                let (times, resource) = times(endpoint, replay, &outcome);
                let live = Response::from_parts(parts, Body::full_with_trailers(body, trailers));
                (claim.complete(outcome, times, resource, now), Some(live))
            }
            (Settlement::Store { replay }, Ran::Unkept { parts, body, why }) => {
                self.engine.meters.tombstone();
                let outcome = answer::tombstone(&parts, why, &endpoint.headers);
                let (times, resource) = times(endpoint, replay, &outcome);
                (claim.complete(outcome, times, resource, now), Some(Response::from_parts(parts, body)))
            }
            (Settlement::Release, ran) => (claim.release(), ran.into_response()),
            (Settlement::Resend, _) => (claim.release(), None),
            (Settlement::Hold(why), _) => (claim.hold(why, now), None),
            // `lost` and `panicked` never store.
            (Settlement::Store { .. }, Ran::Lost | Ran::Panicked) => {
                (claim.hold(Uncertainty::UpstreamLost, now), None)
            }
        };
        match (self.engine.settle_own(settling, endpoint.windows.lease).await, live) {
            (Ok(Settled::Stored(outcome)), Some(live)) => {
                if let (Some(resource), true) = (ended, outcome.status < 300) {
                    Box::pin(self.end_resource(endpoint, &address, &resource)).await;
                }
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
            (Err(SettleFault::Store(error)), live) => match settlement {
                // Nothing happened and nothing was stored: the answer stands. Its key stays taken; what that means is
                // decided by the recovery class when the lease ends.
                Settlement::Release => live.unwrap_or_else(|| self.not_stored(&error)),
                Settlement::Store { .. } | Settlement::Resend | Settlement::Hold(_) => {
                    self.not_stored(&error)
                }
            },
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
    fn not_stored(&self, error: &dyn std::error::Error) -> Response<Body> {
        tracing::error!(%error, "a result was not stored; its key becomes uncertain when the lease ends");
        self.refuse(Refusal::of(Code::OutcomeUnknown))
    }

    async fn answer_loser(&self, claimed: Claimed, job: &Job) -> Response<Body> {
        match claimed {
            Claimed::Replay(outcome) => self.replay(&job.plan, &outcome),
            Claimed::Refuse(refusal) => self.refuse(refusal),
            Claimed::Accept { status_id, retry_after } => {
                self.engine.meters.accepted();
                self.respond.accepted(&self.engine.contract.status_path, status_id, retry_after)
            }
            Claimed::Uncertain(record) => {
                self.uncertain(&job.plan, &job.address, *record, &job.parts.headers).await
            }
            Claimed::Run(held) => {
                // `claim_and_run` runs what was won; a claim that came here is given back, not run.
                let _ = self.engine.settle(held.claim.release()).await;
                self.refuse(Refusal::after(Code::KeyInFlight, RETRY_AFTER_OUTAGE))
            }
        }
    }

    /// A holder that was taken over answers with what stands now, never with its own result (R3). What stands may be
    /// another request's, if the key was freed and used again meanwhile.
    async fn answer_stale(
        &self,
        plan: &Plan,
        address: &Address,
        fingerprint: &Fingerprint,
    ) -> Response<Body> {
        match self.engine.store.load(address).await {
            Ok(Some(record)) if record.fingerprint != *fingerprint => {
                self.refuse(Refusal::of(Code::OutcomeUnknown))
            }
            Ok(Some(Record { state: State::Completed { outcome, .. }, .. })) => self.replay(plan, &outcome),
            Ok(Some(Record { state: State::InFlight { .. }, .. })) => {
                self.refuse(Refusal::after(Code::KeyInFlight, plan.endpoint.in_flight.retry_after))
            }
            Ok(_) | Err(_) => self.refuse(Refusal::of(Code::OutcomeUnknown)),
        }
    }

    pub(crate) fn replay(&self, plan: &Plan, outcome: &Arc<Outcome>) -> Response<Body> {
        match answer::replay(outcome, plan.replay_marker.as_ref()) {
            Some(response) => {
                self.engine.meters.replayed();
                response
            }
            None => self.refuse(Refusal::of(Code::ResponseNotKept)),
        }
    }

    /// Answers for an uncertain record: asks the probe, if the contract has one, whether it can be settled now.
    pub(crate) async fn uncertain(
        &self,
        plan: &Plan,
        address: &Address,
        record: Record,
        headers: &http::HeaderMap,
    ) -> Response<Body> {
        let unknown = || self.refuse(Refusal::of(Code::OutcomeUnknown));
        let (Some(probe), Some(inquire)) = (&plan.endpoint.probe, &self.inquire) else { return unknown() };
        let fingerprint = record.fingerprint;
        let Some(unsettled) = Unsettled::of(address.clone(), record) else { return unknown() };
        let path = crate::probe::path(probe, address.key(), unsettled.fence());
        let found = crate::probe::ask(inquire.as_ref(), probe, &path, headers).await;
        let Ok(now) = self.engine.store.now() else { return unknown() };
        let settling = match found {
            crate::probe::Found::Done(parts, body) => {
                let outcome = answer::outcome(&parts, body, None, &plan.endpoint.headers);
                let (times, _) = times(&plan.endpoint, plan.endpoint.windows.replay, &outcome);
                unsettled.complete(outcome, times, now)
            }
            crate::probe::Found::Absent if probe.when_absent == WhenAbsent::Release => unsettled.release(),
            // "Absent" alone never permits a re-run: the first run may still be on its way (protocol 22).
            crate::probe::Found::Absent | crate::probe::Found::Unclear => return unknown(),
        };
        match self.engine.settle(settling).await {
            Ok(Settled::Stored(outcome)) => self.replay(plan, &outcome),
            Ok(Settled::Released) => {
                self.refuse(Refusal::after(Code::UpstreamUnavailable, RETRY_AFTER_OUTAGE))
            }
            Ok(Settled::Held) => unknown(),
            // Somebody else settled it first; what they wrote stands.
            Err(SettleFault::Stale(Stale)) => self.answer_stale(plan, address, &fingerprint).await,
            Err(SettleFault::Store(error)) => self.not_stored(&error),
        }
    }

    /// Asks whether this caller may see answers of this endpoint, where this hop cannot know by itself.
    pub(crate) async fn authorise(&self, plan: &Plan, parts: &Parts) -> Result<(), Response<Body>> {
        let (Some(rule), Some(inquire)) = (&plan.endpoint.reauthorise, &self.inquire) else { return Ok(()) };
        match inquire.get(&rule.path, &parts.headers).await {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) if matches!(answer.status().as_u16(), 401 | 403) => Err(answer.map(Body::full)),
            Ok(_) | Err(_) => Err(self.refuse(Refusal::after(Code::UpstreamUnavailable, RETRY_AFTER_OUTAGE))),
        }
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

    pub(crate) fn refuse(&self, refusal: Refusal) -> Response<Body> {
        self.engine.meters.refused(refusal.code);
        self.respond.refusal(refusal)
    }
}

impl Job {
    fn input<'a>(&'a self, selected: &'a [(&'a str, &'a [u8])]) -> FingerprintInput<'a> {
        let header =
            |name| self.parts.headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        FingerprintInput {
            method: self.parts.method.as_str(),
            route: &self.plan.endpoint.path,
            path: &self.path,
            query: self.query.as_deref(),
            headers: selected,
            content_type: header(http::header::CONTENT_TYPE),
            content_encoding: header(http::header::CONTENT_ENCODING),
            body: &self.body,
            rules: &self.plan.endpoint.body_rules,
        }
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

/// Reads an answer as far as it is kept. A stream by its nature is not waited for (protocol 18: it completes as a
/// tombstone before its first byte).
async fn read_answer<B>(response: Response<B>, limit: usize) -> Ran
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    if is_event_stream(&parts) {
        return Ran::Unkept { parts, body: Body::stream(body), why: NotKept::Streamed };
    }
    match collect(Box::pin(body), limit).await {
        Ok(Collected::Whole { bytes, trailers }) => Ran::Answered { parts, body: bytes, trailers },
        Ok(Collected::TooLong { head, rest }) => {
            Ran::Unkept { parts, body: Body::resumed(head, rest), why: NotKept::TooLarge }
        }
        Err(_) => Ran::Lost,
    }
}

const EVENT_STREAM: &[u8] = b"text/event-stream";

fn is_event_stream(parts: &http::response::Parts) -> bool {
    let content_type = parts.headers.get(http::header::CONTENT_TYPE);
    let name = content_type.and_then(|value| value.as_bytes().get(..EVENT_STREAM.len()));
    name.is_some_and(|name| name.eq_ignore_ascii_case(EVENT_STREAM))
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

/// The credentials are needed after the request was given away only where a probe may have to be asked.
fn endpoint_needs_headers(endpoint: &Endpoint) -> bool {
    endpoint.probe.is_some()
}

/// How long an outcome is replayed and kept, and the resource its window is bound to. A failure made no resource, and
/// keeps the time of its class.
fn times(endpoint: &Endpoint, replay: Duration, outcome: &Outcome) -> (Times, Option<ResourceId>) {
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
