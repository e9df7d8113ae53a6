//! The crash gate against servers that are killed as processes of their own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by panicking")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use retrysafe_gates::crash;
use retrysafe_gates::plan::{CrashPlan, Outside};
use retrysafe_gates::report::{Report, Verdict, html};
use retrysafe_gates::safety::Allowance;
use retrysafe_mutants::{CRASH_PLAN, LEASE, LISTED};
use retrysafe_testbed::postgres::{self, Database};
use retrysafe_testbed::{SmallDisk, address, strace};

/// A server as a command.
fn command(name: &str, listen: SocketAddr, arguments: &[String]) -> Vec<String> {
    let mut command = vec![env!("CARGO_BIN_EXE_mutant").to_owned(), name.to_owned()];
    command.push(format!("--listen={listen}"));
    command.extend(arguments.iter().cloned());
    command
}

/// What is the same in every plan of this file. `crash` and `tables` are added where they belong.
fn run(
    name: &str,
    (own, stub): (SocketAddr, SocketAddr),
    more: &[String],
    crash: &str,
    tables: &str,
) -> Report {
    let command = command(name, own, more);
    let text = format!(
        "base = \"http://{own}\"\n{CRASH_PLAN}\n[stub]\nlisten = \"{stub}\"\n\
         [crash]\ncommand = {command:?}\nready = \"/health\"\nsettled_within = \"2s\"\n{crash}\n{tables}"
    );
    let plan = CrashPlan::parse_with(&text, "gates.toml", Outside::NOTHING)
        .unwrap_or_else(|faults| panic!("{faults}"));
    let allowance = Allowance { owned: None, time: Duration::from_secs(120) };
    crash::run(&plan, &allowance, 7, &mut |_| ()).unwrap_or_else(|not_run| panic!("{}", not_run.0))
}

fn gate(name: &str, provider: bool, more: &str, folder: &Path) -> Report {
    let (own, stub) = (address(), address());
    let mut arguments = vec![format!("--state={}", folder.join("claims").display())];
    arguments.extend(provider.then(|| format!("--provider={stub}")));
    run(name, (own, stub), &arguments, more, "")
}

/// A server that keeps its orders in PostgreSQL, with the gate's relay in front of it.
fn on_postgres(name: &str) -> Report {
    let database = Database::create();
    let (own, stub, relay) = (address(), address(), address());
    let (host, port) = postgres::host_and_port(postgres::shared());
    let books = database.url_at(&format!("postgres://postgres@{relay}"));
    let arguments = [format!("--provider={stub}"), format!("--books={books}")];
    let tables =
        format!("{LISTED}\n[database]\nlisten = \"{relay}\"\nto = \"{host}:{port}\"\naway = \"300ms\"\n");
    run(name, (own, stub), &arguments, "sweep = 0", &tables)
}

/// Two processes on one file.
fn with_a_second_process(name: &str, folder: &Path, counted: &str) -> Report {
    let (own, stub, other) = (address(), address(), address());
    let books = format!("--books=sqlite:{}", folder.join("orders.db").display());
    let arguments = [format!("--provider={stub}"), books];
    let second = command(name, other, &arguments);
    let tables = format!("{counted}\n[crash.second]\ncommand = {second:?}\nbase = \"http://{other}\"\n");
    let crash = format!("sweep = 0\nlease = \"{}ms\"", LEASE.as_millis());
    run(name, (own, stub), &arguments, &crash, &tables)
}

/// A server whose file is on a disk that the gate fills.
fn on_a_small_disk(name: &str, disk: &Path) -> Report {
    let (own, stub) = (address(), address());
    let books = format!("--books=sqlite:{}", disk.join("orders.db").display());
    let arguments = [format!("--provider={stub}"), books];
    let tables = format!("{LISTED}\n[crash.disk]\nfolder = {disk:?}\nfull_for = \"300ms\"\n");
    run(name, (own, stub), &arguments, "sweep = 0", &tables)
}

fn said(report: &Report, id: &str, what: &str) -> bool {
    report.part(id).is_some_and(|part| part.said.iter().any(|said| said.contains(what)))
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
    strace();
    let folder = tempfile::tempdir().expect("a folder");
    let report = gate("sound", true, "sweep = 3", folder.path());
    let sweep = report.part("K4").expect("it is there");
    let traced = sweep.rounds > 0;
    // Without the right to trace it must not be a PASS.
    assert_eq!(sweep.verdict == Some(Verdict::Pass), traced, "{sweep:?}");
    assert!(traced || !sweep.change.is_empty(), "{sweep:?}");
}

