//! The extractor form of design 4: the handler says what it did, and protocol 16 obeys it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Extension, Router, extract::State, routing::post as on_post};
use http::{StatusCode, header};
use retrysafe_core::contract::Contract;
use retrysafe_server::{
    Retrysafe,
    extract::{Answer as Settled, Keyed, Refuse, Reply},
};
use retrysafe_store::ErrorKind;
use serde::{Deserialize, Serialize};
use tower::ServiceExt;

use crate::support::{
    Answer,
    api::{endpoint, read},
    faulty::{Call, Fault, Faulty, Gate, settle_down},
    post,
};

#[derive(Deserialize)]
struct NewOrder {
    amount: i64,
}

#[derive(Serialize)]
struct Order {
    id: u64,
    amount: i64,
}

#[derive(Clone)]
struct Shop {
    runs: Arc<AtomicU64>,
    gate: Gate,
}

/// What it does depends on the amount, so that each outcome has one.
async fn create(State(shop): State<Shop>, keyed: Keyed<NewOrder>) -> Settled {
    keyed
        .run(move |order, guarded| async move {
            let id = shop.runs.fetch_add(1, Ordering::SeqCst) + 1;
            shop.gate.pass().await;
            match order.amount {
                0 => Err(Refuse::store(422, "the amount must be positive")),
                -1 => Err(Refuse::release(503, "the stock is being counted")),
                -2 => Err(Refuse::Unknown),
                -3 => panic!("in the middle"),
                -4 => Ok(Reply::json(402, &"declined, and recorded")),
                -5 => Ok(Reply::json(500, &"done, and the receipt failed")),
                -6 => Err(Refuse::store(503, "nothing happened")),
                amount => {
                    let reply = Reply::json(201, &Order { id, amount });
                    Ok(reply.header(header::LOCATION, &format!("/orders/{}", guarded.address.key().as_str())))
                }
            }
        })
        .await
}

struct App {
    router: Router,
    store: Faulty,
    shop: Shop,
}

impl App {
    fn new(lines: &str) -> Self {
        let store = Faulty::new();
        let contract = Contract::parse(&endpoint("", lines), "t.toml").unwrap();
        let retrysafe = Retrysafe::builder(contract, Arc::new(store.clone())).build().unwrap();
        let shop = Shop { runs: Arc::default(), gate: Gate::open() };
        let router = Router::new()
            .route("/orders", on_post(create))
            .route("/elsewhere", on_post(create))
            .with_state(shop.clone())
            .layer(Extension(retrysafe));
        Self { router, store, shop }
    }

    async fn send(&self, path: &str, key: &str, body: &str) -> Answer {
        read(self.router.clone().oneshot(post(path, "alice", key, body)).await.unwrap()).await
    }

    async fn order(&self, amount: i64) -> Answer {
        self.send("/orders", "k", &format!("{{\"amount\": {amount}}}")).await
    }

    fn runs(&self) -> u64 {
        self.shop.runs.load(Ordering::SeqCst)
    }
}

const B: &str = "failures = { policy = \"B\", keep = { 500 = \"release\" } }";

#[tokio::test]
async fn protocol_16_the_handler_and_not_the_status_decides() {
    let unknown = "idempotency_outcome_unknown";
    // Amount, status or code of the first answer and of the second, runs, state.
    for (lines, amount, first, second, runs, state) in [
        ("", 5, "201", "201", 1, "completed"),
        ("", 0, "422", "422", 1, "completed"),
        (B, 0, "422", "422", 1, "completed"),
        // Any reply is kept, whatever its status, under B too.
        (B, -4, "402", "402", 1, "completed"),
        (B, -5, "500", "500", 1, "completed"),
        // What did not happen is the contract's to keep.
        ("", -6, "503", "503", 1, "completed"),
        (B, -6, "503", "503", 2, "absent"),
        // A release is one, under A too.
        ("", -1, "503", "503", 2, "absent"),
        ("", -2, unknown, unknown, 1, "uncertain"),
        ("", -3, unknown, unknown, 1, "uncertain"),
    ] {
        let app = App::new(lines);
        for expected in [first, second] {
            let answer = app.order(amount).await;
            let code = answer.code();
            let told = if code.is_empty() { answer.status.as_str().to_owned() } else { code };
            assert_eq!(told, expected, "{amount} under {lines:?}");
        }
        assert_eq!((app.runs(), app.store.state().await), (runs, state), "{amount} under {lines:?}");
    }
}

