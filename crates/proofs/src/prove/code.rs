//! contract-tools.4: the audit of source code on a corpus of which half is innocent.
//!
//! The corpus is in the repository (`crates/audit/tests/data/code`); its snippets were written before the audit ran on them. What
//! is counted is pairs of a snippet and a rule, and snippets that are judged wholly right.

use std::collections::BTreeSet;

use anyhow::{Context, Result, anyhow};
use retrysafe_audit::code::{Language, audit};

use super::Scale;

const CORPUS: &[(&str, Language, &str)] = &[
    ("Python", Language::Python, include_str!("../../../audit/tests/data/code/python.txt")),
    ("JavaScript", Language::JavaScript, include_str!("../../../audit/tests/data/code/javascript.txt")),
    ("TypeScript", Language::TypeScript, include_str!("../../../audit/tests/data/code/javascript.txt")),
    ("Rust", Language::Rust, include_str!("../../../audit/tests/data/code/rust.txt")),
    ("Go", Language::Go, include_str!("../../../audit/tests/data/code/go.txt")),
];
/// What both have to reach.
const BOUND: f64 = 0.95;
const SNIPPETS_MIN: usize = 200;

/// Pairs of a snippet and a rule.
#[derive(Clone, Copy, Default, Debug)]
struct Counts {
    snippets: usize,
    innocent: usize,
    right: usize,
    true_positive: usize,
    false_positive: usize,
    false_negative: usize,
}

impl Counts {
    fn judge(&mut self, expected: &BTreeSet<String>, found: &BTreeSet<String>) {
        self.snippets += 1;
        self.innocent += usize::from(expected.is_empty());
        self.right += usize::from(expected == found);
        self.true_positive += expected.intersection(found).count();
        self.false_positive += found.difference(expected).count();
        self.false_negative += expected.difference(found).count();
    }

    fn add(&mut self, other: Counts) {
        self.snippets += other.snippets;
        self.innocent += other.innocent;
        self.right += other.right;
        self.true_positive += other.true_positive;
        self.false_positive += other.false_positive;
        self.false_negative += other.false_negative;
    }

    fn precision(&self) -> f64 {
        share(self.true_positive, self.true_positive + self.false_positive)
    }

    fn recall(&self) -> f64 {
        share(self.true_positive, self.true_positive + self.false_negative)
    }
}

#[allow(clippy::cast_precision_loss)] // hundreds
fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

pub(crate) fn prove(_scale: Scale) -> Result<bool> {
    let mut all = Counts::default();
    for (name, language, text) in CORPUS {
        let mut counts = Counts::default();
        for (what, expected, code) in snippets(text)? {
            let found = audit(code, *language).map_err(|why| anyhow!("{name}: {what} {why}"))?;
            let found: BTreeSet<String> = found.findings.iter().map(|one| one.rule.id.to_owned()).collect();
            if found != expected {
                println!("  {name}: {what}: expected {expected:?}, found {found:?}");
            }
            counts.judge(&expected, &found);
        }
        println!(
            "{name:<10} {:>3} snippets, {:>3} innocent, {:>3} wholly right, precision {:.3}, recall {:.3}",
            counts.snippets,
            counts.innocent,
            counts.right,
            counts.precision(),
            counts.recall()
        );
        // The same snippets in another grammar are no snippets more.
        if *name != "TypeScript" {
            all.add(counts);
        }
    }
    println!(
        "{} snippets, {} innocent: precision {:.3}, recall {:.3}",
        all.snippets,
        all.innocent,
        all.precision(),
        all.recall()
    );
    Ok(all.snippets >= SNIPPETS_MIN && all.precision() >= BOUND && all.recall() >= BOUND)
}

/// `#### P101 P106 | what it is`, then the code; `-` stands for no rule.
fn snippets(text: &str) -> Result<Vec<(&str, BTreeSet<String>, &str)>> {
    let parts = text.split("#### ").skip(1);
    parts
        .map(|part| {
            let (head, code) = part.split_once('\n').context("a snippet without code")?;
            let (rules, what) = head.split_once(" | ").context("a snippet without a name")?;
            let rules = rules.split(' ').filter(|rule| *rule != "-").map(str::to_owned).collect();
            Ok((what, rules, code))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missed_and_what_is_invented_are_counted() {
        let set = |rules: &[&str]| rules.iter().map(|rule| (*rule).to_owned()).collect::<BTreeSet<_>>();
        let mut counts = Counts::default();
        counts.judge(&set(&["P101"]), &set(&["P101", "P106"]));
        counts.judge(&set(&["P105"]), &set(&[]));
        counts.judge(&set(&[]), &set(&[]));
        assert_eq!((counts.snippets, counts.innocent, counts.right), (3, 1, 1));
        assert!((counts.precision() - 0.5).abs() < 1e-9 && (counts.recall() - 0.5).abs() < 1e-9);
    }
}
