//! One request in, at most one request out.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower_service::Service;

use super::answer::ProxyBody;
use super::body::TimedBody;
use super::connect::{Connector, Upstream, UpstreamError};
use super::error::{ProxyError, Refusal};
use super::headers;
use super::options::{HostHeader, ProxyOptions, UpstreamProtocol};
use super::pool::{Lease, Pool};
use super::serve::Peer;

/// A request extension: how long this request may wait for the head of its answer, where the contract says
/// something else than [`ProxyOptions::response_timeout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeout(pub Duration);

/// The proxy as a service. Cheap to clone; clones share one pool. `B` is the body it is given: the client's
/// stream for what is not keyed, a buffer for what is.
#[derive(Debug)]
pub struct Proxy<B> {
    transport: Transport<B>,
    shared: Arc<Shared>,
    /// Whether [`headers::admit`] has had its say before.
    admitted: bool,
}

#[derive(Debug)]
enum Transport<B> {
    Http1(Arc<Pool<B>>),
    Http2(Arc<Client<Connector, B>>),
}

#[derive(Debug)]
struct Shared {
    upstream: Upstream,
    options: ProxyOptions,
    /// What no `Connection` option removes, beside [`headers::PROTECTED`].
    protected: Vec<HeaderName>,
}

impl<B> Clone for Proxy<B> {
    fn clone(&self) -> Self {
        let transport = match &self.transport {
            Transport::Http1(pool) => Transport::Http1(Arc::clone(pool)),
            Transport::Http2(client) => Transport::Http2(Arc::clone(client)),
        };
        Self { transport, shared: Arc::clone(&self.shared), admitted: self.admitted }
    }
}

impl<B> Proxy<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// A proxy to `upstream`, which need not be there yet.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(upstream: Upstream, options: ProxyOptions) -> Result<Self, UpstreamError> {
        let connector = Connector::new(&options)?;
        let transport = match options.protocol {
            UpstreamProtocol::Http1 => Transport::Http1(Pool::new(connector, upstream.root(), &options)),
            UpstreamProtocol::Http2 => Transport::Http2(Arc::new(http2_client(connector, &options))),
        };
        let protected = options.key_headers.iter().chain(&options.protected_headers).cloned().collect();
        Ok(Self { transport, shared: Arc::new(Shared { upstream, options, protected }), admitted: false })
    }

    /// The same proxy for requests that somebody in front has admitted by the same rules.
    pub(crate) fn admitted(mut self) -> Self {
        self.admitted = true;
        self
    }

    fn send(&self, request: Request<B>) -> Result<Sending<B>, Refusal> {
        let limit = request.extensions().get().map(|UpstreamTimeout(limit)| *limit);
        if !self.admitted {
            self.shared.admit(&request)?;
        }
        let request = self.shared.prepare(request)?;
        Ok(match &self.transport {
            Transport::Http1(pool) => {
                let pool = Arc::clone(pool);
                Box::pin(async move {
                    let (response, lease) = pool.send(request, limit).await?;
                    Ok((response, Some(lease)))
                })
            }
            Transport::Http2(client) => {
                let sending = client.request(request);
                let limit = limit.unwrap_or(self.shared.options.response_timeout);
                Box::pin(async move {
                    match tokio::time::timeout(limit, sending).await {
                        Ok(answered) => Ok((answered.map_err(ProxyError::from_client)?, None)),
                        Err(_) => Err(ProxyError::Late(limit)),
                    }
                })
            }
        })
    }
}

fn http2_client<B>(connector: Connector, options: &ProxyOptions) -> Client<Connector, B>
where
    B: Body<Data = Bytes> + Send,
{
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(options.pool_idle_timeout)
        .pool_max_idle_per_host(options.pool_idle_max)
        // One claim is at most one send: the client must not take a second try upon itself.
        .retry_canceled_requests(false)
        .set_host(false)
        .http2_only(true)
        .build(connector)
}

impl Shared {
    fn admit<B>(&self, request: &Request<B>) -> Result<(), Refusal> {
        let key_headers = &self.options.key_headers;
        headers::admit(request.method(), request.uri(), request.version(), request.headers(), key_headers)
    }

