//! What another answer changes.

use crate::{
    answers::Answers,
    plan::Plan,
    write::{contract, record},
};

/// Lines of the contract and of the record that two sets of answers do not share: `-` before, `+` after.
pub fn difference(before: &Answers, after: &Answers) -> Vec<String> {
    let text = |answers: &Answers| {
        let plan = Plan::of(answers);
        format!("{}\n{}", contract(answers, &plan), record(answers, &plan))
    };
    let (old, new) = (text(before), text(after));
    let lines = |text: &str| {
        text.lines().map(str::to_owned).filter(|line| !line.trim().is_empty()).collect::<Vec<_>>()
    };
    let (old, new) = (lines(&old), lines(&new));
    let gone = old.iter().filter(|line| !new.contains(line)).map(|line| format!("- {line}"));
    let came = new.iter().filter(|line| !old.contains(line)).map(|line| format!("+ {line}"));
    gone.chain(came).collect()
}
