//! What an outcome means for the next step: outcome x permission x body.
//!
//! | outcome | idempotent, or key honoured | neither |
//! |---|---|---|
//! | not sent | retry | retry |
//! | lost | retry, same key, same bytes | stop: it may have happened |
//! | 429, 503 | retry | only if rejected before processing |
//! | 502, 504 | retry | stop: it may have happened |
//! | 500, if listed | retry, unless it is stored under the key | stop |
//! | in flight (409, or 202 with a status URL) | wait, same key | stop |
//! | mismatch | stop: a bug | stop |
//!
//! A retry also needs a body that can be sent again; that a body is cheap to copy is never a permission (I-69). Machine
//! codes rule over advice, and advice over the status.
//!
//! Beside the verdict stands what the outcome does to the question "may it have happened?": an undecided attempt stays
//! undecided when the next one is merely refused by a rate limiter.

use super::{
    after::Hint,
    backoff::Pace,
    policy::{RetryPolicy, Uncertain},
    seen::{Answer, Body, Idempotence, NotSent, Outcome, Reach, Request, Seen},
    why::Rule,
};
use crate::{codes::Code, policy::Effect};

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The answer is the result.
    Done,
    /// Nothing more.
    Stop(Rule),
    /// Another attempt, paid for.
    Retry(Pace),
    /// Ask again later; not an attempt of its own.
    Wait,
}

/// What an outcome does to "may it have happened?".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doubt {
    /// From now on it may have.
    Raised,
    /// The operation's own answer: no doubt is left, of this attempt or earlier ones.
    Settled,
    /// It says nothing about earlier attempts.
    Unchanged,
}

use Doubt::{Raised, Settled, Unchanged};
use Verdict::{Done, Retry, Stop, Wait};

/// Judges an attempt's outcome.
pub(super) fn judge(policy: &RetryPolicy, request: Request, seen: &Seen) -> (Verdict, Doubt) {
    let (verdict, doubt) = match &seen.outcome {
        Outcome::NotSent(NotSent::Certificate) => (Stop(Rule::Certificate), Unchanged),
        Outcome::NotSent(_) => (Retry(Pace::Transient), Unchanged),
        Outcome::Lost(_) if seen.reach == Reach::Nothing => (Retry(Pace::Transient), Unchanged),
        Outcome::Lost(_) if request.idempotence.may_repeat() => (Retry(Pace::Transient), Raised),
        Outcome::Lost(_) => (Stop(Rule::UnsafeToRepeat), Raised),
        Outcome::Held { opens_in: Some(_) } => (Wait, Unchanged),
        Outcome::Held { opens_in: None } => (Stop(Rule::Held), Unchanged),
        Outcome::Fault => (Stop(Rule::Fault), Unchanged),
        Outcome::Answered(answer) => judge_answer(policy, request, answer),
    };
    let body_gone = request.body == Body::OneShot && seen.reach > Reach::Head;
    let never = matches!(&seen.outcome, Outcome::Answered(answer) if answer.hint == Hint::Never);
    match verdict {
        Retry(_) | Wait if body_gone => (Stop(Rule::BodyGone), doubt),
        Retry(_) | Wait if never => (Stop(Rule::ToldNotTo), doubt),
        verdict => (verdict, doubt),
    }
}

fn judge_answer(policy: &RetryPolicy, request: Request, answer: &Answer) -> (Verdict, Doubt) {
    let repeatable = request.idempotence.may_repeat();
    if let Some(code) = answer.code {
        return judge_code(policy, repeatable, code, answer);
    }
    if answer.status == 202 && answer.status_url.is_some() {
        return in_flight(repeatable, Code::KeyInFlight);
    }
    let (verdict, doubt) = judge_status(policy, request, answer);
    match verdict {
        Retry(_) if answer.advice == Some(false) => (Stop(Rule::ToldNotTo), doubt),
        _ => (verdict, doubt),
    }
}

