//! Who wins, who waits, and who must not answer (R1-R8, R16).

use std::time::Duration;

use crate::support::{
    api::{Api, endpoint, order, two},
    faulty::{Call, Fault, settle_down},
};
use futures_util::future::join_all;
use http::StatusCode;
use retrysafe_store::ErrorKind;

const LEASE: Duration = Duration::from_secs(30);
/// Whoever executes it de-duplicates by the same key, so a lost holder may be taken over.
const RERUN: &str = "upstream_deduplicates = true";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r1_of_fifty_at_once_one_runs_and_the_others_are_told_or_replayed() {
    for round in 0..20 {
        let api = Api::new("");
        let gate = api.gate();
        let key = format!("k-{round}");
        let all: Vec<_> = (0..50).map(|_| api.spawn(order(&key))).collect();
        gate.reached(1).await;
        gate.release();
        let answers: Vec<_> = join_all(all).await.into_iter().map(Result::unwrap).collect();
        let created: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
        assert!(created.iter().all(|answer| *answer == created[0]), "replays are the winner's bytes");
        for answer in answers.iter().filter(|answer| answer.status != 201) {
            assert_eq!((answer.status.as_u16(), answer.code()), (409, "idempotency_key_in_flight".into()));
            assert!(answer.headers.contains_key("retry-after"));
        }
        assert!(!created.is_empty());
        assert_eq!((api.effects(), gate.arrivals()), (1, 1));
    }
}

