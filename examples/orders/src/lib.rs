//! The order API of the tutorial (`POST /orders`), on one SQLite file; [`postgres`] is the same for several processes.
//!
//! Read [`order`]: it writes rows, and says for each end what became of the order. Which of these answers are replayed,
//! and for how long, stands in `retrysafe.toml`.

#![forbid(unsafe_code)]

pub mod postgres;

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result};
use axum::{
    Extension, Router,
    extract::State,
    routing::{get, post},
};
use retrysafe::{
    Contract, Retrysafe, SqliteOptions, SqliteStore, SqliteTx,
    extract::{self, Answer, Keyed, Refuse, Reply},
    fingerprint_keys_in,
};
use serde::Deserialize;

const CONTRACT: &str = include_str!("../retrysafe.toml");

/// Orders that one account may make before it has to come later.
pub const OPEN_ORDERS_MAX: i64 = 5;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS item (name TEXT PRIMARY KEY, stock INTEGER NOT NULL, counting INTEGER NOT NULL) STRICT;
    INSERT OR IGNORE INTO item VALUES ('tea', 1000, 0), ('coffee', 0, 0);
    CREATE TABLE IF NOT EXISTS orders (
        id INTEGER PRIMARY KEY, account TEXT NOT NULL, item TEXT NOT NULL, amount INTEGER NOT NULL
    ) STRICT;
";

/// Called by every order before it writes.
pub type Before = Arc<dyn Fn() + Send + Sync>;

#[derive(Clone)]
struct Shop {
    store: Arc<SqliteStore>,
    before: Before,
}

/// What a client asks for.
#[derive(Deserialize)]
pub struct NewOrder {
    /// How many.
    pub amount: i64,
    /// Of what; tea, unless it says otherwise.
    #[serde(default = "tea")]
    pub item: String,
    /// Wants a receipt, which this shop cannot always print.
    #[serde(default)]
    pub receipt: bool,
}

fn tea() -> String {
    "tea".to_owned()
}

/// The API, on the file `shop.db` in `folder`, and its store.
///
/// # Errors
/// The file cannot be opened, or the contract cannot be kept.
pub async fn app(folder: &Path) -> Result<(Router, Arc<SqliteStore>)> {
    app_with(folder, Arc::new(|| {})).await
}

/// The same, with something that every order does before it writes: a test stops one there.
///
/// # Errors
/// As [`app`].
pub async fn app_with(folder: &Path, before: Before) -> Result<(Router, Arc<SqliteStore>)> {
    let file = folder.join("shop.db");
    let keys = fingerprint_keys_in(folder.join("shop.db.key"), &file)?;
    let store = Arc::new(SqliteStore::open(SqliteOptions::new(&file))?);
    store.define(TABLES).await?;
    let contract = Contract::parse(CONTRACT, "retrysafe.toml").context("the bundled contract")?;
    let retrysafe = Retrysafe::builder(contract, store.clone()).fingerprint_keys(keys).build()?;
    let router = Router::new()
        .route("/orders", post(create))
        .with_state(Shop { store: store.clone(), before })
        .route("/.retrysafe/status/{id}", get(extract::status))
        .layer(Extension(retrysafe));
    Ok((router, store))
}

async fn create(State(shop): State<Shop>, keyed: Keyed<NewOrder>) -> Answer {
    let Shop { store, before } = shop;
    keyed
        .transaction_sync(&store, move |tx, new| {
            before();
            order(tx, new)
        })
        .await
}

/// Runs on the store's writer thread, in the transaction that holds the claim.
fn order(tx: &SqliteTx<'_>, order: NewOrder) -> Result<Reply, Refuse> {
    let account = tx.address().account().as_str();
    let open = tx.query_row("SELECT count(*) FROM orders WHERE account = ?1", [account], |row| row.get(0))?;
    may_order(&order, open)?;
    let (stock, counting) =
        tx.query_row("SELECT stock, counting FROM item WHERE name = ?1", [&order.item], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    let left = left_after(&order, stock, counting)?;
    tx.execute("UPDATE item SET stock = ?1 WHERE name = ?2", (left, &order.item))?;
    tx.execute(
        "INSERT INTO orders (account, item, amount) VALUES (?1, ?2, ?3)",
        (account, &order.item, order.amount),
    )?;
    // Before anything else is written: what the ledger of effects writes has a number, too.
    let id = tx.last_insert_rowid();
    // For the watcher that looks for what happened twice.
    tx.effect("order")?;
    Ok(taken(id, &order))
}

/// Whether this account may order that, before anybody looks at the stock.
fn may_order(order: &NewOrder, open: i64) -> Result<(), Refuse> {
    // The same request is refused the same way every time: 422, kept for the window.
    if order.amount <= 0 {
        return Err(Refuse::store(422, "the amount must be positive"));
    }
    // Passes by itself: 429, not kept, so the same key runs later.
    if open >= OPEN_ORDERS_MAX {
        return Err(Refuse::store(429, "too many open orders; come later"));
    }
    Ok(())
}

/// What is left of the item when the order is taken.
fn left_after(order: &NewOrder, stock: i64, counting: bool) -> Result<i64, Refuse> {
    // Nobody knows yet: 503, not kept.
    if counting {
        return Err(Refuse::store(503, "the stock is being counted"));
    }
    // A refusal of the business: 409, kept for an hour. Another order is another key.
    let left = stock - order.amount;
    if left < 0 {
        return Err(Refuse::store(409, "not enough of it left"));
    }
    Ok(left)
}

fn taken(id: i64, order: &NewOrder) -> Reply {
    if order.receipt {
        // The order is taken, and something after it failed: 500, and it is a reply, so it is kept and never run again.
        return Reply::json(500, &serde_json::json!({ "id": id, "receipt": "could not be printed" }));
    }
    Reply::json(201, &serde_json::json!({ "id": id, "item": order.item, "amount": order.amount }))
}
