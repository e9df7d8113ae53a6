//! Every limit of the data path, with its default and the reason for it.

use std::time::Duration;

use http::HeaderName;
use ipnet::IpNet;
use retrysafe_core::contract::Answers;

/// A connection to the upstream, TLS included, takes no longer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// From handing a request over to the head of its answer; a contract may say otherwise per endpoint.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest pause inside a body, in either direction.
const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// An upstream connection that was unused for this long is not used again. Shorter than the five seconds after which Node servers
/// close theirs: a request written into a connection that is just being closed has an unknown outcome.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// Unused connections kept to the upstream.
const POOL_IDLE_MAX: usize = 256;

/// A client's request head must arrive whole within this.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(10);
/// A client connection without a request for this long (at most twice this) is closed.
const CLIENT_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Requests in progress may go on this long after a shutdown was asked for.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of one request head. Also the read buffer of an HTTP/1.1 connection.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Header lines of one HTTP/1.1 request.
const HEADER_LINES_MAX: usize = 100;
/// Client connections at once; the next one waits in the listen queue.
const CONNECTIONS_MAX: usize = 10_000;
/// Requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 250;

/// How the proxy talks to the upstream.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    /// See the constant: 5 s, DNS and TLS included. A failure here means that nothing was sent.
    pub connect_timeout: Duration,
    /// 30 s to the head of the answer. [`UpstreamTimeout`](super::UpstreamTimeout) on a request overrides it.
    pub response_timeout: Duration,
    /// 30 s between two frames of an answer's body.
    pub body_idle_timeout: Duration,
    /// 4 s. Keep it below the upstream's own keep-alive timeout.
    pub pool_idle_timeout: Duration,
    /// 256 unused connections.
    pub pool_idle_max: usize,
    /// HTTP/1.1 unless told otherwise.
    pub protocol: UpstreamProtocol,
    /// Which `Host` the upstream sees.
    pub host: HostHeader,
    /// Peers whose `X-Forwarded-*` and `Forwarded` fields are kept and extended; everybody else's are replaced.
    pub trusted_peers: Vec<IpNet>,
    /// The fields that carry an idempotency key. They are never removed because a `Connection` field names
    /// them, and a request that has one may not ask for an upgrade.
    pub key_headers: Vec<HeaderName>,
    /// Further fields that no `Connection` option can remove: those that select the scope or the effect.
    pub protected_headers: Vec<HeaderName>,
    /// How the proxy's own answers look. Problem details unless a contract shapes them: a client library may take
    /// any JSON without its own error envelope for success.
    pub answers: Answers,
}

impl Default for ProxyOptions {
    fn default() -> Self {
        Self {
            connect_timeout: CONNECT_TIMEOUT,
            response_timeout: RESPONSE_TIMEOUT,
            body_idle_timeout: BODY_IDLE_TIMEOUT,
            pool_idle_timeout: POOL_IDLE_TIMEOUT,
            pool_idle_max: POOL_IDLE_MAX,
            protocol: UpstreamProtocol::Http1,
            host: HostHeader::Preserve,
            trusted_peers: Vec::new(),
            key_headers: vec![HeaderName::from_static("idempotency-key")],
            protected_headers: Vec::new(),
            answers: problem_details(),
        }
    }
}

fn problem_details() -> Answers {
    Answers {
        type_base: "/.retrysafe/errors/".to_owned(),
        content_type: "application/problem+json".to_owned(),
        template: None,
        statuses: Vec::new(),
        headers: Vec::new(),
    }
}

/// What is spoken to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamProtocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2: with prior knowledge on `http`, by ALPN on `https`.
    Http2,
}

/// Which `Host` the upstream sees. HTTP/2 upstreams always see their own authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostHeader {
    /// The client's: links and redirects the upstream makes then lead back through the gateway.
    Preserve,
    /// The upstream URL's, for virtual hosts that know no other name.
    Upstream,
}

/// How the server side treats its clients.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// 10 s for a whole request head, the first one counted from the connection's start.
    pub header_read_timeout: Duration,
    /// 60 s without a request.
    pub idle_timeout: Duration,
    /// 30 s between two frames of a request's body.
    pub body_idle_timeout: Duration,
    /// 30 s for what is in progress at a shutdown.
    pub drain_timeout: Duration,
    /// 64 KiB of request head; more is a 431.
    pub head_bytes_max: usize,
    /// 100 header lines (HTTP/1.1); more is a 431.
    pub header_lines_max: usize,
    /// 10,000 connections at once.
    pub connections_max: usize,
    /// 250 requests at once on one HTTP/2 connection.
    pub streams_max: u32,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            header_read_timeout: HEADER_READ_TIMEOUT,
            idle_timeout: CLIENT_IDLE_TIMEOUT,
            body_idle_timeout: BODY_IDLE_TIMEOUT,
            drain_timeout: DRAIN_TIMEOUT,
            head_bytes_max: HEAD_BYTES_MAX,
            header_lines_max: HEADER_LINES_MAX,
            connections_max: CONNECTIONS_MAX,
            streams_max: STREAMS_MAX,
        }
    }
}
