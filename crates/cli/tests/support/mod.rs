//! The binary as a process that comes to its end by itself, and as one that serves.

#![allow(
    dead_code,
    clippy::panic,
    reason = "each test binary uses its part; a helper that fails fails its test"
)]

pub(crate) mod serving;

use std::path::Path;
use std::process::{Command, Output};

/// Runs it in `folder`.
pub(crate) fn retrysafe(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_retrysafe")).current_dir(folder).args(args).output().unwrap()
}

/// What it printed.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
