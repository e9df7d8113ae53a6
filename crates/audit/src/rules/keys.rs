//! B: what a document says about its keys. A key that many operations share is judged once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Context, Subject};
use crate::{
    bundle::Place,
    effect::{Confidence, Evidence},
    finding::{self as rule, Finding},
    keys::{Candidate, Standing},
    operation::In,
    tree::Node,
    words::{duration, find as phrase, prose, quote, sentences},
};

/// What makes a client think of attempts (case C1).
const PER_ATTEMPT: &[&str] = &[
    "unique for every api call",
    "unique for each api call",
    "unique per api call",
    "unique for every request",
    "unique for each request",
    "unique for every call",
    "unique for each call",
    "unique per request",
    "unique per call",
    "unique for every createpayment request",
    "unique for each attempt",
    "different for each request",
    "different for every request",
    "new value for each request",
    "new uuid for each request",
    "new key for each request",
    "randomly generated per api call",
    "randomly generated for each request",
];
/// What puts that right.
const REUSE: &[&str] = &[
    "reuse",
    "re-use",
    "same key",
    "same value",
    "same id",
    "same idempotency",
    "retry",
    "retried",
    "retries",
    "resend the same",
    "repeat the",
];
const SCOPE: &[&str] = &[
    "account",
    "caller",
    "tenant",
    "api key",
    "user",
    "customer",
    "merchant",
    "per client",
    "company",
    "organization",
    "organisation",
    "project",
    "workspace",
    "team",
    "application",
    "seller",
    "partner",
    "credential",
];
const SAMENESS: &[&str] = &[
    "same parameters",
    "same body",
    "same payload",
    "same request",
    "same operation",
    "different parameters",
    "different body",
    "different payload",
    "different request",
    "request body",
    "fingerprint",
    "identical",
];
const BOUNDS: &[&str] = &["character", "bytes", "max length", "maximum length", "uuid", "guid", "at most"];

pub(super) fn find(context: &Context<'_>) -> Vec<Finding> {
    let mut shared: BTreeMap<&Place, (Subject<'_>, &Candidate<'_>, Vec<usize>)> = BTreeMap::new();
    for subject in context.subjects().filter(|one| one.changes()) {
        for candidate in subject.candidates {
            shared.entry(candidate.at()).or_insert((subject, candidate, Vec::new())).2.push(subject.number);
        }
    }
    let mut found = Vec::new();
    for (subject, candidate, operations) in shared.values() {
        let findings = judge(context, *subject, candidate).into_iter();
        found.extend(findings.map(|finding| finding.on(operations.iter().copied())));
    }
    found.extend(spellings(context));
    found.extend(requirement(context));
    found
}

fn judge(context: &Context<'_>, subject: Subject<'_>, candidate: &Candidate<'_>) -> Vec<Finding> {
    let note = |rule: &'static rule::Rule, sure, message: &str| {
        Finding::new(rule, sure, candidate.at().clone(), message).because([candidate.evidence()])
    };
    match candidate.standing {
        // In a body such a name is the resource's own more often than not.
        Standing::Ambiguous if candidate.parameter.place_in == In::Body => Vec::new(),
        Standing::Ambiguous => vec![note(&rule::B201, Confidence::Low, rule::B201.finds)],
        Standing::RefusesReuse => {
            vec![note(
                &rule::B201,
                Confidence::Medium,
                "a second use is refused: no second effect, and the first answer is lost",
            )]
        }
        Standing::Unsupported => vec![note(&rule::B202, Confidence::Medium, rule::B202.finds)],
        Standing::Tracing => Vec::new(),
        Standing::Key if candidate.parameter.nested => {
            vec![note(&rule::B213, Confidence::Medium, rule::B213.finds)]
        }
        Standing::Key => {
            let mut found = described(context, subject, candidate);
            found.extend(shaped(candidate));
            found
        }
    }
}

/// What its prose says and does not say.
fn described(context: &Context<'_>, subject: Subject<'_>, key: &Candidate<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let own = key.prose();
    let text = format!("{own} {}", subject.operation.prose());
    let about = about(context);
    let note =
        |rule: &'static rule::Rule| Finding::new(rule, Confidence::Medium, key.at().clone(), rule.finds);
    if let Some((words, _)) = phrase(&own, PER_ATTEMPT)
        && phrase(&format!("{text} {about}"), REUSE).is_none()
    {
        let quote = quote(&key.parameter.description, words);
        found.push(note(&rule::B203).because([Evidence {
            place: key.at().clone(),
            quote,
            weight: Confidence::Medium,
        }]));
    }
    let declared = window(context, subject, key);
    if declared.is_none() {
        found.push(note(&rule::B204));
    }
    if let (Some(contract), Some(seconds)) = (context.contract, declared)
        && seconds < contract.longest_retry_chain.as_secs()
    {
        let chain = contract.longest_retry_chain.as_secs();
        let message =
            format!("keys are remembered for {seconds} s, and the longest chain of retries is {chain} s");
        found.push(Finding::new(&rule::B205, Confidence::Medium, key.at().clone(), message));
    }
    if phrase(&format!("{own} {about}"), SCOPE).is_none() {
        found.push(note(&rule::B209));
    }
    if phrase(&format!("{text} {about}"), SAMENESS).is_none() {
        found.push(note(&rule::B214));
    }
    if key.parameter.place_in == In::Query {
        found.push(note(&rule::B210));
    }
    found
}

