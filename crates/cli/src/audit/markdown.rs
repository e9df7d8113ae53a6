//! The report as Markdown, for a review or an issue.

use std::fmt::Write as _;

use super::view::{View, meaning};

/// Operations of one group that are named.
const NAMED: usize = 20;

pub(super) fn markdown(view: &View<'_>) -> String {
    let totals = &view.totals;
    let inventory = &view.report.inventory;
    let mut page = format!("# Retry safety of {}\n\n", cell(inventory.title));
    let _ = writeln!(
        page,
        "`{}`, OpenAPI {}: {} operations, of which {} may change state. {} places were not understood.\n",
        view.document, inventory.version, totals.operations, totals.mutating, totals.unread
    );
    page.push_str("| verdict | operations | means |\n|---|---|---|\n");
    for (verdict, count) in &totals.verdicts {
        let _ = writeln!(page, "| {verdict} | {count} | {} |", meaning(verdict));
    }
    page.push_str("\n## Findings\n\n");
    for group in &view.groups {
        let _ =
            writeln!(page, "### {} ({}): {}\n", group.rule.id, group.severity.as_str(), cell(group.message));
        let _ = writeln!(page, "{}.\n", group.rule.help);
        for finding in group.findings.iter().take(NAMED) {
            let names: Vec<String> = finding
                .operations
                .iter()
                .take(NAMED)
                .map(|number| format!("`{}`", view.operation(*number)))
                .collect();
            let more = finding.operations.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let _ = writeln!(page, "- {} {}{more}", view.at(&finding.place), names.join(", "));
        }
        if group.findings.len() > NAMED {
            let _ = writeln!(page, "- and {} more", group.findings.len() - NAMED);
        }
        page.push('\n');
    }
    page.push_str("## Operations\n\n| operation | effect | mechanism | verdict | confidence | evidence |\n|---|---|---|---|---|---|\n");
    for (operation, judgement) in view.changing() {
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} | {} | {} |",
            operation.name(),
            judgement.effect.as_str(),
            judgement.mechanism.as_str(),
            judgement.verdict.as_str(),
            judgement.confidence.as_str(),
            cell(&view.because(judgement))
        );
    }
    page
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}
