//! The shop's book: resources, and the ledger of effects, in one SQLite file.
//!
//! An effect, its ledger line and what the key's probe will answer commit together, so the ledger can be believed.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use serde::Serialize;

/// How long a write waits for another process that holds the file (a predecessor still shutting down).
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// `PRAGMA user_version` of the layout below.
const LAYOUT_VERSION: i64 = 1;

const LAYOUT: &str = "
CREATE TABLE IF NOT EXISTS resources (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    id      TEXT NOT NULL UNIQUE,
    kind    TEXT NOT NULL,
    account TEXT NOT NULL,
    body    TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS resources_of ON resources (kind, account, seq);
CREATE TABLE IF NOT EXISTS ledger (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    id       TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    key      TEXT,
    account  TEXT NOT NULL,
    at       TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS ledger_of_key ON ledger (key, account);
CREATE TABLE IF NOT EXISTS operations (
    account  TEXT NOT NULL,
    key      TEXT NOT NULL,
    status   INTEGER NOT NULL,
    location TEXT NOT NULL,
    body     TEXT NOT NULL,
    PRIMARY KEY (account, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fences (
    account TEXT NOT NULL,
    key     TEXT NOT NULL,
    floor   INTEGER NOT NULL,
    PRIMARY KEY (account, key)
) WITHOUT ROWID;
";

/// The file of effects could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShopError {
    /// SQLite said no: the file is missing, locked for too long, full, or not a database.
    #[error("the shop's file of effects cannot be used: {0}")]
    File(#[from] rusqlite::Error),
    /// The file was written by another version of the shop.
    #[error("the shop's file has layout {found}, this version reads {LAYOUT_VERSION}; move the file away")]
    Layout {
        /// What `PRAGMA user_version` says.
        found: i64,
    },
}

/// Who asks for an effect, and under which key and fence.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) account: String,
    pub(crate) key: Option<String>,
    /// `Retrysafe-Fence`, where something in front sent one.
    pub(crate) fence: Option<i64>,
}

/// A new resource, with the answer its maker will read.
pub(crate) struct NewResource {
    pub(crate) id: String,
    pub(crate) kind: &'static str,
    pub(crate) endpoint: &'static str,
    pub(crate) status: u16,
    pub(crate) location: String,
    pub(crate) body: String,
    pub(crate) at: String,
}

/// An answer that has been, or was, given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) location: String,
    pub(crate) body: String,
}

/// What became of a request for an effect.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Created {
    /// It happened now.
    Fresh,
    /// This key was done before and the shop de-duplicates: the first answer again.
    Before(Answered),
    /// A probe has closed this key to fences up to this one.
    Fenced { floor: i64 },
}

/// What a probe learns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    Done(Answered),
    /// Not done, and (if a fence was given) it never will be by a request at or below that fence.
    Absent,
}

/// One line of the ledger.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) endpoint: String,
    pub(crate) key: Option<String>,
    pub(crate) account: String,
    pub(crate) at: String,
}

/// Which lines of the ledger.
#[derive(Debug, Default)]
pub(crate) struct LedgerQuery {
    pub(crate) account: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) after: i64,
    pub(crate) limit: i64,
}

/// The open file. All use is serialised: the sample has one writer and short statements.
#[derive(Clone, Debug)]
pub(crate) struct Book {
    connection: Arc<Mutex<Connection>>,
}

