//! What becomes of failures, panics and lost answers through the layer (D9, S1, S2, protocol 16, 20; SPEC 6).

use std::time::Duration;

use crate::support::{
    api::{Api, created, endpoint, json_reply, order},
    faulty::Faulty,
};
use axum::response::Response;
use http::StatusCode;
use retrysafe_server::{Effect, NoUpstreamAnswer, Place};
use serde_json::json;

const B: &str = "failures = { policy = \"B\", keep = { 500 = \"uncertain\" } }";
const DEDUPLICATED: &str = "upstream_deduplicates = true";

fn stating(status: u16, effect: Effect) -> Response {
    let mut response = json_reply(status, json!({ "status": status }));
    response.extensions_mut().insert(effect);
    response
}

fn then_created(
    first: impl Fn() -> Response + Send + Sync + 'static,
) -> impl Fn(u64) -> Response + Send + Sync {
    move |n| if n == 1 { first() } else { created(n) }
}

/// D9: a panic says nothing about the effect. It is never a silent release.
#[tokio::test]
async fn d9_a_panic_is_never_a_release() {
    for (lines, first, then, effects) in [
        ("", "idempotency_outcome_unknown", "idempotency_outcome_unknown", 1),
        (B, "idempotency_outcome_unknown", "idempotency_outcome_unknown", 1),
        // A handler behind the layer is in nobody's transaction, so nothing rolled back with it.
        ("recovery = \"atomic\"", "idempotency_outcome_unknown", "idempotency_outcome_unknown", 1),
        // Where the effect is de-duplicated further on, running again is safe.
        (DEDUPLICATED, "upstream_unavailable", "", 2),
    ] {
        let api = Api::new(lines);
        api.replies(then_created(|| panic!("after the commit")));
        assert_eq!(api.order("k").await.code(), first, "{lines}");
        assert_eq!(api.order("k").await.code(), then, "{lines}");
        assert_eq!(api.effects(), effects, "{lines}");
    }
}

/// D9: a body that panics while it is read is a panic of the handler.
#[tokio::test]
async fn d9_a_panic_in_the_body_of_an_answer_is_one_too() {
    let api = Api::new("");
    api.replies(|_| {
        let frames = futures_util::stream::iter(0..1)
            .map(|_| -> Result<bytes::Bytes, std::io::Error> { panic!("in the body") });
        Response::new(axum::body::Body::from_stream(frames))
    });
    assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
    assert_eq!(api.store.state().await, "uncertain");
    use futures_util::StreamExt as _;
}

/// S1: a transient failure does not kill its key under B, and is kept under A.
#[tokio::test]
async fn s1_a_transient_failure_may_be_tried_again_where_the_contract_says_so() {
    for status in [429, 502, 503, 504] {
        let api = Api::new(B);
        api.replies(then_created(move || json_reply(status, json!({}))));
        let failed = api.order("k").await;
        assert_eq!((failed.status.as_u16(), failed.body), (status, "{}".into()), "passed on as it is");
        assert_eq!(api.store.state().await, "absent");
        assert_eq!(api.order("k").await.status, StatusCode::CREATED, "{status}");
    }
    let api = Api::new("");
    api.replies(then_created(|| json_reply(503, json!({}))));
    assert_eq!(api.order("k").await, api.order("k").await, "policy A");
    assert_eq!(api.effects(), 1);
}

