//! `retrysafe store` as a process.

#![allow(clippy::unwrap_used)] // a test's helpers may fail loudly too

use std::path::Path;
use std::process::{Command, Output};

use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};

fn store(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_retrysafe"));
    command.current_dir(folder).arg("store").args(args).output().unwrap()
}

#[test]
fn a_restored_store_begins_a_new_epoch_each_time_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    drop(SqliteStore::open(SqliteOptions::new(folder.path().join("retrysafe.db"))).unwrap());
    for epoch in ["epoch 1", "epoch 2"] {
        let output = store(folder.path(), &["restored"]);
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && said.contains(epoch), "{said}");
    }
}

#[test]
fn the_clock_of_a_store_can_be_accepted() {
    let folder = tempfile::tempdir().unwrap();
    drop(SqliteStore::open(SqliteOptions::new(folder.path().join("s.db"))).unwrap());
    assert!(store(folder.path(), &["accept-clock", "--store", "s.db"]).status.success());
}

#[test]
fn a_mistyped_name_makes_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let output = store(folder.path(), &["accept-clock", "--store", "typo.db"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("typo.db"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
