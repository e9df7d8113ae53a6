//! The tables, and opening a file that may be anything.
//!
//! One table keyed by address (protocol 5: not partitioned), one row of everything else. Address columns are blobs:
//! bytes are compared as bytes, whatever a collation may think (F16). The columns beside `data` exist to be searched;
//! what is true is the encoded record.
//!
//! Business tables live in the same file, so everything of ours is named `retrysafe_...`. A file of an earlier layout is
//! upgraded when it is opened; a process of an earlier build that still has it open fails its next write, with nothing
//! changed.

use std::{path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use super::{OpenError, SqliteOptions};

/// The layout this build writes. A file with a later one is refused.
const SCHEMA: i64 = 6;

/// Marks the file as a store of ours, so that no other database is ever mistaken for one: "rsf1".
const APPLICATION_ID: i64 = 0x7273_6631;

/// Statements kept compiled, more than there are.
const STATEMENT_CACHE: usize = 32;

/// Page cache of the writer, in KiB. Readers share the operating system's.
const WRITER_CACHE_KIB: i64 = 32 * 1024;

const TABLES: &str = "
    CREATE TABLE retrysafe_meta (
        only          INTEGER PRIMARY KEY CHECK (only = 1),
        schema        INTEGER NOT NULL,
        fence         INTEGER NOT NULL,
        clock_ms      INTEGER,
        clock_boot    BLOB,
        clock_boot_ns INTEGER,
        in_flight     INTEGER NOT NULL,
        uncertain     INTEGER NOT NULL,
        completed     INTEGER NOT NULL
    ) STRICT;
    INSERT INTO retrysafe_meta VALUES (1, 6, 0, NULL, NULL, NULL, 0, 0, 0);
    CREATE TABLE retrysafe_record (
        id        INTEGER PRIMARY KEY,
        namespace BLOB NOT NULL,
        account   BLOB NOT NULL,
        key       BLOB NOT NULL,
        status    BLOB NOT NULL,
        state     INTEGER NOT NULL,
        due       INTEGER,
        resource  BLOB,
        data      BLOB NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX record_address ON retrysafe_record (namespace, account, key);
    CREATE INDEX record_status ON retrysafe_record (status);
    CREATE INDEX record_due ON retrysafe_record (state, due);
    CREATE INDEX record_resource ON retrysafe_record (namespace, account, resource) WHERE resource IS NOT NULL;
";

/// The effect ledger (SPEC 10.3): deliberately without any unique index.
const LEDGER: &str = "
    CREATE TABLE retrysafe_effect (
        id        INTEGER PRIMARY KEY,
        namespace BLOB NOT NULL,
        account   BLOB NOT NULL,
        key       BLOB NOT NULL,
        step      BLOB NOT NULL,
        attempt   BLOB NOT NULL,
        at        INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX retrysafe_effect_address ON retrysafe_effect (namespace, account, key, step, at);
    CREATE INDEX retrysafe_effect_at ON retrysafe_effect (at);
";

/// Journals and staged effects. The address stands in the first entry only, to see whether its record is still there.
const JOURNALS: &str = "
    CREATE TABLE retrysafe_journal (
        operation BLOB NOT NULL,
        seq       INTEGER NOT NULL,
        at        INTEGER NOT NULL,
        namespace BLOB,
        account   BLOB,
        key       BLOB,
        data      BLOB NOT NULL,
        PRIMARY KEY (operation, seq)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX retrysafe_journal_opened ON retrysafe_journal (at) WHERE seq = 0;
    CREATE TABLE retrysafe_staged (
        operation BLOB NOT NULL,
        name      BLOB NOT NULL,
        key       BLOB NOT NULL,
        payload   BLOB NOT NULL,
        state     INTEGER NOT NULL,
        due       INTEGER NOT NULL,
        tries     INTEGER NOT NULL,
        failure   BLOB,
        PRIMARY KEY (operation, name)
    ) STRICT;
    CREATE INDEX retrysafe_staged_due ON retrysafe_staged (due) WHERE state = 0;
";

/// The log of what people did. Nothing of it is changed or deleted, by us or by mistake.
const ACTS: &str = "
    CREATE TABLE retrysafe_act (
        number    INTEGER PRIMARY KEY,
        at        INTEGER NOT NULL,
        operation BLOB NOT NULL,
        namespace BLOB NOT NULL,
        account   BLOB NOT NULL,
        key       BLOB NOT NULL,
        act       TEXT NOT NULL,
        who       TEXT NOT NULL,
        why       TEXT NOT NULL,
        evidence  TEXT
    ) STRICT;
    CREATE INDEX retrysafe_act_address ON retrysafe_act (namespace, account, key);
    CREATE TRIGGER retrysafe_act_stays BEFORE DELETE ON retrysafe_act
        BEGIN SELECT RAISE(ABORT, 'the log of acts is only added to'); END;
    CREATE TRIGGER retrysafe_act_is_fixed BEFORE UPDATE ON retrysafe_act
        BEGIN SELECT RAISE(ABORT, 'the log of acts is only added to'); END;
";

/// What was counted day by day, for the rate of orphans.
const DAYS: &str = "
    CREATE TABLE retrysafe_day (
        day     INTEGER PRIMARY KEY,
        claims  INTEGER NOT NULL,
        orphans INTEGER NOT NULL
    ) STRICT;
";

/// When effects were staged and ended, and how often answers of operations that have a journal were replayed.
const TRACES: &str = "
    ALTER TABLE retrysafe_staged ADD COLUMN staged INTEGER;
    ALTER TABLE retrysafe_staged ADD COLUMN ended INTEGER;
    CREATE TABLE retrysafe_replays (
        operation BLOB PRIMARY KEY NOT NULL,
        times     INTEGER NOT NULL,
        first_at  INTEGER NOT NULL,
        last_at   INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
";

/// From layout 5, which had no traces of replays and of effects.
const FROM_5: &str = "UPDATE retrysafe_meta SET schema = 6;";

/// From layout 4, which counted no days.
const FROM_4: &str = "UPDATE retrysafe_meta SET schema = 5;";

/// From layout 3, which had no log of acts.
const FROM_3: &str = "UPDATE retrysafe_meta SET schema = 4;";

/// From layout 2, which knew no requests of several steps.
const FROM_2: &str = "UPDATE retrysafe_meta SET schema = 3;";

/// From layout 1, whose tables had names that a business table may want.
const FROM_1: &str = "
    ALTER TABLE record RENAME TO retrysafe_record;
    ALTER TABLE meta RENAME TO retrysafe_meta;
    UPDATE retrysafe_meta SET schema = 2;
";

/// A connection to `options.path`, made if it is not there.
pub(super) fn connect(options: &SqliteOptions) -> Result<Connection, OpenError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = match &options.vfs {
        Some(vfs) => Connection::open_with_flags_and_vfs(&options.path, flags, vfs.as_str()),
        None => Connection::open_with_flags(&options.path, flags),
    };
    let connection = connection.map_err(|error| OpenError::of(&options.path, error))?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    connection.busy_timeout(options.busy_timeout).map_err(|error| OpenError::of(&options.path, error))?;
    Ok(connection)
}

/// Makes `connection` the writer's, and the file a store. The caller has the turn.
pub(super) fn prepare(connection: &mut Connection, options: &SqliteOptions) -> Result<(), OpenError> {
    let path = &options.path;
    let failed = |error| OpenError::of(path, error);
    refuse_another_database(connection, path)?;
    let journal: String =
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(failed)?;
    if journal != "wal" {
        return Err(OpenError::NoWal { path: path.clone() });
    }
    connection.pragma_update(None, "synchronous", options.synchronous.pragma()).map_err(failed)?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB).map_err(failed)?;
    // The store checkpoints by itself, off the path of the commits.
    connection.pragma_update(None, "wal_autocheckpoint", 0).map_err(failed)?;

    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let tables: i64 =
        transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(failed)?;
    if tables == 0 {
        for tables in [TABLES, LEDGER, JOURNALS, ACTS, DAYS, TRACES] {
            transaction.execute_batch(tables).map_err(failed)?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
    }
    if layout(&transaction).map_err(failed)? == Some(1) {
        transaction.execute_batch(FROM_1).and_then(|()| transaction.execute_batch(LEDGER)).map_err(failed)?;
        tracing::info!(path = %path.display(), from = 1, to = 2, "the layout of the store was upgraded");
    }
    if layout(&transaction).map_err(failed)? == Some(2) {
        transaction
            .execute_batch(FROM_2)
            .and_then(|()| transaction.execute_batch(JOURNALS))
            .map_err(failed)?;
        tracing::info!(path = %path.display(), from = 2, to = 3, "the layout of the store was upgraded");
    }
    if layout(&transaction).map_err(failed)? == Some(3) {
        transaction.execute_batch(FROM_3).and_then(|()| transaction.execute_batch(ACTS)).map_err(failed)?;
        tracing::info!(path = %path.display(), from = 3, to = 4, "the layout of the store was upgraded");
    }
    if layout(&transaction).map_err(failed)? == Some(4) {
        transaction.execute_batch(FROM_4).and_then(|()| transaction.execute_batch(DAYS)).map_err(failed)?;
        tracing::info!(path = %path.display(), from = 4, to = 5, "the layout of the store was upgraded");
    }
    if layout(&transaction).map_err(failed)? == Some(5) {
        transaction.execute_batch(FROM_5).and_then(|()| transaction.execute_batch(TRACES)).map_err(failed)?;
        tracing::info!(path = %path.display(), from = 5, to = SCHEMA, "the layout of the store was upgraded");
    }
    match layout(&transaction).map_err(failed)? {
        Some(SCHEMA) => transaction.commit().map_err(failed),
        Some(found) => Err(OpenError::Schema { path: path.clone(), found, known: SCHEMA }),
        None => Err(OpenError::NotAStore { path: path.clone() }),
    }
}

/// The layout of the file. `None`: it has not the row that says so.
fn layout(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    let meta: Option<String> = connection
        .query_row(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name IN ('retrysafe_meta', 'meta')
             ORDER BY name DESC",
            [],
            |row| row.get(0),
        )
        .optional()?;
    let sql = match meta.as_deref() {
        Some("retrysafe_meta") => "SELECT schema FROM retrysafe_meta",
        Some(_) => "SELECT schema FROM meta",
        None => return Ok(None),
    };
    connection.query_row(sql, [], |row| row.get(0)).optional()
}

/// How long a reader waits for a lock. In WAL mode readers wait for nobody, but for the moment in which a file is
/// recovered after a crash.
const READER_PATIENCE: Duration = Duration::from_millis(500);

/// Makes `connection` one that reads only.
pub(super) fn prepare_reader(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let failed = |error| OpenError::of(path, error);
    connection.busy_timeout(READER_PATIENCE).map_err(failed)?;
    connection.pragma_update(None, "query_only", true).map_err(failed)
}

/// Before anything is changed: a file that another program made is left as it is.
fn refuse_another_database(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let failed = |error| OpenError::of(path, error);
    let id: i64 = connection.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(failed)?;
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(failed)?;
    if id != APPLICATION_ID && (id != 0 || tables > 0) {
        return Err(OpenError::NotAStore { path: path.to_owned() });
    }
    Ok(())
}
