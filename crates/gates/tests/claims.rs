//! Operations that are said to be idempotent by their methods: what repeats something is found, what does not passes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by panicking")]

use std::time::Duration;

use retrysafe_gates::plan::{Outside, VerifyPlan};
use retrysafe_gates::report::{Part, Verdict};
use retrysafe_gates::safety::Allowance;
use retrysafe_gates::verify;
use retrysafe_mutants::{Running, Terms, find};

fn verified(claim: &str, more: &str) -> Part {
    let running = Running::start(find("sound").expect("a name"), &Terms::default()).expect("a port");
    let address = running.addresses()[0];
    let text = format!("base = \"http://{address}\"\n{more}\n[[claim]]\n{claim}\n");
    let plan = VerifyPlan::parse_with(&text, "gates.toml", Outside::NOTHING)
        .unwrap_or_else(|faults| panic!("{faults}"));
    let allowance = Allowance { owned: None, time: Duration::from_secs(60) };
    let mut report = verify::run(&plan, &allowance, 7, &mut |_| ());
    assert_eq!(report.parts.len(), 1);
    report.parts.remove(0)
}

const SETUP: &str = "[claim.setup]\npath = \"/notes\"\nbody = '{\"text\": \"first\"}'\nid = \"/note/id\"\n";

#[test]
fn sound_operations_pass_and_an_update_time_is_passed_over() {
    let put = verified(
        "method = \"PUT\"\npath = \"/notes/{{id}}\"\nread = \"/notes/{{id}}\"\nbody = '{\"text\": \"{{nonce}}\"}'",
        "",
    );
    assert_eq!(put.verdict, Some(Verdict::Pass), "{put:?}");
    let delete = verified(
        &format!("method = \"DELETE\"\npath = \"/notes/{{{{id}}}}\"\nread = \"/notes/{{{{id}}}}\"\n{SETUP}"),
        "",
    );
    assert_eq!(delete.verdict, Some(Verdict::Pass), "204, then 404: {delete:?}");
}

#[test]
fn what_repeats_something_is_found() {
    for (method, path, body, setup) in [
        ("PUT", "/appends/{{id}}", "body = '{\"text\": \"{{nonce}}\"}'", ""),
        ("PATCH", "/counters/{{id}}", "body = '{\"add\": 1}'", ""),
        ("DELETE", "/stacks/{{id}}", "", SETUP),
    ] {
        let read = path;
        let part = verified(
            &format!("method = \"{method}\"\npath = \"{path}\"\nread = \"{read}\"\n{body}\n{setup}"),
            "",
        );
        assert_eq!(part.verdict, Some(Verdict::Fail), "{method} {path}: {part:?}");
        assert!(part.said.iter().any(|said| said.contains("changed the state")), "{part:?}");
        assert!(part.counterexample.is_some_and(|example| !example.curl.is_empty()));
    }
}

#[test]
fn c11_an_effect_beside_the_state_is_found_by_an_observer() {
    let claim = "method = \"PUT\"\npath = \"/audited/{{id}}\"\nread = \"/audited/{{id}}\"\nbody = '{\"text\": \"{{nonce}}\"}'";
    assert_eq!(verified(claim, "").verdict, Some(Verdict::Pass), "the state alone does not show it");
    let observer =
        "[[observe]]\nkind = \"list\"\nname = \"audit\"\nurl = \"/audit/{{id}}\"\njsonpath = \"$[*]\"\n";
    let part = verified(claim, observer);
    assert_eq!(part.verdict, Some(Verdict::Fail), "{part:?}");
    assert!(part.said.iter().any(|said| said.contains("`audit`")), "{part:?}");
}

#[test]
fn a_late_retry_of_an_older_write_is_told_and_is_no_failure() {
    let claim = "method = \"PUT\"\npath = \"/notes/{{id}}\"\nread = \"/notes/{{id}}\"\nbody = '{\"text\": \"old {{nonce}}\"}'\nnewer_body = '{\"text\": \"new\"}'";
    let part = verified(claim, "");
    assert_eq!(part.verdict, Some(Verdict::Pass), "{part:?}");
    assert!(part.said.iter().any(|said| said.contains("lost update")), "{part:?}");
}

#[test]
fn a_claim_that_cannot_be_seen_is_inconclusive() {
    let part = verified(
        "method = \"PUT\"\npath = \"/notes/{{id}}\"\nread = \"/notes/other\"\nbody = '{\"text\": \"{{nonce}}\"}'",
        "",
    );
    assert_eq!(part.verdict, Some(Verdict::Inconclusive), "{part:?}");
    let part = verified("method = \"PATCH\"\npath = \"/nowhere/{{id}}\"\nread = \"/notes/{{id}}\"", "");
    assert_eq!(part.verdict, Some(Verdict::Inconclusive), "{part:?}");
}
