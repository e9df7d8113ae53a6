//! Budgets against failure rates, told.

use serde_json::{Value, json};

use super::{Csv, Figure, Line, Panel, Report, percent};
use crate::simulate::failures::{Share, drains_above};

/// Costs of a transient retry whose buckets drain at a rate that can be computed.
const BUCKET_COSTS: [(&str, u32); 3] = [("bucket", 14), ("bucket-10", 10), ("bucket-5", 5)];

/// What every budget (columns) made of every failure rate (rows).
pub(in crate::simulate) fn failures(
    sender: &str,
    three_attempts: bool,
    budgets: &[String],
    rows: &[(f64, Vec<Share>)],
    (calls, seed): (u32, u64),
) -> Report {
    let mut csv = Csv::new(&["failure_rate", "budget", "retries_per_call", "succeeded"]);
    let mut list: Vec<Value> = Vec::new();
    for (rate, shares) in rows {
        for (budget, Share { retries_per_call, succeeded }) in budgets.iter().zip(shares) {
            csv.rows.push(vec![
                rate.to_string(),
                budget.clone(),
                format!("{retries_per_call:.4}"),
                format!("{succeeded:.4}"),
            ]);
            list.push(json!({
                "failure_rate": rate, "budget": budget, "retries_per_call": retries_per_call, "succeeded": succeeded,
            }));
        }
    }
    let panel = |title, y, of: fn(&Share) -> f64| {
        let line = |(place, budget): (usize, &String)| Line {
            name: budget.clone(),
            points: rows.iter().map(|(rate, shares)| (*rate, of(&shares[place]))).collect(),
        };
        Panel {
            title,
            x: "failures of attempts",
            y,
            lines: budgets.iter().enumerate().map(line).collect(),
            ..Panel::default()
        }
    };
    let row = |(rate, shares): &(f64, Vec<Share>)| {
        let cells = shares
            .iter()
            .map(|share| format!("{:.3} / {}", share.retries_per_call, percent(share.succeeded)));
        std::iter::once(percent(*rate)).chain(cells).collect()
    };
    let known =
        BUCKET_COSTS.iter().filter(|(name, _)| three_attempts && budgets.iter().any(|budget| budget == name));
    let drains: Vec<String> =
        known.map(|(name, cost)| format!("{name} drains above {}", percent(drains_above(*cost)))).collect();
    Report {
        headline: format!(
            "{calls} calls of sender {sender}, one after the other, each attempt failing by chance: retries for each call / calls \
             that succeed (seed {seed})"
        ),
        columns: std::iter::once("failures")
            .chain(budgets.iter().map(String::as_str))
            .map(str::to_owned)
            .collect(),
        rows: rows.iter().map(row).collect(),
        notes: if drains.is_empty() { Vec::new() } else { vec![format!("{}.", drains.join(", "))] },
        json: json!({ "model": "failures", "seed": seed, "calls": calls, "sender": sender, "rows": list }),
        csv,
        figure: Figure::of(
            format!("What budgets make of failures ({sender})"),
            2,
            vec![
                panel("Retries", "retries for each call", |share| share.retries_per_call),
                panel("Success", "calls that succeed", |share| share.succeeded),
            ],
        ),
    }
}
