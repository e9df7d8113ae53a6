//! The whole gateway: admission, the layer, the proxy behind it, and the work that goes on beside requests.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::slice;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use pin_project_lite::pin_project;
use retrysafe_core::contract::{Carrier, Contract, Scope};
use retrysafe_core::fingerprint::FingerprintKeys;
use retrysafe_server::{Body, BoxError, BuildFault, Place, Retrysafe, RetrysafeService};
use retrysafe_store::Store;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tower_layer::Layer;
use tower_service::Service;

use crate::handover::{FENCE_HEADER, Handover};
use crate::proxy::{
    self, Drained, Forward, Inbound, Lane, Peer, Proxy, ProxyBody, ProxyError, ProxyOptions, ServeOptions,
    Upstream, UpstreamError, Workers, headers,
};
use crate::questions::Questions;

/// How long detached requests may go on after the last connection has ended. Longer than one upstream timeout would
/// only delay a restart: their leases decide after that.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// How a gateway is set up, beyond its contract.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Towards the upstream. Key fields, protected fields, trusted peers and the answer timeout are taken from the
    /// contract and added to what is here.
    pub proxy: ProxyOptions,
    /// Towards the clients.
    pub serve: ServeOptions,
    /// 30 s for requests that are still running when their connections have ended.
    pub drain_timeout: Duration,
    /// Threads that run connections. 0: none of its own, they run where [`Gateway::serve`] is called. One for each core
    /// is fastest.
    pub workers: usize,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            proxy: ProxyOptions::default(),
            serve: ServeOptions::default(),
            drain_timeout: DRAIN_TIMEOUT,
            workers: 0,
        }
    }
}

/// Why a gateway could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatewayFault {
    /// The upstream, or TLS towards it.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The layer: keys, scopes.
    #[error(transparent)]
    Layer(#[from] BuildFault),
    /// An endpoint's identity is set by an application, and there is none here.
    #[error(
        "endpoint {0}: scope source \"application\" needs an application around the layer; at the gateway use \"jwt\", \"trusted_header\" or \"api_key\""
    )]
    ApplicationScope(String),
}

/// How a gateway ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The clients' connections.
    pub connections: Drained,
    /// Requests that were still running; their leases decide what becomes of their keys.
    pub running: usize,
}

/// A reverse proxy with the layer in front. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Gateway {
    layer: Retrysafe,
    /// One for each worker, at least one: each has pools of its own, so that no connection is shared between threads.
    fronts: Arc<[Front]>,
    options: Arc<GatewayOptions>,
}

impl Gateway {
    /// A gateway that enforces `contract` in front of `upstream`, which need not be there yet. Without `keys` a
    /// fingerprint key is drawn at random, which fits only a store that does not outlive the process.
    ///
    /// # Errors
    /// A scope, a key or TLS cannot be set up.
    pub fn new(
        contract: impl Into<Arc<Contract>>,
        store: Arc<dyn Store>,
        keys: Option<FingerprintKeys>,
        upstream: Upstream,
        mut options: GatewayOptions,
    ) -> Result<Self, GatewayFault> {
        let contract = contract.into();
        learn(&mut options.proxy, &contract)?;
        let questions = Questions {
            key_headers: options.proxy.key_headers.clone(),
            answer_bytes_max: contract
                .endpoints
                .iter()
                .map(|e| e.limits.response_body_max)
                .max()
                .unwrap_or(0),
            host: upstream.host().clone(),
            proxy: Proxy::new(upstream.clone(), options.proxy.clone())?,
        };
        let mut builder = Retrysafe::builder(Arc::clone(&contract), store)
            .place(Place::Gateway)
            .inquire(Arc::new(questions));
        if let Some(keys) = keys {
            builder = builder.fingerprint_keys(keys);
        }
        let layer = builder.build()?;
        let options = Arc::new(options);
        let front = || -> Result<Front, GatewayFault> {
            let proxy = Proxy::new(upstream.clone(), options.proxy.clone())?.admitted();
            Ok(Front {
                layer: layer.clone(),
                guarded: layer.layer(Handover::new(proxy, Arc::clone(&contract))),
                passing: Proxy::new(upstream.clone(), options.proxy.clone())?.admitted(),
                options: Arc::clone(&options),
            })
        };
        let fronts = (0..options.workers.max(1)).map(|_| front()).collect::<Result<_, _>>()?;
        Ok(Self { layer, fronts, options })
    }

    /// The layer, for its store and contract.
    #[must_use]
    pub fn layer(&self) -> &Retrysafe {
        &self.layer
    }

    /// The gateway as a service, for one's own server.
    #[must_use]
    pub fn service(&self) -> Front {
        self.fronts[0].clone()
    }

    /// Serves on `listener` and does the upkeep, until `shutdown`; then drains connections, and after them the
    /// requests that nobody waits for any more.
    pub async fn serve(&self, listener: TcpListener, shutdown: CancellationToken) -> Ended {
        let stop_upkeep = CancellationToken::new();
        let upkeep = tokio::spawn({
            let (layer, stop) = (self.layer.clone(), stop_upkeep.clone());
            async move { layer.upkeep(stop).await }
        });
        let workers = Workers::start(self.options.workers).unwrap_or_else(|error| {
            tracing::warn!(%error, "no threads for connections could be started; they run beside everything else");
            Workers::none()
        });
        let here = Handle::current();
        let runtimes =
            if workers.runtimes().is_empty() { slice::from_ref(&here) } else { workers.runtimes() };
        let lanes: Vec<_> = self
            .fronts
            .iter()
            .zip(runtimes.iter().cycle())
            .map(|(front, runtime)| Lane { service: front.clone(), runtime: runtime.clone() })
            .collect();
        let connections = proxy::serve_lanes(listener, lanes, self.options.serve.clone(), shutdown).await;
        // The workers still run what was detached from its connection.
        let running = self.layer.drain(self.options.drain_timeout).await;
        stop_upkeep.cancel();
        if upkeep.await.is_err() {
            tracing::error!("upkeep ended by a panic");
        }
        // Joining threads blocks.
        let _ = tokio::task::spawn_blocking(move || drop(workers)).await;
        Ended { connections, running }
    }
}

