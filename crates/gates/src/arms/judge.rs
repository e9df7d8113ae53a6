//! From a round to what is wrong with it. Pure: every way to fail has a test with a round that does.

use std::fmt;

use super::{Arm, Exchange, Round, Step};
use crate::history::{Breach, Effects, Event, check};
use crate::plan::{Answers, KeyPlace};
use crate::told::{Told, difference, matches};
use crate::wire::Answer;

/// What one round shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A promise is broken.
    Fail(String),
    /// It cannot be told, and what to change.
    Unclear {
        /// What is in the way.
        why: String,
        /// What to do.
        change: String,
    },
    /// Worth knowing, and no breach.
    Note(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fail(what) | Self::Note(what) => f.write_str(what),
            Self::Unclear { why, change } => write!(f, "{why}; {change}"),
        }
    }
}

fn fail(what: impl Into<String>) -> Finding {
    Finding::Fail(what.into())
}

fn unclear(why: impl Into<String>, change: impl Into<String>) -> Finding {
    Finding::Unclear { why: why.into(), change: change.into() }
}

/// Everything that one round shows; nothing where it is as it should be.
#[must_use]
pub fn judge(round: &Round, answers: &Answers, key: &KeyPlace) -> Vec<Finding> {
    match round.arm {
        Arm::A0 => control(round),
        Arm::A1 | Arm::A9 => race(round, answers),
        Arm::A2 => judge_replay(round, answers),
        Arm::A3 => other_body(round, answers),
        Arm::A4 => other_account(round),
        Arm::A5 => other_operation(round),
        Arm::A6 => keyless(round, answers, key),
        Arm::A7 => twice(round),
        Arm::A8 => other_key(round),
        Arm::A10 => failure(round),
    }
}

/// A0: as many effects as requests, or every later count means nothing.
fn control(round: &Round) -> Vec<Finding> {
    let expected = round.exchanges.len() as u64;
    let mut findings = Vec::new();
    if let Some(odd) = round.exchanges.iter().find(|exchange| exchange.told != Told::Success) {
        findings.push(unclear(
            format!("a plain request with a key of its own was told {}", said(odd)),
            "make [request] one that succeeds: its path, headers and body; lower [concurrency] requests if the server is overwhelmed",
        ));
        return findings;
    }
    for seen in &round.seen {
        let (name, total) = (&seen.observer, seen.total);
        if total == expected {
            continue;
        }
        let why = format!("observer `{name}` counted {total} effects of {expected} different requests");
        findings.push(match total {
            0 => unclear(why, "it looks at the wrong place, or the operation has no effect there: run its query by hand"),
            _ if total < expected => unclear(
                why,
                "equal content is taken for one operation, or effects come very late: put {{nonce}} into the field that is compared, or raise [concurrency] quiet",
            ),
            _ if total.is_multiple_of(expected) => unclear(
                why,
                format!("each operation counts {} times: narrow the observer to one row for an operation", total / expected),
            ),
            _ => unclear(why, "somebody else writes there too: put {{nonce}} into the observer, or stop the other traffic"),
        });
    }
    findings
}

/// A1 and A9: one effect for the key, and everybody told the truth about it.
fn race(round: &Round, answers: &Answers) -> Vec<Finding> {
    let mut findings: Vec<Finding> = breaches(round).into_iter().map(|breach| rule(&breach)).collect();
    let told =
        |wanted: fn(Told) -> bool| round.exchanges.iter().filter(|it| wanted(it.told)).collect::<Vec<_>>();
    let in_race =
        |wanted: fn(Told) -> bool| told(wanted).into_iter().filter(|it| it.step == Step::Race).count();
    let failed = in_race(|told| matches!(told, Told::Failed(_)));
    let successes = told(|told| told == Told::Success).len();
    if failed > 0 && successes > 0 {
        findings.push(fail(format!("{failed} of the race were told 5xx: a loser learns nothing from that, and its client gives up or starts anew")));
    }
    let lost = told(|told| told == Told::Lost);
    if let Some(first) = lost.first() {
        findings.push(unclear(
            format!("{} requests got no answer ({})", lost.len(), said(first)),
            "lower [concurrency] requests, or raise its timeout",
        ));
    }
    let refused = told(|told| matches!(told, Told::Refused(_)));
    if let Some(first) = refused.first() {
        findings.push(unclear(
            format!(
                "{} requests were told {}, which is neither a replay nor in flight",
                refused.len(),
                said(first)
            ),
            "say in [answers] what it means: in_flight, mismatch or not_now",
        ));
    }
    if successes == 0 && lost.is_empty() && refused.is_empty() {
        findings.push(fail("nobody was told the result, not even who asked again afterwards"));
    }
    if round.arm == Arm::A9 {
        findings.extend(late_mismatches(round, answers));
    }
    findings
}

