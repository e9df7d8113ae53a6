//! What the answer of a status URL means (SPEC 5.2, 7.1).
//!
//! A poll is a GET: asking again is always safe, so a poll that got lost says nothing about the operation. What comes
//! back, once it is no longer "in flight", is the operation's own stored answer, failures included.

use super::{
    policy::{RetryPolicy, Uncertain},
    seen::{Answer, Outcome, Seen},
    why::Rule,
};
use crate::codes::Code;

/// What to do after a poll.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Polled {
    /// The answer is the operation's result.
    Done,
    /// The operation's own answer is one that ends the call.
    Settled(Rule),
    /// The call ends; what became of the operation is as unknown as before.
    Stop(Rule),
    /// There is no such status any more: ask with the request itself, same key.
    Gone,
    /// Ask again, at the new URL if there is one.
    Again(Option<Box<str>>),
}

pub(super) fn judge_poll(policy: &RetryPolicy, seen: &Seen) -> Polled {
    match &seen.outcome {
        Outcome::Answered(answer) => judge_answer(policy, answer),
        Outcome::NotSent(_) | Outcome::Lost(_) | Outcome::Held { .. } => Polled::Again(None),
        Outcome::Fault => Polled::Stop(Rule::Fault),
    }
}

fn judge_answer(policy: &RetryPolicy, answer: &Answer) -> Polled {
    match answer.code {
        Some(Code::KeyInFlight | Code::StoreUnavailable | Code::Overloaded | Code::UpstreamUnavailable) => {
            return Polled::Again(answer.status_url.clone());
        }
        Some(Code::OutcomeUnknown) => {
            let told = answer.advice == Some(true) || policy.uncertain == Uncertain::Ask;
            return if told { Polled::Again(None) } else { Polled::Stop(Rule::ServerLooksItUp) };
        }
        Some(Code::ResponseNotKept) => return Polled::Settled(Rule::AnswerNotKept),
        Some(code) => return Polled::Stop(Rule::Refused(code)),
        None => {}
    }
    match answer.status {
        202 if answer.status_url.is_some() => Polled::Again(answer.status_url.clone()),
        _ if answer.cut => Polled::Again(None),
        ..=399 => Polled::Done,
        404 | 410 => Polled::Gone,
        status @ (401 | 403 | 407) => Polled::Stop(Rule::NotListed { status }),
        // Something in front of the status URL, or a fault of its own, unless the contract says that these are stored.
        status @ (408 | 425 | 429 | 500..) if !policy.stored.contains(status) => Polled::Again(None),
        status => Polled::Settled(Rule::StoredFailure { status }),
    }
}
