//! `retrysafe keys show`: the timeline of one key.

use std::fmt::Write as _;

use bytes::Bytes;
use clap::Args;
use retrysafe_core::{
    ids::StatusId,
    operate::{Standing, standing},
    record::{Record, RecoveryClass, State},
    recovery::{Entry, Event},
    time::Wall,
};
use retrysafe_store::{
    Store, StoreError,
    journal::{EffectState, Journal, LoggedAct, Replays, StagedEffect},
};
use serde_json::{Value, json};

use super::{
    Common, instant, journals, list, refused,
    timeline::{Hidden, Line, timeline},
    which::{Found, Which},
};
use crate::failure::Failure;

/// How many acts on one key are shown.
const ACTS_MAX: usize = 1_000;
/// How many staged effects are shown.
const EFFECTS_MAX: usize = 1_000;
/// How many pages of the log are read for a key that is gone.
const LOG_PAGES_MAX: usize = 100;

/// Show what became of a key: its claim, its steps, its calls and their results, and what people did
#[derive(Args, Debug)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    common: Common,
    /// Print keys and bodies as well: the key itself, what was kept of the request, the keys and bytes of calls, results,
    /// the stored answer
    #[arg(long)]
    reveal: bool,
}

pub(super) async fn run(args: &ShowArgs) -> Result<(), Failure> {
    let (place, which) = (&args.common.store, &args.which);
    let store = place.open().await?;
    let failed = refused(place);
    let found = which.look(&*store, place).await?;
    let now = store.now().map_err(&failed)?;
    let Evidence { journal, acts, effects, replays } = evidence(&*store, args, &found).await?;
    if found.record.is_none() && journal.is_empty() && acts.is_empty() {
        return Err(which.absent(place));
    }
    let lines = timeline(found.record.as_ref(), &journal, &acts, replays.as_ref());
    let key = found.address.as_ref().zip(found.record.as_ref());
    if args.common.json {
        let mut shown = match key {
            Some((address, record)) => list::as_json(&(address.clone(), record.clone()), now, args.reveal),
            None => json!({ "state": "absent" }),
        };
        if let Some(shown) = shown.as_object_mut() {
            let lines: Vec<_> = lines.iter().map(|line| as_json(line, args.reveal)).collect();
            shown.insert("timeline".into(), lines.into());
            if found.operation.is_some() {
                shown.insert("effects".into(), effects.iter().map(effect_as_json).collect());
            }
            if let Some(Replays { times, first, last, .. }) = replays {
                let replays = json!({ "at_least": times, "first": instant(first), "last": instant(last) });
                shown.insert("replays".into(), replays);
            }
            if let Some(answer) = key.filter(|_| args.reveal).and_then(|(_, record)| answer(record)) {
                shown.insert("answer".into(), shown_body(answer).into());
            }
        }
        anstream::println!("{shown}");
        return Ok(());
    }
    let mut page = String::new();
    if let Some((address, record)) = key.filter(|_| args.reveal) {
        let _ = writeln!(page, "account {}\nkey     {}", address.account().as_str(), address.key().as_str());
        if let Some(answer) = answer(record) {
            let _ = writeln!(page, "answer  {}", shown_body(answer));
        }
        page.push('\n');
    }
    lines.iter().for_each(|line| page += &as_text(line, args.reveal));
    effects.iter().for_each(|effect| page += &effect_as_text(effect));
    page += &closing(found.record.as_ref(), &journal, now);
    anstream::print!("{page}");
    Ok(())
}

/// What is kept of an operation besides its record.
struct Evidence {
    journal: Vec<Entry>,
    acts: Vec<LoggedAct>,
    effects: Vec<StagedEffect>,
    replays: Option<Replays>,
}

/// The journal of the operation with its effects and replays, and what people did about the key.
async fn evidence(store: &dyn Store, args: &ShowArgs, found: &Found) -> Result<Evidence, Failure> {
    let failed = refused(&args.common.store);
    let journals = journals(store, &args.common.store)?;
    let (journal, effects, replays) = match found.operation {
        Some(operation) => (
            journals.journal(operation).await.map_err(&failed)?,
            journals.staged_of(operation, EFFECTS_MAX).await.map_err(&failed)?,
            journals.replays(operation).await.map_err(&failed)?,
        ),
        None => (Vec::new(), Vec::new(), None),
    };
    let acts = match (&found.address, found.operation) {
        (Some(address), _) => journals.acts(Some(address), 0, ACTS_MAX).await.map_err(&failed)?,
        (None, Some(operation)) => of_a_key_that_is_gone(journals, operation).await.map_err(&failed)?,
        (None, None) => Vec::new(),
    };
    Ok(Evidence { journal, acts, effects, replays })
}

/// Acts on an operation whose record is gone, and with it the address that the log is found by: it is read from its beginning,
/// up to a bound.
async fn of_a_key_that_is_gone(
    journals: &dyn Journal,
    operation: StatusId,
) -> Result<Vec<LoggedAct>, StoreError> {
    let (mut acts, mut after) = (Vec::new(), 0);
    for _ in 0..LOG_PAGES_MAX {
        let page = journals.acts(None, after, ACTS_MAX).await?;
        let Some(last) = page.last() else { break };
        after = last.number;
        acts.extend(page.into_iter().filter(|line| line.operation == operation));
    }
    Ok(acts)
}

