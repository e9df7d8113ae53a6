//! Samples into figures: medians, ratios within one run, bounds. Pure.
//!
//! Absolute numbers of a shared machine mean nothing; the ratio of two contestants in the same round does.
//! The figure of a row is the median of its per-round ratios, with the lowest and highest beside it.

use serde_json::{Value, json};

/// One contestant's run in one round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
    /// Processor microseconds per request, by process.
    pub(crate) cpu_us: Vec<(String, f64)>,
}

/// What a ratio must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    pub(crate) fn holds(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(bound) => ratio >= bound,
            Self::AtMost(bound) => ratio <= bound,
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
            Self::AtMost(bound) => write!(f, "<= {bound}"),
        }
    }
}

/// One line of the bench.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) baseline: String,
    pub(crate) ratio: f64,
    pub(crate) spread: (f64, f64),
    pub(crate) bound: Option<Bound>,
    /// What was measured, for people: requests/s, microseconds, memory.
    pub(crate) detail: String,
}

impl Row {
    pub(crate) fn holds(&self) -> bool {
        self.ratio.is_finite() && self.bound.is_none_or(|bound| bound.holds(self.ratio))
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "name": self.name,
            "ratio": rounded(self.ratio),
            "baseline": self.baseline,
            "spread": [rounded(self.spread.0), rounded(self.spread.1)],
            "bound": self.bound.map(|bound| bound.to_string()),
            "holds": self.holds(),
            "detail": self.detail,
        })
    }
}

fn rounded(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

/// The middle value; of an even count the lower middle, so that it is one that was measured.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// Median, lowest and highest of the per-round ratios of one measure to the same measure of a baseline.
pub(crate) fn ratio(
    contestant: &[Sample],
    baseline: &[Sample],
    measure: impl Fn(&Sample) -> f64,
) -> (f64, (f64, f64)) {
    let ratios: Vec<f64> =
        contestant.iter().zip(baseline).map(|(one, base)| measure(one) / measure(base)).collect();
    let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let high = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (median(&ratios), (low, high))
}

/// The median rate alone.
pub(crate) fn describe_rate(samples: &[Sample]) -> String {
    let rates: Vec<f64> = samples.iter().map(|sample| sample.per_second).collect();
    format!("{:.0} req/s", median(&rates))
}

/// A contestant's medians in one line.
pub(crate) fn describe(samples: &[Sample]) -> String {
    let of = |measure: fn(&Sample) -> f64| median(&samples.iter().map(measure).collect::<Vec<_>>());
    let mut text = format!(
        "{:.0} req/s, p50 {:.2} ms, p99 {:.2} ms",
        of(|sample| sample.per_second),
        of(|sample| sample.p50_us as f64) / 1000.0,
        of(|sample| sample.p99_us as f64) / 1000.0
    );
    for (index, (process, _)) in
        samples.first().map(|sample| sample.cpu_us.clone()).unwrap_or_default().iter().enumerate()
    {
        let values: Vec<f64> =
            samples.iter().filter_map(|sample| sample.cpu_us.get(index).map(|(_, cpu)| *cpu)).collect();
        text += &format!(", {process} {:.1} us", median(&values));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Vec<Sample> {
        values.iter().map(|value| Sample { per_second: *value, ..Sample::default() }).collect()
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The machine halves its speed in round two; the ratio does not move.
        let (one, base) = (samples(&[80.0, 40.0, 90.0]), samples(&[100.0, 50.0, 100.0]));
        let (middle, (low, high)) = ratio(&one, &base, |sample| sample.per_second);
        assert_eq!((middle, low, high), (0.8, 0.8, 0.9));
    }

    #[test]
    fn the_median_is_a_measured_value() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn bounds_decide_and_nothing_measured_never_holds() {
        let row = |ratio, bound| Row {
            name: "row".into(),
            baseline: "base".into(),
            ratio,
            spread: (ratio, ratio),
            bound,
            detail: String::new(),
        };
        assert!(row(0.85, Some(Bound::AtLeast(0.85))).holds());
        assert!(!row(0.84, Some(Bound::AtLeast(0.85))).holds());
        assert!(!row(1.31, Some(Bound::AtMost(1.3))).holds());
        assert!(row(9.0, None).holds());
        assert!(!row(f64::NAN, None).holds());
        assert_eq!(row(0.123_456, None).json()["ratio"], 0.1235);
    }
}
