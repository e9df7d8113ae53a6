//! One request in, at most one request out.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use pin_project_lite::pin_project;
use tokio::time::Timeout;
use tower_service::Service;

use super::body::{BodyError, TimedBody};
use super::connect::{Connector, Upstream, UpstreamError};
use super::error::{ProxyError, Refusal};
use super::headers;
use super::options::{HostHeader, ProxyOptions, UpstreamProtocol};
use super::serve::Peer;

/// A request extension: how long this request may wait for the head of its answer, where the contract says
/// something else than [`ProxyOptions::response_timeout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamTimeout(pub Duration);

/// The proxy as a service. Cheap to clone; clones share one pool. `B` is the body it is given: the client's
/// stream for what is not keyed, a buffer for what is.
#[derive(Debug)]
pub struct Proxy<B> {
    // One count to change per clone, where the client alone would have a dozen: services are cloned per request.
    client: Arc<Client<Connector, B>>,
    shared: Arc<Shared>,
    /// Whether [`headers::admit`] has had its say before.
    admitted: bool,
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
        Self { client: Arc::clone(&self.client), shared: Arc::clone(&self.shared), admitted: self.admitted }
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
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(options.pool_idle_timeout)
            .pool_max_idle_per_host(options.pool_idle_max)
            // One claim is at most one send: the client must not take a second try upon itself.
            .retry_canceled_requests(false)
            .set_host(false)
            .http2_only(options.protocol == UpstreamProtocol::Http2)
            .build(Connector::new(&options)?);
        let protected = options.key_headers.iter().chain(&options.protected_headers).cloned().collect();
        Ok(Self {
            client: Arc::new(client),
            shared: Arc::new(Shared { upstream, options, protected }),
            admitted: false,
        })
    }

    /// The same proxy for requests that somebody in front has admitted by the same rules.
    pub(crate) fn admitted(mut self) -> Self {
        self.admitted = true;
        self
    }

    /// Sends `request`, and says what became of it. Dropping the future closes the connection it used; what the
    /// upstream does then is unknown.
    fn send(&self, request: Request<B>) -> Result<Forward, Refusal> {
        let limit = request
            .extensions()
            .get()
            .map_or(self.shared.options.response_timeout, |UpstreamTimeout(timeout)| *timeout);
        if !self.admitted {
            self.shared.admit(&request)?;
        }
        let request = self.shared.prepare(request)?;
        let sending = tokio::time::timeout(limit, self.client.request(request));
        Ok(Forward::Sending { sending, limit, shared: Arc::clone(&self.shared) })
    }
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
        let seen = match self.options.host {
            HostHeader::Preserve => host.clone().unwrap_or_else(|| self.upstream.host().clone()),
            HostHeader::Upstream => self.upstream.host().clone(),
        };
        let from = headers::From {
            address: peer.map(Peer::text),
            trusted: peer.is_some_and(|peer| self.trusts(peer)),
            version: parts.version,
            host,
        };
        headers::introduce(&mut parts.headers, from);
        if http2 {
            // The connection's own authority; a second name in `Host` could only contradict it.
            parts.headers.remove(HOST);
            if trailers {
                headers::ask_for_trailers(&mut parts.headers);
            }
        } else {
            parts.headers.insert(HOST, seen);
            headers::join_cookies(&mut parts.headers);
            if body.size_hint().exact().is_none() && !parts.headers.contains_key(CONTENT_LENGTH) {
                headers::frame_by_chunks(&mut parts.headers);
            }
        }
        parts.version = if http2 { Version::HTTP_2 } else { Version::HTTP_11 };
        parts.uri = self.upstream.target(parts.uri).ok_or(Refusal::Target)?;
        Ok(Request::from_parts(parts, body))
    }

    fn trusts(&self, peer: &Peer) -> bool {
        self.options.trusted_peers.iter().any(|network| network.contains(&peer.address().ip()))
    }

    /// The upstream's answer as the client shall see it.
    fn pass_on(&self, mut response: Response<Incoming>) -> Result<Response<ProxyBody>, ProxyError> {
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
        Ok(response.map(|body| ProxyBody::Upstream { body: TimedBody::new(body, idle) }))
    }
}

impl<B> Service<Request<B>> for Proxy<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Response = Response<ProxyBody>;
    type Error = Infallible;
    type Future = Forward;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Forward {
        self.send(request)
            .unwrap_or_else(|refusal| Forward::Refused { refusal, shared: Arc::clone(&self.shared) })
    }
}

pin_project! {
    /// A request on its way. Resolves to the upstream's answer, or to a problem that carries
    /// [`Sent`](super::Sent).
    #[project = Projected]
    #[allow(missing_docs, private_interfaces)] // the macro cannot hide the fields of an enum
    pub enum Forward {
        #[doc(hidden)]
        Sending { #[pin] sending: Timeout<ResponseFuture>, limit: Duration, shared: Arc<Shared> },
        #[doc(hidden)]
        Refused { refusal: Refusal, shared: Arc<Shared> },
    }
}

impl Future for Forward {
    type Output = Result<Response<ProxyBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (answered, shared) = match self.project() {
            Projected::Refused { refusal, shared } => (Err(ProxyError::Refused(*refusal)), shared),
            Projected::Sending { sending, limit, shared } => {
                let answered = match ready!(sending.poll(cx)) {
                    Ok(Ok(response)) => shared.pass_on(response),
                    Ok(Err(error)) => Err(ProxyError::from_client(error)),
                    Err(_) => Err(ProxyError::Late(*limit)),
                };
                (answered, shared)
            }
        };
        Poll::Ready(Ok(answered.unwrap_or_else(|error| error.refuse(&shared.options.answers))))
    }
}

pin_project! {
    /// The body of an answer: the upstream's, streamed, or a short one of the proxy's own.
    #[project = ProjectedBody]
    #[allow(missing_docs)]
    #[derive(Debug)]
    pub enum ProxyBody {
        #[doc(hidden)]
        Upstream { #[pin] body: TimedBody<Incoming> },
        #[doc(hidden)]
        Own { #[pin] body: Full<Bytes> },
    }
}

impl From<Bytes> for ProxyBody {
    fn from(bytes: Bytes) -> Self {
        Self::Own { body: Full::new(bytes) }
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.project() {
            ProjectedBody::Upstream { body } => body.poll_frame(cx),
            ProjectedBody::Own { body } => body.poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Upstream { body } => body.is_end_stream(),
            Self::Own { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Upstream { body } => body.size_hint(),
            Self::Own { body } => body.size_hint(),
        }
    }
}
