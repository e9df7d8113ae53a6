//! How a store in PostgreSQL behaves.

use std::time::Duration;

use retrysafe_core::clock::Limits;

use super::{
    Schema,
    texts::{Patience, READ_COMMITTED, SERIALIZABLE, Texts},
};

/// How the claims of one-transaction work are isolated (SPEC 4.2).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Isolation {
    /// The lock and the primary key arbitrate; the handler sees what is committed as it goes on.
    #[default]
    ReadCommitted,
    /// In addition the handler's transaction is serializable, so that what it read is guarded too: conflicts with others
    /// end it as [`Undone::Conflict`](crate::transactional::Undone::Conflict), which the caller tries again with the same
    /// key. It is guarded against other serializable transactions only: whatever else changes those rows has to be
    /// serializable as well.
    ///
    /// The snapshot is taken while the lock is tried. A holder who commits in between is not seen by the opening and stops
    /// the completing write instead: the handler has run then, and nothing of it is kept.
    Serializable,
}

/// Where the tables are and how long anything may take.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The schema of the tables.
    pub schema: Schema,
    /// How long one call of the store may take, waiting for a connection not included. A write that took longer is of
    /// unknown result.
    pub call_timeout: Duration,
    /// How long a handler's transaction may wait for a lock. Not above the shortest lease: a successor must not stand
    /// behind the one it took over from (protocol 15).
    pub lock_timeout: Duration,
    /// How long one statement of a handler may take. Not above the shortest lease.
    pub statement_timeout: Duration,
    /// How long a handler may keep its transaction open between two statements before the server ends it. Not above the
    /// shortest lease.
    pub idle_timeout: Duration,
    /// How a handler's transaction is isolated.
    pub isolation: Isolation,
    /// How far the database's clock may jump.
    pub clock_limits: Limits,
    /// Tables for long answers are made for the days up to this many ahead; beyond, and for as long as nobody may make
    /// tables, answers go to a table that is reaped row by row.
    pub days_ahead: u16,
}

impl Default for PostgresOptions {
    /// Ten seconds for the handler's waits, a third of the default lease; five for a call.
    fn default() -> Self {
        Self {
            schema: Schema::default(),
            call_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(10),
            isolation: Isolation::default(),
            clock_limits: Limits::default(),
            days_ahead: 8,
        }
    }
}

impl PostgresOptions {
    pub(super) fn texts(&self) -> Texts {
        // Zero would mean "forever".
        let ms = |time: Duration| {
            i64::try_from(time.as_millis()).unwrap_or(i64::MAX).clamp(1, i64::from(i32::MAX))
        };
        let patience = Patience {
            lock_ms: ms(self.lock_timeout),
            statement_ms: ms(self.statement_timeout),
            idle_ms: ms(self.idle_timeout),
        };
        let begin = match self.isolation {
            Isolation::ReadCommitted => READ_COMMITTED,
            Isolation::Serializable => SERIALIZABLE,
        };
        Texts::new(&self.schema, patience, begin)
    }
}
