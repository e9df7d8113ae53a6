//! A small axum service that sells: one row for each sale, written in the transaction that holds the claim, on every
//! database that has one. A process of its own, so that it can be stopped, killed and run twice.
//!
//! Its three paths are the three promises to a loser: `/orders` holds the claim in its transaction and says 409,
//! `/waiting` lets others wait for the answer, `/first` claims before and can be taken over. Nothing in the tables of the
//! business keeps two sales of one key apart: only the claim does, so a broken claim shows as a second row.

mod places;
mod rows;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::extract::State;
use axum::http::header;
use axum::routing::post;
use axum::{Extension, Router};
use clap::Args;
use retrysafe_core::contract::Contract;
use retrysafe_server::extract::{Answer, Keyed};
use retrysafe_server::{Refuse, Reply, Retrysafe};
use retrysafe_store::Store;
use retrysafe_store::mariadb::{MariaOptions, MariaStore};
use retrysafe_store::postgres::{
    PostgresOptions, PostgresStore, SqlxPool, SqlxPostgres, StoreAddress, migrate,
};
use retrysafe_store::sql::Driver;
use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};
use retrysafe_store::transactional::{OpenTransaction, Transactional};
use sqlx::postgres::PgConnectOptions;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::service::fingerprint_keys;
use crate::{Socket, asked_to_stop};

pub(crate) use places::{Place, PlaceKind};
use rows::{PutRow, SQLITE_TABLE};

/// How many connections one process holds, however many requests race.
const CONNECTIONS: usize = 16;

#[derive(Args)]
pub(crate) struct TillArgs {
    #[command(flatten)]
    pub(crate) socket: Socket,
    #[command(flatten)]
    pub(crate) terms: TillTerms,
}

/// What a proof varies.
#[derive(Args, Clone, Debug)]
pub(crate) struct TillTerms {
    /// `postgres://...`, `sqlx+postgres://...`, `mysql://...` or `sqlite:FILE`
    #[arg(long)]
    pub(crate) store: String,
    /// How long a handler takes after its row is written
    #[arg(long, default_value_t = 0)]
    pub(crate) work_ms: u64,
    #[arg(long, default_value_t = 30_000)]
    pub(crate) lease_ms: u64,
    /// How long the database lets a transaction idle before it ends it
    #[arg(long, default_value_t = 10_000)]
    pub(crate) idle_ms: u64,
    /// A file that is made when a row is written and nothing is committed yet
    #[arg(long)]
    pub(crate) mark: Option<PathBuf>,
}

impl TillTerms {
    /// The defaults of the command line.
    pub(crate) fn on(place: &Place) -> Self {
        Self { store: place.address(), work_ms: 0, lease_ms: 30_000, idle_ms: 10_000, mark: None }
    }

    fn contract(&self) -> Result<Contract> {
        let mut text = format!(
            "api = \"Till\"\nnamespace = \"till\"\nlongest_retry_chain = \"24h\"\nunlisted = \"pass\"\n\n\
             [scope]\nsource = \"api_key\"\nrotates = false\nscheme = \"Bearer\"\n\n\
             [failures]\npolicy = \"B\"\nkeep = {{ 500 = \"release\" }}\n\n[windows]\nreplay = \"24h\"\nreap = \"72h\"\nlease = \"{}ms\"\n",
            self.lease_ms
        );
        for (path, lines) in [
            ("/orders", "transaction = \"one\""),
            ("/waiting", "transaction = \"one\"\nin_flight = { answer = \"wait\" }"),
            ("/first", "transaction = \"claim_first\""),
        ] {
            text += &format!(
                "\n[[endpoint]]\nmethod = \"POST\"\npath = \"{path}\"\nkey = \"required\"\nrecovery = \"atomic\"\n{lines}\n"
            );
        }
        Contract::parse(&text, "till.toml").map_err(|faults| anyhow::anyhow!("{faults}"))
    }

    fn idle(&self) -> Duration {
        Duration::from_millis(self.idle_ms)
    }
}

/// What every handler of one process shares.
struct Till<D> {
    database: Arc<D>,
    terms: Arc<TillTerms>,
}

impl<D> Clone for Till<D> {
    fn clone(&self) -> Self {
        Self { database: Arc::clone(&self.database), terms: Arc::clone(&self.terms) }
    }
}

