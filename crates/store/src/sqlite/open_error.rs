//! Why a store cannot be opened, and what to do.

use std::{
    io,
    path::{Path, PathBuf},
};

use rusqlite::ErrorCode;

use super::{fault::kind_of, turns::NoTurn};
use crate::{ErrorKind, StoreError};

/// A store could not be opened. The text names the file and says what can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder is not there.
    #[error("the folder {} does not exist; create it, or choose another place for the store", .folder.display())]
    NoFolder {
        /// The folder of the database file.
        folder: PathBuf,
    },
    /// The path is that of a folder.
    #[error("{} is a folder; name a file in it", .path.display())]
    IsFolder {
        /// The database file.
        path: PathBuf,
    },
    /// The file or its folder cannot be written.
    #[error("{} or its folder cannot be written; the store needs both, also to read", .path.display())]
    ReadOnly {
        /// The database file.
        path: PathBuf,
    },
    /// The file holds something else.
    #[error("{} is not a SQLite database; it was left as it is", .path.display())]
    NotADatabase {
        /// The database file.
        path: PathBuf,
    },
    /// The file is a database of something else.
    #[error("{} is a SQLite database, but not a store of retrysafe; it was left as it is", .path.display())]
    NotAStore {
        /// The database file.
        path: PathBuf,
    },
    /// The store was made by a later version.
    #[error("{} has layout {found}, this build knows {known}; use the version that made it, or a later one", .path.display())]
    Schema {
        /// The database file.
        path: PathBuf,
        /// The layout of the file.
        found: i64,
        /// The latest layout that this build knows.
        known: i64,
    },
    /// Write-ahead logging cannot be switched on.
    #[error("{} cannot use a write-ahead log, as on some network file systems; put it on a local disk", .path.display())]
    NoWal {
        /// The database file.
        path: PathBuf,
    },
    /// Another process keeps it.
    #[error("{} is kept busy by another process; try again, or look which process holds it", .path.display())]
    Busy {
        /// The database file.
        path: PathBuf,
    },
    /// The operating system refused something.
    #[error("{} cannot be opened", .path.display())]
    Io {
        /// The database file.
        path: PathBuf,
        /// What it refused.
        source: io::Error,
    },
    /// SQLite refused something.
    #[error("{} cannot be opened as a SQLite database", .path.display())]
    Sqlite {
        /// The database file.
        path: PathBuf,
        /// What it refused.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It opened, and could not be read.
    #[error(transparent)]
    Unreadable(#[from] StoreError),
}

impl OpenError {
    pub(super) fn of(path: &Path, error: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => Self::NotADatabase { path },
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Self::ReadOnly { path },
            _ if kind_of(&error) == ErrorKind::Busy => Self::Busy { path },
            _ => Self::Sqlite { path, source: error.into() },
        }
    }

    pub(super) fn no_turn(path: &Path, no_turn: NoTurn) -> Self {
        let path = path.to_owned();
        match no_turn {
            NoTurn::Timeout => Self::Busy { path },
            NoTurn::Io(source) => Self::Io { path, source },
        }
    }
}

impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::Unreadable(inner) => inner.kind(),
            OpenError::Busy { .. } => ErrorKind::Busy,
            OpenError::Schema { .. } => ErrorKind::UnknownVersion,
            OpenError::NotADatabase { .. } | OpenError::NotAStore { .. } => ErrorKind::Corrupt,
            _ => ErrorKind::Unavailable,
        };
        StoreError::with_source(kind, "opening the store", error)
    }
}
