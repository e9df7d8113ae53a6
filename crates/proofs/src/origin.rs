//! An upstream that takes a stated time and keeps a ledger; and, in place of the gateway, servers that are
//! broken on purpose. A proof that a broken server passes proves nothing, so each mutant here must fail it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use clap::ValueEnum;

use crate::handler;
use crate::ledger::Ledger;

/// How the origin itself treats a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Guard {
    /// Not at all: what an API without idempotency keys does.
    None,
    /// Correct, in one process: proves that the checker accepts a sound server.
    Sound,
    /// Looks first, inserts later.
    CheckThenInsert,
    /// Gives the claim up before the result can be seen.
    EarlyRelease,
    /// Locks, and stores nothing.
    LockOnly,
    /// Replays without the `location` header.
    LostHeader,
    /// Tells losers 500.
    LoserFails,
    /// Tells losers that it worked, with an id of its own.
    FalseSuccess,
}

enum Slot {
    InFlight,
    Done(String),
}

struct Origin {
    guard: Guard,
    work: Duration,
    ledger: Arc<Ledger>,
    slots: Mutex<HashMap<String, Slot>>,
}

/// Something between check and insert: any await point is enough in a real server.
const GAP: Duration = Duration::from_millis(1);

/// The routes: `POST /orders`, `GET /ledger`, and the bench handler at `POST /bench` and,
/// outside every contract, at `POST /pass`.
pub(crate) fn router(guard: Guard, work: Duration, ledger: Arc<Ledger>) -> Router {
    let origin = Arc::new(Origin { guard, work, ledger, slots: Mutex::default() });
    Router::new()
        .route("/orders", post(create))
        .route("/ledger", get(list))
        .with_state(origin)
        .route("/bench", post(handler::order))
        .route("/pass", post(handler::order))
}

async fn list(State(origin): State<Arc<Origin>>) -> axum::Json<Vec<crate::ledger::Entry>> {
    axum::Json(origin.ledger.entries())
}

async fn create(State(origin): State<Arc<Origin>>, headers: HeaderMap, _body: Bytes) -> Response {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let key = text("idempotency-key").unwrap_or_default().to_owned();
    let account = text("authorization").map(str::to_owned);
    // A server that keeps keys runs to the end whatever the connection does.
    let run = tokio::spawn(async move { origin.answer(key, account).await });
    run.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

impl Origin {
    async fn answer(&self, key: String, account: Option<String>) -> Response {
        if self.guard == Guard::None || key.is_empty() {
            return created(&self.work(&key, account).await, true);
        }
        if self.guard == Guard::CheckThenInsert {
            if let Some(seen) = self.seen(&key, false) {
                return seen;
            }
            tokio::time::sleep(GAP).await;
            self.set(&key, Some(Slot::InFlight));
        } else if let Some(seen) = self.seen(&key, true) {
            return seen;
        }
        let id = self.work(&key, account).await;
        match self.guard {
            Guard::LockOnly => self.set(&key, None),
            Guard::EarlyRelease => {
                self.set(&key, None);
                tokio::time::sleep(GAP).await;
                self.set(&key, Some(Slot::Done(id.clone())));
            }
            _ => self.set(&key, Some(Slot::Done(id.clone()))),
        }
        created(&id, true)
    }

    /// The answer for a key that is there; with `claim`, an absent one is taken in the same step.
    fn seen(&self, key: &str, claim: bool) -> Option<Response> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        match (slots.get(key), self.guard) {
            (Some(Slot::Done(id)), _) => Some(created(id, self.guard != Guard::LostHeader)),
            (Some(Slot::InFlight), Guard::LoserFails) => {
                Some(StatusCode::INTERNAL_SERVER_ERROR.into_response())
            }
            (Some(Slot::InFlight), Guard::FalseSuccess) => Some(created("ord_of_nobody", true)),
            (Some(Slot::InFlight), _) => Some(in_flight()),
            (None, _) => {
                if claim {
                    slots.insert(key.to_owned(), Slot::InFlight);
                }
                None
            }
        }
    }

    fn set(&self, key: &str, slot: Option<Slot>) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        match slot {
            Some(slot) => slots.insert(key.to_owned(), slot),
            None => slots.remove(key),
        };
    }

    async fn work(&self, key: &str, account: Option<String>) -> String {
        if !self.work.is_zero() {
            tokio::time::sleep(self.work).await;
        }
        let key = (!key.is_empty()).then_some(key);
        self.ledger.append("POST /orders", key, account.as_deref()).unwrap_or_default()
    }
}

fn created(id: &str, location: bool) -> Response {
    let body = axum::Json(serde_json::json!({ "id": id, "object": "order" }));
    if location {
        (StatusCode::CREATED, [(header::LOCATION, format!("/orders/{id}"))], body).into_response()
    } else {
        (StatusCode::CREATED, body).into_response()
    }
}

fn in_flight() -> Response {
    let body = axum::Json(serde_json::json!({ "code": "idempotency_key_in_flight", "retryable": true }));
    (StatusCode::CONFLICT, [(header::RETRY_AFTER, "1")], body).into_response()
}