/// Serves until it is asked to stop.
pub(crate) async fn serve(listener: TcpListener, terms: TillTerms) -> Result<()> {
    let (app, retrysafe) = open(terms).await?;
    let stop = CancellationToken::new();
    let _upkeep_ends = stop.clone().drop_guard();
    tokio::spawn(async move { retrysafe.upkeep(stop).await });
    axum::serve(listener, app).with_graceful_shutdown(asked_to_stop()).await.context("serve")
}

async fn open(terms: TillTerms) -> Result<(Router, Retrysafe)> {
    let store = terms.store.clone();
    if let Some(file) = store.strip_prefix("sqlite:") {
        let database = Arc::new(SqliteStore::open(SqliteOptions::new(file))?);
        database.define(SQLITE_TABLE).await?;
        return app(database, terms, post(sell_in_sqlite));
    }
    if store.starts_with("mysql:") {
        let mut options = MariaOptions::new(&store)?;
        options.idle_timeout = terms.idle();
        options.handlers.max = CONNECTIONS;
        MariaStore::migrate(&options).await?;
        return app(Arc::new(MariaStore::open(options).await?), terms, post(sell::<MariaStore>));
    }
    if let Some(url) = store.strip_prefix("sqlx+") {
        let options: PgConnectOptions = url.parse().context("the address of the database")?;
        let pool = SqlxPool { size: u32::try_from(CONNECTIONS)?, ..SqlxPool::default() };
        let database = postgres(SqlxPostgres::new(options, pool), &terms).await?;
        return app(database, terms, post(sell::<PostgresStore<SqlxPostgres>>));
    }
    let mut address: StoreAddress = store.parse()?;
    address.pool.size = CONNECTIONS;
    let database = postgres(address.driver()?, &terms).await?;
    app(database, terms, post(sell::<PostgresStore<retrysafe_store::postgres::TokioPostgres>>))
}

async fn postgres<D: Driver + Clone>(driver: D, terms: &TillTerms) -> Result<Arc<PostgresStore<D>>> {
    let options = PostgresOptions { idle_timeout: terms.idle(), ..PostgresOptions::default() };
    migrate(&driver, &options.schema).await?;
    Ok(Arc::new(PostgresStore::open(driver, options).await?))
}

fn app<D: Store>(
    database: Arc<D>,
    terms: TillTerms,
    sell: axum::routing::MethodRouter<Till<D>>,
) -> Result<(Router, Retrysafe)> {
    let store: Arc<dyn Store> = Arc::clone(&database) as Arc<dyn Store>;
    let retrysafe = Retrysafe::builder(terms.contract()?, store)
        .fingerprint_keys(fingerprint_keys()?)
        .build()
        .context("build the layer")?;
    let till = Till { database, terms: Arc::new(terms) };
    let router = Router::new()
        .route("/orders", sell.clone())
        .route("/waiting", sell.clone())
        .route("/first", sell)
        .with_state(till)
        .layer(Extension(retrysafe.clone()));
    Ok((router, retrysafe))
}

/// A name that no two runs share, whoever they are in.
fn new_id() -> String {
    format!("s{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
}

fn sold(id: &str) -> Reply {
    Reply::json(201, &serde_json::json!({ "id": id })).header(header::LOCATION, &format!("/orders/{id}"))
}

/// Says that the row is written and the commit is not.
fn mark(terms: &TillTerms) -> Result<(), std::io::Error> {
    terms.mark.as_ref().map_or(Ok(()), |file| std::fs::write(file, "inside"))
}

async fn sell<D>(State(till): State<Till<D>>, keyed: Keyed<serde_json::Value>) -> Answer
where
    D: Store + Transactional,
    <D::Open as OpenTransaction>::Handle: PutRow,
{
    let terms = till.terms;
    keyed
        .transaction(&till.database, move |mut tx, _| async move {
            let (id, key) = (new_id(), tx.address().key().as_str().to_owned());
            tx.db().put(&id, &key).await?;
            mark(&terms)?;
            tokio::time::sleep(Duration::from_millis(terms.work_ms)).await;
            Ok(sold(&id))
        })
        .await
}

async fn sell_in_sqlite(State(till): State<Till<SqliteStore>>, keyed: Keyed<serde_json::Value>) -> Answer {
    let terms = till.terms;
    keyed
        .transaction_sync(&till.database, move |tx, _| {
            let id = new_id();
            tx.execute("INSERT INTO sale (id, request) VALUES (?1, ?2)", (&id, tx.address().key().as_str()))?;
            mark(&terms)?;
            std::thread::sleep(Duration::from_millis(terms.work_ms));
            Ok::<_, Refuse>(sold(&id))
        })
        .await
}
