//! `retrysafe design` as a process: from answers to a contract that passes `retrysafe check`.

#![allow(clippy::unwrap_used)] // a test's helpers may fail loudly too

mod support;

use support::{retrysafe, text};

const ANSWERS: &str = "api = 'Shop'\nendpoints = ['POST /orders']\nirreversible_calls = false\ncallers = 'third_parties'\nidentity = 'api_key'\n";

#[test]
fn a_contract_and_its_reasons_are_written_and_pass_the_check() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("answers.toml"), ANSWERS).unwrap();
    let args = ["design", "--answers", "answers.toml", "--record", "why.md", "--save-answers", "all.toml"];
    let output = retrysafe(folder.path(), &args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    assert!(
        said.contains("assumed store = relational") && said.contains("retrysafe.toml is written"),
        "{said}"
    );
    assert!(retrysafe(folder.path(), &["check"]).status.success());
    let record = std::fs::read_to_string(folder.path().join("why.md")).unwrap();
    assert!(record.contains("## Reasons, by question") && record.contains("Removed"), "{record}");
    // What is there is not overwritten.
    assert_eq!(retrysafe(folder.path(), &args).status.code(), Some(2));
    // The saved answers give the same.
    let again = ["design", "--answers", "all.toml", "--out", "again.toml", "--record", "again.md"];
    assert!(retrysafe(folder.path(), &again).status.success());
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(read("retrysafe.toml"), read("again.toml"));
}

#[test]
fn another_answer_shows_its_difference_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("answers.toml"), ANSWERS).unwrap();
    let output = retrysafe(
        folder.path(),
        &["design", "--answers", "answers.toml", "--set", "longest_retry_chain=10d"],
    );
    let page = text(&output.stdout);
    assert!(output.status.success() && page.contains("+ windows = { replay = \"10d\""), "{page}");
    assert!(page.contains("- windows = { replay = \"72h\""), "{page}");
    assert!(!folder.path().join("retrysafe.toml").exists());
}

#[test]
fn operations_come_from_a_document() {
    let folder = tempfile::tempdir().unwrap();
    let api = "openapi: 3.1.0\npaths:\n  /orders/search: {post: {operationId: searchOrders, responses: {'200': {description: x}}}}\n  /orders: {post: {responses: {'201': {description: x}}}}\n  /orders/{id}: {delete: {responses: {}}}\n";
    std::fs::write(folder.path().join("openapi.yaml"), api).unwrap();
    let set = [
        "--set",
        "api=Shop",
        "--set",
        "callers=own",
        "--set",
        "identity=api_key",
        "--set",
        "irreversible_calls=no",
    ];
    let output = retrysafe(folder.path(), &[&["design", "--openapi", "openapi.yaml"], &set[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let contract = std::fs::read_to_string(folder.path().join("retrysafe.toml")).unwrap();
    assert_eq!(contract.matches("[[endpoint]]").count(), 2, "a search is none");
    assert!(contract.contains("path = \"/orders\"\nkey = \"required\""));
    // Nothing unlisted passes: a DELETE that is not listed would be refused.
    assert!(
        contract.contains("unlisted = \"refuse\"")
            && contract.contains("path = \"/orders/{id}\"\nkey = \"optional\"")
    );
}

#[test]
fn what_only_the_owner_knows_is_asked_for_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (args, said) in [
        (
            &["design", "--set", "api=Shop"][..],
            "only you can answer endpoints, irreversible_calls, callers, identity",
        ),
        (&["design", "--set", "colour=red"], "no such question"),
        (&["design", "--answers", "none.toml"], "cannot be read"),
        (&["design", "--set", "store"], "FIELD=VALUE"),
    ] {
        let output = retrysafe(folder.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(said), "{args:?}: {}", text(&output.stderr));
    }
    let output = retrysafe(folder.path(), &["design", "--questions"]);
    assert!(output.status.success() && text(&output.stdout).contains("6. longest_retry_chain"));
}
