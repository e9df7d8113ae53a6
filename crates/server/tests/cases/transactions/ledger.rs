//! SPEC 10.3: duplicate effects are counted from a ledger that the claim path neither reads nor guards.

use std::{sync::Arc, time::Duration};

use axum::{Extension, Router, extract::State, routing::post as on_post};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use retrysafe_core::{contract::Contract, time::Wall};
use retrysafe_server::{
    Reply, Retrysafe,
    extract::{Answer as Settled, Keyed},
};
use retrysafe_store::{
    Store,
    clock::ManualClock,
    sqlite::{SqliteOptions, SqliteStore},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::support::{
    api::{deployment_keys, endpoint, read},
    post,
};

struct Shop {
    router: Router,
    retrysafe: Retrysafe,
    store: Arc<SqliteStore>,
    clock: ManualClock,
    metrics: PrometheusHandle,
    folder: tempfile::TempDir,
}

async fn charge(State(store): State<Arc<SqliteStore>>, keyed: Keyed<serde_json::Value>) -> Settled {
    keyed
        .transaction_sync(&store, |tx, _| {
            tx.effect("charge")?;
            tx.effect("receipt")?;
            Ok(Reply::json(201, &"charged"))
        })
        .await
}

impl Shop {
    fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualClock::at(Wall::from_unix_ms(1_800_000_000_000));
        let options = SqliteOptions {
            clock: Arc::new(clock.clone()),
            ..SqliteOptions::new(folder.path().join("s.db"))
        };
        let store = Arc::new(SqliteStore::open(options).unwrap());
        let contract = Contract::parse(&endpoint("", "recovery = \"atomic\""), "t.toml").unwrap();
        let recorder = PrometheusBuilder::new().build_recorder();
        let metrics = recorder.handle();
        let builder = Retrysafe::builder(contract, store.clone()).fingerprint_keys(deployment_keys());
        let retrysafe = metrics::with_local_recorder(&recorder, || builder.build()).unwrap();
        let router = Router::new().route("/orders", on_post(charge)).with_state(store.clone());
        Self { router: router.layer(Extension(retrysafe.clone())), retrysafe, store, clock, metrics, folder }
    }

    async fn charge(&self, key: &str) {
        let response = self.router.clone().oneshot(post("/orders", "alice", key, "{}")).await.unwrap();
        assert_eq!(read(response).await.status, 201);
    }

    /// One pass of the watcher, after its grace.
    async fn count(&self) -> String {
        self.clock.advance(Duration::from_secs(60));
        // Stopped before it begins: it makes one pass.
        let stop = CancellationToken::new();
        stop.cancel();
        self.retrysafe.upkeep(stop).await;
        let text = self.metrics.render();
        let line = text.lines().find(|line| line.starts_with("retrysafe_duplicate_effects_total"));
        line.unwrap_or("retrysafe_duplicate_effects_total 0").rsplit(' ').next().unwrap().to_owned()
    }

    /// The mutant: somebody's hand, or a bug, takes the claim away, so the retry runs again.
    fn break_the_claim(&self) {
        let connection = rusqlite::Connection::open(self.folder.path().join("s.db")).unwrap();
        assert_eq!(connection.execute("DELETE FROM retrysafe_record", []).unwrap(), 1);
    }
}

#[tokio::test]
async fn spec_10_3_a_broken_claim_path_shows_in_the_number_that_must_stay_zero() {
    let shop = Shop::open();
    for _ in 0..10 {
        shop.charge("k").await;
    }
    assert_eq!(shop.count().await, "0", "ten deliveries, one effect");
    shop.break_the_claim();
    shop.charge("k").await;
    assert_eq!(shop.count().await, "2", "two steps of one operation happened twice");
    // The same key far later is a new request, and no duplicate.
    shop.clock.advance(Duration::from_secs(25 * 3600));
    shop.charge("k").await;
    let all = shop.store.duplicate_effects(
        Wall::from_unix_ms(0),
        shop.store.now().unwrap(),
        Duration::from_secs(3600),
    );
    assert_eq!(all.await.unwrap(), Some(2));
}

/// The rules name metrics that exist.
#[test]
fn every_alert_is_about_a_metric_of_the_reference() {
    let (rules, page) = (
        include_str!("../../../../../deploy/alerts.yml"),
        include_str!("../../../../../docs/reference/metrics.md"),
    );
    let names: Vec<&str> = rules
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("retrysafe_") && *word != "retrysafe_effect")
        .collect();
    assert!(names.len() > 5, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "deploy/alerts.yml watches {name}, which is no metric");
    }
}
