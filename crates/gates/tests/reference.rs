//! The reference page has a row for each field, and no other.

#![allow(clippy::expect_used, reason = "a test says so by panicking")]

use std::collections::BTreeMap;

use retrysafe_gates::plan::{CrashPlan, FIELDS, Outside, Plan, VerifyPlan};

const PAGE: &str = include_str!("../../../docs/reference/gates.md");
const GUIDE: &str = include_str!("../../../docs/guides/gates.md");

#[test]
fn the_page_lists_every_field_and_no_other() {
    let mut rows: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut table = "";
    for line in PAGE.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            table = heading;
        } else if let Some((field, _)) = line.strip_prefix("| `").and_then(|rest| rest.split_once('`')) {
            rows.entry(table).or_default().push(field);
        }
    }
    let fields: BTreeMap<&str, Vec<&str>> =
        FIELDS.iter().map(|(table, fields)| (*table, fields.to_vec())).collect();
    assert_eq!(rows, fields);
}

#[test]
fn every_plan_of_the_guide_is_one() {
    let blocks: Vec<&str> =
        GUIDE.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let (whole, parts) = blocks.split_first().expect("the guide has plans");
    Plan::parse(whole, "the guide").expect("the first is whole");
    let crash = parts.iter().find(|part| part.contains("[crash]")).expect("one is for the crash gate");
    for part in parts {
        // A table below [crash] stands where [crash] does.
        let above = if part.contains("[crash.") { crash } else { "" };
        let text = format!("{whole}\n{above}\n{part}");
        Plan::parse(&text, "the guide").expect("the others add to it");
        if part.contains("[[claim]]") {
            VerifyPlan::parse_with(&text, "the guide", Outside::NOTHING).expect("claims too");
        }
        if part.contains("[crash") {
            CrashPlan::parse_with(&text, "the guide", Outside::NOTHING).expect("crashes too");
        }
    }
}

#[test]
fn every_fault_of_a_plan_is_told_in_one_answer_with_its_place() {
    let text = "base = \"ftp://x\"\nbases = 1\n[request]\npath = \"orders\"\nbody = \"{{nonse}}\"\n[concurrency]\nrequests = 1\ndetect = 2.0\n[[observe]]\nkind = \"sql\"\nurl = \"oracle:x\"\n";
    let faults = Plan::parse(text, "gates.toml").expect_err("it is wrong in many places");
    let places: Vec<(usize, &str)> =
        faults.faults.iter().map(|fault| (fault.line, fault.path.as_str())).collect();
    let expected = [
        (1, "base"),
        (2, "bases"),
        (4, "request.path"),
        (5, "request.body"),
        (7, "concurrency.requests"),
        (8, "concurrency.detect"),
        (9, "observe[1].query"),
        (11, "observe[1].url"),
    ];
    for place in expected {
        assert!(places.contains(&place), "{place:?} is missing in {faults}");
    }
    assert!(faults.to_string().ends_with("the plan is not loaded"), "{faults}");
}

#[test]
fn a_plan_that_cannot_tell_its_operations_apart_is_refused() {
    let plan = |body: &str, key: &str| {
        let text = format!(
            "base = 'http://h'\n[request]\npath = '/o'\nbody = '{body}'\n{key}\n[[observe]]\nkind = 'log'\nfile = 'f'\n"
        );
        Plan::parse(&text, "gates.toml").map_err(|faults| faults.to_string())
    };
    assert!(plan("{}", "").expect_err("all the same").contains("{{nonce}}"));
    assert!(plan("{{nonce}}", "[key]\nheader = false").expect_err("no key").contains("{{key}}"));
    assert!(plan("{{nonce}} {{key}}", "[key]\nheader = false").is_ok());
}

const CONTRACT: &str = r#"
api = "Shop"
namespace = "shop"
longest_retry_chain = "24h"
unlisted = "pass"
scope = { source = "api_key", rotates = false }
failures = { policy = "A" }
carrier = { header = "X-Key", syntax = "strict" }
answers = { statuses = { idempotency_key_payload_mismatch = 422 } }
[[endpoint]]
method = "POST"
path = "/orders"
key = "required"
"#;

#[test]
fn a_contract_says_where_the_key_goes_and_what_answers_mean() {
    let outside = Outside {
        file: &|path| if path == "shop.toml" { Ok(CONTRACT.to_owned()) } else { Err("not found".to_owned()) },
        ..Outside::NOTHING
    };
    let read = |contract: &str, path: &str, more: &str| {
        let text = format!(
            "base = 'http://h'\ncontract = '{contract}'\n[request]\npath = '{path}'\nbody = '{{{{nonce}}}}'\n{more}\n[[observe]]\nkind = 'log'\nfile = 'f'\n"
        );
        Plan::parse_with(&text, "gates.toml", outside).map_err(|faults| faults.to_string())
    };
    let plan = read("shop.toml", "/orders", "").expect("a plan");
    assert_eq!(
        (plan.key.header.as_deref(), plan.key.quoted, plan.key.required),
        (Some("x-key"), true, Some(true))
    );
    let mismatch = &plan.answers.mismatch[0];
    assert_eq!(
        (mismatch.status, mismatch.contains.as_deref()),
        (422, Some("idempotency_key_payload_mismatch"))
    );
    assert_eq!(plan.answers.in_flight[0].contains.as_deref(), Some("idempotency_key_in_flight"));
    // What the plan says goes first.
    let own = read("shop.toml", "/orders", "[answers]\nin_flight = [425]").expect("a plan");
    assert_eq!((own.answers.in_flight[0].status, own.answers.mismatch[0].status), (425, 422));
    assert!(read("shop.toml", "/refunds", "").expect_err("not listed").contains("guards no POST /refunds"));
    assert!(read("other.toml", "/orders", "").expect_err("not there").contains("not found"));
}
