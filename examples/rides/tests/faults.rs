//! Whatever the provider does: one charge, one answer, one mail.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers fail the test that calls them

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
};
use example_rides::{
    CONTRACT, Setup, app,
    provider::{Fake, Fault},
};
use http_body_util::BodyExt;
use retrysafe::{
    EffectState, Filter, Journal, SqliteOptions, SqliteStore, Store, fingerprint_keys_in,
    recovery::{DoorSecret, Patience, Recovery, Terms},
};
use tower::ServiceExt;

struct Service {
    fake: Fake,
    router: Router,
    recovery: Recovery<SqliteStore>,
    _folder: tempfile::TempDir,
}

/// Pauses that a test can wait for.
fn terms() -> Terms {
    Terms {
        pause_first: Duration::from_millis(2),
        pause_longest: Duration::from_millis(4),
        ..Terms::default()
    }
}

/// What a test may set otherwise.
struct Setting {
    contract: String,
    patience: Patience,
}

impl Default for Setting {
    fn default() -> Self {
        Self { contract: CONTRACT.to_owned(), patience: Patience::default() }
    }
}

async fn service(faults: &[Fault]) -> Service {
    Setting::default().service(faults).await
}

impl Setting {
    async fn service(&self, faults: &[Fault]) -> Service {
        let fake = Fake::new();
        fake.fail(faults.iter().copied());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let provider = listener.local_addr().unwrap();
        let api = fake.router();
        tokio::spawn(async move { axum::serve(listener, api).await });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rides.db");
        let fingerprint_keys = fingerprint_keys_in(folder.path().join("key"), &file).unwrap();
        let store = Arc::new(SqliteStore::open(SqliteOptions::new(&file)).unwrap());
        let setup = Setup {
            contract: self.contract.clone(),
            provider,
            fingerprint_keys,
            terms: terms(),
            patience: self.patience,
            observe: Arc::new(|_| {}),
        };
        let (router, recovery) = app(store, setup).await.unwrap();
        Service { fake, router, recovery, _folder: folder }
    }
}

