//! What a handler says of its own work, and how the layer reads it.

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use retrysafe_core::{outcome::NotKept, policy::Effect};
use serde::Serialize;

use crate::{
    body::{Body, BoxError},
    guard::{Disposition, Ran},
};

/// What a handler that did its work replies with. It is stored and replayed whatever its status: the handler, not the
/// status, decides (protocol 16).
#[derive(Debug)]
pub struct Reply(Box<http::Response<Bytes>>);

/// What a handler that did *not* cause its effect replies with.
#[derive(Debug)]
pub enum Refuse {
    /// Store this answer as the contract's failure policy says for its status.
    Store(Reply),
    /// Free the key: the next attempt runs again.
    Release(Reply),
    /// Whether the effect happened is unknown: the key becomes uncertain.
    Unknown,
    /// The work could not be done: a statement failed, a connection broke. In a transaction it is rolled back, the key is
    /// free and the caller is told to come again; outside of one nobody knows what happened, as with
    /// [`Unknown`](Refuse::Unknown). `?` makes one of any error.
    Failed(BoxError),
}

/// So that `?` works on whatever a driver returns.
impl<E> From<E> for Refuse
where
    E: std::error::Error + Send + Sync + 'static,
{
    fn from(error: E) -> Self {
        Refuse::Failed(Box::new(error))
    }
}

impl Reply {
    /// A reply with a JSON body. A value that cannot be serialised becomes an empty 500.
    pub fn json(status: u16, value: &impl Serialize) -> Self {
        let body = serde_json::to_vec(value);
        let status = if body.is_ok() { status } else { 500 };
        Self::bytes(status, "application/json", body.unwrap_or_default())
    }

    /// A reply with these bytes.
    pub fn bytes(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let mut response = http::Response::new(body.into());
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        Self(Box::new(response))
    }

    /// With a header line more. A value that is no header value is left out.
    #[must_use]
    pub fn header(mut self, name: http::HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::try_from(value) {
            self.0.headers_mut().append(name, value);
        }
        self
    }
}

impl Refuse {
    /// A refusal to be stored, as a problem with this detail.
    pub fn store(status: u16, detail: &str) -> Self {
        Self::Store(problem(status, detail))
    }

    /// A refusal that frees the key, as a problem with this detail.
    pub fn release(status: u16, detail: &str) -> Self {
        Self::Release(problem(status, detail))
    }
}

fn problem(status: u16, detail: &str) -> Reply {
    let body = serde_json::json!({ "status": status, "detail": detail });
    Reply::bytes(status, "application/problem+json", body.to_string())
}

/// The response that says it, with what the handler knows of its effect beside it.
pub(crate) fn respond(result: Result<Reply, Refuse>) -> http::Response<Bytes> {
    let (Reply(mut response), effect) = match result {
        Ok(reply) => (reply, Effect::Done),
        Err(Refuse::Store(reply)) => (reply, Effect::None),
        Err(Refuse::Release(Reply(mut response))) => {
            response.extensions_mut().insert(Disposition::Release);
            return *response;
        }
        Err(Refuse::Unknown) => (unknown(), Effect::Unknown),
        Err(Refuse::Failed(error)) => {
            tracing::error!(error, "a handler failed, and nothing says how far it came");
            (unknown(), Effect::Unknown)
        }
    };
    response.extensions_mut().insert(effect);
    *response
}

fn unknown() -> Reply {
    Reply::bytes(500, "application/json", Bytes::new())
}

impl Ran {
    /// What a handler left behind whose answer is at hand.
    pub(crate) fn of(response: http::Response<Bytes>, limit: usize) -> Ran {
        let (parts, body) = response.into_parts();
        if body.len() > limit {
            return Ran::Unkept { parts, body: Body::full(body), why: NotKept::TooLarge };
        }
        Ran::Answered { parts, body, trailers: None }
    }
}
