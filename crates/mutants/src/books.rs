//! Orders in a database that several processes share: a claim with a lease, a call to the provider, and then order and answer in
//! one commit.
//!
//! What can go wrong here cannot in memory: the process that claimed is stopped and finds another in its place, and the database
//! is gone when the provider has done its part.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use axum::{
    Json, Router,
    body::Bytes,
    extract::{Query, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio_postgres::types::ToSql;

use crate::behaviour::Booking;
use crate::running::Terms;
use crate::service::{Filter, call, hash, problem};

/// How long a claim is held; whoever comes later takes over.
pub const LEASE: Duration = Duration::from_millis(400);
/// How long a statement waits for its turn on SQLite.
const TURN: Duration = Duration::from_secs(5);

// Times are texts of one length, so that both databases compare them alike and every value is a text.
const TABLES: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS booked_claim (address TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, attempt TEXT NOT NULL, \
     until TEXT NOT NULL, answer TEXT)",
    "CREATE TABLE IF NOT EXISTS booked_order (attempt TEXT NOT NULL, note TEXT NOT NULL)",
];
const CLAIM: &str = "INSERT INTO booked_claim (address, fingerprint, attempt, until) VALUES ($1, $2, $3, $4) \
     ON CONFLICT (address) DO UPDATE SET attempt = excluded.attempt, until = excluded.until \
     WHERE booked_claim.answer IS NULL AND booked_claim.until < $5 RETURNING attempt";
const LOOK: &str = "SELECT fingerprint, answer FROM booked_claim WHERE address = $1";
const BOOK: &str = "INSERT INTO booked_order (attempt, note) VALUES ($1, $2)";
const COMPLETE_FENCED: &str =
    "UPDATE booked_claim SET answer = $1 WHERE address = $2 AND attempt = $3 AND answer IS NULL";
const COMPLETE: &str = "UPDATE booked_claim SET answer = $1 WHERE address = $2";
const LIST: &str = "SELECT note, attempt FROM booked_order WHERE note = $1 OR $1 = ''";

type Row = Vec<Option<String>>;

/// One connection to either database.
enum Connection {
    Postgres(tokio_postgres::Client),
    Sqlite(Mutex<rusqlite::Connection>),
}

impl Connection {
    async fn open(address: &str) -> Result<Self> {
        if let Some(file) = address.strip_prefix("sqlite:") {
            let connection = rusqlite::Connection::open(Path::new(file))?;
            connection.busy_timeout(TURN)?;
            return Ok(Self::Sqlite(Mutex::new(connection)));
        }
        let (client, connection) = tokio_postgres::connect(address, tokio_postgres::NoTls).await?;
        // Its end is seen by whoever uses the client.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self::Postgres(client))
    }

    /// Statements without arguments.
    async fn batch(&self, sql: &str) -> Result<()> {
        match self {
            Self::Postgres(client) => client.batch_execute(sql).await?,
            Self::Sqlite(connection) => tokio::task::block_in_place(|| lock(connection).execute_batch(sql))?,
        }
        Ok(())
    }

    /// How many rows it changed.
    async fn change(&self, sql: &str, arguments: &[&str]) -> Result<u64> {
        Ok(match self {
            Self::Postgres(client) => client.execute(sql, &texts(arguments)).await?,
            Self::Sqlite(connection) => tokio::task::block_in_place(|| {
                lock(connection).execute(sql, rusqlite::params_from_iter(arguments))
            })? as u64,
        })
    }

    async fn rows(&self, sql: &str, arguments: &[&str], columns: usize) -> Result<Vec<Row>> {
        Ok(match self {
            Self::Postgres(client) => {
                let rows = client.query(sql, &texts(arguments)).await?;
                rows.iter()
                    .map(|row| (0..columns).map(|at| row.try_get(at)).collect::<Result<Row, _>>())
                    .collect::<Result<_, _>>()?
            }
            Self::Sqlite(connection) => tokio::task::block_in_place(|| {
                let connection = lock(connection);
                let mut statement = connection.prepare(sql)?;
                let rows = statement.query_map(rusqlite::params_from_iter(arguments), |row| {
                    (0..columns).map(|at| row.get(at)).collect::<rusqlite::Result<Row>>()
                })?;
                rows.collect::<rusqlite::Result<_>>()
            })?,
        })
    }
}

