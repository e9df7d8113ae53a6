//! The race of SPEC 11.3, before and after.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
};
use example_webhooks::{LookUp, after, before, database};
use http_body_util::BodyExt;
use retrysafe::{DeploymentKey, FingerprintKeys, SqliteStore};
use tokio::sync::Barrier;
use tower::ServiceExt;

fn keys() -> FingerprintKeys {
    FingerprintKeys::new(DeploymentKey::new(1, &[7; 32]).unwrap())
}

/// Both deliveries are past their check before either writes.
fn both_at_once() -> LookUp {
    let barrier = Arc::new(Barrier::new(2));
    Arc::new(move || {
        let barrier = Arc::clone(&barrier);
        Box::pin(async move {
            barrier.wait().await;
        })
    })
}

fn at_once() -> LookUp {
    Arc::new(|| Box::pin(async {}))
}

async fn deliver(router: &Router, body: &str) -> (StatusCode, String) {
    let request = Request::post("/webhooks").header("content-type", "application/json");
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn invoices(store: &SqliteStore) -> i64 {
    store.run(|tables| tables.query_row("SELECT count(*) FROM invoice", [], |row| row.get(0))).await.unwrap()
}

const PAID: &str = r#"{"id": "evt_1", "order": "o-1"}"#;

#[tokio::test]
async fn before_two_deliveries_at_once_make_two_invoices() {
    let folder = tempfile::tempdir().unwrap();
    let store = database(folder.path()).await.unwrap();
    let router = before::app(store.clone(), both_at_once());
    let (one, other) = tokio::join!(deliver(&router, PAID), deliver(&router, PAID));
    assert_eq!((one.0, other.0), (StatusCode::OK, StatusCode::OK), "and both are told that all is well");
    assert_eq!(invoices(&store).await, 2, "the race");
}

#[tokio::test]
async fn after_two_deliveries_at_once_make_one_invoice_and_both_are_told_which() {
    let folder = tempfile::tempdir().unwrap();
    let store = database(folder.path()).await.unwrap();
    let router = after::app(store.clone(), keys(), both_at_once()).unwrap();
    let (one, other) = tokio::join!(deliver(&router, PAID), deliver(&router, PAID));
    assert_eq!(one, (StatusCode::OK, "invoice 1".to_owned()));
    assert_eq!(other, one);
    assert_eq!(invoices(&store).await, 1);
}

#[tokio::test]
async fn after_a_delivery_that_fails_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let store = database(folder.path()).await.unwrap();
    let router = after::app(store.clone(), keys(), at_once()).unwrap();
    store.define("ALTER TABLE invoice RENAME TO away").await.unwrap();
    assert_eq!(deliver(&router, PAID).await.0, StatusCode::SERVICE_UNAVAILABLE);
    store.define("ALTER TABLE away RENAME TO invoice").await.unwrap();
    assert_eq!(deliver(&router, PAID).await, (StatusCode::OK, "invoice 1".to_owned()));
}

#[tokio::test]
async fn after_a_sender_that_died_gets_the_first_result_and_another_content_is_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let store = database(folder.path()).await.unwrap();
    let router = after::app(store.clone(), keys(), at_once()).unwrap();
    assert_eq!(deliver(&router, PAID).await.0, StatusCode::OK);
    // Again, much later and in another process.
    drop(router);
    drop(store);
    let store = database(folder.path()).await.unwrap();
    let router = after::app(store.clone(), keys(), at_once()).unwrap();
    assert_eq!(deliver(&router, PAID).await, (StatusCode::OK, "invoice 1".to_owned()));
    let other = r#"{"id": "evt_1", "order": "o-2"}"#;
    assert_eq!(deliver(&router, other).await.0, StatusCode::CONFLICT);
    assert_eq!(deliver(&router, "not an event").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(invoices(&store).await, 1);
}
