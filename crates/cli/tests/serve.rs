//! The `retrysafe` binary as a process: how it starts, answers, refuses to start, and ends.

#![allow(clippy::unwrap_used, clippy::panic)] // a test's helpers may fail loudly too

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, ExitStatus, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

mod support;

use support::serving::{GIVE_UP, Serving, exchange, retrysafe};

impl Serving {
    fn order(&self, key: &str) -> String {
        let body = r#"{"amount":700}"#;
        let head = format!(
            "POST /orders HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nAuthorization: Bearer ada\r\n\
             Idempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        exchange(self.address("gateway"), &head)
    }

    fn get(&self, server: &str, path: &str) -> String {
        let head = format!("GET {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n");
        exchange(self.address(server), &head)
    }

    fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    /// Asks it to stop and returns how it ended and what it had printed.
    fn stop(self) -> (ExitStatus, String) {
        self.terminate();
        self.ended()
    }

    /// Waits for the end of a process that was asked once already: a second signal would end it where it stands.
    fn ended(mut self) -> (ExitStatus, String) {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(started.elapsed() < GIVE_UP, "never stopped");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut printed = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        (status, printed)
    }
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn the_sample_runs_once_replays_after_a_restart_and_stops_in_order() {
    let folder = folder();
    let serving = Serving::start(folder.path(), &["--sample-ms", "0"]);
    let first = serving.order("k");
    assert!(first.starts_with("HTTP/1.1 201 "), "{first}");
    assert!(serving.get("admin", "/readyz").ends_with("ready\n"));
    assert!(serving.get("admin", "/livez").starts_with("HTTP/1.1 200 "));
    let metrics = serving.get("admin", "/metrics");
    assert!(metrics.contains("retrysafe_claims_total 1"), "{metrics}");
    let (status, printed) = serving.stop();
    assert!(status.success());
    assert!(printed.contains("Try it:") && !printed.contains('\u{1b}'), "no colours in a pipe: {printed}");
    assert!(!folder.path().join("ready.json").exists());

    // Another process, the same store: the fingerprint secret has outlived the first.
    let again = Serving::start(folder.path(), &["--sample-ms", "0"]);
    assert_eq!(body(&again.order("k")), body(&first));
    let ledger: Value = serde_json::from_str(body(&again.get("gateway", "/ledger"))).unwrap();
    assert_eq!(ledger.as_array().unwrap().len(), 1);
}

#[test]
fn a_killed_process_leaves_committed_answers_behind() {
    let folder = folder();
    let mut serving = Serving::start(folder.path(), &["--sample-ms", "0"]);
    let first = serving.order("k");
    serving.child.kill().unwrap();
    serving.child.wait().unwrap();
    let again = Serving::start(folder.path(), &["--sample-ms", "0"]);
    assert_eq!(body(&again.order("k")), body(&first));
}

#[test]
fn a_request_in_progress_is_answered_before_the_end() {
    let folder = folder();
    let serving = Serving::start(folder.path(), &["--store", "memory", "--sample-ms", "400"]);
    let answer = std::thread::scope(|scope| {
        let order = scope.spawn(|| serving.order("k"));
        // In flight as soon as the layer says so.
        let started = Instant::now();
        while !serving.get("admin", "/metrics").contains("retrysafe_running 1") {
            assert!(started.elapsed() < GIVE_UP);
        }
        serving.terminate();
        order.join().unwrap()
    });
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    assert!(serving.ended().0.success());
}

#[test]
fn somebody_elses_api_may_come_later() {
    let folder = folder();
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", upstream.local_addr().unwrap());
    drop(upstream);
    let contract = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/shop.toml");
    let serving =
        Serving::start(folder.path(), &["--store", "memory", "--upstream", &url, "--contract", contract]);
    assert_eq!(serving.address("upstream"), url);
    let answer = serving.order("k");
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("upstream_unavailable"), "{answer}");
    assert!(
        serving.get("admin", "/readyz").ends_with("ready\n"),
        "the upstream's health is not the gateway's"
    );
    assert!(!folder.path().join("retrysafe-shop.db").exists());
}

/// Runs to its end, which must come by itself.
fn refused(folder: &Path, args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = retrysafe(folder, args).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn wrong_usage_is_2_and_says_what_to_do() {
    let folder = folder();
    let contract = folder.path().join("bad.toml");
    std::fs::write(&contract, "api = \"x\"\nlongest_retry_chain = \"48h\"\n").unwrap();
    for (args, says) in [
        (&["serve", "--upstream", "localhost:3000", "--contract", "c"][..], "http://"),
        (&["serve", "--upstream", "http://127.0.0.1:1"], "--contract"),
        (&["serve", "--contract", "none.toml"], "none.toml cannot be read"),
        (&["serve", "--contract", "bad.toml"], "bad.toml: "),
        (&["serve", "--admin", "0.0.0.0:0"], "--admin-public"),
        (&["serve", "--log", "a=b=c"], "--log"),
        (&["serve", "--nonsense"], "--nonsense"),
    ] {
        let (code, said) = refused(folder.path(), args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(says), "{args:?}: {said}");
    }
}

#[test]
fn a_contract_that_the_place_cannot_keep_is_2_with_every_shortfall() {
    let folder = folder();
    let sample =
        include_str!("../assets/shop.toml").replace("recovery = \"outside\"", "recovery = \"atomic\"");
    std::fs::write(folder.path().join("c.toml"), sample).unwrap();
    let args = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--store",
        "memory",
        "--contract",
        "c.toml",
    ];
    let (code, said) = refused(folder.path(), &args);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("atomic_at_gateway") && said.contains("accepted_in_one_transaction"), "{said}");
}

