//! What the subcommands on databases share.

use retrysafe_store::postgres::{PostgresOptions, PostgresStore, StoreAddress, TokioPostgres};

use crate::failure::Failure;

/// A runtime for one piece of work.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::runtime(format!("the runtime cannot be started: {error}")))
}

/// An argument that has to be the address of a database.
pub(crate) fn address(text: &str) -> Result<StoreAddress, String> {
    text.parse().map_err(|fault| format!("{fault}; write postgres://USER@HOST/DATABASE"))
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
