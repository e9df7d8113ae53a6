//! What a completer does with a request that nobody works on.

use std::time::Duration;

use super::{Entry, Progress, Shape, Stopped};
use crate::{
    ids::AttemptId,
    record::{Expect, Record, RecoveryClass, State, Uncertainty, Write},
    retry::{Backoff, Jitter, Pace},
    time::Wall,
};

/// How patient a completer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// How often it goes on with one request without anything moving.
    pub tries_max: u32,
    /// The first pause after a failure, doubled each time.
    pub pause_first: Duration,
    /// The longest.
    pub pause_longest: Duration,
    /// When the caller of a request is gone of which nothing was written down, from its claim on.
    pub patience: Duration,
    /// How long a request without anything foreign waits for its caller to come back, before a person is shown it.
    pub keep: Duration,
}

impl Default for Terms {
    /// Ten tries over about half an hour, callers that wait for a minute and come back within a day.
    fn default() -> Self {
        Self {
            tries_max: 10,
            pause_first: Duration::from_secs(2),
            pause_longest: Duration::from_secs(300),
            patience: Duration::from_secs(60),
            keep: Duration::from_secs(24 * 3600),
        }
    }
}

/// What a completer knows of an operation's journal, and of the plan that is to run it.
#[derive(Clone, Copy, Debug)]
pub enum Standing<'a> {
    /// Nothing was written down: its holder was lost right after the claim.
    Unopened,
    /// It came this far, and this is the plan of that name here.
    Known(&'a Progress, Option<&'a Shape>),
}

/// What a completer does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// Nothing: it is held, it is done, it is not of several steps, or its plan is run elsewhere.
    Leave,
    /// Nothing before this instant: until then it is its caller's to come back for.
    Wait(Wall),
    /// Take over and run it from where it stopped.
    GoOn,
    /// Take over and free the key: nothing was done, and its caller was told "failed" long ago (protocol 24).
    Close,
    /// Take over and show it to a person.
    Stop(Stopped),
}

/// What a completer does with a request whose record is `record`.
///
/// Past its caller's deadline it goes on only where a foreign mutation was begun (protocol 24): who was told "failed" hours
/// ago must not be charged now. Before that deadline somebody may still be waiting, by a status URL, and it goes on from
/// anywhere.
pub fn judge(record: &Record, standing: Standing<'_>, terms: &Terms, now: Wall) -> Judgement {
    let abandoned = record.recovery == RecoveryClass::Phased
        && matches!(record.state, State::InFlight { lease_until } if lease_until <= now);
    if !abandoned {
        return Judgement::Leave;
    }
    let (progress, shape) = match standing {
        // There is nothing to run it by.
        Standing::Unopened if record.opened_at.plus(terms.patience) <= now => return Judgement::Close,
        Standing::Unopened => return Judgement::Wait(record.opened_at.plus(terms.patience)),
        Standing::Known(progress, shape) => (progress, shape),
    };
    let is_late = progress.is_late(now);
    if is_late && !progress.has_started() {
        return Judgement::Close;
    }
    if is_late && !progress.is_past_foreign() {
        let kept_until = progress.opened_at.plus(terms.keep);
        return match kept_until <= now {
            true => Judgement::Stop(Stopped::Abandoned),
            false => Judgement::Wait(kept_until),
        };
    }
    let Some(shape) = shape else { return Judgement::Leave };
    if *progress.plan != *shape.text() {
        return Judgement::Stop(Stopped::PlanChanged { current: shape.text() });
    }
    if progress.tries >= terms.tries_max {
        let why = progress.last_failure.clone().unwrap_or_else(|| Box::from("its process ended each time"));
        return Judgement::Stop(Stopped::GaveUp { why });
    }
    Judgement::GoOn
}

/// Whether the key of a request with this journal may be freed: nothing was done. Asked of the journal as it is *after* the
/// takeover, when nobody else can write to it. Found by the simulation: a phase whose commit was seconds on its way can
/// arrive between the judgement and the takeover, with a lease that has already ended.
pub fn is_untouched(journal: &[Entry]) -> bool {
    journal.is_empty() || Progress::of(journal).is_ok_and(|progress| !progress.has_started())
}

/// The write by which a completer takes `record` over, to run it or to free its key. The class, the contract's version and
/// the operation's id stay those of the first claim (protocol 8), and so does its journal.
pub fn takeover(record: &Record, attempt: AttemptId, lease: Duration, now: Wall) -> Write {
    let expect = Expect::Takeover { attempt: record.attempt, expired_by: now };
    let state = State::InFlight { lease_until: now.plus(lease) };
    Write { expect, next: Record { attempt, state, ..record.clone() } }
}

/// The write that shows an abandoned `record` to a person.
pub fn stop(record: &Record, now: Wall) -> Write {
    let expect = Expect::Takeover { attempt: record.attempt, expired_by: now };
    let state = State::Uncertain { since: now, why: Uncertainty::Stopped };
    Write { expect, next: Record { state, ..record.clone() } }
}

/// How long a request rests after its try number `tries`, the first being 1: half of a doubling pause for certain, so that
/// it does not come round at once, and a share of the other half, so that many do not come round together.
pub fn pause(terms: &Terms, tries: u32, entropy: u64) -> Duration {
    let backoff = Backoff {
        jitter: Jitter::Full,
        base: terms.pause_first / 2,
        throttled_base: terms.pause_first / 2,
        cap: terms.pause_longest / 2,
    };
    let retry = tries.saturating_sub(1);
    backoff.bound(Pace::Transient, retry) + backoff.delay(Pace::Transient, retry, Duration::ZERO, entropy)
}
