//! What a second caller is told while the first runs: 409, wait, or 202 (SPEC 5.2, protocol 14 and 31, F14).

use std::time::Duration;

use crate::support::{
    api::{Api, endpoint, order, two},
    faulty::{Call, Fault, settle_down},
    post,
};
use http::StatusCode;
use retrysafe_store::{ErrorKind, Store};

const WAIT: &str = "in_flight = { answer = \"wait\", wait_at_most = \"10s\", retry_after = \"3s\" }";
const MILLISECOND: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn a_second_caller_is_told_when_to_come_back_and_never_let_through() {
    let api = Api::new("in_flight = { answer = \"409\", retry_after = \"1500ms\" }");
    let gate = api.gate();
    let first = api.spawn(order("k"));
    gate.reached(1).await;
    for _ in 0..3 {
        let second = api.order("k").await;
        assert_eq!(second.status, StatusCode::CONFLICT);
        assert_eq!(second.code(), "idempotency_key_in_flight");
        assert_eq!(second.headers["retry-after"], "2", "rounded up: never an early retry");
        assert_eq!(second.headers["cache-control"], "no-store");
        assert_eq!(second.json()["retryable"], true);
    }
    gate.release();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    assert_eq!(api.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_by_the_result_and_not_only_by_its_poll() {
    let api = Api::new(WAIT);
    let gate = api.gate();
    let first = api.spawn(order("k"));
    gate.reached(1).await;
    let waiter = api.spawn(order("k"));
    // Long enough that the pause between two looks has grown to half a second.
    api.store.pass(Duration::from_millis(2_050)).await;
    let looks = api.store.count(Call::Load);
    assert!(looks < 10, "{looks} looks in two seconds");
    gate.release();
    settle_down().await;
    // No time passes from here on: only the wake can tell it.
    let before = tokio::time::Instant::now();
    assert_eq!(waiter.await.unwrap(), first.await.unwrap());
    assert!(before.elapsed() < MILLISECOND, "{:?}", before.elapsed());
    assert_eq!(api.store.count(Call::Load), looks + 1);
    assert_eq!(api.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_finds_the_result_of_another_process_by_polling() {
    let (one, other) = two(&endpoint("", WAIT));
    let gate = one.gate();
    let first = one.spawn(order("k"));
    gate.reached(1).await;
    let waiter = other.spawn(order("k"));
    settle_down().await;
    gate.release();
    assert_eq!(waiter.await.unwrap(), first.await.unwrap());
    assert_eq!((one.effects(), other.effects()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_and_the_first_goes_on() {
    let api = Api::new(WAIT);
    let gate = api.gate();
    let first = api.spawn(order("k"));
    gate.reached(1).await;
    let before = tokio::time::Instant::now();
    let second = api.order("k").await;
    assert_eq!(second.code(), "idempotency_key_in_flight");
    assert_eq!(second.headers["retry-after"], "3");
    assert_eq!(before.elapsed().as_secs(), 10);
    gate.release();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_holder_releases_runs_itself() {
    let api = Api::new(&format!("{WAIT}\nfailures = {{ policy = \"B\", keep = {{ 500 = \"release\" }} }}"));
    api.replies(|n| match n {
        1 => crate::support::api::json_reply(503, serde_json::json!({})),
        n => crate::support::api::created(n),
    });
    let gate = api.gate();
    let first = api.spawn(order("k"));
    gate.reached(1).await;
    let second = api.spawn(order("k"));
    settle_down().await;
    gate.release();
    assert_eq!(first.await.unwrap().status.as_u16(), 503);
    assert_eq!(second.await.unwrap().status, StatusCode::CREATED);
    assert_eq!(api.effects(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_outstay_a_lost_holder() {
    let api = Api::new(&format!("{WAIT}\nwindows = {{ lease = \"2s\" }}"));
    let gate = api.gate();
    api.store.always(Call::Renew, Fault::Fail(ErrorKind::Unavailable));
    let _first = api.spawn(order("k"));
    gate.reached(1).await;
    let waiter = api.spawn(order("k"));
    api.store.pass(Duration::from_secs(3)).await;
    assert_eq!(waiter.await.unwrap().code(), "idempotency_outcome_unknown");
    assert_eq!(api.store.state().await, "uncertain");
}

#[tokio::test(start_paused = true)]
async fn f14_a_different_body_is_refused_at_once_and_not_told_to_wait() {
    for answer in ["409", "wait", "202", "202-always"] {
        let api = Api::new(&format!("in_flight = {{ answer = \"{answer}\" }}"));
        let gate = api.gate();
        let first = api.spawn(order("k"));
        gate.reached(1).await;
        let mut other = post("/orders", "alice", "k", r#"{"amount": 6}"#);
        other.headers_mut().insert("prefer", "respond-async".parse().unwrap());
        let before = tokio::time::Instant::now();
        let refused = api.send(other).await;
        assert_eq!(refused.code(), "idempotency_key_payload_mismatch", "{answer}");
        assert!(!refused.headers.contains_key("retry-after") && refused.json()["retryable"] == false);
        assert!(before.elapsed() < MILLISECOND);
        gate.release();
        assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
        assert_eq!(api.effects(), 1);
    }
}

/// Protocol 14: the layer's own permit is taken before the claim; without one nothing is claimed.
#[tokio::test(start_paused = true)]
async fn protocol_14_without_a_permit_there_is_503_and_no_claim() {
    let api = Api::contract(&endpoint("concurrent_max = 2\n", ""));
    let gate = api.gate();
    let running = [api.spawn(order("a")), api.spawn(order("b"))];
    gate.reached(2).await;
    let claims = api.store.count(Call::Claim);
    let turned_away = api.order("c").await;
    assert_eq!((turned_away.status.as_u16(), turned_away.code()), (503, "idempotency_overloaded".into()));
    assert!(turned_away.headers.contains_key("retry-after"));
    assert_eq!(api.store.count(Call::Claim), claims, "before any claim");
    gate.release();
    for running in running {
        assert_eq!(running.await.unwrap().status, StatusCode::CREATED);
    }
    assert_eq!(api.order("c").await.status, StatusCode::CREATED, "with the same key, later");
}

/// An overload turns away new work, not the retries of what is done.
#[tokio::test]
async fn protocol_14_without_a_permit_what_is_done_is_still_replayed() {
    let api = Api::contract(&endpoint("concurrent_max = 1\n", ""));
    let done = api.order("done").await;
    let gate = api.gate();
    let running = api.spawn(order("a"));
    gate.reached(1).await;
    assert_eq!(api.order("done").await, done);
    assert_eq!(api.order("a").await.code(), "idempotency_key_in_flight");
    assert_eq!(api.order("new").await.code(), "idempotency_overloaded");
    gate.release();
    assert_eq!(running.await.unwrap().status, StatusCode::CREATED);
}

/// Protocol 14: the permit lives inside the detached task. A client that resets its streams does not free it.
#[tokio::test(start_paused = true)]
async fn protocol_14_a_client_that_goes_away_does_not_free_its_permit() {
    let api = Api::contract(&endpoint("concurrent_max = 1\n", ""));
    let gate = api.gate();
    let first = api.spawn(order("a"));
    gate.reached(1).await;
    first.abort();
    settle_down().await;
    assert_eq!(api.order("b").await.code(), "idempotency_overloaded");
    gate.release();
    settle_down().await;
    assert_eq!(api.order("b").await.status, StatusCode::CREATED);
    assert_eq!(api.order("a").await.status, StatusCode::CREATED, "and its answer was kept");
    assert_eq!(api.effects(), 2);
}

/// Protocol 14: waiters hold no permit, however many they are.
#[tokio::test(start_paused = true)]
async fn protocol_14_waiters_hold_no_permit() {
    let api = Api::contract(&endpoint("concurrent_max = 2\n", WAIT));
    let gate = api.gate();
    let first = api.spawn(order("k"));
    gate.reached(1).await;
    let waiters: Vec<_> = (0..20).map(|_| api.spawn(order("k"))).collect();
    settle_down().await;
    let another = api.spawn(order("other"));
    gate.reached(2).await;
    gate.release();
    assert_eq!(another.await.unwrap().status, StatusCode::CREATED);
    let answer = first.await.unwrap();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), answer);
    }
    assert_eq!(api.effects(), 2);
}

/// A handler that hangs keeps its claim; its caller is not kept for ever.
#[tokio::test(start_paused = true)]
async fn a_caller_of_a_handler_that_hangs_is_told_what_is_true() {
    let api = Api::contract(&endpoint("answer_timeout = \"5s\"\n", ""));
    let gate = api.gate();
    let hangs = api.spawn(order("k"));
    gate.reached(1).await;
    api.store.pass(Duration::from_secs(16)).await;
    assert!(hangs.is_finished(), "answer_timeout and the store's grace have passed");
    let told = hangs.await.unwrap();
    assert_eq!(
        (told.code().as_str(), told.json()["retryable"].as_bool()),
        ("idempotency_key_in_flight", Some(true))
    );
    // Past answer_timeout the lease is not renewed any more, and its end makes the key uncertain.
    api.store.pass(Duration::from_secs(40)).await;
    assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
    // It comes to an end after all: its result is the true one (protocol 9).
    gate.release();
    settle_down().await;
    assert_eq!(api.order("k").await.status, StatusCode::CREATED);
    assert_eq!(api.effects(), 1);
}

fn with_deadline(key: &str, left: &str) -> axum::extract::Request {
    let mut request = order(key);
    request.headers_mut().insert("x-time-left", left.parse().unwrap());
    request
}

const DEADLINE: &str = "client = { drop_stored_statuses = true, deadline_header = \"X-Time-Left\" }";

fn deadline_contract(lines: &str) -> String {
    endpoint("", lines).replace("client = { drop_stored_statuses = true }", DEADLINE)
}

#[tokio::test(start_paused = true)]
async fn a_request_past_its_deadline_starts_nothing() {
    let api = Api::contract(&deadline_contract(""));
    let late = api.send(with_deadline("k", "0")).await;
    assert_eq!((late.status.as_u16(), late.code()), (504, "deadline_exceeded_before_start".into()));
    assert_eq!((api.store.state().await, api.effects()), ("absent", 0));
    // A header that is no number cannot be obeyed, and is not.
    for odd in ["soon", "-1", ""] {
        assert_eq!(api.send(with_deadline("k", odd)).await.status, StatusCode::CREATED);
    }
    assert_eq!(api.send(with_deadline("k", "1")).await.status, StatusCode::CREATED);
    assert_eq!(api.effects(), 1);
}

/// Protocol 24, for the request itself: a caller that waited until its deadline was told "failed"; nothing starts then.
#[tokio::test(start_paused = true)]
async fn nobody_waits_past_its_deadline_or_starts_after_it() {
    let api = Api::contract(&deadline_contract(WAIT));
    let gate = api.gate();
    let first = api.spawn(order("k"));
    gate.reached(1).await;
    let before = tokio::time::Instant::now();
    assert_eq!(api.send(with_deadline("k", "700")).await.code(), "idempotency_key_in_flight");
    assert_eq!(before.elapsed().as_millis(), 700);
    gate.release();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);

    // The claim itself takes so long that the deadline has passed when its turn comes again.
    let api = Api::contract(&deadline_contract(&format!(
        "{WAIT}\nfailures = {{ policy = \"B\", keep = {{ 500 = \"release\" }} }}"
    )));
    api.replies(|_| crate::support::api::json_reply(500, serde_json::json!({})));
    let gate = api.gate();
    let _first = api.spawn(order("k"));
    gate.reached(1).await;
    let look = api.store.block(Call::Load);
    let late = api.spawn(with_deadline("k", "300"));
    look.reached(1).await;
    gate.let_through(1);
    api.store.pass(Duration::from_secs(1)).await;
    look.release();
    assert_eq!(late.await.unwrap().code(), "deadline_exceeded_before_start");
    assert_eq!((api.effects(), api.store.state().await), (1, "absent"));
}

/// SPEC 10: nothing but the result itself ends the wait early, and the store keeps the only truth.
#[tokio::test(start_paused = true)]
async fn a_waiter_meets_a_store_outage_with_503_and_ends_no_claim() {
    let api = Api::new(WAIT);
    let gate = api.gate();
    let first = api.spawn(order("k"));
    gate.reached(1).await;
    api.store.once(Call::Load, Fault::Fail(ErrorKind::Unavailable));
    let waiter = api.order("k").await;
    assert_eq!((waiter.status.as_u16(), waiter.code()), (503, "idempotency_store_unavailable".into()));
    gate.release();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    assert!(api.store.now().is_ok() && api.store.state().await == "completed");
}

/// A handler gets what is left when it starts, not what was left when the request's head came.
#[tokio::test(start_paused = true)]
async fn the_rest_of_the_deadline_is_handed_to_the_handler() {
    use axum::{Extension, Router, body::Body, routing};
    use retrysafe_server::TimeLeft;
    use tower::ServiceExt;

    let api = Api::contract(&deadline_contract(""));
    let handler =
        |Extension(TimeLeft(left)): Extension<TimeLeft>| async move { left.as_millis().to_string() };
    let router = Router::new().route("/orders", routing::post(handler)).layer(api.retrysafe.clone());
    let slow = futures_util::stream::once(async {
        tokio::time::sleep(200 * MILLISECOND).await;
        Ok::<_, std::io::Error>("{}")
    });
    let request = with_deadline("k", "700").map(|_| Body::from_stream(slow));
    let answer = router.oneshot(request).await.unwrap();
    let left = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
    assert_eq!(left.as_ref(), b"500");
}
