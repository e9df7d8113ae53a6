//! `retrysafe doctor` for PostgreSQL: what a look at the server tells before anybody's money depends on it.

use std::sync::Arc;

use retrysafe_core::clock::Limits;

use super::{
    LAYOUT, Schema,
    schema::layout,
    settings::{Permissions, Settings},
};
use crate::{
    doctor::{Finding, Findings},
    sql::{Connection, Driver, Failure, Statement, Value},
};

/// The oldest version the statements were written for.
const OLDEST: i64 = 13;

/// Looks at the database as the store would meet it, without changing anything.
///
/// `named`: the driver keeps prepared statements, which a pooler in transaction mode may not carry.
///
/// # Errors
/// The database cannot be reached, or does not answer.
pub async fn doctor<D: Driver>(driver: &D, schema: &Schema, named: bool) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::default();
    let mut connection = driver.acquire().await?;
    let settings = Settings::read(&mut connection).await?;
    server(&settings, &mut findings);
    durability(&settings, &mut findings);
    sessions(&settings, &mut findings);
    if shares_sessions(driver, &mut connection).await? {
        if named {
            findings.error(
                "pooler_transaction_mode",
                "two connections were given one server session: a pooler in transaction mode is in between, and \
                 prepared statements may be missing on the session that is to run them",
                "add ?statements=unnamed to the address of the store",
            );
        } else {
            findings.note(
                "pooler_transaction_mode",
                "a pooler in transaction mode is in between; statements are sent without names, which it carries",
                "nothing to do",
            );
        }
    }
    match layout(&mut connection, schema).await? {
        0 => findings.error(
            "no_tables",
            format!("schema \"{schema}\" has no tables of a store, or this role may not see them"),
            "run `retrysafe migrate`, or grant USAGE on the schema",
        ),
        LAYOUT => tables(&mut connection, schema, &mut findings).await?,
        found if found < LAYOUT => findings.error(
            "earlier_layout",
            format!("the tables have layout {found}, and this build needs {LAYOUT}"),
            "run `retrysafe migrate`",
        ),
        found => findings.error(
            "later_layout",
            format!("the tables have layout {found}, and this build knows {LAYOUT}"),
            "use the version of retrysafe that made them, or a later one",
        ),
    }
    Ok(findings.done())
}

fn server(settings: &Settings, findings: &mut Findings) {
    if settings.version / 10_000 < OLDEST {
        findings.error(
            "old_server",
            format!("the server is version {}", settings.version / 10_000),
            format!("use PostgreSQL {OLDEST} or later"),
        );
    }
    if settings.in_recovery {
        findings.error(
            "replica",
            "this server is a replica: nothing can be claimed here, and a read that decides must not come from one",
            "name the primary, or add target_session_attrs=read-write to the address",
        );
    }
    if settings.read_only == "on" {
        findings.error(
            "read_only",
            "default_transaction_read_only is on for this role or database",
            "ALTER ROLE ... RESET default_transaction_read_only",
        );
    }
    if settings.isolation != "read committed" {
        findings.warning(
            "isolation",
            format!(
                "default_transaction_isolation is {}: a claim that loses a race is a serialization failure, which the \
                 store tries again",
                settings.isolation
            ),
            "leave the default of the store's role at read committed; handlers choose theirs by `claim` in the contract",
        );
    }
    // Without pg_catalog in it, it is searched first.
    let named = settings.search_path.split(',').map(|one| one.trim().trim_matches('"'));
    if named.clone().any(|one| one == "pg_catalog") && named.clone().next() != Some("pg_catalog") {
        findings.error(
            "search_path",
            format!(
                "search_path is {}: other schemas come before pg_catalog and may replace its functions",
                settings.search_path
            ),
            "ALTER ROLE ... SET search_path without pg_catalog, which is then searched first",
        );
    }
    if settings.bytea_output != "hex" {
        findings.warning(
            "bytea_output",
            format!(
                "bytea_output is {}, which the simple protocol cannot be read with",
                settings.bytea_output
            ),
            "ALTER ROLE ... SET bytea_output = hex, or do not use ?statements=simple",
        );
    }
}

