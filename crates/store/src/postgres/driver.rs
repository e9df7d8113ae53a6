//! The driver on tokio-postgres.
//!
//! The statements of a list are sent one behind the other without waiting, so that a list costs one round trip; each
//! answer is looked at. Three ways of sending, since not every way to a server carries prepared statements:
//!
//! - [`Mode::Prepared`]: statements are prepared once for each connection. The fastest; needs a connection to a server,
//!   or a pooler that knows prepared statements.
//! - [`Mode::Unnamed`]: the extended protocol without names. For poolers in transaction mode.
//! - [`Mode::Simple`]: one text for a whole list. For what speaks only the simple protocol.

use std::{
    error::Error as StdError,
    fmt,
    future::Future,
    ops::Deref,
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime};
use futures_util::{TryStreamExt, future::join_all};
use tokio_postgres::{
    Client, Config, NoTls, RowStream, Socket,
    error::Severity,
    tls::{MakeTlsConnect, TlsConnect},
};

use super::wire;
use crate::sql::{Connection, Driver, Failure, FailureKind, Ran, Rows, ServerCode, Statement, Value};

/// How long to wait for a server to accept a connection, unless the configuration says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How statements are sent.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Prepared once for each connection.
    #[default]
    Prepared,
    /// Parsed each time, without a name.
    Unnamed,
    /// The simple protocol, arguments written into the text.
    Simple,
}

/// A pool of tokio-postgres connections.
#[derive(Clone)]
pub struct TokioPostgres {
    pool: Pool,
    mode: Mode,
}

/// How many connections, and how long to wait for one.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// The most connections.
    pub size: usize,
    /// How long to wait for a free one before the store counts as unavailable.
    pub wait: Duration,
    /// How statements are sent.
    pub mode: Mode,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { size: 16, wait: Duration::from_secs(2), mode: Mode::default() }
    }
}

impl TokioPostgres {
    /// A pool that opens connections as they are needed, without TLS. Nothing is opened yet.
    ///
    /// # Errors
    /// [`FailureKind::Unreachable`] for options that make no pool.
    pub fn new(config: Config, options: PoolOptions) -> Result<Self, Failure> {
        Self::with_tls(config, options, NoTls)
    }

    /// The same with connections that `tls` encrypts, as the configuration's `ssl_mode` asks. Which certificates are trusted is
    /// `tls`'s to say; a [`StoreAddress`](super::StoreAddress) makes one of `sslmode` and `sslrootcert`.
    ///
    /// # Errors
    /// As [`TokioPostgres::new`].
    pub fn with_tls<T>(mut config: Config, options: PoolOptions, tls: T) -> Result<Self, Failure>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + Sync,
        T::TlsConnect: Send + Sync,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("retrysafe");
        }
        // A connection that is closed is noticed without asking; a server that is gone without a word is noticed by the
        // first statement, which the store sends again where that is safe.
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(config, tls, recycling);
        let pool = Pool::builder(manager)
            .max_size(options.size)
            .wait_timeout(Some(options.wait))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(unreachable)?;
        Ok(Self { pool, mode: options.mode })
    }

    /// A store's own connections should not be the application's: a handler that waits for a connection while it holds
    /// the last one waits for itself. This makes a driver of a pool that is there nevertheless, for those who know.
    #[must_use]
    pub fn over(pool: Pool, mode: Mode) -> Self {
        Self { pool, mode }
    }
}

impl fmt::Debug for TokioPostgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioPostgres").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Driver for TokioPostgres {
    type Connection = Pooled;

    async fn acquire(&self) -> Result<Pooled, Failure> {
        let object = self.pool.get().await.map_err(|error| match error {
            // The server's own refusal ("too many connections") is worth telling apart.
            PoolError::Backend(error) => match error.code() {
                Some(code) => {
                    let code = ServerCode::of_state(code.code());
                    Failure::new(FailureKind::Refused(code), error)
                }
                None => unreachable(error),
            },
            other => unreachable(other),
        })?;
        Ok(Pooled { handle: Handle(object), mode: self.mode, ended: false })
    }
}

fn unreachable(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Failure {
    Failure::new(FailureKind::Unreachable, source)
}

/// A connection of the pool.
#[derive(Debug)]
pub struct Pooled {
    handle: Handle,
    mode: Mode,
    /// The last thing that was sent ended a transaction, and the server has said so.
    ended: bool,
}

/// What a handler runs its statements on: everything that a shared [`Client`] can do, by [`Deref`].
///
/// It does not hand out `&mut Client`: `Client::transaction` would send a `BEGIN` of its own, and its `commit` would
/// commit the handler's work without its record.
pub struct Handle(Object);

impl Handle {
    /// Prepares a statement once for this connection. Not behind a pooler in transaction mode.
    ///
    /// # Errors
    /// As [`Client::prepare`].
    pub async fn prepare_cached(
        &self,
        text: &str,
    ) -> Result<tokio_postgres::Statement, tokio_postgres::Error> {
        self.0.prepare_cached(text).await
    }
}

impl Deref for Handle {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle(..)")
    }
}

