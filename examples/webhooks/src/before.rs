//! Check, then insert: the race.
//!
//! Between the check and the insert there is time, and a second delivery uses it. That both run in transactions does not
//! help: neither sees the row that the other has not committed.

use std::sync::Arc;

use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use retrysafe::SqliteStore;

use crate::{LookUp, Paid};

#[derive(Clone)]
struct Receiver {
    store: Arc<SqliteStore>,
    look_up: LookUp,
}

/// The receiver as it is usually written. Do not copy it.
pub fn app(store: Arc<SqliteStore>, look_up: LookUp) -> Router {
    Router::new().route("/webhooks", post(receive)).with_state(Receiver { store, look_up })
}

async fn receive(State(receiver): State<Receiver>, Json(paid): Json<Paid>) -> StatusCode {
    let event = paid.id.clone();
    let known = receiver
        .store
        .run(move |tables| {
            tables.query_row("SELECT count(*) FROM invoice WHERE event = ?1", [event], |row| {
                row.get::<_, i64>(0)
            })
        })
        .await;
    match known {
        Ok(0) => {}
        Ok(_) => return StatusCode::OK,
        Err(_) => return StatusCode::SERVICE_UNAVAILABLE,
    }
    (receiver.look_up)().await;
    let made = receiver
        .store
        .run(move |tables| {
            tables.execute("INSERT INTO invoice (event, order_id) VALUES (?1, ?2)", (paid.id, paid.order))
        })
        .await;
    if made.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}
