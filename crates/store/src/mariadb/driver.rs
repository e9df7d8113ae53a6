//! [`Driver`] on `mysql_async`.
//!
//! Two ways of sending a statement. **Prepared** where the connection stays ours: parsed once. **As text**, with every
//! argument written as a hexadecimal literal, where a handler uses the connection in between: such a connection is reset
//! when it comes back, which also forgets what was prepared, and preparing anew would be a second round trip for each
//! message. A hexadecimal literal is a binary string in every SQL mode and character set, so nothing has to be escaped.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use mysql_async::{
    Conn, Error, IoError, Opts, OptsBuilder, Params, Pool, PoolConstraints, PoolOpts, Row,
    consts::{ColumnFlags, ColumnType},
    prelude::Queryable,
};

use crate::sql::{Connection, Driver, Failure, FailureKind, Ran, Rows, ServerCode, Statement, Value};

/// Above this many bytes of arguments, doubling them as text costs more than preparing.
const TEXT_MAX_BYTES: usize = 16 * 1024;

/// How long a connection that is given up may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// How long a connection that nobody uses is kept.
const IDLE: Duration = Duration::from_secs(60);

/// Statements that stay prepared on a connection; more than there are.
const PREPARED_MAX: usize = 64;

/// A pool of connections.
#[derive(Clone)]
pub struct MysqlDriver {
    pool: Pool,
    patience: Duration,
    sends: Sends,
}

/// How statements are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sends {
    Prepared,
    Text,
}

/// How many connections there may be, and how long anybody waits for one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolSize {
    /// The most connections.
    pub max: usize,
    /// How long to wait for a free one.
    pub patience: Duration,
}

impl Default for PoolSize {
    fn default() -> Self {
        Self { max: 10, patience: Duration::from_secs(2) }
    }
}

impl MysqlDriver {
    /// Connections on which only the store's own statements run, each with `setup` run on it first.
    pub(super) fn of_the_store(opts: &Opts, size: PoolSize, setup: String) -> Self {
        Self::new(opts, size, setup, Sends::Prepared)
    }

    /// Connections that handlers use: reset before they are used again, so that no variable, lock or temporary table of
    /// one handler is met by the next.
    pub(super) fn of_handlers(opts: &Opts, size: PoolSize, setup: String) -> Self {
        Self::new(opts, size, setup, Sends::Text)
    }

    fn new(opts: &Opts, size: PoolSize, setup: String, sends: Sends) -> Self {
        let pool = PoolOpts::new()
            .with_constraints(PoolConstraints::new(0, size.max.max(1)).unwrap_or_default())
            // Without it the driver closes what comes back beyond the minimum, and connects anew for each burst.
            .with_inactive_connection_ttl(IDLE)
            .with_reset_connection(sends == Sends::Text);
        let opts = OptsBuilder::from_opts(opts.clone())
            .pool_opts(pool)
            // The number of rows that changed, not of those that were found: the guards depend on it.
            .client_found_rows(false)
            .stmt_cache_size(PREPARED_MAX)
            .tcp_nodelay(true)
            // Else the driver asks a server on the loopback for its socket and connects there: through a tunnel, that is the
            // path on another machine, and at the same path here may be another server.
            .prefer_socket(Some(false))
            .setup(vec![setup]);
        Self { pool: Pool::new(opts), patience: size.patience, sends }
    }

    /// Closes every connection, waiting for those in use.
    pub(super) async fn close(&self) {
        let _ = tokio::time::timeout(self.patience, self.pool.clone().disconnect()).await;
    }
}

impl fmt::Debug for MysqlDriver {
    /// Without the options: they hold the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlDriver").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl Driver for MysqlDriver {
    type Connection = MysqlConnection;

