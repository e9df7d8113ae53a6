//! `retrysafe gate` as a command: its exit codes, and the forms of its report.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says so by panicking")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use retrysafe_mutants::{Running, Terms, find};

fn server(name: &str) -> Running {
    // All requests are to be inside of the window, however busy the machine is.
    let gap = Some(Duration::from_millis(50));
    Running::start(find(name).expect("a name"), &Terms { gap, ..Terms::default() }).expect("a port")
}

fn plan(running: &Running, more: &str) -> String {
    let address = running.addresses()[0];
    format!(
        r#"
        base = "http://{address}"
        [request]
        path = "/orders"
        headers = {{ Authorization = "Bearer {{{{env.GATE_TOKEN}}}}" }}
        body = '{{"amount": 4200, "note": "{{{{nonce}}}}"}}'
        [answers]
        in_flight = [409]
        mismatch = [422]
        [[observe]]
        kind = "list"
        url = "/orders?note={{{{nonce}}}}"
        jsonpath = "$[*]"
        {more}
        "#
    )
}

fn gate(folder: &Path, text: &str, arguments: &[&str]) -> Output {
    std::fs::write(folder.join("gates.toml"), text).expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_retrysafe"));
    command.current_dir(folder).env("GATE_TOKEN", "s3cret").arg("gate").args(arguments);
    command.output().expect("it starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_sound_server_passes_and_a_broken_one_does_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let sound = server("sound");
    let passed = gate(folder.path(), &plan(&sound, ""), &["concurrency", "--rounds", "3"]);
    assert_eq!(passed.status.code(), Some(0), "{}", text(&passed));
    assert!(text(&passed).contains("PASS") && text(&passed).contains("power: "), "{}", text(&passed));

    let broken = server("check-then-insert");
    let arguments =
        ["concurrency", "--rounds", "3", "--json", "r.json", "--html", "r.html", "--junit", "r.xml"];
    let failed = gate(folder.path(), &plan(&broken, ""), &arguments);
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed));
    assert!(text(&failed).contains("curl -si") && text(&failed).contains("counted 20"), "{}", text(&failed));
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a report");
    let json: serde_json::Value = serde_json::from_str(&read("r.json")).expect("JSON");
    assert_eq!(json["verdict"], "FAIL");
    assert!(read("r.html").contains("<svg") && read("r.xml").contains("<failure"));
    for everything in [text(&failed), read("r.json"), read("r.html"), read("r.xml")] {
        assert!(!everything.contains("s3cret"), "a report is shared: credentials are not in it");
    }
}

#[test]
fn what_cannot_be_judged_and_what_cannot_be_read_exit_with_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let serial = server("serial");
    let unclear = gate(folder.path(), &plan(&serial, ""), &["concurrency", "--rounds", "3"]);
    assert_eq!(unclear.status.code(), Some(2), "{}", text(&unclear));
    assert!(
        text(&unclear).contains("INCONCLUSIVE") && text(&unclear).contains("change: "),
        "{}",
        text(&unclear)
    );

    let wrong = gate(folder.path(), "base = 7\n", &["concurrency"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        text(&wrong).contains("gates.toml:1:8") && text(&wrong).contains("`request`"),
        "{}",
        text(&wrong)
    );
}

#[test]
fn a_dry_run_sends_nothing_and_a_foreign_target_needs_its_owners_word() {
    let folder = tempfile::tempdir().expect("a folder");
    let unreachable = plan(&server("sound"), "").replace("http://127.0.0.1", "http://gates.invalid");
    let dry = gate(folder.path(), &unreachable, &["concurrency", "--dry-run"]);
    assert_eq!(dry.status.code(), Some(0), "{}", text(&dry));
    let refused = gate(folder.path(), &unreachable, &["concurrency"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused).contains("--i-own-the-target-and-accept"), "{}", text(&refused));
}

#[test]
fn all_runs_what_the_plan_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let sound = server("sound");
    let claim = "[[claim]]\nmethod = \"PUT\"\npath = \"/appends/{{id}}\"\nread = \"/appends/{{id}}\"\nbody = '{\"text\": \"x\"}'\n";
    let output = gate(folder.path(), &plan(&sound, claim), &["all", "--rounds", "2", "--json", "-"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let reports: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    assert_eq!((&reports[0]["verdict"], &reports[1]["verdict"]), (&"PASS".into(), &"FAIL".into()));
}
