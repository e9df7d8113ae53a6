//! Reproduces every claim of the project and prints its figure.
//!
//! `prove` runs what the list in `items.json` names, `bench` measures ratios; `origin` and `service` are
//! servers that the proofs start as processes of their own, so that they can be killed and accounted for.

mod accounting;
mod bench;
mod book;
mod closed;
mod contract;
mod fsyncs;
mod handler;
mod judge;
mod ledger;
mod origin;
mod persist;
mod process;
mod prove;
mod race;
mod relay;
mod report;
mod ride;
mod service;
mod subjects;
mod suite;
mod sweep;
mod till;
mod tools;
mod wire;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// The one of the `retrysafe` binary, so that the bench's services, bare and guarded, allocate as it does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(name = "proofs", about = "Reproduces every claim of the project and prints its figure")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// An upstream with a ledger, sound or broken on purpose
    Origin(OriginArgs),
    /// A service behind the layer
    Service(ServiceArgs),
    /// A service whose rows and answers are one commit
    Till(till::TillArgs),
    /// The service of `examples/rides`, which ends at a chosen point
    Ride(ride::RideArgs),
    /// A process that only completes, one of a fleet
    Sweep(sweep::SweepArgs),
    /// The sample shop as a process of its own
    Shop(ShopArgs),
    /// A server that breaks one promise, as a process that can be killed
    Mutant(MutantArgs),
    /// Reproduce claims and print their figures
    Prove(prove::Options),
    /// Measure, as ratios to a baseline of the same run
    Bench(bench::Options),
}

/// What every server takes.
#[derive(Args)]
struct Socket {
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where to write `{"listen": ADDRESS}` once bound
    #[arg(long)]
    ready_file: Option<PathBuf>,
}

#[derive(Args)]
struct ServiceArgs {
    #[command(flatten)]
    socket: Socket,
    /// `memory` or `sqlite:FILE`
    #[arg(long)]
    store: String,
    #[arg(long, default_value_t = 0)]
    work_ms: u64,
    #[arg(long, default_value_t = 30_000)]
    lease_ms: u64,
    /// Where effects are written down
    #[arg(long)]
    ledger: PathBuf,
}

#[derive(Args)]
struct ShopArgs {
    #[command(flatten)]
    socket: Socket,
    /// Where effects are written down
    #[arg(long)]
    file: PathBuf,
    #[arg(long, default_value_t = 0)]
    work_ms: u64,
    /// Obey `X-Shop-Fault` and `/faults`
    #[arg(long)]
    faults: bool,
    /// De-duplicate by the key, as a contract may declare
    #[arg(long)]
    deduplicate: bool,
}

#[derive(Args)]
struct MutantArgs {
    name: String,
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    provider: SocketAddr,
    #[arg(long)]
    state: Option<PathBuf>,
    #[arg(long)]
    books: Option<String>,
}

#[derive(Args)]
struct OriginArgs {
    #[command(flatten)]
    socket: Socket,
    /// How long each effect takes, in milliseconds
    #[arg(long, default_value_t = 0)]
    work_ms: u64,
    #[arg(long, value_enum, default_value = "none")]
    guard: origin::Guard,
    /// Keep the ledger in a file that outlives the process
    #[arg(long)]
    ledger: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    match Cli::parse().task {
        Task::Origin(args) => {
            serve_origin(args)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Service(args) => {
            serve_service(args)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Till(args) => {
            serve_till(args)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Ride(args) => {
            on_socket(args.socket, async || ride::open(args.terms).await, ride::serve)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Sweep(args) => {
            on_socket(args.socket, async || sweep::open(&args.store).await, sweep::serve)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Shop(args) => {
            serve_shop(args)?;
            Ok(ExitCode::SUCCESS)
        }
        Task::Mutant(args) => {
            let mutant = retrysafe_mutants::find(&args.name).context("no server is called so")?;
            let terms = retrysafe_mutants::Terms {
                listen: Some(args.listen),
                provider: Some(args.provider),
                state: args.state,
                books: args.books,
                ..retrysafe_mutants::Terms::default()
            };
            retrysafe_mutants::Running::start(mutant, &terms)?.forever();
            Ok(ExitCode::SUCCESS)
        }
        Task::Prove(options) => Ok(exit(prove::run(&options)?)),
        Task::Bench(options) => Ok(exit(bench::run(&options)?)),
    }
}

fn exit(holds: bool) -> ExitCode {
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn serve_origin(args: OriginArgs) -> Result<()> {
    let ledger = match &args.ledger {
        Some(path) => ledger::Ledger::open(path)?,
        None => ledger::Ledger::in_memory(),
    };
    let app = origin::router(args.guard, Duration::from_millis(args.work_ms), Arc::new(ledger));
    on_socket(args.socket, ready_at_once, async |listener, ()| {
        axum::serve(listener, app).with_graceful_shutdown(asked_to_stop()).await
    })
}

fn serve_service(args: ServiceArgs) -> Result<()> {
    let terms = contract::Terms { lease: Duration::from_millis(args.lease_ms), ..contract::Terms::default() };
    let layer = service::layer(&terms, service::store(&args.store)?)?;
    let ledger = ledger::Ledger::open(&args.ledger)?;
    let app = service::router(layer.clone(), Duration::from_millis(args.work_ms), ledger);
    on_socket(args.socket, ready_at_once, async |listener, ()| {
        let stop = tokio_util::sync::CancellationToken::new();
        let _upkeep_ends = stop.clone().drop_guard();
        tokio::spawn(async move { layer.upkeep(stop).await });
        axum::serve(listener, app).with_graceful_shutdown(asked_to_stop()).await
    })
}

fn serve_till(args: till::TillArgs) -> Result<()> {
    on_socket(args.socket, async || till::open(args.terms).await, till::serve)
}

fn serve_shop(args: ShopArgs) -> Result<()> {
    let shop = retrysafe_shop::Shop::open(&args.file)?;
    let options = retrysafe_shop::ShopOptions {
        faults: args.faults,
        handler: Duration::from_millis(args.work_ms),
        deduplicate: args.deduplicate,
    };
    on_socket(args.socket, ready_at_once, async |listener, ()| {
        retrysafe_shop::serve(listener, shop, options, asked_to_stop()).await
    })
}

/// For a server that has opened what it needs before it is bound.
async fn ready_at_once() -> Result<()> {
    Ok(())
}

/// Opens what the server stands on, binds, says where, serves. In this order: who is told where a server listens connects
/// to it, and a server that ends because it cannot open its database would reset that connection.
fn on_socket<T, E: Into<anyhow::Error>>(
    socket: Socket,
    open: impl AsyncFnOnce() -> Result<T>,
    serve: impl AsyncFnOnce(TcpListener, T) -> Result<(), E>,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let opened = open().await?;
        let listener =
            TcpListener::bind(socket.listen).await.with_context(|| format!("bind {}", socket.listen))?;
        let bound = listener.local_addr()?;
        if let Some(path) = socket.ready_file {
            process::write_ready(&path, &serde_json::json!({ "listen": bound.to_string() }))?;
        }
        println!("listening on {bound}");
        serve(listener, opened).await.map_err(|error| error.into().context("serve"))
    })
}

/// SIGTERM, or never where signals cannot be had.
async fn asked_to_stop() {
    match signal(SignalKind::terminate()) {
        Ok(mut term) => {
            term.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}