    async fn acquire(&self) -> Result<MysqlConnection, Failure> {
        match tokio::time::timeout(self.patience, self.pool.get_conn()).await {
            Ok(Ok(conn)) => Ok(MysqlConnection { conn, sends: self.sends }),
            Ok(Err(error)) => Err(Failure::new(FailureKind::Unreachable, error)),
            Err(_) => Err(Failure::new(FailureKind::Unreachable, NoConnection(self.patience))),
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("no connection to the database within {0:?}: the server does not answer, or the pool is too small")]
struct NoConnection(Duration);

/// A connection of the pool.
#[derive(Debug)]
pub struct MysqlConnection {
    conn: Conn,
    sends: Sends,
}

impl Connection for MysqlConnection {
    type Handle = Conn;

    async fn run(&mut self, statements: &[Statement]) -> Ran {
        let mut done = Vec::with_capacity(statements.len());
        for statement in statements {
            match self.one(statement).await {
                Ok(rows) => done.push(rows),
                Err(failure) => return Ran { done, failure: Some(failure) },
            }
        }
        Ran { done, failure: None }
    }

    async fn script(&mut self, text: &str) -> Result<(), Failure> {
        let mut answer = self.conn.query_iter(text).await.map_err(failure)?;
        // Each statement has an answer of its own, and the failure of a later one is in its place in line.
        while !answer.is_empty() {
            answer.for_each(drop).await.map_err(failure)?;
        }
        answer.drop_result().await.map_err(failure)
    }

    fn handle(&mut self) -> &mut Conn {
        &mut self.conn
    }

    fn abandon(&mut self) {
        // The reset rolls back, and runs in the pool's own task, before anybody gets the connection.
        self.conn.reset_connection(true);
    }

    fn discard(self) {
        if tokio::runtime::Handle::try_current().is_ok() {
            tokio::spawn(tokio::time::timeout(GOODBYE, self.conn.disconnect()));
        }
    }
}

impl MysqlConnection {
    async fn one(&mut self, statement: &Statement) -> Result<Rows, Failure> {
        let size: usize = statement.values.iter().filter_map(Value::as_bytes).map(Bytes::len).sum();
        let as_text = self.sends == Sends::Text && size <= TEXT_MAX_BYTES;
        if as_text || statement.values.is_empty() {
            let answer = self.conn.query_iter(text_of(statement)).await.map_err(failure)?;
            return read(answer).await;
        }
        let values = statement.values.iter().map(parameter).collect();
        let text: &str = &statement.text;
        let answer = self.conn.exec_iter(text, Params::Positional(values)).await.map_err(failure)?;
        read(answer).await
    }
}

async fn read<P>(mut answer: mysql_async::QueryResult<'_, '_, P>) -> Result<Rows, Failure>
where
    P: mysql_async::prelude::Protocol,
{
    let rows: Vec<Row> = answer.collect().await.map_err(failure)?;
    let affected = answer.affected_rows();
    // A compound statement ends with an answer of its own: a failure after the rows were sent is in it.
    while !answer.is_empty() {
        answer.for_each(drop).await.map_err(failure)?;
    }
    answer.drop_result().await.map_err(failure)?;
    let rows = rows.into_iter().map(columns).collect::<Option<_>>().ok_or_else(malformed)?;
    Ok(Rows { rows, affected })
}

fn parameter(value: &Value) -> mysql_async::Value {
    match value {
        Value::Null => mysql_async::Value::NULL,
        Value::Int(number) => mysql_async::Value::Int(*number),
        Value::Bytes(bytes) => mysql_async::Value::Bytes(bytes.to_vec()),
    }
}

/// The statement with its arguments written into it. Our texts hold no `?` but the placeholders.
fn text_of(statement: &Statement) -> String {
    let mut text = String::with_capacity(statement.text.len() + 64);
    let mut values = statement.values.iter();
    for (at, part) in statement.text.split('?').enumerate() {
        if at > 0 {
            match values.next() {
                Some(Value::Int(number)) => drop(write!(text, "{number}")),
                Some(Value::Bytes(bytes)) => {
                    text.push_str("x'");
                    for byte in bytes {
                        let _ = write!(text, "{byte:02x}");
                    }
                    text.push('\'');
                }
                Some(Value::Null) | None => text.push_str("NULL"),
            }
        }
        text.push_str(part);
    }
    text
}

fn columns(row: Row) -> Option<Vec<Value>> {
    let number: Arc<[bool]> = row.columns_ref().iter().map(is_number).collect();
    row.unwrap().into_iter().zip(number.iter()).map(|(value, number)| column(value, *number)).collect()
}

fn is_number(column: &mysql_async::Column) -> bool {
    column.column_type().is_numeric_type()
        && column.column_type() != ColumnType::MYSQL_TYPE_NEWDECIMAL
        && !column.flags().contains(ColumnFlags::ENUM_FLAG)
}

fn column(value: mysql_async::Value, number: bool) -> Option<Value> {
    match value {
        mysql_async::Value::NULL => Some(Value::Null),
        mysql_async::Value::Int(number) => Some(Value::Int(number)),
        mysql_async::Value::UInt(number) => i64::try_from(number).ok().map(Value::Int),
        mysql_async::Value::Bytes(digits) if number => {
            std::str::from_utf8(&digits).ok()?.parse().ok().map(Value::Int)
        }
        mysql_async::Value::Bytes(bytes) => Some(Value::Bytes(bytes.into())),
        _ => None,
    }
}

fn malformed() -> Failure {
    Failure::new(FailureKind::Malformed, "the database answered with a column of another type")
}

/// What an error of the driver means. Its text holds no arguments, but the server's text of a duplicate key would hold the
/// key: it is replaced.
pub(super) fn failure(error: Error) -> Failure {
    match error {
        Error::Server(server) => {
            let state = ServerCode::of_state(&server.state).state;
            let code = ServerCode { state, number: server.code.into() };
            // Shutting down, or this connection was killed: the server's last word on it.
            let last_word = matches!(server.code, 1053 | 1077 | 1079 | 1927 | 4031);
            let kind = if last_word { FailureKind::Lost(Some(code)) } else { FailureKind::Refused(code) };
            Failure::new(kind, Refusal { code, text: without_arguments(server.code, server.message) })
        }
        Error::Io(IoError::Io(error)) => Failure::new(FailureKind::Lost(None), error),
        other => Failure::new(FailureKind::Lost(None), other),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the database said {code:?}: {text}")]
struct Refusal {
    code: ServerCode,
    text: String,
}

/// 1062 quotes the duplicate key, 1406 and its kin the row, 1064 a part of the statement with its literals.
fn without_arguments(code: u16, message: String) -> String {
    match code {
        1062 => "duplicate entry".into(),
        1064 | 1149 => "syntax error".into(),
        1366 | 1292 => "incorrect value".into(),
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_written_as_hexadecimal_literals() {
        let quote = Value::bytes(b"'; DROP TABLE retrysafe_key; -- ");
        let statement = Statement::new(&"SELECT ?, ?, ?".into(), vec![quote, Value::Int(-7), Value::Null]);
        let text = text_of(&statement);
        assert_eq!(
            text,
            "SELECT x'273b2044524f50205441424c4520726574727973616665\
             5f6b65793b202d2d20', -7, NULL"
        );
    }

    #[test]
    fn no_text_of_an_error_repeats_a_key() {
        let server = mysql_async::ServerError {
            code: 1062,
            message: "Duplicate entry 'shop-alice-secret' for key 'PRIMARY'".into(),
            state: "23000".into(),
        };
        let failure = failure(Error::Server(server));
        assert!(!failure.to_string().contains("secret"), "{failure}");
        assert_eq!(failure.code().map(|code| code.number), Some(1062));
    }
}