fn texts<'a>(arguments: &'a [&'a str]) -> Vec<&'a (dyn ToSql + Sync)> {
    arguments.iter().map(|text| -> &(dyn ToSql + Sync) { text }).collect()
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Shop {
    booking: Booking,
    address: String,
    provider: Option<std::net::SocketAddr>,
    /// Attempts of this process are told from those of others by its id.
    attempts: AtomicU64,
    /// Keys that this process works on, for the server that remembers them.
    at_work: Mutex<HashSet<String>>,
}

/// The server, with its tables made.
pub(crate) async fn router(booking: Booking, terms: &Terms) -> Result<Router> {
    let address = terms.books.clone().context("it keeps orders in a database: name one with --books")?;
    let connection = Connection::open(&address).await.with_context(|| format!("open {address}"))?;
    if matches!(connection, Connection::Sqlite(_)) {
        connection.rows("PRAGMA journal_mode = WAL", &[], 1).await?;
    }
    for table in TABLES {
        connection.batch(table).await?;
    }
    let shop = Shop {
        booking,
        address,
        provider: terms.provider,
        attempts: AtomicU64::new(0),
        at_work: Mutex::default(),
    };
    Ok(Router::new()
        .route("/orders", post(create).get(list))
        .route("/health", get(|| async { "ok" }))
        .with_state(Arc::new(shop)))
}

async fn list(State(shop): State<Arc<Shop>>, Query(filter): Query<Filter>) -> Response {
    let read = async {
        let connection = Connection::open(&shop.address).await?;
        connection.rows(LIST, &[filter.note.as_deref().unwrap_or_default()], 2).await
    };
    match read.await {
        Ok(rows) => {
            let order = |row: &Row| json!({ "note": row.first(), "id": row.get(1) });
            Json(rows.iter().map(order).collect::<Vec<_>>()).into_response()
        }
        Err(_) => unavailable(),
    }
}

async fn create(State(shop): State<Arc<Shop>>, headers: HeaderMap, body: Bytes) -> Response {
    // Whoever hangs up changes nothing: that promise is not the one that is broken here.
    let run = tokio::spawn(async move { shop.answer(&headers, &body).await });
    run.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

impl Shop {
    async fn answer(&self, headers: &HeaderMap, body: &[u8]) -> Response {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let Ok(request) = serde_json::from_slice::<Value>(body) else {
            return StatusCode::BAD_REQUEST.into_response();
        };
        let key = text("idempotency-key");
        if key.is_empty() {
            return problem(StatusCode::BAD_REQUEST, "idempotency_key_missing");
        }
        let address = format!("{} {key}", text("authorization"));
        if self.booking.remembers_its_work && !lock(&self.at_work).insert(address.clone()) {
            return problem(StatusCode::CONFLICT, "idempotency_key_in_flight");
        }
        let note = request["note"].as_str().unwrap_or_default();
        match self.booked(&address, &hash(body).to_string(), note, key).await {
            Ok(response) => {
                // Forgotten by its author where it does not come to this.
                lock(&self.at_work).remove(&address);
                response
            }
            Err(_) => unavailable(),
        }
    }

    async fn booked(&self, address: &str, fingerprint: &str, note: &str, key: &str) -> Result<Response> {
        let connection = Connection::open(&self.address).await?;
        let number = self.attempts.fetch_add(1, Ordering::Relaxed);
        let attempt = format!("ord_{}_{number}", std::process::id());
        let (now, until) = (at(Duration::ZERO), at(LEASE));
        let claimed = connection.rows(CLAIM, &[address, fingerprint, &attempt, &until, &now], 1).await?;
        if claimed.is_empty() {
            return told(&connection, address, fingerprint).await;
        }
        if let Some(provider) = self.provider {
            call(provider, note, &format!("charge-{key}")).await?;
        }
        let answer = json!({ "id": attempt }).to_string();
        match self.commit(&connection, address, &attempt, note, &answer).await {
            Ok(true) => {}
            // Somebody took over: what they say is what happened.
            Ok(false) => return told(&connection, address, fingerprint).await,
            Err(_) if self.booking.swallows_a_failed_commit => {}
            Err(error) => return Err(error),
        }
        Ok(made(&answer))
    }

    /// Order and answer, or neither; `false` where the claim is somebody else's.
    async fn commit(
        &self,
        connection: &Connection,
        address: &str,
        attempt: &str,
        note: &str,
        answer: &str,
    ) -> Result<bool> {
        connection.batch("BEGIN").await?;
        connection.change(BOOK, &[attempt, note]).await?;
        let completed = if self.booking.fenced {
            connection.change(COMPLETE_FENCED, &[answer, address, attempt]).await?
        } else {
            connection.change(COMPLETE, &[answer, address]).await?
        };
        if completed == 0 {
            connection.batch("ROLLBACK").await?;
            return Ok(false);
        }
        connection.batch("COMMIT").await?;
        Ok(true)
    }
}

/// What is stored, to whoever did not claim.
async fn told(connection: &Connection, address: &str, fingerprint: &str) -> Result<Response> {
    let rows = connection.rows(LOOK, &[address], 2).await?;
    let row = rows.first().context("a claim that was there is gone")?;
    let part = |at: usize| row.get(at).cloned().flatten();
    if part(0).as_deref() != Some(fingerprint) {
        return Ok(problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_payload_mismatch"));
    }
    Ok(part(1)
        .map_or_else(|| problem(StatusCode::CONFLICT, "idempotency_key_in_flight"), |answer| made(&answer)))
}

fn made(answer: &str) -> Response {
    (StatusCode::CREATED, [("content-type", "application/json")], answer.to_owned()).into_response()
}

fn unavailable() -> Response {
    problem(StatusCode::SERVICE_UNAVAILABLE, "unavailable")
}

/// The time in a while, as a text that sorts.
fn at(later: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + later;
    format!("{:020}", now.as_millis())
}
