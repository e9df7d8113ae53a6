//! Runs one of the servers, to try a gate on.

#![forbid(unsafe_code)]

use std::net::SocketAddr;

use anyhow::{Context, Result};
use clap::Parser;
use retrysafe_mutants::{Running, TABLE, Terms, find};

/// A server that breaks one promise; without a name, the list of them
#[derive(Parser)]
struct Cli {
    /// Which
    mutant: Option<String>,
    /// Where
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The effect is a call to this service (the stub of a gate)
    #[arg(long)]
    provider: Option<SocketAddr>,
    /// Where claims outlive the process
    #[arg(long)]
    state: Option<std::path::PathBuf>,
    /// The database of those that keep their orders in one: sqlite:FILE or postgres://...
    #[arg(long)]
    books: Option<String>,
    /// A log with a line for each effect
    #[arg(long)]
    log: Option<std::path::PathBuf>,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let Some(name) = &cli.mutant else {
        for mutant in TABLE {
            println!("{:<26} {:<13} {}", mutant.name, mutant.arm, mutant.what);
        }
        return Ok(());
    };
    let mutant = find(name)
        .with_context(|| format!("no server is called {name}; run it without a name for the list"))?;
    let Cli { listen, provider, state, books, log, .. } = cli;
    let terms = Terms { listen: Some(listen), provider, state, books, log, gap: None };
    let running = Running::start(mutant, &terms)?;
    for address in running.addresses() {
        println!("{} at http://{address}", mutant.name);
    }
    running.forever();
    Ok(())
}
