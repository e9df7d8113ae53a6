//! main-job.5 and transactions.5: every case from public trackers that is due has a test of its name.
//!
//! A test names its cases as the first words of its function: `k2_two_key_lines_are_refused`,
//! `s5_s10_binary_bodies_and_doubled_headers_come_back`. The list of cases says which issue owes each.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Scale;
use crate::suite;

const CASES: &str = include_str!("../../cases.json");
const MAIN_JOB: &str = "main-job";
const TRANSACTIONS: &str = "transactions";

/// The webhook race (SPEC 11.3): a check before the insert makes two invoices, the guard makes one. Whole names: a race that
/// is shown no more without its guard would show nothing with it either.
const WEBHOOK_RACE: [&str; 2] = [
    "before_two_deliveries_at_once_make_two_invoices",
    "after_two_deliveries_at_once_make_one_invoice_and_both_are_told_which",
];

#[derive(Deserialize)]
struct Case {
    id: String,
    due: String,
    /// Another issue that owes it as well, on databases of its own.
    also: Option<String>,
    what: String,
}

impl Case {
    fn is_due_in(&self, issue: &str) -> bool {
        self.due == issue || self.also.as_deref() == Some(issue)
    }
}

fn cases() -> Result<Vec<Case>> {
    serde_json::from_str(CASES).context("cases.json")
}

/// The case ids a test's name begins with, in lower case.
fn guards(test: &str) -> impl Iterator<Item = &str> {
    let function = test.rsplit("::").next().unwrap_or(test);
    function.split('_').take_while(|word| is_id(word))
}

fn is_id(word: &str) -> bool {
    let (letter, number) = word.split_at(usize::from(word.is_char_boundary(1)));
    letter.bytes().all(|byte| byte.is_ascii_lowercase())
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn by_case(names: &[String]) -> BTreeMap<&str, Vec<&str>> {
    let mut tests: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in names {
        for id in guards(name) {
            tests.entry(id).or_default().push(name);
        }
    }
    tests
}

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    prove_issue(scale, MAIN_JOB, &[])
}

pub(crate) fn prove_transactions(scale: Scale) -> Result<bool> {
    prove_issue(scale, TRANSACTIONS, &WEBHOOK_RACE)
}

/// The cases that an issue owes, and tests that it owes by their whole names.
fn prove_issue(scale: Scale, issue: &str, wanted: &[&str]) -> Result<bool> {
    let (cases, names) = (cases()?, suite::names()?);
    let tests = by_case(&names);
    let due: Vec<&Case> = cases.iter().filter(|case| case.is_due_in(issue)).collect();
    // What was done before this issue is not left for later.
    let later: Vec<&Case> =
        cases.iter().filter(|case| !case.is_due_in(issue) && case.due != MAIN_JOB).collect();
    let mut missing = 0;
    let mut chosen: Vec<&str> = Vec::new();
    for name in wanted {
        match names.iter().find(|test| test.rsplit("::").next() == Some(name)) {
            Some(test) => {
                println!("  {name}");
                chosen.push(test);
            }
            None => {
                missing += 1;
                println!("  NO TEST  {name}");
            }
        }
    }
    for case in &due {
        let found = tests.get(case.id.to_ascii_lowercase().as_str()).map(Vec::as_slice).unwrap_or_default();
        match found {
            [] => {
                missing += 1;
                println!("  {:<4} NO TEST  {}", case.id, case.what);
            }
            [first, ..] => println!("  {:<4} {:>2} tests  {} ({first})", case.id, found.len(), case.what),
        }
        chosen.extend(found);
    }
    for case in &later {
        println!("  {:<4} left for {}: {}", case.id, case.due, case.what);
    }
    chosen.sort_unstable();
    chosen.dedup();
    // The quick tier has just run every test; in full they are run here once more, and must pass.
    let ran = if scale.quick() { None } else { Some(suite::run(&chosen)?) };
    let mut failed = 0;
    for name in ran.iter().flat_map(|ends| chosen.iter().filter(|name| ends.get(**name) != Some(&true))) {
        failed += 1;
        println!("  FAILED or not run: {name}");
    }
    println!(
        "{} cases are due, {missing} tests missing; {} tests guard them, {}; {} cases left for later",
        due.len(),
        chosen.len(),
        if ran.is_some() { format!("{failed} failed") } else { "not run again here".to_owned() },
        later.len()
    );
    Ok(missing == 0 && failed == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_guards_the_cases_its_name_begins_with() {
        let ids = |name| guards(name).collect::<Vec<_>>();
        assert_eq!(ids("keys::tests::k2_two_key_lines_are_refused"), ["k2"]);
        assert_eq!(ids("s5_s10_binary_bodies"), ["s5", "s10"]);
        assert_eq!(ids("r16_and_more_k1"), ["r16"]);
        assert!(ids("sf_all_634_values").is_empty());
        assert!(ids("es6_numbers").is_empty());
        assert!(ids("").is_empty());
    }

    #[test]
    fn every_required_case_is_on_the_list_and_due_now() {
        let cases = cases().expect("well formed");
        let due: Vec<&str> =
            cases.iter().filter(|case| case.is_due_in(MAIN_JOB)).map(|case| case.id.as_str()).collect();
        let required = ["D1", "D2", "D5", "D9", "D10", "R16"].map(str::to_owned);
        for id in (1..=8).map(|number| format!("R{number}")).chain(required) {
            assert!(due.contains(&id.as_str()), "{id}");
        }
        let due = |id: &str| cases.iter().any(|case| case.id == id && case.is_due_in(TRANSACTIONS));
        for id in "R10 R11 R12 R13 R14 R16 D4 T4 T5 F16 O6 O7 O8".split(' ') {
            assert!(due(id), "{id}");
        }
        let mut ids: Vec<&str> = cases.iter().map(|case| case.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), cases.len());
        assert!(cases.iter().all(|case| !case.what.is_empty()));
    }
}
