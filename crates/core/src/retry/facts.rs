//! From what a transport reports to what happened (V15).
//!
//! HTTP libraries answer questions one by one ("was it a timeout?", "was it connecting?"), and the order in which they
//! are asked decides whether a payment is sent twice: a connect timeout is a timeout too, and a timeout while the body
//! comes in is one after the operation was processed. This is that order, once for every adapter.
//!
//! ```
//! use retrysafe_core::retry::{Failure, NotSent, Reach, Seen};
//!
//! let connect_timeout = Failure { connecting: true, timeout: true, ..Failure::default() };
//! assert_eq!(connect_timeout.seen(), Seen::not_sent(NotSent::ConnectTimeout));
//! ```

use super::seen::{Answer, Lost, NotSent, Outcome, Reach, Seen};

/// What a transport reports about a request that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The head of an answer had arrived.
    pub answered: Option<Answer>,
    /// The stream was refused before processing, by protocol promise: REFUSED_STREAM, or GOAWAY below it.
    pub refused: Option<NotSent>,
    /// It failed while connecting: name, connection, handshake.
    pub connecting: bool,
    /// How connecting failed, where the transport tells more than that.
    pub connect: Option<NotSent>,
    /// It was a timeout.
    pub timeout: bool,
    /// The connection was reset.
    pub reset: bool,
    /// The connection was closed.
    pub closed: bool,
    /// How far the request's bytes got. Say [`Reach::Whole`] where that is not known.
    pub reach: Reach,
}

impl Default for Failure {
    /// Nothing is known, so all of it may have arrived.
    fn default() -> Self {
        Self {
            answered: None,
            refused: None,
            connecting: false,
            connect: None,
            timeout: false,
            reset: false,
            closed: false,
            reach: Reach::Whole,
        }
    }
}

impl Failure {
    /// What happened, by the first of these that is known: answered, refused, connecting, lost.
    pub fn seen(self) -> Seen {
        if let Some(answer) = self.answered {
            let answer = Answer { cut: true, ..answer };
            return Seen { outcome: Outcome::Answered(answer), reach: self.reach };
        }
        if let Some(refused) = self.refused {
            return Seen { outcome: Outcome::NotSent(refused), reach: self.reach };
        }
        if self.connecting {
            let known = self.connect.unwrap_or(NotSent::Connect);
            return Seen::not_sent(if self.timeout { NotSent::ConnectTimeout } else { known });
        }
        let how = match self {
            Self { timeout: true, .. } => Lost::Timeout,
            Self { reset: true, .. } => Lost::Reset,
            Self { closed: true, .. } => Lost::Closed,
            Self { .. } => Lost::Other,
        };
        Seen::lost(how, self.reach)
    }
}
