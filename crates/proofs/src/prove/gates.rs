//! gates.N: gates that have failed before they pass.

mod crashed;
pub(super) mod mutants;
pub(super) mod natural;
pub(super) mod ours;
pub(super) mod peers;

use std::time::Duration;

use anyhow::{Context, Result};
use retrysafe_gates::concurrency;
use retrysafe_gates::plan::Plan;
use retrysafe_gates::report::Report;
use retrysafe_gates::safety::Allowance;

/// The targets are this machine's, and a proof has all the time that it needs.
const ALLOWANCE: Allowance = Allowance { owned: None, time: Duration::from_secs(3_600) };

/// A plan from its text.
fn plan(text: &str) -> Result<Plan> {
    Plan::parse(text, "gates.toml").map_err(|faults| anyhow::anyhow!("{faults}"))
}

/// Runs the concurrency gate.
fn gate(plan: &Plan, seed: u64) -> Result<Report> {
    concurrency::run(plan, &ALLOWANCE, seed & 0xff_ffff, &mut |_| ())
        .map_err(|not_run| anyhow::anyhow!(not_run.0))
}

/// Prints what the parts of a report say that is no PASS.
fn print_findings(report: &Report) -> Result<()> {
    for part in &report.parts {
        for said in part.said.iter().chain(&part.change) {
            println!("  {}: {said}", part.id);
        }
        if let Some(example) = &part.counterexample {
            println!("  {}: {}", part.id, serde_json::to_string(example).context("a counter-example")?);
        }
    }
    Ok(())
}