/// A2: who asks again gets the answer, byte for byte.
#[must_use]
pub fn judge_replay(round: &Round, answers: &Answers) -> Vec<Finding> {
    let before = round.exchanges.iter().find(|it| it.told == Told::Success && it.step != Step::After);
    let Some(after) = round.exchanges.iter().find(|it| it.step == Step::After) else { return Vec::new() };
    let (Some(first), Some(replay)) = (before.and_then(answer), answer(after)) else { return Vec::new() };
    if after.told != Told::Success {
        return vec![fail(format!("who asked again after a success was told {}", said(after)))];
    }
    let mut findings: Vec<Finding> = difference(first, replay, answers)
        .map(|what| fail(format!("the replay is not the answer: {what}")))
        .into_iter()
        .collect();
    if let Some(marker) = &answers.replay_marker
        && replay.header(marker).is_none()
    {
        findings.push(fail(format!("the replay has no header {marker}")));
    }
    findings
}

/// A3: the same key with another body is refused, and does nothing.
fn other_body(round: &Round, answers: &Answers) -> Vec<Finding> {
    let mut findings: Vec<Finding> = breaches(round).into_iter().map(|breach| rule(&breach)).collect();
    for exchange in round.exchanges.iter().filter(|it| it.variant != 0) {
        match exchange.told {
            Told::Refused(status) => findings.push(unclear(
                format!("another body under the same key was told {status}"),
                format!("if that is the mismatch, list it: [answers] mismatch = [{status}]"),
            )),
            Told::Failed(_) => {
                findings.push(fail(format!("another body under the same key was told {}", said(exchange))))
            }
            _ => {}
        }
    }
    findings.extend(late_mismatches(round, answers));
    findings
}

/// A mismatch while the first request still runs, told as *in flight*: an honest client would wait and never succeed.
fn late_mismatches(round: &Round, answers: &Answers) -> Option<Finding> {
    let ran = round.exchanges.iter().find(|it| it.told == Told::Success)?.variant;
    let waits =
        |it: &&Exchange| it.variant != ran && matches!(it.told, Told::Conflict { mismatch: false, .. });
    let count = round.exchanges.iter().filter(waits).count();
    let what = format!("{count} requests with another body were told in flight, while the first one ran");
    match (count, answers.mismatch_beats_in_flight) {
        (0, _) => None,
        (_, true) => Some(fail(format!("{what}: the mismatch has to come first"))),
        (_, false) => {
            Some(Finding::Note(format!("{what}: their clients wait for an answer that is not theirs")))
        }
    }
}

/// A4: a key belongs to its account.
fn other_account(round: &Round) -> Vec<Finding> {
    let [first, second] = round.exchanges.as_slice() else { return Vec::new() };
    if let Some(unclear) = needs_success(first) {
        return vec![unclear];
    }
    let nonce = round.nonces.first().map_or("", String::as_str);
    let leaks = answer(second).is_some_and(|told| told.contains(nonce));
    let same = answer(first)
        .zip(answer(second))
        .is_some_and(|(one, two)| !one.body.is_empty() && one.body == two.body);
    let mut findings = Vec::new();
    if leaks {
        findings.push(fail("a second account was told what the first one sent, under the same key"));
    } else if same && second.told == Told::Success {
        findings.push(fail("a second account was told the first one's answer, under the same key"));
    } else if second.told != Told::Success {
        findings.push(fail(format!(
            "a second account with the same key was told {}: keys are not scoped by account",
            said(second)
        )));
    }
    if findings.is_empty() {
        findings.extend(expect_effects(round, 2, "two accounts did one operation each"));
    }
    findings
}

/// A5: no operation tells the answer of another one.
fn other_operation(round: &Round) -> Vec<Finding> {
    let [first, second] = round.exchanges.as_slice() else { return Vec::new() };
    if let Some(unclear) = needs_success(first) {
        return vec![unclear];
    }
    let (Some(one), Some(two)) = (answer(first), answer(second)) else {
        return vec![unclear(
            format!("the other operation got no answer: {}", said(second)),
            "raise [concurrency] timeout",
        )];
    };
    let nonce = round.nonces.first().map_or("", String::as_str);
    if second.told == Told::Success && (two.contains(nonce) || (!one.body.is_empty() && one.body == two.body))
    {
        return vec![fail("another operation with the same key was told the answer of the first")];
    }
    match second.told {
        Told::Failed(_) => {
            vec![fail(format!("another operation with the same key was told {}", said(second)))]
        }
        _ => Vec::new(),
    }
}

/// A6: where a key is required, nothing happens without one.
fn keyless(round: &Round, answers: &Answers, key: &KeyPlace) -> Vec<Finding> {
    let Some(only) = round.exchanges.first() else { return Vec::new() };
    if key.required != Some(true) {
        return match only.told {
            Told::Success => Vec::new(),
            _ => vec![fail(format!(
                "the plan says that a key is not required, and without one it was told {}",
                said(only)
            ))],
        };
    }
    let mut findings: Vec<Finding> = effects_above(round, 0).into_iter().collect();
    let right = answer(only).is_some_and(|told| answers.missing_key.iter().any(|sign| matches(sign, told)));
    if !right {
        findings.push(fail(format!("a key is required, and without one it was told {}", said(only))));
    }
    findings
}

