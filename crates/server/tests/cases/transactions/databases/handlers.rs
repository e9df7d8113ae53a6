//! `Keyed::transaction` in both shapes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Extension, Router, extract::State, routing::post as on_post};
use futures_util::future::join_all;
use http::StatusCode;
use retrysafe_core::{
    contract::Contract,
    ids::AttemptId,
    outcome::{Body, Outcome},
    record::{Expect, Record, RemoveIf, State as RecordState, Write},
    time::Wall,
};
use retrysafe_server::{
    Refuse, Reply, Retrysafe,
    extract::{Answer as Settled, Keyed},
};
use retrysafe_store::{Filter, StateName, Store, Written};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::{Place, on_both};
use crate::support::{
    Answer,
    api::{deployment_keys, endpoint, read},
    faulty::Gate,
    post,
};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const SHAPES: [&str; 2] = ["", "transaction = \"claim_first\""];
const B: &str = "failures = { policy = \"B\", keep = { 500 = \"release\" } }";
const WAIT: &str = "in_flight = { answer = \"wait\", wait_at_most = \"20s\" }";

struct Shop<P: Place> {
    store: Arc<P::Store>,
    gate: Gate,
    runs: Arc<AtomicU64>,
}

impl<P: Place> Clone for Shop<P> {
    fn clone(&self) -> Self {
        let Self { store, gate, runs } = self;
        Self { store: Arc::clone(store), gate: gate.clone(), runs: Arc::clone(runs) }
    }
}

/// Writes a row in any case, and then says what the amount asks for.
async fn create<P: Place>(State(shop): State<Shop<P>>, keyed: Keyed<serde_json::Value>) -> Settled {
    let Shop { store, gate, runs } = shop;
    keyed
        .transaction(&store, move |mut tx, order| async move {
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            let amount = order["amount"].as_i64().unwrap_or_default();
            P::run(tx.db(), &format!("INSERT INTO orders (amount) VALUES ({amount})")).await?;
            tx.effect("order").await?;
            gate.pass().await;
            match amount {
                0 => Err(Refuse::store(422, "the amount must be positive")),
                -1 => Err(Refuse::release(503, "the stock is being counted")),
                -2 => Err(Refuse::Unknown),
                -3 => panic!("in the middle"),
                -4 => Ok(Reply::json(402, &"declined, and recorded")),
                -5 => {
                    P::run(tx.db(), "INSERT INTO no_such_table VALUES (1)").await?;
                    Ok(Reply::json(201, &"never"))
                }
                -6 => {
                    P::run(tx.db(), "COMMIT").await?;
                    Ok(Reply::json(201, &"never"))
                }
                -7 => {
                    P::run(tx.db(), "INSERT INTO orders (amount, once) VALUES (1, 1)").await?;
                    P::run(tx.db(), "INSERT INTO orders (amount, once) VALUES (2, 1)").await?;
                    Ok(Reply::json(201, &"never"))
                }
                -8 => Ok(Reply::bytes(201, "text/plain", vec![b'x'; 200_000])),
                _ => Ok(Reply::json(201, &json!({ "run": run, "amount": amount }))),
            }
        })
        .await
}

/// A process.
struct App<P: Place> {
    router: Router,
    shop: Shop<P>,
    retrysafe: Retrysafe,
}

impl<P: Place> App<P> {
    async fn new(place: &P, lines: &str) -> Self {
        Self::with_gate(place, lines, Gate::open()).await
    }

    async fn with_gate(place: &P, lines: &str, gate: Gate) -> Self {
        let contract = endpoint("", &format!("recovery = \"atomic\"\n{lines}"));
        let contract = Contract::parse(&contract, "t.toml").unwrap();
        let store = place.open().await;
        let builder = Retrysafe::builder(contract, store.clone()).fingerprint_keys(deployment_keys());
        let retrysafe = builder.build().unwrap_or_else(|fault| panic!("{fault}"));
        let shop = Shop { store, gate, runs: Arc::default() };
        let router = Router::new()
            .route("/orders", on_post(create::<P>))
            .with_state(shop.clone())
            .layer(Extension(retrysafe.clone()));
        Self { router, shop, retrysafe }
    }

