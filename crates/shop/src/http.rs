//! The routes. Each handler reads the request, asks the book, and writes the answer down.

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::book::{Answered, Caller, Created, LedgerQuery, NewResource, Probe};
use crate::faults::{BadAnswer, Fault, Faults, Instead, Queued};
use crate::form::Posted;
use crate::problem::{Dialect, Problem};
use crate::serve::Cut;
use crate::{Shop, ShopOptions, stripe};

/// The most entries one page of the ledger, or of a list, carries.
const PAGE_MAX: i64 = 10_000;
/// What a page carries unless asked.
const PAGE_DEFAULT: i64 = 1_000;

const KEY: &str = "idempotency-key";
const FENCE: &str = "retrysafe-fence";
const FAULT: &str = "x-shop-fault";
const ORIGINAL_STATUS: HeaderName = HeaderName::from_static("x-original-status");
const NEXT_AFTER: HeaderName = HeaderName::from_static("x-next-after");

/// One kind of thing the shop makes.
struct Kind {
    name: &'static str,
    path: &'static str,
    endpoint: &'static str,
    id_prefix: &'static str,
    dialect: Dialect,
    shape: fn(&str, jiff::Timestamp, &Posted) -> Value,
}

static ORDER: Kind = Kind {
    name: "order",
    path: "/orders",
    endpoint: "POST /orders",
    id_prefix: "ord_",
    dialect: Dialect::Shop,
    shape: plain,
};
static PAYMENT: Kind = Kind {
    name: "payment",
    path: "/payments",
    endpoint: "POST /payments",
    id_prefix: "pay_",
    dialect: Dialect::Shop,
    shape: plain,
};
static CHARGE: Kind = Kind {
    name: "charge",
    path: "/v1/charges",
    endpoint: "POST /v1/charges",
    id_prefix: "ch_",
    dialect: Dialect::Stripe,
    shape: |id, at, posted| stripe::charge(id, at.as_second(), posted),
};
static PAYMENT_INTENT: Kind = Kind {
    name: "payment_intent",
    path: "/v1/payment_intents",
    endpoint: "POST /v1/payment_intents",
    id_prefix: "pi_",
    dialect: Dialect::Stripe,
    shape: |id, at, posted| stripe::payment_intent(id, at.as_second(), posted),
};

fn plain(id: &str, at: jiff::Timestamp, posted: &Posted) -> Value {
    let mut body = posted.rest.clone();
    body.insert("id".into(), id.into());
    body.insert("amount".into(), posted.amount.into());
    body.insert("created_at".into(), at.to_string().into());
    Value::Object(body)
}

struct App {
    shop: Shop,
    options: ShopOptions,
    faults: Faults,
}

pub(crate) fn router(shop: Shop, options: ShopOptions) -> Router {
    let faults_on = options.faults;
    let app = Arc::new(App { shop, options, faults: Faults::default() });
    let mut router = Router::new()
        .route("/orders/{id}", get(one_order).delete(delete_order))
        .route("/ledger", get(ledger))
        .route("/operations/{key}", get(operation));
    for kind in [&ORDER, &PAYMENT, &CHARGE, &PAYMENT_INTENT] {
        router = router.route(
            kind.path,
            get(move |state, caller, page| list(kind, state, caller, page))
                .post(move |state, caller, headers, body| create(kind, state, caller, headers, body)),
        );
    }
    for kind in [&PAYMENT, &CHARGE, &PAYMENT_INTENT] {
        let path = format!("{}/{{id}}", kind.path);
        router = router.route(&path, get(move |state, caller, id| one(kind, state, caller, id)));
    }
    if faults_on {
        router = router.route("/faults", get(pending_faults).post(queue_faults).delete(clear_faults));
    }
    router.fallback(|| async { Problem::NOT_FOUND }).with_state(app)
}

