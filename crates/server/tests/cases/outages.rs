//! Stores that are down, full, lossy or from another version (O1-O4, S14, S20, protocol 18, 19).

use std::time::Duration;

use crate::support::{
    api::{Api, endpoint, order},
    faulty::{Call, Fault, settle_down},
};
use http::StatusCode;
use retrysafe_store::ErrorKind;

const FAILURES: [ErrorKind; 4] =
    [ErrorKind::Unavailable, ErrorKind::Busy, ErrorKind::Full, ErrorKind::ClockJumped];

#[tokio::test(start_paused = true)]
async fn o1_o2_a_store_that_is_down_is_503_with_a_time_and_runs_nothing() {
    for kind in FAILURES {
        let api = Api::new("");
        api.store.always(Call::Claim, Fault::Fail(kind));
        let answer = api.order("k").await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{kind:?}");
        assert_eq!(answer.code(), "idempotency_store_unavailable", "{kind:?}");
        assert!(answer.headers.contains_key("retry-after"));
        assert_eq!(answer.json()["retryable"], true);
        assert_eq!(api.effects(), 0, "closed by default");
        api.store.heal();
        assert_eq!(api.order("k").await.status, StatusCode::CREATED, "the outage used up no key");
    }
}

#[tokio::test(start_paused = true)]
async fn o1_open_runs_unguarded_only_where_the_contract_says_so() {
    let api = Api::new("store_down = \"open\"");
    api.store.down();
    assert_eq!(api.order("k").await.status, StatusCode::CREATED);
    assert_eq!(api.order("k").await.status, StatusCode::CREATED);
    assert_eq!(api.effects(), 2, "that is what open means");
    api.store.heal();
    api.order("k").await;
    assert_eq!(api.order("k").await.json()["id"], "o-3");
}

