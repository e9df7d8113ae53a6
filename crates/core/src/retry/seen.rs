//! What a call is, and what an attempt of it came to.
//!
//! These are facts, judged nowhere in this file: a transport states them, [`super::classify`] draws the conclusions.

use std::time::Duration;

use super::after::Hint;
use crate::{codes::Code, policy::Effect};

/// Whether sending the call again can do harm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Idempotence {
    /// Sending it again changes nothing more (RFC 9110: GET, HEAD, OPTIONS, TRACE, PUT, DELETE).
    Safe,
    /// It carries a key that the endpoint honours.
    Keyed,
    /// Neither: a second one may be a second effect.
    Unsafe,
}

impl Idempotence {
    /// Of a request with this method (upper case). `key_honoured`: it carries a key, **and** the endpoint is known to
    /// honour keys; a key that nobody looks at permits nothing.
    pub fn of(method: &str, key_honoured: bool) -> Self {
        match method {
            _ if key_honoured => Self::Keyed,
            "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE" | "QUERY" => Self::Safe,
            _ => Self::Unsafe,
        }
    }

    /// Whether an unknown outcome may be followed by another attempt.
    pub(super) fn may_repeat(self) -> bool {
        self != Self::Unsafe
    }
}

/// Whether the body can be sent a second time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Body {
    /// The same bytes are at hand for every attempt; an empty body too.
    Replayable,
    /// A stream. Sent once, and again only while nothing has been read from it.
    OneShot,
}

/// A call, as far as its retries are concerned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// What a second attempt may do.
    pub idempotence: Idempotence,
    /// Whether there can be one.
    pub body: Body,
}

impl Request {
    /// A call whose body can be replayed.
    pub const fn new(idempotence: Idempotence) -> Self {
        Self { idempotence, body: Body::Replayable }
    }
}

/// How far an attempt's bytes got, as far as this end knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reach {
    /// Not a byte of the request was written.
    Nothing,
    /// Some or all of its head, nothing of its body.
    Head,
    /// Some of its body.
    Body,
    /// All of it.
    Whole,
}

/// What an attempt (or a poll) came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// What happened.
    pub outcome: Outcome,
    /// How far the request's bytes got.
    pub reach: Reach,
}

impl Seen {
    /// The request was not processed, as the transport knows for sure.
    pub const fn not_sent(how: NotSent) -> Self {
        Self { outcome: Outcome::NotSent(how), reach: Reach::Nothing }
    }

    /// No answer, and `reach` of the request was on its way.
    pub const fn lost(how: Lost, reach: Reach) -> Self {
        Self { outcome: Outcome::Lost(how), reach }
    }

    /// An answer.
    pub const fn answered(answer: Answer) -> Self {
        Self { outcome: Outcome::Answered(answer), reach: Reach::Whole }
    }

    /// An answer of which nothing but the status matters.
    pub const fn status(status: u16) -> Self {
        Self::answered(Answer::new(status))
    }

    /// When to come back, by the answer or by a limiter of our own.
    pub(super) fn hint(&self) -> Hint {
        match &self.outcome {
            Outcome::Answered(answer) => answer.hint,
            Outcome::Held { opens_in: Some(delay) } => Hint::Wait(*delay),
            Outcome::Held { opens_in: None } | Outcome::NotSent(_) | Outcome::Lost(_) | Outcome::Fault => {
                Hint::None
            }
        }
    }
}

/// Kinds of outcomes. What is not here is no outcome: a cancelled call is [`super::Call::abandon`]ed, never observed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The server did not process it.
    NotSent(NotSent),
    /// Nobody knows whether it did.
    Lost(Lost),
    /// The server, or something in front of it, answered.
    Answered(Answer),
    /// A limiter of our own (open circuit breaker, full bulkhead) kept it back. `opens_in`: when it may go, if known.
    Held {
        /// Time until the limiter lets calls through again.
        opens_in: Option<Duration>,
    },
    /// The request could not be made or the answer not be read, by a fault on this side.
    Fault,
}

/// How it is known that the server did not process a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NotSent {
    /// Connection refused.
    Refused,
    /// The name did not resolve.
    Dns,
    /// No connection in time. Test this before any other timeout.
    ConnectTimeout,
    /// The connection or its TLS handshake broke off.
    Connect,
    /// The peer's certificate is not to be trusted. Trying again does not make it so.
    Certificate,
    /// HTTP/2 REFUSED_STREAM: not processed, by protocol promise.
    RefusedStream,
    /// HTTP/2 GOAWAY with a lower last stream: not processed, by the same promise.
    GoAway,
}

/// How an attempt got lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lost {
    /// No answer in time.
    Timeout,
    /// The connection was reset.
    Reset,
    /// The connection was closed without an answer. Libraries call this "incomplete message" and some call it safe to
    /// retry; the server may have read the whole request (I-8, I-9).
    Closed,
    /// Anything else after bytes were written.
    Other,
}

/// An answer's head, read for what it says about retries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Machine code of its problem document.
    pub code: Option<Code>,
    /// Whether the server advises a retry: the problem's `retryable`, or a header such as `stripe-should-retry`.
    pub advice: Option<bool>,
    /// When to come back.
    pub hint: Hint,
    /// Where to ask for the result. Only where the answer says that the operation is still in flight: the `Location` of
    /// an ordinary 201 or 202 is none.
    pub status_url: Option<Box<str>>,
    /// What is known about the effect: `None` where the contract lists this answer as rejected before processing.
    pub effect: Option<Effect>,
    /// Its body ended early: processed, but the result did not arrive.
    pub cut: bool,
}

impl Answer {
    /// An answer of which nothing but the status matters.
    pub const fn new(status: u16) -> Self {
        Self {
            status,
            code: None,
            advice: None,
            hint: Hint::None,
            status_url: None,
            effect: None,
            cut: false,
        }
    }
}
