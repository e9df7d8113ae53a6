//! The data path: HTTP/1.1 and HTTP/2 in front, a pooled upstream behind.
//!
//! ```no_run
//! use retrysafe_gateway::proxy::{Inbound, Proxy, ProxyOptions, ServeOptions, Upstream, serve};
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! let upstream: Upstream = "http://127.0.0.1:3000".parse()?;
//! let proxy = Proxy::<Inbound>::new(upstream, ProxyOptions::default())?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8787").await?;
//! serve(listener, proxy, ServeOptions::default(), CancellationToken::new()).await;
//! # Ok(()) }
//! ```
//!
//! What it keeps and what it changes is in [`headers`]; how far a failed request got is in [`Sent`]; every limit is
//! a field of [`ProxyOptions`] or [`ServeOptions`], and every default a named constant beside it.
//!
//! Limits: no `Upgrade` and no `CONNECT` (a tunnel cannot be claimed or replayed), no caching, no retries, no
//! load balancing over several upstreams. HTTP/1.1 trailers are dropped, as RFC 9110 6.5.1 allows.

mod answer;
mod body;
mod connect;
mod error;
mod forward;
pub mod headers;
mod meters;
mod options;
mod pool;
mod serve;
mod workers;

pub use answer::ProxyBody;
pub use body::{BodyError, Inbound, TimedBody};
pub use connect::{Upstream, UpstreamError};
pub use error::{ProxyError, Refusal, Sent};
pub use forward::{Forward, Proxy, UpstreamTimeout};
pub use options::{HostHeader, ProxyOptions, ServeOptions, UpstreamProtocol};
pub use serve::{Drained, Peer, serve};
pub(crate) use serve::{Lane, serve_lanes};
pub(crate) use workers::Workers;
