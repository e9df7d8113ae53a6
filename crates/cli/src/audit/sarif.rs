//! The report as SARIF 2.1.0, which code scanning reads.

use retrysafe_audit::{RULES, Severity};
use serde_json::{Value, json};

use super::view::View;

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

pub(super) fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    }
}

/// A log of one run with these results.
pub(super) fn log(results: Vec<Value>) -> String {
    let rules: Vec<Value> = RULES
        .iter()
        .map(|rule| {
            json!({
                "id": rule.id, "shortDescription": { "text": rule.finds }, "help": { "text": rule.help },
                "defaultConfiguration": { "level": level(rule.severity) },
            })
        })
        .collect();
    let log = json!({
        "$schema": SCHEMA, "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "retrysafe", "version": env!("CARGO_PKG_VERSION"), "rules": rules,
            } },
            "results": results,
        }],
    });
    format!("{log}\n")
}

pub(super) fn sarif(view: &View<'_>) -> String {
    let results: Vec<Value> = view
        .report
        .findings
        .iter()
        .map(|finding| {
            let mut physical = json!({ "artifactLocation": { "uri": view.file(&finding.place) } });
            if let Some(line) = view.line(&finding.place) {
                physical["region"] = json!({ "startLine": line });
            }
            let names: Vec<String> = finding.operations.iter().map(|number| view.operation(*number)).collect();
            let logical: Vec<Value> =
                names.iter().map(|name| json!({ "fullyQualifiedName": name, "kind": "function" })).collect();
            let subject = match names.as_slice() {
                [] => String::new(),
                [one] => format!("{one}: "),
                [first, rest @ ..] => format!("{first} and {} more: ", rest.len()),
            };
            json!({
                "ruleId": finding.rule.id, "level": level(finding.severity),
                "message": { "text": format!("{subject}{}. {}.", finding.message, finding.rule.help) },
                "locations": [{ "physicalLocation": physical, "logicalLocations": logical }],
                // What stays the same when lines move.
                "partialFingerprints": { "retrysafe/v1": format!("{} {}", finding.rule.id, finding.place.pointer) },
            })
        })
        .collect();
    log(results)
}