    async fn order(&self, key: &str, amount: i64) -> Answer {
        self.spawn(key, amount).await.unwrap()
    }

    fn spawn(&self, key: &str, amount: i64) -> JoinHandle<Answer> {
        let request = post("/orders", "alice", key, &format!("{{\"amount\": {amount}}}"));
        let router = self.router.clone();
        tokio::spawn(async move { read(router.oneshot(request).await.unwrap()).await })
    }

    async fn state(&self) -> &'static str {
        let records = self.shop.store.list(&Filter::default(), None, 10).await.unwrap();
        match records.as_slice() {
            [] => "absent",
            [(_, record)] => match StateName::of(&record.state) {
                StateName::InFlight => "in_flight",
                StateName::Uncertain => "uncertain",
                StateName::Completed => "completed",
            },
            several => panic!("{several:?}"),
        }
    }

    fn runs(&self) -> u64 {
        self.shop.runs.load(Ordering::SeqCst)
    }
}

on_both!(
    /// Protocol 16, D4: the handler, not the status, says what is kept.
    protocol_16_d4_rows_and_record_end_together_as_the_handler_says,
    /// R1: through two processes at once.
    r1_of_fifty_at_once_through_two_processes_one_writes_its_row,
    /// R13: the claim is held from before the handler's first statement to its commit.
    r13_while_a_handler_runs_its_key_is_in_flight_in_every_process,
    /// Protocol 14, across processes: nobody wakes the waiter.
    a_waiter_in_another_process_is_given_the_answer_once_it_is_committed,
    /// R3, protocol 6.
    r3_a_holder_that_was_taken_over_rolls_back_and_answers_with_what_stands,
    /// R3: the key is free, and nothing happened.
    r3_a_holder_whose_successor_gave_up_sends_its_caller_to_try_again,
    /// R3, protocol 17.
    r3_a_holder_that_lost_its_transaction_and_its_key_answers_with_what_stands,
    /// Protocol 13, 15.
    protocol_15_a_store_whose_handlers_wait_past_the_lease_is_refused,
    /// D1: a caller that goes away stops nothing.
    d1_a_dropped_caller_does_not_stop_a_transaction,
    /// Protocol 17: a handler that commits by itself has no answer, and is not run again on top of its own rows.
    protocol_17_a_claim_made_first_is_held_when_its_handler_committed_by_itself,
    /// T5: as the store can, in one statement or one by one.
    upkeep_reaps_what_is_due_and_nothing_else,
);

async fn protocol_16_d4_rows_and_record_end_together_as_the_handler_says<P: Place>() {
    let (unknown, unavailable) = ("idempotency_outcome_unknown", "idempotency_store_unavailable");
    // Policy, amount, status or code of the first answer and of the second, runs, rows, state.
    for (policy, amount, first, second, runs, rows, state) in [
        ("", 5, "201", "201", 1, 1, "completed"),
        // A refusal that is kept: its rows are not.
        ("", 0, "422", "422", 1, 0, "completed"),
        (B, 0, "422", "422", 1, 0, "completed"),
        // A reply commits, whatever its status.
        (B, -4, "402", "402", 1, 1, "completed"),
        ("", -1, "503", "503", 2, 0, "absent"),
        ("", -2, unknown, unknown, 1, 0, "uncertain"),
        ("", -3, "upstream_unavailable", "upstream_unavailable", 2, 0, "absent"),
        ("", -5, unavailable, unavailable, 2, 0, "absent"),
        // A long answer is in the same commit.
        ("", -8, "201", "201", 1, 1, "completed"),
    ] {
        for shape in SHAPES {
            let place = P::make().await;
            let app = App::new(&place, &format!("{policy}\n{shape}")).await;
            for expected in [first, second] {
                let answer = app.order("k", amount).await;
                let code = answer.code();
                let told = if code.is_empty() { answer.status.as_str().to_owned() } else { code };
                assert_eq!(told, expected, "{amount} under {policy:?}, {shape:?}");
            }
            let found = (app.runs(), place.rows(), app.state().await);
            assert_eq!(found, (runs, rows, state), "{amount} under {policy:?}, {shape:?}");
        }
    }
}

