//! contract-tools.5: each of the seven questions changes the result as the specification says; what cannot be reached is removed.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow};
use retrysafe_core::{
    contract::{Contract, Offered, Severity},
    policy,
};
use retrysafe_design::{Answers, Place, Plan, contract, difference, record};
use serde::Deserialize;

use super::Scale;

/// The cases that the tests of `retrysafe-design` run on.
const CASES: &str = include_str!("../../../design/tests/data/questions.toml");
const QUESTIONS: usize = 7;

#[derive(Deserialize)]
struct Cases {
    base: toml::Table,
    case: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    question: u8,
    what: String,
    set: toml::Table,
    #[serde(default)]
    holds: Vec<String>,
    #[serde(default)]
    lacks: Vec<String>,
}

pub(crate) fn prove(_scale: Scale) -> Result<bool> {
    let cases: Cases = toml::from_str(CASES).context("questions.toml")?;
    let before = answers(&cases.base)?;
    let old = written(&before);
    let mut by_question: BTreeMap<u8, usize> = BTreeMap::new();
    let (mut right, mut demoted) = (0, 0);
    for case in &cases.case {
        let mut table = cases.base.clone();
        table.extend(case.set.clone());
        let after = answers(&table)?;
        let new = written(&after);
        let as_said = case.holds.iter().all(|word| new.contains(word))
            && !case.lacks.iter().any(|word| new.contains(word));
        let otherwise = case.holds.iter().any(|word| !old.contains(word))
            || case.lacks.iter().any(|word| old.contains(word));
        let changed = difference(&before, &after).len();
        let holds = as_said && otherwise && changed > 0 && can_be_kept(&after)?;
        demoted += usize::from(!removed_for_good(&after));
        right += usize::from(holds);
        *by_question.entry(case.question).or_default() += usize::from(holds);
        println!(
            "  {} {}: {} ({changed} lines change)",
            case.question,
            case.what,
            if holds { "yes" } else { "NO" }
        );
    }
    println!(
        "{right} of {} answers change the result as the specification says, over {} questions; {demoted} methods ranked that were removed",
        cases.case.len(),
        by_question.len()
    );
    Ok(right == cases.case.len() && by_question.len() == QUESTIONS && demoted == 0)
}

fn answers(table: &toml::Table) -> Result<Answers> {
    Answers::parse(&toml::to_string(table)?).map_err(|why| anyhow!(why))
}

fn written(answers: &Answers) -> String {
    let plan = Plan::of(answers);
    contract(answers, &plan) + &record(answers, &plan)
}

fn can_be_kept(answers: &Answers) -> Result<bool> {
    let plan = Plan::of(answers);
    let contract =
        Contract::parse(&contract(answers, &plan), "retrysafe.toml").map_err(|faults| anyhow!("{faults}"))?;
    let offered = match plan.place {
        Place::Library => Offered::postgres(policy::Place::Library),
        Place::Gateway => Offered::sqlite(policy::Place::Gateway),
    };
    Ok(contract.check(&offered).iter().all(|one| one.severity != Severity::Error))
}

/// Removal is never demotion: no method is both ranked and removed, and every removal has its reason.
fn removed_for_good(answers: &Answers) -> bool {
    let ranking = Plan::of(answers).ranking;
    let ranked: BTreeSet<&str> = ranking.ranked.iter().map(|one| one.method.as_str()).collect();
    ranking.removed.iter().all(|one| !ranked.contains(one.method.as_str()) && !one.why.is_empty())
}
