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
use http::StatusCode;
use retrysafe_core::{codes::Code, decide::Refusal};
#[cfg(feature = "sqlite")]
use retrysafe_store::sqlite::{SqliteStore, SqliteTx};
use retrysafe_store::{Store, journal::Journal, transactional::Transactional};
use serde::{Serialize, de::DeserializeOwned};

pub use crate::reply::{Refuse, Reply};
use crate::{
    admit::{Admitted, Sorted},
    body::Body,
    guard::{Guard, Guarded, Job},
    recovery::{Recovery, declared},
    reply::respond,
    retrysafe::Retrysafe,
    transaction::Tx,
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

impl<T: Send + 'static> Keyed<T> {
    /// The verified account that the key belongs to.
    pub fn account(&self) -> &retrysafe_core::address::Account {
        self.job.address.account()
    }

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
                Ok(respond(work(body, guarded).await).map(Body::full))
            })
            .await;
        Answer(response)
    }
}

struct NotGuarded;

impl<T: Send + 'static> Keyed<T> {
    /// Runs `work` in a transaction of `database` that holds this request's claim, if it wins: what `work` writes through
    /// [`Tx`] and the stored answer are committed together or not at all. The contract says `recovery = "atomic"`, and
    /// `database` is the store that the layer was built with.
    ///
    /// [`Ok`] commits, whatever the status. [`Refuse::Store`] takes back what was written and keeps the answer. Everything
    /// else, a panic too, leaves nothing.
    pub async fn transaction<D, W, F>(self, database: &Arc<D>, work: W) -> Answer
    where
        D: Store + Transactional,
        W: FnOnce(Tx<D::Open>, T) -> F + Send + 'static,
        F: Future<Output = Result<Reply, Refuse>> + Send + 'static,
    {
        let Keyed { guard, job, body } = self;
        Answer(guard.transact(job, Arc::clone(database), body, work).await)
    }

    /// The same on SQLite. `work` runs on the writer thread, in a transaction that it shares with others: it must not
    /// wait for anything, since every key of the file waits for it.
    #[cfg(feature = "sqlite")]
    pub async fn transaction_sync<W>(self, store: &Arc<SqliteStore>, work: W) -> Answer
    where
        W: FnOnce(&SqliteTx<'_>, T) -> Result<Reply, Refuse> + Send + 'static,
    {
        let Keyed { guard, job, body } = self;
        Answer(guard.transact_sqlite(job, Arc::clone(store), move |tx| work(tx, body)).await)
    }
}

impl<T: Serialize + Send + 'static> Keyed<T> {
    /// Runs the plan called `plan` for this request, if it wins: in steps that are resumed where they stopped, by a retry or by
    /// a completer (see [`recovery`](crate::recovery)). The contract says `recovery = "phased"`.
    ///
    /// `principal` is the id of whom it is done for. It and the body, as `T` declares it, are kept to run the request without
    /// its caller: `T` declares no credentials and no card data (protocol 25).
    pub async fn steps<D: Journal>(self, recovery: &Recovery<D>, plan: &str, principal: &str) -> Answer {
        let Keyed { guard, job, body } = self;
        match declared(&body) {
            Ok(fields) => Answer(guard.in_steps(job, recovery.clone(), plan, principal, fields).await),
            Err(error) => {
                tracing::error!(%error, "the fields of a request cannot be written down");
                let mut response = http::Response::new(Body::empty());
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                Answer(response)
            }
        }
    }
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
        let job = match guard.admit(request, uri).await {
            Ok(job) => job,
            Err(admitted) => {
                let answer = match *admitted {
                    Admitted::Answer(response) => response,
                    // The handler asks for a guard and the contract has none for this request: running it unguarded would
                    // be the silent failure this crate exists against.
                    Admitted::Pass { .. } | Admitted::Poll { .. } => {
                        guard.refuse(Refusal::of(Code::KeyMissing))
                    }
                };
                return Err(answer.map(axum::body::Body::new));
            }
        };
        match serde_json::from_slice(&job.body) {
            Ok(body) => Ok(Self { guard, job, body }),
            // Before any claim, so it is not stored: a mistyped body must not use up its key (S1).
            Err(_) => Err((StatusCode::BAD_REQUEST, "the body is not of the expected shape").into_response()),
        }
    }
}

/// Answers polls of status URLs, for routers whose handlers ask for their own guard: the layer form does it by itself.
///
/// ```
/// # use axum::{Extension, Router, routing::get};
/// # use retrysafe_server::{Retrysafe, extract::status};
/// # fn app(retrysafe: Retrysafe) -> Router {
/// Router::new().route("/.retrysafe/status/{id}", get(status)).layer(Extension(retrysafe))
/// # }
/// ```
pub async fn status(request: Request) -> Response {
    let Some(Retrysafe { guard }) = request.extensions().get::<Retrysafe>().cloned() else {
        tracing::error!("status URLs need `.layer(Extension(retrysafe))` on the router");
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let uri = crate::layer::original_uri(&request);
    let request = crate::layer::with_peer(request);
    // The head of a poll is all there is to see.
    match guard.sort(request, uri) {
        Sorted::Admitted(Admitted::Poll { parts, id }) => {
            guard.poll(&parts, &id).await.map(axum::body::Body::new)
        }
        Sorted::Admitted(Admitted::Answer(_) | Admitted::Pass { .. }) | Sorted::Unread(_) => {
            StatusCode::NOT_FOUND.into_response()
        }
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        self.0.map(axum::body::Body::new)
    }
}
