//! Each vendor profile plays one script through the layer; the transcript is a snapshot, to be read beside what the vendor
//! publishes (`docs/reference/profiles.md`).

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
    routing::post,
};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use retrysafe_core::{
    contract::{Carrier, Contract},
    key::KeySyntax,
    profile::Profile,
};
use retrysafe_server::{Effect, Retrysafe};
use retrysafe_store::memory::MemoryStore;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// Longer than any vendor's keys.
const TOO_LONG: usize = 300;
const SHOWN: [&str; 4] = ["idempotent-replayed", "retry-after", "stripe-should-retry", "transient-error"];

struct World {
    runs: AtomicU64,
    effects: AtomicU64,
    entered: Semaphore,
    leave: Semaphore,
}

/// Does what its body says: waits, fails without an effect, or makes an order.
async fn order(State(world): State<Arc<World>>, Json(asked): Json<Value>) -> Response {
    world.runs.fetch_add(1, Ordering::SeqCst);
    if asked["hold"] == true {
        world.entered.add_permits(1);
        let _leave = world.leave.acquire().await.unwrap();
    }
    if let Some(status) = asked["fail"].as_u64() {
        let status = StatusCode::from_u16(status as u16).unwrap();
        let mut response = (status, Json(json!({ "failed": status.as_u16() }))).into_response();
        response.extensions_mut().insert(Effect::None);
        return response;
    }
    let id = world.effects.fetch_add(1, Ordering::SeqCst) + 1;
    (StatusCode::CREATED, Json(json!({ "id": id }))).into_response()
}

struct Player {
    router: Router,
    world: Arc<World>,
    carrier: Carrier,
    quoted: bool,
    transcript: String,
}

impl Player {
    fn new(profile: &Profile) -> Self {
        let text = format!(
            "api = \"Shop\"\nnamespace = \"shop\"\nprofile = \"{}\"\nlongest_retry_chain = \"1h\"\nunlisted = \"pass\"\n\
             scope = {{ source = \"api_key\", rotates = false }}\n\n\
             [[endpoint]]\nmethod = \"POST\"\npath = \"/orders\"\nkey = \"required\"\n",
            profile.name
        );
        let contract = Contract::parse(&text, "test.toml").unwrap_or_else(|faults| panic!("{faults}"));
        let (carrier, syntax) =
            (contract.endpoints[0].carrier.clone(), contract.endpoints[0].key_rules.syntax);
        let layer =
            Retrysafe::builder(contract, Arc::new(MemoryStore::new(Default::default()))).build().unwrap();
        let world = Arc::new(World {
            runs: AtomicU64::new(0),
            effects: AtomicU64::new(0),
            entered: Semaphore::new(0),
            leave: Semaphore::new(0),
        });
        let router = Router::new().route("/orders", post(order)).with_state(Arc::clone(&world)).layer(layer);
        Self { router, world, carrier, quoted: syntax == KeySyntax::Strict, transcript: String::new() }
    }

    fn request(&self, key: Option<&str>, mut body: Value) -> Request<Body> {
        let request = Request::post("/orders")
            .header("authorization", "Bearer sk_1")
            .header("content-type", "application/json");
        let request = match (key, &self.carrier) {
            (Some(key), Carrier::Header(name)) if self.quoted => request.header(name, format!("\"{key}\"")),
            (Some(key), Carrier::Header(name)) => request.header(name, key),
            (Some(key), Carrier::BodyField(pointer)) => {
                body[pointer.trim_start_matches('/')] = key.into();
                request
            }
            (None, _) => request,
        };
        request.body(Body::from(body.to_string())).unwrap()
    }

    /// Sends a request and writes down what came of it.
    async fn play(&mut self, title: &str, key: Option<&str>, body: Value) {
        let response = self.router.clone().oneshot(self.request(key, body)).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        let (runs, effects) =
            (self.world.runs.load(Ordering::SeqCst), self.world.effects.load(Ordering::SeqCst));
        let lines = SHOWN.iter().filter_map(|name| Some((name, parts.headers.get(*name)?)));
        let lines: Vec<_> =
            lines.map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        write!(self.transcript, "{title}\n  {} {body}\n", parts.status.as_u16()).unwrap();
        lines.iter().for_each(|line| writeln!(self.transcript, "  {line}").unwrap());
        writeln!(self.transcript, "  run {runs} times so far, with {effects} effects").unwrap();
    }

    async fn script(mut self) -> String {
        let order = || json!({ "amount": 5 });
        self.play("an order", Some("k1"), order()).await;
        self.play("the same again", Some("k1"), order()).await;
        self.play("the same key with another body", Some("k1"), json!({ "amount": 6 })).await;
        self.play("without a key", None, order()).await;
        self.play("a key that is too long", Some(&"x".repeat(TOO_LONG)), order()).await;

        let held = || json!({ "amount": 7, "hold": true });
        let first = tokio::spawn(self.router.clone().oneshot(self.request(Some("k2"), held())));
        let entered = tokio::time::timeout(Duration::from_secs(10), self.world.entered.acquire());
        entered.await.unwrap().unwrap().forget();
        self.play("while the first is in flight", Some("k2"), held()).await;
        self.world.leave.add_permits(1);
        first.await.unwrap().unwrap();

        for status in [402, 429, 500, 503] {
            let key = format!("k{status}");
            let fails = || json!({ "amount": 8, "fail": status });
            self.play(&format!("an order that fails with {status}"), Some(&key), fails()).await;
            self.play(&format!("the same after {status}"), Some(&key), fails()).await;
        }
        self.transcript
    }
}

#[tokio::test]
async fn each_vendor_answers_a_script_as_it_documents() {
    for profile in Profile::all().filter(|profile| profile.guards()) {
        let transcript = Player::new(profile).script().await;
        insta::assert_snapshot!(profile.name, transcript);
    }
}
