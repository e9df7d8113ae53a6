//! The driver on sqlx.
//!
//! sqlx does not pipeline: each statement of the extended protocol is a round trip. A list is therefore sent as one text of
//! the simple protocol, with its arguments written in, which the server runs as one and stops at the first failure: beginning
//! a transaction is one round trip, and ending it another. Long arguments go one by one, where writing them out would double
//! them.
//!
//! What sqlx does that a store must not fall for, each a test:
//!
//! - `Transaction::commit` says `Ok` where a handler swallowed an error and the server rolled back. The handler gets the
//!   connection, never a `Transaction`, and the store's own completing write is what fails then.
//! - A bare connection that is dropped keeps its transaction open, and its locks, until it is used again. Only connections
//!   of a pool of our own are used, and one that may have a transaction open is rolled back or closed, never just put back.
//! - Statements are logged with their text, which here holds keys: logging is off on these connections.

use std::{
    fmt,
    future::Future,
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::TryStreamExt;
use sqlx::{
    AssertSqlSafe, ConnectOptions, Either, Encode, Executor, PgConnection, Postgres, Row as _, Type,
    ValueRef as _,
    encode::IsNull,
    error::BoxDynError,
    pool::PoolConnection,
    postgres::{
        PgArgumentBuffer, PgConnectOptions, PgDatabaseError, PgPool, PgPoolOptions, PgRow, PgSeverity,
        PgTypeInfo, PgValueFormat, types::Oid,
    },
};

use super::literals::{value_of, write_literals};
use crate::sql::{Connection, Driver, Failure, FailureKind, Ran, Rows, ServerCode, Statement, Value};

/// Above this many bytes of arguments a list is sent one by one.
const TEXT_MAX_BYTES: usize = 16 * 1024;

/// Types of the server, which are the same everywhere.
const INT8: Oid = Oid(20);
const BYTEA: Oid = Oid(17);
/// Left to the cast in the text.
const UNSPECIFIED: Oid = Oid(0);

/// A pool of sqlx connections that belongs to the store.
#[derive(Clone)]
pub struct SqlxPostgres {
    pool: PgPool,
    options: SqlxPool,
}

/// How many connections, how long to wait for one, and how statements are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SqlxPool {
    /// The most connections.
    pub size: u32,
    /// How long to wait for a free one before the store counts as unavailable.
    pub wait: Duration,
    /// How statements are sent.
    pub mode: SqlxMode,
}

/// How statements are sent.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum SqlxMode {
    /// Single statements are prepared once for each connection; the lists that begin and end a transaction are one text of
    /// the simple protocol.
    #[default]
    Joined,
    /// Every statement is prepared, and a round trip of its own.
    OneByOne,
    /// Everything is text of the simple protocol: the one way through a pooler in transaction mode. sqlx parses and runs a
    /// statement in two messages even where it is not kept, and the pooler may hand them to two servers. The same is true
    /// of a handler's statements outside of the store's transaction; inside, `.persistent(false)` is enough.
    Simple,
}

impl Default for SqlxPool {
    fn default() -> Self {
        Self { size: 16, wait: Duration::from_secs(2), mode: SqlxMode::default() }
    }
}

impl SqlxPostgres {
    /// A pool that opens connections as they are needed. Nothing is opened yet. Inside a Tokio runtime.
    #[must_use]
    pub fn new(options: PgConnectOptions, pool: SqlxPool) -> Self {
        // A parameter of the start-up that PgBouncer refuses, and that no server since version 12 needs.
        let options = options.disable_statement_logging().extra_float_digits(None);
        let made = PgPoolOptions::new()
            .max_connections(pool.size.max(1))
            .acquire_timeout(pool.wait)
            // A dead connection is found out by its first statement, which is sent again where that is safe.
            .test_before_acquire(false)
            .connect_lazy_with(options);
        Self { pool: made, options: pool }
    }
}

