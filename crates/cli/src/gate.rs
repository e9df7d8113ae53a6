//! `retrysafe gate`: does a running HTTP API, in whatever language, keep what a key promises (SPEC 10).
//!
//! The gates themselves are in `retrysafe-gates`. This file reads the plan, asks whose the target is, shows how far a run
//! is, and prints what came of it; [`terminal`] is the report for people.

mod terminal;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use retrysafe_core::contract::{read_duration, show};
use retrysafe_gates::concurrency::{self, Progress};
use retrysafe_gates::crash;
use retrysafe_gates::delay::{Delay, Relay};
use retrysafe_gates::plan::{CrashPlan, Outside, Plan, ProcessId, SlowPlan, VerifyPlan};
use retrysafe_gates::report::{self, Report, Verdict};
use retrysafe_gates::safety::{Allowance, permit};
use retrysafe_gates::verify;

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
  retrysafe gate concurrency --html report.html --junit report.xml
  retrysafe gate delay --listen 127.0.0.1:15432 --to 127.0.0.1:5432
  retrysafe gate crash                        the API of [crash] is started and killed
  retrysafe gate all                          concurrency and, with [[claim]], verify

The guide: docs/guides/gates.md")]
pub(crate) struct GateArgs {
    #[command(subcommand)]
    gate: Which,
}

#[derive(Subcommand, Debug)]
enum Which {
    /// Bring identical requests together: one effect, and everybody told the truth about it
    Concurrency(RunArgs),
    /// Repeat operations that are said to be idempotent without a key, and compare states
    Verify(RunArgs),
    /// Kill the API while it calls somebody else, start it again, and retry
    Crash(RunArgs),
    /// Make a database far away: a relay that passes everything on a little later
    Delay(DelayArgs),
    /// The gates for an API that is running: concurrency, and verify where the plan has claims
    All(RunArgs),
}

/// Between a check and an insert there is one round trip: point the API's database address at --listen, and the window of
/// its races is as wide as in production. Runs until it is interrupted.
#[derive(Args, Debug)]
struct DelayArgs {
    /// Where the API connects
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// The database
    #[arg(long, value_name = "ADDRESS")]
    to: SocketAddr,
    /// Added in each direction
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = read_duration)]
    each_way: Duration,
}

#[derive(Args, Debug)]
struct RunArgs {
    /// The plan
    #[arg(default_value = "gates.toml")]
    file: PathBuf,
    /// Where the API speaks TLS: the certificate of its authority, in PEM, in place of the plan's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Say what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
    /// Rounds of each shape of race, in place of the plan's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: Option<u32>,
    /// Make the system calls of this process slow while it is raced (needs strace), in place of the plan's [slow] pid_file
    #[arg(long, value_name = "PID")]
    slow_pid: Option<u32>,
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
    /// Write the report as JUnit XML to this file
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the report as one HTML page, with the timeline drawn, to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs a gate and says how it ended.
pub(crate) fn run(args: &GateArgs) -> ExitCode {
    let (args, wanted) = match &args.gate {
        Which::Delay(args) => return exit(relay(args)),
        Which::Concurrency(args) => (args, Wanted::Concurrency),
        Which::Verify(args) => (args, Wanted::Verify),
        Which::Crash(args) => (args, Wanted::Crash),
        Which::All(args) => (args, Wanted::All),
    };
    match gates(args, wanted) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(verdict)) => ExitCode::from(verdict.exit_code()),
        Err(failure) => exit(Err(failure)),
    }
}

/// Relays until it is interrupted.
fn relay(args: &DelayArgs) -> Result<(), Failure> {
    let delay = Delay { listen: args.listen, to: args.to, each_way: args.each_way };
    let relay = Relay::bind(delay).map_err(|error| {
        Failure::runtime(format!(
            "cannot listen on {}: {error}; choose another address with --listen",
            args.listen
        ))
    })?;
    let address =
        relay.address().map_err(|error| Failure::runtime(format!("the listener has no address: {error}")))?;
    anstream::println!("{address} is {}, {} away each way", args.to, show(args.each_way));
    relay.run();
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Concurrency,
    Verify,
    Crash,
    All,
}

/// The plans of one file, by gate.
struct Plans {
    concurrency: Option<Plan>,
    verify: Option<VerifyPlan>,
    crash: Option<CrashPlan>,
}

