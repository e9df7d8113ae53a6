//! Intents as SQL values: statement and arguments, for whatever driver holds the caller's transaction.
//!
//! ```
//! use retrysafe_client::intents::{Dialect, Sql, SqlValue};
//! use retrysafe_client::Key;
//!
//! let Sql { text, arguments } = Sql::settle(Dialect::Postgres, &Key::from_event("order", 7).unwrap());
//! assert_eq!(text, "DELETE FROM retrysafe_intents WHERE key = $1");
//! assert_eq!(arguments, [SqlValue::Text("order-7".into())]);
//! ```

use super::{Intent, IntentFault};
use crate::key::Key;

/// The table, in the SQL that PostgreSQL and SQLite share but for the type of bytes: `{bytes}` is `bytea` or `blob`.
pub const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS retrysafe_intents (\
     key text PRIMARY KEY, opened_ms bigint NOT NULL, request {bytes} NOT NULL)";

/// Which SQL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// Arguments are `$1`.
    Postgres,
    /// Arguments are `?1`.
    Sqlite,
}

/// An argument of a statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SqlValue {
    /// A text.
    Text(String),
    /// A number of 64 bits.
    Integer(i64),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// A statement with its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sql {
    /// Its text.
    pub text: String,
    /// Its arguments, in order.
    pub arguments: Vec<SqlValue>,
}

impl Sql {
    /// The table.
    pub fn create(dialect: Dialect) -> Self {
        let bytes = match dialect {
            Dialect::Postgres => "bytea",
            Dialect::Sqlite => "blob",
        };
        Self { text: SCHEMA.replace("{bytes}", bytes), arguments: Vec::new() }
    }

    /// Writes an intent down. It changes no row where the key is known already: then [`Sql::find`] says by what.
    ///
    /// # Errors
    /// [`IntentFault`]: the intent has no written form.
    pub fn save(dialect: Dialect, intent: &Intent) -> Result<Self, IntentFault> {
        let text = "INSERT INTO retrysafe_intents (key, opened_ms, request) VALUES ($1, $2, $3) \
                    ON CONFLICT (key) DO NOTHING";
        let arguments = vec![
            SqlValue::Text(intent.key.as_str().to_owned()),
            SqlValue::Integer(intent.opened.unix_ms()),
            SqlValue::Bytes(intent.to_bytes()?),
        ];
        Ok(Self { text: spelled(dialect, text), arguments })
    }

    /// The written form under a key: one row of one column.
    pub fn find(dialect: Dialect, key: &Key) -> Self {
        Self::of_key(dialect, "SELECT request FROM retrysafe_intents WHERE key = $1", key)
    }

    /// The call has a result.
    pub fn settle(dialect: Dialect, key: &Key) -> Self {
        Self::of_key(dialect, "DELETE FROM retrysafe_intents WHERE key = $1", key)
    }

    /// The written forms of open intents, the oldest first: rows of one column.
    pub fn open(dialect: Dialect, max: usize) -> Self {
        let text = spelled(dialect, "SELECT request FROM retrysafe_intents ORDER BY opened_ms, key LIMIT $1");
        Self { text, arguments: vec![SqlValue::Integer(i64::try_from(max).unwrap_or(i64::MAX))] }
    }

    fn of_key(dialect: Dialect, text: &str, key: &Key) -> Self {
        Self { text: spelled(dialect, text), arguments: vec![SqlValue::Text(key.as_str().to_owned())] }
    }
}

impl Intent {
    /// Reads a row of [`Sql::open`] or [`Sql::find`].
    ///
    /// # Errors
    /// [`IntentFault::Unreadable`].
    pub fn from_row(request: &[u8]) -> Result<Self, IntentFault> {
        Self::from_bytes(request)
    }
}

fn spelled(dialect: Dialect, text: &str) -> String {
    match dialect {
        Dialect::Postgres => text.to_owned(),
        Dialect::Sqlite => text.replace('$', "?"),
    }
}
