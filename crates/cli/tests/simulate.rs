//! `retrysafe simulate` as a process: what it prints and writes, and what it refuses.

#![allow(clippy::unwrap_used)] // a test's helpers may fail loudly too

use std::path::Path;
use std::process::{Command, Output};

fn simulate(folder: &Path, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_retrysafe"));
    command.current_dir(folder).arg("simulate").args(line.split_whitespace()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Each model, small.
const SMALL: [&str; 3] = [
    "outage --instances 5 --duration 12s --outage-at 3s --outage-for 4s --workers 8",
    "failures --rates 0.1,0.9 --calls 500",
    "occ --clients 3,6 --runs 4",
];

#[test]
fn the_same_seed_gives_the_same_bytes_in_every_form() {
    let run = |line: &str| {
        let folder = tempfile::tempdir().unwrap();
        let output = simulate(folder.path(), &format!("{line} --csv n.csv --plot f.svg --plot f.png --json"));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let mut forms = vec![output.stdout];
        forms
            .extend(["n.csv", "f.svg", "f.png"].map(|name| std::fs::read(folder.path().join(name)).unwrap()));
        forms
    };
    for line in SMALL {
        let (first, second) = (run(line), run(line));
        assert_eq!(first, second, "{line}");
        let other = run(&format!("{line} --seed 2"));
        assert!(first.iter().zip(&other).all(|(one, two)| one != two), "{line}: the seed changes nothing");
    }
}

#[test]
fn every_form_says_what_was_compared() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!("{} --case budget=fleet,name=shared --case sender=stripe-python", SMALL[0]);
    let page =
        text(&simulate(folder.path(), &format!("{line} --csv n.csv --plot f.svg --plot f.png")).stdout);
    let csv = std::fs::read_to_string(folder.path().join("n.csv")).unwrap();
    let svg = std::fs::read_to_string(folder.path().join("f.svg")).unwrap();
    for form in [&page, &csv, &svg] {
        assert!(form.contains("shared") && form.contains("sender=stripe-python"), "{form}");
    }
    assert!(std::fs::read(folder.path().join("f.png")).unwrap().starts_with(b"\x89PNG"));
    let json: serde_json::Value =
        serde_json::from_slice(&simulate(folder.path(), &format!("{line} --json")).stdout).unwrap();
    let (case, seconds) = (&json["cases"][0], json["cases"][0]["seconds"].as_array().unwrap());
    let attempts: u64 = seconds.iter().map(|second| second["attempts"].as_u64().unwrap()).sum();
    assert_eq!(case["attempts"].as_u64(), Some(attempts));
    let ended: u64 = ["done", "attempts", "budget", "deadline", "rule"]
        .iter()
        .map(|how| case["ended"][how].as_u64().unwrap())
        .sum();
    assert_eq!(case["calls"].as_u64(), Some(ended), "every call ends, in one way");
    let seconds_of = |case: usize| json["cases"][case]["seconds"].as_array().unwrap().len();
    assert_eq!(csv.lines().count(), 1 + seconds_of(0) + seconds_of(1));
}

/// The numbers of a contract are those of its clients.
#[test]
fn a_contract_is_simulated_with_its_own_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let contract = include_str!("../assets/shop.toml");
    std::fs::write(folder.path().join("retrysafe.toml"), format!("{contract}\n[client]\nattempts = 7\n"))
        .unwrap();
    let output = simulate(folder.path(), &format!("{} --contract retrysafe.toml --json", SMALL[0]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["cases"][0]["attempts_max"], 7);
}

/// What cannot be done is refused before minutes are spent, with what there is instead, and nothing is written.
#[test]
fn mistakes_are_told_at_once() {
    for (line, word) in [
        ("outage --case sender=awz", "stripe-python"),
        ("outage --case speed=9", "budget"),
        ("outage --compare budget", "budgets, presets"),
        ("outage --plot figure.pdf", ".svg or .png"),
        ("outage --plot nowhere/f.svg", "no such folder"),
        ("outage --outage-at 80s --outage-for 20s", "--duration"),
        ("outage --rate 1e9", "lower --instances"),
        ("outage --timeout 0s", "longer than nothing"),
        ("outage --timeout 5", "write a number and a unit"),
        ("outage --contract absent.toml", "absent.toml"),
        ("failures --budget fleet", "bucket"),
        ("failures --rates 1.5", "between 0 and 1"),
        ("occ --strategy best", "decorrelated"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = simulate(folder.path(), line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(text(&output.stderr).contains(word), "{line}: {}", text(&output.stderr));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{line}");
    }
}

#[test]
fn help_names_every_sender_and_budget() {
    let folder = tempfile::tempdir().unwrap();
    let help = text(&simulate(folder.path(), "outage --help").stdout);
    for name in ["retrysafe", "google-cloud", "undici", "concurrency", "fleet", "honoured", "layers"] {
        assert!(help.contains(name), "{name}");
    }
}
