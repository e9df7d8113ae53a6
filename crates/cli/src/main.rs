//! The retrysafe command: one file for each subcommand, which reads its arguments, does its work, and says how it ended.

#![forbid(unsafe_code)]

mod audit;
mod check;
mod database;
mod design;
mod docs;
mod doctor;
mod failure;
mod gate;
mod keys;
mod lint;
mod logs;
mod migrate;
mod overlay;
mod place;
mod ready;
mod recover;
mod serve;
mod shop;
mod simulate;
mod store;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Each request makes and drops a few dozen small values, often on different threads; the system's allocator locks for that
/// and grows a page at a time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Make writes safe to retry: one contract for the server, the client and the documents
///
/// A retried write is safe when the server recognises its idempotency key and the client reuses it. `retrysafe serve`
/// puts the server's half in front of any HTTP API, by the rules of a contract file.
///
/// Start with `retrysafe serve`: without an --upstream it brings a sample shop to try it on.
///
/// Exit codes: 0 done, 1 a failure while running, 2 wrong usage or a contract that cannot be kept.
#[derive(Parser)]
#[command(name = "retrysafe", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<serve::ServeArgs>),
    Audit(Box<audit::AuditArgs>),
    Check(check::CheckArgs),
    Keys(Box<keys::KeysArgs>),
    Lint(lint::LintArgs),
    Migrate(migrate::MigrateArgs),
    Design(design::DesignArgs),
    Docs(docs::DocsArgs),
    Doctor(doctor::DoctorArgs),
    Gate(gate::GateArgs),
    Overlay(overlay::OverlayArgs),
    Recover(Box<recover::RecoverArgs>),
    Shop(shop::ShopArgs),
    Simulate(simulate::SimulateArgs),
    Store(store::StoreArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => failure::exit(serve::run(&args)),
        Command::Audit(args) => audit::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Keys(args) => failure::exit(keys::run(&args)),
        Command::Lint(args) => lint::run(&args),
        Command::Migrate(args) => failure::exit(migrate::run(&args)),
        Command::Design(args) => design::run(&args),
        Command::Docs(args) => docs::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Gate(args) => gate::run(&args),
        Command::Overlay(args) => overlay::run(&args),
        Command::Recover(args) => failure::exit(recover::run(&args)),
        Command::Shop(args) => failure::exit(shop::run(&args)),
        Command::Simulate(args) => failure::exit(simulate::run(&args)),
        Command::Store(args) => failure::exit(store::run(&args)),
    }
}
