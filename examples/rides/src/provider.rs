//! A payment provider that can fail in every way, and the client that the service calls it with.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use retrysafe::{
    BoxError,
    recovery::{CallFault, Found},
};
use serde::{Deserialize, Serialize};

/// How long the client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is sent to be charged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Charge {
    /// The id of a customer whose card the provider knows.
    pub customer: String,
    /// How much.
    pub cents: u32,
}

/// What the provider says to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Charged {
    /// It was charged.
    Paid {
        /// The provider's name for it.
        receipt: String,
    },
    /// The card was declined.
    Declined,
}

/// The client.
#[derive(Clone, Debug)]
pub struct Payments {
    base: Arc<str>,
    client: Client<hyper_util::client::legacy::connect::HttpConnector, Full<Bytes>>,
}

impl Payments {
    /// A client of the provider at this address.
    pub fn at(address: SocketAddr) -> Self {
        // A connection for each call: an idle one that the provider has closed would look like a lost answer.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http();
        Self { base: format!("http://{address}").into(), client }
    }

    /// Charges, under `key`.
    ///
    /// # Errors
    /// [`CallFault`] says how far it came.
    pub async fn charge(&self, key: &str, body: &[u8]) -> Result<Charged, CallFault> {
        let request = self.post("/charges", key, body).map_err(CallFault::NotSent)?;
        let answer = match tokio::time::timeout(PATIENCE, self.client.request(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) if error.is_connect() => return Err(CallFault::NotSent(error.into())),
            Ok(Err(error)) => return Err(CallFault::Unknown(error.into())),
            Err(late) => return Err(CallFault::Unknown(late.into())),
        };
        let status = answer.status();
        let body =
            answer.into_body().collect().await.map_err(|error| CallFault::Unknown(error.into()))?.to_bytes();
        match status.as_u16() {
            200 => serde_json::from_slice(&body).map_err(|error| CallFault::Unknown(error.into())),
            402 => Ok(Charged::Declined),
            // The provider's documents say that 429 and 503 come before anything was done.
            429 | 503 => Err(CallFault::NotSent(format!("the provider answered {status}").into())),
            _ => Err(CallFault::Unknown(format!("the provider answered {status}").into())),
        }
    }

    /// What became of the charge under `key`.
    pub async fn find(&self, key: &str) -> Found<Charged> {
        let Ok(uri) = format!("{}/charges/{key}", self.base).parse() else { return Found::Silent };
        let asked = tokio::time::timeout(PATIENCE, self.client.get(uri)).await;
        let Ok(Ok(answer)) = asked else { return Found::Silent };
        match answer.status() {
            StatusCode::NOT_FOUND => Found::Absent,
            StatusCode::OK => {
                let Ok(body) = answer.into_body().collect().await else { return Found::Silent };
                serde_json::from_slice(&body.to_bytes()).map_or(Found::Silent, Found::Done)
            }
            _ => Found::Silent,
        }
    }

    /// Sends a receipt by mail, under `key`.
    ///
    /// # Errors
    /// It was not taken.
    pub async fn send(&self, key: &str, mail: &impl Serialize) -> Result<(), BoxError> {
        let request = self.post("/mails", key, &serde_json::to_vec(mail)?)?;
        let answer = tokio::time::timeout(PATIENCE, self.client.request(request)).await??;
        match answer.status().is_success() {
            true => Ok(()),
            false => Err(format!("the mail service answered {}", answer.status()).into()),
        }
    }

    fn post(&self, path: &str, key: &str, body: &[u8]) -> Result<hyper::Request<Full<Bytes>>, BoxError> {
        let request = hyper::Request::post(format!("{}{path}", self.base)).header("idempotency-key", key);
        let request = request.header("content-type", "application/json");
        Ok(request.body(Full::new(Bytes::copy_from_slice(body)))?)
    }
}

