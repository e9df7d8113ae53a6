//! The subcommands on a store in MariaDB, as processes.

#![allow(clippy::unwrap_used, clippy::panic)] // a test's helpers may fail loudly too

mod support;

use retrysafe_testbed::mariadb::Database;
use support::{retrysafe, text};

#[test]
fn migrate_makes_the_tables_once_and_prints_what_it_would_do() {
    let (database, folder) = (Database::create(), tempfile::tempdir().unwrap());
    let url = database.url();
    let printed = retrysafe(folder.path(), &["migrate", "--store", &url, "--print"]);
    assert!(
        printed.status.success()
            && text(&printed.stdout).contains("CREATE TABLE IF NOT EXISTS retrysafe_key")
    );
    assert_eq!(database.run("SHOW TABLES"), "", "printing touches nothing");
    let first = retrysafe(folder.path(), &["migrate", "--store", &url]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert!(text(&first.stdout).contains("applied 1 tables"), "{}", text(&first.stdout));
    let second = retrysafe(folder.path(), &["migrate", "--store", &url]);
    assert!(second.status.success() && !text(&second.stdout).contains("applied"));
}

#[test]
fn doctor_tells_scripts_by_its_exit_code_and_never_the_password() {
    let (database, folder) = (Database::create(), tempfile::tempdir().unwrap());
    let url = database.url();
    let before = retrysafe(folder.path(), &["doctor", "--store", &url]);
    assert_eq!(before.status.code(), Some(2));
    assert!(text(&before.stdout).contains("retrysafe migrate"), "{}", text(&before.stdout));
    assert!(retrysafe(folder.path(), &["migrate", "--store", &url]).status.success());
    database.run("CREATE TABLE orders (id INT) ENGINE = MyISAM");
    let after = retrysafe(folder.path(), &["doctor", "--store", &url, "--json"]);
    assert!(!text(&after.stdout).contains("no_tables"), "{}", text(&after.stdout));
    let table = retrysafe(folder.path(), &["doctor", "--store", &url, "--json", "--table", "orders"]);
    assert_eq!(table.status.code(), Some(2));
    assert!(text(&table.stdout).contains("no_transactions"), "{}", text(&table.stdout));
    let gone = retrysafe(folder.path(), &["doctor", "--store", "mysql://u:hunter2@127.0.0.1:1/none"]);
    assert_eq!(gone.status.code(), Some(1));
    let said = text(&gone.stderr);
    assert!(said.contains("127.0.0.1:1") && !said.contains("hunter2"), "{said}");
}

#[test]
fn only_a_person_accepts_a_clock_and_begins_an_epoch() {
    let (database, folder) = (Database::create(), tempfile::tempdir().unwrap());
    let url = database.url();
    assert!(retrysafe(folder.path(), &["migrate", "--store", &url]).status.success());
    database.run("UPDATE retrysafe_meta SET clock_ms = 1");
    let accepted = retrysafe(folder.path(), &["store", "accept-clock", "--store", &url]);
    assert!(accepted.status.success(), "{}", text(&accepted.stderr));
    assert_ne!(database.run("SELECT clock_ms FROM retrysafe_meta"), "1");
    let restored = retrysafe(folder.path(), &["store", "restored", "--store", &url]);
    assert!(text(&restored.stdout).contains("epoch 1"), "{}", text(&restored.stderr));
}
