//! The tables, and how they came to be.
//!
//! Migrations are plain SQL, numbered, and applied in order under an advisory lock, all in one transaction: two processes
//! that migrate at once apply each of them once, and one that dies half way has applied none.

use std::sync::Arc;

use super::{MigrateError, Schema};
use crate::sql::{Connection, Driver, Failure, Statement};

/// A step from one layout of the tables to the next.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// Its number; the layout has the number of the last that was applied.
    pub number: i64,
    /// What it is called.
    pub name: &'static str,
    sql: &'static str,
}

/// All of them, in their order.
pub const MIGRATIONS: &[Migration] = &[
    Migration { number: 1, name: "tables", sql: include_str!("../../migrations/postgres/0001_tables.sql") },
    Migration { number: 2, name: "journal", sql: include_str!("../../migrations/postgres/0002_journal.sql") },
    Migration { number: 3, name: "acts", sql: include_str!("../../migrations/postgres/0003_acts.sql") },
    Migration { number: 4, name: "days", sql: include_str!("../../migrations/postgres/0004_days.sql") },
    Migration { number: 5, name: "traces", sql: include_str!("../../migrations/postgres/0005_traces.sql") },
];

/// The layout this build reads and writes.
pub const LAYOUT: i64 = 5;

/// Serializes migrations of all schemas of a database: "rsmigrat" as a number.
const MIGRATION_LOCK: i64 = 0x7273_6d69_6772_6174;

/// The name that is written in the migration files.
const WRITTEN_NAME: &str = "\"retrysafe\".";

impl Migration {
    /// Its text for a schema.
    #[must_use]
    pub fn sql(&self, schema: &Schema) -> String {
        self.sql.replace(WRITTEN_NAME, &format!("\"{schema}\"."))
    }
}

/// The table that says what was applied.
fn ledger(schema: &Schema) -> String {
    format!(
        "CREATE SCHEMA IF NOT EXISTS \"{schema}\";\n\
         CREATE TABLE IF NOT EXISTS \"{schema}\".migration (\n    \
             number     bigint PRIMARY KEY,\n    \
             name       text NOT NULL,\n    \
             applied_at timestamptz NOT NULL DEFAULT clock_timestamp()\n\
         );\n"
    )
}

fn record(migration: &Migration, schema: &Schema) -> String {
    format!(
        "INSERT INTO \"{schema}\".migration (number, name) VALUES ({}, '{}');\n",
        migration.number, migration.name
    )
}

/// Everything that `migrate` would run on an empty database, as one text for `psql`.
#[must_use]
pub fn script(schema: &Schema) -> String {
    let mut script = format!("BEGIN;\nSELECT pg_advisory_xact_lock({MIGRATION_LOCK});\n{}", ledger(schema));
    for migration in MIGRATIONS {
        script.push_str(&format!("\n-- {} {}\n\n", migration.number, migration.name));
        script.push_str(&migration.sql(schema));
        script.push_str(&record(migration, schema));
    }
    script.push_str("COMMIT;\n");
    script
}

/// Brings the tables to [`LAYOUT`], making the schema if it is not there. Returns what was applied.
///
/// # Errors
/// [`MigrateError`] says what is in the way. Nothing was changed then.
pub async fn migrate<D: Driver>(driver: &D, schema: &Schema) -> Result<Vec<Migration>, MigrateError> {
    let mut connection = driver.acquire().await?;
    match apply(&mut connection, schema).await {
        Ok(applied) => Ok(applied),
        Err(error) => {
            connection.abandon();
            Err(error)
        }
    }
}

async fn apply<C: Connection>(connection: &mut C, schema: &Schema) -> Result<Vec<Migration>, MigrateError> {
    let begin: Arc<str> = "BEGIN".into();
    // It returns void, which is no value of ours.
    let lock: Arc<str> =
        format!("SELECT length(pg_advisory_xact_lock({MIGRATION_LOCK})::text)::bigint").into();
    connection.run(&[Statement::plain(&begin), Statement::plain(&lock)]).await.all()?;
    let found = layout(connection, schema).await?;
    if found > LAYOUT {
        return Err(MigrateError::Later { found, known: LAYOUT });
    }
    if found == 0 {
        connection.script(&ledger(schema)).await?;
    }
    let missing: Vec<Migration> =
        MIGRATIONS.iter().copied().filter(|migration| migration.number > found).collect();
    for migration in &missing {
        connection.script(&migration.sql(schema)).await?;
        connection.script(&record(migration, schema)).await?;
    }
    let commit: Arc<str> = "COMMIT".into();
    connection.run(&[Statement::plain(&commit)]).await.all()?;
    Ok(missing)
}

/// The number of the last migration that was applied; 0: none.
pub(super) async fn layout<C: Connection>(connection: &mut C, schema: &Schema) -> Result<i64, Failure> {
    let there: Arc<str> =
        format!("SELECT (to_regclass('\"{schema}\".migration') IS NOT NULL)::int::bigint").into();
    let rows = connection.run(&[Statement::plain(&there)]).await.all()?;
    if rows.first().and_then(|rows| rows.only(0)).and_then(crate::sql::Value::int) != Some(1) {
        return Ok(0);
    }
    let last: Arc<str> =
        format!("SELECT coalesce(max(number), 0)::bigint FROM \"{schema}\".migration").into();
    let rows = connection.run(&[Statement::plain(&last)]).await.all()?;
    Ok(rows.first().and_then(|rows| rows.only(0)).and_then(crate::sql::Value::int).unwrap_or(0))
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
    fn every_name_in_a_migration_is_of_the_schema() {
        let schema = Schema::new("other").unwrap();
        let script = script(&schema);
        assert!(!script.contains("\"retrysafe\""), "a name was left");
        for word in ["CREATE TABLE ", "CREATE VIEW ", "CREATE SEQUENCE ", "INSERT INTO ", " ON "] {
            for (at, _) in script.match_indices(word) {
                let rest = &script[at + word.len()..];
                let named = rest.starts_with("\"other\".") || rest.starts_with("IF NOT EXISTS \"other\".");
                assert!(named || word == " ON " && !rest.starts_with('"'), "{}", &rest[..40.min(rest.len())]);
            }
        }
    }
}
