//! The life of a key as lines, from its record, its journal and the log of acts. Pure: whoever prints it chooses how.

use bytes::Bytes;
use retrysafe_core::{
    record::{Record, RecoveryClass, State, Uncertainty},
    recovery::{Attended, Entry, Event, Progress},
    time::Wall,
};
use retrysafe_store::journal::{LoggedAct, Replays};

/// Something that happened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) at: Wall,
    /// One word, for machines.
    pub(super) event: &'static str,
    /// A sentence, for people.
    pub(super) what: String,
    /// Which step.
    pub(super) step: Option<String>,
    /// What is only shown when it was asked for.
    pub(super) hidden: Option<Hidden>,
}

/// Keys and bodies.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hidden {
    pub(super) what: &'static str,
    pub(super) key: Option<String>,
    pub(super) body: Bytes,
}

/// Everything that is known, in its order. Lines of the log come after what the journal has of the same instant: an act is
/// about what was there.
pub(super) fn timeline(
    record: Option<&Record>,
    journal: &[Entry],
    acts: &[LoggedAct],
    replays: Option<&Replays>,
) -> Vec<Line> {
    let mut lines: Vec<Line> = record.map(claimed).into_iter().collect();
    // An operator's entry is in the log as well, with its evidence; of a key that is gone only the journal is found.
    let logged = |entry: &&Entry| matches!(entry.event, Event::Operator { .. }) && !acts.is_empty();
    lines.extend(journal.iter().filter(|entry| !logged(entry)).map(entry));
    lines.extend(acts.iter().map(acted));
    if let Some(record) = record {
        lines.extend(settled(record));
    }
    lines.extend(replays.map(replayed));
    lines.sort_by_key(|line| line.at);
    lines
}

fn plain(at: Wall, event: &'static str, what: impl Into<String>) -> Line {
    Line { at, event, what: what.into(), step: None, hidden: None }
}

fn claimed(record: &Record) -> Line {
    plain(record.opened_at, "claimed", format!("received and claimed: {}", record.endpoint))
}

fn settled(record: &Record) -> Option<Line> {
    match &record.state {
        State::InFlight { .. } => None,
        State::Uncertain { since, why } => {
            Some(plain(*since, "uncertain", format!("uncertain: {}", because(*why))))
        }
        State::Completed { outcome, at, .. } => {
            Some(plain(*at, "completed", format!("completed with {}", outcome.status)))
        }
    }
}

/// At the last time: most likely before what comes after it.
fn replayed(replays: &Replays) -> Line {
    let Replays { times, first, last, .. } = replays;
    let what = match times {
        1 => "answered again: its answer was replayed at least once".to_owned(),
        _ => format!(
            "answered again: its answer was replayed at least {times} times since {}",
            super::instant(*first)
        ),
    };
    plain(*last, "replayed", what)
}

fn acted(line: &LoggedAct) -> Line {
    let act = &line.act;
    let evidence =
        act.evidence.as_ref().map(|evidence| format!(" (evidence: {evidence})")).unwrap_or_default();
    plain(act.at, act.act.name(), format!("{} by {}: {}{evidence}", act.act.name(), act.who, act.why))
}

fn entry(entry: &Entry) -> Line {
    let at = entry.at;
    let of = |step: &retrysafe_core::recovery::StepName, event, what: String, hidden: Option<Hidden>| Line {
        at,
        event,
        what,
        step: Some(step.as_str().to_owned()),
        hidden,
    };
    let kept = |what, body: &Bytes| Some(Hidden { what, key: None, body: body.clone() });
    match &entry.event {
        Event::Opened { plan, request, deadline } => Line {
            hidden: Some(Hidden {
                what: "request",
                key: Some(request.principal.to_string()),
                body: request.fields.clone(),
            }),
            ..plain(
                at,
                "opened",
                format!("begun; its caller waits {}; plan {plan}", super::about(deadline.since(at))),
            )
        },
        Event::Resumed { by: Attended::Retry } => plain(at, "retried", "gone on with: its caller came again"),
        Event::Resumed { by: Attended::Completer } => plain(at, "taken_on", "gone on with by a completer"),
        Event::Done { step, result } => {
            of(step, "phase", format!("step {step} committed"), kept("result", result))
        }
        Event::Intent { step, key, request } => {
            let key = Some(key.as_str().to_owned());
            let hidden = Some(Hidden { what: "call", key, body: request.clone() });
            of(step, "intent", format!("step {step} is about to call outside"), hidden)
        }
        Event::Resent { step } => of(
            step,
            "resent",
            format!("step {step} is about to call again, with the same key and bytes"),
            None,
        ),
        Event::NotSent { step } => of(step, "not_sent", format!("step {step}: nothing was sent"), None),
        Event::Result { step, result } => of(
            step,
            "result",
            format!("step {step}: the result of the call is known"),
            kept("result", result),
        ),
        Event::Failed { why } => plain(at, "failed", format!("an attempt ended: {why}")),
        Event::Stopped(why) => plain(at, "stopped", format!("needs a person: {why}")),
        Event::Ended { status } => plain(at, "answered", format!("answered {status}")),
        Event::Operator { who, act, why } => plain(at, act.name(), format!("{} by {who}: {why}", act.name())),
    }
}

/// What the journal says of calls that left, or may have left: what a person has to know before a key is released.
pub(super) fn calls(journal: &[Entry]) -> Vec<String> {
    let Ok(progress) = Progress::of(journal) else { return Vec::new() };
    progress
        .steps()
        .filter_map(|step| match (progress.intent(step), progress.result(step)) {
            (Some(_), _) => Some(format!("the call of step {step} may have been made")),
            (None, Some(_)) => Some(format!("step {step} is done")),
            (None, None) => None,
        })
        .collect()
}

/// Why a record is uncertain.
pub(super) fn because(why: Uncertainty) -> &'static str {
    match why {
        Uncertainty::HolderLost => "its holder was lost",
        Uncertainty::UpstreamLost => "the upstream gave no answer that says what happened",
        Uncertainty::Panicked => "the handler panicked",
        Uncertainty::Declared => "the handler said that it does not know",
        Uncertainty::ResultNotStored => "its result could not be stored",
        Uncertainty::Stopped => "it cannot go on by itself",
    }
}

/// The name of a recovery class, as contracts have it.
pub(super) fn class(class: RecoveryClass) -> &'static str {
    match class {
        RecoveryClass::Atomic => "atomic",
        RecoveryClass::Phased => "phased",
        RecoveryClass::Outside => "outside",
        RecoveryClass::Deduplicated => "deduplicated",
    }
}
