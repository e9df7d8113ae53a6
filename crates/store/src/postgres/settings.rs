//! What a server says of itself, as far as a store is concerned.

use std::sync::Arc;

use super::Schema;
use crate::sql::{Connection, Failure, FailureKind, Rows, Statement, Value};

/// Settings as this role meets them.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) version: i64,
    pub(super) in_recovery: bool,
    pub(super) isolation: String,
    pub(super) read_only: String,
    pub(super) search_path: String,
    pub(super) bytea_output: String,
    pub(super) synchronous_commit: String,
    pub(super) synchronous_standbys: String,
    pub(super) fsync: String,
    pub(super) full_page_writes: String,
    /// Absent before version 14.
    pub(super) connection_check: Option<String>,
}

/// The texts, in the order in which they are read.
const NAMES: [&str; 9] = [
    "default_transaction_isolation",
    "default_transaction_read_only",
    "search_path",
    "bytea_output",
    "synchronous_commit",
    "synchronous_standby_names",
    "fsync",
    "full_page_writes",
    "client_connection_check_interval",
];

impl Settings {
    pub(super) async fn read<C: Connection>(connection: &mut C) -> Result<Self, Failure> {
        let texts: Vec<String> =
            NAMES.iter().map(|name| format!("convert_to(current_setting('{name}', true), 'UTF8')")).collect();
        let text: Arc<str> = format!(
            "SELECT current_setting('server_version_num')::bigint, pg_is_in_recovery()::int::bigint, {}",
            texts.join(", ")
        )
        .into();
        let rows = only(connection, &text).await?;
        let number = |at| rows.only(at).and_then(Value::int).unwrap_or(0);
        let setting = |name: &str| {
            let at = NAMES.iter().position(|one| *one == name)? + 2;
            rows.only(at).and_then(Value::as_bytes).map(|text| String::from_utf8_lossy(text).into_owned())
        };
        let text = |name| setting(name).unwrap_or_default();
        Ok(Self {
            version: number(0),
            in_recovery: number(1) == 1,
            isolation: text("default_transaction_isolation"),
            read_only: text("default_transaction_read_only"),
            search_path: text("search_path"),
            bytea_output: text("bytea_output"),
            synchronous_commit: text("synchronous_commit"),
            synchronous_standbys: text("synchronous_standby_names"),
            fsync: text("fsync"),
            full_page_writes: text("full_page_writes"),
            connection_check: setting("client_connection_check_interval"),
        })
    }
}

/// What the role may do with the tables.
#[derive(Debug)]
pub(super) struct Permissions {
    /// What it may not, in words.
    pub(super) missing: Vec<String>,
    pub(super) owns_response: bool,
}

/// Every table and what the store does to it.
const NEEDED: [(&str, &[&str]); 6] = [
    ("key", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
    ("response", &["SELECT", "INSERT"]),
    ("response_other", &["SELECT", "DELETE"]),
    ("meta", &["SELECT", "UPDATE"]),
    ("deployment_key", &["SELECT", "INSERT"]),
    ("replays", &["SELECT", "INSERT", "UPDATE", "DELETE"]),
];

impl Permissions {
    pub(super) async fn read<C: Connection>(connection: &mut C, schema: &Schema) -> Result<Self, Failure> {
        let asked: Vec<(&str, &str)> =
            NEEDED.iter().flat_map(|(table, all)| all.iter().map(|privilege| (*table, *privilege))).collect();
        let mut columns: Vec<String> = asked
            .iter()
            .map(|(table, privilege)| {
                format!("has_table_privilege('\"{schema}\".{table}', '{privilege}')::int::bigint")
            })
            .collect();
        columns.push(format!("has_sequence_privilege('\"{schema}\".fence', 'USAGE')::int::bigint"));
        columns.push(format!(
            "(SELECT pg_has_role(relowner, 'USAGE') FROM pg_catalog.pg_class \
             WHERE oid = '\"{schema}\".response'::regclass)::int::bigint"
        ));
        let text: Arc<str> = format!("SELECT {}", columns.join(", ")).into();
        let rows = only(connection, &text).await?;
        let may = |at| rows.only(at).and_then(Value::int) == Some(1);
        let mut missing: Vec<String> = asked
            .iter()
            .enumerate()
            .filter(|(at, _)| !may(*at))
            .map(|(_, (table, privilege))| format!("{privilege} {table}"))
            .collect();
        if !may(asked.len()) {
            missing.push("USE the sequence fence".to_owned());
        }
        Ok(Self { missing, owns_response: may(asked.len() + 1) })
    }
}

async fn only<C: Connection>(connection: &mut C, text: &Arc<str>) -> Result<Rows, Failure> {
    let mut rows = connection.run(&[Statement::plain(text)]).await.all()?;
    rows.pop().ok_or_else(|| Failure::new(FailureKind::Malformed, "no result"))
}
