//! How a request failed, and how far it had got: the second half decides whether its key may be released.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use hyper_util::client::legacy;
use serde_json::json;

/// `Retry-After` of an upstream that could not be reached: long enough for a restart, short enough for a person.
const RETRY_AFTER_S: u16 = 1;

/// How much of a failed request the upstream may have seen. Protocol 21 turns on it: only `Nothing` releases a
/// key, everything else leaves it uncertain.
///
/// It travels as a response extension on every answer the proxy makes up itself. An answer without it is the
/// upstream's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Not a byte of the request was written: the upstream cannot have acted on it.
    Nothing,
    /// Some of it may have been written; the upstream may have acted, may still act, and nobody here knows.
    Unknown,
}

/// Why there is no answer of the upstream's to pass on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The request may not be forwarded as it is.
    #[error("the request was refused: {0}")]
    Refused(Refusal),
    /// No connection, or none in time. Nothing was sent.
    #[error("the upstream could not be reached")]
    Unreachable(#[source] legacy::Error),
    /// The pooled connection had closed before a byte was written. Nothing was sent.
    #[error("the upstream closed the connection before the request was written")]
    NotWritten(#[source] legacy::Error),
    /// The connection broke after the request had gone out, in part or whole.
    #[error("the upstream closed the connection without an answer")]
    Broken(#[source] legacy::Error),
    /// No head of an answer in time.
    #[error("the upstream did not answer within {} ms", .0.as_millis())]
    Late(Duration),
    /// The answer is one no proxy may pass on (a 101 nobody asked for).
    #[error("the upstream switched protocols without being asked")]
    Switched,
}

/// What a request must not be, to be forwarded. Decided before anything is sent or claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// `CONNECT` and `TRACE`: a tunnel, or a mirror of other people's credentials.
    Method,
    /// HTTP/1.1 without `Host`, or with two.
    Host,
    /// A transfer coding beside `chunked`: the proxy would strip its name and leave its bytes.
    TransferCoding,
    /// An expectation other than `100-continue`.
    Expectation,
    /// A request with an idempotency key asks for another protocol.
    KeyedUpgrade,
    /// A target that is no path, such as `OPTIONS` for a whole other server.
    Target,
}

impl Refusal {
    const fn answer(self) -> (StatusCode, &'static str) {
        match self {
            Self::Method => (StatusCode::NOT_IMPLEMENTED, "This method is not forwarded"),
            Self::Host => (StatusCode::BAD_REQUEST, "Send exactly one Host field"),
            Self::TransferCoding => {
                (StatusCode::NOT_IMPLEMENTED, "Only the chunked transfer coding is understood")
            }
            Self::Expectation => {
                (StatusCode::EXPECTATION_FAILED, "Only the expectation 100-continue is understood")
            }
            Self::KeyedUpgrade => {
                (StatusCode::BAD_REQUEST, "A request with an idempotency key cannot change the protocol")
            }
            Self::Target => (StatusCode::BAD_REQUEST, "The request target must be a path"),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.answer().1)
    }
}

impl ProxyError {
    /// Sorts what the pooled client reports. The client itself never sends twice, so its error is about one
    /// attempt.
    pub(super) fn from_client(error: legacy::Error) -> Self {
        if error.is_connect() {
            return Self::Unreachable(error);
        }
        let canceled = error
            .source()
            .and_then(|source| source.downcast_ref::<hyper::Error>())
            .is_some_and(hyper::Error::is_canceled);
        // hyper hands a request back, as "canceled", only while it still lies in the queue of a connection. Once
        // its head was encoded, even into a buffer that was never flushed, the error is another one: doubt counts
        // as sent.
        if canceled { Self::NotWritten(error) } else { Self::Broken(error) }
    }

    /// How far the request got.
    #[must_use]
    pub fn sent(&self) -> Sent {
        match self {
            Self::Refused(_) | Self::Unreachable(_) | Self::NotWritten(_) => Sent::Nothing,
            Self::Broken(_) | Self::Late(_) | Self::Switched => Sent::Unknown,
        }
    }

    /// A stable word for it, in answers and as a metric's label.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused(_) => "request_refused",
            Self::Unreachable(_) | Self::NotWritten(_) => "upstream_unreachable",
            Self::Broken(_) | Self::Switched => "upstream_broken",
            Self::Late(_) => "upstream_timeout",
        }
    }

    /// The problem (RFC 9457) a client reads, with [`Sent`] as an extension. `retryable` speaks for a request
    /// without a key: a request that may have been seen is not safe to send again by itself.
    pub(crate) fn answer<B: From<Bytes>>(&self) -> Response<B> {
        let (status, title) = match self {
            Self::Refused(refusal) => refusal.answer(),
            Self::Unreachable(_) | Self::NotWritten(_) => {
                (StatusCode::BAD_GATEWAY, "The upstream could not be reached; nothing was sent to it")
            }
            Self::Broken(_) | Self::Switched => {
                (StatusCode::BAD_GATEWAY, "The upstream broke off; it may have acted on the request")
            }
            Self::Late(_) => (
                StatusCode::GATEWAY_TIMEOUT,
                "The upstream did not answer in time; it may have acted on the request",
            ),
        };
        let retryable = !matches!(self, Self::Refused(_)) && self.sent() == Sent::Nothing;
        let body = json!({
            "type": "about:blank",
            "title": title,
            "status": status.as_u16(),
            "code": self.code(),
            "retryable": retryable,
        });
        let mut response = Response::new(B::from(Bytes::from(body.to_string())));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if retryable {
            headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        if matches!(self, Self::Refused(_)) {
            // Where its framing is in doubt, what follows on the connection is no request of anybody's.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(self.sent());
        response
    }
}