/// R5: whoever loses the insert race is told 409 or gets the answer, never a 5xx.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r5_losers_of_the_race_never_see_a_server_error() {
    let (one, other) = two(&endpoint("", ""));
    let all = (0..50).map(|n| if n % 2 == 0 { one.spawn(order("k")) } else { other.spawn(order("k")) });
    let answers = join_all(all.collect::<Vec<_>>()).await;
    assert!(answers.iter().all(|answer| !answer.as_ref().unwrap().status.is_server_error()), "{answers:?}");
    assert_eq!(one.effects() + other.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn r2_a_waiter_that_gives_up_ends_nobodys_claim() {
    let api = Api::new("in_flight = { answer = \"wait\", wait_at_most = \"5s\" }");
    let gate = api.gate();
    let holder = api.spawn(order("k"));
    gate.reached(1).await;
    let waiter = api.spawn(order("k"));
    let client_that_left = api.spawn(order("k"));
    settle_down().await;
    client_that_left.abort();
    api.store.pass(Duration::from_secs(6)).await;
    assert_eq!(waiter.await.unwrap().code(), "idempotency_key_in_flight");
    assert_eq!(api.store.state().await, "in_flight");
    assert_eq!(api.store.count(Call::Remove), 0);
    gate.release();
    assert_eq!(holder.await.unwrap().status, StatusCode::CREATED);
    assert_eq!(api.order("k").await.status, StatusCode::CREATED);
    assert_eq!(api.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn r3_a_paused_holder_that_was_taken_over_answers_with_what_stands() {
    let (paused, other) = two(&endpoint("", RERUN));
    let gate = paused.gate_after();
    let first = paused.spawn(order("k"));
    gate.reached(1).await;
    // It is paused: neither its renewals nor anything else of it reaches the store.
    paused.store.always(Call::Renew, Fault::Fail(ErrorKind::Unavailable));
    paused.store.pass(LEASE + Duration::from_secs(1)).await;
    other.replies(|_| crate::support::api::json_reply(201, serde_json::json!({ "by": "the successor" })));
    let second = other.order("k").await;
    assert_eq!(second.json()["by"], "the successor");
    paused.store.heal();
    gate.release();
    assert_eq!(first.await.unwrap(), second, "not its own result");
    assert_eq!(other.order("k").await, second);
}

#[tokio::test(start_paused = true)]
async fn r3_a_stale_holder_says_in_flight_while_its_successor_runs() {
    let (paused, other) = two(&endpoint("", RERUN));
    let (gate, successors) = (paused.gate_after(), other.gate());
    let first = paused.spawn(order("k"));
    gate.reached(1).await;
    paused.store.always(Call::Renew, Fault::Fail(ErrorKind::Unavailable));
    paused.store.pass(LEASE + Duration::from_secs(1)).await;
    paused.store.heal();
    let second = other.spawn(order("k"));
    successors.reached(1).await;
    gate.release();
    assert_eq!(first.await.unwrap().code(), "idempotency_key_in_flight");
    successors.release();
    assert_eq!(second.await.unwrap().status, StatusCode::CREATED);
}

/// A stale holder does not replay what stands if that is another request's: its key was freed and used again.
#[tokio::test(start_paused = true)]
async fn r3_a_stale_holder_never_answers_with_another_requests_result() {
    let (paused, other) = two(&endpoint("", ""));
    let gate = paused.gate_after();
    let first = paused.spawn(order("k"));
    gate.reached(1).await;
    let (address, record) = paused.store.records().await.remove(0);
    // A person decides that nothing happened, and frees the key; the caller changes its mind.
    let guard = retrysafe_core::record::RemoveIf::Attempt(record.attempt);
    assert!(retrysafe_store::Store::remove_if(&other.store, &address, guard).await.unwrap());
    let changed = other.send(crate::support::post("/orders", "alice", "k", r#"{"amount": 6}"#)).await;
    assert_eq!(changed.status, StatusCode::CREATED);
    gate.release();
    assert_eq!(first.await.unwrap().code(), "idempotency_outcome_unknown");
}

#[tokio::test(start_paused = true)]
async fn r4_the_lease_is_kept_while_the_handler_runs_and_never_after() {
    let api = Api::new("");
    let gate = api.gate();
    let running = api.spawn(order("k"));
    gate.reached(1).await;
    api.store.pass(Duration::from_secs(25)).await;
    let renewals = api.store.count(Call::Renew);
    assert!(renewals >= 2, "{renewals} renewals");
    let left = api
        .store
        .record()
        .await
        .lease_until()
        .unwrap()
        .since(retrysafe_store::Store::now(&api.store).unwrap());
    assert!(left >= Duration::from_secs(15), "{left:?}");
    gate.release();
    assert_eq!(running.await.unwrap().status, StatusCode::CREATED);
    let renewals = api.store.count(Call::Renew);
    api.store.pass(Duration::from_secs(120)).await;
    assert_eq!(api.store.count(Call::Renew), renewals, "no renewals after the completion");
    assert_eq!(api.store.state().await, "completed");
}

#[tokio::test(start_paused = true)]
async fn r4_a_renewal_that_arrives_after_the_hold_does_not_wake_the_record() {
    let api = Api::new("");
    api.replies(|_| {
        let mut response = crate::support::api::json_reply(500, serde_json::json!({}));
        response.extensions_mut().insert(retrysafe_server::Effect::Unknown);
        response
    });
    let (gate, renewal) = (api.gate(), api.store.block(Call::Renew));
    let running = api.spawn(order("k"));
    gate.reached(1).await;
    api.store.pass(Duration::from_secs(11)).await;
    renewal.reached(1).await;
    gate.release();
    assert_eq!(running.await.unwrap().code(), "idempotency_outcome_unknown");
    // The renewal was dropped by its caller long ago; the store gets to it now.
    renewal.release();
    settle_down().await;
    assert_eq!(api.store.state().await, "uncertain");
}

/// Design 6: the lease is renewed until the completing write has returned.
#[tokio::test(start_paused = true)]
async fn r8_the_lease_is_kept_while_the_completing_write_takes_its_time() {
    let (api, other) = two(&endpoint("", RERUN));
    let completion = api.store.block(Call::Complete);
    let slow = api.spawn(order("k"));
    completion.reached(1).await;
    api.store.pass(LEASE + Duration::from_secs(5)).await;
    assert_eq!(other.order("k").await.code(), "idempotency_key_in_flight", "nobody takes over");
    assert!(api.store.count(Call::Renew) >= 3);
    completion.release();
    assert_eq!(slow.await.unwrap().status, StatusCode::CREATED);
    assert_eq!((api.effects(), other.effects()), (1, 0));
}

/// R8: the completing write is the release. There is no gap in which the key is free and the result is not there.
#[tokio::test(start_paused = true)]
async fn r8_no_second_run_between_effect_and_record() {
    let api = Api::new("");
    let completion = api.store.block(Call::Complete);
    let first = api.spawn(order("k"));
    completion.reached(1).await;
    assert_eq!(api.effects(), 1, "the effect has happened, the result is not stored");
    assert_eq!(api.order("k").await.code(), "idempotency_key_in_flight");
    completion.release();
    assert_eq!(first.await.unwrap(), api.order("k").await);
    assert_eq!((api.effects(), api.store.count(Call::Remove)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn r6_a_claim_that_was_committed_and_whose_reply_was_lost_is_ours() {
    let api = Api::new("");
    api.store.once(Call::Claim, Fault::LoseReply);
    let answer = api.order("k").await;
    assert_eq!(answer.status, StatusCode::CREATED, "not 409 to itself");
    assert_eq!((api.effects(), api.store.count(Call::Claim)), (1, 2));
    assert_eq!(api.order("k").await, answer);
}

#[tokio::test(start_paused = true)]
async fn r6_a_completion_whose_reply_was_lost_is_answered_with_its_result() {
    let api = Api::new("");
    api.store.once(Call::Complete, Fault::LoseReply);
    let answer = api.order("k").await;
    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(api.order("k").await, answer);
    assert_eq!(api.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn r6_a_release_whose_reply_was_lost_is_a_release() {
    let api = Api::new("failures = { policy = \"B\", keep = { 500 = \"release\" } }");
    api.replies(|_| crate::support::api::json_reply(503, serde_json::json!({ "busy": true })));
    api.store.once(Call::Remove, Fault::LoseReply);
    let answer = api.order("k").await;
    assert_eq!((answer.status.as_u16(), answer.json()["busy"].as_bool()), (503, Some(true)));
    assert_eq!(api.store.state().await, "absent");
    api.store.once(Call::Remove, Fault::LoseRequest).once(Call::Remove, Fault::Fail(ErrorKind::Busy));
    assert_eq!(api.order("k").await.status.as_u16(), 503);
    assert_eq!(api.store.state().await, "absent", "it is offered again until it is known");
    assert_eq!(api.effects(), 2);
}

/// R7: a claim never overwrites another's, whatever the loser knew when it tried.
#[tokio::test(start_paused = true)]
async fn r7_a_claim_that_waited_in_the_store_finds_the_other_one() {
    let (one, other) = two(&endpoint("", ""));
    let gate = other.gate();
    let stuck = one.store.block(Call::Claim);
    let late = one.spawn(order("k"));
    stuck.reached(1).await;
    let holder = other.spawn(order("k"));
    gate.reached(1).await;
    let before = other.store.record().await;
    stuck.release();
    assert_eq!(late.await.unwrap().code(), "idempotency_key_in_flight");
    assert_eq!(other.store.record().await, before);
    gate.release();
    assert_eq!(holder.await.unwrap().status, StatusCode::CREATED);
    assert_eq!((one.effects(), other.effects()), (0, 1));
}

/// R7: every claim has an end, from its first write on.
#[tokio::test(start_paused = true)]
async fn r7_no_claim_is_without_a_lease() {
    let api = Api::new("");
    let gate = api.gate();
    let running = api.spawn(order("k"));
    gate.reached(1).await;
    let now = retrysafe_store::Store::now(&api.store).unwrap();
    assert_eq!(api.store.record().await.lease_until(), Some(now.plus(LEASE)));
    running.abort();
}

/// R16: a replica whose wall clock is ten minutes ahead steals no lease, since only the store's clock counts.
#[tokio::test(start_paused = true)]
async fn r16_a_clock_that_was_set_ahead_ends_no_lease() {
    for recovery in ["outside", "atomic"] {
        let (one, other) = two(&endpoint("", &format!("recovery = \"{recovery}\"")));
        let gate = one.gate();
        let running = one.spawn(order("k"));
        gate.reached(1).await;
        let clock = one.store.clock();
        clock.set_wall(retrysafe_store::clock::Clock::read(clock).wall.plus(Duration::from_secs(600)));
        assert_eq!(other.order("k").await.code(), "idempotency_key_in_flight", "{recovery}");
        gate.release();
        assert_eq!(running.await.unwrap().status, StatusCode::CREATED);
        assert_eq!((one.effects(), other.effects()), (1, 0));
    }
}

/// Protocol 8 through the layer: the class that was stored with the claim is obeyed, not today's contract.
#[tokio::test(start_paused = true)]
async fn protocol_8_a_deploy_that_changes_the_class_does_not_run_an_old_claim_again() {
    let store = crate::support::faulty::Faulty::new();
    let keys =
        |builder: retrysafe_server::Builder| builder.fingerprint_keys(crate::support::api::deployment_keys());
    let old = Api::built(&endpoint("", "recovery = \"outside\""), store.clone(), keys);
    let new = Api::built(&endpoint("version = 2\n", RERUN), store, keys);
    let gate = old.gate();
    let lost = old.spawn(order("k"));
    gate.reached(1).await;
    old.store.always(Call::Renew, Fault::Fail(ErrorKind::Unavailable));
    old.store.pass(LEASE + Duration::from_secs(1)).await;
    assert_eq!(new.order("k").await.code(), "idempotency_outcome_unknown");
    assert_eq!((new.effects(), new.store.state().await), (0, "uncertain"));
    // Protocol 9: the lost one was only paused, and its true result is welcome.
    old.store.heal();
    gate.release();
    assert_eq!(lost.await.unwrap().status, StatusCode::CREATED);
    assert_eq!(new.order("k").await.status, StatusCode::CREATED);
    assert_eq!((old.effects(), new.effects()), (1, 0));
}
