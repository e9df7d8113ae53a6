//! The report for people at a terminal.

use std::fmt::Write as _;

use super::view::{Group, View, colour, meaning};

/// Places of one group, and operations in the list, that are shown without --all.
const PLACES_SHOWN: usize = 4;
const OPERATIONS_SHOWN: usize = 30;

pub(super) fn page(view: &View<'_>, all: bool) -> String {
    let mut page = String::new();
    head(&mut page, view);
    operations(&mut page, view, if all { usize::MAX } else { OPERATIONS_SHOWN });
    for group in &view.groups {
        one(&mut page, view, group, if all { usize::MAX } else { PLACES_SHOWN });
    }
    end(&mut page, view);
    page
}

fn head(page: &mut String, view: &View<'_>) {
    let totals = &view.totals;
    let inventory = &view.report.inventory;
    let files = if view.files == 1 { String::new() } else { format!(", {} files", view.files) };
    let _ = writeln!(page, "{}: {} (OpenAPI {}{files})", view.document, inventory.title, inventory.version);
    let methods: Vec<String> =
        totals.methods.iter().map(|(method, count)| format!("{count} {method}")).collect();
    let methods = if methods.is_empty() { String::new() } else { format!(": {}", methods.join(", ")) };
    let _ = writeln!(page, "{} operations, {} may change state{methods}", totals.operations, totals.mutating);
    if totals.deprecated > 0 {
        let _ =
            writeln!(page, "{} are deprecated or internal, and judged like the others", totals.deprecated);
    }
    let _ = writeln!(page);
    for (verdict, count) in &totals.verdicts {
        let _ = writeln!(page, "  {count:>6} {verdict:<19} {}", meaning(verdict));
    }
    if !totals.candidates.is_empty() {
        let kinds: Vec<String> =
            totals.candidates.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let _ = writeln!(page, "\nwhat looks like a key, by operations: {}", kinds.join(", "));
    }
    let _ = writeln!(page);
}

fn operations(page: &mut String, view: &View<'_>, shown: usize) {
    let changing = view.changing();
    for (operation, judgement) in changing.iter().take(shown) {
        let verdict = judgement.verdict.as_str();
        let because = judgement.evidence.first();
        let said = because
            .map_or(String::new(), |evidence| format!("{} \"{}\"", view.at(&evidence.place), evidence.quote));
        let old = if operation.deprecated { " (deprecated)" } else { "" };
        let _ = writeln!(page, "{verdict:<19} {}{old}", operation.name());
        let _ = writeln!(
            page,
            "{:<19}   {}, {}, {} confidence: {said}",
            "",
            judgement.effect.as_str(),
            judgement.mechanism.as_str(),
            judgement.confidence.as_str(),
        );
    }
    if changing.len() > shown {
        let _ = writeln!(page, "... and {} more operations (--all)", changing.len() - shown);
    }
    if !changing.is_empty() {
        let _ = writeln!(page);
    }
}

fn one(page: &mut String, view: &View<'_>, group: &Group<'_>, shown: usize) {
    let style = colour(group.severity).on_default().bold();
    let count = match group.operations() {
        0 | 1 => String::new(),
        count => format!(" ({count} operations)"),
    };
    let _ = writeln!(
        page,
        "{style}{} {}{style:#}: {}{count}",
        group.severity.as_str(),
        group.rule.id,
        group.message
    );
    for finding in group.findings.iter().take(shown) {
        let names: Vec<String> =
            finding.operations.iter().take(shown).map(|number| view.operation(*number)).collect();
        let more = finding.operations.len().saturating_sub(shown);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _ = writeln!(page, "  {}  {}{more}", view.at(&finding.place), names.join(", "));
        // What only repeats the method is no news.
        let quotes = finding
            .evidence
            .iter()
            .filter(|evidence| evidence.place != finding.place || evidence.quote.contains(' '));
        for evidence in quotes.take(2) {
            let _ = writeln!(page, "    | {}", evidence.quote);
        }
    }
    if group.findings.len() > shown {
        let _ = writeln!(page, "  ... and {} more (--all)", group.findings.len() - shown);
    }
    let _ = writeln!(page, "  do: {}\n", group.rule.help);
}

fn end(page: &mut String, view: &View<'_>) {
    use retrysafe_audit::Severity;
    let count = |severity| view.report.findings.iter().filter(|one| one.severity == severity).count();
    let _ = write!(
        page,
        "{} errors, {} warnings, {} notes",
        count(Severity::Error),
        count(Severity::Warning),
        count(Severity::Info)
    );
    let calmed = view.calmed;
    if calmed.known + calmed.stale > 0 {
        let _ = write!(
            page,
            "; {} known to the baseline, {} of it not found any more",
            calmed.known, calmed.stale
        );
    }
    if calmed.waived > 0 {
        let _ = write!(page, "; {} waived", calmed.waived);
    }
    let unread = view.totals.unread;
    let _ = writeln!(page, "; {unread} places not understood");
}