#[tokio::test]
async fn a_reply_is_replayed_byte_for_byte_and_a_mismatch_is_refused() {
    let app = App::new("");
    let first = app.order(5).await;
    assert_eq!(first.headers["location"], "/orders/k");
    assert_eq!(app.send("/orders", "k", "{ \"amount\": 5e0 }").await.code(), "", "not a mismatch");
    assert_eq!(app.order(5).await, first);
    assert_eq!(app.order(6).await.code(), "idempotency_key_payload_mismatch");
    assert_eq!(app.runs(), 1);
}

/// S1: a body of the wrong shape does not use up its key.
#[tokio::test]
async fn s1_a_body_of_the_wrong_shape_claims_nothing() {
    let app = App::new("");
    for body in ["{}", "not json", r#"{"amount": "five"}"#, ""] {
        assert_eq!(app.send("/orders", "k", body).await.status, StatusCode::BAD_REQUEST, "{body}");
    }
    assert_eq!((app.store.count(Call::Claim), app.runs()), (0, 0));
    assert_eq!(app.order(5).await.status, StatusCode::CREATED);
}

/// A handler that asks for a guard where the contract has none is not run unguarded.
#[tokio::test]
async fn a_handler_that_asks_for_a_guard_never_runs_without_one() {
    let app = App::new("");
    assert_eq!(app.send("/elsewhere", "k", r#"{"amount": 5}"#).await.status, StatusCode::BAD_REQUEST);
    let optional = App::new("");
    let request = http::Request::post("/orders").header("authorization", "Bearer alice");
    let keyless = request.body(axum::body::Body::from(r#"{"amount": 5}"#)).unwrap();
    let answer = read(optional.router.clone().oneshot(keyless).await.unwrap()).await;
    assert_eq!(answer.code(), "idempotency_key_missing");
    let bare = Router::new().route("/orders", on_post(create)).with_state(app.shop.clone());
    let response = bare.oneshot(post("/orders", "alice", "k", r#"{"amount": 5}"#)).await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR, "no layer, no run");
    assert_eq!((app.runs(), optional.runs()), (0, 0));
}

/// D1 in the extractor form: the work goes on when its caller is dropped.
#[tokio::test(start_paused = true)]
async fn d1_a_dropped_caller_does_not_stop_the_work() {
    let mut app = App::new("");
    app.shop.gate = Gate::closed();
    let (gate, runs) = (app.shop.gate.clone(), Arc::clone(&app.shop.runs));
    app.router =
        Router::new().route("/orders", on_post(create)).with_state(app.shop.clone()).layer(Extension({
            let contract = Contract::parse(&endpoint("", ""), "t.toml").unwrap();
            Retrysafe::builder(contract, Arc::new(app.store.clone())).build().unwrap()
        }));
    let dropped = tokio::time::timeout(Duration::from_secs(1), app.order(5)).await;
    assert!(dropped.is_err());
    assert_eq!(gate.arrivals(), 1);
    gate.release();
    settle_down().await;
    assert_eq!(app.store.state().await, "completed");
    assert_eq!(app.order(5).await.status, StatusCode::CREATED);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// O1 in the extractor form: open by contract runs the work with no fence, and says nothing false.
#[tokio::test(start_paused = true)]
async fn o1_the_extractor_is_closed_and_open_as_the_contract_says() {
    let closed = App::new("");
    closed.store.always(Call::Claim, Fault::Fail(ErrorKind::Unavailable));
    assert_eq!(closed.order(5).await.code(), "idempotency_store_unavailable");
    assert_eq!(closed.runs(), 0);
    let open = App::new("store_down = \"open\"");
    open.store.always(Call::Claim, Fault::Fail(ErrorKind::Unavailable));
    assert_eq!(open.order(5).await.status, StatusCode::CREATED);
    assert_eq!(open.runs(), 1);
}
