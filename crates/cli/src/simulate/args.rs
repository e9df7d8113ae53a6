//! The options of `retrysafe simulate`, and what they stand for.

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use retrysafe_core::{
    contract::{Contract, read_duration},
    retry::RetryPolicy,
};

#[cfg(feature = "plots")]
use super::plot::Format;
use super::{
    cases::{self, BUDGETS, COMPARISONS, Case, KEYS, Key, SENDERS, Sender},
    occ::{self, Strategy},
    outage::{Fault, Outage, Scenario, Spec},
};
use crate::failure::Failure;

/// Instances, clients and runs of one command: beyond them it would run for hours.
const INSTANCES_MAX: u32 = 100_000;
const CALLS_MAX: f64 = 20_000_000.0;

/// What becomes of the results.
#[derive(Args, Debug)]
pub(super) struct OutputArgs {
    /// What chance is drawn from; the same seed gives the same bytes
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(super) seed: u64,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(super) json: bool,
    /// Write the numbers to this file as CSV
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,
    /// Draw the figure into this file: NAME.svg or NAME.png. May be given twice
    #[arg(long, value_name = "FILE")]
    pub(super) plot: Vec<PathBuf>,
}

impl OutputArgs {
    /// Refuses before minutes are spent what could not be written after them.
    pub(super) fn check(&self) -> Result<(), Failure> {
        #[cfg(feature = "plots")]
        for path in &self.plot {
            format(path)?;
        }
        for path in self.plot.iter().chain(&self.csv) {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(Failure::usage(format!(
                    "{}: there is no such folder; make it first",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

/// The format that a file's name asks for.
#[cfg(feature = "plots")]
pub(super) fn format(path: &Path) -> Result<Format, Failure> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => Ok(Format::Svg),
        Some("png") => Ok(Format::Png),
        _ => Err(Failure::usage(format!("--plot {}: name a file that ends in .svg or .png", path.display()))),
    }
}

/// A fleet of clients, a server with a queue, and an outage
///
/// Every instance makes calls at random moments. The server has workers and a queue; it does not know who still waits, so
/// what a client has given up on is worked on all the same. Each case meets the same calls and the same outage.
///
/// A case is a line of FIELD=VALUE, comma between them: sender=NAME (who decides, and sleeps how long), budget=NAME,
/// key=NAME, layers=N (loops around each other, each with this sender), attempts=N, name=TEXT.
#[derive(Args, Debug)]
#[command(after_long_help = names())]
pub(super) struct OutageArgs {
    /// A ready-made comparison: budgets, presets, backoffs, keys, layers
    #[arg(long, value_name = "NAME", default_value = "budgets", conflicts_with = "case")]
    compare: String,
    /// A case of your own; may be given many times
    #[arg(long, value_name = "LINE")]
    case: Vec<String>,
    /// Who sends, where a case does not say
    #[arg(long, value_name = "NAME", default_value = "retrysafe", conflicts_with = "contract")]
    sender: String,
    /// Take the numbers of the sender from the client part of this contract
    #[arg(long, value_name = "FILE")]
    contract: Option<PathBuf>,
    /// Attempts of a call, the first included, where a case does not say
    #[arg(long, value_name = "N")]
    attempts: Option<NonZeroU32>,
    /// Keys, where a case does not say: honoured, ignored, absent
    #[arg(long, value_name = "NAME", default_value = "ignored")]
    key: String,
    /// Processes that call the server
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=i64::from(INSTANCES_MAX)))]
    instances: u32,
    /// Calls a second of one instance
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = positive)]
    rate: f64,
    /// How long calls begin
    #[arg(long, value_name = "TIME", default_value = "90s", value_parser = some_time)]
    duration: Duration,
    /// Requests that the server works on at the same time
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..=i64::from(INSTANCES_MAX)))]
    workers: u32,
    /// How long it takes for one, on average
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = some_time)]
    service: Duration,
    /// Requests that may wait for it; one more is answered 503
    #[arg(long, value_name = "N", default_value_t = 3_000)]
    queue: usize,
    /// One way through the network
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = read_duration)]
    hop: Duration,
    /// A client gives up on an attempt after this
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = some_time)]
    timeout: Duration,
    /// What the outage is like
    #[arg(long, value_enum, default_value_t = Fault::Hang)]
    fault: Fault,
    /// When it begins
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = read_duration)]
    outage_at: Duration,
    /// How long it lasts; 0s: there is none
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = read_duration)]
    outage_for: Duration,
    /// The part of all requests that fails with 503 before anything was done, 0 to 1
    #[arg(long, value_name = "PART", default_value_t = 0.0, value_parser = part)]
    failure_rate: f64,
    /// The part of all answers that gets lost after the work was done, 0 to 1
    #[arg(long, value_name = "PART", default_value_t = 0.0, value_parser = part)]
    lost_answers: f64,
    /// The server skips requests whose clients have given up, as one does that is told the deadline
    #[arg(long)]
    drop_abandoned: bool,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl OutageArgs {
    pub(super) fn scenario(&self) -> Result<Scenario, Failure> {
        let outage = Outage { fault: self.fault, at: self.outage_at, length: self.outage_for };
        let scenario = Scenario {
            instances: self.instances,
            rate: self.rate,
            duration: self.duration,
            server: Spec {
                workers: self.workers,
                service: self.service,
                queue: self.queue,
                drops_abandoned: self.drop_abandoned,
                failure_rate: self.failure_rate,
                lost_answers: self.lost_answers,
                keyed: false,
            },
            hop: self.hop,
            timeout: self.timeout,
            outage: (!self.outage_for.is_zero()).then_some(outage),
            seed: self.output.seed,
        };
        let calls = scenario.offered() * scenario.duration.as_secs_f64();
        if calls > CALLS_MAX {
            return Err(Failure::usage(format!(
                "{calls:.0} calls are more than {CALLS_MAX:.0}; lower --instances, --rate or --duration"
            )));
        }
        if scenario.outage.is_some_and(|outage| outage.end() > scenario.duration) {
            return Err(Failure::usage(
                "the outage ends after --duration: nothing would be seen of what follows it",
            ));
        }
        Ok(scenario)
    }

    pub(super) fn cases(&self) -> Result<Vec<Case>, Failure> {
        let mut sender = match &self.contract {
            Some(path) => Sender { policy: policy_of(path)?, delays: None },
            None => named_sender(&self.sender)?,
        };
        if let Some(attempts) = self.attempts {
            sender = sender.with_attempts(attempts);
        }
        let rules =
            cases::rules("none").ok_or_else(|| Failure::runtime("there is no way to have no budget"))?;
        let base = Case { name: String::new(), sender, rules, key: self.key()?, layers: 1 };
        let known = COMPARISONS.iter().any(|(name, _)| *name == self.compare);
        if !known {
            let names = COMPARISONS.iter().map(|(name, _)| *name);
            return Err(Failure::usage(format!(
                "--compare: {}",
                cases::unknown("comparison", &self.compare, names)
            )));
        }
        let lines: Vec<&str> = if self.case.is_empty() {
            cases::comparison(&self.compare).to_vec()
        } else {
            self.case.iter().map(String::as_str).collect()
        };
        let read = |line: &&str| {
            Case::read(line, &base).map_err(|wrong| Failure::usage(format!("--case {line}: {wrong}")))
        };
        lines.iter().map(read).collect()
    }

    fn key(&self) -> Result<Key, Failure> {
        let found = KEYS.iter().find(|(name, ..)| *name == self.key).map(|(.., key)| *key);
        let names = KEYS.iter().map(|(name, ..)| *name);
        found.ok_or_else(|| Failure::usage(format!("--key: {}", cases::unknown("key", &self.key, names))))
    }
}

