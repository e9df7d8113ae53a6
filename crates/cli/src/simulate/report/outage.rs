//! A fleet's outage, told.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Csv, Figure, Line, Panel, Report, percent};
use crate::simulate::{
    cases::Case,
    outage::{BIN, Scenario, Tally},
};

/// The load is judged over this long: the window of the budgets.
const WINDOW_S: usize = 10;

/// What came of every case.
pub(in crate::simulate) fn outage(scenario: &Scenario, cases: &[(Case, Tally)]) -> Report {
    let capacity = scenario.server.capacity();
    let headline = format!(
        "{} instances send {:.0} calls a second to a server that can do {capacity:.0} (timeout {:?}, queue {}){} (seed {})",
        scenario.instances,
        scenario.offered(),
        scenario.timeout,
        scenario.server.queue,
        scenario.outage.map_or_else(String::new, |outage| format!(
            "; from {:?} to {:?} it is out: {}",
            outage.at,
            outage.end(),
            format!("{:?}", outage.fault).to_lowercase()
        )),
        scenario.seed,
    );
    let columns = [
        "case",
        "calls",
        "succeed",
        "load 10 s",
        "load 1 s",
        "recovered",
        "p50",
        "p99",
        "wasted",
        "duplicates",
        "in flight",
        "unknown",
        "by budget",
    ];
    Report {
        headline,
        columns: columns.map(str::to_owned).to_vec(),
        rows: cases.iter().map(|(case, tally)| row(scenario, case, tally)).collect(),
        notes: vec![
            "load: requests for each call, in the worst 10 s and the worst second. recovered: seconds after the outage until nine in"
                .to_owned(),
            "ten calls succeed for good. wasted: work done for clients that had given up. unknown: ended with \"it may have happened\"."
                .to_owned(),
        ],
        json: json!({
            "model": "outage", "seed": scenario.seed, "instances": scenario.instances, "rate": scenario.rate,
            "capacity": capacity, "cases": cases.iter().map(|(case, tally)| full(scenario, case, tally)).collect::<Vec<_>>(),
        }),
        csv: seconds(cases),
        figure: figure(scenario, cases),
    }
}

/// Seconds until recovery, or why there is no number.
fn recovery(scenario: &Scenario, tally: &Tally) -> Option<Option<Duration>> {
    scenario.outage.map(|outage| tally.recovered(outage.end()))
}

fn wasted(tally: &Tally) -> f64 {
    let (wasted, useful) = (tally.sum(|bin| bin.wasted), tally.sum(|bin| bin.useful));
    wasted as f64 / (wasted + useful).max(1) as f64
}

fn row(scenario: &Scenario, case: &Case, tally: &Tally) -> Vec<String> {
    let calls = tally.sum(|bin| bin.calls);
    let recovered = match recovery(scenario, tally) {
        None => "-".to_owned(),
        Some(None) => "never".to_owned(),
        Some(Some(after)) => format!("{} s", after.as_secs()),
    };
    let ms = |part| format!("{} ms", tally.latency(part).as_millis());
    vec![
        case.name.clone(),
        calls.to_string(),
        percent(tally.ends.done as f64 / calls.max(1) as f64),
        format!("{:.2}x", tally.load_max(WINDOW_S)),
        format!("{:.2}x", tally.load_max(1)),
        recovered,
        ms(0.5),
        ms(0.99),
        percent(wasted(tally)),
        tally.sum(|bin| bin.duplicates).to_string(),
        tally.sum(|bin| bin.conflicts).to_string(),
        tally.ends.unknown.to_string(),
        tally.ends.budget.to_string(),
    ]
}

