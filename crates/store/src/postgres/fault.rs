//! What an error of the database means for the caller.

use super::MigrateError;
pub(super) use crate::sql::fault::Does;
use crate::{
    ErrorKind, StoreError,
    sql::{self, Failure, FailureKind, ServerCode},
};

/// The store's word for a failure while `doing`.
pub(super) fn failed(failure: Failure, doing: &'static str, does: Does) -> StoreError {
    sql::fault::failed(failure, doing, does, refused)
}

fn refused(code: ServerCode) -> ErrorKind {
    match (code.class(), code.state()) {
        // Too many connections pass; a full disk stays.
        (_, "53300" | "53400") => ErrorKind::Unavailable,
        ("53" | "54", _) => ErrorKind::Full,
        // Conflicts that went on for longer than they are tried again, timeouts of locks and statements.
        ("40", _) | (_, "55P03" | "57014") => ErrorKind::Busy,
        // A server that shuts down, a replica (25006), missing tables or permissions: nothing was changed, and nothing
        // will be until somebody mends it.
        _ => ErrorKind::Unavailable,
    }
}

/// A serialization failure or a deadlock: the database chose another transaction, and the same statement may succeed now.
pub(super) fn is_conflict(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::Refused(code) if is_conflict_code(code))
}

pub(super) fn is_conflict_code(code: ServerCode) -> bool {
    matches!(code.state(), "40001" | "40P01")
}

/// Why a store in PostgreSQL cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The tables are not there.
    #[error("there is no schema \"{schema}\" with the tables of a store; run `retrysafe migrate`")]
    NoTables {
        /// The schema that was looked for.
        schema: String,
    },
    /// The tables are of an earlier layout.
    #[error(
        "the tables of schema \"{schema}\" have layout {found}, and this build needs {known}; run `retrysafe migrate`"
    )]
    Earlier {
        /// The schema.
        schema: String,
        /// The layout that is there.
        found: i64,
        /// The layout that is needed.
        known: i64,
    },
    /// The tables were made by a later version.
    #[error(
        "the tables of schema \"{schema}\" have layout {found}, and this build knows {known}; use a later version"
    )]
    Later {
        /// The schema.
        schema: String,
        /// The layout that is there.
        found: i64,
        /// The layout that is known.
        known: i64,
    },
    /// The database cannot be reached, or refuses.
    #[error("the database does not answer: {0}")]
    Database(#[from] Failure),
    /// The tables do not hold what they should.
    #[error("the store's own row cannot be read: {0}")]
    Meta(StoreError),
    /// There is no Tokio runtime to keep the clock in.
    #[error("a store in PostgreSQL is opened inside a Tokio runtime")]
    NoRuntime,
}

impl From<Failure> for MigrateError {
    fn from(failure: Failure) -> Self {
        Self::Database(failure)
    }
}