/// The layer's own answers say more than their status.
fn judge_code(policy: &RetryPolicy, repeatable: bool, code: Code, answer: &Answer) -> (Verdict, Doubt) {
    match code {
        Code::KeyInFlight => in_flight(repeatable, code),
        Code::OutcomeUnknown => {
            let told = answer.advice == Some(true) || policy.uncertain == Uncertain::Ask;
            let again = told && repeatable;
            (if again { Wait } else { Stop(Rule::ServerLooksItUp) }, Raised)
        }
        Code::PayloadMismatch => (Stop(Rule::Mismatch), Settled),
        Code::ResponseNotKept => (Stop(Rule::AnswerNotKept), Settled),
        // Nothing was run: safe for everybody.
        Code::Overloaded => (Retry(Pace::Throttled), Unchanged),
        Code::StoreUnavailable | Code::DeadlineExceeded => (Retry(Pace::Transient), Unchanged),
        // It may have been sent on; sending it again is safe where somebody de-duplicates by the key.
        Code::UpstreamUnavailable | Code::UpstreamBroken | Code::UpstreamTimeout if repeatable => {
            (Retry(Pace::Transient), Raised)
        }
        Code::UpstreamUnavailable | Code::UpstreamBroken | Code::UpstreamTimeout => {
            (Stop(Rule::UnsafeToRepeat), Raised)
        }
        Code::KeyMissing
        | Code::KeyEmpty
        | Code::KeyTooLong
        | Code::KeyMalformed
        | Code::KeyAmbiguous
        | Code::ScopeMissing
        | Code::EndpointUnlisted
        | Code::RequestRefused
        | Code::RequestTooLarge
        | Code::NotGuardable
        | Code::NamespaceCollision => (Stop(Rule::Refused(code)), Unchanged),
    }
}

fn in_flight(repeatable: bool, code: Code) -> (Verdict, Doubt) {
    // Without a key of ours in play there is nothing to wait for.
    (if repeatable { Wait } else { Stop(Rule::Refused(code)) }, Raised)
}

fn judge_status(policy: &RetryPolicy, request: Request, answer: &Answer) -> (Verdict, Doubt) {
    let status = answer.status;
    let repeatable = request.idempotence.may_repeat();
    let rejected = answer.effect == Some(Effect::None);
    if status < 400 {
        return match (answer.cut, repeatable) {
            (false, _) => (Done, Settled),
            // With the key the next attempt fetches the stored answer.
            (true, true) => (Retry(Pace::Transient), Settled),
            (true, false) => (Stop(Rule::AnswerCut { status }), Settled),
        };
    }
    // A stored 503 and one of a load balancer look alike, so that it is on the list settles nothing.
    let doubt = doubt(status, answer.effect);
    let keyed = request.idempotence == Idempotence::Keyed;
    if keyed && !rejected && policy.stored.contains(status) {
        return (Stop(Rule::StoredFailure { status }), doubt);
    }
    if !policy.statuses.contains(status) && answer.advice != Some(true) {
        return (Stop(Rule::NotListed { status }), doubt);
    }
    if !repeatable && !rejected {
        return (Stop(Rule::UnsafeToRepeat), doubt);
    }
    let throttled = status == 429 || (status == 503 && answer.hint.delay().is_some());
    (Retry(if throttled { Pace::Throttled } else { Pace::Transient }), doubt)
}

/// Whether a failure is the operation's own answer, or one of something in front of it.
fn doubt(status: u16, effect: Option<Effect>) -> Doubt {
    match (status, effect) {
        (_, Some(Effect::None)) => Unchanged,
        (_, Some(Effect::Unknown)) => Raised,
        (_, Some(Effect::Done)) => Settled,
        // A gateway lost whoever it had passed the request to.
        (502 | 504, None) => Raised,
        // Authentication, limits and the connection come before the operation; a 500 or 503 says nothing of it.
        (401 | 403 | 407 | 408 | 421 | 425 | 429 | 431 | 500.., None) => Unchanged,
        (_, None) => Settled,
    }
}
