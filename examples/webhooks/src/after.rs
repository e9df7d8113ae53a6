//! The event's id is the key, and its mark is made in the transaction of the invoice.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use retrysafe::{
    FingerprintKeys, SqliteStore,
    consume::{Consumed, Consumer, Event, Terms},
};

use crate::{LookUp, Paid};

/// As long as the sender goes on sending, and some more.
const WINDOW: Duration = Duration::from_secs(4 * 24 * 3600);

#[derive(Clone)]
struct Receiver {
    consumer: Consumer<SqliteStore>,
    look_up: LookUp,
}

/// The receiver with the guard. The sender's signature is verified in front of it.
///
/// # Errors
/// The name of the consumer is not one.
pub fn app(store: Arc<SqliteStore>, keys: FingerprintKeys, look_up: LookUp) -> Result<Router> {
    let consumer = Consumer::new(store, Terms::new("billing-webhooks", WINDOW)?, keys);
    Ok(Router::new().route("/webhooks", post(receive)).with_state(Receiver { consumer, look_up }))
}

async fn receive(State(receiver): State<Receiver>, body: Bytes) -> Response {
    let Ok(paid) = serde_json::from_slice::<Paid>(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    // Slow, and harmless when it is done twice: before the transaction, which must not wait for it.
    (receiver.look_up)().await;
    let id = paid.id.clone();
    let event = Event { source: "billing", id: &id, payload: &body };
    let consumed = receiver
        .consumer
        .guard_sync(&event, move |tx| {
            tx.execute("INSERT INTO invoice (event, order_id) VALUES (?1, ?2)", (paid.id, paid.order))?;
            // Before the ledger of effects writes a row of its own.
            let invoice = tx.last_insert_rowid();
            tx.effect("invoice")?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(format!("invoice {invoice}").into())
        })
        .await;
    match consumed {
        // 2xx ends the sending.
        Ok(Consumed::Done(invoice) | Consumed::Replayed(invoice)) => {
            (StatusCode::OK, invoice).into_response()
        }
        Ok(Consumed::NotKept) => StatusCode::OK.into_response(),
        // Sending again would change nothing; people look at it.
        Ok(Consumed::Mismatch | Consumed::OutcomeUnknown) => StatusCode::CONFLICT.into_response(),
        // Anything else makes the sender come again, which is what is wanted.
        Ok(Consumed::InFlight) | Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}
