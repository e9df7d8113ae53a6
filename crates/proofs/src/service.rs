//! A small axum service behind the layer: what a Rust user builds, as a process that can be killed.
//!
//! `POST /orders` has an effect in the ledger, `POST /bench` is the handler of the bench. The ledger is written
//! by the handler and read around the layer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use retrysafe_core::contract::Contract;
use retrysafe_core::fingerprint::{DeploymentKey, FingerprintKeys};
use retrysafe_server::Retrysafe;
use retrysafe_store::Store;
use retrysafe_store::memory::{MemoryOptions, MemoryStore};
use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};

use crate::contract::Terms;
use crate::handler;
use crate::ledger::Ledger;

/// Fingerprints must be the same before and after a kill; a proof's secret guards nothing.
const FINGERPRINT_SECRET: [u8; 32] = [7; 32];

/// The store named on the command line: `memory`, or `sqlite:FILE`.
///
/// # Errors
/// Another name, or the file cannot be opened.
pub(crate) fn store(name: &str) -> Result<Arc<dyn Store>> {
    match name.split_once(':') {
        None if name == "memory" => Ok(Arc::new(MemoryStore::new(MemoryOptions::default()))),
        Some(("sqlite", file)) => sqlite(Path::new(file)),
        _ => bail!("{name} is no store; write memory or sqlite:FILE"),
    }
}

fn sqlite(file: &Path) -> Result<Arc<dyn Store>> {
    let opened = SqliteStore::open(SqliteOptions::new(file));
    Ok(Arc::new(opened.with_context(|| format!("open the store {}", file.display()))?))
}

/// The layer over a store.
///
/// # Errors
/// The contract cannot be kept.
pub(crate) fn layer(terms: &Terms, store: Arc<dyn Store>) -> Result<Retrysafe> {
    let contract =
        Contract::parse(&terms.text(), "proofs.toml").map_err(|faults| anyhow::anyhow!("{faults}"))?;
    Retrysafe::builder(contract, store)
        .fingerprint_keys(fingerprint_keys()?)
        .build()
        .context("build the layer")
}

/// The same in every process of a proof.
///
/// # Errors
/// None that this secret can cause.
pub(crate) fn fingerprint_keys() -> Result<FingerprintKeys> {
    let key = DeploymentKey::new(1, &FINGERPRINT_SECRET).context("fingerprint key")?;
    Ok(FingerprintKeys::new(key))
}

struct Service {
    work: Duration,
    ledger: Ledger,
}

/// The routes, keyed ones behind the layer.
pub(crate) fn router(layer: Retrysafe, work: Duration, ledger: Ledger) -> Router {
    let service = Arc::new(Service { work, ledger });
    Router::new()
        .route("/orders", post(create))
        .route("/bench", post(handler::order))
        .layer(layer)
        .route("/ledger", get(list))
        .with_state(service)
}

async fn list(State(service): State<Arc<Service>>) -> axum::Json<Vec<crate::ledger::Entry>> {
    axum::Json(service.ledger.entries())
}

async fn create(State(service): State<Arc<Service>>, headers: HeaderMap) -> Response {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if !service.work.is_zero() {
        tokio::time::sleep(service.work).await;
    }
    match service.ledger.append("POST /orders", text("idempotency-key"), text("authorization")) {
        Ok(id) => {
            let body = axum::Json(serde_json::json!({ "id": id, "object": "order" }));
            (StatusCode::CREATED, [(header::LOCATION, format!("/orders/{id}"))], body).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
