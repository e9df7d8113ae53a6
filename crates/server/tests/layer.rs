//! The layer over an axum router and the memory store.

mod support;

use http::StatusCode;
use support::{App, post};

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
