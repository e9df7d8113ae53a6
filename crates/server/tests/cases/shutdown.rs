//! Shutting down with requests in flight (D10).

use std::time::Duration;

use http::StatusCode;

use crate::support::{
    api::{Api, order, two},
    faulty::{Call, settle_down},
};

#[tokio::test(start_paused = true)]
async fn d10_the_drain_waits_for_detached_requests() {
    let api = Api::new("");
    let gate = api.gate();
    let running: Vec<_> = (0..20).map(|n| api.spawn(order(&format!("k-{n}")))).collect();
    gate.reached(20).await;
    // Their clients are gone; only the drain still knows of them.
    running.iter().for_each(tokio::task::JoinHandle::abort);
    let retrysafe = api.retrysafe.clone();
    let drain = tokio::spawn(async move { retrysafe.drain(Duration::from_secs(30)).await });
    settle_down().await;
    assert!(!drain.is_finished());
    gate.release();
    assert_eq!(drain.await.unwrap(), 0);
    assert_eq!(api.effects(), 20);
    for n in 0..20 {
        assert_eq!(api.order(&format!("k-{n}")).await.status, StatusCode::CREATED);
    }
    assert_eq!(api.effects(), 20, "every answer was kept");
}

#[tokio::test(start_paused = true)]
async fn d10_what_outlives_the_drain_keeps_its_lease_and_ends_uncertain() {
    let (api, next) = two(&crate::support::api::endpoint("", ""));
    let gate = api.gate();
    let _running: Vec<_> = (0..3).map(|n| api.spawn(order(&format!("k-{n}")))).collect();
    gate.reached(3).await;
    assert_eq!(api.retrysafe.drain(Duration::from_secs(5)).await, 3);
    assert_eq!(api.store.count(Call::Remove), 0, "nothing is released");
    // The process is gone: nobody renews. Another process answers what is true.
    api.store
        .always(Call::Renew, crate::support::faulty::Fault::Fail(retrysafe_store::ErrorKind::Unavailable));
    assert_eq!(next.order("k-0").await.code(), "idempotency_key_in_flight");
    next.store.clock().advance(Duration::from_secs(31));
    assert_eq!(next.order("k-0").await.code(), "idempotency_outcome_unknown");
    assert_eq!((api.effects(), next.effects()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn d10_a_drain_with_nothing_to_wait_for_ends_at_once() {
    let api = Api::new("");
    api.order("k").await;
    let before = tokio::time::Instant::now();
    assert_eq!(api.retrysafe.drain(Duration::from_secs(30)).await, 0);
    assert_eq!(before.elapsed(), Duration::ZERO);
}
