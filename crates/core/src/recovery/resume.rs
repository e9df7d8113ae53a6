//! What a step does when somebody goes on: skip, run, ask, send again, or leave it to a person.

use std::sync::Arc;

use bytes::Bytes;

use super::{Attended, External, Intent, Kind, Progress, Resend, Shape, StepName, Stopped};
use crate::time::Wall;

/// What to do with a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// It is done, with this result.
    Skip(Bytes),
    /// Nothing of it is known: begin it. A foreign call writes its intent first.
    Run,
    /// It may have been called: ask the provider, by the intent's key.
    Ask(Intent),
    /// It may have been called: send the stored bytes again, with the stored key.
    Resend(Intent),
    /// It may have been called, and nothing may be done about it.
    Uncertain(Stopped),
    /// It would be the first foreign mutation, and its caller was told meanwhile that it failed: not by a completer
    /// (protocol 24). Found by the model: a completer that decides in time can come to its first call too late.
    TooLate,
}

/// Why a step is not even looked at.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Another plan began this request.
    #[error("the request was begun by another plan: {stored}")]
    PlanChanged {
        /// The line of that plan.
        stored: Arc<str>,
    },
    /// The plan has no such step.
    #[error("the plan has no step `{0}` of this kind")]
    NoSuchStep(StepName),
}

/// What to do with `step` of a request that came as far as `progress`, run by the plan `shape`, by somebody of the kind `by`.
///
/// # Errors
/// [`Refused`]: going on would be guessing.
pub fn next(
    progress: &Progress,
    shape: &Shape,
    step: &StepName,
    by: Attended,
    now: Wall,
) -> Result<Next, Refused> {
    if *progress.plan != *shape.text() {
        return Err(Refused::PlanChanged { stored: Arc::clone(&progress.plan) });
    }
    let Some((_, found)) = shape.find(step) else { return Err(Refused::NoSuchStep(step.clone())) };
    if let Some(result) = progress.result(step) {
        return Ok(Next::Skip(result.clone()));
    }
    let Some(intent) = progress.intent(step) else {
        let first = matches!(found.kind, Kind::External(_)) && !progress.is_past_foreign();
        let is_late = first && by == Attended::Completer && progress.is_late(now);
        return Ok(if is_late { Next::TooLate } else { Next::Run });
    };
    Ok(match found.kind {
        // Intents are of foreign calls; this one is of a step that no longer makes one.
        Kind::Phase => return Err(Refused::NoSuchStep(step.clone())),
        // First the question: an answer costs the provider nothing, and it may be older than its window.
        Kind::External(External { asks: true, .. }) => Next::Ask(intent.clone()),
        Kind::External(External { resend, .. }) => resend_or_stop(resend, step, intent, now),
    })
}

/// What a provider says when asked what became of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// It was made, with this result.
    Done(Bytes),
    /// It knows of none. The call may still be on its way (protocol 22).
    Absent,
    /// It was not reached, or does not know yet.
    Silent,
}

/// What to do after the question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AfterAsk {
    /// Write this result down and go on.
    Record(Bytes),
    /// Send the stored bytes again, with the stored key.
    Resend,
    /// Ask again later.
    Later,
    /// A person has to look.
    Uncertain(Stopped),
}

/// What to do with the call of `step` now that the provider was asked. "Absent" permits no second call, unless the provider
/// de-duplicates by the key or the question itself closed the door behind the first (protocol 22).
pub fn asked(external: External, step: &StepName, intent: &Intent, found: Found, now: Wall) -> AfterAsk {
    match found {
        Found::Done(result) => AfterAsk::Record(result),
        Found::Silent => AfterAsk::Later,
        Found::Absent if external.fences => AfterAsk::Resend,
        Found::Absent => match resend_or_stop(external.resend, step, intent, now) {
            Next::Resend(_) => AfterAsk::Resend,
            _ => AfterAsk::Uncertain(unresolved(step)),
        },
    }
}

/// How a foreign call failed to give a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallFailure {
    /// No byte of it left this process.
    NotSent,
    /// It was sent, in part or whole, and what came back does not say what happened.
    Unknown,
}

/// What to do after a call that gave no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AfterFailure {
    /// Write down that nothing was sent; a later attempt begins the step anew.
    Void,
    /// A later attempt asks or sends again.
    Later,
    /// A person has to look.
    Uncertain(Stopped),
}

/// What to do with the call of `step` that failed.
pub fn failed(
    external: External,
    step: &StepName,
    intent: &Intent,
    failure: CallFailure,
    now: Wall,
) -> AfterFailure {
    match failure {
        // Of this sending. An earlier one may be under way.
        CallFailure::NotSent if !intent.resent => AfterFailure::Void,
        CallFailure::NotSent | CallFailure::Unknown if external.asks => AfterFailure::Later,
        CallFailure::NotSent | CallFailure::Unknown => {
            match resend_or_stop(external.resend, step, intent, now) {
                Next::Resend(_) => AfterFailure::Later,
                _ => AfterFailure::Uncertain(unresolved(step)),
            }
        }
    }
}

fn resend_or_stop(resend: Option<Resend>, step: &StepName, intent: &Intent, now: Wall) -> Next {
    match resend {
        Some(resend) if resend.permits(now.since(intent.at)) => Next::Resend(intent.clone()),
        Some(_) | None => Next::Uncertain(unresolved(step)),
    }
}

fn unresolved(step: &StepName) -> Stopped {
    Stopped::Unresolved { step: step.clone() }
}