    /// The request as the upstream shall see it.
    fn prepare<B: Body>(&self, request: Request<B>) -> Result<Request<B>, Refusal> {
        let (mut parts, body) = request.into_parts();
        let http2 = self.options.protocol == UpstreamProtocol::Http2;
        let trailers = http2 && headers::wants_trailers(&parts.headers);
        headers::remove_hop_by_hop(&mut parts.headers, &self.protected);

        let peer = parts.extensions.get::<Peer>();
        let host = match parts.uri.authority() {
            Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
            None => parts.headers.get(HOST).cloned(),
        };
        let (seen, unseen) = match self.options.host {
            HostHeader::Preserve if !http2 => (host.unwrap_or_else(|| self.upstream.host().clone()), None),
            HostHeader::Preserve | HostHeader::Upstream => (self.upstream.host().clone(), host),
        };
        let from = headers::From {
            address: peer.map(Peer::text),
            trusted: peer.is_some_and(|peer| self.trusts(peer)),
            version: parts.version,
            host: unseen,
        };
        headers::introduce(&mut parts.headers, from);
        if http2 {
            // The connection's own authority; a second name in `Host` could only contradict it.
            parts.headers.remove(HOST);
            if trailers {
                headers::ask_for_trailers(&mut parts.headers);
            }
            parts.version = Version::HTTP_2;
            parts.uri = self.upstream.absolute_target(parts.uri).ok_or(Refusal::Target)?;
        } else {
            parts.headers.insert(HOST, seen);
            headers::join_cookies(&mut parts.headers);
            if body.size_hint().exact().is_none() && !parts.headers.contains_key(CONTENT_LENGTH) {
                headers::frame_by_chunks(&mut parts.headers);
            }
            parts.version = Version::HTTP_11;
            parts.uri = self.upstream.origin_target(parts.uri).ok_or(Refusal::Target)?;
        }
        Ok(Request::from_parts(parts, body))
    }

    fn trusts(&self, peer: &Peer) -> bool {
        self.options.trusted_peers.iter().any(|network| network.contains(&peer.address().ip()))
    }

    /// The upstream's answer as the client shall see it.
    fn pass_on<B>(
        &self,
        mut response: Response<Incoming>,
        lease: Option<Lease<B>>,
    ) -> Result<Response<ProxyBody<B>>, ProxyError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(ProxyError::Switched);
        }
        // Chunks win over a length (RFC 9112 6.3); passing both on would leave the choice to somebody else.
        if response.headers().contains_key(TRANSFER_ENCODING) {
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        headers::remove_hop_by_hop(response.headers_mut(), &self.protected);
        // The status line's version is our server's to choose, not the upstream's.
        *response.version_mut() = Version::HTTP_11;
        let idle = self.options.body_idle_timeout;
        Ok(response.map(|body| ProxyBody::upstream(TimedBody::new(body, idle), lease)))
    }
}

impl<B> Service<Request<B>> for Proxy<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Response = Response<ProxyBody<B>>;
    type Error = Infallible;
    type Future = Forward<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Forward<B> {
        Forward { way: self.send(request), shared: Arc::clone(&self.shared) }
    }
}

type Sending<B> =
    Pin<Box<dyn Future<Output = Result<(Response<Incoming>, Option<Lease<B>>), ProxyError>> + Send>>;

/// A request on its way. Resolves to the upstream's answer, or to a problem that carries [`Sent`](super::Sent).
pub struct Forward<B> {
    way: Result<Sending<B>, Refusal>,
    shared: Arc<Shared>,
}

impl<B> Future for Forward<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Output = Result<Response<ProxyBody<B>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let answered = match &mut this.way {
            Ok(sending) => ready!(sending.as_mut().poll(cx))
                .and_then(|(response, lease)| this.shared.pass_on(response, lease)),
            Err(refusal) => Err(ProxyError::Refused(*refusal)),
        };
        Poll::Ready(Ok(answered.unwrap_or_else(|error| error.refuse(&this.shared.options.answers))))
    }
}

impl<B> fmt::Debug for Forward<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forward").finish_non_exhaustive()
    }
}
