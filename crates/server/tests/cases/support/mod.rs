//! A small keyed API behind the layer, and what it really did.

#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used, clippy::panic)]

pub mod api;
pub mod faulty;
pub mod rows;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Json, Router, body::Body, extract::State, routing::post as on_post};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use retrysafe_core::contract::Contract;
use retrysafe_server::Retrysafe;
use retrysafe_store::{Store, memory::MemoryStore};
use serde_json::{Value, json};
use tower::ServiceExt;

/// The contract of the small API; tests append policies and endpoints.
pub const CONTRACT: &str = r#"
api = "Test"
namespace = "test"
longest_retry_chain = "1h"
unlisted = "pass"
scope = { source = "api_key", rotates = false }
failures = { policy = "A" }
client = { drop_stored_statuses = true }
"#;

/// The API and its effects.
#[derive(Clone)]
pub struct App {
    pub router: Router,
    pub retrysafe: Retrysafe,
    pub world: Arc<World>,
}

/// What the handlers did, and how they behave.
#[derive(Default)]
pub struct World {
    pub effects: AtomicU64,
    pub handler_ms: AtomicU64,
}

/// A response, read whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl App {
    /// The API with one keyed endpoint, `POST /orders`; `more` is added to its `[[endpoint]]` table.
    pub async fn new(more: &str) -> Self {
        Self::with_contract(&format!(
            "{CONTRACT}\n[[endpoint]]\nmethod = \"POST\"\npath = \"/orders\"\nkey = \"required\"\n{more}"
        ))
    }

    pub fn with_contract(text: &str) -> Self {
        Self::with_store(text, Arc::new(MemoryStore::new(Default::default())))
    }

    pub fn with_store(text: &str, store: Arc<dyn Store>) -> Self {
        let contract = Contract::parse(text, "test.toml").unwrap_or_else(|faults| panic!("{faults}"));
        let retrysafe = Retrysafe::builder(contract, store).build().unwrap();
        let world = Arc::new(World::default());
        let router = Router::new()
            .route("/orders", on_post(create_order))
            .with_state(Arc::clone(&world))
            .layer(retrysafe.clone());
        Self { router, retrysafe, world }
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub fn effects(&self) -> u64 {
        self.world.effects.load(Ordering::SeqCst)
    }
}

async fn create_order(
    State(world): State<Arc<World>>,
    Json(order): Json<Value>,
) -> (StatusCode, Json<Value>) {
    tokio::time::sleep(Duration::from_millis(world.handler_ms.load(Ordering::SeqCst))).await;
    let id = world.effects.fetch_add(1, Ordering::SeqCst) + 1;
    (StatusCode::CREATED, Json(json!({ "id": id, "amount": order["amount"] })))
}

/// A keyed POST by an account.
pub fn post(path: &str, account: &str, key: &str, body: &str) -> Request<Body> {
    Request::post(path)
        .header("authorization", format!("Bearer {account}"))
        .header("content-type", "application/json")
        .header("idempotency-key", key)
        .body(Body::from(body.to_owned()))
        .unwrap()
}
