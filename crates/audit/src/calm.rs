//! Baselines and waivers: what is known already, and what was decided to be left alone, until when and why.
//!
//! A baseline is written by the tool and holds what a legacy document was found with; new findings stand out. A waiver is written
//! by a person, for one rule and one operation or many, with a reason and a last day; after it, the finding is back, and the waiver
//! is a finding of its own.

use std::collections::BTreeSet;

use jiff::civil::Date;
use serde::{Deserialize, Serialize};

use crate::{
    bundle::Place,
    effect::Confidence,
    finding::{self, Finding, RULES},
    report::Report,
};

/// The format of baseline files.
const BASELINE_VERSION: u32 = 1;

/// What was found before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    version: u32,
    /// `A101 POST /orders`, each once.
    findings: BTreeSet<String>,
}

/// Decisions to leave findings alone.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Waivers(Vec<Waiver>);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Waiver {
    rule: String,
    operation: String,
    reason: String,
    until: Date,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WaiverFile {
    #[serde(default)]
    waiver: Vec<WaiverEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WaiverEntry {
    rule: String,
    operation: String,
    reason: String,
    until: String,
}

/// How many findings were taken away, and by what.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Calmed {
    /// Known to the baseline.
    pub known: usize,
    /// Waived.
    pub waived: usize,
    /// In the baseline, and not found any more.
    pub stale: usize,
}

impl Baseline {
    /// Everything that a report found.
    pub fn of(report: &Report<'_>) -> Self {
        let findings = report.findings.iter().flat_map(|finding| marks(report, finding)).collect();
        Self { version: BASELINE_VERSION, findings }
    }

    /// Reads a baseline.
    ///
    /// # Errors
    /// It is none, or one of another version.
    pub fn parse(text: &str) -> Result<Self, String> {
        let read: Self = serde_json::from_str(text).map_err(|error| format!("is no baseline: {error}"))?;
        if read.version != BASELINE_VERSION {
            return Err(format!("is a baseline of version {}; write it anew", read.version));
        }
        Ok(read)
    }

    /// As it is kept in a file.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Takes away what is known, operation by operation.
    pub fn calm(&self, report: &mut Report<'_>) -> Calmed {
        let mut seen = BTreeSet::new();
        let findings = std::mem::take(&mut report.findings);
        let before = findings.len();
        let kept: Vec<Finding> = findings
            .into_iter()
            .filter_map(|finding| {
                let marks = marks(report, &finding);
                let known = |mark: &String| self.findings.contains(mark);
                seen.extend(marks.iter().filter(|mark| known(mark)).cloned());
                without(finding, |number, finding| known(&mark(report, finding, number)))
            })
            .collect();
        let calmed =
            Calmed { known: before - kept.len(), waived: 0, stale: self.findings.len() - seen.len() };
        report.findings = kept;
        calmed
    }
}

impl Waivers {
    /// Reads a file of waivers (TOML).
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: WaiverFile =
            toml::from_str(text).map_err(|error| format!("is no file of waivers: {error}"))?;
        let mut waivers = Vec::new();
        for entry in file.waiver {
            if !RULES.iter().any(|rule| rule.id == entry.rule) {
                return Err(format!("waives {}, which is no rule", entry.rule));
            }
            if entry.reason.trim().is_empty() {
                return Err(format!("waives {} for {} without a reason", entry.rule, entry.operation));
            }
            let until = entry.until.parse().map_err(|_| {
                format!("waives {} until {:?}, which is no day (2027-03-31)", entry.rule, entry.until)
            })?;
            waivers.push(Waiver {
                rule: entry.rule,
                operation: entry.operation,
                reason: entry.reason,
                until,
            });
        }
        Ok(Self(waivers))
    }

    /// Takes away what is waived today, and adds what is to be said of the waivers themselves.
    pub fn calm(&self, report: &mut Report<'_>, today: Date) -> Calmed {
        let mut used = vec![false; self.0.len()];
        let findings = std::mem::take(&mut report.findings);
        let before = findings.len();
        let mut kept: Vec<Finding> = findings
            .into_iter()
            .filter_map(|finding| {
                without(finding, |number, finding| {
                    let name =
                        number.map_or(String::new(), |number| report.inventory.operations[number].name());
                    let waiver = self.0.iter().position(|waiver| {
                        waiver.rule == finding.rule.id && matches(&waiver.operation, &name)
                    });
                    let Some(at) = waiver else { return false };
                    used[at] = true;
                    today <= self.0[at].until
                })
            })
            .collect();
        let waived = before - kept.len();
        let place = || Place { file: 0, pointer: String::new() };
        for (waiver, used) in self.0.iter().zip(used) {
            let Waiver { rule, operation, reason, until } = waiver;
            if !used {
                let message = format!("{rule} for {operation} waives nothing");
                kept.push(Finding::new(&finding::W002, Confidence::High, place(), message));
            } else if today > *until {
                let message = format!("{rule} for {operation} was waived until {until}: {reason}");
                kept.push(Finding::new(&finding::W001, Confidence::High, place(), message));
            }
        }
        report.findings = kept;
        Calmed { waived, ..Calmed::default() }
    }
}

