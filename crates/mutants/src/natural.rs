//! Check, then insert, on SQLite, as it is written every day: the only pause between the two is the database's.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rusqlite::{Connection, OptionalExtension};
use serde_json::{Value, json};

const TURN: Duration = Duration::from_secs(20);
const TABLES: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE effect (id INTEGER PRIMARY KEY, note TEXT NOT NULL) STRICT;
    CREATE TABLE key (key TEXT NOT NULL, effect INTEGER NOT NULL) STRICT;
    CREATE INDEX by_key ON key (key);
";

/// One database file, gone with the last handle.
#[derive(Clone)]
pub(crate) struct Natural {
    file: PathBuf,
    _folder: Arc<tempfile::TempDir>,
}

impl Natural {
    pub(crate) fn open() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("orders.db");
        Connection::open(&file)?.execute_batch(TABLES)?;
        Ok(Self { file, _folder: Arc::new(folder) })
    }

    fn connect(&self) -> rusqlite::Result<Connection> {
        let connection = Connection::open(&self.file)?;
        connection.busy_timeout(TURN)?;
        Ok(connection)
    }

    /// The id of the order of this key: found, or made.
    pub(crate) fn create(&self, key: &str, note: &str) -> rusqlite::Result<i64> {
        let mut connection = self.connect()?;
        let find = "SELECT effect FROM key WHERE key = ?1";
        if let Some(id) = connection.query_row(find, [key], |row| row.get(0)).optional()? {
            return Ok(id);
        }
        let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        transaction.execute("INSERT INTO effect (note) VALUES (?1)", [note])?;
        let id = transaction.last_insert_rowid();
        transaction.execute("INSERT INTO key (key, effect) VALUES (?1, ?2)", (key, id))?;
        transaction.commit()?;
        Ok(id)
    }

    pub(crate) fn list(&self, note: Option<&str>) -> rusqlite::Result<Vec<Value>> {
        let connection = self.connect()?;
        let mut rows =
            connection.prepare("SELECT id, note FROM effect WHERE ?1 IS NULL OR note = ?1 ORDER BY id")?;
        let row = |row: &rusqlite::Row<'_>| {
            Ok(json!({ "id": row.get::<_, i64>(0)?, "note": row.get::<_, String>(1)? }))
        };
        rows.query_map([note], row)?.collect()
    }
}
