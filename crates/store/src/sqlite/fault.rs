//! What SQLite's errors mean to a caller.

use std::sync::Arc;

use rusqlite::ErrorCode;

use crate::{ErrorKind, StoreError};

/// The kind of a statement that failed, so that nothing of it was kept.
pub(super) fn kind_of(error: &rusqlite::Error) -> ErrorKind {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => ErrorKind::Busy,
        Some(ErrorCode::DiskFull | ErrorCode::TooBig) => ErrorKind::Full,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::TypeMismatch) => {
            ErrorKind::Corrupt
        }
        Some(_) => ErrorKind::Unavailable,
        // Not SQLite's own: a column that is not what the schema says.
        None => ErrorKind::Corrupt,
    }
}

/// The error of a statement that failed.
pub(super) fn failed(doing: &'static str) -> impl Fn(rusqlite::Error) -> StoreError {
    move |error| StoreError::with_source(kind_of(&error), doing, error)
}

/// A failure that every job of a batch is told of.
#[derive(Clone, Debug)]
pub(super) struct SharedFault {
    pub(super) kind: ErrorKind,
    doing: &'static str,
    source: Option<Arc<rusqlite::Error>>,
}

impl SharedFault {
    pub(super) fn new(kind: ErrorKind, doing: &'static str) -> Self {
        Self { kind, doing, source: None }
    }

    pub(super) fn of(kind: ErrorKind, doing: &'static str, source: rusqlite::Error) -> Self {
        Self { kind, doing, source: Some(Arc::new(source)) }
    }

    pub(super) fn to_error(&self) -> StoreError {
        match &self.source {
            Some(source) => StoreError::with_source(self.kind, self.doing, Arc::clone(source)),
            None => StoreError::new(self.kind, self.doing),
        }
    }
}
