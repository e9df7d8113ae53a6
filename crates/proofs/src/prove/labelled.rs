//! contract-tools.2: the audit against operations that two readers judged before it ran, each without the other's labels.
//!
//! The labels are pointers into published documents, which come from npm as for contract-tools.1, and the words of both readers.
//! Where the two disagree nobody knows what is right: such operations are counted and printed, and measure nothing; nor do
//! errors where one of them was not sure. The last
//! third is held out: it was judged while the rules were corrected with the others, and the rules were never looked at with it.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use anyhow::{Context, Result, anyhow};
use comfy_table::{Table, presets};
use retrysafe_audit::{Bundle, Effect, Node, Severity, Verdict, audit};
use serde::Deserialize;

use super::{Scale, audited};
use crate::report::Progress;

const LABELS: &str = include_str!("../../data/labelled.json");
/// How many operations have to be labelled, and how sure an error has to be.
const OPERATIONS_MIN: usize = 300;
const ERRORS_RIGHT_MIN: f64 = 0.98;

#[derive(Deserialize)]
struct Labelled {
    file: String,
    pointer: String,
    first: Label,
    second: Label,
    held_out: bool,
}

/// What a reader said.
#[derive(Deserialize)]
struct Label {
    effect: Does,
    verdict: String,
    /// Another careful reader might say otherwise.
    #[serde(default)]
    unsure: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Does {
    Read,
    Mutate,
}

/// What the audit said of the same operation.
struct Told {
    effect: Option<Does>,
    verdict: &'static str,
    /// Rules whose findings are errors here.
    errors: Vec<&'static str>,
}

/// Right and wrong, of one kind.
#[derive(Clone, Copy, Default)]
struct Score {
    hits: usize,
    invented: usize,
    missed: usize,
}

impl Score {
    fn count(&mut self, told: bool, is: bool) {
        match (told, is) {
            (true, true) => self.hits += 1,
            (true, false) => self.invented += 1,
            (false, true) => self.missed += 1,
            (false, false) => {}
        }
    }

    fn precision(self) -> f64 {
        share(self.hits, self.hits + self.invented)
    }

    fn recall(self) -> f64 {
        share(self.hits, self.hits + self.missed)
    }
}

fn share(part: usize, of: usize) -> f64 {
    if of == 0 { 1.0 } else { part as f64 / of as f64 }
}

/// One half, or both.
#[derive(Default)]
struct Measured {
    operations: usize,
    effect_agreed: usize,
    verdict_agreed: usize,
    undecided: usize,
    mutates: Score,
    same_verdict: usize,
    verdicts: BTreeMap<&'static str, Score>,
    errors: Score,
}

pub(crate) fn prove(_scale: Scale) -> Result<bool> {
    let labels: Vec<Labelled> = serde_json::from_str(LABELS).context("labelled.json")?;
    let documents = audited::package(audited::DIRECTORY)?.join("api");
    let told = told(&documents, &labels)?;
    let mut disputes = String::new();
    let (mut seen, mut held_out) = (Measured::default(), Measured::default());
    for (label, told) in labels.iter().zip(&told) {
        let half = if label.held_out { &mut held_out } else { &mut seen };
        half.count(label, told);
        if label.first.verdict != label.second.verdict {
            let unsure = if label.first.unsure || label.second.unsure { ", not sure" } else { "" };
            let (first, second) = (&label.first.verdict, &label.second.verdict);
            writeln!(disputes, "  {} {}: {first} or {second}{unsure}", label.file, label.pointer)?;
        }
    }
    println!("where the readers disagree:\n{disputes}");
    println!("{}", table(&[("seen", &seen), ("held out", &held_out)]));
    let operations = seen.operations + held_out.operations;
    let right = seen.errors.hits + held_out.errors.hits;
    let all = right + seen.errors.invented + held_out.errors.invented;
    let precision = share(right, all);
    println!(
        "{operations} operations, {} with one verdict of both readers; reads and writes told apart with precision {:.3} and recall \
         {:.3}, the verdict is theirs in {:.3}; {right} of {all} errors are right: {precision:.3}, of those held out {:.3} (at least \
         {ERRORS_RIGHT_MIN})",
        seen.verdict_agreed + held_out.verdict_agreed,
        both(&seen, &held_out).precision(),
        both(&seen, &held_out).recall(),
        share(seen.same_verdict + held_out.same_verdict, seen.verdict_agreed + held_out.verdict_agreed),
        held_out.errors.precision(),
    );
    // Rules that were corrected with the one part are right about it; what that is worth, the other part says.
    let right = precision.min(held_out.errors.precision()) >= ERRORS_RIGHT_MIN;
    Ok(operations >= OPERATIONS_MIN && held_out.errors.hits > 0 && right)
}

fn both(one: &Measured, other: &Measured) -> Score {
    let (one, other) = (one.mutates, other.mutates);
    Score {
        hits: one.hits + other.hits,
        invented: one.invented + other.invented,
        missed: one.missed + other.missed,
    }
}

impl Measured {
    fn count(&mut self, label: &Labelled, told: &Told) {
        let Labelled { first, second, .. } = label;
        self.operations += 1;
        if first.effect == second.effect {
            self.effect_agreed += 1;
            match told.effect {
                None => self.undecided += 1,
                Some(effect) => {
                    self.mutates.count(effect == Does::Mutate, first.effect == Does::Mutate);
                }
            }
        }
        if first.verdict != second.verdict {
            return;
        }
        self.verdict_agreed += 1;
        self.same_verdict += usize::from(first.verdict == told.verdict);
        for verdict in Verdict::ALL.map(Verdict::as_str) {
            let score = self.verdicts.entry(verdict).or_default();
            score.count(told.verdict == verdict, first.verdict == verdict);
        }
        // A101 is the error that labels can judge: a write of which nothing says what a retry does. Where a reader was not sure,
        // the document does not settle it, and neither do we.
        if told.errors.contains(&"A101") && !first.unsure && !second.unsure {
            self.errors.count(true, first.verdict == Verdict::Undocumented.as_str());
        }
    }
}

fn table(halves: &[(&str, &Measured)]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["half", "what", "right", "invented", "missed", "precision", "recall"]);
    for (half, measured) in halves {
        let mut row = |what: &str, score: &Score| {
            table.add_row([
                (*half).to_owned(),
                what.to_owned(),
                score.hits.to_string(),
                score.invented.to_string(),
                score.missed.to_string(),
                format!("{:.3}", score.precision()),
                format!("{:.3}", score.recall()),
            ]);
        };
        row(&format!("writes ({} undecided)", measured.undecided), &measured.mutates);
        for (verdict, score) in &measured.verdicts {
            row(verdict, score);
        }
        row("error A101", &measured.errors);
    }
    table
}

