//! The crash gate against servers that are killed as processes of their own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by panicking")]

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use retrysafe_gates::crash;
use retrysafe_gates::plan::{CrashPlan, Outside};
use retrysafe_gates::report::{Report, Verdict};
use retrysafe_gates::safety::Allowance;

fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port()
}

fn gate(name: &str, provider: bool, more: &str, folder: &Path) -> Report {
    let (own, stub) = (port(), port());
    let mut command = vec![env!("CARGO_BIN_EXE_mutant").to_owned(), name.to_owned()];
    command.extend(["--listen".to_owned(), format!("127.0.0.1:{own}")]);
    command.extend(["--state".to_owned(), folder.join("claims").display().to_string()]);
    if provider {
        command.extend(["--provider".to_owned(), format!("127.0.0.1:{stub}")]);
    }
    let text = format!(
        r#"
        base = "http://127.0.0.1:{own}"
        [request]
        path = "/orders"
        headers = {{ Authorization = "Bearer alice" }}
        body = '{{"amount": 4200, "note": "{{{{nonce}}}}"}}'
        [answers]
        in_flight = [409]
        mismatch = [422]
        [[observe]]
        kind = "stub"
        [stub]
        listen = "127.0.0.1:{stub}"
        [crash]
        command = {command:?}
        ready = "/health"
        settled_within = "2s"
        {more}
        "#
    );
    let plan = CrashPlan::parse_with(&text, "gates.toml", Outside::NOTHING)
        .unwrap_or_else(|faults| panic!("{faults}"));
    let allowance = Allowance { owned: None, time: Duration::from_secs(120) };
    crash::run(&plan, &allowance, 7, &mut |_| ()).unwrap_or_else(|not_run| panic!("{}", not_run.0))
}

fn verdict(report: &Report, id: &str) -> Option<Verdict> {
    report.part(id).unwrap_or_else(|| panic!("{id} is missing")).verdict
}

#[test]
fn a_call_that_is_repeated_under_one_key_passes_and_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = gate("sound", true, "sweep = 0\nlease = \"300ms\"", folder.path());
    for id in ["K1", "K2", "K3", "K5", "K6"] {
        assert_eq!(verdict(&report, id), Some(Verdict::Pass), "{id}: {report:#?}");
    }
    assert_eq!(verdict(&report, "K4"), None);
    let first = report.part("K1").expect("it ran");
    assert!(first.said.iter().any(|said| said.contains("relies on its provider")), "{first:?}");
}

#[test]
fn a_new_key_downstream_and_a_claim_without_a_lease_fail_at_a_kill() {
    for (name, said) in [("new-downstream-key", "different keys"), ("stuck-after-crash", "stuck")] {
        let folder = tempfile::tempdir().expect("a folder");
        let report = gate(name, true, "sweep = 0", folder.path());
        let first = report.part("K1").expect("it ran");
        assert_eq!(first.verdict, Some(Verdict::Fail), "{name}: {report:#?}");
        assert!(first.said.iter().any(|it| it.contains(said)), "{name}: {first:?}");
    }
}

#[test]
fn an_api_that_calls_nobody_is_not_hit_and_not_passed() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = gate("sound", false, "sweep = 0", folder.path());
    assert_eq!(verdict(&report, "K1"), Some(Verdict::Inconclusive), "{report:#?}");
    assert_eq!(report.verdict, Verdict::Inconclusive);
}

#[test]
fn a_sweep_meets_system_calls_or_says_what_it_lacks() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = gate("sound", true, "sweep = 3", folder.path());
    let sweep = report.part("K4").expect("it is there");
    let traced = sweep.rounds > 0;
    // Without strace, or without the right to trace, it must not be a PASS.
    assert_eq!(sweep.verdict == Some(Verdict::Pass), traced, "{sweep:?}");
    assert!(traced || !sweep.change.is_empty(), "{sweep:?}");
}