async fn r1_of_fifty_at_once_through_two_processes_one_writes_its_row<P: Place>() {
    for shape in ["", SHAPES[1], WAIT] {
        let place = P::make().await;
        let (one, two) = (App::new(&place, shape).await, App::new(&place, shape).await);
        for round in 0..5 {
            let key = format!("k{round}");
            let answers =
                join_all((0..50).map(|n| if n % 2 == 0 { one.order(&key, 5) } else { two.order(&key, 5) }))
                    .await;
            let created: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
            assert!(!created.is_empty() && created.iter().all(|answer| *answer == created[0]), "one answer");
            for other in answers.iter().filter(|answer| answer.status != 201) {
                // Whoever is turned away is told to come again: in flight, or no connection free in time.
                let code = other.code();
                let told = matches!(&*code, "idempotency_key_in_flight" | "idempotency_store_unavailable");
                assert!(told && other.headers.contains_key("retry-after"), "{other:?}, {shape:?}");
            }
            assert_eq!(place.rows(), round + 1, "{shape}");
        }
        assert_eq!(one.runs() + two.runs(), 5, "{shape}");
    }
}

async fn r13_while_a_handler_runs_its_key_is_in_flight_in_every_process<P: Place>() {
    for shape in SHAPES {
        let place = P::make().await;
        let gate = Gate::closed();
        let app = App::with_gate(&place, shape, gate.clone()).await;
        let other = App::new(&place, shape).await;
        let first = app.spawn("k", 5);
        gate.reached(1).await;
        for second in [app.order("k", 5).await, other.order("k", 5).await] {
            assert_eq!((second.status, &*second.code()), (StatusCode::CONFLICT, "idempotency_key_in_flight"));
            assert!(second.headers.contains_key("retry-after"));
        }
        assert_eq!(place.rows(), 0, "nothing before the commit");
        // Another key is not kept waiting.
        assert_eq!(other.order("another", 5).await.status, StatusCode::CREATED);
        gate.release();
        let first = first.await.unwrap();
        assert_eq!(first.status, StatusCode::CREATED);
        assert_eq!(other.order("k", 5).await, first, "replayed, byte for byte");
        assert_eq!(other.order("k", 6).await.code(), "idempotency_key_payload_mismatch");
        assert_eq!((app.runs(), other.runs(), place.rows()), (1, 1, 2), "{shape:?}");
    }
}

async fn a_waiter_in_another_process_is_given_the_answer_once_it_is_committed<P: Place>() {
    for shape in SHAPES {
        let place = P::make().await;
        let gate = Gate::closed();
        let app = App::with_gate(&place, shape, gate.clone()).await;
        let other = App::new(&place, &format!("{shape}\n{WAIT}")).await;
        let first = app.spawn("k", 5);
        gate.reached(1).await;
        let waiting: Vec<_> = (0..5).map(|_| other.spawn("k", 5)).collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(waiting.iter().all(|waiter| !waiter.is_finished()), "they wait");
        gate.release();
        let first = first.await.unwrap();
        for answer in waiting {
            assert_eq!(answer.await.unwrap(), first, "{shape:?}");
        }
        assert_eq!((app.runs(), other.runs(), place.rows()), (1, 0, 1), "{shape:?}");
    }
}

