//! C: what a keyed operation declares as answers.

use super::{Context, Subject};
use crate::{
    effect::Confidence,
    finding::{self as rule, Finding, Severity},
    operation::Response,
    words::{find as phrase, prose},
};

const BUSY: &[&str] = &[
    "in progress",
    "in flight",
    "in-flight",
    "concurrent",
    "still being processed",
    "still processing",
    "being processed",
];
const MISMATCH: &[&str] = &[
    "mismatch",
    "different parameters",
    "different body",
    "different payload",
    "different request",
    "reused with",
    "reused for",
];
const MARKERS: &[&str] = &[
    "idempotent-replayed",
    "idempotency-replayed",
    "idempotency-replay",
    "x-idempotent-replayed",
    "x-idempotent-replay",
    "idempotency-key",
    "idempotency-status",
];
/// Names of fields, or ends of them, that find a resource again.
const IDS: &[&str] = &[
    "id",
    "uuid",
    "guid",
    "href",
    "self",
    "url",
    "uri",
    "key",
    "name",
    "number",
    "code",
    "token",
    "sid",
    "slug",
    "links",
    "data",
    "arn",
    "reference",
    "metadata",
];

pub(super) fn find(context: &Context<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for subject in context.subjects().filter(|one| one.changes()) {
        found.extend(keyed(subject));
        found.extend(lost(subject));
        found.extend(no_retry_after(subject));
    }
    found
}

fn keyed(subject: Subject<'_>) -> Vec<Finding> {
    let Subject { number, operation, .. } = subject;
    let Some(key) = subject.key() else { return Vec::new() };
    let mut found = Vec::new();
    let at = operation.place().step("responses");
    let mut note = |rule: &'static rule::Rule, mildest: Severity| {
        found.push(Finding::new(rule, key.confidence, at.clone(), rule.finds).milder(mildest).on([number]));
    };
    let told = format!("{} {}", key.prose(), operation.prose());
    // `default` answers anything, and says nothing.
    let unspecific = operation.responses.iter().any(|one| one.status == "default");
    let mild = if unspecific { Severity::Warning } else { Severity::Error };
    if !operation.declares(409) && !operation.declares(202) && phrase(&told, BUSY).is_none() {
        note(&rule::C301, mild);
    }
    let refused = [409, 422, 400].into_iter().any(|status| operation.declares(status));
    if !refused && phrase(&told, MISMATCH).is_none() {
        note(&rule::C302, mild);
    }
    let response = |status: &str| operation.responses.iter().find(|one| one.status == status);
    if let Some(conflict) = response("409") {
        let text = prose(conflict.description);
        if phrase(&text, BUSY).is_some() && phrase(&text, MISMATCH).is_some() && !has_code(conflict) {
            note(&rule::C303, Severity::Error);
        }
        if phrase(&text, &["already exist", "already been created"]).is_some() && !has_code(conflict) {
            note(&rule::C305, Severity::Warning);
        }
    } else if let Some(invalid) = response("422")
        && phrase(&prose(invalid.description), &["valid", "unprocess"]).is_some()
        && !has_code(invalid)
    {
        note(&rule::C304, Severity::Warning);
    }
    let mut successes = operation.responses.iter().filter(|one| one.status.starts_with('2')).peekable();
    let marked = |one: &Response<'_>| one.headers.iter().any(|name| MARKERS.contains(&&*name.to_lowercase()));
    if successes.peek().is_some() && !successes.any(marked) {
        note(&rule::C306, Severity::Warning);
    }
    if key.parameter.required && !operation.declares(400) && !operation.declares(422) {
        note(&rule::C309, mild);
    }
    let stored = operation.extension("x-idempotency").is_some_and(|found| found.node.get("stored").is_some());
    if !stored && phrase(&told, &["error", "fail", "5xx", "500"]).is_none() {
        note(&rule::C310, Severity::Info);
    }
    found
}

/// Whether an error tells by a code, and not by its status alone, what it is.
fn has_code(response: &Response<'_>) -> bool {
    let coded = |name: &&str| {
        ["code", "type", "error", "errorcode", "errors", "error_code"].contains(&&*name.to_lowercase())
    };
    response.fields.iter().any(coded) || response.media.iter().any(|media| media.contains("problem+"))
}

/// C307: a creation that cannot be found again when its answer is lost.
fn lost(subject: Subject<'_>) -> Option<Finding> {
    let created = subject.operation.responses.iter().find(|one| one.status == "201")?;
    let located = created.headers.iter().any(|name| name.to_lowercase().ends_with("location"));
    let names = |name: &&str| {
        let name = name.to_lowercase();
        IDS.iter().any(|id| name.ends_with(id))
    };
    // What has no fields was not looked into: a list, a text, or nothing that a schema says.
    if located || created.fields.is_empty() || created.fields.iter().any(names) {
        return None;
    }
    let place = subject.operation.place().step("responses").step("201");
    Some(Finding::new(&rule::C307, Confidence::Medium, place, rule::C307.finds).on([subject.number]))
}

/// C308: a refusal for now that does not say for how long.
fn no_retry_after(subject: Subject<'_>) -> Option<Finding> {
    let says = |one: &Response<'_>| one.headers.iter().any(|name| name.eq_ignore_ascii_case("retry-after"));
    let temporary = subject.operation.responses.iter().filter(|one| matches!(one.status, "429" | "503"));
    let silent = temporary.into_iter().find(|one| !says(one))?;
    let place = subject.operation.place().step("responses").step(silent.status);
    let message = format!("{} does not declare Retry-After", silent.status);
    Some(Finding::new(&rule::C308, Confidence::High, place, message).on([subject.number]))
}