#[test]
fn what_the_machine_refuses_is_1_and_names_the_option() {
    let folder = folder();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, said) = refused(folder.path(), &["serve", "--listen", &address, "--admin", "127.0.0.1:0"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&address) && said.contains("--listen"), "{said}");
    let free = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--store"];
    let (code, said) = refused(folder.path(), &[&free[..], &["no/such/folder/s.db"]].concat());
    assert_eq!(code, Some(1), "{said}");
    std::fs::write(
        folder.path().join("notes.txt"),
        "no database, but longer than a header of SQLite would be. ".repeat(4),
    )
    .unwrap();
    std::fs::write(folder.path().join("notes.txt.key"), "00".repeat(32)).unwrap();
    let (code, said) = refused(folder.path(), &[&free[..], &["notes.txt"]].concat());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("notes.txt"), "{said}");
}

/// Two attributes before an item can each take its documentation.
#[test]
fn the_help_says_what_this_is_and_where_to_start() {
    let output = retrysafe(folder().path(), &["--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for part in ["Make writes safe to retry", "Start with `retrysafe serve`", "Exit codes"] {
        assert!(output.status.success() && help.contains(part), "{part}: {help}");
    }
}

#[test]
fn the_version_is_told() {
    let output = retrysafe(folder().path(), &["--version"]).output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        concat!("retrysafe ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

/// Two machines, one database: the second has its own sample shop, whose ledger stays empty.
#[test]
fn two_gateways_on_one_database_run_a_write_once() {
    let database = retrysafe_testbed::postgres::Database::create();
    let (one, other) = (folder(), folder());
    let url = database.url();
    let migrated = retrysafe(one.path(), &["migrate", "--store", &url]).status().unwrap();
    assert!(migrated.success());
    let key = one.path().join("shared.key");
    let arguments = ["--store", &url, "--key-file", key.to_str().unwrap(), "--sample-ms", "0"];
    let (first, second) = (Serving::start(one.path(), &arguments), Serving::start(other.path(), &arguments));
    let answer = first.order("k");
    assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
    let replayed = second.order("k");
    assert_eq!(body(&replayed), body(&answer));
    let effects = |serving: &Serving| {
        let ledger: Value = serde_json::from_str(body(&serving.get("gateway", "/ledger"))).unwrap();
        ledger.as_array().unwrap().len()
    };
    assert_eq!((effects(&first), effects(&second)), (1, 0), "nothing ran behind the second");
}
