//! `retrysafe serve`: the gateway, its admin server, and a sample shop behind it if there is no other upstream.

pub(crate) mod admin;
mod store;
mod welcome;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use retrysafe_core::contract::Contract;
use retrysafe_gateway::proxy::{HostHeader, Upstream, UpstreamProtocol};
use retrysafe_gateway::{Gateway, GatewayFault, GatewayOptions};
use retrysafe_server::BuildFault;
use retrysafe_shop::ShopOptions;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::failure::{Failure, bound, listen};
use crate::logs::LogArgs;
use crate::ready::{ReadyFile, on_signals};
use store::Place;

/// The contract of the bundled sample.
const SAMPLE_CONTRACT: &str = include_str!("../assets/shop.toml");
const SAMPLE_CONTRACT_NAME: &str = "shop.toml (bundled)";
/// How long a scrape in progress may go on at the end.
const ADMIN_DRAIN: Duration = Duration::from_secs(2);
/// The sample's file of effects.
const SAMPLE_EFFECTS: &str = "retrysafe-shop.db";

/// Put a gateway in front of an API: a write retried with the same key runs once
///
/// Without --upstream, a sample shop is started behind it and its bundled contract is used:
/// nothing has to be written to try it. With --upstream, name the contract of that API.
///
///   retrysafe serve
///   retrysafe serve --upstream http://127.0.0.1:3000 --contract retrysafe.toml
///
/// The upstream may be absent at start. SIGTERM and SIGINT drain: what runs is finished, for at
/// most --drain-s.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct ServeArgs {
    /// Where clients come in (HTTP/1.1 and HTTP/2)
    #[arg(long, env = "RETRYSAFE_LISTEN", default_value = "127.0.0.1:8787", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Where metrics and health are served: /metrics, /livez, /readyz
    #[arg(long, env = "RETRYSAFE_ADMIN", default_value = "127.0.0.1:8788", value_name = "ADDRESS")]
    admin: SocketAddr,
    /// Let --admin be an address that other machines reach
    #[arg(long)]
    admin_public: bool,
    /// Where claims live: a SQLite file, postgres://USER@HOST/DATABASE, mysql://USER@HOST/DATABASE (MariaDB), or `memory`
    /// (forgotten when the process ends)
    #[arg(long, env = "RETRYSAFE_STORE", default_value = "retrysafe.db", value_name = "FILE|URL|memory")]
    store: Place,
    /// The file with the secret of fingerprints; made at the first start. Required with a database, where every process
    /// needs the same [default for a SQLite file: STORE.key]
    #[arg(long, env = "RETRYSAFE_KEY_FILE", value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The API behind the gateway: http(s)://host:port[/path]. None: the sample shop
    #[arg(long, env = "RETRYSAFE_UPSTREAM", value_name = "URL", requires = "contract")]
    upstream: Option<Upstream>,
    /// The contract of the API
    #[arg(long, env = "RETRYSAFE_CONTRACT", value_name = "FILE")]
    contract: Option<PathBuf>,
    /// Speak HTTP/2 to the upstream (with prior knowledge on http, by ALPN on https)
    #[arg(long)]
    upstream_http2: bool,
    /// Send the upstream its own host name instead of the client's
    #[arg(long)]
    upstream_host: bool,
    /// Threads that run connections [default: one for each core]
    #[arg(long, env = "RETRYSAFE_WORKERS", value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Seconds that requests in progress have at a shutdown
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    drain_s: u64,
    /// Milliseconds that a write takes in the sample shop, so that there is something to meet in flight
    #[arg(long, default_value_t = 250, value_name = "MS", conflicts_with = "upstream")]
    sample_ms: u64,
    /// Let the sample shop obey X-Shop-Fault headers, such as `commit-then-cut`
    #[arg(long, conflicts_with = "upstream")]
    sample_faults: bool,
    /// Write the bound addresses to this file, as JSON, once everything listens
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    #[command(flatten)]
    logs: LogArgs,
}

/// The runtime of a serving process.
pub(crate) fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::runtime(format!("the runtime cannot be started: {error}")))
}

/// Runs until a signal, then drains.
pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    args.logs.start()?;
    if !args.admin.ip().is_loopback() && !args.admin_public {
        return Err(Failure::usage(format!(
            "--admin {} can be reached by other machines, and nothing there asks who they are; use a loopback \
             address, or say --admin-public if something in front does",
            args.admin
        )));
    }
    let contract = contract(args)?;
    // Before the layer is built: its counters belong to the recorder that is there then.
    let metrics = admin::Metrics::install()?;
    runtime()?.block_on(serve(args, contract, metrics))
}