impl Book {
    pub(crate) fn open(path: &Path) -> Result<Self, ShopError> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // WAL without fsync: the log is in the page cache before the answer leaves, which a killed process
        // survives and a power cut does not.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "OFF")?;
        let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if found != 0 && found != LAYOUT_VERSION {
            return Err(ShopError::Layout { found });
        }
        connection.execute_batch(LAYOUT)?;
        connection.pragma_update(None, "user_version", LAYOUT_VERSION)?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    /// Runs the effect, unless the key is fenced off or (where asked to look) was done before.
    pub(crate) fn create(
        &self,
        caller: &Caller,
        new: &NewResource,
        deduplicate: bool,
    ) -> Result<Created, ShopError> {
        self.write(|tx| {
            if let Some(key) = &caller.key {
                if deduplicate && let Some(before) = operation(tx, &caller.account, key)? {
                    return Ok(Created::Before(before));
                }
                if let Some(floor) = fenced_below(tx, caller, key)? {
                    return Ok(Created::Fenced { floor });
                }
                // The first run's answer stays the one a probe reports: later runs are the duplicates.
                tx.prepare_cached("INSERT OR IGNORE INTO operations VALUES (?1, ?2, ?3, ?4, ?5)")?
                    .execute(params![caller.account, key, new.status, new.location, new.body])?;
            }
            tx.prepare_cached("INSERT INTO resources (id, kind, account, body) VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![new.id, new.kind, caller.account, new.body])?;
            note(tx, &new.id, new.endpoint, caller, &new.at)?;
            Ok(Created::Fresh)
        })
    }

    /// Deletes the caller's own resource; false if there is none.
    pub(crate) fn delete(
        &self,
        caller: &Caller,
        kind: &str,
        id: &str,
        endpoint: &str,
        at: &str,
    ) -> Result<bool, ShopError> {
        self.write(|tx| {
            let deleted = tx
                .prepare_cached("DELETE FROM resources WHERE id = ?1 AND kind = ?2 AND account = ?3")?
                .execute(params![id, kind, caller.account])?;
            if deleted > 0 {
                note(tx, id, endpoint, caller, at)?;
            }
            Ok(deleted > 0)
        })
    }

    /// The caller's newest resources of a kind, as their JSON texts.
    pub(crate) fn list(&self, account: &str, kind: &str, limit: i64) -> Result<Vec<String>, ShopError> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT body FROM resources WHERE kind = ?1 AND account = ?2 ORDER BY seq DESC LIMIT ?3",
            )?;
            let rows = statement.query_map(params![kind, account, limit], |row| row.get(0))?;
            rows.collect()
        })
    }

    /// One resource of the caller's, as its JSON text.
    pub(crate) fn get(&self, account: &str, kind: &str, id: &str) -> Result<Option<String>, ShopError> {
        self.with(|connection| {
            connection
                .prepare_cached("SELECT body FROM resources WHERE id = ?1 AND kind = ?2 AND account = ?3")?
                .query_row(params![id, kind, account], |row| row.get(0))
                .optional()
        })
    }

    /// What became of a key. With a fence, "not done" also closes the key to every request at or below it: the
    /// first run may still be on its way, and must find the door shut (protocol 22).
    pub(crate) fn probe(&self, account: &str, key: &str, fence: Option<i64>) -> Result<Probe, ShopError> {
        self.write(|tx| {
            if let Some(done) = operation(tx, account, key)? {
                return Ok(Probe::Done(done));
            }
            if let Some(fence) = fence {
                tx.prepare_cached(
                    "INSERT INTO fences VALUES (?1, ?2, ?3)
                     ON CONFLICT (account, key) DO UPDATE SET floor = max(floor, excluded.floor)",
                )?
                .execute(params![account, key, fence])?;
            }
            Ok(Probe::Absent)
        })
    }

    /// A page of the ledger, oldest first, and where the next page starts.
    pub(crate) fn ledger(&self, query: &LedgerQuery) -> Result<(Vec<Entry>, Option<i64>), ShopError> {
        self.with(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT seq, id, endpoint, key, account, at FROM ledger
                 WHERE seq > ?1 AND (?2 IS NULL OR account = ?2) AND (?3 IS NULL OR key = ?3)
                 ORDER BY seq LIMIT ?4",
            )?;
            let rows = statement.query_map(
                params![query.after, query.account, query.key, query.limit + 1],
                |row| {
                    let entry = Entry {
                        id: row.get(1)?,
                        endpoint: row.get(2)?,
                        key: row.get(3)?,
                        account: row.get(4)?,
                        at: row.get(5)?,
                    };
                    Ok((row.get::<_, i64>(0)?, entry))
                },
            )?;
            let mut page = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
            let more = page.len() > limit;
            page.truncate(limit);
            let next = if more { page.last().map(|(seq, _)| *seq) } else { None };
            Ok((page.into_iter().map(|(_, entry)| entry).collect(), next))
        })
    }

    fn with<T>(&self, run: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, ShopError> {
        // A poisoned lock is a panic elsewhere; its transaction rolled back when it was dropped.
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(run(&connection)?)
    }

    fn write<T>(&self, run: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>) -> Result<T, ShopError> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = run(&tx)?;
        tx.commit()?;
        Ok(done)
    }
}

fn note(
    tx: &Transaction<'_>,
    id: &str,
    endpoint: &str,
    caller: &Caller,
    at: &str,
) -> rusqlite::Result<usize> {
    tx.prepare_cached("INSERT INTO ledger (id, endpoint, key, account, at) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![id, endpoint, caller.key, caller.account, at])
}

fn operation(tx: &Transaction<'_>, account: &str, key: &str) -> rusqlite::Result<Option<Answered>> {
    tx.prepare_cached("SELECT status, location, body FROM operations WHERE account = ?1 AND key = ?2")?
        .query_row(params![account, key], |row| {
            Ok(Answered { status: row.get(0)?, location: row.get(1)?, body: row.get(2)? })
        })
        .optional()
}

fn fenced_below(tx: &Transaction<'_>, caller: &Caller, key: &str) -> rusqlite::Result<Option<i64>> {
    let floor: Option<i64> = tx
        .prepare_cached("SELECT floor FROM fences WHERE account = ?1 AND key = ?2")?
        .query_row(params![caller.account, key], |row| row.get(0))
        .optional()?;
    // A request without a fence cannot show that it is newer than the probe.
    Ok(floor.filter(|floor| caller.fence.is_none_or(|fence| fence <= *floor)))
}
