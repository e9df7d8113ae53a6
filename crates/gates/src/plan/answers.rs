//! Where the key goes and what answers mean: by the plan, else by the contract that it names, else by what most APIs do.

use retrysafe_core::contract::{
    Contract, Endpoint,
    walk::{Item, Section, header, said},
};

use super::contract;
use super::fields::{ANSWERS, KEY, SIGN};
use super::read::Outside;
use super::{Answers, KeyPlace, Operation, Sign, Values};

/// Headers of one sending: they say nothing about the answer.
const VARYING: &[&str] = &[
    "date",
    "connection",
    "keep-alive",
    "transfer-encoding",
    "age",
    "server-timing",
    "x-request-id",
    "x-correlation-id",
    "x-response-time",
    "x-runtime",
    "x-process-time",
    "traceparent",
];

/// What the contract says of the operation, if the plan names one.
pub(super) struct Stated {
    contract: Contract,
    /// Its place in the contract.
    endpoint: Endpoint,
}

pub(super) fn stated(root: &Section<'_>, request: &Operation, outside: Outside<'_>) -> Option<Stated> {
    let item = root.get("contract")?;
    let contract = item.text(|path| {
        let help = "name a contract that `retrysafe check` accepts".to_owned();
        let text =
            (outside.file)(path).map_err(|why| (format!("{path} cannot be read: {why}"), help.clone()))?;
        Contract::parse(&text, path).map_err(|faults| {
            let first = faults
                .faults
                .first()
                .map(|fault| format!("{}:{}: {}", fault.line, fault.column, fault.message));
            (format!("{path} is no contract: {}", first.unwrap_or_default()), help)
        })
    })?;
    let path = request.path.fill(&Values { id: "1".to_owned(), nonce: "1".to_owned(), ..Values::default() });
    match contract::endpoint(&contract, &request.method, &path) {
        Some(endpoint) => {
            let endpoint = endpoint.clone();
            Some(Stated { contract, endpoint })
        }
        None => {
            let message = format!("the contract guards no {} {path}", request.method);
            item.fault(message, "name an operation that it lists with a key, or leave the contract out");
            None
        }
    }
}

pub(super) fn key(root: &Section<'_>, stated: Option<&Stated>) -> Option<KeyPlace> {
    let standard = KeyPlace { header: Some("Idempotency-Key".to_owned()), quoted: false, required: None };
    let standard = stated.map_or(standard, |stated| contract::key(&stated.endpoint));
    let Some(item) = root.get("key") else { return Some(standard) };
    let section = item.section(KEY)?;
    let header = match section.get("header") {
        None => standard.header,
        // The operation itself has `{{key}}` in it.
        Some(item) if item.is_off() => None,
        Some(item) => item.text(|text| header(text).map(|_| text.to_owned())),
    };
    let required = section.get("required").map_or(standard.required, |item| item.flag());
    Some(KeyPlace { header, quoted: section.flag("quoted", standard.quoted), required })
}

pub(super) fn answers(root: &Section<'_>, stated: Option<&Stated>) -> Answers {
    let plain = |statuses: &[u16]| -> Vec<Sign> {
        statuses.iter().map(|&status| Sign { status, contains: None }).collect()
    };
    let mut answers = Answers {
        in_flight: plain(&[409, 425]),
        mismatch: plain(&[422, 409, 400]),
        not_now: Vec::new(),
        uncertain: Vec::new(),
        missing_key: plain(&[400, 422, 428]),
        replay_marker: None,
        varying_headers: VARYING.iter().map(|&name| name.to_owned()).collect(),
        mismatch_beats_in_flight: false,
    };
    if let Some(Stated { contract, endpoint }) = stated {
        contract::answers(contract, endpoint, &mut answers);
    }
    let Some(section) = root.get("answers").and_then(|item| item.section(ANSWERS)) else { return answers };
    for (field, signs) in [
        ("in_flight", &mut answers.in_flight),
        ("mismatch", &mut answers.mismatch),
        ("not_now", &mut answers.not_now),
        ("uncertain", &mut answers.uncertain),
        ("missing_key", &mut answers.missing_key),
    ] {
        if let Some(item) = section.get(field) {
            *signs = item.list().iter().filter_map(sign).collect();
        }
    }
    answers.replay_marker = section.text("replay_marker", header).or(answers.replay_marker);
    answers.varying_headers.extend(section.list("varying_headers", header, Vec::new()));
    answers.mismatch_beats_in_flight = section.flag("mismatch_beats_in_flight", false);
    answers
}

pub(super) fn sign(item: &Item<'_>) -> Option<Sign> {
    if !item.is_table() {
        return item.status().map(|status| Sign { status, contains: None });
    }
    let section = item.section(SIGN)?;
    let status = section.require("status", "an answer has a status", "write status = 409")?.status()?;
    Some(Sign { status, contains: section.text("contains", said) })
}
