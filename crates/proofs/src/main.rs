//! Reproduces every claim of the project and prints its figure.
//!
//! `prove` runs what the list in `items.json` names, `bench` measures ratios; `origin` and `service` are
//! servers that the proofs start as processes of their own, so that they can be killed and accounted for.

mod accounting;
mod bench;
mod closed;
mod handler;
mod judge;
mod ledger;
mod origin;
mod process;
mod race;
mod report;
mod tools;
mod wire;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

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
    /// Measure, as ratios to a baseline of the same run
    Bench(bench::Options),
}

#[derive(Args)]
struct OriginArgs {
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where to write `{"listen": ADDRESS}` once bound
    #[arg(long)]
    ready_file: Option<PathBuf>,
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
    serve(app, args.listen, args.ready_file)
}

/// Serves until SIGTERM, saying where once bound.
fn serve(app: axum::Router, listen: SocketAddr, ready_file: Option<PathBuf>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener =
            tokio::net::TcpListener::bind(listen).await.with_context(|| format!("bind {listen}"))?;
        let bound = listener.local_addr()?;
        if let Some(path) = ready_file {
            process::write_ready(&path, &serde_json::json!({ "listen": bound.to_string() }))?;
        }
        println!("listening on {bound}");
        let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        axum::serve(listener, app)
            .with_graceful_shutdown(async move {
                term.recv().await;
            })
            .await
            .context("serve")
    })
}