fn full(scenario: &Scenario, case: &Case, tally: &Tally) -> Value {
    let ends = tally.ends;
    let second = |(place, bin): (usize, &crate::simulate::outage::Bin)| {
        json!({
            "second": place, "calls": bin.calls, "succeeded": bin.succeeded, "attempts": bin.attempts, "useful": bin.useful,
            "wasted": bin.wasted, "duplicates": bin.duplicates, "in_flight": bin.conflicts, "replays": bin.replays,
            "rejected": bin.rejected, "queue_max": bin.queue,
        })
    };
    json!({
        "case": case.name,
        "attempts_max": case.sender.policy.attempts,
        "layers": case.layers,
        "calls": tally.sum(|bin| bin.calls),
        "attempts": tally.sum(|bin| bin.attempts),
        "load_max_10s": tally.load_max(WINDOW_S),
        "load_max_1s": tally.load_max(1),
        "recovered_s": recovery(scenario, tally).flatten().map(|after| after.as_secs()),
        "latency_p50_ms": tally.latency(0.5).as_secs_f64() * 1_000.0,
        "latency_p99_ms": tally.latency(0.99).as_secs_f64() * 1_000.0,
        "wasted_share": wasted(tally),
        "duplicates": tally.sum(|bin| bin.duplicates),
        "in_flight": tally.sum(|bin| bin.conflicts),
        "replays": tally.sum(|bin| bin.replays),
        "rejected": tally.sum(|bin| bin.rejected),
        "ended": {
            "done": ends.done, "attempts": ends.attempts, "budget": ends.budget, "deadline": ends.deadline, "rule": ends.rule,
            "unknown": ends.unknown,
        },
        "seconds": tally.bins.iter().enumerate().map(second).collect::<Vec<_>>(),
    })
}

fn seconds(cases: &[(Case, Tally)]) -> Csv {
    let mut csv = Csv::new(&[
        "case",
        "second",
        "calls",
        "succeeded",
        "attempts",
        "useful",
        "wasted",
        "duplicates",
        "in_flight",
        "replays",
        "rejected",
        "queue_max",
    ]);
    for (case, tally) in cases {
        for (place, bin) in tally.bins.iter().enumerate() {
            let numbers = [
                bin.calls,
                bin.succeeded,
                bin.attempts,
                bin.useful,
                bin.wasted,
                bin.duplicates,
                bin.conflicts,
                bin.replays,
                bin.rejected,
                bin.queue,
            ];
            let cells = numbers.iter().map(u64::to_string);
            csv.rows.push([case.name.clone(), place.to_string()].into_iter().chain(cells).collect());
        }
    }
    csv
}

fn figure(scenario: &Scenario, cases: &[(Case, Tally)]) -> Figure {
    let shown = usize::try_from(scenario.duration.as_secs()).unwrap_or(usize::MAX);
    let shaded = scenario.outage.map(|outage| (outage.at.as_secs_f64(), outage.end().as_secs_f64()));
    let panel = |title, y, heights: &dyn Fn(&Tally) -> Vec<f64>| {
        let line = |(case, tally): &(Case, Tally)| {
            let middle = |(place, height): (usize, f64)| (place as f64 + BIN.as_secs_f64() / 2.0, height);
            Line {
                name: case.name.clone(),
                points: heights(tally).into_iter().take(shown).enumerate().map(middle).collect(),
            }
        };
        Panel { title, x: "seconds", y, lines: cases.iter().map(line).collect(), shaded, ..Panel::default() }
    };
    let rate = |of: fn(&crate::simulate::outage::Bin) -> u64| {
        move |tally: &Tally| tally.bins.iter().map(|bin| of(bin) as f64).collect::<Vec<f64>>()
    };
    let total = |of: fn(&crate::simulate::outage::Bin) -> u64| {
        move |tally: &Tally| {
            let sums = tally.bins.iter().scan(0, |sum, bin| {
                *sum += of(bin);
                Some(*sum as f64)
            });
            sums.collect::<Vec<f64>>()
        }
    };
    let load = panel("Load", "requests a second", &rate(|bin| bin.attempts));
    let success = panel("Success", "% of calls that begin", &|tally| {
        tally.bins.iter().map(|bin| bin.succeeded as f64 * 100.0 / bin.calls.max(1) as f64).collect()
    });
    Figure::of(
        "An outage, and what retries make of it",
        2,
        vec![
            Panel { mark: Some((scenario.server.capacity(), "capacity")), ..load },
            success,
            panel("Queue", "requests that wait, at most", &rate(|bin| bin.queue)),
            panel("Wasted work", "a second, nobody waits for it", &rate(|bin| bin.wasted)),
            panel("Duplicates", "second effects so far", &total(|bin| bin.duplicates)),
            panel("In-flight conflicts", "409 answers a second", &rate(|bin| bin.conflicts)),
        ],
    )
}