/// S1: a body that was mistyped once. Its 400 is stored, and the corrected body needs a new key; nothing runs twice.
#[tokio::test]
async fn s1_a_stored_400_belongs_to_its_body() {
    let api = Api::new(B);
    api.replies(then_created(|| json_reply(400, json!({ "amount": "not a number" }))));
    let refused = api.order("k").await;
    assert_eq!(api.order("k").await, refused);
    let corrected = crate::support::post("/orders", "alice", "k", r#"{"amount": 50}"#);
    assert_eq!(api.send(corrected).await.code(), "idempotency_key_payload_mismatch");
    let corrected = crate::support::post("/orders", "alice", "k-2", r#"{"amount": 50}"#);
    assert_eq!(api.send(corrected).await.status, StatusCode::CREATED);
}

/// S2: whether it may have happened decides before the status does.
#[tokio::test]
async fn s2_a_failure_after_its_effect_is_never_run_again() {
    for status in [402, 429, 503, 500] {
        let api = Api::new(B);
        api.replies(then_created(move || stating(status, Effect::Done)));
        let declined = api.order("k").await;
        assert_eq!(declined.status.as_u16(), status, "protocol 16: the handler chose to commit");
        assert_eq!(api.order("k").await, declined);
        assert_eq!(api.effects(), 1, "{status}");

        let api = Api::new(B);
        api.replies(then_created(move || stating(status, Effect::Unknown)));
        assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
        assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
        assert_eq!(api.effects(), 1, "{status}");
    }
    let api = Api::new(DEDUPLICATED);
    api.replies(then_created(|| stating(429, Effect::Done)));
    assert_eq!(api.order("k").await, api.order("k").await, "Done is never released, whoever de-duplicates");
    assert_eq!(api.effects(), 1);
}

/// SPEC 6.2: a business refusal is kept for its class's time, and then the same key is a new try.
#[tokio::test(start_paused = true)]
async fn s1_each_class_has_its_time() {
    for (status, kept) in [(402, 3600), (409, 3600), (403, 60), (422, 24 * 3600)] {
        let api = Api::new(B);
        api.replies(then_created(move || json_reply(status, json!({}))));
        let refused = api.order("k").await;
        api.store.clock().advance(Duration::from_secs(kept - 1));
        assert_eq!(api.order("k").await, refused, "{status}");
        api.store.clock().advance(Duration::from_secs(1));
        assert_eq!(api.order("k").await.status, StatusCode::CREATED, "{status} after {kept} s");
    }
}

/// Protocol 20: "not decided" is no outcome, under policy A either.
#[tokio::test]
async fn protocol_20_what_is_not_decided_is_not_stored() {
    // Throttled: nothing happened.
    let api = Api::new("");
    api.replies(then_created(|| json_reply(429, json!({}))));
    assert_eq!(api.order("k").await.status.as_u16(), 429);
    assert_eq!(api.order("k").await.status, StatusCode::CREATED);
    // A hop further in that has the request already.
    let api = Api::new("");
    api.replies(then_created(|| json_reply(409, json!({ "code": "idempotency_key_in_flight" }))));
    assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
    assert_eq!((api.store.state().await, api.effects()), ("uncertain", 1));
    // One that did nothing, for reasons of its own.
    let api = Api::new("");
    api.replies(then_created(|| json_reply(503, json!({ "code": "idempotency_store_unavailable" }))));
    assert_eq!(api.order("k").await.code(), "idempotency_store_unavailable");
    assert_eq!(api.order("k").await.status, StatusCode::CREATED);
}

fn at_gateway(lines: &str) -> Api {
    Api::built(&endpoint("", lines), Faulty::new(), |builder| builder.place(Place::Gateway))
}

fn without_answer(what: NoUpstreamAnswer) -> Response {
    let mut response = json_reply(502, json!({}));
    response.extensions_mut().insert(what);
    response
}

/// Protocol 21: only what was never sent, and what the contract lists, frees the key.
#[tokio::test]
async fn protocol_21_at_a_gateway_a_lost_answer_is_unknown_and_an_unsent_request_is_not() {
    let not_sent: fn() -> Response = || without_answer(NoUpstreamAnswer::NotSent);
    let lost: fn() -> Response = || without_answer(NoUpstreamAnswer::Lost);
    let bad_gateway: fn() -> Response = || json_reply(502, json!({}));
    let error: fn() -> Response = || json_reply(500, json!({}));
    let busy: fn() -> Response = || json_reply(503, json!({}));
    let (again, unknown) = ("upstream_unavailable", "idempotency_outcome_unknown");
    for (lines, reply, code, effects) in [
        ("", not_sent, again, 2),
        ("", lost, unknown, 1),
        ("", bad_gateway, unknown, 1),
        ("", error, unknown, 1),
        ("", busy, unknown, 1),
        (B, busy, unknown, 1),
        (DEDUPLICATED, lost, again, 2),
        (DEDUPLICATED, error, again, 2),
        ("rejected_before_processing = [503]", busy, "", 2),
        ("final_5xx = [500]", error, "", 1),
    ] {
        let api = at_gateway(lines);
        api.replies(then_created(reply));
        let first = api.order("k").await;
        assert_eq!(first.code(), code, "{lines}");
        assert_eq!(first.headers.contains_key("retry-after"), code == again, "{lines}");
        api.order("k").await;
        assert_eq!(api.effects(), effects, "{lines}");
    }
}

/// Protocol 1: refusals of the authentication in front are passed on and never stored.
#[tokio::test]
async fn protocol_1_a_refused_authentication_uses_up_no_key() {
    for api in [at_gateway(""), Api::new("")] {
        api.replies(then_created(|| json_reply(401, json!({ "error": "expired" }))));
        let refused = api.order("k").await;
        assert_eq!((refused.status.as_u16(), refused.json()["error"].as_str()), (401, Some("expired")));
        assert_eq!(api.order("k").await.status, StatusCode::CREATED);
    }
}

/// A service that fails without an answer (a tower error) is a lost one.
#[tokio::test]
async fn an_error_of_the_service_itself_is_an_unknown_outcome() {
    use tower::{Layer, ServiceExt};
    let api = Api::new("");
    let failing = tower::service_fn(|_: http::Request<retrysafe_server::Body>| async {
        Err::<http::Response<axum::body::Body>, _>(std::io::Error::other("the pool is gone"))
    });
    let response = api.retrysafe.layer(failing).oneshot(order("k")).await.unwrap();
    assert_eq!(crate::support::api::read(response).await.code(), "idempotency_outcome_unknown");
    assert_eq!(api.store.state().await, "uncertain");
}
