//! One keyed request from claim to answer.
//!
//! From the claim on nobody can cancel: everything runs [detached](crate::detached).

use std::{collections::HashMap, ops::Deref, panic::AssertUnwindSafe, pin::pin, sync::Arc};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, Uri, request::Parts};
use http_body::Body as HttpBody;
use retrysafe_core::{
    address::Address,
    claim::Claim,
    codes::Code,
    contract::{Endpoint, StoreDown},
    decide::{Asked, Decision, Refusal, Rules, decide},
    fingerprint::{Fingerprint, FingerprintInput, FingerprintKeys, Match, compute, verify},
    ids::Fence,
    outcome::NotKept,
    policy::Place,
    record::{RecoveryClass, ResourceId, State},
};
use retrysafe_store::{ErrorKind, StoreError};
use tokio_util::task::TaskTracker;

use crate::{
    admit::TimeLeft,
    body::{Body, BoxError, Collected, collect},
    engine::{Arbiter, Claimed, Engine, Held, InStore, RETRY_AFTER_OUTAGE, Told, with_fresh},
    inquire::Inquire,
    plan::Plan,
    replays,
    respond::Responder,
};

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
    pub(crate) plans: HashMap<Arc<str>, Arc<Plan>>,
    pub(crate) keys: FingerprintKeys,
    pub(crate) place: Place,
    pub(crate) respond: Responder,
    pub(crate) inquire: Option<Arc<dyn Inquire>>,
    pub(crate) tasks: TaskTracker,
}

/// A keyed request that was admitted: identified, read whole, not yet claimed.
pub(crate) struct Job {
    pub(crate) head: Box<Head>,
    pub(crate) address: Address,
    pub(crate) body: Bytes,
}

/// What is known of a keyed request before its body is read.
pub(crate) struct Head {
    pub(crate) plan: Arc<Plan>,
    pub(crate) parts: Parts,
    /// Path and query as the client sent them, whatever nested routers left in `parts`.
    pub(crate) uri: Uri,
    /// Values of the path template.
    pub(crate) resource: Option<ResourceId>,
    pub(crate) prefers_async: bool,
    /// When its caller stops waiting, if it said so.
    pub(crate) deadline: Option<tokio::time::Instant>,
}

impl Deref for Job {
    type Target = Head;

    fn deref(&self) -> &Head {
        &self.head
    }
}

