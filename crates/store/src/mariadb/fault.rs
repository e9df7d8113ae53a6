//! What an error of the database means for the caller.

pub(super) use crate::sql::fault::Does;
use crate::{
    ErrorKind, StoreError,
    sql::{self, Failure, FailureKind, ServerCode},
};

/// MariaDB's own numbers, where SQLSTATE says too little: most of these are `HY000`.
pub(super) mod number {
    pub(crate) const DEADLOCK: u32 = 1213;
    pub(crate) const LOCK_WAIT_TIMEOUT: u32 = 1205;
    /// The row was changed since the transaction's snapshot (`innodb_snapshot_isolation`).
    pub(crate) const RECORD_CHANGED: u32 = 1020;
    pub(crate) const NO_SUCH_SAVEPOINT: u32 = 1305;
    /// Table full, disk full, a packet or a value too large.
    pub(crate) const FULL: [u32; 7] = [1021, 1114, 1153, 1301, 1406, 1118, 1197];
}

/// The store's word for a failure while `doing`.
pub(super) fn failed(failure: Failure, doing: &'static str, does: Does) -> StoreError {
    sql::fault::failed(failure, doing, does, |code| match does {
        // A compound statement may have committed before it was ended.
        Does::Write if was_interrupted(code) => ErrorKind::Unknown,
        Does::Read if was_interrupted(code) => ErrorKind::Busy,
        Does::Read | Does::Write => refused(code),
    })
}

fn refused(code: ServerCode) -> ErrorKind {
    match code.number {
        // Conflicts that went on for longer than they are tried again.
        number::DEADLOCK | number::LOCK_WAIT_TIMEOUT | number::RECORD_CHANGED => ErrorKind::Busy,
        full if number::FULL.contains(&full) => ErrorKind::Full,
        // A server that shuts down, a read-only replica, missing tables or permissions: nothing was changed, and nothing
        // will be until somebody mends it.
        _ => ErrorKind::Unavailable,
    }
}

/// A deadlock or a lock that did not come free: the database chose another, and the same statement may succeed now.
pub(super) fn is_conflict(failure: &Failure) -> bool {
    let FailureKind::Refused(code) = failure.kind else { return false };
    matches!(code.number, number::DEADLOCK | number::LOCK_WAIT_TIMEOUT | number::RECORD_CHANGED)
}

/// The statement was ended from outside (KILL, `max_statement_time`): how far it had come, nobody says.
pub(super) fn is_interrupted(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::Refused(code) if was_interrupted(code))
}

fn was_interrupted(code: ServerCode) -> bool {
    matches!(code.number, 1317 | 1969 | 3024)
}

/// Why a store in MariaDB cannot be opened, or its tables not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL cannot be read. It is not repeated here: it holds the password.
    #[error("the URL of the store cannot be read ({0}); it is mysql://user:password@host:3306/database")]
    Url(String),
    /// The URL names no database.
    #[error("the URL of the store names no database; it is mysql://user:password@host:3306/database")]
    NoDatabase,
    /// The server is not MariaDB.
    #[error(
        "the server is {version}, not MariaDB 10.6 or later; MySQL has neither sequences (for fences) nor compound \
         statements outside of procedures (for claims in one round trip), and is not supported"
    )]
    NotMariaDb {
        /// What it says it is.
        version: String,
    },
    /// The tables are not there.
    #[error("the database {database} holds no tables of a store; run `retrysafe migrate`")]
    NoTables {
        /// The database that was looked at.
        database: String,
    },
    /// The tables are of another layout.
    #[error(
        "the tables in {database} have layout {found}, and this build needs {known}; run `retrysafe migrate`, or, where \
         {found} is the greater, use a later version"
    )]
    Layout {
        /// The database.
        database: String,
        /// The layout that is there.
        found: i64,
        /// The layout that is needed.
        known: i64,
    },
    /// Another process is migrating, and did not come to an end in time.
    #[error("another process is migrating this database; try again when it is done")]
    Migrating,
    /// The database cannot be reached, or refuses.
    #[error("the database does not answer: {0}")]
    Database(#[from] Failure),
    /// The tables do not hold what they should.
    #[error("the store's own row cannot be read: {0}")]
    Meta(StoreError),
    /// There is no Tokio runtime to keep the clock in.
    #[error("a store in MariaDB is opened inside a Tokio runtime")]
    NoRuntime,
}

impl From<OpenError> for StoreError {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::Meta(inner) => inner.kind(),
            OpenError::Layout { .. } => ErrorKind::UnknownVersion,
            _ => ErrorKind::Unavailable,
        };
        StoreError::with_source(kind, "opening the store", error)
    }
}
