//! 202 and its status URL (protocol 31): random, as private as the key, never cached.

use axum::{body::Body, extract::Request};
use http::StatusCode;

use crate::support::{
    Answer,
    api::{Api, order},
    faulty::Call,
};

const ALWAYS: &str = "in_flight = { answer = \"202-always\", retry_after = \"2s\" }";
const PREFERRED: &str = "in_flight = { answer = \"202\", retry_after = \"2s\" }";

fn poll(account: Option<&str>, url: &str) -> Request {
    let mut request = Request::get(url);
    if let Some(account) = account {
        request = request.header("authorization", format!("Bearer {account}"));
    }
    request.body(Body::empty()).unwrap()
}

fn location(answer: &Answer) -> String {
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    let url = answer.headers["location"].to_str().unwrap().to_owned();
    assert_eq!(answer.json()["status_url"], url.as_str());
    url
}

#[tokio::test(start_paused = true)]
async fn protocol_31_the_status_url_works_from_202_to_the_answer() {
    let api = Api::new(ALWAYS);
    let gate = api.gate();
    let first = api.spawn(order("k"));
    gate.reached(1).await;
    let accepted = api.order("k").await;
    let url = location(&accepted);
    for answer in [&accepted, &api.send(poll(Some("alice"), &url)).await] {
        assert_eq!(location(answer), url);
        assert_eq!(
            (&answer.headers["retry-after"], &answer.headers["cache-control"]),
            (&"2".parse().unwrap(), &"no-store".parse().unwrap())
        );
        assert_eq!(answer.json()["code"], "idempotency_key_in_flight", "no client takes it for the result");
    }
    gate.release();
    let original = first.await.unwrap();
    let polled = api.send(poll(Some("alice"), &url)).await;
    assert_eq!((polled.status, &polled.body), (original.status, &original.body));
    assert_eq!(polled.headers["cache-control"], "no-store");
    assert_eq!(polled.headers["content-type"], original.headers["content-type"]);
    assert_eq!(api.effects(), 1, "polls never reach the handler");
}

#[tokio::test(start_paused = true)]
async fn protocol_31_only_those_who_asked_get_202() {
    let api = Api::new(PREFERRED);
    let gate = api.gate();
    let first = api.spawn(order("k"));
    gate.reached(1).await;
    let with = |lines: &[&str]| {
        let mut request = order("k");
        for line in lines {
            request.headers_mut().append("prefer", line.parse().unwrap());
        }
        request
    };
    let rows: [(&[&str], u16); 8] = [
        (&[], 409),
        (&["respond-async"], 202),
        (&["wait=10, Respond-Async"], 202),
        (&["return=minimal", "respond-async"], 202),
        (&["respond-async;x=1"], 202),
        (&["respond-async-not"], 409),
        (&["return=\"respond-async\""], 409),
        (&["wait=10"], 409),
    ];
    for (lines, status) in rows {
        assert_eq!(api.send(with(lines)).await.status.as_u16(), status, "{lines:?}");
    }
    gate.release();
    let original = first.await.unwrap();
    assert_eq!(api.send(with(&["respond-async"])).await, original, "the answer is there: no 202");
}

/// As private as the key: somebody else's operation looks like none at all.
#[tokio::test(start_paused = true)]
async fn protocol_31_another_account_sees_nothing_at_all() {
    let api = Api::new(ALWAYS);
    let gate = api.gate();
    let first = api.spawn(order("k"));
    gate.reached(1).await;
    let url = location(&api.order("k").await);
    let (folder, id) = url.rsplit_once('/').unwrap();
    assert_eq!(id.len(), 32, "128 random bits");
    let none = api.send(poll(Some("bob"), &format!("{folder}/{}", "0".repeat(32)))).await;
    assert_eq!(none.status, StatusCode::NOT_FOUND);
    let spellings = [
        id.to_uppercase(),
        id[1..].to_owned(),
        format!("{id}0"),
        format!("{id}/"),
        String::new(),
        "..".to_owned(),
    ];
    for running in [true, false] {
        assert_eq!(api.send(poll(Some("bob"), &url)).await, none, "running: {running}");
        let nobody = api.send(poll(None, &url)).await;
        assert_eq!((nobody.status.as_u16(), nobody.code().as_str()), (401, "idempotency_scope_missing"));
        for other in &spellings {
            assert_eq!(
                api.send(poll(Some("alice"), &format!("{folder}/{other}"))).await.status,
                StatusCode::NOT_FOUND,
                "{other}"
            );
        }
        gate.release();
    }
    first.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn protocol_31_an_uncertain_operation_says_so_and_a_takeover_keeps_its_url() {
    let api = Api::new(ALWAYS);
    let gate = api.gate();
    let _first = api.spawn(order("k"));
    gate.reached(1).await;
    let url = location(&api.order("k").await);
    api.store
        .always(Call::Renew, crate::support::faulty::Fault::Fail(retrysafe_store::ErrorKind::Unavailable));
    api.lose_holder();
    api.order("k").await;
    let polled = api.send(poll(Some("alice"), &url)).await;
    assert_eq!(polled.code(), "idempotency_outcome_unknown");
    assert_eq!(polled.headers["cache-control"], "no-store");
    gate.release();
    crate::support::faulty::settle_down().await;
    assert_eq!(api.send(poll(Some("alice"), &url)).await.status, StatusCode::CREATED, "protocol 9");
}

#[tokio::test(start_paused = true)]
async fn a_poll_while_the_store_is_down_is_503_and_not_404() {
    let api = Api::new(ALWAYS);
    api.store
        .once(Call::Locate, crate::support::faulty::Fault::Fail(retrysafe_store::ErrorKind::Unavailable));
    let id = "0".repeat(32);
    let answer = api.send(poll(Some("alice"), &format!("/.retrysafe/status/{id}"))).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (503, "idempotency_store_unavailable".into()));
}
