//! The admin server: metrics for Prometheus, and two health checks that mean different things.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use retrysafe_store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

/// A store that takes longer to count its records is not ready.
const READY_WITHIN: Duration = Duration::from_secs(2);
/// How often the recorder folds what was measured; between two scrapes it would only grow.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// Buckets of everything measured in seconds: from a memory hit to a hanging upstream.
const SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// The process's recorder of metrics.
#[derive(Clone)]
pub(crate) struct Metrics(PrometheusHandle);

impl Metrics {
    /// Installs it. Counters that were made before do not count.
    pub(crate) fn install() -> Result<Self, Failure> {
        PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("seconds".to_owned()), &SECONDS)
            .and_then(PrometheusBuilder::install_recorder)
            .map(Self)
            .map_err(|error| Failure::runtime(format!("metrics cannot be recorded: {error}")))
    }
}

#[derive(Clone)]
struct Admin {
    metrics: Metrics,
    store: Arc<dyn Store>,
    stopping: CancellationToken,
}

/// Serves until `stop`.
pub(crate) async fn serve(
    listener: TcpListener,
    metrics: Metrics,
    store: Arc<dyn Store>,
    stop: CancellationToken,
) {
    let admin = Admin { metrics: metrics.clone(), store, stopping: stop.clone() };
    let router = Router::new()
        .route("/metrics", get(scrape))
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .with_state(admin);
    let upkeep = async {
        loop {
            tokio::time::sleep(UPKEEP_EVERY).await;
            metrics.0.run_upkeep();
        }
    };
    let stopped = stop.clone().cancelled_owned();
    let serving = axum::serve(listener, router).with_graceful_shutdown(stopped);
    tokio::select! {
        served = serving => if let Err(error) = served {
            tracing::error!(%error, "the admin server ended");
        },
        () = upkeep => {}
    }
}

async fn scrape(State(admin): State<Admin>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], admin.metrics.0.render())
}

/// Ready means: a keyed request would be claimed. Whether the upstream is there is the upstream's health; taking the
/// gateway out of service for it would turn honest 503s into refused connections.
async fn ready(State(admin): State<Admin>) -> (StatusCode, &'static str) {
    if admin.stopping.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n");
    }
    let answers = async { admin.store.now().is_ok() && admin.store.census().await.is_ok() };
    match tokio::time::timeout(READY_WITHIN, answers).await {
        Ok(true) => (StatusCode::OK, "ready\n"),
        Ok(false) | Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the store does not answer\n"),
    }
}
