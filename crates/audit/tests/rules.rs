//! Every rule and every trap, as data: what a small document is judged to be, what is found in it, and what must not be.

#![allow(clippy::unwrap_used)] // a test's helpers may fail loudly too

use std::collections::BTreeSet;

use retrysafe_audit::{Bundle, Finding, Map, Node, RULES, Report, Severity, audit};
use retrysafe_core::contract::Contract;

const FILES: &[(&str, &str)] =
    &[("rules.yaml", include_str!("data/rules.yaml")), ("traps.yaml", include_str!("data/traps.yaml"))];
const CONTRACT: &str = include_str!("data/contract.toml");

/// A document as a case writes it: without its version, where it is 3.1.0.
fn document(case: &Node) -> Bundle {
    let mut map = Map::new();
    let given = case.get("document").and_then(Node::map).unwrap();
    if !given.contains_key("swagger") && !given.contains_key("openapi") {
        map.insert("openapi".into(), Node::Text("3.1.0".into()));
    }
    map.extend(given.clone());
    Bundle::new("openapi.yaml", Node::Map(map))
}

fn words(case: &Node, key: &str) -> BTreeSet<String> {
    case.get(key).into_iter().flat_map(Node::items).filter_map(Node::text).map(str::to_owned).collect()
}

/// `A101`, or `A101 warning` where its severity is not the rule's.
fn named(finding: &Finding) -> String {
    let weaker = finding.severity != finding.rule.severity;
    let severity = if weaker { format!(" {}", finding.severity.as_str()) } else { String::new() };
    format!("{}{severity}", finding.rule.id)
}

fn judged(report: &Report<'_>, name: &str) -> String {
    let (_, _, judgement) = report.judged().find(|(_, operation, _)| operation.name() == name).unwrap();
    format!("{} {}", judgement.effect.as_str(), judgement.verdict.as_str())
}

fn each(mut see: impl FnMut(&str, &Node, &Report<'_>)) {
    let contract = Contract::parse(CONTRACT, "contract.toml").unwrap();
    for (file, text) in FILES {
        let cases = Node::parse(text).unwrap();
        for case in cases.items() {
            let name = format!("{file}: {}", case.text_of("case").unwrap());
            let bundle = document(case);
            let compared = case.flag("contract") == Some(true);
            let report = audit(&bundle, compared.then_some(&contract)).unwrap();
            see(&name, case, &report);
        }
    }
}

#[test]
fn every_case_is_judged_as_it_says() {
    let mut wrong = Vec::new();
    each(|name, case, report| {
        for (operation, expected) in case.get("judged").into_iter().flat_map(Node::entries) {
            let judged = judged(report, operation);
            if Some(judged.as_str()) != expected.text() {
                wrong.push(format!("{name}: {operation} is {judged}, not {}", expected.text().unwrap()));
            }
        }
        let found: BTreeSet<String> = report.findings.iter().map(named).collect();
        for finds in words(case, "finds").difference(&found) {
            wrong.push(format!("{name}: {finds} is not found; found are {found:?}"));
        }
        for not in words(case, "not") {
            if found.iter().any(|found| found.starts_with(&not)) {
                wrong.push(format!("{name}: {not} is found"));
            }
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A rule that nothing finds is a rule nobody has seen working; one that always fires is none either.
#[test]
fn every_rule_is_found_in_one_case_and_denied_in_another() {
    let (mut found, mut denied) = (BTreeSet::new(), BTreeSet::new());
    each(|_, case, report| {
        found.extend(report.findings.iter().map(|finding| finding.rule.id));
        denied.extend(words(case, "not"));
    });
    for rule in RULES.iter().filter(|rule| !rule.id.starts_with(['W', 'P', 'G'])) {
        assert!(found.contains(rule.id), "{} is found in no case", rule.id);
        assert!(denied.contains(rule.id), "{} is denied in no case", rule.id);
    }
}

#[test]
fn every_finding_has_a_place_that_is_there_and_a_short_quotation() {
    each(|name, case, report| {
        let bundle = case.get("document").unwrap();
        for finding in &report.findings {
            assert!(bundle.at(&finding.place.pointer).is_some(), "{name}: {}", finding.place.pointer);
            for evidence in &finding.evidence {
                assert!(evidence.quote.chars().count() <= 121, "{name}: {}", evidence.quote);
            }
        }
        for (_, operation, judgement) in report.judged() {
            assert!(!judgement.evidence.is_empty(), "{name}: {} has no evidence", operation.name());
        }
    });
}

/// Mutations of every case: no broken document makes a panic.
#[test]
fn broken_documents_do_not_panic() {
    for (_, text) in FILES {
        for case in Node::parse(text).unwrap().items() {
            for broken in
                [Node::Null, Node::Text("x".into()), Node::Number(1.0), Node::List(vec![Node::Null])]
            {
                for depth in 1..7 {
                    let mut root = document(case);
                    let replaced = replace(case.get("document").unwrap(), &broken, depth);
                    if let Node::Map(mut map) = replaced {
                        map.insert("openapi".into(), Node::Text("3.1.0".into()));
                        root = Bundle::new("x", Node::Map(map));
                    }
                    let errors = audit(&root, None).unwrap().count(Severity::Error);
                    assert!(errors < 1_000);
                }
            }
        }
    }
}

/// Everything at one depth is something else.
fn replace(node: &Node, with: &Node, depth: usize) -> Node {
    if depth == 0 {
        return with.clone();
    }
    match node {
        Node::Map(map) => {
            Node::Map(map.iter().map(|(key, value)| (key.clone(), replace(value, with, depth - 1))).collect())
        }
        Node::List(list) => Node::List(list.iter().map(|value| replace(value, with, depth - 1)).collect()),
        other => other.clone(),
    }
}
