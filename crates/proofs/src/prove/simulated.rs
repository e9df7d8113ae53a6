//! client.5: `retrysafe simulate` gives the published numbers, and shows a storm with and without budgets.
//!
//! The command itself runs, and what it prints is held against the tables in `vectors/retry`.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Scale;
use crate::{subjects, tools};

/// The published table is met to within this part (V8).
const OCC_TOLERANCE: f64 = 0.03;
/// The table holds means of this many runs: some of its own times are off by more than a percent, which runs of ours do not mend.
const OCC_TABLE_RUNS: f64 = 400.0;
/// So a mean may be off by this many standard errors of the difference more,
const OCC_ERRORS: f64 = 2.0;
/// and this part of them may not.
const OCC_WITHIN_MIN: f64 = 0.95;
/// Retries for each call are met to within this (V4).
const BUCKET_TOLERANCE: f64 = 0.01;
/// The load that a fleet's budget may add up to, in any ten seconds.
const FLEET_LOAD_MAX: f64 = 1.25;
/// Without a budget the load is about one request for each attempt.
const STORM_LOAD_MIN: f64 = 3.0;
/// One call and three retries.
const ATTEMPTS: &str = "4";
const INSTANCES: &str = "100";
const BUDGETS: [&str; 5] = ["budget=none", "budget=bucket", "budget=ratio", "budget=process", "budget=fleet"];
/// The quick tier leaves out the rows with many clients: they have the most events.
const QUICK_CLIENTS_MAX: u64 = 50;

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let published = published(scale)?;
    let bucket = bucket()?;
    let storm = storm()?;
    Ok(published && bucket && storm)
}

