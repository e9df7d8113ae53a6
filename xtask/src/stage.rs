//! One stage of a longer run: announced, timed, its test results summed.
//!
//! A stage that fails does not stop the run: one answer that names every broken stage is worth more than
//! the first one only.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Tests counted from the closing lines of `cargo test` and of the proofs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    /// Adds what one line of output says, if it is a closing line.
    ///
    /// Two forms count: `test result: ok. 3 passed; 0 failed; 1 ignored; ...` of the Rust harness, and
    /// `proofs: 3 passed, 0 failed` of the proofs binary.
    pub(crate) fn read(&mut self, line: &str) {
        let counts = match (line.strip_prefix("test result: "), line.strip_prefix("proofs: ")) {
            (Some(rest), _) => rest.split_once(". ").map_or(rest, |(_, counts)| counts),
            (None, Some(rest)) => rest,
            (None, None) => return,
        };
        for part in counts.split([';', ',']) {
            let mut words = part.split_whitespace();
            let (Some(Ok(number)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" | "skipped" => self.skipped += number,
                _ => {}
            }
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

/// The stages of one run so far.
#[derive(Default)]
pub(crate) struct Stages {
    done: Vec<Done>,
    tally: Tally,
}

struct Done {
    name: &'static str,
    took: Duration,
    holds: bool,
}

impl Stages {
    /// Runs a command as a stage, passes its output through and sums its test results.
    pub(crate) fn command(&mut self, name: &'static str, mut command: Command) -> Result<()> {
        self.stage(name, |tally| {
            let mut child = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .with_context(|| format!("stage {name}: cannot start {:?}", command.get_program()))?;
            if let Some(output) = child.stdout.take() {
                let mut screen = std::io::stdout();
                for line in BufReader::new(output).split(b'\n') {
                    let line = line?;
                    let text = String::from_utf8_lossy(&line);
                    tally.read(&text);
                    writeln!(screen, "{text}")?;
                }
            }
            Ok(child.wait()?.success())
        })
    }

    /// Runs a function as a stage.
    pub(crate) fn stage(
        &mut self,
        name: &'static str,
        body: impl FnOnce(&mut Tally) -> Result<bool>,
    ) -> Result<()> {
        println!("\n== {name}");
        let start = Instant::now();
        let holds = body(&mut self.tally)?;
        let took = start.elapsed();
        println!("== {name}: {} in {:.1} s", verdict(holds), took.as_secs_f64());
        self.done.push(Done { name, took, holds });
        Ok(())
    }

    /// Prints the summary and says whether every stage held.
    pub(crate) fn close(self) -> bool {
        println!();
        for stage in &self.done {
            println!("{:<16} {:<6} {:>7.1} s", stage.name, verdict(stage.holds), stage.took.as_secs_f64());
        }
        println!("{}", self.tally);
        // No test at all is a broken run, not a good one.
        self.done.iter().all(|stage| stage.holds) && self.tally.failed == 0 && self.tally.passed > 0
    }
}

fn verdict(holds: bool) -> &'static str {
    if holds { "ok" } else { "FAILED" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_the_harness_and_the_proofs_are_summed() {
        let mut tally = Tally::default();
        for line in [
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.01s",
            "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
            "proofs: 3 passed, 1 failed",
        ] {
            tally.read(line);
        }
        assert_eq!(tally, Tally { passed: 19, failed: 3, skipped: 1 });
        assert_eq!(tally.to_string(), "19 passed, 3 failed, 1 skipped");
    }

    #[test]
    fn other_lines_count_nothing() {
        let mut tally = Tally::default();
        for line in ["test a::b ... ok", "running 3 tests", "3 passed; 0 failed", "see test result: 9 passed"]
        {
            tally.read(line);
        }
        assert_eq!(tally, Tally::default());
    }

    #[test]
    fn a_run_without_tests_does_not_hold() {
        let mut stages = Stages::default();
        stages.stage("nothing", |_| Ok(true)).expect("no I/O");
        assert!(!stages.close());
    }

    #[test]
    fn one_failed_stage_fails_the_run_and_the_next_still_runs() {
        let mut stages = Stages::default();
        let mut ran = false;
        stages.stage("first", |_| Ok(false)).expect("no I/O");
        stages
            .stage("second", |tally| {
                ran = true;
                tally.passed += 1;
                Ok(true)
            })
            .expect("no I/O");
        assert!(ran);
        assert!(!stages.close());
    }
}