fn answer(record: &Record) -> Option<&Bytes> {
    match &record.state {
        State::Completed { outcome, .. } => match &outcome.body {
            retrysafe_core::outcome::Body::Kept(body) => Some(body),
            retrysafe_core::outcome::Body::NotKept(_) => None,
        },
        State::InFlight { .. } | State::Uncertain { .. } => None,
    }
}

/// What comes next, and what a person can do about it.
fn closing(record: Option<&Record>, journal: &[Entry], now: Wall) -> String {
    let Some(record) = record else { return "now: nothing is there; the key is free\n".to_owned() };
    let stopped = journal.iter().rev().find_map(|entry| match &entry.event {
        Event::Stopped(why) => Some(why.to_string()),
        _ => None,
    });
    let next = match standing(record, now) {
        Standing::Held { until } => format!("somebody works on it; its lease ends {}", instant(until)),
        Standing::Abandoned if record.recovery == RecoveryClass::Phased => {
            "nobody works on it; a completer or its caller's retry goes on with it".to_owned()
        }
        Standing::Abandoned if record.recovery == RecoveryClass::Outside => {
            "nobody works on it; upkeep or its caller's retry marks it uncertain".to_owned()
        }
        Standing::Abandoned => "nobody works on it; its caller's retry runs it again".to_owned(),
        Standing::Uncertain => format!(
            "uncertain; {}",
            stopped.unwrap_or_else(|| "find out what happened, then resolve or release it".to_owned())
        ),
        Standing::Completed => "completed; its answer is replayed".to_owned(),
        Standing::Expired => "its window is over; the same key is a new request".to_owned(),
    };
    format!("now: {next}\n")
}

/// One word for what became of an effect, and when.
fn became(state: EffectState) -> (&'static str, Option<Wall>) {
    match state {
        EffectState::Waiting { due } => ("waiting", Some(due)),
        EffectState::Sent { at } => ("sent", at),
        EffectState::GivenUp { at } => ("given_up", at),
    }
}

fn effect_as_text(effect: &StagedEffect) -> String {
    let StagedEffect { name, state, staged, tries, failure } = effect;
    let (became, at) = became(*state);
    let at = at.map_or_else(|| "at an unknown time".to_owned(), instant);
    let state = match state {
        EffectState::Waiting { .. } => format!("waiting, due {at}"),
        EffectState::Sent { .. } => format!("{became} {at}"),
        EffectState::GivenUp { .. } => format!("given up {at}"),
    };
    let staged =
        staged.map_or_else(|| "staged at an unknown time".to_owned(), |at| format!("staged {}", instant(at)));
    let tries = match tries {
        1 => "1 attempt".to_owned(),
        tries => format!("{tries} attempts"),
    };
    let failure = failure.as_ref().map(|why| format!("; the last time: {why}")).unwrap_or_default();
    format!("effect {name}: {state}; {staged}; {tries}{failure}\n")
}

fn effect_as_json(effect: &StagedEffect) -> Value {
    let StagedEffect { name, state, staged, tries, failure } = effect;
    let ((became, at), due) = (became(*state), matches!(state, EffectState::Waiting { .. }));
    json!({
        "name": name,
        "state": became,
        "staged": staged.map(instant),
        "due": at.filter(|_| due).map(instant),
        "ended": at.filter(|_| !due).map(instant),
        "attempts": tries,
        "failure": failure,
    })
}

fn as_text(line: &Line, reveal: bool) -> String {
    let mut text = format!("{}  {}\n", instant(line.at), line.what);
    if let Some(hidden) = &line.hidden {
        match reveal {
            true => {
                let key = hidden.key.as_ref().map(|key| format!(" {key}")).unwrap_or_default();
                let _ = writeln!(text, "    {}{key}: {}", hidden.what, shown_body(&hidden.body));
            }
            false => {
                let _ = writeln!(text, "    {}: {} bytes (--reveal)", hidden.what, hidden.body.len());
            }
        }
    }
    text
}

fn as_json(line: &Line, reveal: bool) -> Value {
    let mut shown = json!({ "at": instant(line.at), "event": line.event, "what": line.what });
    if let Some(shown) = shown.as_object_mut() {
        if let Some(step) = &line.step {
            shown.insert("step".into(), step.as_str().into());
        }
        if let Some(Hidden { what, key, body }) = &line.hidden {
            let hidden = match reveal {
                true => json!({ "key": key, "body": shown_body(body) }),
                false => json!({ "bytes": body.len() }),
            };
            shown.insert((*what).into(), hidden);
        }
    }
    shown
}

/// A body as text, where it is text.
fn shown_body(body: &Bytes) -> String {
    std::str::from_utf8(body).map_or_else(|_| format!("{} bytes that are no text", body.len()), str::to_owned)
}
