//! What the contract tells the outside: how the layer's own answers look, and what clients do.

use std::time::Duration;

use super::{
    fields,
    model::{Answers, ClientPolicy, OwnHeader},
    section::Section,
    values::{self, show},
};
use crate::codes::Code;

/// Where the problem types are named; the code is appended.
const TYPE_BASE: &str = "/.retrysafe/errors/";
const PROBLEM_JSON: &str = "application/problem+json";

pub(super) fn answers(root: &Section<'_>) -> Answers {
    let mut answers = Answers {
        type_base: TYPE_BASE.to_owned(),
        content_type: PROBLEM_JSON.to_owned(),
        template: None,
        statuses: Vec::new(),
        headers: Vec::new(),
    };
    let Some(section) = root.get("answers").and_then(|item| item.section(fields::ANSWERS)) else {
        return answers;
    };
    answers.type_base = section.text("type_base", values::said).unwrap_or(answers.type_base);
    answers.template = section.text("template", values::said);
    answers.content_type = section.text("content_type", values::header_value).unwrap_or(answers.content_type);
    if let Some(item) = section.get("statuses") {
        for (name, at, value) in Section::entries(&item) {
            let Some(code) = Code::from_wire(name) else {
                let help = "the codes and their default statuses are listed in docs/reference/contract.md";
                value.fault_at(at, format!("{name:?} is none of the layer's codes"), help);
                continue;
            };
            answers.statuses.extend(value.status().map(|status| (code, status)));
        }
    }
    if let Some(item) = section.get("headers") {
        let headers = item.list();
        answers.headers =
            headers.into_iter().filter_map(|item| own_header(&item.section(fields::OWN_HEADER)?)).collect();
    }
    answers
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
pub(super) fn client(root: &Section<'_>) -> ClientPolicy {
    let mut client = ClientPolicy {
        attempts: 3,
        elapsed: Duration::from_secs(30),
        base: Duration::from_millis(50),
        throttled_base: Duration::from_secs(1),
        cap: Duration::from_secs(20),
        retry_statuses: vec![429, 502, 503, 504],
        drop_stored_statuses: false,
        deadline_header: None,
    };
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
    client.deadline_header = section.text("deadline_header", values::header);
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
