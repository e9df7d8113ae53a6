//! Intents in SQLite, in a database of their own or in the caller's.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension, ToSql, params_from_iter, types::ToSqlOutput};

use super::{Dialect, Intent, IntentFault, IntentFuture, Intents, Sql, SqlValue};
use crate::key::Key;

const BUSY: Duration = Duration::from_secs(5);

/// Intents in a table of a SQLite file.
#[derive(Clone)]
pub struct SqliteIntents(Arc<Mutex<Connection>>);

impl SqliteIntents {
    /// Opens (or makes) the file, and the table in it. Commits are synced: an intent that a power cut takes away was none.
    ///
    /// # Errors
    /// The file is no database, or cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, IntentFault> {
        let connection = Connection::open(path).map_err(store)?;
        connection.busy_timeout(BUSY).map_err(store)?;
        connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;").map_err(store)?;
        connection.execute(&Sql::create(Dialect::Sqlite).text, []).map_err(store)?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Writes an intent down in a transaction of the caller's: it is kept if, and only if, the caller's rows are.
    ///
    /// # Errors
    /// [`IntentFault`]; the transaction is the caller's to roll back.
    pub fn save_in(transaction: &Connection, intent: &Intent) -> Result<(), IntentFault> {
        if run(transaction, &Sql::save(Dialect::Sqlite, intent)?)? == 1 {
            return Ok(());
        }
        let Sql { text, arguments } = Sql::find(Dialect::Sqlite, &intent.key);
        let found: Option<Vec<u8>> = transaction
            .query_row(&text, params_from_iter(&arguments), |row| row.get(0))
            .optional()
            .map_err(store)?;
        match found {
            Some(bytes) if Intent::from_bytes(&bytes)?.same_call(intent) => Ok(()),
            Some(_) => Err(IntentFault::Changed),
            None => Err(IntentFault::Store("an intent was settled while it was saved".into())),
        }
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, IntentFault> + Send + 'static,
    ) -> Result<T, IntentFault> {
        let connection = Arc::clone(&self.0);
        let work = move || work(&connection.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(work).await.map_err(|error| IntentFault::Store(error.into()))?
    }
}

impl Intents for SqliteIntents {
    fn save<'a>(&'a self, intent: &'a Intent) -> IntentFuture<'a, Result<(), IntentFault>> {
        let intent = intent.clone();
        Box::pin(self.with(move |connection| Self::save_in(connection, &intent)))
    }

    fn settle<'a>(&'a self, key: &'a Key) -> IntentFuture<'a, Result<(), IntentFault>> {
        let statement = Sql::settle(Dialect::Sqlite, key);
        Box::pin(self.with(move |connection| run(connection, &statement).map(drop)))
    }

    fn open(&self, max: usize) -> IntentFuture<'_, Result<Vec<Intent>, IntentFault>> {
        let Sql { text, arguments } = Sql::open(Dialect::Sqlite, max);
        Box::pin(self.with(move |connection| {
            let mut statement = connection.prepare_cached(&text).map_err(store)?;
            let rows = statement.query_map(params_from_iter(&arguments), |row| row.get::<_, Vec<u8>>(0));
            rows.map_err(store)?.map(|row| Intent::from_bytes(&row.map_err(store)?)).collect()
        }))
    }
}

fn run(connection: &Connection, statement: &Sql) -> Result<usize, IntentFault> {
    connection.execute(&statement.text, params_from_iter(&statement.arguments)).map_err(store)
}

fn store(error: rusqlite::Error) -> IntentFault {
    IntentFault::Store(error.into())
}

impl ToSql for SqlValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            SqlValue::Text(text) => text.to_sql(),
            SqlValue::Integer(number) => number.to_sql(),
            SqlValue::Bytes(bytes) => bytes.to_sql(),
        }
    }
}

impl std::fmt::Debug for SqliteIntents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteIntents").finish_non_exhaustive()
    }
}
