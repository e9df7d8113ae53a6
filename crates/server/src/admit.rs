//! From a request to a [`Job`]: the checks that come before any claim, in the order of design 5.
//!
//! authenticate -> key syntax -> scope -> body limit. Authentication and scope are one step here, since a verified identity is
//! the scope. Nothing has been claimed yet, so a client that goes away in the middle costs nothing.

use std::{sync::Arc, time::Duration};

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
    guard::{Guard, Guarded, Job},
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
    /// Guarded.
    Keyed(Box<Job>),
    /// Answered here.
    Answer(Response<Body>),
    /// A poll of a status URL.
    Poll { parts: Parts, id: Box<str> },
}

impl Guard {
    /// Sorts a request. `uri` is the original one, whatever nested routers left in the request (protocol 3).
    pub(crate) async fn admit<B>(&self, request: Request<B>, uri: Uri) -> Admitted
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
                    return Admitted::Poll { parts: request.into_parts().0, id };
                }
                return match self.page_of(&request, path) {
                    Some(code) => Admitted::Answer(crate::respond::page(code)),
                    None => pass(request),
                };
            }
            Lookup::Unlisted => {
                self.engine.meters.unlisted();
                return match contract.unlisted {
                    Unlisted::Pass => pass(request),
                    Unlisted::Refuse => self.answer(Code::EndpointUnlisted),
                };
            }
        };
        let Some(plan) = self.plans.get(&endpoint.name).map(Arc::clone) else { return pass(request) };
        let resource = ended_resource(endpoint, &params);
        match self.admit_listed(plan, resource, request, uri).await {
            Ok(admitted) => admitted,
            Err(code) => self.answer(code),
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

    async fn admit_listed<B>(
        &self,
        plan: Arc<Plan>,
        resource: Option<ResourceId>,
        request: Request<B>,
        uri: Uri,
    ) -> Result<Admitted, Code>
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
            return Ok(self.pass_listed(&plan, resource, request));
        }
        let optional = endpoint.key == KeyUse::Optional;
        if optional && in_header && !carried {
            self.engine.meters.keyless();
            return Ok(self.pass_listed(&plan, resource, request));
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

        let limit = endpoint.limits.request_body_max;
        let body = match collect(Box::pin(body), limit).await {
            Ok(Collected::Whole { bytes, .. }) => bytes,
            Ok(Collected::TooLong { .. }) => return Err(Code::RequestTooLarge),
            // The client went away in the middle of its request: nobody reads this, and nothing was claimed.
            Err(_) => return Ok(Admitted::Answer(status_only(StatusCode::BAD_REQUEST))),
        };
        let key = match (header_key, &plan.key_place) {
            (Some(key), _) => key,
            // A key may be in there, and reads as missing: where it is optional the request would run unguarded.
            (None, KeyPlace::Body(_)) if is_compressed(&parts.headers) => return Err(Code::KeyMalformed),
            (None, KeyPlace::Body(pointer)) => match parse_body(&body, pointer, &endpoint.key_rules) {
                Err(KeyFault::Missing) if optional => {
                    self.engine.meters.keyless();
                    let request = Request::from_parts(parts, Body::full(body));
                    return Ok(self.pass_listed(&plan, resource, request));
                }
                other => other.map_err(KeyFault::code)?,
            },
            (None, KeyPlace::Header(_)) => return Err(Code::KeyMissing),
        };
        Ok(Admitted::Keyed(Box::new(Job {
            address: self.address(account, key),
            prefers_async: prefers_async(&parts.headers),
            deadline,
            resource,
            uri,
            parts,
            body,
            plan,
        })))
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