/// Calls on one budget, one after the other, each attempt failing by chance
///
/// Shows where a budget begins to ration: above some failure rate a bucket pays more for retries than successes bring back.
#[derive(Args, Debug)]
#[command(after_long_help = names())]
pub(super) struct FailuresArgs {
    /// Failure rates of attempts, 0 to 1, comma between them
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = part,
          default_values_t = [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])]
    pub(super) rates: Vec<f64>,
    /// Budgets to compare, comma between them
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["none", "bucket", "bucket-5", "ratio", "process", "throttle"])]
    budget: Vec<String>,
    /// Who sends
    #[arg(long, value_name = "NAME", default_value = "aws-2.1")]
    pub(super) sender: String,
    /// Calls for each number
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(super) calls: u32,
    /// A call begins every so often
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = some_time)]
    pub(super) every: Duration,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl FailuresArgs {
    pub(super) fn sender(&self) -> Result<Sender, Failure> {
        named_sender(&self.sender)
    }

    pub(super) fn budgets(&self) -> Result<Vec<(String, cases::Rules)>, Failure> {
        let read = |name: &String| {
            let rules = cases::rules(name).filter(|rules| rules.fleet.is_none());
            let names = BUDGETS.iter().map(|(name, _)| *name).filter(|name| *name != "fleet");
            let rules = rules.ok_or_else(|| {
                Failure::usage(format!("--budget: {}", cases::unknown("budget", name, names)))
            })?;
            Ok((name.clone(), rules))
        };
        self.budget.iter().map(read).collect()
    }
}

