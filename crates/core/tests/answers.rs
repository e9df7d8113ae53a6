//! The layer's own answers, as problems and in an API's own envelope.
#![allow(clippy::panic)] // helpers fail the test that calls them

use std::time::Duration;

use retrysafe_core::{
    answers::{Rendered, render},
    codes::Code,
    contract::{Answers, Contract},
    decide::Refusal,
};
use serde_json::{Value, json};

fn answers(table: &str) -> Answers {
    let text = format!("{}\n{table}", include_str!("contract/small.toml"));
    Contract::parse(&text, "retrysafe.toml").unwrap_or_else(|faults| panic!("{faults}")).answers
}

fn fault(table: &str) -> String {
    let text = format!("{}\n{table}", include_str!("contract/small.toml"));
    match Contract::parse(&text, "retrysafe.toml") {
        Ok(_) => panic!("it loads"),
        Err(faults) => faults.faults.iter().map(|fault| fault.message.clone()).collect::<Vec<_>>().join("\n"),
    }
}

fn header<'a>(answer: &'a Rendered, name: &str) -> Option<&'a str> {
    answer.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

fn body(answer: &Rendered) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {}", answer.body))
}

#[test]
fn a_refusal_is_a_problem_with_its_code() {
    let answer = render(&answers(""), Refusal::after(Code::KeyInFlight, Duration::from_millis(1200)));
    assert_eq!((answer.status, header(&answer, "content-type")), (409, Some("application/problem+json")));
    assert_eq!(header(&answer, "retry-after"), Some("2"));
    assert_eq!(
        body(&answer),
        json!({
            "type": "/.retrysafe/errors/idempotency_key_in_flight",
            "title": Code::KeyInFlight.title(),
            "status": 409,
            "detail": Code::KeyInFlight.detail(),
            "code": "idempotency_key_in_flight",
            "retryable": true,
            "retry_after_ms": 1200,
        })
    );
    let final_one = render(&answers(""), Refusal::of(Code::OutcomeUnknown));
    assert_eq!(header(&final_one, "retry-after"), None);
    assert_eq!(
        (body(&final_one)["retryable"].clone(), body(&final_one).get("retry_after_ms")),
        (json!(false), None)
    );
}

#[test]
fn a_401_names_a_way_in() {
    let answer = render(&answers(""), Refusal::of(Code::ScopeMissing));
    assert_eq!((answer.status, header(&answer, "www-authenticate")), (401, Some("Bearer")));
}

#[test]
fn statuses_and_headers_follow_the_contract() {
    let answers = answers(
        "[answers]\nstatuses = { idempotency_key_payload_mismatch = 422 }\n\
         headers = [{ name = \"X-Should-Retry\", when_retryable = \"yes\", when_final = \"no\" }]",
    );
    let mismatch = render(&answers, Refusal::of(Code::PayloadMismatch));
    assert_eq!((mismatch.status, body(&mismatch)["status"].clone()), (422, json!(422)));
    assert_eq!(header(&mismatch, "x-should-retry"), Some("no"));
    let in_flight = render(&answers, Refusal::of(Code::KeyInFlight));
    assert_eq!((in_flight.status, header(&in_flight, "x-should-retry")), (409, Some("yes")));
}

/// stripe-node takes every JSON body without an `error` member for a success, whatever the status.
#[test]
fn in_the_stripe_envelope_no_refusal_looks_like_success() {
    let answers = answers("[answers]\nenvelope = \"stripe\"");
    for code in Code::ALL {
        for retry_after in [None, Some(Duration::from_secs(1))] {
            let answer = render(&answers, Refusal { code, retry_after });
            let body = body(&answer);
            let error = &body["error"];
            assert_eq!(error["code"], json!(code.as_str()));
            assert!(error["message"].as_str().is_some_and(|text| text.contains(code.detail())), "{body}");
            assert!(error["type"].as_str().is_some_and(|kind| kind.ends_with("_error")), "{body}");
            assert_eq!(header(&answer, "content-type"), Some("application/json"));
            assert_eq!(
                header(&answer, "stripe-should-retry"),
                Some(if code.retryable() { "true" } else { "false" })
            );
        }
    }
    let kind = |code| body(&render(&answers, Refusal::of(code)))["error"]["type"].clone();
    assert_eq!(kind(Code::PayloadMismatch), json!("idempotency_error"));
    assert_eq!(kind(Code::OutcomeUnknown), json!("api_error"));
    assert_eq!(kind(Code::KeyMissing), json!("invalid_request_error"));
    assert_eq!(kind(Code::ScopeMissing), json!("authentication_error"));
    assert_eq!(render(&answers, Refusal::of(Code::PayloadMismatch)).status, 400);
}

#[test]
fn values_bring_their_own_quotes_and_cannot_break_out() {
    let answers = answers(
        "[answers]\ntype_base = 'https://x.example/\"}</'\ncontent_type = \"application/json\"\n\
         template = '{\"errors\": [{\"id\": {{ code }}, \"again\": {{ retryable }}, \"in\": {{ retry_after_s }}, \"at\": {{ type }}}]}'",
    );
    let error = body(&render(&answers, Refusal::of(Code::KeyEmpty)))["errors"][0].clone();
    assert_eq!(
        (&error["id"], &error["again"], &error["in"]),
        (&json!("idempotency_key_empty"), &json!(false), &Value::Null)
    );
    assert_eq!(error["at"], json!("https://x.example/\"}</idempotency_key_empty"));
}

#[test]
fn a_template_that_would_fail_later_does_not_load() {
    for (template, why) in [
        ("{\"error\": {{ code }", "line 1 of the template"),
        ("{\"error\": {{ cod }}}", "undefined"),
        ("{\"error\": \"{{ code }}\"}", "no JSON"),
        ("{\"error\": {{ code }}", "no JSON"),
        // Only some answers have a Retry-After, and this is asked for all of them.
        ("{\"wait\": {{ retry_after_ms + 1 }}}", "line 1 of the template"),
    ] {
        let message = fault(&format!("[answers]\ntemplate = '{template}'"));
        assert!(message.contains(why), "{template}: {message}");
    }
    assert!(fault("[answers]\nenvelope = \"stripe\"\ntemplate = '{}'").contains("two shapes"));
}
