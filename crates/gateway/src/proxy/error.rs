//! How a request failed, and how far it had got: the second half decides whether its key may be released.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use hyper_util::client::legacy;
use retrysafe_core::answers;
use retrysafe_core::codes::Code;
use retrysafe_core::contract::Answers;
use retrysafe_core::decide;

use super::meters;

/// `Retry-After` of an upstream that could not be reached: long enough for a restart, short enough for a person.
const RETRY_AFTER: Duration = Duration::from_secs(1);

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

type BoxError = Box<dyn StdError + Send + Sync>;

/// Why there is no answer of the upstream's to pass on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The request may not be forwarded as it is.
    #[error("the request was refused: {0}")]
    Refused(Refusal),
    /// No connection, or none in time. Nothing was sent.
    #[error("the upstream could not be reached")]
    Unreachable(#[source] BoxError),
    /// A new connection closed before a byte was written. Nothing was sent.
    #[error("the upstream closed the connection before the request was written")]
    NotWritten(#[source] BoxError),
    /// The connection broke after the request had gone out, in part or whole.
    #[error("the upstream closed the connection without an answer")]
    Broken(#[source] BoxError),
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
    /// The code of the answer.
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            Self::KeyedUpgrade => Code::NotGuardable,
            Self::Method | Self::Host | Self::TransferCoding | Self::Expectation | Self::Target => {
                Code::RequestRefused
            }
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Method => "CONNECT and TRACE are not forwarded",
            Self::Host => "not exactly one usable Host",
            Self::TransferCoding => "a transfer coding besides chunked",
            Self::Expectation => "an expectation besides 100-continue",
            Self::KeyedUpgrade => "a request with an idempotency key asks for another protocol",
            Self::Target => "the target is no path",
        })
    }
}

impl ProxyError {
    /// Sorts what the HTTP/2 client reports. The client itself never sends twice, so its error is about one attempt.
    pub(super) fn from_client(error: legacy::Error) -> Self {
        if error.is_connect() {
            return Self::Unreachable(error.into());
        }
        let unwritten = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
        // hyper calls a request canceled while it still lies in the queue of a connection, and only then.
        if unwritten.is_some_and(hyper::Error::is_canceled) {
            Self::NotWritten(error.into())
        } else {
            Self::Broken(error.into())
        }
    }

    /// How far the request got.
    #[must_use]
    pub fn sent(&self) -> Sent {
        match self {
            Self::Refused(_) | Self::Unreachable(_) | Self::NotWritten(_) => Sent::Nothing,
            Self::Broken(_) | Self::Late(_) | Self::Switched => Sent::Unknown,
        }
    }

    /// The code of the answer, and the label of the metric.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Refused(refusal) => refusal.code(),
            Self::Unreachable(_) | Self::NotWritten(_) => Code::UpstreamUnavailable,
            Self::Broken(_) | Self::Switched => Code::UpstreamBroken,
            Self::Late(_) => Code::UpstreamTimeout,
        }
    }

    /// Counts it, logs it, and makes its answer.
    pub(crate) fn refuse<B: From<Bytes>>(&self, answers: &Answers) -> Response<B> {
        meters::failed(self);
        tracing::warn!(
            code = %self.code(),
            sent = ?self.sent(),
            cause = self.source().map(tracing::field::display),
            "{self}"
        );
        self.answer(answers)
    }

    /// The answer a client reads, in the contract's shape, with [`Sent`] as an extension.
    fn answer<B: From<Bytes>>(&self, answers: &Answers) -> Response<B> {
        let retry_after = self.code().retryable().then_some(RETRY_AFTER);
        let rendered = answers::render(answers, decide::Refusal { code: self.code(), retry_after });
        let mut response = Response::new(B::from(Bytes::from(rendered.body)));
        *response.status_mut() = StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let headers = response.headers_mut();
        for (name, value) in rendered.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if matches!(self, Self::Refused(_)) {
            // Where its framing is in doubt, what follows on the connection is no request of anybody's.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(self.sent());
        response
    }
}
