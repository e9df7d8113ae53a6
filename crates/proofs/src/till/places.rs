//! The databases a proof runs on: each made for it, looked into from outside of the service, dropped at the end.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use retrysafe_testbed::{mariadb, postgres};
use rusqlite::{Connection, OpenFlags};

use super::TillTerms;
use super::rows::SERVER_TABLE;
use crate::book::Effects;
use crate::process::{Server, own};

const SALES: &str = "SELECT request, id FROM sale";

/// A database, and the driver it is reached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceKind {
    TokioPostgres,
    Sqlx,
    MariaDb,
    Sqlite,
}

impl PlaceKind {
    pub(crate) const ALL: [Self; 4] = [Self::TokioPostgres, Self::Sqlx, Self::MariaDb, Self::Sqlite];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TokioPostgres => "PostgreSQL, tokio-postgres",
            Self::Sqlx => "PostgreSQL, sqlx",
            Self::MariaDb => "MariaDB",
            Self::Sqlite => "SQLite",
        }
    }
}

enum Inside {
    Postgres(postgres::Database),
    Maria(mariadb::Database),
    File(PathBuf),
}

/// A database of one proof.
pub(crate) struct Place {
    pub(crate) kind: PlaceKind,
    inside: Inside,
}

impl Place {
    /// A new one, on the server that tests share or in `scratch`.
    pub(crate) fn make(kind: PlaceKind, scratch: &Path) -> Self {
        let inside = match kind {
            PlaceKind::TokioPostgres | PlaceKind::Sqlx => {
                let database = postgres::Database::create();
                database.psql(SERVER_TABLE);
                Inside::Postgres(database)
            }
            PlaceKind::MariaDb => {
                let database = mariadb::Database::create();
                database.run(SERVER_TABLE);
                Inside::Maria(database)
            }
            PlaceKind::Sqlite => Inside::File(scratch.join("till.db")),
        };
        Self { kind, inside }
    }

    /// For `--store`.
    pub(crate) fn address(&self) -> String {
        match (&self.inside, self.kind) {
            (Inside::Postgres(database), PlaceKind::Sqlx) => format!("sqlx+{}", database.url()),
            (Inside::Postgres(database), _) => database.url(),
            (Inside::Maria(database), _) => database.url(),
            (Inside::File(file), _) => format!("sqlite:{}", file.display()),
        }
    }

    /// Starts a service on it.
    ///
    /// # Errors
    /// It does not come up.
    pub(crate) fn till(&self, name: &str, terms: &TillTerms, scratch: &Path) -> Result<Server> {
        let mut command = own(&["till", "--store", &terms.store])?;
        for (option, value) in
            [("--work-ms", terms.work_ms), ("--lease-ms", terms.lease_ms), ("--idle-ms", terms.idle_ms)]
        {
            command.arg(option).arg(value.to_string());
        }
        if let Some(mark) = &terms.mark {
            command.arg("--mark").arg(mark);
        }
        Server::start(name, command, scratch)
    }

    /// Ids of the rows that are committed, by the key they were written for: asked of the database itself.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn sales(&self) -> Result<Effects> {
        let lines = match &self.inside {
            Inside::Postgres(database) => database.psql(SALES).replace('|', "\t"),
            Inside::Maria(database) => database.run(SALES),
            Inside::File(file) => from_file(file)?,
        };
        let mut sales = Effects::new();
        for line in lines.lines().filter(|line| !line.is_empty()) {
            let (key, id) =
                line.split_once('\t').with_context(|| format!("a row without two columns: {line}"))?;
            sales.entry(key.to_owned()).or_default().push(id.to_owned());
        }
        Ok(sales)
    }
}

fn from_file(file: &Path) -> Result<String> {
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut select = connection.prepare(SALES)?;
    let lines = select
        .query_map([], |row| Ok(format!("{}\t{}\n", row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    lines.collect::<rusqlite::Result<String>>().context("the rows of the file")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A proof that counts cannot miss a second row: on every database, asked by the way it is asked there.
    #[test]
    fn two_rows_of_one_key_are_seen_on_every_database() {
        let scratch = tempfile::tempdir().expect("a folder");
        for kind in PlaceKind::ALL {
            let place = Place::make(kind, scratch.path());
            let rows = "INSERT INTO sale (id, request) VALUES ('one', 'k'), ('two', 'k'), ('three', 'other')";
            match &place.inside {
                Inside::Postgres(database) => drop(database.psql(rows)),
                Inside::Maria(database) => drop(database.run(rows)),
                Inside::File(file) => {
                    let connection = Connection::open(file).expect("a file");
                    connection.execute_batch(&format!("{SERVER_TABLE}; {rows}")).expect("rows");
                }
            }
            let sales = place.sales().expect("rows");
            let count = |key: &str| sales.get(key).map_or(0, Vec::len);
            assert_eq!((count("k"), count("other"), sales.len()), (2, 1, 2), "{}", kind.name());
        }
    }
}
