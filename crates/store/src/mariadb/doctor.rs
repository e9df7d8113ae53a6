//! `retrysafe doctor` for MariaDB: what a look at the server tells before anybody's money depends on it.

use std::sync::Arc;

use retrysafe_core::clock::Limits;

use super::{
    LAYOUT,
    schema::{is_supported, layout, number, version},
};
use crate::{
    doctor::{Finding, Findings},
    sql::{Connection, Driver, Failure, FailureKind, Statement, Value},
};

/// Below this, answers of ordinary size may not fit into a packet.
const PACKET_LOW: i64 = 4 * 1024 * 1024;

/// Looks at the database as the store would meet it, without changing anything. `business`: tables that handlers write.
pub(super) async fn doctor<D: Driver>(driver: &D, business: &[String]) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::default();
    let mut connection = driver.acquire().await?;
    let found = version(&mut connection).await?;
    if !is_supported(&found) {
        findings.error(
            "old_server",
            format!("the server is {found}"),
            "use MariaDB 10.6 or later; MySQL has neither sequences nor compound statements outside of procedures",
        );
        return Ok(findings.done());
    }
    durability(&mut connection, &mut findings).await?;
    server(&mut connection, &mut findings).await?;
    match layout(&mut connection).await? {
        0 => findings.error(
            "no_tables",
            "the database has no tables of a store, or this user may not see them",
            "run `retrysafe migrate`, or grant SELECT on them",
        ),
        LAYOUT => tables(&mut connection, &mut findings).await?,
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
    for table in business {
        business_table(&mut connection, table, &mut findings).await?;
    }
    Ok(findings.done())
}

async fn durability<C: Connection>(connection: &mut C, findings: &mut Findings) -> Result<(), Failure> {
    let flush = variable(connection, "innodb_flush_log_at_trx_commit").await?;
    if !matches!(flush.as_str(), "1" | "3") {
        findings.error(
            "flush_log",
            format!(
                "innodb_flush_log_at_trx_commit is {flush}: a power cut forgets claims and answers of the last second \
                 that were acknowledged"
            ),
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration",
        );
    }
    if matches!(variable(connection, "innodb_doublewrite").await?.as_str(), "0" | "OFF") {
        findings.error(
            "not_crash_safe",
            "innodb_doublewrite is off: a power cut can damage the database",
            "set innodb_doublewrite = ON in the server's configuration and start it anew",
        );
    }
    if variable(connection, "log_bin").await? == "1" {
        if variable(connection, "sync_binlog").await? != "1" {
            findings.warning(
                "sync_binlog",
                "sync_binlog is not 1: after a power cut a replica may know less, or more, than this server",
                "SET GLOBAL sync_binlog = 1, and in the server's configuration",
            );
        }
        if variable(connection, "binlog_format").await? == "STATEMENT" {
            findings.error(
                "binlog_format",
                "binlog_format is STATEMENT, under which no write in READ COMMITTED is allowed",
                "SET GLOBAL binlog_format = MIXED (or ROW), and in the server's configuration",
            );
        }
    }
    findings.note(
        "failover_forgets",
        "replicas of MariaDB are asynchronous unless semi-synchronous replication is set up: a failover loses the claims \
         and answers of its last moments, and their retries run again",
        "run `retrysafe store restored` after each failover, and look at the effect ledger",
    );
    Ok(())
}

async fn server<C: Connection>(connection: &mut C, findings: &mut Findings) -> Result<(), Failure> {
    if variable(connection, "read_only").await? != "0" {
        findings.error(
            "read_only",
            "the server is read_only, as a replica is: nothing can be claimed here, and a read that decides must not \
             come from one",
            "name the primary",
        );
    }
    if matches!(variable(connection, "innodb_rollback_on_timeout").await?.as_str(), "1" | "ON") {
        findings.warning(
            "rollback_on_timeout",
            "innodb_rollback_on_timeout is on: a lock that does not come free ends a handler's whole transaction, which \
             is found out at its end",
            "switch it off, unless handlers end at such an error anyway",
        );
    }
    let packet = number(connection, "SELECT CAST(@@max_allowed_packet AS SIGNED)").await?.unwrap_or(0);
    if packet < PACKET_LOW {
        findings.warning(
            "max_allowed_packet",
            format!("max_allowed_packet is {packet} bytes: longer answers cannot be stored"),
            "SET GLOBAL max_allowed_packet = 16777216, or bound the bodies in the contract",
        );
    }
    let isolation = variable(connection, "tx_isolation").await?;
    if isolation != "READ-COMMITTED" {
        findings.note(
            "isolation",
            format!(
                "sessions begin with {isolation}; the store sets READ COMMITTED on its own, and handlers' as it is told"
            ),
            "nothing to do",
        );
    }
    Ok(())
}