/// A finding without the operations that are left alone; nothing where none is left.
fn without(mut finding: Finding, mut leave: impl FnMut(Option<usize>, &Finding) -> bool) -> Option<Finding> {
    if finding.operations.is_empty() {
        return (!leave(None, &finding)).then_some(finding);
    }
    let operations = std::mem::take(&mut finding.operations);
    let operations: Vec<usize> =
        operations.into_iter().filter(|number| !leave(Some(*number), &finding)).collect();
    (!operations.is_empty()).then_some(Finding { operations, ..finding })
}

fn marks(report: &Report<'_>, finding: &Finding) -> Vec<String> {
    if finding.operations.is_empty() {
        return vec![mark(report, finding, None)];
    }
    finding.operations.iter().map(|number| mark(report, finding, Some(*number))).collect()
}

/// What a finding is known by: not by its line or its words, which change with everything around it.
fn mark(report: &Report<'_>, finding: &Finding, number: Option<usize>) -> String {
    match number.and_then(|number| report.inventory.operations.get(number)) {
        Some(operation) => format!("{} {}", finding.rule.id, operation.name()),
        None => format!("{} {}#{}", finding.rule.id, finding.place.file, finding.place.pointer),
    }
}

/// `POST /legacy/*`: a star stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bundle, Node, audit};

    const API: &str = "openapi: 3.0.0\npaths:\n  /old/a: {post: {responses: {'201': {description: x}}}}\n  /b: {post: {responses: {'201': {description: x}}}}\n";

    fn bundle(text: &str) -> Bundle {
        Bundle::new("x.yaml", Node::parse(text).unwrap())
    }

    fn ids(report: &Report<'_>) -> Vec<String> {
        report.findings.iter().map(|one| one.rule.id.to_owned()).collect()
    }

    #[test]
    fn a_baseline_hides_what_it_knows_and_nothing_new() {
        let old = bundle(API);
        let baseline = Baseline::parse(&Baseline::of(&audit(&old, None).unwrap()).text()).unwrap();
        let mut same = audit(&old, None).unwrap();
        assert_eq!(baseline.calm(&mut same), Calmed { known: 2, ..Calmed::default() });
        assert!(same.findings.is_empty());
        let new = bundle(&format!("{}  /c: {{post: {{}}}}\n", API.replace("/b:", "/d:")));
        let mut changed = audit(&new, None).unwrap();
        assert_eq!(baseline.calm(&mut changed), Calmed { known: 1, waived: 0, stale: 1 });
        assert_eq!(ids(&changed), ["A101", "A101"]);
    }

    #[test]
    fn waivers_need_a_reason_and_end() {
        let waiver = |until: &str, reason: &str| {
            format!(
                "[[waiver]]\nrule = 'A101'\noperation = 'POST /old/*'\nreason = '{reason}'\nuntil = '{until}'\n"
            )
        };
        let old = bundle(API);
        let today: Date = "2026-11-30".parse().unwrap();
        let waivers = Waivers::parse(&waiver("2026-11-30", "goes away in spring")).unwrap();
        let mut report = audit(&old, None).unwrap();
        assert_eq!(waivers.calm(&mut report, today).waived, 1);
        assert_eq!(ids(&report), ["A101"]);
        let expired = Waivers::parse(&waiver("2026-11-29", "goes away in autumn")).unwrap();
        let mut report = audit(&old, None).unwrap();
        assert_eq!(expired.calm(&mut report, today).waived, 0);
        assert_eq!(ids(&report), ["A101", "A101", "W001"]);
        assert!(report.findings[2].message.contains("goes away in autumn"));
        assert!(Waivers::parse(&waiver("2026-11-30", " ")).unwrap_err().contains("without a reason"));
        assert!(Waivers::parse(&waiver("soon", "x")).unwrap_err().contains("no day"));
        let idle = Waivers::parse(&waiver("2026-11-30", "x").replace("/old/", "/gone/")).unwrap();
        let mut report = audit(&old, None).unwrap();
        idle.calm(&mut report, today);
        assert_eq!(ids(&report), ["A101", "A101", "W002"]);
    }

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, name, fits) in [
            ("POST /a", "POST /a", true),
            ("POST /a", "POST /ab", false),
            ("* /a/*", "PUT /a/b/c", true),
            ("*", "", true),
            ("POST /*/x", "POST /x", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
