//! A fleet's account in a SQLite file: for instances on one machine.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use retrysafe_core::retry::budget::{FleetRule, Lease, Report};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::{FleetFault, FleetFuture, FleetStore, books};
use crate::host::Host;

const BUSY: Duration = Duration::from_millis(500);

/// An account in a table of a SQLite file.
#[derive(Clone)]
pub struct SqliteFleet {
    connection: Arc<Mutex<Connection>>,
    name: Arc<str>,
    rule: FleetRule,
}

impl SqliteFleet {
    /// The account of this name in this file; both are made where they are not there.
    ///
    /// # Errors
    /// [`FleetFault`]: the file is no database, or cannot be opened.
    pub fn open(path: impl AsRef<Path>, name: &str, rule: FleetRule) -> Result<Self, FleetFault> {
        let connection = Connection::open(path).map_err(fault)?;
        connection.busy_timeout(BUSY).map_err(fault)?;
        let schema = "PRAGMA journal_mode = WAL; \
            CREATE TABLE IF NOT EXISTS retrysafe_fleet (name text PRIMARY KEY, books blob NOT NULL)";
        connection.execute_batch(schema).map_err(fault)?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)), name: name.into(), rule })
    }
}

impl FleetStore for SqliteFleet {
    fn rule(&self) -> FleetRule {
        self.rule
    }

    fn exchange<'a>(&'a self, instance: u64, report: &'a Report) -> FleetFuture<'a> {
        let (this, report) = (self.clone(), *report);
        Box::pin(async move {
            let work = move || {
                let mut connection = this.connection.lock().unwrap_or_else(PoisonError::into_inner);
                apply(&mut connection, &this.name, this.rule, instance, &report)
            };
            tokio::task::spawn_blocking(work).await.map_err(|error| FleetFault(error.into()))?
        })
    }
}

/// The write lock first: two instances never apply their reports to the same books.
fn apply(
    connection: &mut Connection,
    name: &str,
    rule: FleetRule,
    instance: u64,
    report: &Report,
) -> Result<Lease, FleetFault> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fault)?;
    let select = "SELECT books FROM retrysafe_fleet WHERE name = ?1";
    let written: Option<Vec<u8>> =
        transaction.query_row(select, params![name], |row| row.get(0)).optional().map_err(fault)?;
    let now = Host::default().wall();
    let (lease, books) = books::exchange(rule, written.as_deref(), instance, report, now)?;
    let upsert = "INSERT INTO retrysafe_fleet (name, books) VALUES (?1, ?2) \
        ON CONFLICT (name) DO UPDATE SET books = excluded.books";
    transaction.execute(upsert, params![name, books]).map_err(fault)?;
    transaction.commit().map_err(fault)?;
    Ok(lease)
}

fn fault(error: rusqlite::Error) -> FleetFault {
    FleetFault(error.into())
}

impl std::fmt::Debug for SqliteFleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteFleet").field("name", &self.name).finish_non_exhaustive()
    }
}
