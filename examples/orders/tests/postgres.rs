//! Two processes of the order API on one database.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use axum::{
    Router,
    body::{Body, Bytes},
    http::{Request, StatusCode},
};
use http_body_util::BodyExt;
use retrysafe_testbed::postgres::Database;
use tower::ServiceExt;

async fn order(router: &Router, account: &str, key: &str, body: &str) -> (StatusCode, Bytes) {
    let request = Request::post("/orders")
        .header("authorization", format!("Bearer {account}"))
        .header("content-type", "application/json")
        .header("idempotency-key", key)
        .body(Body::from(body.to_owned()))
        .unwrap();
    let (parts, body) = router.clone().oneshot(request).await.unwrap().into_parts();
    (parts.status, body.collect().await.unwrap().to_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_taken_once_whichever_process_is_asked() {
    let (database, folder) = (Database::create(), tempfile::tempdir().unwrap());
    let (one, two) = (
        example_orders::postgres::app(&database.url(), folder.path()).await.unwrap(),
        example_orders::postgres::app(&database.url(), folder.path()).await.unwrap(),
    );
    let first = order(&one, "alice", "k", r#"{"amount": 3}"#).await;
    assert_eq!(first.0, StatusCode::CREATED);
    assert_eq!(order(&two, "alice", "k", r#"{"amount": 3}"#).await, first);
    assert_eq!(order(&two, "alice", "k", r#"{"amount": 4}"#).await.0, StatusCode::CONFLICT);
    let refused = order(&one, "alice", "zero", r#"{"amount": 0}"#).await;
    assert_eq!(refused.0, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(order(&two, "alice", "zero", r#"{"amount": 0}"#).await, refused);
    let books = "SELECT (SELECT count(*) FROM orders), (SELECT stock FROM item WHERE name = 'tea')";
    assert_eq!(database.psql(books), "1|997");

    // The last of the stock, wanted by more than there is: each order is one key's, and none is sold twice.
    database.psql("UPDATE item SET stock = 3 WHERE name = 'tea'");
    let wanted = (0..8).map(|n| {
        let (router, account) = (if n % 2 == 0 { one.clone() } else { two.clone() }, format!("account-{n}"));
        tokio::spawn(async move { order(&router, &account, "last", r#"{"amount": 1}"#).await.0 })
    });
    let mut sold = 0;
    for status in wanted.collect::<Vec<_>>() {
        match status.await.unwrap() {
            StatusCode::CREATED => sold += 1,
            other => assert_eq!(other, StatusCode::CONFLICT),
        }
    }
    assert_eq!((sold, database.psql(books).as_str()), (3, "4|0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_with_another_secret_does_not_start() {
    let (database, folder, elsewhere) =
        (Database::create(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let _first = example_orders::postgres::app(&database.url(), folder.path()).await.unwrap();
    let refused = example_orders::postgres::app(&database.url(), elsewhere.path()).await;
    assert!(refused.unwrap_err().to_string().contains("not the secret of this store"));
}
