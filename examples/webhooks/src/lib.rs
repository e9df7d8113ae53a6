//! A receiver of webhooks that makes an invoice for each paid order, twice: [`before`] as it is usually written, and
//! [`after`] with the guard.
//!
//! A sender of webhooks delivers at least once: it sends again whenever it got no answer in time, and then two deliveries
//! of one event are handled at once.

#![forbid(unsafe_code)]

pub mod after;
pub mod before;

use std::{future::Future, path::Path, pin::Pin, sync::Arc};

use anyhow::Result;
use retrysafe::{SqliteOptions, SqliteStore};
use serde::Deserialize;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS invoice (id INTEGER PRIMARY KEY, event TEXT NOT NULL, order_id TEXT NOT NULL) STRICT;
";

/// An event as the sender describes it. The id is the same at every delivery.
#[derive(Clone, Deserialize)]
pub struct Paid {
    /// `evt_...`
    pub id: String,
    /// What was paid.
    pub order: String,
}

/// What both do before they write, and take their time for: looking the customer up.
pub type LookUp = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// The database of both.
///
/// # Errors
/// The file cannot be opened.
pub async fn database(folder: &Path) -> Result<Arc<SqliteStore>> {
    let store = Arc::new(SqliteStore::open(SqliteOptions::new(folder.join("invoices.db")))?);
    store.define(TABLES).await?;
    Ok(store)
}
