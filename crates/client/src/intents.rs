//! Durable intents: what is about to be sent, written down before the first byte (protocol 23, 25).
//!
//! A random key lives as long as its process. A container that dies between sending and hearing would come back with a
//! fresh key and do it twice (I-61 to I-63). So a call can be written down first: key, address, body, and until when it
//! is still wanted. After a restart [`crate::Client::resume`] sends what is open under **the same key**, as long as the
//! server's window certainly lasts; past it nobody knows what the key means, and a [`Reconcile`] hook is asked instead.
//!
//! | kept in | saved |
//! |---|---|
//! | [`FileIntents`] | before the call, in a file of its own that is synced |
//! | `SqliteIntents`, `PgIntents` | before the call, or **in the caller's transaction** (an outbox) |
//!
//! **Limits.** Credentials are not written down: `Authorization`, `Cookie`, and headers that are marked sensitive come from
//! the client's own settings when it resumes. The body is, as it is. One process resumes at a time; should two, they send
//! the same key, which is what keys are for.

mod file;
mod snapshot;
mod sql;

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::{fmt, pin::Pin};

use bytes::Bytes;
use http::{HeaderMap, Method, Response};
use retrysafe_core::time::Wall;

pub use file::FileIntents;
#[cfg(feature = "postgres")]
pub use postgres::PgIntents;
pub use sql::{Dialect, SCHEMA, Sql, SqlValue};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteIntents;

use crate::{BoxError, http::OutcomeUnknown, key::Key};

/// Open intents that one [`crate::Client::resume`] looks at.
pub const OPEN_MAX: usize = 1_000;

/// A future of a store or a hook.
pub type IntentFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A call that is wanted, with all that sending it takes but credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct Intent {
    pub(crate) key: Key,
    pub(crate) method: Method,
    /// Path and query below the client's address.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) opened: Wall,
    /// Afterwards nobody wants it any more.
    pub(crate) wanted_until: Wall,
    /// Afterwards the server may take the key for a new one.
    pub(crate) window_ends: Wall,
}

impl Intent {
    /// Its key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// When it was written down.
    pub fn opened(&self) -> Wall {
        self.opened
    }

    /// Until when it is wanted.
    pub fn wanted_until(&self) -> Wall {
        self.wanted_until
    }

    /// Until when the server knows its key for sure.
    pub fn window_ends(&self) -> Wall {
        self.window_ends
    }

    /// Method and path.
    pub fn target(&self) -> (&Method, &str) {
        (&self.method, &self.path)
    }

    /// The body, for whoever reconciles.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Whether it is the same call: what was saved under a key may not become another.
    pub(crate) fn same_call(&self, other: &Intent) -> bool {
        (&self.key, &self.method, &self.path, &self.body)
            == (&other.key, &other.method, &other.path, &other.body)
    }
}

impl fmt::Debug for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intent").field("key", &self.key).field("method", &self.method).finish_non_exhaustive()
    }
}

/// Where intents are kept.
pub trait Intents: fmt::Debug + Send + Sync {
    /// Writes an intent down; it is durable once this returns. Saving the same call again is fine.
    ///
    /// # Errors
    /// [`IntentFault`]; nothing may be sent then.
    fn save<'a>(&'a self, intent: &'a Intent) -> IntentFuture<'a, Result<(), IntentFault>>;

    /// The call has a result. Should this get lost, it is sent once more under its key, which is safe.
    ///
    /// # Errors
    /// [`IntentFault`].
    fn settle<'a>(&'a self, key: &'a Key) -> IntentFuture<'a, Result<(), IntentFault>>;

    /// Up to `max` intents without a result, the oldest first.
    ///
    /// # Errors
    /// [`IntentFault`].
    fn open(&self, max: usize) -> IntentFuture<'_, Result<Vec<Intent>, IntentFault>>;
}

/// Why an intent is not kept.
#[derive(Debug, thiserror::Error)]
pub enum IntentFault {
    /// Another call is written down under this key.
    #[error(
        "another call is written down under this key; an operation whose content changes needs a new key"
    )]
    Changed,
    /// The store does not answer; trying again may help.
    #[error("the intents cannot be kept: {0}")]
    Store(#[source] BoxError),
    /// What is written down cannot be read; a person has to look.
    #[error("an intent cannot be read: {0}")]
    Unreadable(String),
}

/// What is left undecided, for a [`Reconcile`] hook.
#[derive(Clone, Copy, Debug)]
pub enum Undecided<'a> {
    /// A call of this process.
    Call(&'a OutcomeUnknown),
    /// An intent that can no longer be sent.
    Intent(&'a Intent),
}

/// What became of an operation, as far as somebody found out.
#[derive(Clone, Debug)]
pub enum Reconciled {
    /// It was done; perhaps with the answer that it would have had.
    Done(Option<Response<Bytes>>),
    /// It was not done, and will not be: the one who says so has made sure that it is not still on its way (protocol 22).
    NotDone,
    /// Nobody knows yet.
    Unknown,
}

/// Finds out what became of an operation whose key can no longer tell: looks the order up, cancels the payment by its key.
pub trait Reconcile: fmt::Debug + Send + Sync {
    /// What became of it.
    fn reconcile<'a>(&'a self, undecided: Undecided<'a>) -> IntentFuture<'a, Reconciled>;
}
