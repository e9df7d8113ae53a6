//! The workspace's own tests as evidence: which there are, and how named ones end.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::tools::root;

/// Names of all unit and integration tests, as the harness lists them (`module::function`).
///
/// # Errors
/// The workspace does not build.
pub(crate) fn names() -> Result<Vec<String>> {
    let output = cargo(&["--", "--list"])?;
    Ok(listed(&output))
}

fn listed(output: &str) -> Vec<String> {
    output.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Runs the tests of exactly these names and says which of them passed.
///
/// # Errors
/// The workspace does not build, or a test fails; the output names it.
pub(crate) fn run(names: &[&str]) -> Result<BTreeMap<String, bool>> {
    let mut arguments = vec!["--no-fail-fast", "--", "--exact"];
    arguments.extend(names);
    Ok(ended(&cargo(&arguments)?))
}

/// Runs core's tests of threads under loom, which puts their steps into every order. Says how each ended. The build is one
/// of its own, since locks of a model checker work nowhere else.
///
/// # Errors
/// They could not be built or run.
pub(crate) fn threads() -> Result<BTreeMap<String, bool>> {
    let output = Command::new("cargo")
        .current_dir(root())
        .args(["test", "--locked", "--release", "--package", "retrysafe-core", "--test", "threads"])
        .args(["--config", "profile.release.lto = false", "--no-fail-fast"])
        .env("RUSTFLAGS", "--cfg retrysafe_loom")
        .env("CARGO_TARGET_DIR", root().join("target/loom"))
        .stdin(Stdio::null())
        .output()
        .context("cargo test under loom")?;
    let ends = ended(&String::from_utf8_lossy(&output.stdout));
    if ends.is_empty() {
        bail!("nothing ran under loom:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(ends)
}

fn ended(output: &str) -> BTreeMap<String, bool> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    lines.map(|(name, end)| (name.to_owned(), end == "ok")).collect()
}

/// `cargo test` of the whole workspace, with arguments for cargo and, after `--`, for the harness; what the
/// harness wrote. The build's own output is shown only when nothing could be run.
fn cargo(arguments: &[&str]) -> Result<String> {
    let output = Command::new("cargo")
        .current_dir(root())
        .args(["test", "--locked", "--workspace", "--lib", "--bins", "--tests"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context("cargo test")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() && ended(&text).values().all(|passed| *passed) {
        bail!("cargo test did not run:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_harness_lines_are_read() {
        assert_eq!(listed("a::k1_x: test\nb: bench\n\n1 test, 1 benchmark\n"), ["a::k1_x"]);
        let ends = ended("test a::k1_x ... ok\ntest b ... FAILED\ntest c ... ignored\nrunning 3 tests\n");
        assert_eq!((ends["a::k1_x"], ends["b"], ends["c"]), (true, false, false));
    }
}
