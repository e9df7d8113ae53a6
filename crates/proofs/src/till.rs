//! A small axum service that sells: one row for each sale, written in the transaction that holds the claim, on every
//! database that has one. A process of its own, so that it can be stopped, killed and run twice.
//!
//! Its first three paths are the three promises to a loser: `/orders` holds the claim in its transaction and says 409,
//! `/waiting` lets others wait for the answer, `/first` claims before and can be taken over; so can `/stock`, which takes from
//! one row that all sales share as well. Nothing in the tables of the
//! business keeps two sales of one key apart: only the claim does, so a broken claim shows as a second row.

mod places;
mod rows;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use axum::extract::State;
use axum::http::header;
use axum::routing::{MethodRouter, post};
use axum::{Extension, Router};
use clap::Args;
use retrysafe_core::contract::Contract;
use retrysafe_server::extract::{Answer, Keyed};
use retrysafe_server::{Refuse, Reply, Retrysafe};
use retrysafe_sim::Tripwire;
use retrysafe_store::Store;
use retrysafe_store::mariadb::{MariaOptions, MariaStore};
use retrysafe_store::postgres::{
    PostgresOptions, PostgresStore, SqlxPool, SqlxPostgres, StoreAddress, TokioPostgres, migrate,
};
use retrysafe_store::sql::Driver;
use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};
use retrysafe_store::transactional::{OpenTransaction, Transactional};
use sqlx::Connection as _;
use sqlx::postgres::PgConnectOptions;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::service::fingerprint_keys;
use crate::{Socket, asked_to_stop};

pub(crate) use places::{Place, PlaceKind};
use rows::{PutRow, SQLITE_TABLE};

/// How many connections one process holds, however many requests race.
const CONNECTIONS: usize = 16;
/// How long a handler stays at its mark. Somebody who has stopped it may have forgotten it.
const MARK_LIMIT: Duration = Duration::from_secs(120);
const MARK_POLL: Duration = Duration::from_millis(2);

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
    /// A file that is made when a row is written and nothing is committed yet; the handler goes on when it is gone
    #[arg(long)]
    pub(crate) mark: Option<PathBuf>,
    /// Do nothing but what requests ask for: no reaping, no counting
    #[arg(long)]
    pub(crate) no_upkeep: bool,
    /// On SQLite: a disk that ends the process at an operation, armed by this file
    #[arg(long)]
    pub(crate) tripwire: Option<PathBuf>,
    /// Broken on purpose: rows are committed by themselves, apart from the answer. On PostgreSQL by tokio-postgres
    #[arg(long)]
    pub(crate) apart: bool,
}

