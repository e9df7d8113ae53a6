//! A: which operations are covered, and whether they are what they look like.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Context, Subject};
use crate::{
    effect::{Confidence, Effect, safe_method_that_writes},
    finding::{self as rule, Finding},
    judge::Verdict,
    keys::Standing,
    operation::Direction,
    words::{folded, literals},
};

/// Siblings, and the share of them with a key, from which one without is a mistake.
const SIBLINGS_MIN: usize = 3;
const SIBLINGS_SHARE: f64 = 0.6;

pub(super) fn find(context: &Context<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = context.subjects().flat_map(one).collect();
    found.extend(siblings(context));
    found.extend(prose_only(context));
    found.extend(received(context));
    found.extend(unjudged(context));
    found
}

fn one(subject: Subject<'_>) -> Vec<Finding> {
    let Subject { number, operation, judgement, candidates } = subject;
    let place = operation.place().clone();
    let mut found = Vec::new();
    let mut note = |rule, sure, message: &str| {
        let evidence = judgement.evidence.clone();
        found.push(Finding::new(rule, sure, place.clone(), message).on([number]).because(evidence));
    };
    match (judgement.verdict, judgement.effect) {
        (Verdict::Undocumented, _) => note(&rule::A101, judgement.confidence, rule::A101.finds),
        (Verdict::NeedsHuman, Effect::Read) => {
            note(
                &rule::A103,
                Confidence::Low,
                "looks like a read by its name; nothing else in the document says so",
            );
        }
        (Verdict::NeedsHuman, Effect::Compute) => {
            note(
                &rule::A103,
                Confidence::Low,
                "looks like computation: where it is billed, a retry is paid for twice",
            );
        }
        (Verdict::SafeRead, _) if operation.method == "POST" => {
            note(&rule::A103, judgement.confidence, rule::A103.finds);
        }
        _ => {}
    }
    let reads = judgement.effect == Effect::Read && judgement.confidence > Confidence::Low;
    let key = candidates.iter().find(|one| one.standing == Standing::Key && !one.parameter.nested);
    if let Some(key) = key.filter(|_| reads || !operation.may_change()) {
        let rule = if key.parameter.with_path && !operation.may_change() { &rule::A107 } else { &rule::A104 };
        let finding = Finding::new(rule, key.confidence, key.at().clone(), rule.finds);
        found.push(finding.on([number]).because([key.evidence()]));
    }
    if let Some(evidence) = safe_method_that_writes(operation) {
        let message = "a GET whose name says that it changes something";
        found.push(
            Finding::new(&rule::A105, evidence.weight, place, message).on([number]).because([evidence]),
        );
    }
    found
}

/// A102: operations of one group, most of which take a key.
fn siblings(context: &Context<'_>) -> Vec<Finding> {
    let mut groups: BTreeMap<String, Vec<Subject<'_>>> = BTreeMap::new();
    let changing = |one: &Subject<'_>| one.changes() && matches!(&*one.operation.method, "POST" | "PATCH");
    for subject in context.subjects().filter(changing) {
        let first = literals(subject.operation.path).next().unwrap_or_default();
        let group = subject.operation.tags.first().copied().unwrap_or(first);
        groups.entry(group.to_owned()).or_default().push(subject);
    }
    let mut found = Vec::new();
    for (group, members) in groups {
        let keyed = members.iter().filter(|one| one.key().is_some()).count();
        #[allow(clippy::cast_precision_loss)] // numbers of operations
        let share = keyed as f64 / members.len() as f64;
        if keyed < SIBLINGS_MIN || share < SIBLINGS_SHARE {
            continue;
        }
        for odd in members.iter().filter(|one| one.judgement.verdict == Verdict::Undocumented) {
            let message =
                format!("{keyed} of {} operations of {group} take a key, this one does not", members.len());
            let place = odd.operation.place().clone();
            found.push(Finding::new(&rule::A102, Confidence::High, place, message).on([odd.number]));
        }
    }
    found
}

fn prose_only(context: &Context<'_>) -> Option<Finding> {
    let global = context.global?;
    let by_it = |one: &Subject<'_>| one.judgement.evidence.first() == Some(&global.evidence);
    let concerned: Vec<usize> = context.subjects().filter(by_it).map(|one| one.number).collect();
    if concerned.is_empty() {
        return None;
    }
    let place = global.evidence.place.clone();
    let finding = Finding::new(&rule::A106, Confidence::Medium, place, global.message.clone());
    Some(finding.on(concerned).because([global.evidence.clone()]))
}

fn received(context: &Context<'_>) -> Option<Finding> {
    let operations = context.inventory.operations.iter().enumerate();
    let received = operations.filter(|(_, one)| one.direction != Direction::Path);
    let received: Vec<usize> = received.map(|(number, _)| number).collect();
    let first = context.inventory.operations.get(*received.first()?)?;
    let place = first.place().clone();
    Some(Finding::new(&rule::A108, Confidence::High, place, rule::A108.finds).on(received))
}

/// A109: what could not be followed, and names that mean two operations.
fn unjudged(context: &Context<'_>) -> Vec<Finding> {
    let mut seen = HashSet::new();
    // A component that many operations use is broken once.
    let unread = context.inventory.unread.iter().filter(|one| seen.insert(*one));
    let mut found: Vec<Finding> = unread
        .map(|(place, why)| Finding::new(&rule::A109, Confidence::High, place.clone(), why.clone()))
        .collect();
    let operations = &context.inventory.operations;
    let mut ids: HashMap<&str, usize> = HashMap::new();
    for (number, operation) in operations.iter().enumerate() {
        let Some(other) = operation.id.and_then(|id| ids.insert(id, number)) else { continue };
        // The same path under two spellings is one operation, written twice.
        let twin = operations[other].method == operation.method
            && folded(operations[other].path) == folded(operation.path);
        if !twin {
            let place = operation.place().step("operationId");
            let message = "its operationId belongs to another operation too";
            found.push(Finding::new(&rule::A109, Confidence::High, place, message).on([number, other]));
        }
    }
    found
}
