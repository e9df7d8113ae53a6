//! An API of one handler whose behaviour a test chooses, behind the layer, on a store with faults and a manual clock.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, response::Response};
use http_body_util::BodyExt;
use retrysafe_core::contract::Contract;
use retrysafe_server::{Builder, Retrysafe};
use serde_json::json;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use super::{
    Answer, CONTRACT,
    faulty::{Call, Faulty, Gate},
};

type Reply = Arc<dyn Fn(u64) -> Response + Send + Sync>;

/// The API, and everything a test wants to know about it.
#[derive(Clone)]
pub struct Api {
    pub router: Router,
    pub retrysafe: Retrysafe,
    pub store: Faulty,
    pub handler: Arc<Handler>,
}

/// Waits at its gate, has its effect, replies.
pub struct Handler {
    /// Every run stops here first.
    pub gate: Mutex<Gate>,
    /// After the effect, before the reply.
    pub after: Mutex<Gate>,
    effects: AtomicU64,
    reply: Mutex<Reply>,
}

impl Api {
    /// One keyed endpoint, `POST /orders`, with these lines in its table.
    pub fn new(lines: &str) -> Self {
        Self::contract(&endpoint("", lines))
    }

    /// A whole contract.
    pub fn contract(text: &str) -> Self {
        Self::built(text, Faulty::new(), |builder| builder)
    }

    pub fn built(text: &str, store: Faulty, with: impl FnOnce(Builder) -> Builder) -> Self {
        let contract = Contract::parse(text, "test.toml").unwrap_or_else(|faults| panic!("{faults}"));
        let builder = Retrysafe::builder(contract, Arc::new(store.clone()));
        let retrysafe = with(builder).build().unwrap_or_else(|fault| panic!("{fault}"));
        let handler = Arc::new(Handler {
            gate: Mutex::new(Gate::open()),
            after: Mutex::new(Gate::open()),
            effects: AtomicU64::new(0),
            reply: Mutex::new(Arc::new(created)),
        });
        let router = Router::new().fallback({
            let handler = Arc::clone(&handler);
            move |request: Request| Arc::clone(&handler).handle(request)
        });
        Self { router: router.layer(retrysafe.clone()), retrysafe, store, handler }
    }

    /// Every run stops at the returned gate before its effect.
    pub fn gate(&self) -> Gate {
        let gate = Gate::closed();
        *self.handler.gate.lock().unwrap() = gate.clone();
        gate
    }

    /// Every run stops at the returned gate after its effect.
    pub fn gate_after(&self) -> Gate {
        let gate = Gate::closed();
        *self.handler.after.lock().unwrap() = gate.clone();
        gate
    }

    /// What the handler replies from now on, by the number of its effect.
    pub fn replies(&self, reply: impl Fn(u64) -> Response + Send + Sync + 'static) {
        *self.handler.reply.lock().unwrap() = Arc::new(reply);
    }

    pub fn effects(&self) -> u64 {
        self.handler.effects.load(Ordering::SeqCst)
    }

    pub async fn send(&self, request: Request) -> Answer {
        read(self.router.clone().oneshot(request).await.unwrap()).await
    }

    /// Sends in a task of its own.
    pub fn spawn(&self, request: Request) -> JoinHandle<Answer> {
        let api = self.clone();
        tokio::spawn(async move { api.send(request).await })
    }

    /// `POST /orders` by alice with this key and a fixed body.
    pub async fn order(&self, key: &str) -> Answer {
        self.send(order(key)).await
    }

    /// Time passes until the lease of a claim that nobody renews has ended.
    pub fn lose_holder(&self) {
        self.store.clock().advance(Duration::from_secs(31));
    }

    pub fn writes(&self) -> [usize; 3] {
        [Call::Claim, Call::Renew, Call::Complete].map(|call| self.store.count(call))
    }
}

impl Handler {
    async fn handle(self: Arc<Self>, request: Request) -> Response {
        let gate = self.gate.lock().unwrap().clone();
        gate.pass().await;
        drop(request);
        let id = self.effects.fetch_add(1, Ordering::SeqCst) + 1;
        let after = self.after.lock().unwrap().clone();
        after.pass().await;
        let reply = Arc::clone(&self.reply.lock().unwrap());
        reply(id)
    }
}

/// A contract with `POST /orders`; `top` before its tables, `lines` in the endpoint.
pub fn endpoint(top: &str, lines: &str) -> String {
    format!(
        "{CONTRACT}{top}\n[[endpoint]]\nmethod = \"POST\"\npath = \"/orders\"\nkey = \"required\"\n{lines}\n"
    )
}

pub fn order(key: &str) -> Request {
    super::post("/orders", "alice", key, r#"{"amount": 5}"#)
}

pub async fn read(
    response: Response<impl http_body::Body<Data = bytes::Bytes, Error: std::fmt::Debug>>,
) -> Answer {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status, headers: parts.headers, body }
}

/// The usual reply.
pub fn created(id: u64) -> Response {
    json_reply(201, json!({ "id": format!("o-{id}"), "amount": 5 }))
}

pub fn json_reply(status: u16, body: serde_json::Value) -> Response {
    let response = Response::builder().status(status).header("content-type", "application/json");
    response.body(Body::from(body.to_string())).unwrap()
}

/// The keys that several processes of one deployment share.
pub fn deployment_keys() -> retrysafe_core::fingerprint::FingerprintKeys {
    use retrysafe_core::fingerprint::{DeploymentKey, FingerprintKeys};
    FingerprintKeys::new(DeploymentKey::new(1, &[7; 32]).unwrap())
}

/// Two processes with one store.
pub fn two(text: &str) -> (Api, Api) {
    let store = Faulty::new();
    let open = || Api::built(text, store.clone(), |builder| builder.fingerprint_keys(deployment_keys()));
    (open(), open())
}