/// The published simulation of backoff and jitter: clients that write one row
///
/// Each reads the row's version, writes with it, and backs off when somebody was quicker. The five published strategies, and
/// with `engine-full` and `engine-decorrelated` this project's engine in the same place.
#[derive(Args, Debug)]
pub(super) struct OccArgs {
    /// Numbers of clients, comma between them
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [10, 20, 30, 50, 70, 100, 130, 160, 190],
          value_parser = clap::value_parser!(u32).range(1..=5_000))]
    pub(super) clients: Vec<u32>,
    /// Strategies, comma between them: none, exponential, equal, full, decorrelated, engine-full, engine-decorrelated
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = ["none", "exponential", "equal", "full", "decorrelated"])]
    strategy: Vec<String>,
    /// Runs for each number; the means of more are closer
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) runs: u32,
    /// Base of the backoff
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = some_time)]
    pub(super) base: Duration,
    /// Cap of the backoff
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = some_time)]
    pub(super) cap: Duration,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl OccArgs {
    pub(super) fn strategies(&self) -> Result<Vec<(&'static str, Strategy)>, Failure> {
        let all = occ::strategies(self.base, self.cap);
        let find = |name: &String| {
            let names = all.iter().map(|(known, _)| *known);
            let found = all.iter().find(|(known, _)| known == name).copied();
            found.ok_or_else(|| {
                Failure::usage(format!("--strategy: {}", cases::unknown("strategy", name, names)))
            })
        };
        self.strategy.iter().map(find).collect()
    }
}

fn named_sender(name: &str) -> Result<Sender, Failure> {
    let names = SENDERS.iter().map(|(name, _)| *name);
    cases::sender(name)
        .ok_or_else(|| Failure::usage(format!("--sender: {}", cases::unknown("sender", name, names))))
}

fn policy_of(path: &Path) -> Result<RetryPolicy, Failure> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("{file} cannot be read: {error}; name a contract with --contract"))
    })?;
    let contract = Contract::parse(&text, &file).map_err(Failure::usage)?;
    Ok(RetryPolicy::from(&contract.client))
}

fn some_time(text: &str) -> Result<Duration, String> {
    let time = read_duration(text)?;
    if time.is_zero() { Err("it has to be longer than nothing".to_owned()) } else { Ok(time) }
}

fn part(text: &str) -> Result<f64, String> {
    let part: Option<f64> = text.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    part.ok_or_else(|| format!("{text:?} is not between 0 and 1"))
}

fn positive(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("{text:?} is no number above 0"))
}

/// The names that options take, for `--help`.
fn names() -> String {
    let list = |what: &str, names: Vec<(&str, &str)>| {
        let lines: String = names.iter().map(|(name, meaning)| format!("  {name:<14} {meaning}\n")).collect();
        format!("{what}:\n{lines}\n")
    };
    let mut text = list("Comparisons", COMPARISONS.to_vec());
    text.push_str(&list("Senders", SENDERS.to_vec()));
    text.push_str(&list("Budgets", BUDGETS.to_vec()));
    text.push_str(&list("Keys", KEYS.iter().map(|(name, meaning, _)| (*name, *meaning)).collect()));
    text.push_str("The senders of others take part with their attempts, statuses and sleeps; timeouts are the scenario's for all.");
    text
}