/// A7: the second of two equal requests does nothing.
fn twice(round: &Round) -> Vec<Finding> {
    let [first, again] = round.exchanges.as_slice() else { return Vec::new() };
    if let Some(unclear) = needs_success(first) {
        return vec![unclear];
    }
    if let Some(more) = effects_above(round, 1) {
        return vec![more, fail("the key is accepted and not applied: a plain repeat ran again")];
    }
    match again.told {
        Told::Success => Vec::new(),
        _ => vec![fail(format!("a plain repeat was told {}", said(again)))],
    }
}

/// A8: two keys are two operations, however equal their bodies.
fn other_key(round: &Round) -> Vec<Finding> {
    let [first, second] = round.exchanges.as_slice() else { return Vec::new() };
    if let Some(unclear) = needs_success(first) {
        return vec![unclear];
    }
    match second.told {
        Told::Success => {
            expect_effects(round, 2, "two intended twins: the server must not derive keys from bodies")
                .into_iter()
                .collect()
        }
        Told::Conflict { .. } => vec![fail(format!(
            "a new key with the same body was told {}: the server derives keys from bodies",
            said(second)
        ))],
        _ => vec![unclear(
            format!("a new key with the same body was told {}", said(second)),
            "if equal content is refused by a rule of the business, this arm has nothing to say: leave {{nonce}} out of the unique field",
        )],
    }
}

/// A10: what failed once is not done twice.
fn failure(round: &Round) -> Vec<Finding> {
    let Some(first) = round.exchanges.first() else { return Vec::new() };
    if !matches!(first.told, Told::Refused(_) | Told::Failed(_)) {
        return vec![unclear(
            format!("the failing request was told {}", said(first)),
            "make [failing] one that fails, such as a card that is declined",
        )];
    }
    effects_above(round, 1)
        .map(|more| vec![more, fail("a failure was not kept, and its retry had the effect again")])
        .unwrap_or_default()
}

fn needs_success(first: &Exchange) -> Option<Finding> {
    (first.told != Told::Success).then(|| {
        unclear(format!("the first request was told {}", said(first)), "make [request] one that succeeds")
    })
}

fn effects_above(round: &Round, most: u64) -> Option<Finding> {
    let over = round.seen.iter().find(|seen| seen.total > most)?;
    Some(fail(format!(
        "observer `{}` counted {} effects, where at most {most} may be",
        over.observer, over.total
    )))
}

fn expect_effects(round: &Round, expected: u64, why: &str) -> Option<Finding> {
    let other = round.seen.iter().find(|seen| seen.total != expected)?;
    Some(fail(format!(
        "observer `{}` counted {} effects, not {expected}: {why}",
        other.observer, other.total
    )))
}

fn rule(breach: &Breach) -> Finding {
    fail(format!("{} ({:?})", breach.what, breach.rule))
}

/// The history rules, for each observer's count: none may be wrong.
fn breaches(round: &Round) -> Vec<Breach> {
    let events = events(round);
    let mut all: Vec<Breach> = Vec::new();
    for seen in &round.seen {
        let effects = Effects { count: seen.total, first_at: round.effect_at };
        for mut breach in check(&events, Some(effects), None) {
            if breach.rule == crate::history::Rule::H1 {
                breach.what = format!("{}, counted by `{}`", breach.what, seen.observer);
            }
            if !all.iter().any(|known| known.rule == breach.rule && known.what == breach.what) {
                all.push(breach);
            }
        }
    }
    all
}

fn events(round: &Round) -> Vec<Event> {
    let mut kinds: Vec<&Answer> = Vec::new();
    round.exchanges.iter().map(|exchange| event(exchange, &mut kinds)).collect()
}

fn event<'a>(exchange: &'a Exchange, kinds: &mut Vec<&'a Answer>) -> Event {
    // Status and body: which result it is. Headers of a replay are judged for themselves (A2).
    let equal = |one: &Answer, two: &Answer| one.status == two.status && one.body == two.body;
    let place = answer(exchange).map_or(0, |told| {
        kinds.iter().position(|kind| equal(kind, told)).unwrap_or_else(|| {
            kinds.push(told);
            kinds.len() - 1
        })
    });
    let Exchange { timed, told, variant, .. } = exchange;
    // From its first byte: a server may claim a key as soon as it has read the headers.
    Event { invoked: timed.first_sent, returned: timed.done, told: *told, variant: *variant, answer: place }
}

fn answer(exchange: &Exchange) -> Option<&Answer> {
    exchange.timed.outcome.as_ref().ok()
}

/// What somebody was told, for people; never a body.
fn said(exchange: &Exchange) -> String {
    match &exchange.timed.outcome {
        Ok(answer) => answer.status.to_string(),
        Err(lost) => format!("nothing ({})", lost.0),
    }
}

#[cfg(test)]
mod tests;