/// What the audit says of each operation, in the order of the labels. Each document is read once.
fn told(documents: &Path, labels: &[Labelled]) -> Result<Vec<Told>> {
    let mut by_file: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, label) in labels.iter().enumerate() {
        by_file.entry(&label.file).or_default().push(number);
    }
    let progress = Progress::new("auditing", by_file.len());
    let mut all: Vec<Option<Told>> = labels.iter().map(|_| None).collect();
    for (file, numbers) in by_file {
        let path = documents.join(file);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let bundle = Bundle::new(file, Node::parse(&text).map_err(|why| anyhow!("{file} {why}"))?);
        let report = audit(&bundle, None).map_err(|why| anyhow!("{file} {why}"))?;
        for number in numbers {
            let pointer = &labels[number].pointer;
            let (path, method) = operation(pointer).with_context(|| format!("{file} {pointer}"))?;
            let found = report.judged().find(|(_, one, _)| one.method == method && one.path == path);
            let (place, _, judgement) = found.with_context(|| format!("{file} has no {method} {path}"))?;
            let errors = report
                .findings
                .iter()
                .filter(|finding| finding.severity == Severity::Error && finding.operations.contains(&place));
            all[number] = Some(Told {
                effect: does(judgement.effect),
                verdict: judgement.verdict.as_str(),
                errors: errors.map(|finding| finding.rule.id).collect(),
            });
        }
        progress.step();
    }
    Ok(all.into_iter().flatten().collect())
}

/// Path and method of a pointer like `/paths/~1orders/post`.
fn operation(pointer: &str) -> Option<(String, String)> {
    let (path, method) = pointer.strip_prefix("/paths/")?.rsplit_once('/')?;
    Some((path.replace("~1", "/").replace("~0", "~"), method.to_uppercase()))
}

fn does(effect: Effect) -> Option<Does> {
    match effect {
        Effect::Read | Effect::Compute => Some(Does::Read),
        Effect::Unknown => None,
        Effect::Create
        | Effect::Replace
        | Effect::Update
        | Effect::Delete
        | Effect::Action
        | Effect::Auth
        | Effect::Telemetry => Some(Does::Mutate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_words_that_the_audit_has_and_enough_are_held_out() {
        let labels: Vec<Labelled> = serde_json::from_str(LABELS).unwrap();
        assert!(labels.len() >= OPERATIONS_MIN);
        let held_out = labels.iter().filter(|label| label.held_out).count();
        assert!(held_out >= OPERATIONS_MIN / 2);
        for label in &labels {
            assert!(operation(&label.pointer).is_some(), "{}", label.pointer);
            for one in [&label.first, &label.second] {
                assert!(Verdict::ALL.iter().any(|known| known.as_str() == one.verdict), "{}", one.verdict);
            }
        }
    }

    #[test]
    fn a_disagreement_measures_nothing_and_an_invented_error_counts() {
        let label = |effect, verdict: &str| Label { effect, verdict: verdict.to_owned(), unsure: false };
        let labelled = |first, second| Labelled {
            file: String::new(),
            pointer: String::new(),
            first,
            second,
            held_out: false,
        };
        let told = Told { effect: Some(Does::Mutate), verdict: "undocumented", errors: vec!["A101"] };
        let mut measured = Measured::default();
        measured.count(
            &labelled(label(Does::Mutate, "undocumented"), label(Does::Mutate, "safe-with-key")),
            &told,
        );
        assert_eq!((measured.verdict_agreed, measured.errors.invented, measured.mutates.hits), (0, 0, 1));
        measured.count(&labelled(label(Does::Read, "safe-read"), label(Does::Read, "safe-read")), &told);
        assert_eq!((measured.errors.invented, measured.mutates.invented), (1, 1));
    }
}
