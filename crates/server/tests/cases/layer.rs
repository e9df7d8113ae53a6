//! The layer over an axum router and the memory store.

use crate::support::{App, post};
use http::StatusCode;

#[tokio::test]
async fn the_same_key_twice_runs_once_and_answers_the_same_bytes() {
    let app = App::new("").await;
    let first = app.send(post("/orders", "alice", "k-1", r#"{"amount": 5}"#)).await;
    let second = app.send(post("/orders", "alice", "k-1", r#"{ "amount": 5.0 }"#)).await;
    assert_eq!(first.status, StatusCode::CREATED);
    assert_eq!(second, first);
    assert_eq!(app.effects(), 1);
}

#[tokio::test]
async fn another_body_under_the_key_is_refused_and_runs_nothing() {
    let app = App::new("").await;
    app.send(post("/orders", "alice", "k-1", r#"{"amount": 5}"#)).await;
    let other = app.send(post("/orders", "alice", "k-1", r#"{"amount": 6}"#)).await;
    assert_eq!(other.status, StatusCode::CONFLICT);
    assert_eq!(other.code(), "idempotency_key_payload_mismatch");
    assert_eq!(app.effects(), 1);
}

#[tokio::test]
async fn k5_another_account_is_another_scope() {
    let app = App::new("").await;
    let alice = app.send(post("/orders", "alice", "k-1", r#"{"amount": 5}"#)).await;
    let bob = app.send(post("/orders", "bob", "k-1", r#"{"amount": 5}"#)).await;
    assert_ne!(alice.body, bob.body);
    assert_eq!(app.effects(), 2);
}

#[tokio::test]
async fn a_contract_that_the_store_cannot_keep_is_refused_with_every_shortfall() {
    // Waiting for longer than clients wait, and a stored 503 that clients are told to retry: two errors, one answer.
    let text = crate::support::CONTRACT.replace("client = { drop_stored_statuses = true }", "");
    let endpoint =
        "[[endpoint]]\nmethod = \"POST\"\npath = \"/orders\"\nkey = \"required\"\nrecovery = \"atomic\"";
    let contract =
        retrysafe_core::contract::Contract::parse(&format!("{text}\n{endpoint}"), "t.toml").unwrap();
    let store = std::sync::Arc::new(retrysafe_store::memory::MemoryStore::new(Default::default()));
    let Err(fault) = retrysafe_server::Retrysafe::builder(contract, store).build() else {
        panic!("it was built")
    };
    let told = fault.to_string();
    for rule in ["stored_status_is_retried", "atomic_without_transactions"] {
        assert!(told.contains(rule), "{rule} is missing in:\n{told}");
    }
}
