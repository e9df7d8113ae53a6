//! Each broken server is found by the arm that its table names; sound ones pass; two cannot be judged.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so by panicking")]

use std::time::Duration;

use retrysafe_gates::concurrency;
use retrysafe_gates::plan::Plan;
use retrysafe_gates::report::{Report, Verdict};
use retrysafe_gates::safety::Allowance;
use retrysafe_mutants::{Mutant, PLAN, Running, TABLE, Terms, find};
use retrysafe_testbed::address;

const ALLOWANCE: Allowance = Allowance { owned: None, time: Duration::from_secs(120) };

fn plan(running: &Running, more: &str) -> Plan {
    let bases: Vec<String> =
        running.addresses().iter().map(|address| format!("\"http://{address}\"")).collect();
    let text = format!("base = [{}]\n{PLAN}{more}", bases.join(", "));
    Plan::parse(&text, "gates.toml").unwrap_or_else(|faults| panic!("{faults}"))
}

fn gate(name: &str, rounds: u32) -> Report {
    let mutant = find(name).expect("a name of the table");
    let running = Running::start(mutant, &Terms::default()).expect("a port");
    let mut plan = plan(&running, "");
    plan.concurrency.rounds = Some(rounds);
    concurrency::run(&plan, &ALLOWANCE, 7, &mut |_| ()).expect("it can be run")
}

fn shown(report: &Report) -> String {
    serde_json::to_string_pretty(report).expect("a report is JSON")
}

#[test]
fn every_broken_server_is_found_by_its_arm() {
    // Only who sees the effect itself can tell that an answer came before it.
    let needs_stub = |name: &str| name == "stored-before-commit";
    for mutant in TABLE.iter().filter(|mutant| mutant.arm.starts_with('A') && !needs_stub(mutant.name)) {
        // The natural race shows in one round of a few; the others at once.
        let rounds = if mutant.behaviour.natural { 60 } else { 20 };
        let report = gate(mutant.name, rounds);
        assert_eq!(report.verdict, Verdict::Fail, "{}: {}", mutant.name, shown(&report));
        let part = report.part(mutant.arm).expect("it ran");
        assert_eq!(part.verdict, Some(Verdict::Fail), "{}: {}", mutant.name, shown(&report));
        let example = part.counterexample.as_ref().expect("a round that shows it");
        assert!(!example.timeline.is_empty() && !example.curl.is_empty(), "{}", mutant.name);
    }
}

#[test]
fn sound_servers_pass_every_arm() {
    let sound = |mutant: &&Mutant| mutant.arm == "PASS" && mutant.behaviour.booked.is_none();
    for mutant in TABLE.iter().filter(sound) {
        let report = gate(mutant.name, 20);
        assert_eq!(report.verdict, Verdict::Pass, "{}: {}", mutant.name, shown(&report));
        assert!(report.parts.iter().all(|part| part.verdict == Some(Verdict::Pass)), "{}", shown(&report));
        assert!(report.overlap.is_some() && report.power.is_some());
    }
}

#[test]
fn what_cannot_be_judged_is_inconclusive_and_says_what_to_change() {
    for mutant in TABLE.iter().filter(|mutant| mutant.arm == "INCONCLUSIVE") {
        let report = gate(mutant.name, 10);
        assert_eq!(report.verdict, Verdict::Inconclusive, "{}: {}", mutant.name, shown(&report));
        let race = report.part("A1").expect("it ran");
        assert!(race.change.iter().any(|change| change.contains("[stub]")), "{}", shown(&report));
    }
}

#[test]
fn a_held_call_shows_a_race_the_first_time() {
    let with_stub = |name: &str| {
        let stub = address();
        // The hold shows what follows a claim. How long a server looks before it claims is its own affair, and a millisecond
        // is missed now and then by the first race on a busy machine.
        let gap = Some(Duration::from_millis(50));
        let terms = Terms { provider: Some(stub), gap, ..Terms::default() };
        let running = Running::start(find(name).expect("a name"), &terms).expect("a port");
        let more =
            format!("[[observe]]\nkind = \"stub\"\n[stub]\nlisten = \"{stub}\"\n[concurrency]\nrounds = 2\n");
        concurrency::run(&plan(&running, &more), &ALLOWANCE, 7, &mut |_| ()).expect("it can be run")
    };
    for name in ["check-then-insert", "claim-outside-transaction", "short-lock", "stored-before-commit"] {
        let report = with_stub(name);
        let race = report.part("A1").expect("it ran");
        assert_eq!(race.verdict, Some(Verdict::Fail), "{name}: {}", shown(&report));
        // A lock that ends too early is met by who comes late: the second shape.
        let most = if name == "short-lock" { 2 } else { 1 };
        assert!(
            race.counterexample.as_ref().is_some_and(|it| it.round <= most),
            "{name}: {}",
            shown(&report)
        );
    }
    for name in ["sound", "sound-waits"] {
        let report = with_stub(name);
        assert_eq!(report.verdict, Verdict::Pass, "{name}: {}", shown(&report));
    }
}

