//! Ends of transactions that a real database cannot be brought to at will, and what waits for one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Extension, Router, extract::State, routing::post as on_post};
use http::StatusCode;
use retrysafe_core::{
    contract::Contract,
    record::{Expect, State as RecordState},
};
use retrysafe_server::{
    Refuse, Reply, Retrysafe,
    extract::{Answer as Settled, Keyed},
};
use retrysafe_store::{Store, transactional::Undone};
use serde_json::json;
use tokio::task::JoinHandle;
use tower::ServiceExt;

use crate::support::{
    Answer,
    api::{deployment_keys, endpoint, read},
    faulty::{Call, Gate, settle_down},
    post,
    rows::{Planned, Rows},
};

#[derive(Clone)]
struct Shop {
    rows: Arc<Rows>,
    gate: Gate,
    runs: Arc<AtomicU64>,
    name: &'static str,
}

async fn create(State(shop): State<Shop>, keyed: Keyed<serde_json::Value>) -> Settled {
    let Shop { rows, gate, runs, name } = shop;
    keyed
        .transaction(&rows, move |mut tx, order| async move {
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            tx.db().push(format!("{name} {run}"));
            gate.pass().await;
            match order["amount"].as_i64() {
                Some(0) => Err(Refuse::store(422, "the amount must be positive")),
                Some(-1) => Err(Refuse::release(503, "not now")),
                Some(-3) => panic!("in the middle"),
                Some(-5) => Err(std::io::Error::other("a statement failed"))?,
                Some(-8) => {
                    // Given to something that outlives the handler.
                    tokio::spawn(async move {
                        tokio::time::sleep(Duration::from_secs(3600)).await;
                        drop(tx);
                    });
                    Ok(Reply::json(201, &"never"))
                }
                _ => Ok(Reply::json(201, &json!({ "by": name, "run": run }))),
            }
        })
        .await
}

#[derive(Clone)]
struct App {
    router: Router,
    shop: Shop,
}

impl App {
    fn new(lines: &str) -> Self {
        Self::on(Rows::new(), lines, "one", Gate::open())
    }

    fn on(rows: Arc<Rows>, lines: &str, name: &'static str, gate: Gate) -> Self {
        let lines = format!("recovery = \"atomic\"\n{lines}");
        let contract = Contract::parse(&endpoint("", &lines), "t.toml").unwrap();
        let builder = Retrysafe::builder(contract, rows.clone()).fingerprint_keys(deployment_keys());
        let retrysafe = builder.build().unwrap_or_else(|fault| panic!("{fault}"));
        let shop = Shop { rows, gate, runs: Arc::default(), name };
        let router = Router::new()
            .route("/orders", on_post(create))
            .with_state(shop.clone())
            .layer(Extension(retrysafe));
        Self { router, shop }
    }

    async fn order(&self, amount: i64) -> Answer {
        let request = post("/orders", "alice", "k", &format!("{{\"amount\": {amount}}}"));
        read(self.router.clone().oneshot(request).await.unwrap()).await
    }

    fn spawn(&self, amount: i64) -> JoinHandle<Answer> {
        let app = self.clone();
        tokio::spawn(async move { app.order(amount).await })
    }

    fn runs(&self) -> u64 {
        self.shop.runs.load(Ordering::SeqCst)
    }

    fn rows(&self) -> Vec<String> {
        self.shop.rows.committed()
    }

    async fn state(&self) -> &'static str {
        self.shop.rows.store.state().await
    }
}

const SHAPES: [&str; 2] = ["", "transaction = \"claim_first\""];

#[tokio::test(start_paused = true)]
async fn protocol_16_every_end_that_is_not_a_reply_leaves_no_row() {
    // Amount, status or code, state afterwards.
    for (amount, told, state) in [
        (0, "422", "completed"),
        (-1, "503", "absent"),
        (-3, "upstream_unavailable", "absent"),
        (-5, "idempotency_store_unavailable", "absent"),
        (-8, "idempotency_store_unavailable", "absent"),
    ] {
        for shape in SHAPES {
            let app = App::new(shape);
            let answer = app.order(amount).await;
            let code = answer.code();
            let found = if code.is_empty() { answer.status.as_str().to_owned() } else { code };
            assert_eq!((found.as_str(), app.state().await), (told, state), "{amount}, {shape:?}");
            assert_eq!(app.rows(), [""; 0], "{amount}, {shape:?}");
        }
    }
}

