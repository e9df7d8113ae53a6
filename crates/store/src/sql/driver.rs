//! Who carries statements to a database and rows back.

use std::{fmt, future::Future};

use super::{Rows, Statement};

/// A client library with its pool of connections.
pub trait Driver: Send + Sync + 'static {
    /// A connection of the pool, for one caller at a time.
    type Connection: Connection;

    /// A connection on which no transaction is open. Waits for a free one no longer than the pool's bound.
    ///
    /// # Errors
    /// [`FailureKind::Unreachable`] where there is none: nothing was sent.
    fn acquire(&self) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;
}

/// One connection. Dropping it gives it back to the pool *as it is*; whoever may have a transaction open on it calls
/// [`abandon`](Connection::abandon) instead.
pub trait Connection: Send + Sized + 'static {
    /// What the handler of a transaction runs its statements on: the library's own type, or a thin wrapper of it.
    type Handle: Send + ?Sized;

    /// Runs `statements` in order, in one round trip where the library can do that, and stops at the first that fails.
    ///
    /// A list of several statements either begins a transaction or is inside one. That is what lets a driver send all
    /// of them at once: what follows a failed statement is refused by the server, and a `COMMIT` after it rolls back. A
    /// driver that waits for each answer must not send the rest.
    ///
    /// A future that is dropped half way has been sent; the connection may only be abandoned then.
    fn run(&mut self, statements: &[Statement]) -> impl Future<Output = Ran> + Send;

    /// Runs a text of several statements without arguments (a migration), as one.
    fn script(&mut self, text: &str) -> impl Future<Output = Result<(), Failure>> + Send;

    /// The library's own connection.
    fn handle(&mut self) -> &mut Self::Handle;

    /// Makes the connection safe to drop in whatever state it is: an open transaction is rolled back before anybody else
    /// uses the connection, or the connection is closed. Does not wait. Harmless where no transaction is open.
    fn abandon(&mut self);

    /// Closes the connection, without waiting: nobody knows what the server is doing on it.
    fn discard(self);
}

/// How far a list of statements came.
#[derive(Debug)]
pub struct Ran {
    /// The results of those that succeeded, in their order.
    pub done: Vec<Rows>,
    /// Why the one after them did not. `None`: all succeeded.
    pub failure: Option<Failure>,
}

impl Ran {
    /// All results, or the failure. For a single statement, or where it does not matter which of several failed.
    ///
    /// # Errors
    /// The failure that ended the list.
    pub fn all(self) -> Result<Vec<Rows>, Failure> {
        match self.failure {
            None => Ok(self.done),
            Some(failure) => Err(failure),
        }
    }
}

/// A statement that did not succeed.
#[derive(Debug)]
pub struct Failure {
    /// What it means for the transaction.
    pub kind: FailureKind,
    /// The library's own error. Its text must hold no arguments.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// What a failure means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// Nothing of the list reached the server.
    Unreachable,
    /// The server refused the statement and the connection goes on: the statement did nothing, and a transaction that was
    /// open has failed or, on some databases, has been rolled back. A `COMMIT` that is refused is a rollback.
    Refused(ServerCode),
    /// The connection ended, with the server's last word if there was one. The statement may have been carried out, and a
    /// commit among it and those after it too.
    Lost(Option<ServerCode>),
    /// The answer is not of the expected form. Whatever was done, is done.
    Malformed,
}

/// The server's code of an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServerCode {
    /// SQLSTATE.
    pub state: [u8; 5],
    /// The database's own number, where it has one (MySQL); else 0.
    pub number: u32,
}

impl ServerCode {
    /// A code that is only an SQLSTATE. Anything but five bytes of ASCII becomes `XX000`, an internal error.
    #[must_use]
    pub fn of_state(state: &str) -> Self {
        let state = state.as_bytes().try_into().unwrap_or(*b"XX000");
        Self { state, number: 0 }
    }

    /// SQLSTATE as text.
    #[must_use]
    pub fn state(&self) -> &str {
        std::str::from_utf8(&self.state).unwrap_or("XX000")
    }

    /// The class of the SQLSTATE: its first two characters.
    #[must_use]
    pub fn class(&self) -> &str {
        self.state().get(..2).unwrap_or("XX")
    }
}

impl fmt::Debug for ServerCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => f.write_str(self.state()),
            number => write!(f, "{} ({number})", self.state()),
        }
    }
}

impl Failure {
    /// A failure of `kind`.
    pub fn new(kind: FailureKind, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { kind, source: source.into() }
    }

    /// The server's code, if it gave one.
    #[must_use]
    pub fn code(&self) -> Option<ServerCode> {
        match self.kind {
            FailureKind::Refused(code) => Some(code),
            FailureKind::Lost(code) => code,
            FailureKind::Unreachable | FailureKind::Malformed => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.source()
    }
}
