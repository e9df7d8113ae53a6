//! What happened in a call, step by step: in its error for people, and in the log as it happens (SPEC 7.4).
//!
//! Neither holds keys, bodies or addresses: an attempt is told by its number and what it came to.

use std::{fmt, time::Duration};

use retrysafe_core::retry::{
    Cause, Lost, Mono, NotSent, Outcome, Pause, Seen,
    budget::{Budget, Reading},
};

/// Steps that a history holds; a call that waits longer keeps its first ones.
const STEPS_MAX: usize = 64;

/// The attempts of a call that did not end at once, in order.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct History {
    steps: Vec<Step>,
    dropped: usize,
}

/// One attempt (or poll), what it came to, and the sleep after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Which attempt, from 1. A poll has the number of the attempt that it belongs to.
    pub attempt: u32,
    /// Time since the call began.
    pub at: Duration,
    /// What it came to.
    pub outcome: Told,
    /// The sleep that followed, if one did.
    pub pause: Option<Pause>,
    /// What the budget held then.
    pub budget: Reading,
}

/// An outcome in short, for logs and errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// The server did not process it.
    NotSent(NotSent),
    /// Nobody knows whether it did.
    Lost(Lost),
    /// An answer with this status, and the machine code it carried, if one.
    Answered(u16, Option<retrysafe_core::codes::Code>),
    /// An answer with this status, cut off.
    Cut(u16),
    /// Kept back by a limiter of this side.
    Held,
    /// A fault of this side.
    Fault,
}

impl History {
    /// The steps.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub(crate) fn push(&mut self, step: Step) {
        if self.steps.len() < STEPS_MAX {
            self.steps.push(step);
        } else {
            self.dropped += 1;
        }
    }
}

impl From<&Seen> for Told {
    fn from(seen: &Seen) -> Self {
        match &seen.outcome {
            Outcome::NotSent(how) => Told::NotSent(*how),
            Outcome::Lost(how) => Told::Lost(*how),
            Outcome::Answered(answer) if answer.cut => Told::Cut(answer.status),
            Outcome::Answered(answer) => Told::Answered(answer.status, answer.code),
            Outcome::Held { .. } => Told::Held,
            Outcome::Fault => Told::Fault,
        }
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Told::NotSent(how) => f.write_str(match how {
                NotSent::Refused => "connection refused",
                NotSent::Dns => "no such name",
                NotSent::ConnectTimeout => "no connection in time",
                NotSent::Connect => "the connection or its handshake broke off",
                NotSent::Certificate => "the certificate is not trusted",
                NotSent::RefusedStream => "stream refused before processing",
                NotSent::GoAway => "the server was going away before processing",
            }),
            Told::Lost(how) => f.write_str(match how {
                Lost::Timeout => "no answer in time",
                Lost::Reset => "connection reset",
                Lost::Closed => "closed without an answer",
                Lost::Other => "lost on the way",
            }),
            Told::Answered(status, Some(code)) => write!(f, "{status} {code}"),
            Told::Answered(status, None) => write!(f, "{status}"),
            Told::Cut(status) => write!(f, "{status}, cut off"),
            Told::Held => f.write_str("kept back by a limiter of this side"),
            Told::Fault => f.write_str("a fault on this side"),
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            write!(f, "{:>8.3} s  attempt {}: {}", step.at.as_secs_f64(), step.attempt, step.outcome)?;
            if let Some(pause) = step.pause {
                let what = match pause.cause {
                    Cause::Retry(_) => "retry",
                    Cause::InFlight => "in flight, ask again",
                    Cause::Held => "try again",
                    Cause::Exhausted => "budget used up, end",
                };
                write!(f, "; {what} after {:?}", pause.delay)?;
                if let Some(asked) = pause.asked {
                    write!(f, " (asked for {asked:?})")?;
                }
            }
            if let Some(bucket) = step.budget.bucket {
                write!(f, " [{} of {} tokens]", bucket.balance, bucket.capacity)?;
            }
            writeln!(f)?;
        }
        if self.dropped > 0 {
            writeln!(f, "{} more", self.dropped)?;
        }
        Ok(())
    }
}

/// Writes a call down as it goes on.
pub(crate) struct Scribe<'a> {
    target: &'a str,
    budget: &'a Budget,
    began: Mono,
    pub(crate) history: History,
}

impl<'a> Scribe<'a> {
    pub(crate) fn new(target: &'a str, budget: &'a Budget, began: Mono) -> Self {
        Self { target, budget, began, history: History::default() }
    }

    /// An attempt that was not the end of the call, or not a good one.
    pub(crate) fn failed(&mut self, attempt: u32, seen: &Seen, pause: Option<Pause>, now: Mono) {
        let (outcome, budget) = (Told::from(seen), self.budget.reading(now));
        let tokens = budget.bucket.map(|bucket| bucket.balance);
        let target = self.target;
        match pause {
            Some(pause) => tracing::info!(
                target: "retrysafe::client",
                api = target, attempt, error = %outcome, cause = ?pause.cause, delay_ms = millis(pause.delay),
                asked_ms = pause.asked.map(millis), budget_tokens = tokens, budget_retries = budget.retries,
                "will be sent or asked for again"
            ),
            None => tracing::warn!(
                target: "retrysafe::client",
                api = target, attempt, error = %outcome, budget_tokens = tokens, budget_retries = budget.retries,
                "given up"
            ),
        }
        self.history.push(Step { attempt, at: now.since(self.began), outcome, pause, budget });
    }
}

fn millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)
}