/// Undone at the commit: the handler's own answer is never sent, the key is free, and the next attempt runs.
#[tokio::test(start_paused = true)]
async fn protocol_17_an_answer_whose_transaction_was_undone_is_not_sent() {
    for (why, status) in [(Undone::Conflict, 503), (Undone::Lost, 503), (Undone::Constraint, 500)] {
        for shape in SHAPES {
            if (why, shape) == (Undone::Lost, SHAPES[1]) {
                continue; // Below: it may be committed half way.
            }
            let app = App::new(shape);
            app.shop.rows.ends(Planned::Undone(why));
            let answer = app.order(5).await;
            assert_eq!(answer.status.as_u16(), status, "{why:?}, {shape:?}");
            assert_eq!(answer.headers.contains_key("retry-after"), status == 503, "{why:?}");
            assert_eq!((app.state().await, app.rows().len()), ("absent", 0), "{why:?}, {shape:?}");
            assert_eq!(app.order(5).await.json()["run"], 2);
            assert_eq!(app.rows(), ["one 2"]);
        }
    }
}

/// Claimed first, a transaction that was lost may be committed half way, and nothing but the claim could say so.
#[tokio::test(start_paused = true)]
async fn protocol_17_a_lost_transaction_whose_claim_was_made_first_is_not_run_again() {
    let app = App::new(SHAPES[1]);
    app.shop.rows.ends(Planned::Undone(Undone::Lost));
    for _ in 0..2 {
        assert_eq!(app.order(5).await.code(), "idempotency_outcome_unknown");
    }
    assert_eq!((app.runs(), app.state().await), (1, "uncertain"));
}

