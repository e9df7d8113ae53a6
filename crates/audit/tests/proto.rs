//! Services of protobuf: verdicts, the rules of family G, and what must not be found.

#![allow(clippy::unwrap_used)] // a test's helpers may fail loudly too

use std::path::Path;

use retrysafe_audit::{
    Node, Severity,
    proto::{Report, audit},
};

const CONFIG: &str = r#"{"methodConfig": [
    {"name": [{"service": "shop.Shop", "method": "CreateOrder"}, {"service": "shop.Shop", "method": "CreateKeyed"}],
     "retryPolicy": {"maxAttempts": 5, "retryableStatusCodes": ["UNAVAILABLE", "DEADLINE_EXCEEDED"]}},
    {"name": [{"service": "shop.Shop", "method": "GetOrder"}, {"service": "shop.Gone"}],
     "retryPolicy": {"maxAttempts": 5, "retryableStatusCodes": ["UNAVAILABLE", "INTERNAL"]}},
    {"name": [{"service": "shop.Shop"}], "timeout": "5s"}
]}"#;

fn report(config: Option<&str>) -> Report {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/proto");
    let mut compiler = protox::Compiler::new([&root]).unwrap();
    compiler.include_imports(true).include_source_info(true).open_file(root.join("shop.proto")).unwrap();
    let configs: Vec<_> =
        config.into_iter().map(|text| ("grpc.json".to_owned(), Node::parse(text).unwrap())).collect();
    audit(&compiler.encode_file_descriptor_set(), |file| file == "shop.proto", &configs).unwrap()
}

fn found(report: &Report, method: &str) -> Vec<String> {
    let of = report.findings.iter().filter(|one| report.rpcs[one.rpc].name == format!("shop.Shop/{method}"));
    of.map(|one| format!("{} {}", one.rule.id, one.severity.as_str())).collect()
}

#[test]
fn each_method_is_judged_by_more_than_its_name() {
    let report = report(None);
    let verdicts: Vec<(&str, &str)> =
        report.rpcs.iter().map(|rpc| (rpc.name.rsplit('/').next().unwrap(), rpc.verdict.as_str())).collect();
    assert_eq!(
        verdicts,
        [
            ("GetOrder", "safe-read"),
            ("ListOrders", "needs-human"),
            ("CreateOrder", "undocumented"),
            ("CreateUnmapped", "undocumented"),
            ("CreateKeyed", "safe-with-key"),
            ("CreateBare", "safe-with-key"),
            ("CreateDemanded", "safe-with-key"),
            ("CreateNested", "undocumented"),
            ("CreateClaimed", "idempotent-claimed"),
            ("DeleteOrder", "idempotent-claimed"),
            ("DeleteQuietly", "safe-read"),
            ("GetRid", "idempotent-claimed"),
            ("UploadParts", "undocumented"),
            ("Frobnicate", "needs-human"),
            ("RunQuery", "needs-human"),
            ("CreateCounted", "undocumented"),
        ]
    );
    assert_eq!(report.rpcs[2].line, Some(17));
}

#[test]
fn each_rule_is_found_where_it_is_due_and_nowhere_else() {
    let report = report(None);
    for (method, rules) in [
        ("GetOrder", vec![]),
        ("ListOrders", vec![]),
        ("CreateOrder", vec!["G801 error"]),
        // Nothing but its name says that it changes something.
        ("CreateUnmapped", vec!["G801 warning"]),
        ("CreateKeyed", vec![]),
        ("CreateBare", vec!["G806 warning"]),
        ("CreateDemanded", vec!["G806 warning"]),
        ("CreateNested", vec!["G801 warning", "G806 warning"]),
        ("CreateClaimed", vec!["G804 warning"]),
        ("DeleteOrder", vec![]),
        ("DeleteQuietly", vec!["G805 warning"]),
        ("GetRid", vec!["G808 info"]),
        ("UploadParts", vec!["G801 warning", "G807 info"]),
        ("Frobnicate", vec![]),
        ("RunQuery", vec![]),
        ("CreateCounted", vec!["G801 warning", "G806 warning"]),
    ] {
        assert_eq!(found(&report, method), rules, "{method}");
    }
}

#[test]
fn retries_of_a_service_config_are_held_against_the_methods() {
    let with = report(Some(CONFIG));
    assert_eq!(found(&with, "CreateOrder"), ["G801 error", "G802 error", "G803 warning"]);
    // A key makes the retry safe; the code still hides an effect.
    assert_eq!(found(&with, "CreateKeyed"), ["G803 warning"]);
    assert!(found(&with, "GetOrder").is_empty(), "a read may be retried");
    assert_eq!(found(&with, "CreateUnmapped"), ["G801 warning"], "an entry without retries retries nothing");
    assert_eq!(with.unmatched, ["grpc.json: shop.Gone"]);
    // An entry without a method is the whole service.
    let whole =
        CONFIG.replace(r#""timeout": "5s""#, r#""retryPolicy": {"retryableStatusCodes": ["UNAVAILABLE"]}"#);
    let whole = report(Some(&whole));
    assert!(found(&whole, "CreateUnmapped").contains(&"G802 warning".to_owned()));
    assert_eq!(whole.count(Severity::Error), 2 + 1, "CreateOrder: undocumented, and retried by two entries");
}

#[test]
fn what_is_no_set_is_refused() {
    assert!(audit(b"\xff\xff\xff", |_| true, &[]).unwrap_err().contains("no set of descriptors"));
    assert_eq!(audit(b"", |_| true, &[]).unwrap(), Report::default());
}
