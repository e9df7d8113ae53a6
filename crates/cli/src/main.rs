//! The retrysafe command.

mod check;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Make writes safe to retry: one contract for the server, the client and the documents
#[derive(Parser)]
#[command(name = "retrysafe", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Check(check::CheckArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Check(args) => check::run(&args),
    }
}