impl TillTerms {
    /// The defaults of the command line.
    pub(crate) fn on(place: &Place) -> Self {
        Self {
            store: place.address(),
            work_ms: 0,
            lease_ms: 30_000,
            idle_ms: 10_000,
            mark: None,
            no_upkeep: false,
            tripwire: None,
            apart: false,
        }
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
            ("/stock", "transaction = \"claim_first\""),
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

    /// How long a handler's statement waits for a lock: less than the lease, since whoever was taken over may still hold it
    /// (protocol 15).
    fn wait(&self) -> Duration {
        Duration::from_millis(self.lease_ms / 2)
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
pub(crate) async fn serve(listener: TcpListener, (app, upkeep): (Router, Option<Retrysafe>)) -> Result<()> {
    let stop = CancellationToken::new();
    let _upkeep_ends = stop.clone().drop_guard();
    if let Some(retrysafe) = upkeep {
        tokio::spawn(async move { retrysafe.upkeep(stop).await });
    }
    axum::serve(listener, app).with_graceful_shutdown(asked_to_stop()).await.context("serve")
}

/// Opens its database and makes its tables.
///
/// # Errors
/// The database is not there, or somebody has stopped while writing to it.
pub(crate) async fn open(terms: TillTerms) -> Result<(Router, Option<Retrysafe>)> {
    let store = terms.store.clone();
    if let Some(file) = store.strip_prefix("sqlite:") {
        let vfs = terms.tripwire.as_deref().map(|armed_by| Tripwire::register(armed_by).vfs().to_owned());
        let options = SqliteOptions { vfs, ..SqliteOptions::new(file) };
        let database = Arc::new(SqliteStore::open(options)?);
        database.define(SQLITE_TABLE).await?;
        let sell = post(sell_in_sqlite);
        return app(database, terms, sell.clone(), sell);
    }
    if store.starts_with("mysql:") {
        let mut options = MariaOptions::new(&store)?;
        options.idle_timeout = terms.idle();
        (options.lock_timeout, options.statement_timeout) = (terms.wait(), terms.wait());
        options.handlers.max = CONNECTIONS;
        MariaStore::migrate(&options).await?;
        let database = Arc::new(MariaStore::open(options).await?);
        return app(database, terms, post(sell::<MariaStore, false>), post(sell::<MariaStore, true>));
    }
    if let Some(url) = store.strip_prefix("sqlx+") {
        let options: PgConnectOptions = url.parse().context("the address of the database")?;
        let pool = SqlxPool { size: u32::try_from(CONNECTIONS)?, ..SqlxPool::default() };
        let database = postgres(SqlxPostgres::new(options, pool), &terms).await?;
        let [plain, stock] = [
            post(sell::<PostgresStore<SqlxPostgres>, false>),
            post(sell::<PostgresStore<SqlxPostgres>, true>),
        ];
        return app(database, terms, plain, stock);
    }
    let mut address: StoreAddress = store.parse()?;
    address.pool.size = CONNECTIONS;
    let database = postgres(address.driver()?, &terms).await?;
    let plain =
        if terms.apart { post(sell_apart) } else { post(sell::<PostgresStore<TokioPostgres>, false>) };
    app(database, terms, plain, post(sell::<PostgresStore<TokioPostgres>, true>))
}

async fn postgres<D: Driver + Clone>(driver: D, terms: &TillTerms) -> Result<Arc<PostgresStore<D>>> {
    let options = PostgresOptions {
        idle_timeout: terms.idle(),
        lock_timeout: terms.wait(),
        statement_timeout: terms.wait(),
        ..PostgresOptions::default()
    };
    migrate(&driver, &options.schema).await?;
    Ok(Arc::new(PostgresStore::open(driver, options).await?))
}

fn app<D: Store>(
    database: Arc<D>,
    terms: TillTerms,
    sell: MethodRouter<Till<D>>,
    sell_from_stock: MethodRouter<Till<D>>,
) -> Result<(Router, Option<Retrysafe>)> {
    let upkeep = !terms.no_upkeep;
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
        .route("/stock", sell_from_stock)
        .with_state(till)
        .layer(Extension(retrysafe.clone()));
    Ok((router, upkeep.then_some(retrysafe)))
}

/// A name that no two runs share, whoever they are in.
fn new_id() -> String {
    format!("s{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
}

fn sold(id: &str) -> Reply {
    Reply::json(201, &serde_json::json!({ "id": id })).header(header::LOCATION, &format!("/orders/{id}"))
}

/// Says that the row is written and the commit is not; whether the handler is to stay here.
fn mark(terms: &TillTerms) -> Result<impl Fn() -> bool, std::io::Error> {
    let (file, since) = (terms.mark.clone(), Instant::now());
    if let Some(file) = &file {
        std::fs::write(file, "inside")?;
    }
    Ok(move || file.as_ref().is_some_and(|file| file.exists()) && since.elapsed() < MARK_LIMIT)
}

/// `STOCK`: whether the sale takes from the row that all share.
async fn sell<D, const STOCK: bool>(State(till): State<Till<D>>, keyed: Keyed<serde_json::Value>) -> Answer
where
    D: Store + Transactional,
    <D::Open as OpenTransaction>::Handle: PutRow,
{
    let terms = till.terms;
    keyed
        .transaction(&till.database, move |mut tx, _| async move {
            let (id, key) = (new_id(), tx.address().key().as_str().to_owned());
            if STOCK {
                tx.db().take().await?;
            }
            tx.db().put(&id, &key).await?;
            let stays = mark(&terms)?;
            while stays() {
                tokio::time::sleep(MARK_POLL).await;
            }
            tokio::time::sleep(Duration::from_millis(terms.work_ms)).await;
            Ok(sold(&id))
        })
        .await
}

/// The mutant: its row does not ride in the transaction that is handed to it.
async fn sell_apart(
    State(till): State<Till<PostgresStore<TokioPostgres>>>,
    keyed: Keyed<serde_json::Value>,
) -> Answer {
    let store = till.terms.store.clone();
    keyed
        .transaction(&till.database, move |tx, _| async move {
            let (id, key) = (new_id(), tx.address().key().as_str().to_owned());
            let mut apart = sqlx::PgConnection::connect(&store).await?;
            apart.put(&id, &key).await?;
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
            let stays = mark(&terms)?;
            while stays() {
                std::thread::sleep(MARK_POLL);
            }
            std::thread::sleep(Duration::from_millis(terms.work_ms));
            Ok::<_, Refuse>(sold(&id))
        })
        .await
}
