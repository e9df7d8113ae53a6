//! main-job.4 and client.1: the public vector suites pass as data-driven tests.

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Scale;
use crate::{suite, tools::root};

const SUITES: &str = include_str!("../../suites.json");
const CLIENT_SUITES: &str = include_str!("../../client-suites.json");

#[derive(Deserialize)]
struct Suite {
    suite: String,
    /// Where its cases are, from the root.
    data: String,
    tests: Vec<String>,
}

fn suites(list: &str) -> Result<Vec<Suite>> {
    serde_json::from_str(list).context("a list of suites")
}

pub(crate) fn prove(_: Scale) -> Result<bool> {
    run(SUITES)
}

/// The blocks of client vectors, and the measured defects of other packages as tests that ours pass.
pub(crate) fn prove_client(_: Scale) -> Result<bool> {
    run(CLIENT_SUITES)
}

fn run(list: &str) -> Result<bool> {
    let suites = suites(list)?;
    let names: Vec<&str> = suites.iter().flat_map(|suite| suite.tests.iter().map(String::as_str)).collect();
    let ends = suite::run(&names)?;
    let mut holds = true;
    for suite in &suites {
        let passed = suite.tests.iter().all(|name| ends.get(name) == Some(&true));
        let present = root().join(&suite.data).exists();
        holds &= passed && present;
        let word = match (passed, present) {
            (true, true) => "passes",
            (false, true) => "FAILS OR WAS NOT RUN",
            (_, false) => "HAS NO DATA",
        };
        println!("  {:<48} {word} ({})", suite.suite, suite.tests.join(", "));
    }
    let passed = ends.values().filter(|passed| **passed).count();
    println!("{} suites, {passed} of {} tests passed", suites.len(), names.len());
    Ok(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_has_its_data_in_the_repository_and_a_test() {
        for list in [SUITES, CLIENT_SUITES] {
            for suite in suites(list).expect("well formed") {
                assert!(root().join(&suite.data).exists(), "{}", suite.data);
                assert!(!suite.tests.is_empty(), "{}", suite.suite);
            }
        }
    }
}