/// What the work left behind.
pub(crate) enum Ran {
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
        if let Some(told) = self.at_hand(&job) {
            return self.tell(told, &job).await;
        }
        let guard = Arc::clone(&self);
        let plan = Arc::clone(&job.plan);
        self.detached(&plan.endpoint, Box::pin(async move { guard.claim_and_run(job, work).await })).await
    }

    async fn claim_and_run<W, F, B, E>(&self, job: Box<Job>, work: W) -> Response<Body>
    where
        W: FnOnce(Request<Body>) -> F + Send,
        F: Future<Output = Result<Response<B>, E>> + Send,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        // This work writes through nobody's transaction, and sets no recovery points. What it did before its holder was lost
        // is not rolled back, whatever class the contract hopes for.
        let recovery = match job.plan.endpoint.recovery {
            RecoveryClass::Atomic | RecoveryClass::Phased => RecoveryClass::Outside,
            other => other,
        };
        match self.claim(&job, recovery, &mut InStore(&self.engine)).await {
            // Apart from the rest, since replays need no room for what it holds.
            Ok(Claimed::Won(held)) => Box::pin(self.execute(held, job, work)).await,
            Ok(Claimed::Told(told)) => self.tell(told, &job).await,
            Err(error) => match (may_have_happened(&error), job.plan.endpoint.store_down) {
                (true, _) | (_, StoreDown::Closed) => self.claim_failed(&job, &error),
                (false, StoreDown::Open) => {
                    tracing::error!(%error, endpoint = %job.plan.endpoint.name, "run unguarded: the store failed a claim");
                    self.engine.meters.ran_open();
                    Box::pin(self.unguarded(job, work)).await
                }
            },
        }
    }

    /// Whether `job` may run, as `arbiter` says.
    pub(crate) async fn claim<A: Arbiter>(
        &self,
        job: &Job,
        recovery: RecoveryClass,
        arbiter: &mut A,
    ) -> Result<Claimed<A::Won>, StoreError> {
        let selected = job.plan.selected_headers(&job.parts.headers);
        let input = job.input(&selected);
        let fingerprint = compute(&input, self.keys.current());
        let verify = |stored: &Fingerprint| self.verify(stored, &fingerprint, &input);
        let asked = Asked { fingerprint, verify: &verify, prefers_async: job.prefers_async };
        let rules = self.rules(&job.plan.endpoint, recovery);
        self.engine.claim(&rules, &job.address, &asked, job.deadline, arbiter).await
    }

    /// What the caller of `job` is told where its key is finished and the store can say so at once: nothing will run, so
    /// nothing has to be made ready for that.
    fn at_hand(&self, job: &Job) -> Option<Told> {
        let record = self.engine.store.at_hand(&job.address)?;
        // Whatever is not finished is decided where it can be waited for and claimed.
        if !matches!(record.state, State::Completed { .. }) {
            return None;
        }
        let selected = job.plan.selected_headers(&job.parts.headers);
        let input = job.input(&selected);
        let fingerprint = compute(&input, self.keys.current());
        let verify = |stored: &Fingerprint| self.verify(stored, &fingerprint, &input);
        let asked = Asked { fingerprint, verify: &verify, prefers_async: job.prefers_async };
        let rules = self.rules(&job.plan.endpoint, record.recovery);
        let now = self.engine.store.now().ok()?;
        match with_fresh(|fresh| decide(Some(&record), &asked, &rules, fresh, now)).ok()? {
            Decision::Replay(outcome) => {
                self.engine.meters.replaying(Some(&record), now);
                Some(Told::Replay { outcome, journal: replays::journal_of(&record) })
            }
            Decision::Refuse(refusal) => Some(Told::Refuse(refusal)),
            _ => None,
        }
    }

    fn verify(&self, stored: &Fingerprint, own: &Fingerprint, input: &FingerprintInput<'_>) -> Match {
        match stored == own {
            true => Match::Same,
            false => verify(stored, input, &self.keys),
        }
    }

    fn rules<'a>(&self, endpoint: &'a Endpoint, recovery: RecoveryClass) -> Rules<'a> {
        Rules {
            endpoint: &endpoint.name,
            contract_version: self.engine.contract.version,
            recovery,
            lease: endpoint.windows.lease,
            in_flight: &endpoint.in_flight,
        }
    }

    /// The answer when the store failed a claim, and nothing is run without one.
    pub(crate) fn claim_failed(&self, job: &Job, error: &StoreError) -> Response<Body> {
        tracing::error!(%error, endpoint = %job.plan.endpoint.name, "the store failed a claim");
        match may_have_happened(error) {
            true => self.refuse(Refusal::of(Code::OutcomeUnknown)),
            false => self.refuse(Refusal::after(Code::StoreUnavailable, RETRY_AFTER_OUTAGE)),
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
        let Job { head, address, body } = *job;
        let Head { mut parts, deadline, .. } = *head;
        hand_on_time_left(&mut parts, deadline);
        // No claim, so no fence: the lowest there is, which whoever compares fences refuses.
        parts.extensions.insert(Guarded { fence: Fence::from_u64(0), address });
        match work(Request::from_parts(parts, Body::full(body))).await {
            Ok(response) => response.map(Body::stream),
            Err(_) => self.refuse(Refusal::of(Code::OutcomeUnknown)),
        }
    }

    async fn execute<W, F, B, E>(&self, held: Box<Held<Claim>>, job: Box<Job>, work: W) -> Response<Body>
    where
        W: FnOnce(Request<Body>) -> F + Send,
        F: Future<Output = Result<Response<B>, E>> + Send,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Held { won: claim, permit: _permit } = *held;
        let Job { head, address, body } = *job;
        let Head { plan, mut parts, resource, deadline, .. } = *head;
        let endpoint = &plan.endpoint;
        let _running = self.engine.meters.running();
        hand_on_time_left(&mut parts, deadline);
        parts.extensions.insert(Guarded { fence: claim.fence(), address });
        let headers = endpoint_needs_headers(endpoint).then(|| parts.headers.clone());
        let request = Request::from_parts(parts, Body::full(body));
        let limit = endpoint.limits.response_body_max;
        // Pinned here, and gone before the claim is settled: a future that is handed on by value is copied at every hand.
        let ran = {
            let work = async move {
                match work(request).await {
                    Ok(response) => read_answer(response, limit).await,
                    Err(_) => Ran::Lost,
                }
            };
            let work = pin!(AssertUnwindSafe(work).catch_unwind());
            self.engine.keep_claim(&claim, endpoint, work).await
        };
        let ran = ran.unwrap_or_else(|_| {
            self.engine.meters.panicked();
            tracing::error!(endpoint = %plan.endpoint.name, attempt = %claim.attempt(), "the handler panicked");
            Ran::Panicked
        });
        self.finish(claim, &plan, ran, resource, headers).await
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
            path: self.uri.path(),
            query: self.uri.query(),
            headers: selected,
            content_type: header(http::header::CONTENT_TYPE),
            content_encoding: header(http::header::CONTENT_ENCODING),
            body: &self.body,
            rules: &self.plan.endpoint.body_rules,
        }
    }
}

/// The store is there, and so is a record that this build cannot read (S20).
fn may_have_happened(error: &StoreError) -> bool {
    matches!(error.kind(), ErrorKind::UnknownVersion | ErrorKind::Corrupt)
}

/// The credentials are needed after the request was given away only where a probe may have to be asked.
fn endpoint_needs_headers(endpoint: &Endpoint) -> bool {
    endpoint.probe.is_some()
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

/// What is left when the handler starts: reading the body, waiting and claiming have taken their part.
fn hand_on_time_left(parts: &mut Parts, deadline: Option<tokio::time::Instant>) {
    if let Some(deadline) = deadline {
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        parts.extensions.insert(TimeLeft(left));
    }
}
