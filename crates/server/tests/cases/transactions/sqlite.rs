//! Both shapes on the embedded store, through axum.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use axum::{Extension, Router, extract::State, routing::post as on_post};
use futures_util::future::join_all;
use http::StatusCode;
use retrysafe_core::contract::Contract;
use retrysafe_server::{
    Refuse, Reply, Retrysafe,
    extract::{Answer as Settled, Keyed},
};
use retrysafe_store::{
    Filter, Store,
    sqlite::{SqliteOptions, SqliteStore},
};
use serde::Deserialize;
use tower::ServiceExt;

use crate::support::{
    Answer,
    api::{deployment_keys, endpoint, read},
    post,
};

#[derive(Deserialize)]
struct NewOrder {
    amount: i64,
}

#[derive(Clone)]
struct Shop {
    store: Arc<SqliteStore>,
    runs: Arc<AtomicU64>,
}

/// Writes a row in any case, and then says what the amount asks for.
async fn create(State(shop): State<Shop>, keyed: Keyed<NewOrder>) -> Settled {
    let Shop { store, runs } = shop;
    keyed
        .transaction_sync(&store, move |tx, order| {
            runs.fetch_add(1, Ordering::SeqCst);
            tx.execute("INSERT INTO orders (amount) VALUES (?1)", [order.amount])?;
            tx.effect("order")?;
            match order.amount {
                0 => Err(Refuse::store(422, "the amount must be positive")),
                -1 => Err(Refuse::release(503, "the stock is being counted")),
                -2 => Err(Refuse::Unknown),
                -3 => panic!("in the middle"),
                -4 => Ok(Reply::json(402, &"declined, and recorded")),
                -5 => {
                    tx.execute("INSERT INTO no_such_table VALUES (1)", [])?;
                    Ok(Reply::json(201, &"never"))
                }
                -6 => Err(Refuse::store(503, "nothing happened")),
                -7 => Ok(Reply::bytes(201, "text/plain", vec![b'x'; 3 << 20])),
                amount => Ok(Reply::json(
                    201,
                    &serde_json::json!({ "id": tx.last_insert_rowid(), "amount": amount }),
                )),
            }
        })
        .await
}

struct App {
    router: Router,
    shop: Shop,
    _folder: tempfile::TempDir,
}

impl App {
    async fn new(lines: &str) -> Self {
        Self::with(&format!("recovery = \"atomic\"\n{lines}")).await
    }

    async fn with(lines: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(SqliteStore::open(SqliteOptions::new(folder.path().join("shop.db"))).unwrap());
        store.define("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER) STRICT").await.unwrap();
        let contract = Contract::parse(&endpoint("", lines), "t.toml").unwrap();
        let builder = Retrysafe::builder(contract, store.clone()).fingerprint_keys(deployment_keys());
        let retrysafe = builder.build().unwrap_or_else(|fault| panic!("{fault}"));
        let shop = Shop { store, runs: Arc::default() };
        let router = Router::new()
            .route("/orders", on_post(create))
            .with_state(shop.clone())
            .layer(Extension(retrysafe));
        Self { router, shop, _folder: folder }
    }

    async fn order(&self, key: &str, amount: i64) -> Answer {
        let request = post("/orders", "alice", key, &format!("{{\"amount\": {amount}}}"));
        read(self.router.clone().oneshot(request).await.unwrap()).await
    }

    async fn rows(&self) -> i64 {
        let count = "SELECT (SELECT count(*) FROM orders) + 1000 * (SELECT count(*) FROM retrysafe_effect)";
        let both: i64 =
            self.shop.store.run(|tables| tables.query_row(count, [], |row| row.get(0))).await.unwrap();
        assert_eq!(both % 1000, both / 1000, "the ledger and the table agree");
        both % 1000
    }

    async fn state(&self) -> &'static str {
        let records = self.shop.store.list(&Filter::default(), None, 10).await.unwrap();
        match records.as_slice() {
            [] => "absent",
            [(_, record)] => match retrysafe_store::StateName::of(&record.state) {
                retrysafe_store::StateName::InFlight => "in_flight",
                retrysafe_store::StateName::Uncertain => "uncertain",
                retrysafe_store::StateName::Completed => "completed",
            },
            several => panic!("{several:?}"),
        }
    }

    fn runs(&self) -> u64 {
        self.shop.runs.load(Ordering::SeqCst)
    }
}

