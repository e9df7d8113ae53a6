//! A service that only completes: one of a fleet (recovery.5).
//!
//! Its plan has two phases; the orphans that it is given have the first behind them. The second writes a row that nothing keeps
//! apart from another of the same number, with the process that wrote it.

use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use retrysafe::recovery::{Halt, Phase, Plan, Recovery, Request, Shape, Steps};
use retrysafe::{Contract, Reply, Retrysafe};
use retrysafe_store::postgres::{PoolOptions, PostgresOptions, PostgresStore, StoreAddress, TokioPostgres};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::service::fingerprint_keys;
use crate::{Socket, asked_to_stop};

/// The endpoint of the orphans.
pub(crate) const ENDPOINT: &str = "POST /sweep";
pub(crate) const NAMESPACE: &str = "sweep";
/// What was swept, and by whom.
pub(crate) const TABLE: &str = "CREATE TABLE swept (number bigint NOT NULL, process bigint NOT NULL)";

const CONTRACT: &str = r#"
api = "Sweep"
namespace = "sweep"
longest_retry_chain = "24h"
unlisted = "refuse"
[scope]
source = "api_key"
rotates = false
[failures]
policy = "A"
[client]
drop_stored_statuses = true
[[endpoint]]
method = "POST"
path = "/sweep"
key = "required"
recovery = "phased"
"#;

/// What is kept of an orphan.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Orphan {
    pub(crate) number: i64,
}

type Store = PostgresStore<TokioPostgres>;

#[derive(Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    pub(crate) socket: Socket,
    /// `postgres://...`
    #[arg(long)]
    pub(crate) store: String,
}

/// The steps of the plan.
pub(crate) fn shape() -> Result<Shape> {
    Ok(Shape::new("sweep")?.phase("begin")?.phase("finish")?)
}

async fn sweep(mut steps: Steps<Store>, request: Request<Orphan>) -> Result<Reply, Halt> {
    let number = request.fields.number;
    let begun: i64 = steps.phase("begin", |_tx| async move { Ok(Phase::Point(number)) }).await?;
    steps
        .answer("finish", |mut tx| async move {
            let process = i64::from(std::process::id());
            tx.db().execute("INSERT INTO public.swept VALUES ($1, $2)", &[&begun, &process]).await?;
            Ok(Reply::json(200, &begun))
        })
        .await
}

/// The store at `url`.
///
/// # Errors
/// It is not there, or has no tables.
pub(crate) async fn store(url: &str) -> Result<Store> {
    let address: StoreAddress = url.parse()?;
    let driver = TokioPostgres::new(url.parse()?, PoolOptions { size: 12, ..PoolOptions::default() })?;
    Ok(PostgresStore::open(driver, PostgresOptions { schema: address.schema, ..PostgresOptions::default() })
        .await?)
}

/// Opens the database, and what completes in it.
///
/// # Errors
/// The database is not there.
pub(crate) async fn open(url: &str) -> Result<Recovery<Store>> {
    let store = Arc::new(store(url).await?);
    let contract = Contract::parse(CONTRACT, "sweep.toml")?;
    let layer = Retrysafe::builder(contract, store.clone()).fingerprint_keys(fingerprint_keys()?).build()?;
    Ok(Recovery::of(&layer, store).plan(Plan::new(shape()?, sweep)).build()?)
}

/// Completes until it is asked to stop. Nobody connects.
pub(crate) async fn serve(_listener: TcpListener, recovery: Recovery<Store>) -> Result<()> {
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { recovery.run(stop).await }
    });
    asked_to_stop().await;
    stop.cancel();
    Ok(running.await?)
}