fn contract(args: &ServeArgs) -> Result<Contract, Failure> {
    let (name, text) = match &args.contract {
        None => (SAMPLE_CONTRACT_NAME.to_owned(), SAMPLE_CONTRACT.to_owned()),
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::usage(format!("the contract {} cannot be read: {error}", path.display()))
            })?;
            (path.display().to_string(), text)
        }
    };
    Contract::parse(&text, &name).map_err(Failure::usage)
}

async fn serve(args: &ServeArgs, contract: Contract, metrics: admin::Metrics) -> Result<(), Failure> {
    let stop = on_signals()?;
    // Everything that can fail fails before the first request is taken.
    let listener = listen(args.listen, "--listen").await?;
    let admin_listener = listen(args.admin, "--admin").await?;
    let store = store::open(&args.store, args.key_file.as_deref()).await?;
    // The sample outlives the gateway's drain: requests in progress still need it.
    let stop_sample = CancellationToken::new();
    let (upstream, sample) = match &args.upstream {
        Some(upstream) => (upstream.clone(), None),
        None => {
            let (upstream, running) = sample(args, &stop_sample).await?;
            (upstream, Some(running))
        }
    };
    let gateway = Gateway::new(contract, store.store(), store.keys(), upstream.clone(), options(args))
        .map_err(refused)?;

    let (address, admin_address) = (bound(&listener)?, bound(&admin_listener)?);
    let admin = tokio::spawn(admin::serve(admin_listener, metrics, store.store(), stop.clone()));
    let addresses = json!({
        "gateway": address.to_string(),
        "admin": admin_address.to_string(),
        "upstream": upstream.to_string(),
        "pid": std::process::id(),
    });
    let _ready = args.ready_file.as_ref().map(|path| ReadyFile::write(path, &addresses)).transpose()?;
    welcome::print(&welcome::Scene {
        gateway: address,
        admin: admin_address,
        upstream: &upstream,
        sample: sample.is_some(),
        store: &args.store,
    });

    let ended = gateway.serve(listener, stop).await;
    stop_sample.cancel();
    if let Some(sample) = sample {
        let _ = sample.await;
    }
    if tokio::time::timeout(ADMIN_DRAIN, admin).await.is_err() {
        tracing::warn!("the admin server was cut off in a request");
    }
    store.close();
    tracing::info!(connections = ?ended.connections, running = ended.running, "stopped");
    Ok(())
}

fn options(args: &ServeArgs) -> GatewayOptions {
    let drain = Duration::from_secs(args.drain_s);
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let workers = args.workers.map_or_else(cores, usize::from);
    let mut options = GatewayOptions { drain_timeout: drain, workers, ..GatewayOptions::default() };
    options.serve.drain_timeout = drain;
    if args.upstream_http2 {
        options.proxy.protocol = UpstreamProtocol::Http2;
    }
    if args.upstream_host {
        options.proxy.host = HostHeader::Upstream;
    }
    options
}

/// A contract that cannot be kept here is the user's to change; the rest is not.
fn refused(fault: GatewayFault) -> Failure {
    match fault {
        GatewayFault::Layer(BuildFault::NoRandomness(_)) | GatewayFault::Upstream(_) => {
            Failure::runtime(fault)
        }
        other => Failure::usage(other),
    }
}

/// Starts the sample shop on a port of its own.
async fn sample(args: &ServeArgs, stop: &CancellationToken) -> Result<(Upstream, JoinHandle<()>), Failure> {
    let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), "--upstream").await?;
    let upstream = format!("http://{}", bound(&listener)?).parse().map_err(Failure::runtime)?;
    let shop = crate::shop::open(std::path::Path::new(SAMPLE_EFFECTS))?;
    let options = ShopOptions {
        faults: args.sample_faults,
        handler: Duration::from_millis(args.sample_ms),
        deduplicate: false,
    };
    let stop = stop.clone().cancelled_owned();
    let running = tokio::spawn(async move {
        if let Err(error) = retrysafe_shop::serve(listener, shop, options, stop).await {
            tracing::error!(%error, "the sample shop ended");
        }
    });
    Ok((upstream, running))
}
