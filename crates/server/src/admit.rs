//! From a request to a [`Job`]: the checks that come before any claim, in the order of design 5.
//!
//! authenticate -> key syntax -> scope -> body limit. Authentication and scope are one step here, since a verified identity is
//! the scope. Nothing has been claimed yet, so a client that goes away in the middle costs nothing.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header, request::Parts};
use http_body::Body as HttpBody;
use retrysafe_core::{
    address::{Account, Address, Key},
    codes::Code,
    contract::{Endpoint, KeyUse, Lookup, Params, Unlisted},
    decide::Refusal,
    key::{KeyFault, parse_body, parse_header},
    record::ResourceId,
    retry::deadline::wire,
};

use crate::{
    body::{Body, BoxError, Collected, collect},
    guard::{Guard, Guarded, Head, Job},
    plan::{KeyPlace, Plan},
};

/// Names the namespaces of the hops that a keyed request has passed. A gateway adds its own when it forwards.
pub const HOP_HEADER: &str = "retrysafe-hop";
/// Carries the fence of the run to the upstream, in decimal.
pub const FENCE_HEADER: &str = "retrysafe-fence";

/// The time that was left for a keyed request when its handler started, from its deadline header: handlers find it in the
/// request's extensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeLeft(pub Duration);

/// What to do with a request.
pub(crate) enum Admitted {
    /// Not guarded: pass it on as it is. `ends` names a resource that it ends if it succeeds.
    Pass { request: Request<Body>, ends: Option<(Arc<Plan>, Address, ResourceId)> },
    /// Answered here.
    Answer(Response<Body>),
    /// A poll of a status URL.
    Poll { parts: Parts, id: Box<str> },
}

/// A request whose head has been read.
#[expect(clippy::large_enum_variant, reason = "it lives for one match, and what passes needs no allocation")]
pub(crate) enum Sorted<B> {
    /// Its body says nothing that matters here.
    Admitted(Admitted),
    /// Guarded, once its body has been read.
    Unread(Unread<B>),
}

/// A keyed request whose head was found good.
pub(crate) struct Unread<B> {
    head: Box<Head>,
    account: Account,
    /// `None`: it is in the body.
    key: Option<Key>,
    body: Pin<Box<B>>,
}

