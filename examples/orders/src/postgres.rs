//! The same API on PostgreSQL: several processes, one database, and still one order for each key.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result, ensure};
use axum::{
    Extension, Router,
    extract::State,
    routing::{get, post},
};
use retrysafe::{
    Contract, Retrysafe, Tx,
    extract::{self, Answer, Keyed, Refuse, Reply},
    fingerprint_keys_in,
    postgres::{PostgresOptions, PostgresStore, PostgresTransaction, StoreAddress, TokioPostgres, migrate},
    sql::{Connection, Driver},
};

use super::{CONTRACT, NewOrder, left_after, may_order, taken};

type Store = PostgresStore<TokioPostgres>;

/// One at a time, for processes that start together.
const TABLES: &str = "
    BEGIN;
    SELECT pg_advisory_xact_lock(20260);
    CREATE TABLE IF NOT EXISTS item (name text PRIMARY KEY, stock bigint NOT NULL, counting boolean NOT NULL);
    INSERT INTO item VALUES ('tea', 1000, false), ('coffee', 0, false) ON CONFLICT DO NOTHING;
    CREATE TABLE IF NOT EXISTS orders (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account text NOT NULL, item text NOT NULL, amount bigint NOT NULL
    );
    COMMIT;
";

/// The API on the database at `url`. The secret of its fingerprints is in `folder`: each further process needs a copy.
///
/// # Errors
/// The database cannot be used, the contract cannot be kept, or another secret is in use.
pub async fn app(url: &str, folder: &Path) -> Result<Router> {
    let address: StoreAddress = url.parse()?;
    let driver = address.driver()?;
    let options = PostgresOptions { schema: address.schema.clone(), ..PostgresOptions::default() };
    migrate(&driver, &options.schema).await?;
    driver.acquire().await?.script(TABLES).await?;
    let store = Arc::new(PostgresStore::open(driver, options).await?);
    let file = folder.join("shop.key");
    let keys = fingerprint_keys_in(&file, folder.join("shop.store"))?;
    ensure!(store.has_secret(keys.current()).await?, "{} is not the secret of this store", file.display());
    let contract = Contract::parse(CONTRACT, "retrysafe.toml").context("the bundled contract")?;
    let retrysafe = Retrysafe::builder(contract, store.clone()).fingerprint_keys(keys).build()?;
    Ok(Router::new()
        .route("/orders", post(create))
        .with_state(store)
        .route("/.retrysafe/status/{id}", get(extract::status))
        .layer(Extension(retrysafe)))
}

async fn create(State(store): State<Arc<Store>>, keyed: Keyed<NewOrder>) -> Answer {
    keyed.transaction(&store, order).await
}

/// Runs on the store's own connection, in the transaction that completes the claim.
async fn order(mut tx: Tx<PostgresTransaction<TokioPostgres>>, order: NewOrder) -> Result<Reply, Refuse> {
    let account = tx.address().account().as_str().to_owned();
    let open = "SELECT count(*) FROM public.orders WHERE account = $1";
    may_order(&order, tx.db().query_one(open, &[&account]).await?.get(0))?;
    // Locked: another process may be taking from the same stock.
    let stock = "SELECT stock, counting FROM public.item WHERE name = $1 FOR UPDATE";
    let stock = tx.db().query_one(stock, &[&order.item]).await?;
    let left = left_after(&order, stock.get(0), stock.get(1))?;
    tx.db().execute("UPDATE public.item SET stock = $1 WHERE name = $2", &[&left, &order.item]).await?;
    let insert = "INSERT INTO public.orders (account, item, amount) VALUES ($1, $2, $3) RETURNING id";
    let id = tx.db().query_one(insert, &[&account, &order.item, &order.amount]).await?.get(0);
    // For the watcher that looks for what happened twice.
    tx.effect("order").await?;
    Ok(taken(id, &order))
}