/// The plan of the bench with another observer in place of its list.
fn observed_by(running: &Running, observer: &str) -> Plan {
    let mut plan = plan(running, "[concurrency]\nrounds = 2\n");
    let text = format!(
        "base = \"http://127.0.0.1\"\n[request]\npath = \"/{{{{nonce}}}}\"\n[[observe]]\n{observer}\n"
    );
    plan.observers = Plan::parse(&text, "gates.toml").unwrap_or_else(|faults| panic!("{faults}")).observers;
    plan
}

#[test]
fn a_counter_of_all_effects_and_a_program_tell_broken_from_sound() {
    for (name, verdict) in [("sound", Verdict::Pass), ("check-then-insert", Verdict::Fail)] {
        let running = Running::start(find(name).expect("a name"), &Terms::default()).expect("a port");
        let address = running.addresses()[0];
        let ask = format!("curl -s 'http://{address}/orders?note={{{{nonce}}}}' | grep -o ord_ | wc -l");
        let observers = [
            // A total: there is nothing in it that tells one operation from another.
            "kind = \"metric\"\nurl = \"/metrics\"\nseries = \"orders_made_total\"".to_owned(),
            format!("kind = \"command\"\ncommand = [\"sh\", \"-c\", {ask:?}]"),
        ];
        for (observer, seed) in observers.into_iter().zip(7..) {
            let report = concurrency::run(&observed_by(&running, &observer), &ALLOWANCE, seed, &mut |_| ());
            let report = report.expect("it can be run");
            assert_eq!(report.verdict, verdict, "{name}, {observer}: {}", shown(&report));
            let race = report.part("A1").expect("it ran");
            assert_eq!(race.verdict, Some(verdict), "{name}, {observer}: {}", shown(&report));
        }
    }
}

#[test]
fn lines_of_a_log_tell_broken_from_sound() {
    for (name, verdict) in [("sound", Verdict::Pass), ("check-then-insert", Verdict::Fail)] {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("app.log");
        let terms = Terms { log: Some(log.clone()), ..Terms::default() };
        let running = Running::start(find(name).expect("a name"), &terms).expect("a port");
        let observer = format!("kind = \"log\"\nfile = {log:?}");
        let report = concurrency::run(&observed_by(&running, &observer), &ALLOWANCE, 7, &mut |_| ());
        let report = report.expect("it can be run");
        assert_eq!(report.verdict, verdict, "{name}: {}", shown(&report));
        let race = report.part("A1").expect("it ran");
        assert_eq!(race.verdict, Some(verdict), "{name}: {}", shown(&report));
    }
}

#[test]
fn a_seed_that_was_used_before_is_told_and_not_judged() {
    let running = Running::start(find("sound").expect("a name"), &Terms::default()).expect("a port");
    let plan = plan(&running, "[concurrency]\nrounds = 1\n");
    let verdicts =
        [0, 1].map(|_| concurrency::run(&plan, &ALLOWANCE, 7, &mut |_| ()).expect("it can be run"));
    assert_eq!(verdicts[0].verdict, Verdict::Pass, "{}", shown(&verdicts[0]));
    // All keys are known: every answer would be a replay, and nothing could fail.
    assert_eq!(verdicts[1].verdict, Verdict::Inconclusive, "{}", shown(&verdicts[1]));
    assert!(verdicts[1].parts[0].said[0].contains("--seed"), "{}", shown(&verdicts[1]));
}

#[test]
fn a_blind_observer_ends_the_run_before_any_race() {
    let running =
        Running::start(find("check-then-insert").expect("a name"), &Terms::default()).expect("a port");
    let mut plan = plan(&running, "");
    plan.observers.clear();
    let text = "base = \"http://127.0.0.1\"\n[request]\npath = \"/{{nonce}}\"\n[[observe]]\nkind = \"log\"\nfile = \"no-such-file\"\n";
    plan.observers = Plan::parse(text, "gates.toml").expect("a plan").observers;
    let report = concurrency::run(&plan, &ALLOWANCE, 7, &mut |_| ()).expect("it can be run");
    assert_eq!(report.verdict, Verdict::Inconclusive);
    assert_eq!(report.parts.len(), 1, "{}", shown(&report));
    assert!(report.requests < 5, "{} requests were sent for nothing", report.requests);
}

#[test]
fn a_race_in_one_packet_is_found_and_a_sound_server_passes_it() {
    for (name, verdict) in [("check-then-insert", Verdict::Fail), ("sound", Verdict::Pass)] {
        let running = Running::start(find(name).expect("a name"), &Terms::default()).expect("a port");
        let mut plan = plan(&running, "[concurrency]\nhttp2 = true\nrounds = 3\n");
        if verdict == Verdict::Fail {
            // So that no other shape can have found it.
            plan.concurrency.rounds = Some(1);
        }
        let report = concurrency::run(&plan, &ALLOWANCE, 7, &mut |_| ()).expect("it can be run");
        let race = report.part("A1").expect("it ran");
        assert_eq!(race.verdict, Some(verdict), "{name}: {}", shown(&report));
        // At once, late and in one packet: each has broken a promise, or none.
        let failed = if verdict == Verdict::Fail { 2..=3 } else { 0..=0 };
        assert!(failed.contains(&race.failed_rounds), "{name}: {}", shown(&report));
    }
}