/// Who asks. The token *is* the account: the sample verifies nobody.
impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Response> {
        let dialect = if parts.uri.path().starts_with("/v1/") { Dialect::Stripe } else { Dialect::Shop };
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let account = text("authorization")
            .and_then(|value| {
                let (scheme, token) = value.split_once(' ')?;
                scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
            })
            .filter(|token| !token.is_empty())
            .ok_or_else(|| Problem::NO_ACCOUNT.answer(dialect))?;
        Ok(Self {
            account: account.to_owned(),
            key: text(KEY).map(str::to_owned),
            fence: text(FENCE).and_then(|fence| fence.parse().ok()),
        })
    }
}

async fn create(
    kind: &'static Kind,
    State(app): State<Arc<App>>,
    caller: Caller,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match try_create(kind, &app, &caller, &headers, &body).await {
        Ok(response) => response,
        Err(problem) => problem.answer(kind.dialect),
    }
}

async fn try_create(
    kind: &'static Kind,
    app: &App,
    caller: &Caller,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, Problem> {
    let fault = app.fault(caller, headers)?;
    pause(app.options.handler + fault.delay).await;
    if let Some(Instead { answer, commit: false }) = fault.instead {
        return Ok(bad_answer(answer, kind.dialect));
    }
    let posted = Posted::read(headers, body)?;
    let new = new_resource(kind, &posted);
    let answered = match app.shop.book.create(caller, &new, app.options.deduplicate)? {
        Created::Fresh => Answered { status: new.status, location: new.location, body: new.body },
        Created::Before(answered) => answered,
        Created::Fenced { .. } => return Err(Problem::FENCED),
    };
    pause(fault.delay_answer).await;
    if let Some(Instead { answer, commit: true }) = fault.instead {
        return Ok(bad_answer(answer, kind.dialect));
    }
    Ok(answer(answered))
}

fn new_resource(kind: &'static Kind, posted: &Posted) -> NewResource {
    let at = jiff::Timestamp::now();
    let id = format!("{}{}", kind.id_prefix, random_hex());
    let body = (kind.shape)(&id, at, posted).to_string();
    // Stripe answers 200 and names no location.
    let (status, location) = match kind.dialect {
        Dialect::Shop => (201, format!("{}/{id}", kind.path)),
        Dialect::Stripe => (200, String::new()),
    };
    NewResource { id, kind: kind.name, endpoint: kind.endpoint, status, location, body, at: at.to_string() }
}

fn random_hex() -> String {
    let mut bytes = [0u8; 12];
    // The system's randomness can fail only before it is seeded; time then has to tell two ids apart.
    if getrandom::fill(&mut bytes).is_err() {
        bytes = jiff::Timestamp::now().as_nanosecond().to_be_bytes()[4..].try_into().unwrap_or(bytes);
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn pause(time: std::time::Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

fn answer(answered: Answered) -> Response {
    let status = StatusCode::from_u16(answered.status).unwrap_or(StatusCode::OK);
    let mut response = json_text(status, answered.body);
    if let Ok(location) = HeaderValue::try_from(answered.location)
        && !location.is_empty()
    {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

fn json_text(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn bad_answer(answer: BadAnswer, dialect: Dialect) -> Response {
    match answer {
        BadAnswer::Cut => Cut::response(),
        BadAnswer::Status(status) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Problem::new(status, Problem::ON_REQUEST, "This answer was asked for by a fault").answer(dialect)
        }
    }
}

async fn list(
    kind: &'static Kind,
    State(app): State<Arc<App>>,
    caller: Caller,
    Query(page): Query<Page>,
) -> Result<Response, Problem> {
    let found = app.shop.book.list(&caller.account, kind.name, page.limit())?;
    let data: Vec<Value> =
        found.iter().map(|body| serde_json::from_str(body).unwrap_or(Value::Null)).collect();
    let body = match kind.dialect {
        Dialect::Shop => Value::Array(data),
        Dialect::Stripe => stripe::list(kind.path, &data),
    };
    Ok(json_text(StatusCode::OK, body.to_string()))
}

async fn one(
    kind: &'static Kind,
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Response {
    match app.shop.book.get(&caller.account, kind.name, &id) {
        Ok(Some(body)) => json_text(StatusCode::OK, body),
        Ok(None) => Problem::NOT_FOUND.answer(kind.dialect),
        Err(error) => Problem::from(error).answer(kind.dialect),
    }
}

async fn one_order(state: State<Arc<App>>, caller: Caller, id: Path<String>) -> Response {
    one(&ORDER, state, caller, id).await
}

async fn delete_order(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let fault = app.fault(&caller, &headers)?;
    pause(app.options.handler + fault.delay).await;
    if let Some(Instead { answer, commit: false }) = fault.instead {
        return Ok(bad_answer(answer, Dialect::Shop));
    }
    let at = jiff::Timestamp::now().to_string();
    let deleted = app.shop.book.delete(&caller, ORDER.name, &id, "DELETE /orders/{id}", &at)?;
    pause(fault.delay_answer).await;
    match fault.instead {
        Some(Instead { answer, .. }) => Ok(bad_answer(answer, Dialect::Shop)),
        None if deleted => Ok(StatusCode::NO_CONTENT.into_response()),
        None => Err(Problem::NOT_FOUND),
    }
}

/// Paging of the lists and the ledger.
#[derive(Debug, Deserialize)]
struct Page {
    limit: Option<i64>,
    #[serde(default)]
    after: i64,
    account: Option<String>,
    key: Option<String>,
}

impl Page {
    fn limit(&self) -> i64 {
        self.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX)
    }
}

/// Open to everybody: it is the sample's evidence, and the proofs read all accounts at once.
async fn ledger(State(app): State<Arc<App>>, Query(page): Query<Page>) -> Result<Response, Problem> {
    let query = LedgerQuery { limit: page.limit(), after: page.after, account: page.account, key: page.key };
    let (entries, next) = app.shop.book.ledger(&query)?;
    let body = serde_json::to_string(&entries).map_err(|_| Problem::FILE)?;
    let mut response = json_text(StatusCode::OK, body);
    if let Some(next) = next {
        response.headers_mut().insert(NEXT_AFTER, HeaderValue::from(next));
    }
    Ok(response)
}

#[derive(Debug, Deserialize)]
struct ProbeQuery {
    fence: Option<String>,
}

async fn operation(
    State(app): State<Arc<App>>,
    caller: Caller,
    Path(key): Path<String>,
    Query(query): Query<ProbeQuery>,
) -> Result<Response, Problem> {
    let fence = query.fence.map(|fence| fence.parse()).transpose().map_err(|_| Problem::QUERY)?;
    match app.shop.book.probe(&caller.account, &key, fence)? {
        Probe::Absent => Err(Problem::NOT_FOUND),
        Probe::Done(answered) => {
            let original = HeaderValue::from(answered.status);
            let mut response = answer(Answered { status: 200, ..answered });
            response.headers_mut().insert(ORIGINAL_STATUS, original);
            Ok(response)
        }
    }
}

impl App {
    fn fault(&self, caller: &Caller, headers: &HeaderMap) -> Result<Fault, Problem> {
        if !self.options.faults {
            return Ok(Fault::default());
        }
        let header = headers.get(FAULT).map(|value| value.to_str().unwrap_or("unreadable"));
        self.faults.take(header, &caller.account, caller.key.as_deref()).map_err(|_| Problem::FAULT)
    }
}

/// What may be posted to `/faults`: one entry, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Posting {
    One(Queued),
    Many { faults: Vec<Queued> },
}

async fn queue_faults(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, Problem> {
    let entries = match serde_json::from_slice(&body).map_err(|_| Problem::FAULT)? {
        Posting::One(entry) => vec![entry],
        Posting::Many { faults } => faults,
    };
    if !app.faults.push(entries) {
        return Err(Problem::FAULT);
    }
    Ok(pending_faults(State(app)).await)
}

async fn pending_faults(State(app): State<Arc<App>>) -> Response {
    json_text(StatusCode::OK, json!({ "faults": app.faults.pending() }).to_string())
}

async fn clear_faults(State(app): State<Arc<App>>) -> Response {
    app.faults.clear();
    StatusCode::NO_CONTENT.into_response()
}
