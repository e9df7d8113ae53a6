//! Answers in Stripe's shape, enough of it that the published Stripe SDKs read them as charges and payment intents.

use serde_json::{Value, json};

use crate::form::Posted;

pub(crate) fn charge(id: &str, created: i64, posted: &Posted) -> Value {
    json!({
        "id": id,
        "object": "charge",
        "amount": posted.amount,
        "amount_captured": posted.amount,
        "amount_refunded": 0,
        "captured": true,
        "created": created,
        "currency": posted.text("currency").unwrap_or("usd"),
        "description": posted.text("description"),
        "livemode": false,
        "metadata": posted.metadata(),
        "paid": true,
        "refunded": false,
        "status": "succeeded",
    })
}

pub(crate) fn payment_intent(id: &str, created: i64, posted: &Posted) -> Value {
    json!({
        "id": id,
        "object": "payment_intent",
        "amount": posted.amount,
        "amount_received": posted.amount,
        "capture_method": "automatic",
        "created": created,
        "currency": posted.text("currency").unwrap_or("usd"),
        "description": posted.text("description"),
        "livemode": false,
        "metadata": posted.metadata(),
        "payment_method_types": ["card"],
        "status": "succeeded",
    })
}

/// A page of them.
pub(crate) fn list(url: &str, data: &[Value]) -> Value {
    json!({ "object": "list", "url": url, "has_more": false, "data": data })
}
