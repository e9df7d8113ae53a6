//! How a store in MariaDB behaves.

use std::{fmt, path::PathBuf, time::Duration};

use mysql_async::{Opts, OptsBuilder};
use retrysafe_core::clock::Limits;

use super::{OpenError, calls::CONFLICTS_MAX, driver::PoolSize};

/// How a handler's transaction is isolated (SPEC 4.2). The claim itself is made in READ COMMITTED under each of them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Isolation {
    /// The primary key arbitrates; the handler sees what is committed as it goes on.
    #[default]
    ReadCommitted,
    /// MariaDB's own default: what the handler reads first, it reads to the end.
    RepeatableRead,
    /// In addition every read locks what it reads: conflicts end the transaction as
    /// [`Undone::Conflict`](crate::transactional::Undone::Conflict).
    Serializable,
}

impl Isolation {
    fn sql(self) -> &'static str {
        match self {
            Isolation::ReadCommitted => "READ-COMMITTED",
            Isolation::RepeatableRead => "REPEATABLE-READ",
            Isolation::Serializable => "SERIALIZABLE",
        }
    }
}

/// Where the tables are and how long anything may take. MariaDB counts patience with locks and idle transactions in whole
/// seconds: each is rounded up to one at least.
#[derive(Clone)]
pub struct MariaOptions {
    pub(super) opts: Opts,
    /// Connections for the store's own statements.
    pub pool: PoolSize,
    /// Connections that handlers hold for the length of their transactions. Apart from the others, so that handlers that
    /// hold all of theirs never keep the claim of anybody waiting.
    pub handlers: PoolSize,
    /// How long a call of the store may wait for a lock, and run.
    pub call_timeout: Duration,
    /// How long a handler's statement may wait for a lock. Not above the shortest lease: a successor must not stand
    /// behind the one it took over from (protocol 15).
    pub lock_timeout: Duration,
    /// How long one statement of a handler may take. Not above the shortest lease.
    pub statement_timeout: Duration,
    /// How long a handler may keep its transaction open between two statements before the server ends it. Not above the
    /// shortest lease.
    pub idle_timeout: Duration,
    /// How a handler's transaction is isolated.
    pub isolation: Isolation,
    /// How far the database's clock may jump.
    pub clock_limits: Limits,
    /// Partitions for long answers are made for the days up to this many ahead.
    pub days_ahead: u16,
}

impl MariaOptions {
    /// The store in the database of `url`: `mysql://user:password@host:3306/database`. With `?require_ssl=true` connections are
    /// encrypted and the server's certificate is checked, its name included, against the authorities that browsers trust; with
    /// `?ssl_ca=FILE` against those in the file, in PEM, and no others.
    ///
    /// # Errors
    /// [`OpenError::Url`] where the text is no such URL, [`OpenError::NoDatabase`] where it names no database.
    pub fn new(url: &str) -> Result<Self, OpenError> {
        // The scheme is MySQL's in every client library; people write the other one as well.
        let url = url.strip_prefix("mariadb://").map(|rest| format!("mysql://{rest}")).unwrap_or(url.into());
        let (url, authorities) = without_authorities(&url);
        let mut opts = Opts::from_url(&url).map_err(|error| OpenError::Url(error.to_string()))?;
        if let Some(file) = authorities {
            let ssl = opts.ssl_opts().cloned().unwrap_or_default();
            let ssl = ssl.with_root_certs(vec![file.into()]).with_disable_built_in_roots(true);
            opts = OptsBuilder::from_opts(opts).ssl_opts(Some(ssl)).into();
        }
        if opts.db_name().is_none_or(str::is_empty) {
            return Err(OpenError::NoDatabase);
        }
        Ok(Self {
            opts,
            pool: PoolSize::default(),
            handlers: PoolSize::default(),
            call_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(10),
            isolation: Isolation::default(),
            clock_limits: Limits::default(),
            days_ahead: 8,
        })
    }

