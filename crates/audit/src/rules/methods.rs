//! M: what methods claim.

use super::{Context, Subject};
use crate::{
    effect::{Confidence, Evidence},
    finding::{self as rule, Finding},
    judge::Mechanism,
    words::{find as phrase, literals, prose, quote, words},
};

const ADDS: &[&str] = &["append", "increment", "enqueue", "log", "send", "add", "push", "decrement"];
const TELLS_ADDITION: &[&str] = &[
    "appends",
    "is appended",
    "are appended",
    "increments",
    "adds to the",
    "enqueues",
    "sends a",
    "sends an",
];
const RELATIVE: &[&str] = &["delta", "increment", "decrement", "adjustment", "incrementby", "add_to"];
const MOVING: &[&str] = &["last", "next", "oldest", "latest", "first", "newest", "current"];

pub(super) fn find(context: &Context<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut claimed = Vec::new();
    for subject in context.subjects() {
        match &*subject.operation.method {
            "PUT" => found.extend(put(subject)),
            "DELETE" => found.extend(delete(subject)),
            "PATCH" => found.extend(patch(subject)),
            _ => {}
        }
        if subject.judgement.mechanism == Mechanism::MethodSemantics {
            claimed.push(subject.number);
        }
    }
    found.extend(etags(context));
    if let Some(first) = claimed.first().and_then(|number| context.inventory.operations.get(*number)) {
        let place = first.place().clone();
        found.push(Finding::new(&rule::M505, Confidence::High, place, rule::M505.finds).on(claimed));
    }
    found
}

/// Whether a path ends with something that names one resource.
fn names_one(subject: Subject<'_>) -> bool {
    let path = subject.operation.path.split(['#', '?']).next().unwrap_or_default();
    path.contains('{')
}

/// Whether a path ends with a collection. A singleton (`/settings`) has no id.
fn ends_plural(path: &str) -> bool {
    let last = literals(path).last().unwrap_or_default();
    last.ends_with('s')
        && !["ss", "settings", "preferences", "limits", "status"].iter().any(|end| last.ends_with(end))
}

fn put(subject: Subject<'_>) -> Vec<Finding> {
    let operation = subject.operation;
    let place = operation.place().clone();
    let mut found = Vec::new();
    let verb = operation.id.and_then(|id| words(id).into_iter().next()).unwrap_or_default();
    let text = operation.prose();
    let told = phrase(&text, TELLS_ADDITION);
    if ADDS.contains(&verb.as_str()) || told.is_some() {
        let quoted = match told {
            Some((words, _)) => quote(&format!("{}. {}", operation.summary, operation.description), words),
            None => operation.id.unwrap_or_default().to_owned(),
        };
        let evidence = Evidence { place: place.clone(), quote: quoted, weight: Confidence::Low };
        found.push(
            Finding::new(&rule::M501, Confidence::Low, place.clone(), rule::M501.finds)
                .on([subject.number])
                .because([evidence]),
        );
    }
    if !names_one(subject) && ends_plural(operation.path) {
        found.push(Finding::new(&rule::M502, Confidence::Low, place, rule::M502.finds).on([subject.number]));
    }
    found
}

fn delete(subject: Subject<'_>) -> Option<Finding> {
    let operation = subject.operation;
    let place = operation.place().clone();
    let moving =
        literals(operation.path).last().is_some_and(|last| MOVING.contains(&last.to_lowercase().as_str()));
    let message = if moving {
        "what is deleted is another thing the second time"
    } else if !operation.body.fields.is_empty() {
        "a DELETE with a body: what stands between may drop it"
    } else if !names_one(subject) && ends_plural(operation.path) {
        "a DELETE of a collection"
    } else {
        return None;
    };
    Some(Finding::new(&rule::M503, Confidence::Low, place, message).on([subject.number]))
}

fn patch(subject: Subject<'_>) -> Option<Finding> {
    let operation = subject.operation;
    let place = operation.place().clone();
    let media = |name: &str| operation.body.media.iter().any(|media| media.starts_with(name));
    let relative = operation.body.fields.iter().any(|field| RELATIVE.contains(&&*field.name.to_lowercase()));
    let message = if media("application/json-patch+json") {
        "a JSON patch: `add` to the end of a list is not idempotent"
    } else if relative {
        "a PATCH by a difference is not idempotent"
    } else if media("application/merge-patch+json") {
        "a merge patch: idempotent by what it is, unverified"
    } else {
        return None;
    };
    Some(Finding::new(&rule::M504, Confidence::Medium, place, message).on([subject.number]))
}

/// M506: conditions that nobody can learn.
fn etags(context: &Context<'_>) -> Vec<Finding> {
    let gives = |one: &Subject<'_>| {
        one.operation.responses.iter().any(|response| {
            response.headers.iter().any(|name| name.eq_ignore_ascii_case("etag"))
                || response.fields.iter().any(|name| prose(name).contains("etag"))
        })
    };
    let asks = |one: &Subject<'_>| one.judgement.mechanism == Mechanism::Conditional;
    // One resource that gives tags shows how; which read belongs to which write is not written in a document.
    if context.subjects().any(|one| gives(&one)) {
        return Vec::new();
    }
    let asking = context.subjects().filter(asks);
    asking
        .map(|one| {
            let place = one.operation.place().clone();
            Finding::new(&rule::M506, Confidence::Medium, place, rule::M506.finds).on([one.number])
        })
        .collect()
}