impl Connection for Pooled {
    type Handle = Handle;

    async fn run(&mut self, statements: &[Statement]) -> Ran {
        let client: &Client = &self.handle;
        // Until the answer is here: this future may be dropped half way.
        self.ended = false;
        if client.is_closed() {
            return Ran { done: Vec::new(), failure: Some(unreachable("the connection is closed")) };
        }
        let ran = match self.mode {
            Mode::Prepared => self.prepared(statements).await,
            Mode::Unnamed => {
                let runs = statements.iter().map(|statement| async move {
                    let typed = statement.values.iter().map(|value| (value, wire::type_of(value)));
                    collect(client.query_typed_raw(&statement.text, typed).await).await
                });
                in_order(join_all(runs).await)
            }
            Mode::Simple => wire::simple(client, statements).await,
        };
        self.ended = ran.failure.is_none() && statements.last().is_some_and(Statement::ends_transaction);
        ran
    }

    async fn script(&mut self, text: &str) -> Result<(), Failure> {
        self.ended = false;
        self.handle.batch_execute(text).await.map_err(failure)
    }

    fn handle(&mut self) -> &mut Handle {
        self.ended = false;
        &mut self.handle
    }

    fn abandon(&mut self) {
        // After a commit there is nothing to roll back: the statement would cost as much as one of the handler's, and a
        // warning in the server's log.
        if self.ended || self.handle.is_closed() {
            return;
        }
        // Sent at the first poll, in front of whatever the next user of the connection sends; nobody waits for the answer.
        let mut rollback = pin!(self.handle.batch_execute("ROLLBACK"));
        let _ = rollback.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }

    fn discard(self) {
        drop(Object::take(self.handle.0));
    }
}

impl Pooled {
    async fn prepared(&self, statements: &[Statement]) -> Ran {
        let mut ready = Vec::with_capacity(statements.len());
        for statement in statements {
            match self.handle.0.prepare_cached(&statement.text).await {
                Ok(prepared) => ready.push((prepared, statement)),
                // Nothing of the list itself was sent; an open transaction may have failed all the same.
                Err(error) => return Ran { done: Vec::new(), failure: Some(failure(error)) },
            }
        }
        let client: &Client = &self.handle;
        let runs = ready.iter().map(|(prepared, statement)| async move {
            collect(client.query_raw(prepared, statement.values.iter()).await).await
        });
        in_order(join_all(runs).await)
    }
}

/// Results up to the first failure. What came after it was refused by the server, or changed nothing.
fn in_order(results: Vec<Result<Rows, Failure>>) -> Ran {
    let mut done = Vec::with_capacity(results.len());
    for result in results {
        match result {
            Ok(rows) => done.push(rows),
            Err(failure) => return Ran { done, failure: Some(failure) },
        }
    }
    Ran { done, failure: None }
}

async fn collect(stream: Result<RowStream, tokio_postgres::Error>) -> Result<Rows, Failure> {
    let mut stream = pin!(stream.map_err(failure)?);
    let mut rows = Vec::new();
    while let Some(row) = stream.as_mut().try_next().await.map_err(failure)? {
        let values: Result<Vec<Value>, _> = (0..row.len()).map(|at| row.try_get(at)).collect();
        rows.push(values.map_err(|error| Failure::new(FailureKind::Malformed, error))?);
    }
    Ok(Rows { rows, affected: stream.rows_affected().unwrap_or(0) })
}

pub(super) fn failure(error: tokio_postgres::Error) -> Failure {
    let kind = match error.as_db_error() {
        Some(refusal) => {
            let code = ServerCode::of_state(refusal.code().code());
            match refusal.parsed_severity() {
                // The session ends with it, and a commit that was running may have happened.
                Some(Severity::Fatal | Severity::Panic) => FailureKind::Lost(Some(code)),
                _ => FailureKind::Refused(code),
            }
        }
        None if error.is_closed() || error.source().is_some_and(|source| source.is::<std::io::Error>()) => {
            FailureKind::Lost(None)
        }
        None => FailureKind::Malformed,
    };
    Failure::new(kind, error)
}