    /// Whether a text is meant to be the URL of such a store.
    #[must_use]
    pub fn looks_like(text: &str) -> bool {
        ["mysql://", "mariadb://"].iter().any(|scheme| text.starts_with(scheme))
    }

    /// What is said on a connection of the store's own before its first statement.
    ///
    /// READ COMMITTED: after a lost insert, the default would go on showing the state before it, in which there is no row
    /// (measured). Strict: text that does not fit is refused, and never cut into another key.
    pub(super) fn own_setup(&self) -> String {
        format!(
            "SET SESSION autocommit = 1, tx_isolation = 'READ-COMMITTED', sql_mode = 'STRICT_ALL_TABLES', \
             innodb_lock_wait_timeout = {}, lock_wait_timeout = {}, max_statement_time = {}",
            // A lock that does not come free is asked for again, a few times within the length of a call.
            seconds(self.call_timeout / CONFLICTS_MAX),
            seconds(self.call_timeout),
            self.call_timeout.as_secs_f64().max(0.001),
        )
    }

    /// The same on a connection that handlers use. `autocommit = 0`: when the server has rolled a transaction back
    /// (after a deadlock) and a handler goes on, what follows must not be committed one by one.
    pub(super) fn handler_setup(&self) -> String {
        format!(
            "SET SESSION autocommit = 0, tx_isolation = '{}', innodb_lock_wait_timeout = {}, \
             lock_wait_timeout = {}, max_statement_time = {}, idle_transaction_timeout = {}",
            self.isolation.sql(),
            seconds(self.lock_timeout),
            seconds(self.lock_timeout),
            self.statement_timeout.as_secs_f64().max(0.001),
            seconds(self.idle_timeout),
        )
    }
}

/// Takes `ssl_ca`, which the driver knows only as an option, out of a URL.
fn without_authorities(url: &str) -> (String, Option<PathBuf>) {
    let Some((place, parameters)) = url.split_once('?') else { return (url.to_owned(), None) };
    let mut authorities = None;
    let mut theirs = Vec::new();
    for parameter in parameters.split('&') {
        match parameter.split_once('=') {
            Some(("ssl_ca", file)) => authorities = Some(PathBuf::from(file)),
            _ => theirs.push(parameter),
        }
    }
    let url = if theirs.is_empty() { place.to_owned() } else { format!("{place}?{}", theirs.join("&")) };
    (url, authorities)
}

/// Zero would mean "forever" to some of them and "not at all" to others.
fn seconds(time: Duration) -> u64 {
    time.as_millis().div_ceil(1000).max(1).try_into().unwrap_or(u64::MAX)
}

/// Where it is, for people: without user and password.
impl fmt::Display for MariaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = (self.opts.ip_or_hostname(), self.opts.tcp_port());
        write!(f, "mysql://{host}:{port}/{}", self.opts.db_name().unwrap_or_default())
    }
}

/// Without the password: only where it is.
impl fmt::Debug for MariaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MariaOptions")
            .field("host", &self.opts.ip_or_hostname())
            .field("port", &self.opts.tcp_port())
            .field("database", &self.opts.db_name())
            .field("isolation", &self.isolation)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_password() {
        let options = MariaOptions::new("mariadb://shop:hunter2@db.internal:3307/orders").unwrap();
        let shown = format!("{options:?}");
        assert!(
            shown.contains("db.internal") && shown.contains("3307") && shown.contains("orders"),
            "{shown}"
        );
        assert!(!shown.contains("hunter2") && !options.to_string().contains("hunter2"), "{shown}");
    }

    #[test]
    fn a_url_without_a_database_is_refused() {
        assert!(matches!(MariaOptions::new("mysql://root@localhost"), Err(OpenError::NoDatabase)));
        assert!(matches!(MariaOptions::new("postgres://root@localhost/x"), Err(OpenError::Url(_))));
    }

    #[test]
    fn no_patience_is_rounded_down_to_none() {
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::from_millis(1_001)), 2);
        assert_eq!(seconds(Duration::ZERO), 1);
    }
}
