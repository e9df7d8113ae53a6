//! What can go wrong in a store, and whether trying again may help.

use std::fmt;

/// A failure of the store. Never says anything about who won: that is [`Written`](crate::Written).
#[derive(Debug, thiserror::Error)]
pub struct StoreError {
    kind: ErrorKind,
    doing: &'static str,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What kind of failure it was.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another process holds the store (SQLITE_BUSY, its turn did not come in time). Nothing was changed; retry.
    Busy,
    /// The store cannot be reached or is shutting down. Nothing was changed; retry.
    Unavailable,
    /// The store is full (disk, or the bound of the memory store). Nothing was changed.
    Full,
    /// The write may or may not have been committed (protocol 19): settle it by reading, never by running again.
    Unknown,
    /// The clock moved further than the bound; closed until acknowledged (protocol 10).
    ClockJumped,
    /// What is stored was written by a version this build does not know. Refused, never guessed.
    UnknownVersion,
    /// What is stored is not well-formed.
    Corrupt,
}

impl ErrorKind {
    /// Whether the same call may succeed later without anybody's help.
    pub fn may_retry(self) -> bool {
        matches!(self, ErrorKind::Busy | ErrorKind::Unavailable | ErrorKind::Unknown)
    }
}

impl StoreError {
    /// A failure of `kind` while `doing` (a short verb phrase: "committing a batch").
    pub fn new(kind: ErrorKind, doing: &'static str) -> Self {
        Self { kind, doing, source: None }
    }

    /// The same with the driver's own error.
    pub fn with_source(
        kind: ErrorKind,
        doing: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { kind, doing, source: Some(source.into()) }
    }

    /// What kind of failure it was.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may succeed later without anybody's help.
    pub fn may_retry(&self) -> bool {
        self.kind.may_retry()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, advice) = match self.kind {
            ErrorKind::Busy => ("another process holds the store", "retry later"),
            ErrorKind::Unavailable => ("the store cannot be reached", "retry later"),
            ErrorKind::Full => ("the store is full", "free room or raise its bound"),
            ErrorKind::Unknown => {
                ("whether the write was committed is unknown", "read before deciding anything")
            }
            ErrorKind::ClockJumped => {
                ("the clock jumped beyond the bound", "check the machine's clock, then acknowledge the jump")
            }
            ErrorKind::UnknownVersion => (
                "the record was written by a version this build does not know",
                "use that version or a later one",
            ),
            ErrorKind::Corrupt => ("what is stored is not well-formed", "restore the store from a backup"),
        };
        write!(f, "{}: {what}; {advice}", self.doing)
    }
}