/// `None` after a dry run.
fn gates(args: &RunArgs, wanted: Wanted) -> Result<Option<Verdict>, Failure> {
    let mut plans = plans(&args.file, args.ca.as_deref(), wanted)?;
    if let (Some(plan), Some(_)) = (&mut plans.concurrency, args.rounds) {
        plan.concurrency.rounds = args.rounds;
    }
    if let (Some(plan), Some(pid)) = (&mut plans.concurrency, args.slow_pid) {
        let process = ProcessId::Is(pid);
        match &mut plan.slow {
            Some(slow) => slow.process = process,
            None => plan.slow = Some(SlowPlan::of(process)),
        }
    }
    let allowance = Allowance { owned: args.i_own_the_target_and_accept, time: args.at_most };
    let concurrency = plans.concurrency.as_ref().map(|plan| (plan, concurrency::estimate(plan)));
    let verify = plans.verify.as_ref().map(|plan| (plan, verify::estimate(plan)));
    let crash = plans.crash.as_ref().map(|plan| (plan, crash::estimate(plan)));
    if args.dry_run {
        if let Some((plan, estimate)) = concurrency {
            terminal::dry_run(plan, estimate);
        }
        if let Some((plan, estimate)) = verify {
            terminal::dry_verify(plan, estimate);
        }
        if let Some((plan, estimate)) = crash {
            terminal::dry_crash(plan, estimate);
        }
        return Ok(None);
    }
    let reached = concurrency
        .iter()
        .map(|(plan, estimate)| (plan.bases.clone(), *estimate))
        .chain(verify.iter().map(|(plan, estimate)| (plan.bases.clone(), *estimate)))
        .chain(crash.iter().map(|(plan, estimate)| (plan.all_bases(), *estimate)));
    for (bases, estimate) in reached {
        permit(&bases, estimate, &allowance).map_err(|refused| Failure::usage(refused.0))?;
    }
    let seed = match args.seed {
        Some(seed) => seed,
        None => {
            getrandom::u64().map_err(|error| Failure::runtime(format!("no randomness for keys: {error}")))?
                % SEED_MAX
        }
    };
    let mut reports = Vec::new();
    if let Some((plan, _)) = concurrency {
        let bar = Bar::new();
        let ran = concurrency::run(plan, &allowance, seed, &mut |progress| bar.show(&progress));
        reports.push(ran.map_err(|not_run| Failure::usage(not_run.0))?);
    }
    if let Some((plan, _)) = verify {
        let bar = Bar::new();
        reports.push(verify::run(plan, &allowance, seed, &mut |progress| bar.show(&progress)));
    }
    if let Some((plan, _)) = crash {
        let bar = Bar::new();
        let ran = crash::run(plan, &allowance, seed, &mut |progress| bar.show(&progress));
        reports.push(ran.map_err(|not_run| Failure::usage(not_run.0))?);
    }
    emit(&reports, args)?;
    Ok(reports.iter().map(|report| report.verdict).max())
}

/// Reads the file for each gate that is wanted. `all` leaves out what the file has nothing for.
fn plans(path: &Path, ca: Option<&Path>, wanted: Wanted) -> Result<Plans, Failure> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "{file} cannot be read: {error}; name a plan (`retrysafe gate --help` shows one)"
        ))
    })?;
    let ca = ca.map(|path| path.display().to_string());
    let outside = Outside {
        ca: ca.as_deref(),
        env: &|name| std::env::var(name).ok(),
        file: &|path| std::fs::read_to_string(path).map_err(|error| error.to_string()),
    };
    let has = |table: &str| text.lines().any(|line| line.trim_start().starts_with(table));
    let all = wanted == Wanted::All;
    // A plan that kills the API starts it too, and the gates before it need one that runs: `all` leaves that to its own command.
    let concurrency = wanted == Wanted::Concurrency || (all && (has("[request]") || !has("[[claim]]")));
    let verify = wanted == Wanted::Verify || (all && has("[[claim]]"));
    let crash = wanted == Wanted::Crash;
    Ok(Plans {
        concurrency: concurrency
            .then(|| Plan::parse_with(&text, &file, outside))
            .transpose()
            .map_err(Failure::usage)?,
        verify: verify
            .then(|| VerifyPlan::parse_with(&text, &file, outside))
            .transpose()
            .map_err(Failure::usage)?,
        crash: crash
            .then(|| CrashPlan::parse_with(&text, &file, outside))
            .transpose()
            .map_err(Failure::usage)?,
    })
}

fn emit(reports: &[Report], args: &RunArgs) -> Result<(), Failure> {
    let json = match reports {
        [one] => serde_json::to_string_pretty(one),
        several => serde_json::to_string_pretty(several),
    };
    let json = json.map_err(|error| Failure::runtime(format!("the report is no JSON: {error}")))?;
    if args.json.as_ref().is_some_and(|path| path.as_os_str() == "-") {
        anstream::println!("{json}");
    } else {
        reports.iter().for_each(terminal::report);
        write(args.json.as_deref(), || Ok(json))?;
    }
    write(args.junit.as_deref(), || Ok(report::junit(reports)))?;
    write(args.html.as_deref(), || report::html(reports).map_err(Failure::runtime))
}

fn write(path: Option<&Path>, text: impl FnOnce() -> Result<String, Failure>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, text()?).map_err(|error| {
        Failure::runtime(format!("{} cannot be written: {error}; name another file", path.display()))
    })
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

    fn show(&self, progress: &Progress) {
        self.0.set_length(u64::from(progress.of));
        self.0.set_position(u64::from(progress.done));
        self.0.set_message(progress.what.clone());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