/// S20: a record that this build cannot read may be the record of a success. It is never run again, not even where the
/// contract lets requests run while the store is down: the store is not down.
#[tokio::test(start_paused = true)]
async fn s20_a_record_of_another_version_is_an_unknown_outcome() {
    for store_down in ["closed", "open"] {
        for kind in [ErrorKind::UnknownVersion, ErrorKind::Corrupt] {
            let api = Api::new(&format!("store_down = \"{store_down}\""));
            api.store.always(Call::Claim, Fault::Fail(kind));
            assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown", "{kind:?} {store_down}");
            assert_eq!(api.effects(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_busy_for_a_moment_is_asked_again() {
    let api = Api::new("");
    for _ in 0..3 {
        api.store.once(Call::Claim, Fault::Fail(ErrorKind::Busy));
    }
    assert_eq!(api.order("k").await.status, StatusCode::CREATED);
    assert_eq!((api.effects(), api.store.count(Call::Claim)), (1, 4));
}

/// Protocol 19: after an unknown commit only a won claim may run. A claim that nobody will run is taken back.
#[tokio::test(start_paused = true)]
async fn protocol_19_an_unknown_claim_runs_nothing_and_leaves_nothing() {
    for fault in [Fault::LoseRequest, Fault::LoseReply] {
        let api = Api::new("");
        // Whether it was applied or not: every reply is lost.
        api.store.always(Call::Claim, fault);
        assert_eq!(api.order("k").await.code(), "idempotency_store_unavailable");
        assert_eq!((api.effects(), api.store.state().await), (0, "absent"));
        api.store.heal();
        assert_eq!(api.order("k").await.status, StatusCode::CREATED);
    }
}

/// The worst of it: even taking the claim back has no known result. Nothing ran, nobody claims that it did, and the end of
/// the lease makes the key uncertain rather than free.
#[tokio::test(start_paused = true)]
async fn protocol_19_an_unknown_claim_that_cannot_be_taken_back_is_never_run_again() {
    let api = Api::new("");
    api.store.always(Call::Claim, Fault::LoseReply).always(Call::Remove, Fault::LoseRequest);
    assert_eq!(api.order("k").await.code(), "idempotency_store_unavailable");
    api.store.heal();
    assert_eq!(api.order("k").await.code(), "idempotency_key_in_flight");
    api.lose_holder();
    assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
    assert_eq!(api.effects(), 0);
}

/// S14, and protocol 18: the effect has happened and its result cannot be stored. Nobody is told a result that no replay
/// would repeat, and nothing runs again.
#[tokio::test(start_paused = true)]
async fn s14_a_result_that_cannot_be_stored_is_unknown_and_never_run_again() {
    for fault in [Fault::Fail(ErrorKind::Unavailable), Fault::LoseRequest, Fault::Fail(ErrorKind::Full)] {
        let api = Api::new("");
        api.store.always(Call::Complete, fault);
        assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
        assert_eq!(api.store.state().await, "in_flight", "the claim is kept");
        api.store.heal();
        assert_eq!(api.order("k").await.code(), "idempotency_key_in_flight");
        api.store.pass(Duration::from_secs(31)).await;
        assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
        assert_eq!((api.effects(), api.store.state().await), (1, "uncertain"));
    }
}

/// S14: a store that is away for a few seconds costs nobody an unknown outcome.
#[tokio::test(start_paused = true)]
async fn s14_a_result_is_offered_until_the_store_is_back() {
    let api = Api::new("");
    let gate = api.gate();
    let running = api.spawn(order("k"));
    gate.reached(1).await;
    api.store.down();
    gate.release();
    api.store.pass(Duration::from_secs(4)).await;
    assert!(!running.is_finished());
    api.store.heal();
    let answer = running.await.unwrap();
    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(api.order("k").await, answer);
    assert_eq!(api.effects(), 1);
}

/// A completion whose every reply is lost was stored all the same: the caller is told "unknown", its retry the result.
#[tokio::test(start_paused = true)]
async fn s14_a_completion_whose_replies_are_all_lost_is_replayed_to_the_retry() {
    let api = Api::new("");
    api.store.always(Call::Complete, Fault::LoseReply);
    // The second offer meets its own result, which is a reply too, and lost.
    assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
    api.store.heal();
    assert_eq!(api.order("k").await.status, StatusCode::CREATED);
    assert_eq!(api.effects(), 1);
}

/// Protocol 18: no byte of an answer leaves before the commit that decided it; not to the winner, not to a waiter, not on
/// the status URL.
#[tokio::test(start_paused = true)]
async fn protocol_18_nobody_sees_a_result_before_it_is_stored() {
    for reply_lost in [false, true] {
        let api = Api::new("in_flight = { answer = \"wait\", wait_at_most = \"10s\" }");
        let completion = api.store.block(Call::Complete);
        if reply_lost {
            api.store.once(Call::Complete, Fault::LoseReply);
        }
        let winner = api.spawn(order("k"));
        let waiter = api.spawn(order("k"));
        completion.reached(1).await;
        api.store.pass(Duration::from_secs(2)).await;
        assert_eq!(api.effects(), 1, "the effect is done");
        assert!(!winner.is_finished() && !waiter.is_finished());
        completion.release();
        assert_eq!(winner.await.unwrap(), waiter.await.unwrap());
    }
}

/// Protocol 18 with a body that is a stream: its first byte leaves only after its tombstone is stored.
#[tokio::test(start_paused = true)]
async fn protocol_18_a_stream_starts_after_its_tombstone_is_stored() {
    let api = Api::new("");
    api.replies(|_| {
        let body = axum::body::Body::from("data: 1\n\n");
        axum::response::Response::builder().header("content-type", "text/event-stream").body(body).unwrap()
    });
    let completion = api.store.block(Call::Complete);
    let stream = api.spawn(order("k"));
    completion.reached(1).await;
    settle_down().await;
    assert!(!stream.is_finished(), "not even its head has left");
    completion.release();
    assert_eq!(stream.await.unwrap().body, "data: 1\n\n");
    assert_eq!(api.order("k").await.code(), "idempotency_response_not_kept");
}

/// A release that the store does not take: the answer stands, since nothing happened; the key stays taken rather than
/// guessed free.
#[tokio::test(start_paused = true)]
async fn a_release_that_cannot_be_stored_passes_the_answer_on_and_frees_nothing() {
    let api = Api::new("failures = { policy = \"B\", keep = { 500 = \"release\" } }");
    api.replies(|_| crate::support::api::json_reply(503, serde_json::json!({ "busy": true })));
    api.store.always(Call::Remove, Fault::Fail(ErrorKind::Unavailable));
    let answer = api.order("k").await;
    assert_eq!((answer.status.as_u16(), answer.json()["busy"].as_bool()), (503, Some(true)));
    api.store.heal();
    assert_eq!(api.order("k").await.code(), "idempotency_key_in_flight");
    assert_eq!(api.effects(), 1);
}

/// O4: every own answer has its code; a status alone would mean other things too.
#[tokio::test(start_paused = true)]
async fn o4_own_answers_are_problems_with_a_code_and_the_business_conflict_is_not() {
    let api =
        Api::contract(&endpoint("answers = { statuses = { idempotency_key_payload_mismatch = 422 } }\n", ""));
    api.replies(|_| crate::support::api::json_reply(409, serde_json::json!({ "error": "sold out" })));
    let business = api.order("k").await;
    assert_eq!((business.status.as_u16(), business.code().as_str()), (409, ""));
    assert_eq!(api.order("k").await, business, "the API's own conflict is a result like any other");
    let mismatch = api.send(crate::support::post("/orders", "alice", "k", "{}")).await;
    assert_eq!(mismatch.status.as_u16(), 422);
    assert_eq!(mismatch.headers["content-type"], "application/problem+json");
    let problem = mismatch.json();
    assert_eq!(
        (problem["code"].as_str(), problem["status"].as_u64()),
        (Some("idempotency_key_payload_mismatch"), Some(422))
    );
    assert!(problem["type"].as_str().unwrap().ends_with("idempotency_key_payload_mismatch"));
}

/// A problem's `type` leads to a page, also for somebody without credentials; and to nothing but that.
#[tokio::test]
async fn o4_the_type_of_a_problem_is_a_page_of_the_api() {
    let api = Api::new("");
    api.order("k").await;
    let refused = api.send(crate::support::post("/orders", "alice", "k", r#"{"amount": 999}"#)).await;
    let page = refused.json()["type"].as_str().unwrap().to_owned();
    let get = |path: &str| http::Request::get(path).body(axum::body::Body::empty()).unwrap();
    let shown = api.send(get(&page)).await;
    assert_eq!(shown.status, StatusCode::OK);
    assert!(String::from_utf8_lossy(&shown.body).starts_with("# `idempotency_key_payload_mismatch`"));
    let passed_on = api.send(get("/.retrysafe/errors/nothing")).await;
    assert!(!passed_on.body.starts_with(b"# "), "what is no code is the application's own");
}
