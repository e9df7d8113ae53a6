//! `retrysafe simulate`: what a retry policy does to a fleet, before it ships.
//!
//! Three models, from the smallest to the largest: clients that write one row ([`occ`]), calls that fail by chance on one
//! budget ([`failures`]), and a fleet with a server and an outage ([`outage`]). In each the retry engine of this project's
//! clients decides; the models are pure, with virtual time and chance drawn from a seed. [`args`] reads the options,
//! [`report`] makes one set of numbers a table, JSON, CSV and a figure, and [`plot`] draws it.

mod args;
mod cases;
mod chance;
mod failures;
mod occ;
mod outage;
#[cfg(feature = "plots")]
mod plot;
#[cfg_attr(not(feature = "plots"), expect(dead_code, reason = "a figure is made, and not drawn"))]
mod report;

use std::{io::IsTerminal, path::Path, time::Duration};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use retrysafe_core::retry::RetryPolicy;

use self::{
    args::{FailuresArgs, OccArgs, OutageArgs, OutputArgs},
    cases::Case,
    report::Report,
};
use crate::failure::Failure;

/// Show what a retry policy does to a fleet: calls, load, duplicates, and how long an outage lasts
///
/// Nothing is sent: time is virtual, and the retry engine of this project's clients decides about every call. The same seed
/// gives the same bytes.
#[derive(Args, Debug)]
#[command(after_help = "\
Try:
  retrysafe simulate outage                                       a storm, with and without budgets
  retrysafe simulate outage --compare keys --fault hang           what is done twice without a key
  retrysafe simulate outage --case sender=stripe-python --case sender=retrysafe,budget=fleet
  retrysafe simulate failures --plot failures.svg                 what budgets make of a failure rate
  retrysafe simulate occ --runs 60                                the published simulation of backoff and jitter

The guide: docs/guides/simulate.md")]
pub(crate) struct SimulateArgs {
    #[command(subcommand)]
    model: Model,
}

#[derive(Subcommand, Debug)]
enum Model {
    Outage(Box<OutageArgs>),
    Failures(FailuresArgs),
    Occ(OccArgs),
}

/// Runs the model and writes what was asked for.
pub(crate) fn run(args: &SimulateArgs) -> Result<(), Failure> {
    match &args.model {
        Model::Outage(args) => outage_of_a_fleet(args),
        Model::Failures(args) => failures_by_chance(args),
        Model::Occ(args) => optimistic_writes(args),
    }
}

fn outage_of_a_fleet(args: &OutageArgs) -> Result<(), Failure> {
    let scenario = args.scenario()?;
    let cases = args.cases()?;
    args.output.check()?;
    let length_s = scenario.duration.as_secs();
    let progress = Progress::new("simulating", length_s.saturating_mul(cases.len() as u64));
    let run = |(place, case): (usize, Case)| {
        let before = length_s.saturating_mul(place as u64);
        let tally = outage::run(&scenario, &case, |at| progress.at(before.saturating_add(at.as_secs())));
        (case, tally)
    };
    let results: Vec<_> = cases.into_iter().enumerate().map(run).collect();
    drop(progress);
    emit(&report::outage(&scenario, &results), &args.output)
}

fn failures_by_chance(args: &FailuresArgs) -> Result<(), Failure> {
    let sender = args.sender()?;
    let budgets = args.budgets()?;
    args.output.check()?;
    let progress = Progress::new("simulating", (args.rates.len() * budgets.len()) as u64);
    let row = |rate: &f64| {
        let cell = |(_, rules): &(String, cases::Rules)| {
            let share = failures::run(&sender, *rules, *rate, args.calls, args.every, args.output.seed);
            progress.step();
            share
        };
        (*rate, budgets.iter().map(cell).collect())
    };
    let rows: Vec<_> = args.rates.iter().map(row).collect();
    drop(progress);
    let names: Vec<String> = budgets.into_iter().map(|(name, _)| name).collect();
    let three = sender.policy.attempts == RetryPolicy::default().attempts;
    let report = report::failures(&args.sender, three, &names, &rows, (args.calls, args.output.seed));
    emit(&report, &args.output)
}

fn optimistic_writes(args: &OccArgs) -> Result<(), Failure> {
    let strategies = args.strategies()?;
    args.output.check()?;
    let progress = Progress::new("simulating", (args.clients.len() * strategies.len()) as u64);
    let row = |clients: &u32| {
        let mean = |(_, strategy): &(&str, occ::Strategy)| {
            let seeds = (0..args.runs).map(|run| args.output.seed.wrapping_add(u64::from(run)));
            let runs: Vec<occ::Run> = seeds.map(|seed| occ::run(*clients, *strategy, seed)).collect();
            progress.step();
            occ::Mean::of(&runs)
        };
        (*clients, strategies.iter().map(mean).collect())
    };
    let rows: Vec<_> = args.clients.iter().map(row).collect();
    drop(progress);
    let names: Vec<_> = strategies.iter().map(|(name, _)| *name).collect();
    emit(&report::occ(&names, &rows, (args.base, args.cap), (args.runs, args.output.seed)), &args.output)
}

/// Prints the report, and writes the files that were asked for.
fn emit(report: &Report, output: &OutputArgs) -> Result<(), Failure> {
    if output.json {
        anstream::println!("{}", report.json);
    } else {
        anstream::print!("{}", report.page());
    }
    if let Some(path) = &output.csv {
        report::write(path, report.csv.text().as_bytes())?;
    }
    for path in &output.plot {
        report::write(path, &drawn(report, path)?)?;
    }
    Ok(())
}

#[cfg(feature = "plots")]
fn drawn(report: &Report, path: &Path) -> Result<Vec<u8>, Failure> {
    let format = args::format(path)?;
    plot::draw(&report.figure, format)
        .map_err(|error| Failure::runtime(format!("{}: cannot be drawn: {error}", path.display())))
}

#[cfg(not(feature = "plots"))]
fn drawn(_: &Report, _: &Path) -> Result<Vec<u8>, Failure> {
    Err(Failure::usage(
        "--plot: this retrysafe was built without figures (feature `plots`); --csv has the numbers",
    ))
}

/// A bar on a terminal, nothing in a log.
struct Progress(ProgressBar);

impl Progress {
    fn new(what: &'static str, steps: u64) -> Self {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::new(steps) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:40} {percent}% {eta}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        bar.set_message(what);
        Self(bar)
    }

    fn step(&self) {
        self.0.inc(1);
    }

    fn at(&self, step: u64) {
        self.0.set_position(step);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    const PAGE: &str = include_str!("../../../docs/reference/simulate.md");

    /// The page of flags and the parser say the same.
    #[test]
    fn every_flag_has_a_row_and_every_row_a_flag() {
        let mut command = crate::Cli::command();
        // Flags that apply to all subcommands are made when the command is built.
        command.build();
        let simulate = command.find_subcommand("simulate").unwrap();
        let models = simulate.get_subcommands().filter(|model| model.get_name() != "help");
        let flags: BTreeSet<String> = models
            .flat_map(|model| {
                model.get_arguments().filter_map(|flag| flag.get_long().map(|name| format!("--{name}")))
            })
            .filter(|flag| !["--help", "--version"].contains(&flag.as_str()))
            .collect();
        let rows = PAGE.lines().filter(|line| line.starts_with("| `--"));
        let told: BTreeSet<String> = rows
            .flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`'))
            .filter(|part| part.starts_with("--"))
            .map(|part| part.split(' ').next().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(flags, told);
    }
}
