//! The handler that all servers share, with its behaviour as an argument.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use axum::{
    Json, Router,
    body::Bytes,
    extract::{Query, State},
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::behaviour::{Behaviour, Bodies, Claim, Keys, Loser};
use crate::natural::Natural;
use crate::running::Terms;

/// Between a look and an insert: any await point of a real server.
const GAP: Duration = Duration::from_millis(1);
/// Waiters look this often, and not for ever.
const WAIT: Duration = Duration::from_micros(500);
const WAIT_LOOKS: usize = 20_000;

/// What happened, written by the effect alone.
pub(crate) struct Ledger {
    rows: Mutex<Vec<Value>>,
    /// A line for each effect, as services write them.
    log: Option<Mutex<File>>,
}

impl Ledger {
    pub(crate) fn new(log: Option<&Path>) -> Result<Self> {
        let open = |path: &Path| {
            let file = File::options().create(true).append(true).open(path);
            file.with_context(|| format!("the log {}", path.display()))
        };
        Ok(Self { rows: Mutex::default(), log: log.map(open).transpose()?.map(Mutex::new) })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Value>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, path: &str, note: &str) -> usize {
        let mut rows = self.lock();
        let id = rows.len() + 1;
        rows.push(json!({ "id": format!("ord_{id}"), "note": note, "path": path }));
        if let Some(log) = &self.log {
            let line = format!("INFO order made id=ord_{id} path={path} note={note}\n");
            // One write, or an observer meets half a line. One that fails is a line that is not there: the gate says so.
            let _ = log.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
        }
        id
    }
}

#[derive(Clone)]
enum Slot {
    InFlight { fingerprint: u64, since: Instant },
    Done { fingerprint: u64, answer: Answer },
}

#[derive(Clone)]
struct Answer {
    status: StatusCode,
    location: Option<String>,
    body: Value,
}

struct Service {
    behaviour: Behaviour,
    ledger: Arc<Ledger>,
    slots: Mutex<HashMap<String, Slot>>,
    turn: tokio::sync::Mutex<()>,
    provider: Option<SocketAddr>,
    natural: Option<Natural>,
    /// Claims of former lives.
    state: Option<std::path::PathBuf>,
    gap: Duration,
}

pub(crate) fn router(behaviour: Behaviour, ledger: Arc<Ledger>, terms: &Terms) -> Result<Router> {
    let natural = behaviour.natural.then(Natural::open).transpose()?;
    let service = Service {
        behaviour,
        ledger,
        slots: Mutex::new(former_claims(terms)),
        turn: tokio::sync::Mutex::new(()),
        provider: terms.provider,
        natural,
        state: terms.state.clone().filter(|_| behaviour.durable_claims),
        gap: terms.gap.unwrap_or(GAP),
    };
    Ok(Router::new()
        .route("/orders", post(create).get(list))
        .route("/refunds", post(create))
        .route("/metrics", get(metrics))
        .route("/health", get(|| async { "ok" }))
        .merge(crate::claims::router())
        .with_state(Arc::new(service)))
}

#[derive(Deserialize)]
pub(crate) struct Filter {
    pub(crate) note: Option<String>,
}

async fn list(State(service): State<Arc<Service>>, Query(filter): Query<Filter>) -> Response {
    if let Some(natural) = service.natural.clone() {
        let rows = tokio::task::spawn_blocking(move || natural.list(filter.note.as_deref())).await;
        return match rows {
            Ok(Ok(rows)) => Json(rows).into_response(),
            _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        };
    }
    let wanted = |row: &&Value| filter.note.as_deref().is_none_or(|note| row["note"] == note);
    Json(service.ledger.lock().iter().filter(wanted).cloned().collect::<Vec<_>>()).into_response()
}

/// As Prometheus reads it: all effects together.
async fn metrics(State(service): State<Arc<Service>>) -> String {
    let made = service.ledger.lock().len();
    format!("# TYPE orders_made_total counter\norders_made_total{{kind=\"all\"}} {made}\n")
}

