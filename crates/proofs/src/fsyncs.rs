//! How often a process asked the disk to make things durable, counted from outside our own code.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::tools::system;

const SHIM: &str = include_str!("../shim/fsyncs.c");
/// The counter is one number in the machine's order.
const COUNTER_BYTES: usize = 8;

/// Makes the command count its syncs into the returned file, by a library that is preloaded into it.
///
/// # Errors
/// There is no C compiler (building SQLite needs one too), or it refuses the library.
pub(crate) fn count_into(command: &mut Command, scratch: &Path) -> Result<PathBuf> {
    let (source, library) = (scratch.join("fsyncs.c"), scratch.join("libfsyncs.so"));
    std::fs::write(&source, SHIM)?;
    let compiled = Command::new(system("cc", "gcc")?)
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()
        .context("cc")?;
    if !compiled.success() {
        bail!("the counter of syncs does not compile");
    }
    let counter = scratch.join("fsyncs");
    command.env("LD_PRELOAD", library).env("FSYNC_COUNT_FILE", &counter);
    Ok(counter)
}

/// The number so far.
///
/// # Errors
/// The process has not opened its counter.
pub(crate) fn count(counter: &Path) -> Result<u64> {
    let bytes = std::fs::read(counter).context("the counter of syncs")?;
    let number: [u8; COUNTER_BYTES] = bytes.as_slice().try_into().context("the counter of syncs")?;
    Ok(u64::from_ne_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sync_of_another_program_is_counted() {
        let scratch = tempfile::tempdir().expect("a folder");
        // dd syncs its output once for each conv word.
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", "bs=1", "count=1", "conv=fsync", "status=none"]);
        command.arg(format!("of={}", scratch.path().join("out").display()));
        let counter = count_into(&mut command, scratch.path()).expect("compiles");
        assert!(command.status().expect("dd is part of every system").success());
        assert_eq!(count(&counter).expect("counted"), 1);
    }
}