fn durability(settings: &Settings, findings: &mut Findings) {
    if settings.synchronous_commit == "off" {
        findings.error(
            "synchronous_commit_off",
            "synchronous_commit is off: a crash of the server forgets claims and answers that were acknowledged",
            "ALTER ROLE ... SET synchronous_commit = on for the store's role",
        );
    }
    for (name, value) in [("fsync", &settings.fsync), ("full_page_writes", &settings.full_page_writes)] {
        if value == "off" {
            findings.error(
                "not_crash_safe",
                format!("{name} is off: a power cut can forget acknowledged claims, or damage the database"),
                format!("set {name} = on in postgresql.conf and reload"),
            );
        }
    }
    if settings.synchronous_standbys.is_empty() {
        findings.note(
            "failover_forgets",
            "no replica is synchronous: a failover loses the claims and answers of its last moments, and their retries \
             run again",
            "set synchronous_standby_names, or run `retrysafe store restored` after each failover and look at the \
             effect ledger",
        );
    }
}

fn sessions(settings: &Settings, findings: &mut Findings) {
    if settings.connection_check.as_deref().is_none_or(|interval| interval == "0") {
        findings.warning(
            "client_connection_check_interval",
            "client_connection_check_interval is 0: a session whose client has died holds its locks until its statement \
             ends, and its key stays in flight for as long",
            "ALTER SYSTEM SET client_connection_check_interval = '1s' and reload (PostgreSQL 14 and later)",
        );
    }
}

async fn tables<C: Connection>(
    connection: &mut C,
    schema: &Schema,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let permissions = Permissions::read(connection, schema).await?;
    if !permissions.missing.is_empty() {
        findings.error(
            "permissions",
            format!("the role may not {} in schema \"{schema}\"", permissions.missing.join(", nor ")),
            format!(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \"{schema}\" TO the role, and \
                 USAGE, SELECT ON ALL SEQUENCES IN SCHEMA \"{schema}\""
            ),
        );
        return Ok(());
    }
    if !permissions.owns_response {
        findings.note(
            "no_partitions",
            "the role does not own the table of long answers, so it makes no table for each day: long answers are reaped \
             row by row",
            "run `retrysafe migrate` once a day as the owner, or let the store's role own the tables",
        );
    }
    let text: Arc<str> = format!(
        "SELECT ((extract(epoch FROM clock_timestamp()) * 1000)::bigint - clock_ms) / 1000 FROM \"{schema}\".meta"
    )
    .into();
    let rows = connection.run(&[Statement::plain(&text)]).await.all()?;
    if let Some(ahead) = rows.first().and_then(|rows| rows.only(0)).and_then(Value::int) {
        let bound = i64::try_from(Limits::default().max_jump.as_secs()).unwrap_or(i64::MAX);
        if ahead > bound {
            findings.error(
                "clock_jumped",
                format!("the database's clock is {ahead} s after the latest time that was told: the store is closed"),
                "look at the clock of the database's machine; if it is right, run `retrysafe store accept-clock`",
            );
        } else if ahead < 0 {
            findings.warning(
                "clock_behind",
                format!(
                    "the database's clock is {} s behind a time that was told: time stands still until then, and no \
                     lease or window ends",
                    -ahead
                ),
                "look at the clock of the database's machine; it was set back",
            );
        }
    }
    Ok(())
}

/// Whether two connections at the same time have one server session: only a pooler does that.
async fn shares_sessions<D: Driver>(driver: &D, first: &mut D::Connection) -> Result<bool, Failure> {
    let pid: Arc<str> = "SELECT pg_backend_pid()::bigint".into();
    let (begin, commit): (Arc<str>, Arc<str>) = ("BEGIN".into(), "COMMIT".into());
    let one = Statement::plain(&pid);
    let first_pid = first.run(std::slice::from_ref(&one)).await.all()?;
    let mut second = driver.acquire().await?;
    // In a transaction, so that the session is its own for as long as it asks.
    let inside = [Statement::plain(&begin), one, Statement::plain(&commit)];
    let second_pid = second.run(&inside).await.all()?;
    let number = |rows: Option<&crate::sql::Rows>| rows.and_then(|rows| rows.only(0)).and_then(Value::int);
    Ok(number(first_pid.first()) == number(second_pid.get(1)))
}