async fn tables<C: Connection>(connection: &mut C, findings: &mut Findings) -> Result<(), Failure> {
    let engines = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() \
        AND table_name IN ('retrysafe_key', 'retrysafe_response', 'retrysafe_meta', 'retrysafe_effect', \
        'retrysafe_journal', 'retrysafe_staged', 'retrysafe_act', 'retrysafe_day', 'retrysafe_replays') AND engine = 'InnoDB'";
    if number(connection, engines).await? != Some(9) {
        findings.error(
            "engine",
            "a table of the store is missing, or knows no transactions",
            "ALTER TABLE ... ENGINE = InnoDB, or restore the table",
        );
        return Ok(());
    }
    let binary = "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() \
        AND table_name = 'retrysafe_key' AND column_name IN ('namespace', 'account', 'key') \
        AND data_type = 'varbinary'";
    if number(connection, binary).await? != Some(3) {
        findings.error(
            "collation",
            "a column of an address is no varbinary: a collation may take two keys for one, and answer one caller with \
             another's result",
            "put the columns back as the migration made them; `retrysafe migrate --print` shows it",
        );
    }
    let missing = missing_permissions(connection).await?;
    if !missing.is_empty() {
        findings.error(
            "permissions",
            format!("this user may not {}", missing.join(", nor ")),
            "GRANT SELECT, INSERT, UPDATE, DELETE ON the tables retrysafe_* to it",
        );
        return Ok(());
    }
    clock(connection, findings).await
}

async fn clock<C: Connection>(connection: &mut C, findings: &mut Findings) -> Result<(), Failure> {
    let ahead =
        "SELECT TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP()) - clock_ms DIV 1000 FROM retrysafe_meta";
    let Some(ahead) = number(connection, ahead).await? else { return Ok(()) };
    let bound = i64::try_from(Limits::default().max_jump.as_secs()).unwrap_or(i64::MAX);
    if ahead > bound {
        findings.error(
            "clock_jumped",
            format!(
                "the database's clock is {ahead} s after the latest time that was told: the store is closed"
            ),
            "look at the clock of the database's machine; if it is right, run `retrysafe store accept-clock`",
        );
    } else if ahead < -1 {
        findings.warning(
            "clock_behind",
            format!(
                "the database's clock is {} s behind a time that was told: time stands still until then, and no lease or \
                 window ends",
                -ahead
            ),
            "look at the clock of the database's machine; it was set back",
        );
    }
    Ok(())
}

/// Handlers write what a rollback has to take back.
async fn business_table<C: Connection>(
    connection: &mut C,
    table: &str,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let text: Arc<str> = "SELECT CAST(COALESCE(engine, 'a view') AS BINARY) FROM information_schema.tables \
        WHERE table_schema = DATABASE() AND table_name = CONVERT(? USING utf8mb4)"
        .into();
    let statement = Statement::new(&text, vec![Value::bytes(table.as_bytes())]);
    let rows = connection.run(&[statement]).await.all()?;
    let engine = rows.first().and_then(|rows| rows.only(0)).and_then(Value::as_bytes);
    match engine.map(|engine| String::from_utf8_lossy(engine).into_owned()).as_deref() {
        Some("InnoDB") => {}
        None => findings.warning(
            "no_such_table",
            format!("there is no table {table} in this database"),
            "name the tables that handlers write",
        ),
        Some(engine) => findings.error(
            "no_transactions",
            format!(
                "the table {table} is of engine {engine}: what a handler writes there stays when its transaction is \
                 rolled back, and is written again by the retry"
            ),
            format!("ALTER TABLE {table} ENGINE = InnoDB"),
        ),
    }
    Ok(())
}

/// What the store does to its tables. The server checks the right to a statement when it is asked to explain it.
const NEEDED: [(&str, &str); 10] = [
    ("read retrysafe_key", "EXPLAIN SELECT data FROM retrysafe_key"),
    (
        "insert into retrysafe_key",
        "EXPLAIN INSERT INTO retrysafe_key (namespace, account, `key`, attempt, status, fence, state, data) \
         VALUES ('', '', '', '', '', 0, 0, '')",
    ),
    ("update retrysafe_key", "EXPLAIN UPDATE retrysafe_key SET state = 0 WHERE namespace = ''"),
    ("delete from retrysafe_key", "EXPLAIN DELETE FROM retrysafe_key WHERE namespace = ''"),
    ("read retrysafe_response", "EXPLAIN SELECT body FROM retrysafe_response"),
    ("insert into retrysafe_response", "EXPLAIN INSERT INTO retrysafe_response VALUES (0, '', '')"),
    (
        "insert into retrysafe_journal",
        "EXPLAIN INSERT INTO retrysafe_journal (operation, seq, at_ms, data) VALUES ('', 0, 0, '')",
    ),
    ("update retrysafe_staged", "EXPLAIN UPDATE retrysafe_staged SET tries = 0 WHERE operation = ''"),
    (
        "insert into retrysafe_replays",
        "EXPLAIN INSERT INTO retrysafe_replays (operation, times, first_ms, last_ms) VALUES ('', 0, 0, 0)",
    ),
    ("update retrysafe_meta", "EXPLAIN UPDATE retrysafe_meta SET clock_ms = 0 WHERE only_row = 2"),
];

/// "SELECT command denied", of a table or of a column of it.
const DENIED: [u32; 2] = [1142, 1143];

async fn missing_permissions<C: Connection>(connection: &mut C) -> Result<Vec<&'static str>, Failure> {
    let mut missing = Vec::new();
    for (what, statement) in NEEDED {
        match connection.script(statement).await {
            Ok(()) => {}
            Err(failure) => match failure.kind {
                FailureKind::Refused(code) if DENIED.contains(&code.number) => missing.push(what),
                _ => return Err(failure),
            },
        }
    }
    Ok(missing)
}

/// A setting of the server, which is not the one that the store has set for its session.
async fn variable<C: Connection>(connection: &mut C, name: &str) -> Result<String, Failure> {
    super::schema::text(connection, &format!("SELECT CAST(@@GLOBAL.{name} AS CHAR)")).await
}
