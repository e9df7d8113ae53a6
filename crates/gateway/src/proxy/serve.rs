//! The client's side: connections, their limits, and an end that waits for what is in progress.

use std::error::Error as StdError;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use metrics::Gauge;
use pin_project_lite::pin_project;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use super::body::{Inbound, TimedBody};
use super::meters;
use super::options::ServeOptions;

/// How long to wait before accepting again when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// hyper's own limit, for which it has room at hand; any other costs it an allocation's work per request.
const HYPER_HEADER_LINES_MAX: usize = 100;

type BoxError = Box<dyn StdError + Send + Sync>;

/// Who is at the other end of the connection a request came in on: an extension of every request.
#[derive(Clone, Debug)]
pub struct Peer {
    address: SocketAddr,
    text: HeaderValue,
}

impl Peer {
    /// Notes a peer.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        let text = address.ip().to_canonical().to_string();
        let text = HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"));
        Self { address, text }
    }

    /// Its socket address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn text(&self) -> &HeaderValue {
        &self.text
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every request in progress was answered.
    Whole,
    /// Time ran out; this many connections were cut.
    Cut(usize),
}

/// Serves `service` on `listener` until `shutdown` is cancelled, then finishes what is in progress within
/// [`ServeOptions::drain_timeout`]. Work the service detached from its connections is the service's to wait for.
///
/// The service must be ready at any time, as [`Proxy`](super::Proxy) is: it is called without being polled first.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    options: ServeOptions,
    shutdown: CancellationToken,
) -> Drained
where
    S: Service<Request<Inbound>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let lane = Lane { service, runtime: Handle::current() };
    serve_lanes(listener, vec![lane], options, shutdown).await
}

/// Where connections run, and the service they run on.
pub(crate) struct Lane<S> {
    pub(crate) service: S,
    pub(crate) runtime: Handle,
}

/// [`serve`] on several runtimes: each connection stays on the one it was given to, and they get them in turn.
pub(crate) async fn serve_lanes<S, B>(
    listener: TcpListener,
    lanes: Vec<Lane<S>>,
    options: ServeOptions,
    shutdown: CancellationToken,
) -> Drained
where
    S: Service<Request<Inbound>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let server = Arc::new(Server { protocol: protocol(&options), options, shutdown });
    let slots = Arc::new(Semaphore::new(server.options.connections_max));
    let mut connections = JoinSet::new();
    let open = meters::connections();
    let mut turn = 0;
    loop {
        // The slot comes first: at the limit, the next connection waits in the kernel's queue, unaccepted.
        let accepted = tokio::select! {
            accepted = accept(&listener, &slots) => accepted,
            Some(_) = connections.join_next() => continue,
            () = server.shutdown.cancelled() => break,
        };
        let Some((slot, stream, address)) = accepted else { continue };
        turn = (turn + 1) % lanes.len();
        let lane = &lanes[turn];
        let (server, service) = (Arc::clone(&server), lane.service.clone());
        let place = Place::take(slot, open.clone());
        let serving = async move {
            match TcpStream::from_std(stream) {
                Ok(stream) => server.serve_connection(stream, Peer::new(address), service).await,
                Err(error) => tracing::warn!(%error, "an accepted connection could not be used"),
            }
            drop(place);
        };
        connections.spawn_on(serving, &lane.runtime);
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    match tokio::time::timeout(server.options.drain_timeout, all).await {
        Ok(()) => Drained::Whole,
        Err(_) => {
            let left = connections.len();
            // Cut, and their sockets closed, before this returns.
            connections.shutdown().await;
            Drained::Cut(left)
        }
    }
}

/// The next connection, not yet bound to the runtime it will live on.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> Option<(OwnedSemaphorePermit, std::net::TcpStream, SocketAddr)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    let accepted = listener.accept().await;
    match accepted.and_then(|(stream, address)| Ok((stream.into_std()?, address))) {
        Ok((stream, address)) => Some((slot, stream, address)),
        Err(error) => {
            // Mostly: too many open files. The others go on; this one tries again in a moment.
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// An open connection's place under the limit, given back however the connection ends.
struct Place {
    open: Gauge,
    _slot: OwnedSemaphorePermit,
}

impl Place {
    fn take(slot: OwnedSemaphorePermit, open: Gauge) -> Self {
        open.increment(1);
        Self { open, _slot: slot }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.decrement(1);
    }
}

fn protocol(options: &ServeOptions) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_read_timeout)
        .max_buf_size(options.head_bytes_max);
    if options.header_lines_max != HYPER_HEADER_LINES_MAX {
        builder.http1().max_headers(options.header_lines_max);
    }
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(options.head_bytes_max).unwrap_or(u32::MAX))
        .max_concurrent_streams(options.streams_max);
    builder
}

