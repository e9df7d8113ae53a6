//! A pool of HTTP/1.1 connections to the one upstream.
//!
//! On hyper's connections, and not a client library's pool, because of one thing that only hyper itself can say: whether
//! a request that failed had been written. A connection hands a request back as long as it has not begun to write it;
//! then, and only then, it may go to another connection without being sent twice. That the way is also shorter (no
//! lookup by host, no race between connecting and waiting) is what a proxy's speed is made of.
//!
//! A connection is lent for one exchange and comes back when the answer's body has ended. One whose answer was not read
//! to its end, or that has waited longer than the limit, is not used again.

use std::error::Error as StdError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use tower_service::Service;

use super::connect::Connector;
use super::error::ProxyError;
use super::options::ProxyOptions;

/// The connections that wait for a request.
pub(super) struct Pool<B> {
    connector: Connector,
    upstream: Uri,
    response_timeout: Duration,
    idle_timeout: Duration,
    idle_max: usize,
    /// Newest last.
    idle: Mutex<Vec<Idle<B>>>,
}

struct Idle<B> {
    sender: SendRequest<B>,
    since: Instant,
}

/// A connection that is lent for one exchange.
pub(super) struct Lease<B> {
    pool: Arc<Pool<B>>,
    sender: SendRequest<B>,
}

impl<B> Pool<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    pub(super) fn new(connector: Connector, upstream: Uri, options: &ProxyOptions) -> Arc<Self> {
        Arc::new(Self {
            connector,
            upstream,
            response_timeout: options.response_timeout,
            idle_timeout: options.pool_idle_timeout,
            idle_max: options.pool_idle_max,
            idle: Mutex::new(Vec::new()),
        })
    }

    /// Sends a request once, and waits for the head of its answer for at most `limit` after it was connected.
    pub(super) async fn send(
        self: Arc<Self>,
        mut request: Request<B>,
        limit: Option<Duration>,
    ) -> Result<(Response<Incoming>, Lease<B>), ProxyError> {
        let limit = limit.unwrap_or(self.response_timeout);
        loop {
            let (mut sender, pooled) = match self.take() {
                Some(sender) => (sender, true),
                None => (self.connect().await?, false),
            };
            let exchange = tokio::time::timeout(limit, sender.try_send_request(request));
            let mut error = match exchange.await {
                Ok(Ok(response)) => return Ok((response, Lease { pool: self, sender })),
                Ok(Err(error)) => error,
                Err(_) => return Err(ProxyError::Late(limit)),
            };
            match error.take_message() {
                // The connection ended while it waited in the pool, and not a byte was written: a new one is no second
                // send. Each turn uses one pooled connection up, so this ends.
                Some(unsent) if pooled => request = unsent,
                Some(_) => return Err(ProxyError::NotWritten(error.into_error().into())),
                // Encoded, even if only into a buffer that was never flushed: doubt counts as sent.
                None => return Err(ProxyError::Broken(error.into_error().into())),
            }
        }
    }

    fn take(&self) -> Option<SendRequest<B>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(Idle { sender, since }) = idle.pop() {
            if since.elapsed() >= self.idle_timeout {
                // The others have waited even longer.
                idle.clear();
                return None;
            }
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    async fn connect(&self) -> Result<SendRequest<B>, ProxyError> {
        let stream =
            self.connector.clone().call(self.upstream.clone()).await.map_err(ProxyError::Unreachable)?;
        let shaken = http1::handshake(stream).await;
        let (mut sender, connection) = shaken.map_err(|error| ProxyError::Unreachable(error.into()))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the upstream ended");
            }
        });
        sender.ready().await.map_err(|error| ProxyError::Unreachable(error.into()))?;
        Ok(sender)
    }

    fn put(&self, sender: SendRequest<B>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.idle_max {
            idle.push(Idle { sender, since: Instant::now() });
        }
    }
}

impl<B> Lease<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Gives the connection back, now that its answer was read to the end.
    pub(super) fn give_back(self) {
        let Self { pool, mut sender } = self;
        if sender.is_ready() {
            pool.put(sender);
            return;
        }
        // The upstream answered before it had the whole request, or is closing. Whoever waited for this connection now
        // might wait for a client that sends slowly.
        tokio::spawn(async move {
            let ready = tokio::time::timeout(pool.idle_timeout, sender.ready());
            if matches!(ready.await, Ok(Ok(()))) {
                pool.put(sender);
            }
        });
    }
}

impl<B> std::fmt::Debug for Pool<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}

impl<B> std::fmt::Debug for Lease<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").finish_non_exhaustive()
    }
}
