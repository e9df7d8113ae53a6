//! Operations that are said to be idempotent by their methods, rightly and wrongly.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, patch, post, put},
};
use serde_json::{Value, json};

#[derive(Default)]
struct Things {
    /// By name: what is there. A write changes `updated_at` whatever it writes.
    things: BTreeMap<String, Value>,
    writes: u64,
    audit: Vec<String>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Things>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Things> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `/notes` are sound; the others repeat what they should not.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/notes", post(make))
        .route("/notes/{name}", put(set).get(read).delete(remove))
        .route("/appends/{name}", put(append).get(read))
        .route("/counters/{name}", patch(count).get(read))
        .route("/stacks/{name}", get(read).delete(pop))
        .route("/audited/{name}", put(set_and_write_down).get(read))
        .route("/audit/{name}", get(audit))
        .with_state(Shared::default())
}

async fn make(State(shared): State<Shared>, Json(body): Json<Value>) -> Response {
    let mut things = shared.lock();
    let id = things.things.len() + 1;
    let name = format!("n{id}");
    things.things.insert(
        name.clone(),
        json!({ "id": name, "text": body["text"], "members": [1, 2, 3, 4, 5, 6, 7, 8] }),
    );
    (StatusCode::CREATED, Json(json!({ "note": { "id": name } }))).into_response()
}

async fn read(State(shared): State<Shared>, Path(name): Path<String>) -> Response {
    match shared.lock().things.get(&name) {
        Some(thing) => Json(thing.clone()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn set(State(shared): State<Shared>, Path(name): Path<String>, Json(body): Json<Value>) -> StatusCode {
    let mut things = shared.lock();
    things.writes += 1;
    let written = things.writes;
    things.things.insert(name.clone(), json!({ "id": name, "text": body["text"], "updated_at": written }));
    StatusCode::OK
}

async fn remove(State(shared): State<Shared>, Path(name): Path<String>) -> StatusCode {
    match shared.lock().things.remove(&name) {
        Some(_) => StatusCode::NO_CONTENT,
        None => StatusCode::NOT_FOUND,
    }
}

async fn append(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    Json(body): Json<Value>,
) -> StatusCode {
    let mut things = shared.lock();
    let log = things.things.entry(name).or_insert_with(|| json!({ "lines": [] }));
    if let Some(lines) = log["lines"].as_array_mut() {
        lines.push(body["text"].clone());
    }
    StatusCode::OK
}

async fn count(State(shared): State<Shared>, Path(name): Path<String>) -> StatusCode {
    let mut things = shared.lock();
    let counter = things.things.entry(name).or_insert_with(|| json!({ "value": 0 }));
    counter["value"] = json!(counter["value"].as_i64().unwrap_or_default() + 1);
    StatusCode::OK
}

async fn pop(State(shared): State<Shared>, Path(name): Path<String>) -> StatusCode {
    let mut things = shared.lock();
    if let Some(members) = things.things.get_mut(&name).and_then(|thing| thing["members"].as_array_mut()) {
        members.pop();
    }
    StatusCode::NO_CONTENT
}

async fn set_and_write_down(state: State<Shared>, name: Path<String>, body: Json<Value>) -> StatusCode {
    state.lock().audit.push(name.0.clone());
    set(state, name, body).await
}

async fn audit(State(shared): State<Shared>, Path(name): Path<String>) -> Json<Value> {
    let things = shared.lock();
    Json(json!(things.audit.iter().filter(|line| **line == name).collect::<Vec<_>>()))
}