/// What a successor does that came after the end of the lease, without waiting for it: it takes over and completes.
async fn taken_over<P: Place>(place: &P) {
    let store = place.open().await;
    let (address, held) = store.list(&Filter::default(), None, 1).await.unwrap().remove(0);
    let lease_until = held.lease_until().unwrap();
    let body = Body::Kept(bytes::Bytes::from_static(b"\"the successor's\""));
    let done = RecordState::Completed {
        outcome: Arc::new(Outcome { status: 201, headers: Vec::new(), body, trailers: Vec::new() }),
        at: lease_until,
        expires_at: lease_until.plus(Duration::from_secs(3600)),
        reap_at: lease_until.plus(Duration::from_secs(7200)),
        resource: None,
    };
    let successor = AttemptId::new(!held.attempt.as_u128());
    let expect = Expect::Takeover { attempt: held.attempt, expired_by: lease_until };
    let write = Write { expect, next: Record { attempt: successor, state: done, ..held } };
    assert!(matches!(store.write_if(&address, &write).await.unwrap(), Written::Yes(_)));
}

async fn r3_a_holder_that_was_taken_over_rolls_back_and_answers_with_what_stands<P: Place>() {
    let place = P::make().await;
    let gate = Gate::closed();
    let app = App::with_gate(&place, SHAPES[1], gate.clone()).await;
    let first = app.spawn("k", 5);
    gate.reached(1).await;
    taken_over(&place).await;
    gate.release();
    let answer = first.await.unwrap();
    assert_eq!(
        (answer.status, answer.json()),
        (StatusCode::CREATED, json!("the successor's")),
        "not its own"
    );
    assert_eq!((app.runs(), place.rows()), (1, 0), "and its row is rolled back");
}

async fn r3_a_holder_whose_successor_gave_up_sends_its_caller_to_try_again<P: Place>() {
    let place = P::make().await;
    let gate = Gate::closed();
    let app = App::with_gate(&place, SHAPES[1], gate.clone()).await;
    let first = app.spawn("k", 5);
    gate.reached(1).await;
    let store = place.open().await;
    let (address, held) = store.list(&Filter::default(), None, 1).await.unwrap().remove(0);
    // Took over, failed, and freed the key.
    assert!(store.remove_if(&address, RemoveIf::Attempt(held.attempt)).await.unwrap());
    gate.release();
    let answer = first.await.unwrap();
    assert_eq!(answer.code(), "idempotency_store_unavailable", "nothing is kept, and nothing is uncertain");
    assert_eq!((app.state().await, place.rows()), ("absent", 0));
    assert_eq!(app.order("k", 5).await.status, StatusCode::CREATED);
    assert_eq!((app.runs(), place.rows()), (2, 1));
}

async fn r3_a_holder_that_lost_its_transaction_and_its_key_answers_with_what_stands<P: Place>() {
    let place = P::make().await;
    let gate = Gate::closed();
    let app = App::with_gate(&place, SHAPES[1], gate.clone()).await;
    let first = app.spawn("k", -6);
    gate.reached(1).await;
    taken_over(&place).await;
    gate.release();
    let answer = first.await.unwrap();
    assert_eq!((answer.status, answer.json()), (StatusCode::CREATED, json!("the successor's")));
    assert_eq!(app.state().await, "completed", "a record that is another's is not made uncertain");
}

async fn protocol_15_a_store_whose_handlers_wait_past_the_lease_is_refused<P: Place>() {
    let place = P::make().await;
    let store = place.open().await;
    // The stores' own default is ten seconds.
    for (shape, lease, refused) in [(SHAPES[1], 5, true), (SHAPES[1], 10, false), (SHAPES[0], 5, false)] {
        let lines = format!("recovery = \"atomic\"\nwindows = {{ lease = \"{lease}s\" }}\n{shape}");
        let contract = Contract::parse(&endpoint("", &lines), "t.toml").unwrap();
        let built = Retrysafe::builder(contract, store.clone()).fingerprint_keys(deployment_keys()).build();
        let said = built.err().map(|fault| fault.to_string()).unwrap_or_default();
        assert_eq!(said.contains("handlers_wait_past_the_lease"), refused, "{shape} {lease}: {said}");
    }
}

