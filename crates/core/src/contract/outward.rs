//! What the contract tells the outside: how the layer's own answers look, and what clients do.

use std::time::Duration;

use super::{
    fields,
    model::{Answers, ClientPolicy, OwnHeader, Quota},
    section::{Item, Section, nearest},
    values::{self, show},
};
use crate::{
    answers::{self, Template},
    codes::Code,
};

/// Where the problem types are named; the code is appended.
const TYPE_BASE: &str = "/.retrysafe/errors/";
const JSON: &str = "application/json";
const PROBLEM_JSON: &str = "application/problem+json";

/// The envelopes that need no template of one's own.
#[derive(Clone, Copy)]
enum Envelope {
    Problem,
    Stripe,
}

/// The answers, as the file and the profile beneath it shape them.
pub(super) fn answers(root: &Section<'_>, beneath: Option<&Section<'_>>) -> Answers {
    let plain = Answers {
        type_base: TYPE_BASE.to_owned(),
        content_type: PROBLEM_JSON.to_owned(),
        template: None,
        statuses: Vec::new(),
        headers: Vec::new(),
    };
    let vendors = beneath.map_or(plain.clone(), |vendor| answers_on(vendor, plain));
    answers_on(root, vendors)
}

fn answers_on(root: &Section<'_>, mut answers: Answers) -> Answers {
    let Some(section) = root.get("answers").and_then(|item| item.section(fields::ANSWERS)) else {
        return answers;
    };
    let words = [("problem", Envelope::Problem), ("stripe", Envelope::Stripe)];
    let mut bundled = None;
    if let Some(Envelope::Stripe) = section.get("envelope").and_then(|item| item.word(&words)) {
        bundled = Some(answers::STRIPE.to_owned());
        answers.content_type = JSON.to_owned();
        // Its SDKs know a mismatch as 400, and obey this header before they look at a status.
        answers.statuses.push((Code::PayloadMismatch, 400));
        answers.headers.push(OwnHeader {
            name: "stripe-should-retry".to_owned(),
            when_retryable: "true".to_owned(),
            when_final: "false".to_owned(),
        });
    }
    answers.type_base = section.text("type_base", values::said).unwrap_or(answers.type_base);
    answers.content_type = section.text("content_type", values::header_value).unwrap_or(answers.content_type);
    if let Some(item) = section.get("statuses") {
        // The user's come before the envelope's.
        let own = statuses(&item);
        answers.statuses.retain(|(code, _)| own.iter().all(|(other, _)| other != code));
        answers.statuses.extend(own);
    }
    if let Some(item) = section.get("headers") {
        let own = |item: Item<'_>| own_header(&item.section(fields::OWN_HEADER)?);
        answers.headers.extend(item.list().into_iter().filter_map(own));
    }
    template(&section, bundled, &mut answers);
    answers
}

fn template(section: &Section<'_>, bundled: Option<String>, answers: &mut Answers) {
    let own = section.text("template", values::said);
    if own.is_some() && bundled.is_some() {
        section.fault("template", "two shapes for one answer", "keep either envelope or template");
    }
    let Some(source) = own.or(bundled) else { return };
    match Template::compile(&source, answers) {
        Ok(template) => answers.template = Some(template),
        Err(fault) => section.fault(
            "template",
            format!("the template does not work: {fault}"),
            "values are code, title, detail, type, status, retryable, retry_after_ms, retry_after_s: {\"error\": {{ code }}}",
        ),
    }
}

fn statuses(item: &Item<'_>) -> Vec<(Code, u16)> {
    let mut statuses = Vec::new();
    for (name, at, value) in Section::entries(item) {
        match Code::from_wire(name) {
            Some(code) => statuses.extend(value.status().map(|status| (code, status))),
            None => {
                let known = Code::ALL.map(Code::as_str);
                let help = match nearest(name, &known) {
                    Some(near) => format!("did you mean {near}?"),
                    None => "docs/errors lists the codes".to_owned(),
                };
                value.fault_at(at, format!("{name:?} is none of the layer's codes"), help);
            }
        }
    }
    statuses
}

fn own_header(section: &Section<'_>) -> Option<OwnHeader> {
    let help = "write { name = \"X-Should-Retry\", when_retryable = \"true\", when_final = \"false\" }";
    for field in ["name", "when_retryable", "when_final"] {
        section.require(field, "the header says whether a retry may help", help);
    }
    Some(OwnHeader {
        name: section.text("name", values::header)?,
        when_retryable: section.text("when_retryable", values::header_value)?,
        when_final: section.text("when_final", values::header_value)?,
    })
}

/// SPEC 7: the numbers that the client takes and the docs print.
pub(super) fn client(root: &Section<'_>, beneath: Option<&Section<'_>>) -> ClientPolicy {
    let plain = ClientPolicy {
        attempts: 3,
        elapsed: Duration::from_secs(30),
        base: Duration::from_millis(50),
        throttled_base: Duration::from_secs(1),
        cap: Duration::from_secs(20),
        retry_statuses: vec![429, 502, 503, 504],
        drop_stored_statuses: false,
        deadline_header: None,
        quota: None,
    };
    let vendors = beneath.map_or(plain.clone(), |vendor| client_on(vendor, plain));
    client_on(root, vendors)
}

fn client_on(root: &Section<'_>, mut client: ClientPolicy) -> ClientPolicy {
    let Some(section) = root.get("client").and_then(|item| item.section(fields::CLIENT)) else {
        return client;
    };
    client.attempts = section.number("attempts", 1..=100, client.attempts);
    client.elapsed = section.time("elapsed", client.elapsed);
    client.base = section.time("base", client.base);
    client.throttled_base = section.time("throttled_base", client.throttled_base);
    client.cap = section.time("cap", client.cap);
    client.retry_statuses = section.statuses("retry_statuses", client.retry_statuses);
    client.drop_stored_statuses = section.flag("drop_stored_statuses", client.drop_stored_statuses);
    client.deadline_header = section.text("deadline_header", values::header).or(client.deadline_header);
    let counted = [("attempts", Quota::Attempts), ("operations", Quota::Operations)];
    client.quota = section.get("quota").and_then(|item| item.word(&counted)).or(client.quota);
    if client.base > client.cap {
        let (base, cap) = (show(client.base), show(client.cap));
        let message = format!("the first delay ({base}) is above the longest one ({cap})");
        section.fault("base", message, format!("write a base of at most \"{cap}\""));
    }
    if let Some(odd) = client.retry_statuses.iter().find(|status| **status < 400) {
        section.fault(
            "retry_statuses",
            format!("{odd} is no failure"),
            "list failures that a later attempt may not meet",
        );
    }
    client
}