impl Guard {
    /// Sorts a request, and reads the body of a guarded one. `uri` is the original one, whatever nested routers left in the
    /// request (protocol 3).
    pub(crate) async fn admit<B>(&self, request: Request<B>, uri: Uri) -> Result<Box<Job>, Box<Admitted>>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        match self.sort(request, uri) {
            Sorted::Admitted(admitted) => Err(Box::new(admitted)),
            Sorted::Unread(unread) => self.read(unread).await,
        }
    }

    /// The first half of [`Guard::admit`]. A function of its own, so that a request is not copied into a future before it
    /// is known what becomes of it.
    pub(crate) fn sort<B>(&self, request: Request<B>, uri: Uri) -> Sorted<B>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let contract = &self.engine.contract;
        let path = uri.path();
        let (endpoint, params) = match contract.find(request.method().as_str(), path) {
            Lookup::Endpoint(endpoint, params) => (endpoint, params),
            Lookup::SafeMethod => {
                if let Some(id) = self.status_id(&request, path) {
                    return Sorted::Admitted(Admitted::Poll { parts: request.into_parts().0, id });
                }
                return Sorted::Admitted(match self.page_of(&request, path) {
                    Some(code) => Admitted::Answer(crate::respond::page(code)),
                    None => pass(request),
                });
            }
            Lookup::Unlisted => {
                self.engine.meters.unlisted();
                return Sorted::Admitted(match contract.unlisted {
                    Unlisted::Pass => pass(request),
                    Unlisted::Refuse => self.answer(Code::EndpointUnlisted),
                });
            }
        };
        let Some(plan) = self.plans.get(&endpoint.name).map(Arc::clone) else {
            return Sorted::Admitted(pass(request));
        };
        let resource = ended_resource(endpoint, &params);
        match self.sort_listed(plan, resource, request, uri) {
            Ok(sorted) => sorted,
            Err(code) => Sorted::Admitted(self.answer(code)),
        }
    }

    /// Whether a request is passed on as it is: nothing about it is guarded, ended or answered here. Counts it if so, as
    /// [`Guard::admit`] does; a request that does not pass is only looked at.
    pub(crate) fn passes(&self, method: &Method, path: &str, headers: &HeaderMap) -> bool {
        let contract = &self.engine.contract;
        match contract.find(method.as_str(), path) {
            Lookup::SafeMethod => {
                let ours = |base: &str| path.starts_with(base);
                !(method == Method::GET && (ours(&contract.status_path) || ours(&contract.answers.type_base)))
            }
            Lookup::Unlisted => {
                let pass = contract.unlisted == Unlisted::Pass;
                if pass {
                    self.engine.meters.unlisted();
                }
                pass
            }
            Lookup::Endpoint(endpoint, _) => {
                if endpoint.ends_resource.is_some() {
                    return false;
                }
                let Some(Plan { key_place: KeyPlace::Header(name), .. }) =
                    self.plans.get(&endpoint.name).map(Arc::as_ref)
                else {
                    return false;
                };
                let keyless = endpoint.key == KeyUse::Optional && !headers.contains_key(name);
                if keyless {
                    self.engine.meters.keyless();
                }
                keyless
            }
        }
    }

    fn sort_listed<B>(
        &self,
        plan: Arc<Plan>,
        resource: Option<ResourceId>,
        request: Request<B>,
        uri: Uri,
    ) -> Result<Sorted<B>, Code>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let endpoint = &plan.endpoint;
        let (in_header, carried) = match &plan.key_place {
            KeyPlace::Header(name) => (true, request.headers().contains_key(name)),
            KeyPlace::Body(_) => (false, false),
        };
        if let KeyUse::Unsafe { .. } = endpoint.key {
            if carried {
                self.engine.meters.key_on_unsafe();
            }
            return Ok(Sorted::Admitted(self.pass_listed(&plan, resource, request)));
        }
        let optional = endpoint.key == KeyUse::Optional;
        if optional && in_header && !carried {
            self.engine.meters.keyless();
            return Ok(Sorted::Admitted(self.pass_listed(&plan, resource, request)));
        }
        // Another hop with our namespace has claimed this very address: we would meet its claim and answer "in flight" to
        // ourselves for ever (protocol 2). In front of us, or around us in this very process.
        let namespace = &self.engine.contract.namespace;
        let hops = request.headers().get_all(HOP_HEADER);
        let ahead = hops.iter().any(|hop| hop.as_bytes() == namespace.as_str().as_bytes());
        let around = request.extensions().get::<Guarded>();
        if ahead || around.is_some_and(|guarded| guarded.address.namespace() == namespace) {
            tracing::error!(%namespace, "a hop in front of this one has the same namespace; give each its own");
            return Err(Code::NamespaceCollision);
        }
        // A switch of protocols cannot be replayed, and what follows it cannot be fingerprinted.
        if changes_protocol(request.headers()) {
            return Err(Code::NotGuardable);
        }

        let (parts, body) = request.into_parts();
        let account = plan.account.account(&parts).map_err(|_| Code::ScopeMissing)?;
        let header_key = match &plan.key_place {
            KeyPlace::Header(name) => {
                let lines = parts.headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
                Some(parse_header(lines, &endpoint.key_rules).map_err(KeyFault::code)?)
            }
            KeyPlace::Body(_) => None,
        };
        let mut deadline = None;
        if let Some(left) = time_left(&parts.headers, self.engine.contract.client.deadline_header.as_deref())
        {
            if left.is_zero() {
                return Err(Code::DeadlineExceeded);
            }
            deadline = tokio::time::Instant::now().checked_add(left);
        }

        let prefers_async = prefers_async(&parts.headers);
        let head = Box::new(Head { plan, parts, uri, resource, prefers_async, deadline });
        Ok(Sorted::Unread(Unread { head, account, key: header_key, body: Box::pin(body) }))
    }

    /// Reads the body of a keyed request. What is not a job then is answered, or passed on without a key.
    pub(crate) async fn read<B>(&self, unread: Unread<B>) -> Result<Box<Job>, Box<Admitted>>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Unread { head, account, key, body } = unread;
        let refused = |code| Err(Box::new(self.answer(code)));
        let body = match collect(body, head.plan.endpoint.limits.request_body_max).await {
            Ok(Collected::Whole { bytes, .. }) => bytes,
            Ok(Collected::TooLong { .. }) => return refused(Code::RequestTooLarge),
            // The client went away in the middle of its request: nobody reads this, and nothing was claimed.
            Err(_) => return Err(Box::new(Admitted::Answer(status_only(StatusCode::BAD_REQUEST)))),
        };
        let key = match key.map_or_else(|| key_in_body(&head, &body), Ok) {
            Ok(key) => key,
            Err(Code::KeyMissing) if head.plan.endpoint.key == KeyUse::Optional => {
                self.engine.meters.keyless();
                let Head { plan, parts, resource, .. } = *head;
                let request = Request::from_parts(parts, Body::full(body));
                return Err(Box::new(self.pass_listed(&plan, resource, request)));
            }
            Err(code) => return refused(code),
        };
        Ok(Box::new(Job { address: self.address(account, key), head, body }))
    }

    /// Passes a listed request that is not guarded; it may still end a resource.
    fn pass_listed<B>(&self, plan: &Arc<Plan>, resource: Option<ResourceId>, request: Request<B>) -> Admitted
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        let ends = resource.and_then(|resource| {
            let account = plan.account.account(&parts).ok()?;
            // The key does not matter for the end of a resource: any stands for the account.
            let key = Key::trusted("-").ok()?;
            Some((Arc::clone(plan), self.address(account, key), resource))
        });
        Admitted::Pass { request: Request::from_parts(parts, Body::stream(body)), ends }
    }

    fn address(&self, account: Account, key: Key) -> Address {
        Address::new(self.engine.contract.namespace.clone(), account, key)
    }

    fn answer(&self, code: Code) -> Admitted {
        Admitted::Answer(self.refuse(Refusal::of(code)))
    }

    /// The id of a status URL, if `path` is one and any endpoint hands them out.
    fn status_id<B>(&self, request: &Request<B>, path: &str) -> Option<Box<str>> {
        if request.method() != http::Method::GET {
            return None;
        }
        let rest = path.strip_prefix(self.engine.contract.status_path.as_str())?;
        Some(rest.strip_prefix('/')?.into())
    }
}

