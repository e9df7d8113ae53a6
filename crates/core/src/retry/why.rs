//! How a call ended, and what the caller can do about it.

use std::{fmt, time::Duration};

use super::{budget::Denied, seen::Reach};
use crate::codes::Code;

/// How a call ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// The last answer is the operation's result.
    Done,
    /// Given up, and it is known that the last answer or error is all there is: nothing of this call is left undecided.
    Stopped(Stop),
    /// It may have happened. A result of its own, never a mere timeout: whoever sends it again with another key, or
    /// without one, risks a second effect.
    OutcomeUnknown(Unknown),
}

/// What is known about an operation that may have happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unknown {
    /// Attempts that were sent.
    pub attempts: u32,
    /// How far the bytes of any of the undecided attempts got.
    pub reach: Reach,
    /// What ended the call.
    pub because: Stop,
}

/// What ended a call: the limit or the rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// A rule says that sending it again would not help, or not be safe.
    Rule(Rule),
    /// All attempts are used.
    Attempts {
        /// How many there were.
        limit: u32,
    },
    /// The next attempt does not fit before the deadline.
    Deadline {
        /// The sleep it would have needed.
        wait: Duration,
        /// What was left.
        left: Duration,
    },
    /// The server asked for a longer wait than there is time for. Reschedule by `asked`.
    RetryAfter {
        /// The wait the server asked for.
        asked: Duration,
        /// What was left.
        left: Duration,
    },
    /// The retry budget, which all calls to this target share, is used up.
    Budget(Denied),
    /// The server said "in flight" or our own limiter "not now" too often.
    Waits {
        /// How often.
        limit: u32,
    },
    /// The caller gave up.
    Cancelled,
}

/// Rules that end a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rule {
    /// The status is not on the list of those that are retried.
    NotListed {
        /// Which.
        status: u16,
    },
    /// It may have been processed, and it is neither idempotent nor keyed.
    UnsafeToRepeat,
    /// The body was a stream, and is gone.
    BodyGone,
    /// The same key was used with another body: a bug on this side.
    Mismatch,
    /// This failure is stored under the key: the same key fetches it again, and again.
    StoredFailure {
        /// Which.
        status: u16,
    },
    /// The server does not know the outcome of this key either, and is looking it up.
    ServerLooksItUp,
    /// It is done; its answer was not kept.
    AnswerNotKept,
    /// It was processed with this status, but the answer was cut off and cannot be asked for again.
    AnswerCut {
        /// Which.
        status: u16,
    },
    /// The server refused by one of its own codes.
    Refused(Code),
    /// The server said not to retry.
    ToldNotTo,
    /// The certificate is not to be trusted.
    Certificate,
    /// A fault on this side.
    Fault,
    /// A limiter on this side is closed, and does not say until when.
    Held,
}

impl Stop {
    /// Whether the same call, with the same key, may succeed later.
    pub fn may_help_later(&self) -> bool {
        match self {
            Stop::Rule(rule) => match rule {
                Rule::Refused(code) => code.retryable(),
                Rule::ServerLooksItUp | Rule::Held | Rule::BodyGone => true,
                Rule::NotListed { status } => *status >= 500,
                Rule::UnsafeToRepeat
                | Rule::Mismatch
                | Rule::StoredFailure { .. }
                | Rule::AnswerNotKept
                | Rule::AnswerCut { .. }
                | Rule::ToldNotTo
                | Rule::Certificate
                | Rule::Fault => false,
            },
            Stop::Attempts { .. }
            | Stop::Deadline { .. }
            | Stop::RetryAfter { .. }
            | Stop::Budget(_)
            | Stop::Waits { .. }
            | Stop::Cancelled => true,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Done => f.write_str("done"),
            Why::Stopped(stop) => stop.fmt(f),
            Why::OutcomeUnknown(unknown) => write!(
                f,
                "it may have happened ({} sent, {}): {}; ask for it, or send it again with the same key only",
                plural(unknown.attempts, "attempt"),
                unknown.reach,
                unknown.because
            ),
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Rule(rule) => rule.fmt(f),
            Stop::Attempts { limit } => write!(f, "all {} used", plural(*limit, "attempt")),
            Stop::Deadline { wait, left } => {
                write!(f, "the deadline: the next attempt needs a sleep of {wait:?}, {left:?} left")
            }
            Stop::RetryAfter { asked, left } => {
                write!(f, "the server asked for {asked:?}, {left:?} left; reschedule it")
            }
            Stop::Budget(denied) => denied.fmt(f),
            Stop::Waits { limit } => write!(f, "told to wait {limit} times"),
            Stop::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::NotListed { status } => write!(f, "{status} is not retried"),
            Rule::UnsafeToRepeat => {
                f.write_str("it is neither idempotent nor keyed, so it is not sent again")
            }
            Rule::BodyGone => f.write_str("its body was a stream and cannot be sent again"),
            Rule::Mismatch => f.write_str(
                "this key was used for another request: one key for one operation, the same on every retry",
            ),
            Rule::StoredFailure { status } => {
                write!(f, "this {status} is stored under the key; a new try is a new key")
            }
            Rule::ServerLooksItUp => f.write_str("the server does not know the outcome yet"),
            Rule::AnswerNotKept => f.write_str("it is done, and its answer was not kept; look it up"),
            Rule::AnswerCut { status } => {
                write!(f, "it was processed with {status}, and the answer was cut off; look it up")
            }
            Rule::Refused(code) => write!(f, "refused: {code}"),
            Rule::ToldNotTo => f.write_str("the server said not to retry"),
            Rule::Certificate => f.write_str("the server's certificate is not trusted"),
            Rule::Fault => f.write_str("a fault on this side"),
            Rule::Held => f.write_str("a limiter on this side is closed"),
        }
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reach::Nothing => "nothing written",
            Reach::Head => "its head written",
            Reach::Body => "a part of its body written",
            Reach::Whole => "written as a whole",
        })
    }
}

fn plural(count: u32, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
