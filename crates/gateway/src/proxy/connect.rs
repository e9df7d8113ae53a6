//! Which upstream, and how a connection to it is made.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::{self, Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use tower_service::Service;

use super::options::{ProxyOptions, UpstreamProtocol};

/// The API behind the gateway: scheme, host, port, and perhaps a path all requests are put under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    scheme: Scheme,
    authority: Authority,
    /// Without the closing slash; empty for most.
    base: String,
    host: HeaderValue,
}

/// The upstream's URL cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// No URL at all.
    #[error("the upstream {0:?} is not a URL; write it as http://host:port")]
    Syntax(String),
    /// Something else than `http` or `https`, or none.
    #[error("the upstream {0:?} must begin with http:// or https://")]
    Scheme(String),
    /// Credentials, a query or a fragment: nothing of that is the proxy's to add to other people's requests.
    #[error("the upstream {0:?} may name host, port and path only, no credentials or query")]
    Extra(String),
    /// The system has no usable TLS configuration.
    #[error("TLS for the upstream cannot be set up: {0}")]
    Tls(String),
}

impl FromStr for Upstream {
    type Err = UpstreamError;

    fn from_str(text: &str) -> Result<Self, UpstreamError> {
        let owned = || text.to_owned();
        let uri: Uri = text.parse().map_err(|_| UpstreamError::Syntax(owned()))?;
        let parts = uri.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(UpstreamError::Scheme(owned()));
        };
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(UpstreamError::Scheme(owned()));
        }
        let path = parts.path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
        if path.query().is_some() || authority.as_str().contains('@') || text.contains('#') {
            return Err(UpstreamError::Extra(owned()));
        }
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| UpstreamError::Syntax(owned()))?;
        let base = path.path().trim_end_matches('/').to_owned();
        Ok(Self { scheme, authority, base, host })
    }
}

impl std::fmt::Display for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.base)
    }
}

impl Upstream {
    /// Its authority as a `Host` field.
    pub(crate) fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// The server itself, for connecting to it.
    pub(super) fn root(&self) -> Uri {
        self.with_server(PathAndQuery::from_static("/")).unwrap_or_default()
    }

    /// A request's target as HTTP/1.1 sends it: the path and query alone. `None` if there is no path that this upstream
    /// could serve.
    pub(super) fn origin_target(&self, uri: Uri) -> Option<Uri> {
        let mut parts = uri::Parts::default();
        parts.path_and_query = Some(self.path(uri)?);
        Uri::from_parts(parts).ok()
    }

    /// The same with the server's name, as HTTP/2 sends it.
    pub(super) fn absolute_target(&self, uri: Uri) -> Option<Uri> {
        self.with_server(self.path(uri)?)
    }

    fn path(&self, uri: Uri) -> Option<PathAndQuery> {
        let path = uri.into_parts().path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
        if self.base.is_empty() {
            return Some(path);
        }
        // `*` means the server as a whole, of which this upstream is only a part.
        if path == "*" { None } else { PathAndQuery::try_from(format!("{}{path}", self.base)).ok() }
    }

    fn with_server(&self, path: PathAndQuery) -> Option<Uri> {
        let mut parts = uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path);
        Uri::from_parts(parts).ok()
    }
}

/// TCP, and TLS where the URL asks for it, under one clock.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    inner: HttpsConnector<HttpConnector>,
    timeout: Duration,
}

impl Connector {
    pub(super) fn new(options: &ProxyOptions) -> Result<Self, UpstreamError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let tls = HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(rustls::crypto::ring::default_provider())
            .map_err(|error| UpstreamError::Tls(error.to_string()))?
            .https_or_http();
        let inner = match options.protocol {
            UpstreamProtocol::Http1 => tls.enable_http1().wrap_connector(tcp),
            UpstreamProtocol::Http2 => tls.enable_http2().wrap_connector(tcp),
        };
        Ok(Self { inner, timeout: options.connect_timeout })
    }
}

type Connection = <HttpsConnector<HttpConnector> as Service<Uri>>::Response;
type ConnectError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Uri> for Connector {
    type Response = Connection;
    type Error = ConnectError;
    // Boxed: a connection is made once for thousands of requests.
    type Future = Pin<Box<dyn Future<Output = Result<Connection, ConnectError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let connecting = self.inner.call(target);
        let timeout = self.timeout;
        Box::pin(async move {
            match tokio::time::timeout(timeout, connecting).await {
                Ok(connected) => connected,
                Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_name_an_upstream_and_those_that_do_not() {
        for (text, shown) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("https://api.example.com/", "https://api.example.com"),
            ("http://[::1]:80/v2/", "http://[::1]:80/v2"),
        ] {
            assert_eq!(text.parse::<Upstream>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "localhost:3000",
            "/path",
            "ftp://a",
            "http://u:p@a/",
            "http://a/?q=1",
            "http://a/#f",
            "http://",
        ] {
            assert!(text.parse::<Upstream>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn targets_keep_path_and_query_and_change_the_server() {
        for (base, target, expected) in [
            ("http://up", "/a/b?c=d%20e", "http://up/a/b?c=d%20e"),
            ("http://up/v2", "/a?c", "http://up/v2/a?c"),
            ("http://up", "http://elsewhere/a", "http://up/a"),
            ("http://up", "http://elsewhere", "http://up/"),
            ("http://up", "//evil/x", "http://up//evil/x"),
        ] {
            let upstream: Upstream = base.parse().unwrap();
            let target: Uri = target.parse().unwrap();
            assert_eq!(upstream.absolute_target(target.clone()).unwrap().to_string(), expected);
            let origin = upstream.origin_target(target).unwrap().to_string();
            assert_eq!(format!("http://up{origin}"), expected);
        }
        let part: Upstream = "http://up/v2".parse().unwrap();
        assert_eq!(part.origin_target("*".parse().unwrap()), None);
    }
}
