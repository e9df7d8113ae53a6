//! Safe to retry within this key scope and replay window: the server half of retrysafe, ready to add.
//!
//! A client that times out sends its write again. With this layer in front of the handler, the second request finds the
//! first one's claim: it gets the same bytes once the first is done, and an honest "in flight" or "unknown" until then.
//!
//! ```no_run
//! use std::sync::Arc;
//! use axum::{Router, routing::post};
//! use retrysafe::{Contract, Retrysafe, SqliteOptions, SqliteStore, fingerprint_keys_in};
//!
//! async fn create_order() -> (axum::http::StatusCode, &'static str) {
//!     (axum::http::StatusCode::CREATED, r#"{"id": 1}"#)
//! }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let contract = Contract::parse(&std::fs::read_to_string("retrysafe.toml")?, "retrysafe.toml")?;
//! let keys = fingerprint_keys_in("retrysafe.db.key", "retrysafe.db")?;
//! let store = Arc::new(SqliteStore::open(SqliteOptions::new("retrysafe.db"))?);
//! let retrysafe = Retrysafe::builder(contract, store).fingerprint_keys(keys).build()?;
//! let app = Router::new().route("/orders", post(create_order)).layer(retrysafe);
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! axum::serve(listener, app).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The handler form is [`extract::Keyed`]: it decides itself what is stored and what frees the key. In a transaction of the
//! store, its rows and its answer are committed together. [`consume`] does the same for queues, webhooks and jobs, and [`recovery`]
//! runs requests of several steps, with foreign calls in between.
//!
//! # What it does not do
//! It does not promise more than the contract's scope and window, and it cannot see an effect that the handler caused
//! outside of the claim's transaction before its process died: such a key is *uncertain*, and nobody runs it again by itself.
//!
//! # Features
//! - `axum` (default): the extractor form, and peers and original paths as axum knows them.
//! - `sqlite` (default): the embedded store with group commit.
//! - `postgres`: the store in PostgreSQL, for services that run several times.
//! - `postgres-tls`: the same over encrypted connections, as `sslmode` and `sslrootcert` of its address say.
//! - `client`: [`client`], the other half, over reqwest, tower or any call; `client-sqlite` and `client-postgres` keep its
//!   durable intents in the caller's database.

#![forbid(unsafe_code)]

/// The client half: retries that are safe, bounded, budgeted, and keep their key.
#[cfg(feature = "client")]
pub use retrysafe_client as client;
pub use retrysafe_core::{
    address::Account,
    codes::Code,
    contract::{Contract, Faults},
    fingerprint::{DeploymentKey, FingerprintKeys},
};
pub use retrysafe_server::consume;
#[cfg(feature = "axum")]
pub use retrysafe_server::extract;
pub use retrysafe_server::recovery;
pub use retrysafe_server::{
    Application, Body, BoxError, BuildFault, Builder, Disposition, Effect, Guarded, Inquire, InquireFuture,
    KeyFileFault, NoAnswer, NoUpstreamAnswer, Peer, Place, Refuse, Reply, Retrysafe, RetrysafeService,
    TimeLeft, Tx, fingerprint_keys_in,
};
#[cfg(feature = "mysql")]
pub use retrysafe_store::mariadb;
#[cfg(feature = "postgres")]
pub use retrysafe_store::postgres;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use retrysafe_store::sql;
#[cfg(feature = "sqlite")]
pub use retrysafe_store::sqlite::{SqliteConnection, SqliteOptions, SqliteStore, SqliteTx};
pub use retrysafe_store::{
    Due, Filter, Store, StoreError,
    journal::{EffectState, Journal},
    memory::MemoryStore,
    transactional::{OpenTransaction, Transactional},
};

/// The programs of the README compile.
#[cfg(all(doctest, feature = "axum", feature = "sqlite", feature = "client"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
