//! The tables, and how they came to be.
//!
//! Migrations are plain SQL, numbered, and applied in order by one process at a time. MariaDB commits every statement of a
//! migration by itself, so each can be run again after an attempt that broke off half way.

use std::sync::Arc;

use super::OpenError;
use crate::sql::{Connection, Driver, Failure, Statement, Value};

/// A step from one layout of the tables to the next.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Its number; the layout has the number of the last that was applied.
    pub number: i64,
    /// What it is called.
    pub name: &'static str,
    /// Its text.
    pub sql: &'static str,
}

/// All of them, in their order.
pub const MIGRATIONS: &[Migration] = &[
    Migration { number: 1, name: "tables", sql: include_str!("../../migrations/mariadb/0001_tables.sql") },
    Migration { number: 2, name: "journal", sql: include_str!("../../migrations/mariadb/0002_journal.sql") },
    Migration { number: 3, name: "days", sql: include_str!("../../migrations/mariadb/0003_days.sql") },
    Migration { number: 4, name: "traces", sql: include_str!("../../migrations/mariadb/0004_traces.sql") },
];

/// The layout this build reads and writes.
pub const LAYOUT: i64 = 4;

/// How long another process may take to migrate.
const MIGRATION_PATIENCE_SECONDS: u32 = 30;

const LEDGER: &str = "CREATE TABLE IF NOT EXISTS retrysafe_migration (
    number     BIGINT NOT NULL PRIMARY KEY,
    name       VARCHAR(64) NOT NULL,
    applied_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE = InnoDB;";

fn record(migration: &Migration) -> String {
    format!(
        "INSERT INTO retrysafe_migration (number, name) VALUES ({}, '{}');\n",
        migration.number, migration.name
    )
}

/// Everything that [`migrate`] would run on an empty database, as one text for `mysql`.
#[must_use]
pub fn script() -> String {
    let mut script = format!("{LEDGER}\n");
    for migration in MIGRATIONS {
        script.push_str(&format!("\n-- {} {}\n\n", migration.number, migration.name));
        script.push_str(migration.sql);
        script.push_str(&record(migration));
    }
    script
}

/// Brings the tables to [`LAYOUT`]. Returns what was applied.
///
/// # Errors
/// [`OpenError`] says what is in the way.
pub(super) async fn migrate<D: Driver>(driver: &D) -> Result<Vec<Migration>, OpenError> {
    let mut connection = driver.acquire().await?;
    let migrated = apply(&mut connection).await;
    // With it goes the lock, whatever happened.
    connection.discard();
    migrated
}

async fn apply<C: Connection>(connection: &mut C) -> Result<Vec<Migration>, OpenError> {
    // A lock of the whole server: its name holds that of the database.
    let lock = format!(
        "SELECT CAST(GET_LOCK(CONCAT('retrysafe/', DATABASE()), {MIGRATION_PATIENCE_SECONDS}) AS SIGNED)"
    );
    if number(connection, &lock).await? != Some(1) {
        return Err(OpenError::Migrating);
    }
    let found = layout(connection).await?;
    if found > LAYOUT {
        return Err(OpenError::Layout { database: database(connection).await?, found, known: LAYOUT });
    }
    connection.script(LEDGER).await?;
    let missing: Vec<Migration> =
        MIGRATIONS.iter().copied().filter(|migration| migration.number > found).collect();
    for migration in &missing {
        connection.script(migration.sql).await?;
        connection.script(&record(migration)).await?;
    }
    Ok(missing)
}

/// The number of the last migration that was applied; 0: none.
pub(super) async fn layout<C: Connection>(connection: &mut C) -> Result<i64, Failure> {
    let there = "SELECT COUNT(*) FROM information_schema.tables \
        WHERE table_schema = DATABASE() AND table_name = 'retrysafe_migration'";
    if number(connection, there).await? != Some(1) {
        return Ok(0);
    }
    let last = "SELECT COALESCE(MAX(number), 0) FROM retrysafe_migration";
    Ok(number(connection, last).await?.unwrap_or(0))
}