/// What the proxy has to know of the contract: which fields no `Connection` option may take away, whom to trust with
/// forwarded addresses, how long to wait.
fn learn(options: &mut ProxyOptions, contract: &Contract) -> Result<(), GatewayFault> {
    let mut key_headers = Vec::new();
    for endpoint in &contract.endpoints {
        if let Carrier::Header(name) = &endpoint.carrier {
            key_headers.extend(HeaderName::try_from(name.as_str()));
        }
        let scope = match &endpoint.scope {
            Scope::Jwt(jwt) => Some(&jwt.header),
            Scope::TrustedHeader { header, .. } | Scope::ApiKey { header, .. } => Some(header),
            Scope::Application => return Err(GatewayFault::ApplicationScope(endpoint.name.to_string())),
            Scope::Anonymous => None,
        };
        let selecting = endpoint.scope_headers.iter().chain(&endpoint.fingerprint_headers);
        let protected = scope.into_iter().chain(selecting);
        options
            .protected_headers
            .extend(protected.filter_map(|name| HeaderName::try_from(name.as_str()).ok()));
        if let Scope::TrustedHeader { peers, .. } = &endpoint.scope {
            options.trusted_peers.extend(peers);
        }
    }
    if !key_headers.is_empty() {
        options.key_headers = key_headers;
    }
    let deadline = contract.client.deadline_header.as_deref();
    options.protected_headers.extend(deadline.and_then(|name| HeaderName::try_from(name).ok()));
    for names in [&mut options.key_headers, &mut options.protected_headers] {
        names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        names.dedup();
    }
    options.trusted_peers.sort();
    options.trusted_peers.dedup();
    options.response_timeout = contract.answer_timeout;
    options.answers = contract.answers.clone();
    Ok(())
}

/// The gateway's service: refuses what may not be forwarded before anything is claimed for it, sends on what needs no
/// guarding, and brings the rest to the layer.
#[derive(Clone)]
pub struct Front {
    layer: Retrysafe,
    guarded: RetrysafeService<Handover>,
    /// A pool of its own: these bodies are streams, the layer's are buffers.
    passing: Proxy<Inbound>,
    options: Arc<GatewayOptions>,
}

impl Service<Request<Inbound>> for Front {
    type Response = Response<FrontBody>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Inbound>>::poll_ready(&mut self.guarded, cx)
    }

    fn call(&mut self, mut request: Request<Inbound>) -> Answering {
        let admitted = headers::admit(
            request.method(),
            request.uri(),
            request.version(),
            request.headers(),
            &self.options.proxy.key_headers,
        );
        if let Err(refusal) = admitted {
            let answer = ProxyError::Refused(refusal).refuse(&self.options.proxy.answers);
            return Answering::Refused { answer: Some(answer) };
        }
        request.headers_mut().remove(FENCE_HEADER);
        if self.layer.passes(&request) {
            return Answering::Passing { forward: self.passing.call(request) };
        }
        if let Some(peer) = request.extensions().get::<Peer>().map(|peer| peer.address().ip()) {
            request.extensions_mut().insert(retrysafe_server::Peer(peer));
        }
        Answering::Guarded { answering: self.guarded.call(request) }
    }
}

pin_project! {
    /// An answer on its way.
    #[project = Projected]
    #[allow(missing_docs)] // the macro cannot hide the fields of an enum
    pub enum Answering {
        #[doc(hidden)]
        Passing { #[pin] forward: Forward<Inbound> },
        #[doc(hidden)]
        Guarded { #[pin] answering: <RetrysafeService<Handover> as Service<Request<Inbound>>>::Future },
        #[doc(hidden)]
        Refused { answer: Option<Response<Body>> },
    }
}

impl Future for Answering {
    type Output = Result<Response<FrontBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let guarded = |response: Response<Body>| response.map(|body| FrontBody::Guarded { body });
        match self.project() {
            Projected::Passing { forward } => {
                forward.poll(cx).map_ok(|response| response.map(|body| FrontBody::Passed { body }))
            }
            Projected::Guarded { answering } => answering.poll(cx).map_ok(guarded),
            // Polled once more than allowed, there is nothing left to give.
            Projected::Refused { answer } => {
                answer.take().map_or(Poll::Pending, |answer| Poll::Ready(Ok(guarded(answer))))
            }
        }
    }
}

pin_project! {
    /// The body of a gateway's answer.
    #[project = ProjectedBody]
    #[allow(missing_docs)]
    #[derive(Debug)]
    pub enum FrontBody {
        #[doc(hidden)]
        Passed { #[pin] body: ProxyBody<Inbound> },
        #[doc(hidden)]
        Guarded { #[pin] body: Body },
    }
}

impl HttpBody for FrontBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.project() {
            ProjectedBody::Passed { body } => body.poll_frame(cx).map_err(Into::into),
            ProjectedBody::Guarded { body } => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Passed { body } => body.is_end_stream(),
            Self::Guarded { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Passed { body } => body.size_hint(),
            Self::Guarded { body } => body.size_hint(),
        }
    }
}