/// What the document's introduction says of keys.
fn about(context: &Context<'_>) -> String {
    sentences(&prose(&context.inventory.about)).filter(|sentence| sentence.contains("idempot")).collect()
}

/// The replay window that a document states for a key, in seconds.
pub(super) fn window(context: &Context<'_>, subject: Subject<'_>, key: &Candidate<'_>) -> Option<u64> {
    let operation = subject.operation;
    let in_object =
        operation.extension("x-idempotency").and_then(|found| found.node.text_of("replay-window"));
    let alone = operation.extension("x-idempotency-key-ttl").and_then(|found| found.node.text());
    let told = operation.prose();
    let told = || sentences(&told).filter(|sentence| sentence.contains("idempot")).find_map(duration);
    in_object
        .or(alone)
        .and_then(|text| duration(&prose(text)))
        .or_else(|| duration(&key.prose()))
        .or_else(told)
        .or_else(|| duration(&about(context)))
}

/// What its schema says.
fn shaped(key: &Candidate<'_>) -> Vec<Finding> {
    let parameter = key.parameter;
    let text = key.prose();
    let mut found = Vec::new();
    let mut note = |rule: &'static rule::Rule| {
        found.push(
            Finding::new(rule, Confidence::High, key.at().clone(), rule.finds).because([key.evidence()]),
        );
    };
    let bounds = ["maxLength", "pattern", "format", "enum", "const"];
    if !bounds.iter().any(|name| parameter.shaped(name).is_some()) && phrase(&text, BOUNDS).is_none() {
        note(&rule::B206);
    }
    let format = parameter.shaped("format").and_then(Node::text);
    if format == Some("uuid") && phrase(&text, &["any string", "any unique string", "arbitrary"]).is_some() {
        note(&rule::B207);
    }
    let example = ["example", "default", "examples"].iter().find_map(|name| parameter.shaped(name));
    if let Some(example) = example.filter(|one| **one != Node::Null && one.text() != Some("")) {
        note(&rule::B208);
        let bare = example.text().is_some_and(|text| !text.starts_with('"'));
        let structured =
            ["structured field", "structured header", "rfc 8941", "rfc8941", "rfc 9651", "rfc9651"];
        if bare && phrase(&text, &structured).is_some() {
            note(&rule::B215);
        }
    }
    found
}

/// B211: one API, one spelling, one carrier.
fn spellings(context: &Context<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut names: BTreeMap<String, (&Candidate<'_>, BTreeSet<usize>)> = BTreeMap::new();
    for subject in context.subjects().filter(|one| one.changes()) {
        let sure = |one: &&Candidate<'_>| {
            one.standing == Standing::Key && !one.parameter.nested && one.confidence == Confidence::High
        };
        let keys: Vec<&Candidate<'_>> = subject.candidates.iter().filter(sure).collect();
        for key in keys.iter().filter(|one| one.parameter.place_in == In::Header) {
            let spelled = key.parameter.name.to_lowercase();
            names.entry(spelled).or_insert((key, BTreeSet::new())).1.insert(subject.number);
        }
        if keys.len() > 1 {
            let place = keys[1].at().clone();
            let finding = Finding::new(&rule::B211, Confidence::High, place, "two keys on one operation");
            found.push(finding.on([subject.number]).because(keys.iter().map(|one| one.evidence())));
        }
    }
    if names.len() > 1 {
        let spelled: Vec<&str> = names.values().map(|(key, _)| key.parameter.name).collect();
        let message = format!("the key's header has {} names: {}", names.len(), spelled.join(", "));
        if let Some((key, users)) = names.values().min_by_key(|(_, users)| users.len()) {
            let finding = Finding::new(&rule::B211, Confidence::High, key.at().clone(), message);
            found.push(finding.on(users.iter().copied()));
        }
    }
    found
}

/// B212: required here, optional there.
fn requirement(context: &Context<'_>) -> Option<Finding> {
    let changing = context.subjects().filter(|one| one.changes());
    let keys: Vec<_> = changing.filter_map(|one| Some((one.number, one.key()?))).collect();
    let (required, optional): (Vec<_>, Vec<_>) = keys.iter().partition(|(_, key)| key.parameter.required);
    let ((_, first), _) = (optional.first()?, required.first()?);
    let message = format!("{} of {} keys are required", required.len(), keys.len());
    let finding = Finding::new(&rule::B212, Confidence::High, first.at().clone(), message);
    Some(finding.on(optional.iter().map(|(number, _)| *number)))
}
