//! The axum forms: account and peer for the layer, and the extractor that a handler takes instead of the layer.
//!
//! The extractor comes last in a handler's arguments, after authentication. It reads and identifies the request; nothing
//! is claimed until [`Keyed::run`], and the answer exists only after its outcome is stored.
//!
//! ```
//! # use axum::{Extension, Json, Router, routing::post};
//! # use retrysafe_server::{Retrysafe, extract::{Answer, Keyed, Refuse, Reply}};
//! # use serde::{Deserialize, Serialize};
//! #[derive(Deserialize)]
//! struct NewOrder { amount: i64 }
//! #[derive(Serialize)]
//! struct Order { id: u64, amount: i64 }
//!
//! async fn create(keyed: Keyed<NewOrder>) -> Answer {
//!     keyed.run(|order, _guarded| async move {
//!         if order.amount <= 0 {
//!             return Err(Refuse::store(422, "the amount must be positive"));
//!         }
//!         Ok(Reply::json(201, &Order { id: 1, amount: order.amount }))
//!     }).await
//! }
//! # fn app(retrysafe: Retrysafe) -> Router {
//! Router::new().route("/orders", post(create)).layer(Extension(retrysafe))
//! # }
//! ```

use std::{future::Future, sync::Arc};

use axum::{
    extract::{FromRequest, Request},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use retrysafe_core::{codes::Code, decide::Refusal, policy::Effect};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    admit::Admitted,
    body::Body,
    guard::{Disposition, Guard, Guarded, Job},
    retrysafe::Retrysafe,
};

/// A keyed request whose body is a `T`, identified and read, not yet claimed.
#[must_use = "nothing runs until `run` is called"]
pub struct Keyed<T> {
    guard: Arc<Guard>,
    job: Box<Job>,
    body: T,
}

/// The answer of a keyed handler. Only [`Keyed::run`] makes one.
#[derive(Debug)]
pub struct Answer(http::Response<Body>);

/// What a handler that did its work replies with. It is stored and replayed whatever its status: the handler, not the
/// status, decides (protocol 16).
#[derive(Debug)]
pub struct Reply(http::Response<Bytes>);

/// What a handler that did *not* cause its effect replies with.
#[derive(Debug)]
pub enum Refuse {
    /// Store this answer as the contract's failure policy says for its status.
    Store(Reply),
    /// Free the key: the next attempt runs again.
    Release(Reply),
    /// Whether the effect happened is unknown: the key becomes uncertain.
    Unknown,
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
        Self(response)
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

impl<T: Send + 'static> Keyed<T> {
    /// The body.
    pub fn body(&self) -> &T {
        &self.body
    }

    /// Runs `work` if this request wins its claim, in a task that neither a disconnect nor a timeout around the handler
    /// cancels; otherwise answers with the first run's answer, or with why not.
    pub async fn run<W, F>(self, work: W) -> Answer
    where
        W: FnOnce(T, Guarded) -> F + Send + 'static,
        F: Future<Output = Result<Reply, Refuse>> + Send + 'static,
    {
        let Keyed { guard, job, body } = self;
        let response = guard
            .run(job, move |request: http::Request<Body>| async move {
                // The layer puts it there before it calls the work.
                let Some(guarded) = request.extensions().get::<Guarded>().cloned() else {
                    return Err(NotGuarded);
                };
                Ok(respond(work(body, guarded).await))
            })
            .await;
        Answer(response)
    }
}

struct NotGuarded;

fn respond(result: Result<Reply, Refuse>) -> http::Response<Body> {
    let (Reply(response), effect) = match result {
        Ok(reply) => (reply, Effect::Done),
        Err(Refuse::Store(reply)) => (reply, Effect::None),
        Err(Refuse::Release(Reply(response))) => {
            let mut response = response.map(Body::full);
            response.extensions_mut().insert(Disposition::Release);
            return response;
        }
        Err(Refuse::Unknown) => (Reply::bytes(500, "application/json", Bytes::new()), Effect::Unknown),
    };
    let mut response = response.map(Body::full);
    response.extensions_mut().insert(effect);
    response
}

impl<S, T> FromRequest<S> for Keyed<T>
where
    S: Send + Sync,
    T: DeserializeOwned + Send + 'static,
{
    type Rejection = Response;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Response> {
        let Some(Retrysafe { guard }) = request.extensions().get::<Retrysafe>().cloned() else {
            tracing::error!("Keyed needs `.layer(Extension(retrysafe))` on the router");
            return Err(StatusCode::INTERNAL_SERVER_ERROR.into_response());
        };
        let uri = crate::layer::original_uri(&request);
        let request = crate::layer::with_peer(request);
        let job = match guard.admit(request, uri.path(), uri.query()).await {
            Admitted::Keyed(job) => job,
            Admitted::Answer(response) => return Err(response.map(axum::body::Body::new)),
            // The handler asks for a guard and the contract has none for this request: running it unguarded would be
            // the silent failure this crate exists against.
            Admitted::Pass { .. } | Admitted::Poll { .. } => {
                return Err(guard.refuse(Refusal::of(Code::KeyMissing)).map(axum::body::Body::new));
            }
        };
        match serde_json::from_slice(&job.body) {
            Ok(body) => Ok(Self { guard, job, body }),
            // Before any claim, so it is not stored: a mistyped body must not use up its key (S1).
            Err(_) => Err((StatusCode::BAD_REQUEST, "the body is not of the expected shape").into_response()),
        }
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        self.0.map(axum::body::Body::new)
    }
}
