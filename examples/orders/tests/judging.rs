//! The tutorial's exercises: which failures are kept, and which are run again.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex, mpsc};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, StatusCode},
};
use example_orders::{Before, OPEN_ORDERS_MAX, app_with};
use http_body_util::BodyExt;
use retrysafe::SqliteStore;
use serde_json::Value;
use tower::ServiceExt;

struct Shop {
    router: Router,
    store: Arc<SqliteStore>,
    _folder: tempfile::TempDir,
}

#[derive(PartialEq, Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
}

impl Shop {
    async fn open() -> Self {
        Self::with(Arc::new(|| {})).await
    }

    async fn with(before: Before) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (router, store) = app_with(folder.path(), before).await.unwrap();
        Self { router, store, _folder: folder }
    }

    fn request(key: &str, body: &str) -> Request<Body> {
        Request::post("/orders")
            .header("authorization", "Bearer alice")
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Body::from(body.to_owned()))
            .unwrap()
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let (parts, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Answer { status: parts.status, headers: parts.headers, body }
    }

    async fn order(&self, key: &str, body: &str) -> Answer {
        self.send(Self::request(key, body)).await
    }

    async fn sql(&self, sql: &'static str) {
        self.store.run(move |tables| tables.execute(sql, []).map(|_| ())).await.unwrap();
    }

    /// Orders, and what is left of the tea.
    async fn books(&self) -> (i64, i64) {
        let sql = "SELECT (SELECT count(*) FROM orders), (SELECT stock FROM item WHERE name = 'tea')";
        self.store
            .run(move |tables| tables.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))))
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn a_201_is_stored_and_another_body_under_its_key_is_409() {
    let shop = Shop::open().await;
    let first = shop.order("k", r#"{"amount": 3}"#).await;
    assert_eq!((first.status, &first.body["id"]), (StatusCode::CREATED, &1.into()));
    assert_eq!(shop.order("k", r#"{ "amount": 3 }"#).await, first);
    let other = shop.order("k", r#"{"amount": 4}"#).await;
    assert_eq!(
        (other.status.as_u16(), other.body["code"].as_str()),
        (409, Some("idempotency_key_payload_mismatch"))
    );
    assert_eq!(shop.books().await, (1, 997));
}

#[tokio::test]
async fn a_422_is_stored() {
    let shop = Shop::open().await;
    let first = shop.order("k", r#"{"amount": 0}"#).await;
    assert_eq!(first.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(shop.order("k", r#"{"amount": 0}"#).await, first);
    assert_eq!(shop.books().await, (0, 1000));
}

#[tokio::test]
async fn a_409_of_the_business_is_stored_even_if_the_world_has_changed() {
    let shop = Shop::open().await;
    let body = r#"{"amount": 1, "item": "coffee"}"#;
    let first = shop.order("k", body).await;
    assert_eq!(
        (first.status.as_u16(), first.body["code"].as_str()),
        (409, None),
        "not one of the layer's own"
    );
    shop.sql("UPDATE item SET stock = 10").await;
    assert_eq!(shop.order("k", body).await, first);
    assert_eq!(shop.order("another", body).await.status, StatusCode::CREATED, "a new try is a new key");
}

#[tokio::test]
async fn a_429_is_not_stored() {
    let shop = Shop::open().await;
    for n in 0..OPEN_ORDERS_MAX {
        assert_eq!(shop.order(&format!("k{n}"), r#"{"amount": 1}"#).await.status, StatusCode::CREATED);
    }
    assert_eq!(shop.order("late", r#"{"amount": 1}"#).await.status, StatusCode::TOO_MANY_REQUESTS);
    shop.sql("DELETE FROM orders WHERE id = 1").await;
    assert_eq!(shop.order("late", r#"{"amount": 1}"#).await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn a_503_is_not_stored() {
    let shop = Shop::open().await;
    shop.sql("UPDATE item SET counting = 1").await;
    assert_eq!(shop.order("k", r#"{"amount": 1}"#).await.status, StatusCode::SERVICE_UNAVAILABLE);
    shop.sql("UPDATE item SET counting = 0").await;
    assert_eq!(shop.order("k", r#"{"amount": 1}"#).await.status, StatusCode::CREATED);
    assert_eq!(shop.books().await, (1, 999));
}

#[tokio::test]
async fn a_500_after_the_effect_is_stored_and_one_without_any_is_not() {
    let shop = Shop::open().await;
    let first = shop.order("k", r#"{"amount": 1, "receipt": true}"#).await;
    assert_eq!(first.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(shop.order("k", r#"{"amount": 1, "receipt": true}"#).await, first);
    assert_eq!(shop.books().await, (1, 999));
    // No row of that name: the statement fails, everything is rolled back, and the key is free.
    for _ in 0..2 {
        let failed = shop.order("k2", r#"{"amount": 1, "item": "cocoa"}"#).await;
        assert_eq!(failed.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(failed.headers.contains_key("retry-after"));
    }
    shop.sql("INSERT INTO item VALUES ('cocoa', 1, 0)").await;
    assert_eq!(shop.order("k2", r#"{"amount": 1, "item": "cocoa"}"#).await.status, StatusCode::CREATED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_caller_in_flight_gets_202_if_it_asked_and_409_if_not() {
    let (reached, reaches) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let goes_on = Mutex::new(goes_on);
    let before = Arc::new(move || {
        reached.send(()).unwrap();
        let _ = goes_on.lock().unwrap().recv();
    });
    let shop = Arc::new(Shop::with(before).await);
    let first = tokio::spawn({
        let shop = Arc::clone(&shop);
        async move { shop.order("k", r#"{"amount": 1}"#).await }
    });
    tokio::task::spawn_blocking(move || reaches.recv().unwrap()).await.unwrap();

    let second = shop.order("k", r#"{"amount": 1}"#).await;
    assert_eq!(
        (second.status.as_u16(), second.body["code"].as_str()),
        (409, Some("idempotency_key_in_flight"))
    );
    assert!(second.headers.contains_key("retry-after"));
    let other = shop.order("k", r#"{"amount": 2}"#).await;
    assert_eq!(other.body["code"], "idempotency_key_payload_mismatch", "before in flight");
    let mut asking = Shop::request("k", r#"{"amount": 1}"#);
    asking.headers_mut().insert("prefer", "respond-async".parse().unwrap());
    let accepted = shop.send(asking).await;
    assert_eq!(accepted.status, StatusCode::ACCEPTED);
    let url = accepted.headers["location"].to_str().unwrap().to_owned();
    let poll = |account: &str| {
        let request = Request::get(&url).header("authorization", format!("Bearer {account}"));
        request.body(Body::empty()).unwrap()
    };
    assert_eq!(shop.send(poll("alice")).await.status, StatusCode::ACCEPTED, "202 is not success");
    assert_eq!(shop.send(poll("mallory")).await.status, StatusCode::NOT_FOUND);

    drop(go_on);
    let first = first.await.unwrap();
    assert_eq!(first.status, StatusCode::CREATED);
    let polled = shop.send(poll("alice")).await;
    assert_eq!((polled.status, &polled.body), (first.status, &first.body));
    assert_eq!(shop.books().await, (1, 999));
}