/// What the fake provider does with the next call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Its work.
    None,
    /// Says 503 before doing anything.
    Busy,
    /// Loses the call: does nothing, and the connection breaks.
    LoseCall,
    /// Charges, and loses the answer.
    LoseAnswer,
    /// Charges, and says 500.
    Error,
    /// Charges, and answers later than anybody waits.
    Late,
    /// Declines the card.
    Decline,
}

/// The fake provider's state.
#[derive(Clone, Default)]
pub struct Fake {
    inside: Arc<Mutex<Inside>>,
}

#[derive(Default)]
struct Inside {
    faults: VecDeque<Fault>,
    /// By key: what it answered, and how often it was sent.
    charges: HashMap<String, (Charged, u32)>,
    bodies: HashMap<String, Bytes>,
    mails: HashMap<String, u32>,
    on_charge: Option<Arc<dyn Fn() + Send + Sync>>,
    changed_bodies: u32,
}

impl Fake {
    /// A provider that works.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next calls meet these, in their order.
    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.inside().faults.extend(faults);
    }

    /// Called when a call has been charged, before its answer is sent.
    pub fn on_charge(&self, then: impl Fn() + Send + Sync + 'static) {
        self.inside().on_charge = Some(Arc::new(then));
    }

    /// Every key that was charged, and how often it was sent.
    pub fn charges(&self) -> HashMap<String, u32> {
        self.inside().charges.iter().map(|(key, (_, sent))| (key.clone(), *sent)).collect()
    }

    /// Every key that mail was sent under, and how often.
    pub fn mails(&self) -> HashMap<String, u32> {
        self.inside().mails.clone()
    }

    /// How often a key came with other bytes than the first time.
    pub fn changed_bodies(&self) -> u32 {
        self.inside().changed_bodies
    }

    /// Its API.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/charges", post(charge))
            .route("/charges/{key}", get(find))
            .route("/mails", post(mail))
            .with_state(self.clone())
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key_of(headers: &HeaderMap) -> Option<String> {
    headers.get("idempotency-key")?.to_str().ok().map(str::to_owned)
}

async fn charge(State(fake): State<Fake>, headers: HeaderMap, body: Bytes) -> Response {
    let Some(key) = key_of(&headers) else { return StatusCode::BAD_REQUEST.into_response() };
    let fault = fake.inside().faults.pop_front().unwrap_or(Fault::None);
    match fault {
        Fault::Busy => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Fault::LoseCall => return broken(),
        _ => {}
    }
    let (charged, then) = {
        let mut inside = fake.inside();
        if inside.bodies.entry(key.clone()).or_insert_with(|| body.clone()) != &body {
            inside.changed_bodies += 1;
        }
        let receipt = format!("receipt-{}", inside.charges.len() + 1);
        let fresh = if fault == Fault::Decline { Charged::Declined } else { Charged::Paid { receipt } };
        let (charged, sent) = inside.charges.entry(key).or_insert((fresh, 0));
        *sent += 1;
        (charged.clone(), inside.on_charge.clone())
    };
    if let Some(then) = then {
        then();
    }
    match fault {
        Fault::LoseAnswer => return broken(),
        Fault::Error => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Fault::Late => tokio::time::sleep(PATIENCE * 2).await,
        _ => {}
    }
    match charged {
        Charged::Paid { .. } => Json(charged).into_response(),
        Charged::Declined => StatusCode::PAYMENT_REQUIRED.into_response(),
    }
}

async fn find(State(fake): State<Fake>, Path(key): Path<String>) -> Response {
    match fake.inside().charges.get(&key) {
        Some((charged, _)) => Json(charged.clone()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn mail(State(fake): State<Fake>, headers: HeaderMap) -> StatusCode {
    let Some(key) = key_of(&headers) else { return StatusCode::BAD_REQUEST };
    *fake.inside().mails.entry(key).or_default() += 1;
    StatusCode::OK
}

/// An answer that breaks off before its end: to a client, a lost connection.
fn broken() -> Response {
    let cut: Result<Bytes, std::io::Error> = Err(std::io::ErrorKind::ConnectionReset.into());
    Response::new(Body::from_stream(futures_util::stream::iter([cut])))
}