/// Runs `retrysafe simulate` and gives what it printed.
fn simulate(args: &[&str]) -> Result<Vec<u8>> {
    let output =
        Command::new(subjects::retrysafe()?).arg("simulate").args(args).output().context("retrysafe")?;
    ensure!(output.status.success(), "simulate {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

fn simulated(args: &[&str]) -> Result<Value> {
    serde_json::from_slice(&simulate(args)?).context("what simulate printed")
}

fn vectors(name: &str) -> Result<Value> {
    let path = tools::root().join("vectors/retry").join(name);
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&bytes).with_context(|| path.display().to_string())
}

/// V8, from another seed in each run.
fn published(scale: Scale) -> Result<bool> {
    let table = vectors("occ.json")?;
    let wanted = |row: &&Value| !scale.quick() || row["clients"].as_u64() <= Some(QUICK_CLIENTS_MAX);
    let rows: Vec<&Value> = table["rows"].as_array().context("rows")?.iter().filter(wanted).collect();
    let clients: Vec<String> = rows.iter().map(|row| row["clients"].to_string()).collect();
    let (runs, seed) = (scale.of(4_000, 400).to_string(), (scale.seed % 1_000_000_000).to_string());
    let args = ["occ", "--json", "--clients", &clients.join(","), "--runs", &runs, "--seed", &seed];
    let found = simulated(&args)?;
    let found = found["rows"].as_array().context("rows of simulate")?;
    let strategies = table["strategies"].as_array().context("strategies")?;
    let run_count: f64 = runs.parse()?;
    let mut worst = (0.0_f64, String::new());
    let (mut cells, mut within, mut holds) = (0_u32, 0_u32, true);
    for row in rows {
        for (place, strategy) in strategies.iter().enumerate() {
            let same = |cell: &&Value| cell["clients"] == row["clients"] && cell["strategy"] == *strategy;
            let cell = found.iter().find(same).context("a cell of the table was not simulated")?;
            for (what, error) in [("time_ms", "time_error_ms"), ("calls", "calls_error")] {
                let expected = row[what][place].as_f64().context(what)?;
                let (mean, error) =
                    (cell[what].as_f64().context(what)?, cell[error].as_f64().context(error)?);
                let difference_error = error * (1.0 + run_count / OCC_TABLE_RUNS).sqrt();
                let off = (mean - expected).abs();
                if off > OCC_TOLERANCE * expected + OCC_ERRORS * difference_error {
                    println!("  {} clients, {strategy}, {what}: {mean:.1}, not {expected}", row["clients"]);
                    holds = false;
                }
                cells += 1;
                within += u32::from(off <= OCC_TOLERANCE * expected);
                if off / expected > worst.0 {
                    worst = (off / expected, format!("{} clients, {strategy}, {what}", row["clients"]));
                }
            }
        }
    }
    let (off, at) = (worst.0 * 100.0, worst.1);
    println!("V8: {within} of {cells} means of {runs} runs within 3%, at most {off:.1}% off ({at})");
    let enough = scale.quick() || f64::from(within) >= OCC_WITHIN_MIN * f64::from(cells);
    Ok(holds && enough && cells > 0)
}

/// V4, to the tolerance that the vectors state.
fn bucket() -> Result<bool> {
    let table = vectors("fleet.json")?;
    let rates = table["rates"].as_array().context("rates")?;
    let list: Vec<String> = rates.iter().map(|row| row["failures"].to_string()).collect();
    let list = list.join(",");
    let found = simulated(&[
        "failures",
        "--json",
        "--rates",
        &list,
        "--budget",
        "bucket,bucket-5",
        "--calls",
        "100000",
    ])?;
    let found = found["rows"].as_array().context("rows of simulate")?;
    let (mut worst, mut cells) = (0.0_f64, 0);
    for row in rates {
        for (budget, cost) in [("bucket", "cost_14"), ("bucket-5", "cost_5")] {
            let same = |cell: &&Value| {
                cell["failure_rate"].as_f64() == row["failures"].as_f64() && cell["budget"] == *budget
            };
            let cell = found.iter().find(same).context("a rate was not simulated")?;
            let retries = cell["retries_per_call"].as_f64().context("retries_per_call")?;
            worst = worst.max((retries - row[cost].as_f64().context(cost)?).abs());
            cells += 1;
        }
    }
    println!("V4: {cells} rates of retries, at most {worst:.4} off");
    Ok(worst <= BUCKET_TOLERANCE && cells > 0)
}

/// A hundred instances and three retries through an outage in which the server hangs.
fn storm() -> Result<bool> {
    let scratch = tempfile::tempdir()?;
    let plot = scratch.path().join("storm.svg");
    let file = plot.to_str().context("the path of the plot")?;
    let args = [
        "outage",
        "--json",
        "--instances",
        INSTANCES,
        "--attempts",
        ATTEMPTS,
        "--compare",
        "budgets",
        "--plot",
        file,
    ];
    let bytes = simulate(&args)?;
    let again = simulate(&args)?;
    let found: Value = serde_json::from_slice(&bytes).context("what simulate printed")?;
    let cases = found["cases"].as_array().context("cases")?;
    let load = |name: &str, over: &str| {
        let case = cases.iter().find(|case| case["case"] == name).context("a case is missing")?;
        case[over].as_f64().context("a load")
    };
    let svg = std::fs::read_to_string(&plot)?;
    let mut holds = bytes == again;
    for name in BUDGETS {
        let (ten, one) = (load(name, "load_max_10s")?, load(name, "load_max_1s")?);
        let case = cases.iter().find(|case| case["case"] == name).context("a case is missing")?;
        let recovered =
            case["recovered_s"].as_u64().map_or("never".to_owned(), |after| format!("after {after} s"));
        println!("  {name:<16} load {ten:.2}x over 10 s, {one:.2}x in one; recovered {recovered}");
        holds &= svg.contains(name);
    }
    let (storm, fleet) = (load("budget=none", "load_max_10s")?, load("budget=fleet", "load_max_10s")?);
    holds &= storm >= STORM_LOAD_MIN && fleet <= FLEET_LOAD_MAX;
    println!(
        "the storm is {storm:.2} times the load without a budget and {fleet:.2} with a fleet's; one plot of both, same seed same bytes: {}",
        if bytes == again { "yes" } else { "NO" }
    );
    Ok(holds)
}
