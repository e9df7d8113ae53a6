//! How often a process asked the disk to make things durable, counted by the kernel's own tracer from outside.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::tools::system;

const CALLS: &str = "fsync,fdatasync,sync_file_range";

/// The command under `strace`, which stops it at these calls only and writes their number to the file.
///
/// # Errors
/// `strace` is missing and cannot be installed.
pub(crate) fn counted(command: &Command, scratch: &Path) -> Result<(Command, PathBuf)> {
    let report = scratch.join("fsyncs");
    let mut traced = Command::new(system("strace", "strace")?);
    traced.args(["-f", "--seccomp-bpf", "-c", "-e", &format!("trace={CALLS}"), "-o"]).arg(&report);
    traced.arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        traced.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => traced.env(name, value),
            None => traced.env_remove(name),
        };
    }
    Ok((traced, report))
}

/// The number in a report, once the process has ended.
///
/// # Errors
/// There is no report.
pub(crate) fn count(report: &Path) -> Result<u64> {
    Ok(sum(&std::fs::read_to_string(report).context("the tracer's report")?))
}

/// Lines of the summary: `% time  seconds  usecs/call  calls  [errors]  syscall`.
fn sum(report: &str) -> u64 {
    let calls = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let name = fields.last()?;
        CALLS.split(',').any(|call| call == *name).then(|| fields.get(3)?.parse::<u64>().ok()).flatten()
    };
    report.lines().filter_map(calls).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tracers_summary_is_read() {
        let report = "% time     seconds  usecs/call     calls    errors syscall\n\
                      ------ ----------- ----------- --------- --------- ----------------\n \
                      99.00    0.004000          40       100           fdatasync\n  \
                      1.00    0.000040          20         2         1 fsync\n\
                      ------ ----------- ----------- --------- --------- ----------------\n\
                      100.00    0.004040          39       102         1 total\n";
        assert_eq!(sum(report), 102);
        assert_eq!(sum(""), 0);
    }
}
