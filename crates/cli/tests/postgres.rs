//! The subcommands on a store in PostgreSQL, as processes.

#![allow(clippy::unwrap_used, clippy::panic)] // a test's helpers may fail loudly too

mod support;

use retrysafe_testbed::postgres::Database;
use serde_json::Value;
use support::{retrysafe, text};

#[test]
fn migrate_makes_the_tables_once_and_prints_what_it_would_do() {
    let (database, folder) = (Database::create(), tempfile::tempdir().unwrap());
    let url = database.url();
    let printed = retrysafe(folder.path(), &["migrate", "--store", &url, "--print"]);
    assert!(printed.status.success() && text(&printed.stdout).contains("CREATE TABLE \"retrysafe\".key"));
    let there = "SELECT count(*) FROM pg_namespace WHERE nspname = 'retrysafe'";
    assert_eq!(database.psql(there), "0", "printing touches nothing");
    let first = retrysafe(folder.path(), &["migrate", "--store", &url]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert!(text(&first.stdout).contains("applied 1 tables"), "{}", text(&first.stdout));
    let second = retrysafe(folder.path(), &["migrate", "--store", &url]);
    assert!(second.status.success() && !text(&second.stdout).contains("applied"));
    assert_eq!(database.psql(there), "1");
}

#[test]
fn doctor_tells_scripts_by_its_exit_code_and_people_how_to_mend() {
    let (database, folder) = (Database::create(), tempfile::tempdir().unwrap());
    let url = database.url();
    let before = retrysafe(folder.path(), &["doctor", "--store", &url]);
    assert_eq!(before.status.code(), Some(2));
    assert!(text(&before.stdout).contains("retrysafe migrate"), "{}", text(&before.stdout));
    assert!(retrysafe(folder.path(), &["migrate", "--store", &url]).status.success());
    let after = retrysafe(folder.path(), &["doctor", "--store", &url, "--json"]);
    let report: Value = serde_json::from_slice(&after.stdout).unwrap();
    let rules: Vec<_> =
        report["findings"].as_array().unwrap().iter().map(|one| one["rule"].clone()).collect();
    assert!(!rules.contains(&"no_tables".into()), "{report}");
    database.psql(&format!("ALTER DATABASE {} SET synchronous_commit = off", database.name()));
    let off = retrysafe(folder.path(), &["doctor", "--store", &url, "--json"]);
    assert_eq!(off.status.code(), Some(2));
    assert!(text(&off.stdout).contains("synchronous_commit_off"));
    let gone = retrysafe(folder.path(), &["doctor", "--store", "postgres://u:hunter2@127.0.0.1:1/none"]);
    assert_eq!(gone.status.code(), Some(1));
    let said = text(&gone.stderr);
    assert!(said.contains("127.0.0.1:1") && !said.contains("hunter2"), "{said}");
}

#[test]
fn serve_needs_the_tables_and_the_secret_of_the_others() {
    let (database, folder) = (Database::create(), tempfile::tempdir().unwrap());
    let url = database.url();
    let serve = |args: &[&str]| {
        let common = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--store", &url];
        retrysafe(folder.path(), &[&common, args].concat())
    };
    let without_file = serve(&[]);
    assert_eq!(without_file.status.code(), Some(2));
    assert!(text(&without_file.stderr).contains("--key-file"));
    let without_tables = serve(&["--key-file", "a.key"]);
    assert_eq!(without_tables.status.code(), Some(1));
    assert!(text(&without_tables.stderr).contains("retrysafe migrate"), "{}", text(&without_tables.stderr));
    assert!(retrysafe(folder.path(), &["migrate", "--store", &url]).status.success());
    // Another machine has served with its own secret.
    database.psql("INSERT INTO retrysafe.deployment_key VALUES (1, 'another')");
    let other_secret = serve(&["--key-file", "a.key"]);
    assert_eq!(other_secret.status.code(), Some(2));
    assert!(text(&other_secret.stderr).contains("another secret"), "{}", text(&other_secret.stderr));
}

#[test]
fn a_person_may_say_two_things_to_the_store() {
    let (database, folder) = (Database::create(), tempfile::tempdir().unwrap());
    let url = database.url();
    assert!(retrysafe(folder.path(), &["migrate", "--store", &url]).status.success());
    for epoch in ["epoch 1", "epoch 2"] {
        let output = retrysafe(folder.path(), &["store", "restored", "--store", &url]);
        assert!(output.status.success() && text(&output.stdout).contains(epoch), "{}", text(&output.stderr));
    }
    database.psql("UPDATE retrysafe.meta SET clock_ms = clock_ms - 90000000");
    let doctor = retrysafe(folder.path(), &["doctor", "--store", &url]);
    assert!(text(&doctor.stdout).contains("clock_jumped"));
    assert!(retrysafe(folder.path(), &["store", "accept-clock", "--store", &url]).status.success());
    let doctor = retrysafe(folder.path(), &["doctor", "--store", &url]);
    assert!(!text(&doctor.stdout).contains("clock_jumped"), "{}", text(&doctor.stdout));
}
