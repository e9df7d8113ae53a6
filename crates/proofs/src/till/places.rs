//! The databases a proof runs on: each made for it, looked into from outside of the service, dropped at the end.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use retrysafe_testbed::{mariadb, postgres};
use rusqlite::{Connection, OpenFlags};

use super::TillTerms;
use super::rows::SERVER_TABLES;
use crate::book::Effects;
use crate::process::{Server, own};
use crate::wire::Key;

const SALES: &str = "SELECT request, id FROM sale";
const TAKEN: &str = "SELECT taken FROM stock";

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
    /// Behind `inside`, which is dropped on it: gone after it.
    own: Option<OwnServer>,
}

/// A database server that belongs to one proof and may be killed.
enum OwnServer {
    Postgres(postgres::Throwaway),
    Maria(mariadb::Throwaway),
}

/// Business rows and stored answers of one key, as one statement saw them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) rows: usize,
    pub(crate) answers: usize,
}

impl Place {
    /// A new one, on the server that tests share or in `scratch`.
    pub(crate) fn make(kind: PlaceKind, scratch: &Path) -> Self {
        match kind {
            PlaceKind::TokioPostgres | PlaceKind::Sqlx => Self::on(kind, postgres::shared()),
            PlaceKind::MariaDb => Self::on(kind, mariadb::shared()),
            PlaceKind::Sqlite => Self { kind, inside: Inside::File(scratch.join("till.db")), own: None },
        }
    }

    /// A new one on a server of its own, which may be killed. SQLite has none.
    pub(crate) fn alone(kind: PlaceKind) -> Self {
        let (own, address) = match kind {
            PlaceKind::MariaDb => {
                let server = mariadb::Throwaway::start(&[]);
                let address = server.address();
                (OwnServer::Maria(server), address)
            }
            _ => {
                // What a killed process has written outlives it without a sync, and each new life syncs all files first.
                let server = postgres::Throwaway::start(&[("fsync", "off")]);
                let address = server.address();
                (OwnServer::Postgres(server), address)
            }
        };
        Self { own: Some(own), ..Self::on(kind, &address) }
    }

    fn on(kind: PlaceKind, server: &str) -> Self {
        let inside = if kind == PlaceKind::MariaDb {
            let database = mariadb::Database::on(server);
            database.run(SERVER_TABLES);
            Inside::Maria(database)
        } else {
            let database = postgres::Database::on(server);
            database.psql(SERVER_TABLES);
            Inside::Postgres(database)
        };
        Self { kind, inside, own: None }
    }

    /// `kill -9` of its own server.
    pub(crate) fn kill_server(&mut self) {
        match &mut self.own {
            Some(OwnServer::Postgres(server)) => server.kill(),
            Some(OwnServer::Maria(server)) => server.kill(),
            None => {}
        }
    }

    /// And its new life.
    pub(crate) fn restart_server(&mut self) {
        match &mut self.own {
            Some(OwnServer::Postgres(server)) => server.restart(),
            Some(OwnServer::Maria(server)) => server.restart(),
            None => {}
        }
    }

    /// For `--store`, by way of a relay. Without TLS, which a relay could not read.
    pub(crate) fn address_through(&self, relay: SocketAddr) -> String {
        let (own, suffix) = match &self.inside {
            Inside::Maria(_) => (self.address(), ""),
            _ => (self.address(), "?sslmode=disable"),
        };
        let host = self.server();
        own.replacen(&host, &relay.to_string(), 1) + suffix
    }

    /// Host and port of the server.
    pub(crate) fn server(&self) -> String {
        let address = self.address();
        let place = address.split("://").last().unwrap_or_default();
        let place = place.rsplit('@').next().unwrap_or_default();
        place.split('/').next().unwrap_or_default().to_owned()
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
        for (option, file) in [("--mark", &terms.mark), ("--tripwire", &terms.tripwire)] {
            if let Some(file) = file {
                command.arg(option).arg(file);
            }
        }
        for (option, given) in [("--apart", terms.apart), ("--no-upkeep", terms.no_upkeep)] {
            if given {
                command.arg(option);
            }
        }
        Server::start(name, command, scratch)
    }

    /// What is committed for a key: asked in one statement, so that nothing comes in between.
    ///
    /// # Errors
    /// The database does not answer so.
    pub(crate) fn kept(&self, key: &Key) -> Result<Kept> {
        let key = key.as_str();
        let sales = format!("(SELECT count(*) FROM sale WHERE request = '{key}')");
        let line = match &self.inside {
            Inside::Postgres(database) => database.psql(&format!(
                "SELECT {sales}, (SELECT count(*) FROM retrysafe.key WHERE key = convert_to('{key}', 'UTF8') AND state = 2)"
            )),
            Inside::Maria(database) => database.run(&format!(
                "SELECT {sales}, (SELECT count(*) FROM retrysafe_key WHERE `key` = '{key}' AND state = 2)"
            )),
            Inside::File(file) => Connection::open(file)?.query_row(
                &format!(
                    "SELECT {sales} || '|' || (SELECT count(*) FROM retrysafe_record WHERE key = CAST('{key}' AS BLOB) AND state = 2)"
                ),
                [],
                |row| row.get(0),
            )?,
        };
        let mut counts = line.split(['|', '\t']).map(str::parse);
        let (Some(Ok(rows)), Some(Ok(answers))) = (counts.next(), counts.next()) else {
            bail!("two numbers were asked for, and there came {line}");
        };
        Ok(Kept { rows, answers })
    }

    /// What is taken from the stock. SQLite's till has none.
    ///
    /// # Errors
    /// The database does not answer with a number.
    pub(crate) fn taken(&self) -> Result<usize> {
        let line = match &self.inside {
            Inside::Postgres(database) => database.psql(TAKEN),
            Inside::Maria(database) => database.run(TAKEN),
            Inside::File(_) => return Ok(0),
        };
        line.parse().with_context(|| format!("a number was asked for, and there came {line}"))
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
                    connection.execute_batch(&format!("{SERVER_TABLES}; {rows}")).expect("rows");
                }
            }
            let sales = place.sales().expect("rows");
            let count = |key: &str| sales.get(key).map_or(0, Vec::len);
            assert_eq!((count("k"), count("other"), sales.len()), (2, 1, 2), "{}", kind.name());
        }
    }
}
