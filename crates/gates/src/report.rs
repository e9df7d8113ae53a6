//! What a gate found, as a value that every form of the report is made from.
//!
//! Values of headers that are credentials are not in it, and bodies of answers are not either: a report is shared.

mod example;

use serde::Serialize;

pub use example::{Counterexample, Line};

/// How a gate ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// Nothing was found, and something would have been.
    Pass,
    /// It could not have been seen.
    Inconclusive,
    /// A promise is broken.
    Fail,
}

impl Verdict {
    /// As people read it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Inconclusive => "INCONCLUSIVE",
            Self::Fail => "FAIL",
        }
    }

    /// 0, 1 and 2.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Fail => 1,
            Self::Inconclusive => 2,
        }
    }
}

/// One part of a gate: an arm, a crash point, a claim.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// `A1`
    pub id: String,
    /// What was tried.
    pub title: String,
    /// `None`: it was not run, and `said` tells what it needs.
    pub verdict: Option<Verdict>,
    /// Rounds.
    pub rounds: u32,
    /// Rounds that broke a promise.
    pub failed_rounds: u32,
    /// What was found.
    pub said: Vec<String>,
    /// What to change, where it is not clear.
    pub change: Vec<String>,
    /// The round that shows it.
    pub counterexample: Option<Counterexample>,
}

/// What a gate found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `concurrency`
    pub gate: String,
    /// `POST /orders at 127.0.0.1:8080`
    pub target: String,
    /// The worst of the parts.
    pub verdict: Verdict,
    /// In the order they ran.
    pub parts: Vec<Part>,
    /// How it is known that requests were together, or why not.
    pub overlap: Option<String>,
    /// What a clean run would have missed.
    pub power: Option<String>,
    /// Repeats the run's keys and texts.
    pub seed: u64,
    /// Requests that were sent.
    pub requests: u64,
    /// How long it took.
    pub seconds: f64,
}

impl Report {
    /// Every part that fails, or the gate as a whole.
    #[must_use]
    pub fn worst(parts: &[Part]) -> Verdict {
        parts.iter().filter_map(|part| part.verdict).max().unwrap_or(Verdict::Inconclusive)
    }

    /// The part with this id.
    #[must_use]
    pub fn part(&self, id: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_part_is_the_verdict_and_a_run_of_nothing_is_no_pass() {
        let part = |verdict| Part {
            id: String::new(),
            title: String::new(),
            verdict,
            rounds: 1,
            failed_rounds: 0,
            said: vec![],
            change: vec![],
            counterexample: None,
        };
        let worst = |verdicts: &[Option<Verdict>]| {
            Report::worst(&verdicts.iter().map(|verdict| part(*verdict)).collect::<Vec<_>>())
        };
        assert_eq!(worst(&[Some(Verdict::Pass), None]), Verdict::Pass);
        assert_eq!(worst(&[Some(Verdict::Inconclusive), Some(Verdict::Pass)]), Verdict::Inconclusive);
        assert_eq!(worst(&[Some(Verdict::Fail), Some(Verdict::Inconclusive)]), Verdict::Fail);
        assert_eq!(worst(&[None]), Verdict::Inconclusive);
        assert_eq!([Verdict::Pass, Verdict::Fail, Verdict::Inconclusive].map(Verdict::exit_code), [0, 1, 2]);
    }
}
