//! What the subcommands on databases share.

use std::fmt;

use retrysafe_store::mariadb::{MariaOptions, MariaStore};
use retrysafe_store::postgres::{PostgresOptions, PostgresStore, StoreAddress, TokioPostgres};

use crate::failure::Failure;

/// A runtime for one piece of work.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::runtime(format!("the runtime cannot be started: {error}")))
}

/// A database that keeps, or is to keep, a store.
#[derive(Clone, Debug)]
pub(crate) enum Database {
    Postgres(Box<StoreAddress>),
    Mariadb(Box<MariaOptions>),
}

/// Without the password.
impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres(address) => address.fmt(f),
            Self::Mariadb(options) => options.fmt(f),
        }
    }
}

/// Whether an argument is meant to be the address of a database.
pub(crate) fn looks_like(text: &str) -> bool {
    StoreAddress::looks_like(text) || MariaOptions::looks_like(text)
}

/// An argument that has to be the address of a database.
pub(crate) fn address(text: &str) -> Result<Database, String> {
    if MariaOptions::looks_like(text) {
        let options = MariaOptions::new(text).map_err(|fault| fault.to_string())?;
        return Ok(Database::Mariadb(Box::new(options)));
    }
    const WRITE: &str = "write postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE";
    if !looks_like(text) {
        return Err(format!("this is not the address of a database; {WRITE}"));
    }
    let address: StoreAddress = text.parse().map_err(|fault| format!("{fault}; {WRITE}"))?;
    Ok(Database::Postgres(Box::new(address)))
}

/// Opens the store in MariaDB.
pub(crate) async fn open_mariadb(options: &MariaOptions) -> Result<MariaStore, Failure> {
    MariaStore::open(options.clone()).await.map_err(|error| {
        Failure::runtime(format!("the store at {options} cannot be opened: {}", chain(&error)))
    })
}

pub(crate) fn driver(address: &StoreAddress) -> Result<TokioPostgres, Failure> {
    address.driver().map_err(|failure| Failure::usage(format!("{address}: {failure}")))
}

/// Opens the store at `address`.
pub(crate) async fn open(address: &StoreAddress) -> Result<PostgresStore<TokioPostgres>, Failure> {
    let options = PostgresOptions { schema: address.schema.clone(), ..PostgresOptions::default() };
    PostgresStore::open(driver(address)?, options).await.map_err(|error| {
        Failure::runtime(format!("the store at {address} cannot be opened: {}", chain(&error)))
    })
}

/// An error with what is behind it: the libraries' own say little by themselves.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut behind = error.source();
    while let Some(cause) = behind {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        behind = cause.source();
    }
    text
}
