//! The JSON handler that the bench measures bare, behind the layer and behind the peer: one body of about
//! 150 bytes in, one of about 300 out, no I/O. This file is copied into the peer's scratch project as it is.

use axum::Json;
use axum::http::{HeaderName, StatusCode};
use serde::{Deserialize, Serialize};

/// What a client sends.
#[derive(Deserialize)]
pub(crate) struct Order {
    amount: i64,
    currency: String,
    customer: String,
    note: String,
}

/// What it gets back.
#[derive(Serialize)]
pub(crate) struct Receipt {
    id: String,
    object: &'static str,
    amount: i64,
    currency: String,
    customer: String,
    note: String,
    status: &'static str,
    livemode: bool,
    lines: [Line; 2],
}

#[derive(Serialize)]
struct Line {
    label: &'static str,
    amount: i64,
}

/// The request body of every bench row.
pub(crate) const BODY: &str = r#"{"amount":4200,"currency":"eur","customer":"cus_8Qk2vXw1Zr","note":"two tickets, row seven, paid by card at the door on Friday evening, no receipt"}"#;

/// Parses, computes a little, answers.
pub(crate) async fn order(
    Json(order): Json<Order>,
) -> (StatusCode, [(HeaderName, &'static str); 1], Json<Receipt>) {
    let fee = order.amount / 40;
    let receipt = Receipt {
        id: format!("ord_{:012x}", order.amount * 7919),
        object: "order",
        amount: order.amount,
        currency: order.currency,
        customer: order.customer,
        note: order.note,
        status: "succeeded",
        livemode: false,
        lines: [Line { label: "goods", amount: order.amount - fee }, Line { label: "fee", amount: fee }],
    };
    (StatusCode::CREATED, [(axum::http::header::LOCATION, "/orders/ord_000000000001")], Json(receipt))
}
