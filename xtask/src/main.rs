//! Tasks of the repository, each one command:
//!
//! | command | does |
//! |---|---|
//! | `cargo xtask test` | sets up and runs every test of the quick tier, and closes with `N passed, N failed` |
//! | `cargo xtask tidy` | the rules no compiler checks: floors, purity of `core`, words, pages, licences |
//! | `cargo xtask prove` | lists the claims; `prove main-job.1` reproduces one and prints its figure last |
//! | `cargo xtask bench` | ratios side by side, from one run |
//!
//! This crate only plans and delegates: what needs a server, a store or a load generator is the
//! `proofs` binary.

mod prove;
mod root;
mod stage;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Tasks of the repository")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Set up and run every test of the quick tier
    Test(TestArgs),
    /// Check the rules no compiler checks
    Tidy,
    /// Reproduce a claim of the project; alone: list them
    Prove(ProveArgs),
    /// Measure, as ratios to a baseline of the same run
    Bench(BenchArgs),
}

#[derive(Args)]
struct TestArgs {
    /// Leave the quick proofs out (they start real servers)
    #[arg(long)]
    no_proofs: bool,
}

#[derive(Args)]
struct ProveArgs {
    /// One item (`main-job.1`) or every item of a slug (`main-job`)
    item: Option<String>,
    /// At a reduced scale; without an item: every quick one
    #[arg(long)]
    quick: bool,
    /// Passed to the proof as it is, for example `-- --rounds 20`
    #[arg(last = true)]
    rest: Vec<String>,
}

#[derive(Args)]
struct BenchArgs {
    /// One JSON object a line: name, ratio, baseline, spread
    #[arg(long)]
    json: bool,
    /// Only the rows whose name starts with this
    #[arg(long)]
    only: Option<String>,
    /// Passed to the bench as it is, for example `-- --rounds 3`
    #[arg(last = true)]
    rest: Vec<String>,
}

fn main() -> Result<ExitCode> {
    let holds = match Cli::parse().task {
        Task::Test(args) => test::run(!args.no_proofs)?,
        Task::Tidy => tidy::run()?,
        Task::Prove(args) => match (args.item, args.quick) {
            (None, false) => prove::list()?,
            (None, true) => prove::quick(&args.rest)?,
            (Some(item), quick) => prove::one(&item, quick, &args.rest)?,
        },
        Task::Bench(args) => prove::bench(args.json, args.only.as_deref(), &args.rest)?,
    };
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
