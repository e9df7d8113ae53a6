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
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let Some(name) = cli.mutant else {
        for mutant in TABLE {
            println!("{:<26} {:<13} {}", mutant.name, mutant.arm, mutant.what);
        }
        return Ok(());
    };
    let mutant = find(&name)
        .with_context(|| format!("no server is called {name}; run it without a name for the list"))?;
    let running = Running::start(
        mutant,
        &Terms { listen: Some(cli.listen), provider: cli.provider, state: cli.state, gap: None },
    )?;
    for address in running.addresses() {
        println!("{} at http://{address}", mutant.name);
    }
    running.forever();
    Ok(())
}
