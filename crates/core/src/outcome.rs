//! What a finished request answered: the part of the record that is replayed.
//!
//! The complete answer is kept as it was sent (SPEC 3.4): the exact status, header pairs in their order with
//! repeated names kept apart (S5), and the body as bytes (S10). A body that was too large, or that streamed, leaves a
//! **tombstone**: "done, body not kept". It is answered as a problem and never leads to a second run (S11).

use bytes::Bytes;

/// One header line as it goes on the wire. The value is bytes: obs-text and the like survive (S5, S10).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeaderPair {
    /// Lower-case field name.
    pub name: Box<str>,
    /// Field value, undecoded.
    pub value: Bytes,
}

/// The stored answer of a completed request.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    /// HTTP status of the original answer, 200 to 599. For results that are not HTTP (consumers, jobs) the
    /// caller's own number.
    pub status: u16,
    /// Header lines in the order they were sent, without those that are never stored.
    pub headers: Vec<HeaderPair>,
    /// The body, or the fact that it was not kept.
    pub body: Body,
    /// Trailer lines, in order.
    pub trailers: Vec<HeaderPair>,
}

/// The body of a stored answer.
#[derive(Clone, PartialEq, Eq)]
pub enum Body {
    /// Every byte of it.
    Kept(Bytes),
    /// A tombstone: the request is done, its body is gone. Never a reason to run again.
    NotKept(NotKept),
}

/// Why a body was not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotKept {
    /// Longer than the endpoint's limit.
    TooLarge,
    /// The handler streamed it: its first byte left before its last was known (protocol 18).
    Streamed,
    /// The contract says that this endpoint's bodies are not stored.
    ByContract,
}

impl Outcome {
    /// The length of the kept body in bytes; `None` for a tombstone.
    pub fn body_len(&self) -> Option<usize> {
        match &self.body {
            Body::Kept(bytes) => Some(bytes.len()),
            Body::NotKept(_) => None,
        }
    }
}

/// Shows sizes only: an answer may carry personal data, and Debug output ends up in logs.
impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outcome")
            .field("status", &self.status)
            .field("headers", &self.headers.len())
            .field("body_len", &self.body_len())
            .finish_non_exhaustive()
    }
}
