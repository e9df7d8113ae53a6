//! What a gate found, as a value that every form of the report is made from.
//!
//! Values of headers that are credentials are not in it, and bodies of answers are not either: a report is shared.

mod example;
mod html;
mod junit;

use std::time::Instant;

use serde::Serialize;

use crate::arms::Finding;

pub(crate) use example::command;
pub use example::{Counterexample, Line};
pub use html::html;
pub use junit::junit;

/// Findings that are shown for one part; more say the same.
const SAID_MAX: usize = 4;

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

impl Part {
    /// Nothing yet.
    #[must_use]
    pub fn new(id: &str, title: &str) -> Self {
        Self {
            id: id.to_owned(),
            title: title.to_owned(),
            verdict: None,
            rounds: 0,
            failed_rounds: 0,
            said: Vec::new(),
            change: Vec::new(),
            counterexample: None,
        }
    }

    /// Adds a round, with how to show it.
    pub fn add(&mut self, number: u32, findings: Vec<Finding>, example: Option<&dyn Fn() -> Counterexample>) {
        self.rounds = self.rounds.max(number);
        self.verdict = self.verdict.max(Some(Verdict::Pass));
        if findings.iter().any(|finding| matches!(finding, Finding::Fail(_))) {
            self.failed_rounds += 1;
            self.verdict = Some(Verdict::Fail);
            if let (None, Some(example)) = (&self.counterexample, example) {
                self.counterexample = Some(example());
            }
        }
        for finding in findings {
            match finding {
                // What the counter-example does not show would only confuse.
                Finding::Fail(_) if self.failed_rounds > 1 => {}
                Finding::Fail(what) | Finding::Note(what) => self.say(what),
                Finding::Unclear { why, change } => self.unclear(why, &change),
            }
        }
    }

    /// Something that no round shows by itself.
    pub fn fail(&mut self, what: String) {
        self.failed_rounds += 1;
        self.verdict = Some(Verdict::Fail);
        self.say(what);
    }

    /// Something that keeps this part from being judged.
    pub fn unclear(&mut self, why: String, change: &str) {
        self.verdict = self.verdict.max(Some(Verdict::Inconclusive));
        self.say(why);
        if !self.change.iter().any(|known| known == change) && self.change.len() < SAID_MAX {
            self.change.push(change.to_owned());
        }
    }

    fn say(&mut self, what: String) {
        if self.said.len() < SAID_MAX && !self.said.contains(&what) {
            self.said.push(what);
        }
    }
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
    /// What `parts` came to, of a run that began at `origin`.
    pub(crate) fn of(
        gate: &str,
        target: String,
        parts: Vec<Part>,
        (seed, requests): (u64, u64),
        origin: Instant,
    ) -> Self {
        Self {
            gate: gate.to_owned(),
            target,
            verdict: Self::worst(&parts),
            parts,
            overlap: None,
            power: None,
            seed,
            requests,
            seconds: origin.elapsed().as_secs_f64(),
        }
    }

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
        let part = |verdict| Part { verdict, ..Part::new("A1", "a title") };
        let worst = |verdicts: &[Option<Verdict>]| {
            Report::worst(&verdicts.iter().map(|verdict| part(*verdict)).collect::<Vec<_>>())
        };
        assert_eq!(worst(&[Some(Verdict::Pass), None]), Verdict::Pass);
        assert_eq!(worst(&[Some(Verdict::Inconclusive), Some(Verdict::Pass)]), Verdict::Inconclusive);
        assert_eq!(worst(&[Some(Verdict::Fail), Some(Verdict::Inconclusive)]), Verdict::Fail);
        assert_eq!(worst(&[None]), Verdict::Inconclusive);
        assert_eq!([Verdict::Pass, Verdict::Fail, Verdict::Inconclusive].map(Verdict::exit_code), [0, 1, 2]);
    }

    fn reports() -> Vec<Report> {
        let mut failed = Part::new("A1", "one <key>");
        let example = || Counterexample {
            round: 3,
            shape: "at once".to_owned(),
            effects: vec![("table".to_owned(), 2)],
            timeline: vec![Line {
                step: "race".to_owned(),
                request: "A".to_owned(),
                base: "127.0.0.1:1".to_owned(),
                sent_ms: 0.0,
                complete_ms: 0.5,
                done_ms: 4.0,
                told: "success".to_owned(),
                status: Some(201),
            }],
            curl: vec!["curl 'a&b'".to_owned()],
        };
        failed.add(3, vec![Finding::Fail("2 effects".to_owned())], Some(&example));
        let mut unclear = Part::new("A2", "another");
        unclear.unclear("too fast".to_owned(), "hold it");
        let parts = vec![failed, unclear, Part::new("A4", "not run")];
        vec![Report {
            gate: "concurrency".to_owned(),
            target: "POST /o".to_owned(),
            verdict: Report::worst(&parts),
            parts,
            overlap: None,
            power: None,
            seed: 1,
            requests: 2,
            seconds: 0.5,
        }]
    }

    #[test]
    fn a_page_stands_alone_and_escapes_what_it_shows() {
        let page = html(&reports()).expect("the template fits");
        assert!(page.contains("<rect class=\"success\"") && page.contains("one &lt;key&gt;"), "{page}");
        assert!(page.contains("2 effects") && page.contains("hold it") && page.contains("not run"));
        for outside in ["http://", "https://", "src=", "<script", "@import"] {
            assert!(!page.contains(outside), "{outside} would need something else");
        }
    }

    #[test]
    fn junit_counts_failures_errors_and_what_was_not_run() {
        let text = junit(&reports());
        assert!(text.contains("tests=\"3\" failures=\"1\" errors=\"1\" skipped=\"1\""), "{text}");
        assert!(text.contains("name=\"A1 one &lt;key&gt;\"") && text.contains("curl 'a&amp;b'"), "{text}");
    }
}