struct Server {
    protocol: auto::Builder<TokioExecutor>,
    options: ServeOptions,
    shutdown: CancellationToken,
}

impl Server {
    async fn serve_connection<S, B>(&self, stream: TcpStream, peer: Peer, service: S)
    where
        S: Service<Request<Inbound>, Response = Response<B>> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
        let activity = Arc::new(Activity::default());
        let edge = Edge {
            service,
            peer,
            body_idle_timeout: self.options.body_idle_timeout,
            activity: Arc::clone(&activity),
        };
        let mut connection = pin!(self.protocol.serve_connection(TokioIo::new(stream), edge));
        // A peer that never finishes its first head is waited for as long as for any head.
        let mut check = pin!(sleep_until(Instant::now() + self.options.header_read_timeout));
        let mut seen = 0;
        let mut closing = false;
        loop {
            tokio::select! {
                biased;
                ended = &mut connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a client connection ended early");
                    }
                    return;
                }
                () = self.shutdown.cancelled(), if !closing => {
                    closing = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = &mut check => {
                    let idle = activity.is_idle_since(&mut seen);
                    if idle && closing {
                        return;
                    }
                    let mut next = self.options.idle_timeout;
                    if idle {
                        // Asked politely first: HTTP/2 clients can then tell which requests were not taken.
                        closing = true;
                        connection.as_mut().graceful_shutdown();
                        next = self.options.header_read_timeout;
                    }
                    check.as_mut().reset(Instant::now() + next);
                }
            }
        }
    }
}

/// What a connection has been doing, without a clock: two looks with the same count, and nothing in between.
#[derive(Debug, Default)]
struct Activity {
    started: AtomicU64,
    in_progress: AtomicU32,
}

impl Activity {
    /// Whether nothing was in progress or begun since the count in `seen` was taken; takes it anew.
    fn is_idle_since(&self, seen: &mut u64) -> bool {
        let started = self.started.load(Ordering::Relaxed);
        let unchanged = std::mem::replace(seen, started) == started;
        unchanged && self.in_progress.load(Ordering::Relaxed) == 0
    }
}

/// Stands between hyper and the service: says who the peer is, bounds the body's pauses, counts.
#[derive(Clone)]
struct Edge<S> {
    service: S,
    peer: Peer,
    body_idle_timeout: Duration,
    activity: Arc<Activity>,
}

impl<S, B> hyper::service::Service<Request<Incoming>> for Edge<S>
where
    S: Service<Request<Inbound>, Response = Response<B>> + Clone,
{
    type Response = Response<Counted<B>>;
    type Error = S::Error;
    type Future = Counted<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let mut request = request.map(|body| TimedBody::new(body, self.body_idle_timeout));
        request.extensions_mut().insert(self.peer.clone());
        let in_progress = Some(InProgress::begin(&self.activity));
        Counted { inner: self.service.clone().call(request), in_progress }
    }
}

/// Counts one request from its head to the last byte of its answer, however it ends.
struct InProgress(Arc<Activity>);

impl InProgress {
    fn begin(activity: &Arc<Activity>) -> Self {
        activity.started.fetch_add(1, Ordering::Relaxed);
        activity.in_progress.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(activity))
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Ordering::Relaxed);
    }
}

pin_project! {
    /// What is in progress: first the answer on its way, then its body.
    struct Counted<T> {
        #[pin]
        inner: T,
        in_progress: Option<InProgress>,
    }
}

impl<F, B, E> Future for Counted<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<Counted<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answered = ready!(this.inner.poll(cx));
        let in_progress = this.in_progress.take();
        Poll::Ready(answered.map(|response| response.map(|inner| Counted { inner, in_progress })))
    }
}

impl<B: Body> Body for Counted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().inner.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
