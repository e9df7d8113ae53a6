//! The published simulation, told.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Csv, Figure, Line, Panel, Report};
use crate::simulate::occ::Mean;

/// The means of every strategy (columns) at every number of clients (rows).
pub(in crate::simulate) fn occ(
    names: &[&'static str],
    rows: &[(u32, Vec<Mean>)],
    (base, cap): (Duration, Duration),
    (runs, seed): (u32, u64),
) -> Report {
    let mut csv = Csv::new(&["clients", "strategy", "time_ms", "calls", "time_error_ms", "calls_error"]);
    let mut list: Vec<Value> = Vec::new();
    for (clients, means) in rows {
        for (name, mean) in names.iter().zip(means) {
            let Mean { time_ms, calls, time_error_ms, calls_error } = *mean;
            let numbers = [time_ms, calls, time_error_ms, calls_error].map(|number| format!("{number:.3}"));
            csv.rows.push([clients.to_string(), (*name).to_owned()].into_iter().chain(numbers).collect());
            list.push(json!({
                "clients": clients, "strategy": name, "time_ms": time_ms, "calls": calls,
                "time_error_ms": time_error_ms, "calls_error": calls_error,
            }));
        }
    }
    let panel = |title, y, of: fn(&Mean) -> f64| {
        let line = |(place, name): (usize, &&str)| Line {
            name: (*name).to_owned(),
            points: rows.iter().map(|(clients, means)| (f64::from(*clients), of(&means[place]))).collect(),
        };
        Panel {
            title,
            x: "clients",
            y,
            log_y: true,
            lines: names.iter().enumerate().map(line).collect(),
            ..Panel::default()
        }
    };
    let row = |(clients, means): &(u32, Vec<Mean>)| {
        let cells = means.iter().map(|mean| format!("{:.0} / {:.1}", mean.time_ms, mean.calls));
        std::iter::once(clients.to_string()).chain(cells).collect()
    };
    Report {
        headline: format!(
            "clients that write one row with optimistic concurrency: ms until all have written / writes of all \
             (base {base:?}, cap {cap:?}, means of {runs} runs, seed {seed})"
        ),
        columns: std::iter::once("clients").chain(names.iter().copied()).map(str::to_owned).collect(),
        rows: rows.iter().map(row).collect(),
        notes: vec![
            "Without backoff all are done first, for several times the writes. Full jitter needs the fewest writes; decorrelated"
                .to_owned(),
            "jitter is done sooner with few clients, for more writes. Backoff without jitter keeps the clients in step.".to_owned(),
        ],
        json: json!({
            "model": "occ", "seed": seed, "runs": runs,
            "base_ms": base.as_secs_f64() * 1_000.0, "cap_ms": cap.as_secs_f64() * 1_000.0, "rows": list,
        }),
        csv,
        figure: Figure::of("Optimistic writes to one row", 2, vec![
                panel("Calls", "writes of all clients", |mean| mean.calls),
                panel("Time", "ms until all have written", |mean| mean.time_ms),
            ]),
    }
}
