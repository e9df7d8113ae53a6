//! `core` decides and never acts (design 10, invariant 1): no clock, no randomness, no I/O, no runtime.

use serde_json::Value;

use super::Finding;
use super::source::code;
use super::tree::{Tree, numbered};

const SOURCES: &str = "crates/core/src/";
const MANIFEST: &str = "crates/core/Cargo.toml";

/// What acting looks like in source. Tests of `core` live under the same rule: they need none of it either.
const FORBIDDEN: &[&str] = &[
    "SystemTime",
    "Instant::now",
    "Timestamp::now",
    "Zoned::now",
    "getrandom",
    "fastrand",
    "rand::",
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "tokio",
];

/// Crates whose whole purpose is to act.
const FORBIDDEN_CRATES: &[&str] =
    &["tokio", "getrandom", "fastrand", "rand", "hyper", "axum", "rusqlite", "rustix"];

pub(super) fn check(tree: &Tree, metadata: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut files = 0;
    for (path, text) in tree.under(SOURCES, &["rs"]) {
        files += 1;
        for (number, line) in numbered(text) {
            for word in FORBIDDEN.iter().filter(|word| code(line).contains(**word)) {
                findings.push(Finding::line(
                    path,
                    number,
                    format!("core may not use {word}: pass the time, the entropy or the bytes in"),
                ));
            }
        }
    }
    if files == 0 {
        findings.push(Finding::whole(SOURCES, "no source found: was core moved without moving this check?"));
    }
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let core = packages.iter().find(|package| package["name"] == "retrysafe-core");
    for dependency in core.and_then(|core| core["dependencies"].as_array()).into_iter().flatten() {
        let name = dependency["name"].as_str().unwrap_or_default();
        if dependency["kind"].is_null() && FORBIDDEN_CRATES.contains(&name) {
            findings.push(Finding::whole(MANIFEST, format!("core may not depend on {name}")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_clock_in_core_is_found_and_a_comment_about_one_is_not() {
        let tree = Tree::fixture(&[(
            "crates/core/src/a.rs",
            "// never SystemTime\nlet now = std::time::SystemTime::now();\n",
        )]);
        let found = check(&tree, &json!({}));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].at, "crates/core/src/a.rs:2");
    }

    #[test]
    fn other_crates_may_read_clocks() {
        let tree = Tree::fixture(&[
            ("crates/core/src/lib.rs", ""),
            ("crates/store/src/lib.rs", "let now = Instant::now();"),
        ]);
        assert!(check(&tree, &json!({})).is_empty());
    }

    #[test]
    fn a_runtime_among_the_dependencies_is_found_but_not_among_those_of_tests() {
        let tree = Tree::fixture(&[("crates/core/src/lib.rs", "")]);
        let with = |kind: Value| json!({ "packages": [{ "name": "retrysafe-core", "dependencies": [{ "name": "tokio", "kind": kind }] }] });
        assert_eq!(check(&tree, &with(Value::Null)).len(), 1);
        assert!(check(&tree, &with(json!("dev"))).is_empty());
    }

    #[test]
    fn a_moved_core_is_noticed() {
        assert_eq!(check(&Tree::fixture(&[]), &json!({})).len(), 1);
    }
}