#[test]
fn a_database_that_goes_between_call_and_commit_shows_who_lies_and_who_is_stuck() {
    let sound = on_postgres("sound-booked");
    for id in ["K1", "K3", "K5", "K7"] {
        assert_eq!(verdict(&sound, id), Some(Verdict::Pass), "{id}: {sound:#?}");
    }
    let lies = on_postgres("swallowed-commit");
    assert_eq!(verdict(&lies, "K7"), Some(Verdict::Fail), "{lies:#?}");
    assert!(said(&lies, "K7", "201 was told, and observer `list` counted no effect"), "{lies:#?}");
    // A kill does not show it: there is nobody left to lie.
    assert_eq!(verdict(&lies, "K1"), Some(Verdict::Pass), "{lies:#?}");
    let stuck = on_postgres("stuck-without-database");
    assert_eq!(verdict(&stuck, "K7"), Some(Verdict::Fail), "{stuck:#?}");
    assert!(said(&stuck, "K7", "stuck"), "{stuck:#?}");
    assert_eq!(verdict(&stuck, "K1"), Some(Verdict::Pass), "{stuck:#?}");
}

#[test]
fn a_database_that_is_not_behind_the_relay_is_not_cut_and_not_passed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (own, stub, relay) = (address(), address(), address());
    let arguments = [
        format!("--provider={stub}"),
        format!("--books=sqlite:{}", folder.path().join("orders.db").display()),
    ];
    let tables = format!("[database]\nlisten = \"{relay}\"\nto = \"127.0.0.1:1\"\naway = \"10ms\"\n");
    let report = run("sound-booked", (own, stub), &arguments, "sweep = 0", &tables);
    assert_eq!(verdict(&report, "K7"), Some(Verdict::Inconclusive), "{report:#?}");
    assert!(said(&report, "K7", "no connection to the database was cut"), "{report:#?}");
}

#[test]
fn r7_who_is_woken_after_another_took_over_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let sound = with_a_second_process("sound-booked", folder.path(), LISTED);
    assert_eq!(verdict(&sound, "K6"), Some(Verdict::Pass), "{sound:#?}");
    let folder = tempfile::tempdir().expect("a folder");
    let broken = with_a_second_process("no-fence", folder.path(), LISTED);
    assert_eq!(verdict(&broken, "K6"), Some(Verdict::Fail), "{broken:#?}");
    assert!(said(&broken, "K6", "counted 2 effects"), "{broken:#?}");
    for id in ["K1", "K3", "K5"] {
        assert_eq!(verdict(&broken, id), Some(Verdict::Pass), "{id}: a fence is for this alone: {broken:#?}");
    }
    // The round that shows it is drawn as those of races are.
    let example = broken.part("K6").and_then(|part| part.counterexample.as_ref()).expect("a timeline");
    let steps: Vec<&str> = example.timeline.iter().map(|line| line.step.as_str()).collect();
    for step in ["first", "gate", "call", "other", "retry"] {
        assert!(steps.contains(&step), "{step} is missing in {example:#?}");
    }
    let woken = |line: &str| example.timeline.iter().position(|it| it.told.contains(line));
    assert!(woken("SIGSTOP") < woken("SIGCONT"), "{example:#?}");
    let page = html(std::slice::from_ref(&broken)).expect("a page");
    assert!(page.contains("the API is woken (SIGCONT)") && page.contains("class=\"event\""));
}

#[test]
fn a_fence_is_not_judged_by_calls_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    // Both processes call under one key: only rows tell what the woken one did.
    let report = with_a_second_process("no-fence", folder.path(), "");
    assert_ne!(verdict(&report, "K6"), Some(Verdict::Pass), "{report:#?}");
    assert!(said(&report, "K6", "only calls are counted"), "{report:#?}");
}

#[test]
fn a_full_disk_is_told_honestly_and_survived() {
    let disk = SmallDisk::mount();
    let sound = on_a_small_disk("sound-booked", disk.folder());
    assert_eq!(verdict(&sound, "K8"), Some(Verdict::Pass), "{sound:#?}");
    let disk = SmallDisk::mount();
    let broken = on_a_small_disk("swallowed-full-disk", disk.folder());
    assert_eq!(verdict(&broken, "K8"), Some(Verdict::Fail), "{broken:#?}");
    assert!(said(&broken, "K8", "201 was told"), "{broken:#?}");
}

#[test]
fn an_observer_that_cannot_count_passes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (own, stub) = (address(), address());
    let books = format!("--books=sqlite:{}", folder.path().join("orders.db").display());
    let arguments = [format!("--provider={stub}"), books];
    // It is asked about one operation, so nothing is read before the first.
    let tables = LISTED.replace("/orders?note", "/nowhere?note");
    let report = run("sound-booked", (own, stub), &arguments, "sweep = 1", &tables);
    for id in ["K1", "K3", "K4", "K5"] {
        assert_eq!(verdict(&report, id), Some(Verdict::Inconclusive), "{id}: {report:#?}");
        assert!(said(&report, id, "observer `list` cannot count"), "{id}: {report:#?}");
    }
}
