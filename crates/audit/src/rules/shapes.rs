//! S: special shapes of operations.

use super::{Context, Subject};
use crate::{
    effect::{Confidence, Effect},
    finding::{self as rule, Finding, Rule},
    words::{find as phrase, folded, literals, words},
};

const OUTWARD: &[&str] = &[
    "email",
    "emails",
    "mail",
    "sms",
    "payout",
    "payouts",
    "charge",
    "charges",
    "payment",
    "payments",
    "transfer",
    "transfers",
    "refund",
    "refunds",
    "message",
    "messages",
    "withdrawal",
    "withdrawals",
];
/// Folded names of fields that are shown once.
const SECRETS: &[&str] = &[
    "clientsecret",
    "accesstoken",
    "refreshtoken",
    "secret",
    "secretkey",
    "privatekey",
    "presignedurl",
    "uploadurl",
    "password",
    "apikey",
    "apisecret",
];

pub(super) fn find(context: &Context<'_>) -> Vec<Finding> {
    context.subjects().filter(|one| one.changes()).flat_map(one).collect()
}

fn one(subject: Subject<'_>) -> Vec<Finding> {
    let operation = subject.operation;
    let place = operation.place().clone();
    let mut found = Vec::new();
    let mut note = |rule: &'static Rule, sure: Confidence| {
        found.push(Finding::new(rule, sure, place.clone(), rule.finds).on([subject.number]));
    };
    let last = literals(operation.path).last().unwrap_or_default();
    if operation.method == "POST" && folded(last) == "graphql" {
        note(&rule::S604, Confidence::Medium);
    }
    if subject.judgement.effect == Effect::Auth {
        note(&rule::S607, subject.judgement.confidence);
    }
    let Some(key) = subject.key() else { return found };
    let batch =
        operation.body.list || words(last).iter().any(|word| matches!(word.as_str(), "batch" | "bulk"));
    let text = format!("{} {}", key.prose(), operation.prose());
    if batch && phrase(&text, &["partial", "each item", "per item", "all or nothing", "atomic"]).is_none() {
        note(&rule::S601, Confidence::Medium);
    }
    if let Some(accepted) = operation.responses.iter().find(|one| one.status == "202") {
        let leads = accepted.headers.iter().any(|name| name.to_lowercase().ends_with("location"))
            || accepted.fields.iter().any(|name| {
                let name = name.to_lowercase();
                ["id", "url", "uri", "href", "name", "links"].iter().any(|end| name.ends_with(end))
            });
        if !leads {
            note(&rule::S602, Confidence::Medium);
        }
    }
    if operation.body.media.iter().any(|media| media.starts_with("multipart/")) {
        note(&rule::S603, Confidence::High);
    }
    let streams = |one: &crate::operation::Response<'_>| {
        one.media.iter().any(|media| media.starts_with("text/event-stream"))
    };
    if operation.responses.iter().any(streams) {
        note(&rule::S605, Confidence::High);
    }
    let successes = operation.responses.iter().filter(|one| one.status.starts_with('2'));
    if successes.flat_map(|one| &one.fields).any(|name| SECRETS.contains(&&*folded(name))) {
        note(&rule::S606, Confidence::Medium);
    }
    let outward = operation.method == "POST"
        && literals(operation.path).flat_map(words).any(|word| OUTWARD.contains(&word.as_str()));
    if outward && !key.parameter.required {
        note(&rule::S608, Confidence::Low);
    }
    found
}
