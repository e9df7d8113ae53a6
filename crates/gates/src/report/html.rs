//! The report as one HTML page that needs nothing else, with the timeline drawn.

use minijinja::{Environment, value::Serde};
use serde::Serialize;

use super::{Counterexample, Report};

const PAGE: &str = include_str!("page.html");
/// Drawing units for the length of a round.
const WIDTH: f64 = 640.0;
const ROW: f64 = 16.0;

/// A request as a bar.
#[derive(Serialize)]
struct Bar {
    y: f64,
    from: f64,
    width: f64,
    /// What it was told, as a name of a colour.
    class: &'static str,
    label: String,
}

/// A counter-example, drawn.
#[derive(Serialize)]
struct Drawing {
    height: f64,
    end_ms: f64,
    bars: Vec<Bar>,
}

/// What the template sees.
#[derive(Serialize)]
struct Page<'a> {
    reports: &'a [Report],
    /// For each part of each report.
    drawings: Vec<Vec<Option<Drawing>>>,
    width: f64,
}

/// The page.
///
/// # Errors
/// The template does not fit the report: a fault of this crate.
pub fn html(reports: &[Report]) -> Result<String, String> {
    let mut environment = Environment::new();
    environment.add_template("page.html", PAGE).map_err(|error| format!("{error:#}"))?;
    let drawings: Vec<Vec<Option<Drawing>>> = reports
        .iter()
        .map(|report| report.parts.iter().map(|part| part.counterexample.as_ref().map(drawn)).collect())
        .collect();
    let template = environment.get_template("page.html").map_err(|error| format!("{error:#}"))?;
    let page = Page { reports, drawings, width: WIDTH };
    template.render(Serde(&page)).map_err(|error| format!("{error:#}"))
}

fn drawn(example: &Counterexample) -> Drawing {
    let end_ms = example.timeline.iter().map(|line| line.done_ms).fold(0.001, f64::max);
    let bars: Vec<Bar> = example
        .timeline
        .iter()
        .zip(0_u32..)
        .map(|(line, at)| Bar {
            y: f64::from(at) * ROW,
            from: line.complete_ms / end_ms * WIDTH,
            width: ((line.done_ms - line.complete_ms) / end_ms * WIDTH).max(1.0),
            // "in flight, 17 times" has the colour of "in flight".
            class: match line.told.split(',').next().unwrap_or_default() {
                _ if line.step == "gate" || line.step == "call" => "event",
                "success" => "success",
                "in flight" | "conflict" | "not now" => "waits",
                "mismatch" => "mismatch",
                _ => "other",
            },
            label: format!(
                "{} {}: {} {} ({:.2} to {:.2} ms, {})",
                line.step,
                line.request,
                line.status.map_or_else(|| "-".to_owned(), |status| status.to_string()),
                line.told,
                line.complete_ms,
                line.done_ms,
                line.base
            ),
        })
        .collect();
    let height = f64::from(u32::try_from(bars.len()).unwrap_or(u32::MAX)) * ROW;
    Drawing { height, end_ms, bars }
}