async fn d1_a_dropped_caller_does_not_stop_a_transaction<P: Place>() {
    for shape in SHAPES {
        let place = P::make().await;
        let gate = Gate::closed();
        let app = App::with_gate(&place, shape, gate.clone()).await;
        let first = app.spawn("k", 5);
        gate.reached(1).await;
        first.abort();
        assert!(first.await.is_err());
        gate.release();
        let other = App::new(&place, &format!("{shape}\n{WAIT}")).await;
        assert_eq!(other.order("k", 5).await.json()["run"], 1, "{shape:?}");
        assert_eq!((app.runs(), other.runs(), place.rows()), (1, 0, 1), "{shape:?}");
    }
}

async fn protocol_17_a_claim_made_first_is_held_when_its_handler_committed_by_itself<P: Place>() {
    let place = P::make().await;
    let app = App::new(&place, SHAPES[1]).await;
    for _ in 0..2 {
        assert_eq!(app.order("k", -6).await.code(), "idempotency_outcome_unknown");
    }
    assert_eq!((app.runs(), place.rows(), app.state().await), (1, 1, "uncertain"));
}

async fn upkeep_reaps_what_is_due_and_nothing_else<P: Place>() {
    let place = P::make().await;
    let app = App::new(&place, "").await;
    for key in ["k1", "k2", "k3", "k4"] {
        assert_eq!(app.order(key, 5).await.status, StatusCode::CREATED);
    }
    assert_eq!(app.order("held", -2).await.code(), "idempotency_outcome_unknown");
    let store = &app.shop.store;
    let records = store.list(&Filter::default(), None, 10).await.unwrap();
    // Three of them are long over: as after a month, for which a test does not wait.
    for (address, record) in
        records.iter().filter(|(address, _)| ["k1", "k2", "k3"].contains(&address.key().as_str()))
    {
        let RecordState::Completed { outcome, at, .. } = &record.state else { panic!("{record:?}") };
        assert!(
            store
                .remove_if(address, RemoveIf::Reapable { attempt: record.attempt, by: at.plus(YEAR) })
                .await
                .unwrap()
        );
        let (outcome, at) = (Arc::clone(outcome), Wall::from_unix_ms(at.unix_ms() - 3_000));
        let over = |ms| Wall::from_unix_ms(at.unix_ms() + ms);
        let state =
            RecordState::Completed { outcome, at, expires_at: over(1), reap_at: over(2), resource: None };
        let write = Write { expect: Expect::Absent, next: Record { state, ..record.clone() } };
        assert!(matches!(store.write_if(address, &write).await.unwrap(), Written::Yes(_)));
    }
    // Stopped before it begins: it makes one pass.
    let stop = CancellationToken::new();
    stop.cancel();
    app.retrysafe.upkeep(stop).await;
    let left = store.list(&Filter::default(), None, 10).await.unwrap();
    let left: Vec<&str> = left.iter().map(|(address, _)| address.key().as_str()).collect();
    assert_eq!(left, ["held", "k4"]);
}

/// Protocol 18: a deferred constraint speaks before the answer does, and coming again would fail again.
#[tokio::test(flavor = "multi_thread")]
async fn protocol_18_a_deferred_constraint_of_postgres_fails_the_request_and_frees_its_key() {
    for shape in SHAPES {
        let place = super::Postgres::make().await;
        let app = App::new(&place, shape).await;
        assert_eq!(app.order("k", -7).await.status, StatusCode::INTERNAL_SERVER_ERROR, "{shape:?}");
        assert_eq!((place.rows(), app.state().await), (0, "absent"), "{shape:?}");
    }
}