impl fmt::Debug for SqlxPostgres {
    /// Without the pool: it holds the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlxPostgres").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Driver for SqlxPostgres {
    type Connection = SqlxConnection;

    async fn acquire(&self) -> Result<SqlxConnection, Failure> {
        match self.pool.acquire().await {
            Ok(connection) => {
                Ok(SqlxConnection { connection, options: self.options, state: State::default() })
            }
            // The server's own refusal ("too many connections") is worth telling apart.
            Err(error) => match code_of(&error) {
                Some((code, _)) => Err(Failure::new(FailureKind::Refused(code), error)),
                None => Err(Failure::new(FailureKind::Unreachable, error)),
            },
        }
    }
}

/// A connection of the pool.
#[derive(Debug)]
pub struct SqlxConnection {
    connection: PoolConnection<Postgres>,
    options: SqlxPool,
    state: State,
}

/// What may be going on on a connection.
#[derive(Clone, Copy, Default, Debug)]
struct State {
    /// A transaction of ours was begun, or a script failed, and nothing has ended it.
    open: bool,
    /// A list of ours is on its way: its future was dropped if this is seen.
    running: bool,
    /// A handler had the connection: its futures may have been dropped as well.
    lent: bool,
    /// The last list failed. sqlx tells so before it has read that the server is ready again, and sends nothing until then.
    failed: bool,
}

impl Connection for SqlxConnection {
    type Handle = PgConnection;

    async fn run(&mut self, statements: &[Statement]) -> Ran {
        let begins = |statement: &Statement| statement.text.starts_with("BEGIN");
        self.state.open |= statements.iter().any(begins);
        self.state.running = true;
        let size: usize = arguments(statements).map(Bytes::len).sum();
        let as_text = match self.options.mode {
            SqlxMode::Joined => statements.len() > 1 && size <= TEXT_MAX_BYTES,
            SqlxMode::OneByOne => false,
            SqlxMode::Simple => true,
        };
        let ran = if as_text { self.joined(statements).await } else { self.one_by_one(statements).await };
        self.state.running = false;
        self.state.failed = ran.failure.is_some();
        if ran.failure.is_none() && statements.last().is_some_and(Statement::ends_transaction) {
            self.state.open = false;
        }
        ran
    }

    async fn script(&mut self, text: &str) -> Result<(), Failure> {
        // What it began is open until it has ended.
        self.state = State { open: true, running: true, ..self.state };
        let ran = self.connection.execute(sqlx::raw_sql(AssertSqlSafe(text))).await;
        self.state = State { open: ran.is_err(), running: false, failed: ran.is_err(), ..self.state };
        ran.map(drop).map_err(failure)
    }

    fn handle(&mut self) -> &mut PgConnection {
        self.state.lent = true;
        &mut self.connection
    }

    fn abandon(&mut self) {
        if self.state.running || (self.state.open && (self.state.lent || self.state.failed)) {
            // An answer may be outstanding, and what is sent now would wait behind it for somebody to read: the next user
            // of the connection would find a transaction that is aborted (25P02).
            self.connection.close_on_drop();
        } else if self.state.open {
            // Sent at the first poll, in front of whatever the next user of the connection sends. sqlx counts the answer that
            // nobody waits for, and reads it before the next statement.
            let mut rollback = pin!(sqlx::raw_sql("ROLLBACK").execute(&mut *self.connection));
            let _ = rollback.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            self.state.open = false;
        }
    }

    fn discard(mut self) {
        self.connection.close_on_drop();
    }
}

fn arguments(statements: &[Statement]) -> impl Iterator<Item = &Bytes> {
    statements.iter().flat_map(|statement| statement.values.iter().filter_map(Value::as_bytes))
}

impl SqlxConnection {
    async fn joined(&mut self, statements: &[Statement]) -> Ran {
        let mut text = String::new();
        for statement in statements {
            write_literals(&mut text, statement);
            text.push_str(";\n");
        }
        let stream = self.connection.fetch_many(sqlx::raw_sql(AssertSqlSafe(text)));
        collect(stream).await
    }