async fn create(State(service): State<Arc<Service>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    // Whoever hangs up changes nothing: that promise is not the one that is broken here.
    let run = tokio::spawn(async move { service.answer(uri.path(), &headers, &body).await });
    run.await.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

impl Service {
    async fn answer(&self, path: &str, headers: &HeaderMap, body: &[u8]) -> Response {
        let _turn = if self.behaviour.serial { Some(self.turn.lock().await) } else { None };
        let Ok(request) = serde_json::from_slice::<Value>(body) else {
            return StatusCode::BAD_REQUEST.into_response();
        };
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let key = text("idempotency-key");
        if key.is_empty() && self.behaviour.required {
            return problem(StatusCode::BAD_REQUEST, "idempotency_key_missing");
        }
        if let Some(natural) = self.natural.clone() {
            let (key, note) = (key.to_owned(), request["note"].as_str().unwrap_or_default().to_owned());
            let done = tokio::task::spawn_blocking(move || natural.create(&key, &note)).await;
            return match done {
                Ok(Ok(id)) => created(&made(&format!("ord_{id}")), true),
                _ => problem(StatusCode::SERVICE_UNAVAILABLE, "busy"),
            };
        }
        if key.is_empty() || self.behaviour.keys == Keys::Ignored {
            return created(&self.run(path, &request, key).await, true);
        }
        let fingerprint = hash(body);
        let address = self.address(path, text("authorization"), key, fingerprint);
        self.guarded(&address, fingerprint, path, &request, key).await
    }

    fn address(&self, path: &str, account: &str, key: &str, fingerprint: u64) -> String {
        let Behaviour { scoped, by_operation, keys, bodies, .. } = self.behaviour;
        let mut address = String::new();
        if scoped {
            address += account;
        }
        if by_operation {
            address += path;
        }
        if keys != Keys::FromBody {
            address += key;
        }
        if keys == Keys::FromBody || bodies == Bodies::InKey {
            address += &fingerprint.to_string();
        }
        address
    }

    async fn guarded(
        &self,
        address: &str,
        fingerprint: u64,
        path: &str,
        request: &Value,
        key: &str,
    ) -> Response {
        for _ in 0..WAIT_LOOKS {
            let seen = match self.behaviour.claim {
                Claim::Atomic | Claim::ShortLock(_) => self.look(address, Some(fingerprint)),
                Claim::CheckThenInsert | Claim::AfterEffect => self.look(address, None),
                Claim::LookThenLock => self.look_then_lock(address, fingerprint).await,
            };
            match seen {
                None => return self.owner(address, fingerprint, path, request, key).await,
                Some(Slot::Done { fingerprint: first, answer }) => {
                    if first != fingerprint && self.behaviour.bodies == Bodies::Compared {
                        return problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_payload_mismatch");
                    }
                    return created(&answer, self.behaviour.whole_replays);
                }
                Some(Slot::InFlight { fingerprint: first, .. }) => {
                    if first != fingerprint && self.behaviour.bodies == Bodies::Compared {
                        return problem(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_payload_mismatch");
                    }
                    match self.behaviour.loser {
                        Loser::InFlight => return problem(StatusCode::CONFLICT, "idempotency_key_in_flight"),
                        Loser::Fails => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
                        Loser::Waits => tokio::time::sleep(WAIT).await,
                    }
                }
            }
        }
        problem(StatusCode::SERVICE_UNAVAILABLE, "waited too long")
    }

    /// What is there; with a fingerprint, an absent key is taken in the same step.
    fn look(&self, address: &str, claim: Option<u64>) -> Option<Slot> {
        let mut slots = self.lock();
        let mut seen = slots.get(address).cloned();
        if let (Some(Slot::InFlight { since, .. }), Claim::ShortLock(lives)) = (&seen, self.behaviour.claim)
            && since.elapsed() > lives
        {
            seen = None;
        }
        if let (None, Some(fingerprint)) = (&seen, claim) {
            self.write_down(address, fingerprint);
            slots.insert(address.to_owned(), Slot::InFlight { fingerprint, since: Instant::now() });
        }
        seen
    }

    /// An answer is looked for; then, later, a lock is taken that says nothing about answers.
    async fn look_then_lock(&self, address: &str, fingerprint: u64) -> Option<Slot> {
        let found = self.lock().get(address).cloned().filter(|slot| matches!(slot, Slot::Done { .. }));
        if found.is_some() {
            return found;
        }
        tokio::time::sleep(self.gap).await;
        let mut slots = self.lock();
        match slots.get(address) {
            Some(held @ Slot::InFlight { .. }) => Some(held.clone()),
            // Given up by whoever is done: the answer is not looked for again.
            _ => {
                slots.insert(address.to_owned(), Slot::InFlight { fingerprint, since: Instant::now() });
                None
            }
        }
    }

    /// Whoever may run, or believes it.
    async fn owner(
        &self,
        address: &str,
        fingerprint: u64,
        path: &str,
        request: &Value,
        key: &str,
    ) -> Response {
        match self.behaviour.claim {
            Claim::CheckThenInsert => {
                tokio::time::sleep(self.gap).await;
                self.lock().insert(address.to_owned(), Slot::InFlight { fingerprint, since: Instant::now() });
            }
            Claim::AfterEffect => {
                let answer = self.run(path, request, key).await;
                tokio::time::sleep(self.gap).await;
                let mut slots = self.lock();
                // The unique constraint holds, and comes too late.
                if slots.contains_key(address) {
                    return problem(StatusCode::CONFLICT, "idempotency_key_in_flight");
                }
                slots.insert(address.to_owned(), Slot::Done { fingerprint, answer: answer.clone() });
                return created(&answer, true);
            }
            _ => {}
        }
        if !self.behaviour.stores_after_effect {
            let note = request["note"].as_str().unwrap_or_default();
            let early = made(&format!("ord_{note}"));
            self.lock().insert(address.to_owned(), Slot::Done { fingerprint, answer: early.clone() });
            self.run(path, request, key).await;
            return created(&early, true);
        }
        let answer = self.run(path, request, key).await;
        let mut slots = self.lock();
        if answer.status.is_success() || self.behaviour.keeps_failures {
            slots.insert(address.to_owned(), Slot::Done { fingerprint, answer: answer.clone() });
        } else {
            slots.remove(address);
        }
        drop(slots);
        created(&answer, true)
    }

    /// The effect, and what its caller is told.
    async fn run(&self, path: &str, request: &Value, key: &str) -> Answer {
        let note = request["note"].as_str().unwrap_or_default();
        if !self.behaviour.work.is_zero() {
            tokio::time::sleep(self.behaviour.work).await;
        }
        if let Some(provider) = self.provider
            && call(provider, note, &self.downstream_key(key)).await.is_err()
        {
            return Answer {
                status: StatusCode::BAD_GATEWAY,
                location: None,
                body: json!({ "code": "provider" }),
            };
        }
        let id = format!("ord_{}", self.ledger.append(path, note));
        if request["decline"] == true {
            return Answer {
                status: StatusCode::INTERNAL_SERVER_ERROR,
                location: None,
                body: json!({ "code": "crashed" }),
            };
        }
        made(&id)
    }

    fn downstream_key(&self, key: &str) -> String {
        if self.behaviour.derives_downstream_keys {
            return format!("charge-{key}");
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        format!("charge-{}", now.as_nanos())
    }

    /// A claim that outlives the process.
    fn write_down(&self, address: &str, fingerprint: u64) {
        let Some(path) = &self.state else { return };
        if let Ok(mut file) = std::fs::File::options().create(true).append(true).open(path) {
            // A claim that cannot be written is lost with the process, as with its sound sister.
            let _ = writeln!(file, "{fingerprint} {address}");
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn former_claims(terms: &Terms) -> HashMap<String, Slot> {
    let text = terms.state.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    let claim = |line: &str| {
        let (fingerprint, address) = line.split_once(' ')?;
        let fingerprint = fingerprint.parse().ok()?;
        Some((address.to_owned(), Slot::InFlight { fingerprint, since: Instant::now() }))
    };
    text.lines().filter_map(claim).collect()
}

/// One call to somebody else's service.
pub(crate) async fn call(provider: SocketAddr, note: &str, key: &str) -> std::io::Result<()> {
    let mut stream = tokio::net::TcpStream::connect(provider).await?;
    let body = json!({ "reference": note }).to_string();
    let request = format!(
        "POST /charge HTTP/1.1\r\nhost: {provider}\r\nidempotency-key: {key}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    if answer.starts_with(b"HTTP/1.1 2") { Ok(()) } else { Err(std::io::ErrorKind::Other.into()) }
}

fn made(id: &str) -> Answer {
    Answer { status: StatusCode::CREATED, location: Some(format!("/orders/{id}")), body: json!({ "id": id }) }
}

fn created(answer: &Answer, whole: bool) -> Response {
    let mut response = (answer.status, Json(answer.body.clone())).into_response();
    if let (true, Some(value)) = (whole, answer.location.as_ref().and_then(|location| location.parse().ok()))
    {
        response.headers_mut().insert("location", value);
    }
    response
}

pub(crate) fn problem(status: StatusCode, code: &str) -> Response {
    (status, Json(json!({ "code": code }))).into_response()
}

pub(crate) fn hash(body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    hasher.finish()
}