impl Guard {
    /// The code whose page is asked for, where problem `type` URIs are paths of this API: a link in an answer should lead
    /// somewhere.
    fn page_of<B>(&self, request: &Request<B>, path: &str) -> Option<Code> {
        let base = self.engine.contract.answers.type_base.as_str();
        let local = base.starts_with('/') && request.method() == http::Method::GET;
        local.then(|| path.strip_prefix(base)).flatten().and_then(Code::from_wire)
    }
}

fn pass<B>(request: Request<B>) -> Admitted
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Admitted::Pass { request: request.map(Body::stream), ends: None }
}

fn ended_resource(endpoint: &Endpoint, params: &Params) -> Option<ResourceId> {
    let rule = endpoint.ends_resource.as_ref()?;
    params.get(&rule.param).map(|id| ResourceId(id.into()))
}

/// Whether the request asks for another protocol. `h2c` is only an offer, which some clients make with every first request;
/// answering in the present one declines it (RFC 9110 7.8).
fn changes_protocol(headers: &HeaderMap) -> bool {
    headers.get_all(header::UPGRADE).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"h2c"))
}

/// `Prefer: respond-async` (RFC 7240), in any of its lines and lists.
fn prefers_async(headers: &HeaderMap) -> bool {
    let lines = headers.get_all("prefer").iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|preference| {
        let name = preference.split([';', '=']).next().unwrap_or_default();
        name.trim().eq_ignore_ascii_case("respond-async")
    })
}

/// The key of a request that carries it in its body.
fn key_in_body(head: &Head, body: &[u8]) -> Result<Key, Code> {
    let KeyPlace::Body(pointer) = &head.plan.key_place else { return Err(Code::KeyMissing) };
    // A key may be in there, and reads as missing: where it is optional the request would run unguarded.
    if is_compressed(&head.parts.headers) {
        return Err(Code::KeyMalformed);
    }
    parse_body(body, pointer, &head.plan.endpoint.key_rules).map_err(KeyFault::code)
}

fn is_compressed(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity")
}

/// Time left, from a relative deadline header. One that is not a number is ignored: it cannot be obeyed, and
/// refusing would turn a client's cosmetic bug into an outage.
fn time_left(headers: &HeaderMap, name: Option<&str>) -> Option<Duration> {
    let name = name?;
    wire::parse(name, headers.get(name)?.to_str().ok()?.trim())
}

fn status_only(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
