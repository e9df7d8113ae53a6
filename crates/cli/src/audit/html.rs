//! The report as a page that needs nothing else: no script, no font, no network.

use std::fmt::Write as _;

use super::view::{View, escaped, meaning};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#1a1a1a;background:#fff}
table{border-collapse:collapse;width:100%;font-size:.9rem}td,th{border-bottom:1px solid #ddd;padding:.3rem .5rem;text-align:left;vertical-align:top}
code{font-size:.9em}.error{color:#b00020}.warning{color:#8a5a00}.info{color:#00608a}details{margin:.4rem 0}summary{cursor:pointer}
@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#16181c}td,th{border-color:#333}.error{color:#ff7b8a}.warning{color:#f0b429}.info{color:#6cc7f0}}";

pub(super) fn html(view: &View<'_>) -> String {
    let totals = &view.totals;
    let inventory = &view.report.inventory;
    let title = format!("Retry safety of {}", escaped(inventory.title));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\n<style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    );
    let _ = writeln!(
        page,
        "<p><code>{}</code>, OpenAPI {}: {} operations, of which {} may change state. {} places were not understood.</p>",
        escaped(view.document),
        escaped(inventory.version),
        totals.operations,
        totals.mutating,
        totals.unread
    );
    page.push_str("<table><tr><th>verdict<th>operations<th>means</tr>\n");
    for (verdict, count) in &totals.verdicts {
        let _ = writeln!(page, "<tr><td>{verdict}<td>{count}<td>{}</tr>", meaning(verdict));
    }
    page.push_str("</table>\n<h2>Findings</h2>\n");
    for group in &view.groups {
        let severity = group.severity.as_str();
        let _ = writeln!(
            page,
            "<details><summary><b class=\"{severity}\">{severity} {}</b> {} ({})</summary><p>{}.</p><ul>",
            group.rule.id,
            escaped(group.message),
            group.operations().max(group.findings.len()),
            escaped(group.rule.help)
        );
        for finding in &group.findings {
            let names: Vec<String> = finding
                .operations
                .iter()
                .map(|number| format!("<code>{}</code>", escaped(&view.operation(*number))))
                .collect();
            let _ = writeln!(page, "<li>{} {}</li>", escaped(&view.at(&finding.place)), names.join(", "));
        }
        page.push_str("</ul></details>\n");
    }
    page.push_str("<h2>Operations</h2>\n<table><tr><th>operation<th>effect<th>mechanism<th>verdict<th>confidence<th>evidence</tr>\n");
    for (operation, judgement) in view.changing() {
        let _ = writeln!(
            page,
            "<tr><td><code>{}</code><td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            escaped(&operation.name()),
            judgement.effect.as_str(),
            judgement.mechanism.as_str(),
            judgement.verdict.as_str(),
            judgement.confidence.as_str(),
            escaped(&view.because(judgement))
        );
    }
    page.push_str("</table>\n</body></html>\n");
    page
}
