//! Leases, windows, reaping and the life of a resource (D5, T1-T8, SPEC 3).

use std::time::Duration;

use crate::support::{
    api::{Api, created, endpoint, json_reply, order},
    faulty::{Call, Fault, Faulty, settle_down},
    post,
};
use http::StatusCode;
use retrysafe_core::contract::Contract;
use retrysafe_store::{
    ErrorKind, Store,
    upkeep::{self, Passed},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const HOUR: Duration = Duration::from_secs(3600);
const WINDOWS: &str = "windows = { replay = \"24h\", reap = \"72h\", lease = \"10s\" }";

/// One pass of upkeep, by running the loop until its first pause.
async fn keep_up(api: &Api) {
    let stop = CancellationToken::new();
    let (retrysafe, stopped) = (api.retrysafe.clone(), stop.clone());
    let upkeep = tokio::spawn(async move { retrysafe.upkeep(stopped).await });
    settle_down().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    stop.cancel();
    upkeep.await.unwrap();
}

/// D5: a holder that dies blocks its key for a lease, not for a window; what happens then is its class's business.
#[tokio::test(start_paused = true)]
async fn d5_after_a_short_lease_the_class_decides() {
    for (recovery, code, effects) in [
        ("recovery = \"outside\"", "idempotency_outcome_unknown", 0),
        // This handler writes through nobody's transaction, whatever its contract hopes for.
        ("recovery = \"atomic\"", "idempotency_outcome_unknown", 0),
        ("upstream_deduplicates = true", "", 1),
    ] {
        let (dead, next) = crate::support::api::two(&endpoint("", &format!("{WINDOWS}\n{recovery}")));
        let gate = dead.gate();
        dead.store.always(Call::Renew, Fault::Fail(ErrorKind::Unavailable));
        let lost = dead.spawn(order("k"));
        gate.reached(1).await;
        next.store.pass(Duration::from_millis(9_900)).await;
        assert_eq!(next.order("k").await.code(), "idempotency_key_in_flight", "{recovery}");
        next.store.pass(Duration::from_millis(100)).await;
        next.store.heal();
        assert_eq!(next.order("k").await.code(), code, "{recovery}");
        assert_eq!(next.effects(), effects, "{recovery}");
        lost.abort();
    }
}

/// T1: what is in flight does not expire by the replay window.
#[tokio::test(start_paused = true)]
async fn t1_a_request_that_runs_longer_than_its_window_is_still_in_flight() {
    let short = endpoint("answer_timeout = \"3h\"\n", "windows = { replay = \"1h\", lease = \"30s\" }");
    let api = Api::contract(&short);
    let gate = api.gate();
    let first = api.spawn(order("k"));
    gate.reached(1).await;
    api.store.pass(HOUR + Duration::from_secs(60)).await;
    assert_eq!(api.order("k").await.code(), "idempotency_key_in_flight");
    gate.release();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    // Protocol 9: the window starts now.
    api.store.pass(HOUR - Duration::from_secs(1)).await;
    assert_eq!(api.order("k").await.json()["id"], "o-1");
    api.store.pass(Duration::from_secs(1)).await;
    assert_eq!(api.order("k").await.json()["id"], "o-2", "SPEC 3.3: a new request, never an error");
}

/// T2: the contract is refused, with both numbers.
#[test]
fn t2_a_window_below_the_longest_retry_chain_does_not_load() {
    let text = endpoint("", "windows = { replay = \"24h\" }").replace("\"1h\"", "\"72h\"");
    let told = Contract::parse(&text, "t.toml").unwrap_err().to_string();
    assert!(told.contains("24h") && (told.contains("72h") || told.contains("3d")), "{told}");
}

/// SPEC 3.3: after its window the key is free for any request, while the record is kept for people.
#[tokio::test(start_paused = true)]
async fn t8_after_the_window_the_same_key_is_a_new_request_even_with_another_body() {
    let api = Api::new(WINDOWS);
    api.order("k").await;
    api.store.clock().advance(24 * HOUR);
    let other = api.send(post("/orders", "alice", "k", r#"{"amount": 6}"#)).await;
    assert_eq!((other.status, other.json()["id"].as_str()), (StatusCode::CREATED, Some("o-2")));
    assert_eq!(api.order("k").await.code(), "idempotency_key_payload_mismatch", "of the new request");
}

/// T4: the reaper never touches what is in flight, uncertain, replayed, or kept for people.
#[tokio::test(start_paused = true)]
async fn t4_only_what_is_past_its_reap_threshold_is_deleted() {
    let api = Api::new(WINDOWS);
    api.order("done").await;
    api.replies(|_| panic!("unclear"));
    api.order("uncertain").await;
    api.replies(created);
    let gate = api.gate();
    let running = api.spawn(order("running"));
    gate.reached(1).await;
    let names = async || {
        let records = api.store.records().await;
        let mut keys: Vec<_> = records.iter().map(|(address, _)| address.key().as_str().to_owned()).collect();
        keys.sort();
        keys
    };
    // Everything is due that can be: the lease of the running one has ended as well.
    api.store.always(Call::Renew, Fault::Fail(ErrorKind::Unavailable));
    api.store.clock().advance(72 * HOUR - Duration::from_secs(1));
    keep_up(&api).await;
    assert_eq!(names().await, ["done", "running", "uncertain"], "kept for people beyond its window");
    api.store.clock().advance(Duration::from_secs(1));
    keep_up(&api).await;
    assert_eq!(names().await, ["running", "uncertain"]);
    api.store.clock().advance(1_000 * HOUR);
    keep_up(&api).await;
    assert_eq!(names().await, ["running", "uncertain"], "a person decides, not time");
    // The running one was marked, so that people see it; its true result is still welcome.
    gate.release();
    let answer = running.await.unwrap();
    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(api.order("running").await, answer);
}

/// Abandoned requests that only their own retry may touch do not keep those behind them from being marked.
#[tokio::test(start_paused = true)]
async fn t4_upkeep_reaches_what_stands_behind_records_that_it_must_leave() {
    let text = format!(
        "{WINDOWS}\nupstream_deduplicates = true\n[[endpoint]]\nmethod = \"POST\"\npath = \"/mails\"\nkey = \"required\""
    );
    let api = Api::new(&text);
    let gate = api.gate();
    api.store.always(Call::Renew, Fault::Fail(ErrorKind::Unavailable));
    let mut running: Vec<_> = (0..600).map(|n| api.spawn(order(&format!("k-{n}")))).collect();
    gate.reached(600).await;
    api.store.clock().advance(Duration::from_secs(1));
    running.push(api.spawn(post("/mails", "alice", "k", "{}")));
    gate.reached(601).await;
    api.store.clock().advance(Duration::from_secs(30));
    keep_up(&api).await;
    let census = api.store.census().await.unwrap();
    assert_eq!((census.in_flight, census.uncertain), (600, 1));
}

/// What was changed before a call failed is changed, and somebody may be waiting to be told: it is seen to its end, and told.
#[tokio::test(start_paused = true)]
async fn what_upkeep_marked_is_told_although_another_mark_failed() {
    let api = Api::new(WINDOWS);
    let gate = api.gate();
    api.store.always(Call::Renew, Fault::Fail(ErrorKind::Unavailable));
    let running = ["one", "two"].map(|key| api.spawn(order(key)));
    gate.reached(2).await;
    api.store.clock().advance(Duration::from_secs(11));
    api.store.once(Call::Mark, Fault::Fail(ErrorKind::Unavailable));
    let mut passed = Passed::default();
    let ended = upkeep::pass(&api.store, 10, &mut passed).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(api.store.count(Call::Mark), 2, "the one that failed kept nobody from the other");
    assert_eq!(passed.marked.len(), 1, "and the other is told");
    let census = api.store.census().await.unwrap();
    assert_eq!((census.in_flight, census.uncertain), (1, 1));
    // The next pass has the rest, and tells of that alone.
    let mut passed = Passed::default();
    upkeep::pass(&api.store, 10, &mut passed).await.unwrap();
    assert_eq!((passed.marked.len(), passed.changed()), (1, 1));
    running.iter().for_each(tokio::task::JoinHandle::abort);
}

/// T5: many records are reaped in batches.
#[tokio::test(start_paused = true)]
async fn t5_reaping_goes_in_batches_until_nothing_is_left() {
    let api = Api::new(WINDOWS);
    for n in 0..1_234 {
        api.order(&format!("k-{n}")).await;
    }
    api.store.clock().advance(73 * HOUR);
    let before = api.store.count(Call::Remove);
    keep_up(&api).await;
    assert_eq!(api.store.records().await.len(), 0);
    assert_eq!(api.store.count(Call::Remove) - before, 1_234, "each once");
}

/// T5: one batch is bounded, whatever is due.
#[tokio::test(start_paused = true)]
async fn t5_a_batch_is_bounded() {
    let api = Api::new(WINDOWS);
    for n in 0..600 {
        api.order(&format!("k-{n}")).await;
    }
    api.store.clock().advance(73 * HOUR);
    let gate = api.store.block(Call::Remove);
    let stop = CancellationToken::new();
    let (retrysafe, stopped) = (api.retrysafe.clone(), stop.clone());
    let upkeep = tokio::spawn(async move { retrysafe.upkeep(stopped).await });
    gate.reached(1).await;
    settle_down().await;
    assert!(api.store.count(Call::Remove) <= 500, "{}", api.store.count(Call::Remove));
    gate.release();
    stop.cancel();
    upkeep.await.unwrap();
}

const RESOURCE: &str = r#"
windows = { replay = "24h", reap = "72h", lease = "10s", resource = { id = "/id", grace = "1h", at_most = "720h" } }
[[endpoint]]
method = "DELETE"
path = "/orders/{id}"
key = "optional"
ends_resource = { param = "id", grace = "1h" }
"#;

fn delete(account: &str, id: &str, key: Option<&str>) -> axum::extract::Request {
    let mut request = post(&format!("/orders/{id}"), account, key.unwrap_or("-"), "");
    *request.method_mut() = http::Method::DELETE;
    if key.is_none() {
        request.headers_mut().remove("idempotency-key");
    }
    request
}

/// SPEC 3.2: the window lives as long as the resource, and a grace.
#[tokio::test(start_paused = true)]
async fn a_window_can_live_as_long_as_its_resource() {
    for key in [None, Some("d-1")] {
        let api = Api::new(RESOURCE);
        let first = api.order("k").await;
        api.store.clock().advance(400 * HOUR);
        assert_eq!(api.order("k").await, first, "the resource lives, so the answer does");
        // Neither somebody else's order of that name nor a failed deletion ends it.
        api.send(delete("bob", "o-1", key)).await;
        api.replies(|_| json_reply(409, json!({})));
        api.send(delete("alice", "o-1", Some("d-0"))).await;
        api.replies(created);
        api.store.clock().advance(2 * HOUR);
        assert_eq!(api.order("k").await, first);
        assert_eq!(api.send(delete("alice", "o-1", key)).await.status, StatusCode::CREATED);
        api.store.clock().advance(HOUR - Duration::from_secs(1));
        assert_eq!(api.order("k").await, first, "a late retry gets a consistent answer");
        api.store.clock().advance(Duration::from_secs(1));
        assert_ne!(api.order("k").await.body, first.body, "after the grace it is a new request");
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_bound_to_a_resource_has_an_upper_bound() {
    let api = Api::new(RESOURCE);
    let first = api.order("k").await;
    api.store.clock().advance(720 * HOUR - Duration::from_secs(1));
    assert_eq!(api.order("k").await, first);
    api.store.clock().advance(Duration::from_secs(1));
    assert_ne!(api.order("k").await.body, first.body);
}

/// A failure made no resource: its time is that of its class, whatever its body names.
#[tokio::test(start_paused = true)]
async fn a_failure_is_not_kept_for_the_life_of_a_resource() {
    let api =
        Api::new(&format!("failures = {{ policy = \"B\", keep = {{ 500 = \"window\" }} }}\n{RESOURCE}"));
    api.replies(|n| if n == 1 { json_reply(402, json!({ "id": "o-9" })) } else { created(n) });
    let refused = api.order("k").await;
    api.store.clock().advance(HOUR - Duration::from_secs(1));
    assert_eq!(api.order("k").await, refused);
    api.store.clock().advance(Duration::from_secs(1));
    assert_eq!(api.order("k").await.status, StatusCode::CREATED);
}

/// Protocol 10 through the layer: a clock 25 h ahead expires no key; the store closes instead.
#[tokio::test(start_paused = true)]
async fn protocol_10_a_clock_that_jumps_expires_no_key() {
    let store = Faulty::new();
    let api = Api::built(&endpoint("", WINDOWS), store.clone(), |builder| builder);
    let first = api.order("k").await;
    let wall = store.now().unwrap();
    store.clock().set_wall(wall.plus(25 * HOUR));
    assert_eq!(api.order("k").await.code(), "idempotency_store_unavailable");
    store.clock().set_wall(wall);
    assert_eq!(api.order("k").await, first);
    assert_eq!(api.effects(), 1);
}
