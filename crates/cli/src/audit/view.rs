//! A report as every format wants it: findings of one kind together, places with their lines.

use std::collections::HashMap;

use anstyle::AnsiColor;
use retrysafe_audit::{
    Bundle, Evidence, Finding, Judgement, Operation, Place, Report, Rule, Severity, Totals, calm::Calmed,
    lines,
};

/// What is printed.
pub(super) struct View<'a> {
    pub(super) report: &'a Report<'a>,
    pub(super) document: &'a str,
    pub(super) files: usize,
    pub(super) totals: Totals,
    pub(super) calmed: Calmed,
    pub(super) groups: Vec<Group<'a>>,
    bundle: &'a Bundle,
    lines: HashMap<Place, usize>,
}

/// Findings of one rule that say the same.
pub(super) struct Group<'a> {
    pub(super) rule: &'static Rule,
    pub(super) severity: Severity,
    pub(super) message: &'a str,
    pub(super) findings: Vec<&'a Finding>,
}

impl Group<'_> {
    /// How many operations it concerns.
    pub(super) fn operations(&self) -> usize {
        self.findings.iter().map(|finding| finding.operations.len()).sum()
    }
}

impl<'a> View<'a> {
    pub(super) fn new(
        report: &'a Report<'a>,
        bundle: &'a Bundle,
        texts: &HashMap<String, String>,
        calmed: Calmed,
    ) -> Self {
        let mut groups: Vec<Group<'a>> = Vec::new();
        let mut known: HashMap<(&str, Severity, &str), usize> = HashMap::new();
        for finding in &report.findings {
            let at =
                *known.entry((finding.rule.id, finding.severity, &finding.message)).or_insert_with(|| {
                    let Finding { rule, severity, message, .. } = finding;
                    groups.push(Group { rule, severity: *severity, message, findings: Vec::new() });
                    groups.len() - 1
                });
            groups[at].findings.push(finding);
        }
        groups.sort_by_key(|group| (group.severity, group.rule.id));
        Self {
            report,
            document: bundle.name(0),
            files: bundle.files(),
            totals: report.totals(),
            calmed,
            groups,
            bundle,
            lines: found_lines(report, bundle, texts),
        }
    }

    /// `openapi.yaml:12`, or the file and the pointer where no line is known, or everything stands on one.
    pub(super) fn at(&self, place: &Place) -> String {
        match self.lines.get(place) {
            Some(1) if !place.pointer.is_empty() => {
                format!("{}#{}", self.bundle.name(place.file), place.pointer)
            }
            Some(line) => format!("{}:{line}", self.bundle.name(place.file)),
            None => format!("{}#{}", self.bundle.name(place.file), place.pointer),
        }
    }

    /// What decided, with its place, in one line.
    pub(super) fn because(&self, judgement: &Judgement) -> String {
        let first = judgement.evidence.first();
        first.map_or(String::new(), |one| format!("{}: {}", self.at(&one.place), one.quote))
    }

    pub(super) fn line(&self, place: &Place) -> Option<usize> {
        self.lines.get(place).copied()
    }

    pub(super) fn file(&self, place: &Place) -> &str {
        self.bundle.name(place.file)
    }

    pub(super) fn operation(&self, number: usize) -> String {
        self.report.inventory.operations.get(number).map(Operation::name).unwrap_or_default()
    }

    /// The operations whose method may change state, most dangerous verdicts first.
    pub(super) fn changing(&self) -> Vec<(&Operation<'_>, &Judgement)> {
        let mut changing: Vec<_> = self
            .report
            .judged()
            .filter(|(_, operation, _)| operation.may_change())
            .map(|(_, operation, judgement)| (operation, judgement))
            .collect();
        changing.sort_by_key(|(_, judgement)| {
            use retrysafe_audit::Verdict::{DocumentedUnsafe, NeedsHuman, Undocumented};
            match judgement.verdict {
                Undocumented => 0,
                NeedsHuman => 1,
                DocumentedUnsafe => 2,
                _ => 3,
            }
        });
        changing
    }
}

/// The lines of everything that a report points at.
fn found_lines(
    report: &Report<'_>,
    bundle: &Bundle,
    texts: &HashMap<String, String>,
) -> HashMap<Place, usize> {
    let evidence = |evidence: &[Evidence]| evidence.iter().map(|one| one.place.clone()).collect::<Vec<_>>();
    let mut places: Vec<Place> = Vec::new();
    for finding in &report.findings {
        places.push(finding.place.clone());
        places.extend(evidence(&finding.evidence));
    }
    for (_, operation, judgement) in report.judged().filter(|(_, operation, _)| operation.may_change()) {
        places.push(operation.place().clone());
        places.extend(evidence(&judgement.evidence));
    }
    let mut found = HashMap::new();
    for file in 0..bundle.files() {
        let pointers: Vec<&str> =
            places.iter().filter(|place| place.file == file).map(|place| place.pointer.as_str()).collect();
        let Some(text) = texts.get(bundle.name(file)).filter(|_| !pointers.is_empty()) else { continue };
        for (pointer, line) in lines::lines(text, &pointers) {
            found.insert(Place { file, pointer }, line);
        }
    }
    found
}

pub(super) fn colour(severity: Severity) -> AnsiColor {
    match severity {
        Severity::Error => AnsiColor::Red,
        Severity::Warning => AnsiColor::Yellow,
        Severity::Info => AnsiColor::Cyan,
    }
}

/// What a verdict means, in a few words.
pub(super) fn meaning(verdict: &str) -> &'static str {
    match verdict {
        "safe-read" => "changes nothing",
        "idempotent-claimed" => "by definition or by its own word; nobody has looked",
        "safe-with-key" => "with a key, which is optional",
        "key-required" => "with a key, which is required",
        "conditional" => "a second one is refused, where the condition is sent",
        "documented-unsafe" => "the document says that it must not be repeated",
        "undocumented" => "changes state; nothing says what a retry does",
        _ => "the document is not enough to tell",
    }
}

/// Text in HTML and XML.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for one in text.chars() {
        match one {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML has no way to write them.
            control if control.is_control() && !matches!(control, '\n' | '\t') => {}
            one => escaped.push(one),
        }
    }
    escaped
}
