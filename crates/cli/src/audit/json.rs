//! The report for machines: one object, with every operation and every finding.

use retrysafe_audit::{Direction, Evidence};
use serde_json::{Value, json};

use super::view::View;

/// Bumped when a field changes its meaning or goes away.
const FORMAT: u32 = 1;

pub(super) fn json(view: &View<'_>) -> String {
    let inventory = &view.report.inventory;
    let totals = &view.totals;
    let operations: Vec<Value> = inventory
        .operations
        .iter()
        .zip(&view.report.judgements)
        .zip(&view.report.seen)
        .map(|((operation, judgement), seen)| {
            let seen: Vec<Value> = seen
                .iter()
                .map(|one| json!({ "name": one.name, "is": one.standing.as_str(), "in_body": one.in_body, "required": one.required, "quote": one.quote }))
                .collect();
            let direction = match operation.direction {
                Direction::Path => "path",
                Direction::Webhook => "webhook",
                Direction::Callback => "callback",
            };
            json!({
                "method": operation.method, "path": operation.path, "operation_id": operation.id, "direction": direction,
                "deprecated": operation.deprecated, "file": view.file(operation.place()),
                "pointer": operation.place().pointer, "line": view.line(operation.place()),
                "effect": judgement.effect.as_str(), "mechanism": judgement.mechanism.as_str(),
                "verdict": judgement.verdict.as_str(), "confidence": judgement.confidence.as_str(),
                "looks_like_key": seen,
                "evidence": judgement.evidence.iter().map(|one| evidence(view, one)).collect::<Vec<_>>(),
            })
        })
        .collect();
    let findings: Vec<Value> = view
        .report
        .findings
        .iter()
        .map(|finding| {
            let names: Vec<String> =
                finding.operations.iter().map(|number| view.operation(*number)).collect();
            json!({
                "rule": finding.rule.id, "severity": finding.severity.as_str(), "message": finding.message,
                "help": finding.rule.help, "operations": names, "file": view.file(&finding.place),
                "pointer": finding.place.pointer, "line": view.line(&finding.place),
                "evidence": finding.evidence.iter().map(|one| evidence(view, one)).collect::<Vec<_>>(),
            })
        })
        .collect();
    let unread: Vec<Value> = inventory
        .unread
        .iter()
        .map(|(place, why)| json!({ "file": view.file(place), "pointer": place.pointer, "why": why }))
        .collect();
    let report = json!({
        "format": FORMAT, "document": view.document, "openapi": inventory.version, "title": inventory.title,
        "totals": {
            "operations": totals.operations, "mutating": totals.mutating, "methods": totals.methods, "keyed": totals.keyed,
            "candidates": totals.candidates, "verdicts": totals.verdicts, "received": totals.received,
            "deprecated": totals.deprecated, "not_understood": totals.unread,
        },
        "known": view.calmed.known, "stale": view.calmed.stale, "waived": view.calmed.waived,
        "operations": operations, "findings": findings, "not_understood": unread,
    });
    format!("{report}\n")
}

fn evidence(view: &View<'_>, evidence: &Evidence) -> Value {
    json!({
        "file": view.file(&evidence.place), "pointer": evidence.place.pointer, "line": view.line(&evidence.place),
        "quote": evidence.quote, "weight": evidence.weight.as_str(),
    })
}