impl Service {
    async fn post(&self, key: &str) -> (StatusCode, String) {
        let request = Request::post("/rides")
            .header("authorization", "Bearer rider")
            .header("idempotency-key", key)
            .header("content-type", "application/json")
            .body(Body::from(r#"{"to":"harbour","cents":990}"#))
            .unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// The same request until it is decided, as a client does.
    async fn until_decided(&self, key: &str) -> (StatusCode, String) {
        for _ in 0..400 {
            let (status, body) = self.post(key).await;
            if !(status == StatusCode::CONFLICT && body.contains("idempotency_key_in_flight")) {
                return (status, body);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("never decided");
    }

    /// The completer alone, until nothing is left to do.
    async fn completer(&self) {
        for _ in 0..400 {
            let pass = self.recovery.pass().await.unwrap();
            if pass.completed + pass.stopped > 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("never completed");
    }

    fn charged_once(&self, sent: u32) {
        let charges = self.fake.charges();
        assert_eq!(charges.len(), 1, "{charges:?}");
        assert_eq!(charges.values().copied().collect::<Vec<_>>(), [sent]);
        assert_eq!(self.fake.changed_bodies(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ride_is_created_charged_confirmed_and_mailed() {
    let service = service(&[]).await;
    let (status, body) = service.post("k").await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    assert!(body.contains("receipt-1"), "{body}");
    // A replay: the same bytes, and nothing happens.
    assert_eq!(service.post("k").await, (status, body));
    assert_eq!(service.post("k").await.0, status);
    service.charged_once(1);
    assert_eq!(service.recovery.drain().await.unwrap(), 1);
    assert_eq!(service.recovery.drain().await.unwrap(), 0);
    // Replays and effects, for whoever looks at the key: written down when the process is told to end at the latest.
    let database = service.recovery.database();
    let records = database.list(&Filter::default(), None, 9).await.unwrap();
    let operation = records[0].1.status_id;
    assert_eq!(database.replays(operation).await.unwrap(), None);
    let stop = tokio_util::sync::CancellationToken::new();
    stop.cancel();
    service.recovery.run(stop).await;
    assert_eq!(database.replays(operation).await.unwrap().map(|replays| replays.times), Some(2));
    let effects = database.staged_of(operation, 9).await.unwrap();
    assert!(matches!(effects[0].state, EffectState::Sent { at: Some(_) }), "{effects:?}");
    assert_eq!((effects.len(), effects[0].tries, effects[0].staged.is_some()), (1, 1, true));
    assert_eq!(service.fake.mails().values().copied().collect::<Vec<_>>(), [1]);
    let (charge, mail) = (service.fake.charges(), service.fake.mails());
    assert!(charge.keys().all(|key| !mail.contains_key(key)), "each step has a key of its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_ride_has_a_number_of_its_own_whatever_else_is_written_beside_it() {
    let service = service(&[]).await;
    for (key, id) in [("ride-1", 1), ("ride-2", 2), ("ride-3", 3)] {
        let (status, body) = service.until_decided(key).await;
        assert_eq!(status, StatusCode::CREATED, "{body}");
        let ride: example_rides::Ride = serde_json::from_str(&body).unwrap();
        // Rows are numbered from 1; the ledger of effects has as many again.
        assert_eq!(ride.id, id, "the receipt would be another ride's");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_provider_does_the_retry_charges_once() {
    // The fault, and how often the provider sees the key in all: a lost answer is asked for, not sent for again.
    let cases = [(Fault::Busy, 1), (Fault::LoseCall, 1), (Fault::LoseAnswer, 1), (Fault::Error, 1)];
    for (fault, sent) in cases {
        let service = service(&[fault]).await;
        let (status, body) = service.post("k").await;
        assert_eq!(status, StatusCode::CONFLICT, "{fault:?}: {body}");
        let (status, body) = service.until_decided("k").await;
        assert_eq!(status, StatusCode::CREATED, "{fault:?}: {body}");
        service.charged_once(sent);
        assert_eq!(service.post("k").await, (status, body));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_provider_does_the_completer_charges_once() {
    for fault in [Fault::Busy, Fault::LoseCall, Fault::LoseAnswer, Fault::Error] {
        let service = service(&[fault, Fault::None]).await;
        service.post("k").await;
        service.completer().await;
        service.charged_once(1);
        let (status, body) = service.post("k").await;
        assert_eq!(status, StatusCode::CREATED, "{fault:?}: {body}");
        assert_eq!(service.recovery.drain().await.unwrap(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declined_card_is_an_answer_and_is_kept() {
    let service = service(&[Fault::Decline]).await;
    let first = service.post("k").await;
    assert_eq!(first.0, StatusCode::PAYMENT_REQUIRED, "{}", first.1);
    assert_eq!(service.post("k").await, first);
    service.charged_once(1);
    assert_eq!(service.recovery.drain().await.unwrap(), 0, "no receipt for nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_stays_down_ends_with_a_person() {
    let service = service(&[Fault::Busy; 200]).await;
    service.post("k").await;
    service.completer().await;
    assert!(service.fake.charges().is_empty());
    let (status, body) = service.post("k").await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(body.contains("idempotency_outcome_unknown"), "{body}");
}

/// Requests that only wait for their caller are due for a day. They must not keep the completer from what stands behind them.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_its_caller_does_not_fill_the_window() {
    let mut setup = Setting::default();
    setup.patience.window = 2;
    setup.contract = CONTRACT.replace("answer_timeout = \"60s\"", "answer_timeout = \"100ms\"");
    let service =
        setup.service(&[Fault::Busy, Fault::Busy, Fault::Busy, Fault::Busy, Fault::LoseAnswer]).await;
    assert_ne!(setup.contract, CONTRACT);
    // Four whose call never left, so that only local work is done, and then one that was charged.
    for key in ["w1", "w2", "w3", "w4", "charged"] {
        service.post(key).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(150)).await;
    service.completer().await;
    service.charged_once(1);
    // Each pass meets as many as its window holds; whoever was met is passed over from then on.
    let mut pass = service.recovery.pass().await.unwrap();
    for _ in 0..4 {
        pass = service.recovery.pass().await.unwrap();
    }
    assert_eq!((pass.looked_at, pass.waiting), (0, 4), "{pass:?}");
    // And its caller finds it free.
    assert_eq!(service.until_decided("w1").await.0, StatusCode::CREATED);
}

/// Another process finds what is abandoned; the plan is run here.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_knocks_with_the_secret_has_a_request_gone_on_with() {
    let service = service(&[Fault::LoseAnswer]).await;
    service.post("k").await;
    let secret = "0123456789abcdef0123456789abcdef";
    let door = service.recovery.door(DoorSecret::new(secret).unwrap());
    let knock = async |what: &str, secret: &str| {
        let request = Request::post(format!("/{what}")).header("authorization", format!("Bearer {secret}"));
        let answer = door.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    let store = service.recovery.database();
    let found = store.list(&Filter::default(), None, 9).await.unwrap();
    let operation = found[0].1.status_id.to_string();
    assert_eq!(knock(&operation, "wrong").await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(knock("effects", "wrong").await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(knock("no-operation", secret).await.0, StatusCode::NOT_FOUND);
    assert_eq!(knock(&"0".repeat(32), secret).await.0, StatusCode::NOT_FOUND);
    // It rests after its failure for a moment.
    let mut became = String::new();
    for _ in 0..400 {
        became = knock(&operation, secret).await.1;
        if became.contains("completed") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(became, r#"{"became":"completed"}"#);
    service.charged_once(1);
    assert_eq!(knock("effects", secret).await, (StatusCode::OK, r#"{"tried":1}"#.to_owned()));
    assert_eq!(service.fake.mails().len(), 1);
    // Asked again, there is nothing to be done.
    assert_eq!(knock(&operation, secret).await.1, r#"{"became":"left"}"#);
    service.charged_once(1);
}
