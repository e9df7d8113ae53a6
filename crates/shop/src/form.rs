//! What a caller posted: a JSON object or a form, as one map.

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use serde_json::{Map, Value};

use crate::problem::Problem;

/// The fields of a posted body, in the order they were sent, and the amount, checked.
pub(crate) struct Posted {
    pub(crate) amount: i64,
    pub(crate) rest: Map<String, Value>,
}

impl Posted {
    pub(crate) fn read(headers: &HeaderMap, body: &[u8]) -> Result<Self, Problem> {
        let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let mut fields = if kind.starts_with("application/x-www-form-urlencoded") {
            form_urlencoded::parse(body)
                .map(|(name, value)| (name.into_owned(), Value::from(value.into_owned())))
                .collect()
        } else {
            serde_json::from_slice::<Map<String, Value>>(body).map_err(|_| Problem::BODY)?
        };
        let amount = match fields.remove("amount") {
            Some(Value::Number(number)) => number.as_i64(),
            Some(Value::String(text)) => text.parse().ok(),
            _ => None,
        };
        match amount {
            Some(amount) if amount > 0 => Ok(Self { amount, rest: fields }),
            _ => Err(Problem::AMOUNT),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.rest.get(name).and_then(Value::as_str)
    }

    /// Stripe's `metadata[name]=value` fields, as an object.
    pub(crate) fn metadata(&self) -> Map<String, Value> {
        let inside = |name: &str| Some(name.strip_prefix("metadata[")?.strip_suffix(']')?.to_owned());
        self.rest.iter().filter_map(|(name, value)| Some((inside(name)?, value.clone()))).collect()
    }
}