/// What a store has to know of its server.
pub(super) struct Server {
    pub(super) packet_max: usize,
    pub(super) flushes_every_commit: bool,
}

/// Looks whether the server and the tables are what this build needs.
pub(super) async fn look<D: Driver>(driver: &D) -> Result<Server, OpenError> {
    let mut connection = driver.acquire().await?;
    let looked = look_on(&mut connection).await;
    if looked.is_err() {
        connection.abandon();
    }
    looked
}

async fn look_on<C: Connection>(connection: &mut C) -> Result<Server, OpenError> {
    let version = version(connection).await?;
    if !is_supported(&version) {
        return Err(OpenError::NotMariaDb { version });
    }
    let found = layout(connection).await?;
    if found != LAYOUT {
        let database = database(connection).await?;
        return Err(match found {
            0 => OpenError::NoTables { database },
            _ => OpenError::Layout { database, found, known: LAYOUT },
        });
    }
    let packet = number(connection, "SELECT CAST(@@max_allowed_packet AS SIGNED)").await?.unwrap_or(0);
    let flush = number(connection, "SELECT CAST(@@innodb_flush_log_at_trx_commit AS SIGNED)").await?;
    Ok(Server {
        packet_max: usize::try_from(packet).unwrap_or(0),
        // 3 flushes twice.
        flushes_every_commit: matches!(flush, Some(1 | 3)),
    })
}

/// What the server says it is.
pub(super) async fn version<C: Connection>(connection: &mut C) -> Result<String, Failure> {
    text(connection, "SELECT VERSION()").await
}

/// The name of the database.
pub(super) async fn database<C: Connection>(connection: &mut C) -> Result<String, Failure> {
    text(connection, "SELECT DATABASE()").await
}

/// Refuses everything but MariaDB from 10.6 on, the first that prepares compound statements.
pub(super) fn is_supported(version: &str) -> bool {
    let mut parts =
        version.trim_start_matches("5.5.5-").split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let (major, minor) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    version.contains("MariaDB") && (major, minor) >= (10, 6)
}

/// The only number of a query.
pub(super) async fn number<C: Connection>(connection: &mut C, query: &str) -> Result<Option<i64>, Failure> {
    let query: Arc<str> = query.into();
    let rows = connection.run(&[Statement::plain(&query)]).await.all()?;
    Ok(rows.first().and_then(|rows| rows.only(0)).and_then(Value::int))
}

/// The only text of a query.
pub(super) async fn text<C: Connection>(connection: &mut C, query: &str) -> Result<String, Failure> {
    let query: Arc<str> = query.into();
    let rows = connection.run(&[Statement::plain(&query)]).await.all()?;
    let bytes = rows.first().and_then(|rows| rows.only(0)).and_then(Value::as_bytes);
    Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_without_gaps_and_end_at_the_layout() {
        let numbers: Vec<i64> = MIGRATIONS.iter().map(|migration| migration.number).collect();
        assert_eq!(numbers, (1..=LAYOUT).collect::<Vec<_>>());
    }

    #[test]
    fn every_statement_of_a_migration_can_be_run_again() {
        for migration in MIGRATIONS {
            for statement in migration.sql.split(";\n").filter(|statement| statement.contains("CREATE ")) {
                let again = statement.contains(" IF NOT EXISTS ") || statement.contains("CREATE OR REPLACE ");
                assert!(again, "{statement}");
            }
        }
    }

    #[test]
    fn only_mariadb_is_supported() {
        for version in ["10.11.19-MariaDB-0+deb12u1", "5.5.5-10.6.4-MariaDB-log", "11.4.2-MariaDB"] {
            assert!(is_supported(version), "{version}");
        }
        for version in ["8.4.0", "9.1.0-commercial", "10.5.9-MariaDB", ""] {
            assert!(!is_supported(version), "{version}");
        }
    }
}
