//! The gate of `docs/guides/webhook-race.md`: it finds the race before, and passes after.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by panicking")]

use std::{sync::Arc, time::Duration};

use example_webhooks::{LookUp, after, before, database};
use retrysafe::{DeploymentKey, FingerprintKeys};
use retrysafe_gates::{
    concurrency,
    plan::Plan,
    report::{Report, Verdict},
    safety::Allowance,
};

const PLAN: &str = include_str!("../gates.toml");

/// The receiver on a port and a file of its own, under the plan that users are given.
async fn gate(guarded: bool) -> Report {
    let folder = tempfile::tempdir().expect("a folder");
    let store = database(folder.path()).await.expect("a database");
    let look_up: LookUp = Arc::new(|| Box::pin(tokio::time::sleep(Duration::from_millis(5))));
    let router = if guarded {
        let keys = FingerprintKeys::new(DeploymentKey::new(1, &[7; 32]).expect("a key"));
        after::app(store, keys, look_up).expect("a receiver")
    } else {
        before::app(store, look_up)
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, router).await });
    let file = folder.path().join("invoices.db");
    let text = PLAN
        .replace("127.0.0.1:3001", &address.to_string())
        .replace("sqlite:invoices.db", &format!("sqlite:{}", file.display()));
    let plan = Plan::parse(&text, "gates.toml").unwrap_or_else(|faults| panic!("{faults}"));
    let allowance = Allowance { owned: None, time: Duration::from_secs(120) };
    let run = move || concurrency::run(&plan, &allowance, 7, &mut |_| ());
    tokio::task::spawn_blocking(run).await.expect("it ends").expect("it can be run")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_finds_two_invoices_before() {
    let report = gate(false).await;
    let race = report.part("A1").expect("it ran");
    assert_eq!(race.verdict, Some(Verdict::Fail), "{report:#?}");
    let example = race.counterexample.as_ref().expect("a round that shows it");
    assert!(example.effects.iter().any(|(observer, count)| observer == "invoices" && *count > 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_passes_after() {
    let report = gate(true).await;
    assert_eq!(report.verdict, Verdict::Pass, "{report:#?}");
}