/// Protocol 19: after an unknown commit what is there decides; absence decides nothing.
#[tokio::test(start_paused = true)]
async fn protocol_19_a_commit_whose_answer_was_lost_is_settled_by_looking() {
    for shape in SHAPES {
        let app = App::new(shape);
        app.shop.rows.ends(Planned::AnswerLost);
        let first = app.order(5).await;
        assert_eq!(first.status, StatusCode::CREATED, "{shape:?}");
        assert_eq!(app.order(5).await, first);
        assert_eq!((app.rows().len(), app.runs()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn protocol_19_a_commit_that_cannot_be_seen_is_no_failure_and_only_a_won_claim_runs_again() {
    let app = App::new("");
    app.shop.rows.ends(Planned::RequestLost);
    let unknown = app.order(5).await;
    assert_eq!(unknown.code(), "idempotency_store_unavailable");
    assert!(unknown.headers.contains_key("retry-after"), "come again, with the same key");
    assert_eq!(app.order(5).await.json()["run"], 2);
    assert_eq!(app.rows(), ["one 2"]);

    // Claimed first: its lease stands between the lost commit, which may still arrive, and the next attempt.
    let app = App::new(SHAPES[1]);
    app.shop.rows.ends(Planned::RequestLost);
    assert_eq!(app.order(5).await.code(), "idempotency_store_unavailable");
    assert_eq!(
        (app.state().await, app.order(5).await.code().as_str()),
        ("in_flight", "idempotency_key_in_flight")
    );
    app.shop.rows.store.pass(Duration::from_secs(31)).await;
    assert_eq!(app.order(5).await.json()["run"], 2);
    assert_eq!(app.rows(), ["one 2"]);
}

/// In one transaction the claim cannot be seen: a second caller is told that it is in flight, and not why.
#[tokio::test(start_paused = true)]
async fn protocol_12_a_second_caller_finds_the_address_locked_and_is_not_let_through() {
    let gate = Gate::closed();
    let app = App::on(Rows::new(), "", "one", gate.clone());
    let first = app.spawn(5);
    gate.reached(1).await;
    for amount in [5, 6] {
        let second = app.order(amount).await;
        assert_eq!(second.code(), "idempotency_key_in_flight");
        assert!(second.headers.contains_key("retry-after"));
    }
    gate.release();
    let first = first.await.unwrap();
    assert_eq!(app.order(6).await.code(), "idempotency_key_payload_mismatch");
    assert_eq!(app.order(5).await, first);
    assert_eq!((app.runs(), app.rows().len()), (1, 1));
}

/// Protocol 14: who waits holds nothing, and is woken.
#[tokio::test(start_paused = true)]
async fn protocol_14_a_waiter_holds_no_transaction_and_is_woken_by_the_end() {
    let gate = Gate::closed();
    let app = App::on(
        Rows::new(),
        "in_flight = { answer = \"wait\", wait_at_most = \"10s\" }",
        "one",
        gate.clone(),
    );
    let first = app.spawn(5);
    gate.reached(1).await;
    let waiting: Vec<_> = (0..10).map(|_| app.spawn(5)).collect();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(app.shop.rows.held(), 1, "only the first holds one");
    let looks = app.shop.rows.begun();
    let since = tokio::time::Instant::now();
    gate.release();
    let first = first.await.unwrap();
    for answer in waiting {
        assert_eq!(answer.await.unwrap(), first);
    }
    assert!(since.elapsed() < Duration::from_millis(20), "woken, not only polled: {:?}", since.elapsed());
    assert!(looks < 200, "looked {looks} times in three seconds");
    assert_eq!(app.runs(), 1);

    // A first that leaves nothing lets one of them run.
    let gate = Gate::closed();
    let app = App::on(
        Rows::new(),
        "in_flight = { answer = \"wait\", wait_at_most = \"10s\" }",
        "one",
        gate.clone(),
    );
    let first = app.spawn(-1);
    gate.reached(1).await;
    let second = app.spawn(-1);
    settle_down().await;
    gate.release();
    assert_eq!((first.await.unwrap().status.as_u16(), second.await.unwrap().status.as_u16()), (503, 503));
    assert_eq!(app.runs(), 2);
}

/// Waiting ends with its limit.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_waited_long_enough_is_told_in_flight() {
    let gate = Gate::closed();
    let app =
        App::on(Rows::new(), "in_flight = { answer = \"wait\", wait_at_most = \"2s\" }", "one", gate.clone());
    let first = app.spawn(5);
    gate.reached(1).await;
    let since = tokio::time::Instant::now();
    assert_eq!(app.order(5).await.code(), "idempotency_key_in_flight");
    assert!((Duration::from_secs(2)..Duration::from_millis(2_100)).contains(&since.elapsed()));
    gate.release();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
}

/// R3, claim first: a paused holder that was taken over rolls back, and answers with what stands.
#[tokio::test(start_paused = true)]
async fn r3_a_holder_that_was_taken_over_rolls_back_and_does_not_answer_with_its_own_result() {
    let rows = Rows::new();
    let gate = Gate::closed();
    let paused = App::on(rows.clone(), SHAPES[1], "paused", gate.clone());
    let other = App::on(rows.clone(), SHAPES[1], "successor", Gate::open());
    let first = paused.spawn(5);
    gate.reached(1).await;
    rows.store
        .always(Call::Renew, crate::support::faulty::Fault::Fail(retrysafe_store::ErrorKind::Unavailable));
    rows.store.pass(Duration::from_secs(31)).await;
    let second = other.order(5).await;
    assert_eq!(second.json()["by"], "successor");
    gate.release();
    assert_eq!(first.await.unwrap(), second, "not its own result");
    assert_eq!(rows.committed(), ["successor 1"]);
}

/// Claim first is visible, so it can be polled.
#[tokio::test(start_paused = true)]
async fn protocol_31_a_claim_that_is_made_first_has_a_status_url() {
    let gate = Gate::closed();
    let lines = format!("{}\nin_flight = {{ answer = \"202-always\" }}", SHAPES[1]);
    let app = App::on(Rows::new(), &lines, "one", gate.clone());
    let first = app.spawn(5);
    gate.reached(1).await;
    let record = app.shop.rows.store.record().await;
    assert!(matches!(record.state, RecordState::InFlight { .. }));
    let second = app.order(5).await;
    assert_eq!(second.status, StatusCode::ACCEPTED);
    assert!(second.headers.contains_key("location"));
    assert_eq!(app.order(6).await.code(), "idempotency_key_payload_mismatch", "mismatch before in flight");
    gate.release();
    let first = first.await.unwrap();
    assert_eq!(app.order(5).await, first);
}

/// D1: a caller that goes away stops nothing.
#[tokio::test(start_paused = true)]
async fn d1_a_dropped_caller_does_not_stop_a_transaction() {
    for shape in SHAPES {
        let gate = Gate::closed();
        let app = App::on(Rows::new(), shape, "one", gate.clone());
        let first = app.spawn(5);
        gate.reached(1).await;
        first.abort();
        settle_down().await;
        gate.release();
        settle_down().await;
        assert_eq!((app.state().await, app.rows().len()), ("completed", 1), "{shape:?}");
        assert_eq!(app.order(5).await.status, StatusCode::CREATED);
        assert_eq!(app.runs(), 1);
    }
}

/// D4 and R10 for one transaction: a record whose window has passed is replaced in the same commit as its successor's row.
#[tokio::test(start_paused = true)]
async fn r10_an_expired_record_is_replaced_by_the_next_run_in_its_own_commit() {
    let app = App::new("windows = { replay = \"1h\", reap = \"2h\" }");
    let first = app.order(5).await;
    let before = app.shop.rows.store.record().await;
    app.shop.rows.store.clock().advance(Duration::from_secs(3700));
    let second = app.order(5).await;
    assert_ne!(second, first);
    let after = app.shop.rows.store.record().await;
    assert_ne!(before.attempt, after.attempt);
    assert!(after.fence > before.fence);
    assert!(!Expect::Attempt(before.attempt).allows(Some(&after)));
    assert_eq!(app.rows(), ["one 1", "one 2"]);
    assert!(app.shop.rows.now().is_ok());
}