    async fn one_by_one(&mut self, statements: &[Statement]) -> Ran {
        let mut done = Vec::with_capacity(statements.len());
        for statement in statements {
            let mut query = sqlx::query(AssertSqlSafe(statement.text.to_string()));
            for value in &statement.values {
                query = query.bind(Argument(value.clone()));
            }
            let ran = collect(self.connection.fetch_many(query)).await;
            if ran.failure.is_some() {
                return Ran { done, failure: ran.failure };
            }
            done.extend(ran.done);
        }
        Ran { done, failure: None }
    }
}

/// The results of one or several statements, up to the first failure.
async fn collect<'a>(
    stream: impl futures_util::Stream<Item = Result<Either<sqlx::postgres::PgQueryResult, PgRow>, sqlx::Error>>
    + 'a,
) -> Ran {
    let mut stream = pin!(stream);
    let mut ran = Ran { done: Vec::new(), failure: None };
    let mut rows = Vec::new();
    loop {
        match stream.try_next().await {
            Ok(Some(Either::Right(row))) => match values_of(&row) {
                Some(values) => rows.push(values),
                None => {
                    let why = "a column is neither a number nor bytes; bytea_output has to be hex";
                    return Ran { failure: Some(Failure::new(FailureKind::Malformed, why)), ..ran };
                }
            },
            Ok(Some(Either::Left(result))) => {
                ran.done.push(Rows { rows: std::mem::take(&mut rows), affected: result.rows_affected() });
            }
            Ok(None) => return ran,
            Err(error) => return Ran { failure: Some(failure(error)), ..ran },
        }
    }
}

fn values_of(row: &PgRow) -> Option<Vec<Value>> {
    (0..row.len())
        .map(|at| {
            let value = row.try_get_raw(at).ok()?;
            if value.is_null() {
                return Some(Value::Null);
            }
            match value.format() {
                PgValueFormat::Text => value_of(Some(value.as_str().ok()?)),
                PgValueFormat::Binary => {
                    let bytes = value.as_bytes().ok()?;
                    match value.type_info().oid() {
                        Some(INT8) => Some(Value::Int(i64::from_be_bytes(bytes.try_into().ok()?))),
                        Some(BYTEA) => Some(Value::bytes(bytes)),
                        _ => None,
                    }
                }
            }
        })
        .collect()
}

/// A value as an argument. The type goes with the value, since a null has none of its own.
struct Argument(Value);

impl Type<Postgres> for Argument {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(UNSPECIFIED)
    }
}

impl Encode<'_, Postgres> for Argument {
    fn encode_by_ref(&self, out: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        match &self.0 {
            Value::Null => return Ok(IsNull::Yes),
            Value::Int(number) => out.extend_from_slice(&number.to_be_bytes()),
            Value::Bytes(bytes) => out.extend_from_slice(bytes),
        }
        Ok(IsNull::No)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_oid(match &self.0 {
            Value::Null => UNSPECIFIED,
            Value::Int(_) => INT8,
            Value::Bytes(_) => BYTEA,
        }))
    }
}

/// The server's code, and whether the session ended with it.
fn code_of(error: &sqlx::Error) -> Option<(ServerCode, bool)> {
    let refusal = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
    let ended = matches!(refusal.severity(), PgSeverity::Fatal | PgSeverity::Panic);
    Some((ServerCode::of_state(refusal.code()), ended))
}

fn failure(error: sqlx::Error) -> Failure {
    let kind = match (code_of(&error), &error) {
        // The session ends with it, and a commit that was running may have happened.
        (Some((code, true)), _) => FailureKind::Lost(Some(code)),
        (Some((code, false)), _) => FailureKind::Refused(code),
        (None, sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } | sqlx::Error::Encode(_)) => {
            FailureKind::Malformed
        }
        (None, _) => FailureKind::Lost(None),
    };
    Failure::new(kind, error)
}