const B: &str = "failures = { policy = \"B\", keep = { 500 = \"release\" } }";
const FIRST: &str = "transaction = \"claim_first\"";

#[tokio::test]
async fn protocol_16_d4_rows_and_record_end_together_as_the_handler_says() {
    let unknown = "idempotency_outcome_unknown";
    // Policy, amount, status or code of the first answer and of the second, runs, rows, state.
    for (policy, amount, first, second, runs, rows, state) in [
        ("", 5, "201", "201", 1, 1, "completed"),
        // A refusal that is kept: its rows are not.
        ("", 0, "422", "422", 1, 0, "completed"),
        (B, 0, "422", "422", 1, 0, "completed"),
        // A reply commits, whatever its status.
        (B, -4, "402", "402", 1, 1, "completed"),
        ("", -6, "503", "503", 1, 0, "completed"),
        // The effect that the handler states rules, then the class of the status.
        (B, -6, "503", "503", 2, 0, "absent"),
        ("", -1, "503", "503", 2, 0, "absent"),
        ("", -2, unknown, unknown, 1, 0, "uncertain"),
        ("", -3, "upstream_unavailable", "upstream_unavailable", 2, 0, "absent"),
        ("", -5, "idempotency_store_unavailable", "idempotency_store_unavailable", 2, 0, "absent"),
        ("", -7, "201", "idempotency_response_not_kept", 1, 1, "completed"),
    ] {
        for shape in ["", FIRST] {
            let app = App::new(&format!("{policy}\n{shape}")).await;
            for expected in [first, second] {
                let answer = app.order("k", amount).await;
                let code = answer.code();
                let told = if code.is_empty() { answer.status.as_str().to_owned() } else { code };
                assert_eq!(told, expected, "{amount} under {policy:?}, {shape:?}");
            }
            let found = (app.runs(), app.rows().await, app.state().await);
            assert_eq!(found, (runs, rows, state), "{amount} under {policy:?}, {shape:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r1_of_fifty_at_once_one_writes_its_row_and_nobody_is_told_otherwise() {
    for shape in ["", FIRST, "in_flight = { answer = \"wait\" }"] {
        let app = App::new(shape).await;
        for round in 0..20 {
            let key = format!("k{round}");
            let answers = join_all((0..50).map(|_| app.order(&key, 5))).await;
            let created: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
            assert!(!created.is_empty() && created.iter().all(|answer| *answer == created[0]), "one answer");
            for other in answers.iter().filter(|answer| answer.status != 201) {
                assert_eq!((other.code().as_str(), shape), ("idempotency_key_in_flight", FIRST));
            }
            assert_eq!(app.rows().await, round + 1, "{shape}");
        }
    }
}

#[tokio::test]
async fn a_mismatch_is_refused_once_the_first_has_committed() {
    let app = App::new("").await;
    let first = app.order("k", 5).await;
    assert_eq!(app.order("k", 6).await.code(), "idempotency_key_payload_mismatch");
    assert_eq!(app.order("k", 5).await, first);
    assert_eq!((app.runs(), app.rows().await), (1, 1));
}

/// What the contract does not say is not done.
#[tokio::test]
async fn a_transaction_that_the_contract_does_not_ask_for_is_refused_and_nothing_runs() {
    let app = App::with("recovery = \"outside\"").await;
    assert_eq!(app.order("k", 5).await.status, StatusCode::INTERNAL_SERVER_ERROR);
    let other = App::new("").await;
    let mut elsewhere = App::new("").await;
    // Its handler writes to another file than the one its claims are in.
    elsewhere.router =
        Router::new().route("/orders", on_post(create)).with_state(other.shop.clone()).layer({
            let contract = Contract::parse(&endpoint("", "recovery = \"atomic\""), "t.toml").unwrap();
            let store = elsewhere.shop.store.clone();
            Extension(
                Retrysafe::builder(contract, store).fingerprint_keys(deployment_keys()).build().unwrap(),
            )
        });
    assert_eq!(elsewhere.order("k", 5).await.status, StatusCode::INTERNAL_SERVER_ERROR);
    for app in [app, other, elsewhere] {
        assert_eq!((app.runs(), app.state().await), (0, "absent"));
    }
}
