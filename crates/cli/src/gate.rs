//! `retrysafe gate`: does a running HTTP API, in whatever language, keep what a key promises (SPEC 10).
//!
//! The gates themselves are in `retrysafe-gates`. This file reads the plan, asks whose the target is, shows how far a run
//! is, and prints what came of it; [`terminal`] is the report for people.

mod terminal;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use retrysafe_core::contract::read_duration;
use retrysafe_gates::concurrency::{self, Progress};
use retrysafe_gates::plan::Plan;
use retrysafe_gates::report::Report;
use retrysafe_gates::safety::{Allowance, permit};

use crate::failure::{Failure, exit};

/// Seeds are printed and typed: short ones will do.
const SEED_MAX: u64 = 0xff_ffff;

/// Find out whether a running API keeps what its keys promise: a race, a silent replay, a key that is not applied
///
/// A gate sends requests to an HTTP API in any language and counts their effects where they happen: in a table, a list, a
/// log, a counter, or a call to another service. It ends with PASS, with FAIL and the requests that show it, or with
/// INCONCLUSIVE and what to change. A run that could not have seen a fault is never a PASS.
///
/// Exit codes: 0 PASS, 1 FAIL, 2 INCONCLUSIVE, or a plan that cannot be used.
#[derive(Args, Debug)]
#[command(after_help = "\
A plan, gates.toml:
  base = \"http://127.0.0.1:8080\"
  [request]
  method = \"POST\"
  path = \"/orders\"
  headers = { Authorization = \"Bearer {{env.TOKEN}}\" }
  body = '{\"amount\": 4200, \"note\": \"{{nonce}}\"}'
  [[observe]]
  kind = \"sql\"
  url = \"sqlite:orders.db\"
  query = \"SELECT count(*) FROM orders WHERE note = '{{nonce}}'\"

Try:
  retrysafe gate concurrency --dry-run        what would be sent
  retrysafe gate concurrency                  all arms
  retrysafe gate concurrency --json report.json

The guide: docs/guides/gates.md")]
pub(crate) struct GateArgs {
    #[command(subcommand)]
    gate: Which,
}

#[derive(Subcommand, Debug)]
enum Which {
    Concurrency(RunArgs),
}

/// Bring identical requests together: one effect, and everybody told the truth about it
#[derive(Args, Debug)]
struct RunArgs {
    /// The plan
    #[arg(default_value = "gates.toml")]
    file: PathBuf,
    /// Say what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    /// Rounds of each shape of race, in place of the plan's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: Option<u32>,
    /// Repeat a run's keys and texts
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// End the run after this time; what was not reached is INCONCLUSIVE
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = read_duration)]
    at_most: Duration,
    /// The target is not on this machine, it is yours, and up to N real effects are acceptable
    #[arg(long, value_name = "N")]
    i_own_the_target_and_accept: Option<u64>,
    /// Write the report as JSON to this file; `-` prints it in place of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs a gate and says how it ended.
pub(crate) fn run(args: &GateArgs) -> ExitCode {
    let Which::Concurrency(args) = &args.gate;
    match concurrently(args) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(report)) => ExitCode::from(report.verdict.exit_code()),
        Err(failure) => exit(Err(failure)),
    }
}

/// `None` after a dry run.
fn concurrently(args: &RunArgs) -> Result<Option<Report>, Failure> {
    let mut plan = plan(&args.file)?;
    if args.rounds.is_some() {
        plan.concurrency.rounds = args.rounds;
    }
    let estimate = concurrency::estimate(&plan);
    if args.dry_run {
        terminal::dry_run(&plan, estimate);
        return Ok(None);
    }
    let allowance = Allowance { owned: args.i_own_the_target_and_accept, time: args.at_most };
    permit(&plan, estimate, &allowance).map_err(|refused| Failure::usage(refused.0))?;
    let seed = match args.seed {
        Some(seed) => seed,
        None => {
            getrandom::u64().map_err(|error| Failure::runtime(format!("no randomness for keys: {error}")))?
                % SEED_MAX
        }
    };
    let bar = Bar::new();
    let report = concurrency::run(&plan, &allowance, seed, &mut |progress| bar.show(progress))
        .map_err(|not_run| Failure::usage(not_run.0))?;
    drop(bar);
    emit(&report, args)?;
    Ok(Some(report))
}

fn plan(path: &Path) -> Result<Plan, Failure> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "{file} cannot be read: {error}; name a plan (`retrysafe gate --help` shows one)"
        ))
    })?;
    Plan::parse_with(&text, &file, &|name| std::env::var(name).ok()).map_err(Failure::usage)
}

fn emit(report: &Report, args: &RunArgs) -> Result<(), Failure> {
    let json = || {
        serde_json::to_string_pretty(report)
            .map_err(|error| Failure::runtime(format!("the report is no JSON: {error}")))
    };
    match &args.json {
        Some(path) if path.as_os_str() == "-" => anstream::println!("{}", json()?),
        other => {
            terminal::report(report);
            if let Some(path) = other {
                std::fs::write(path, json()?).map_err(|error| {
                    Failure::runtime(format!(
                        "{} cannot be written: {error}; name another file",
                        path.display()
                    ))
                })?;
            }
        }
    }
    Ok(())
}

/// How far a run is, on a terminal.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(1);
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} rounds, {elapsed}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    fn show(&self, progress: Progress) {
        let about = progress.arm.about();
        self.0.set_length(u64::from(progress.of));
        self.0.set_position(u64::from(progress.done));
        self.0.set_message(format!("{} {}", about.id, about.title));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
