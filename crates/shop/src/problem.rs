//! The shop's refusals: problem details (RFC 9457), or Stripe's envelope on Stripe's routes.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::ShopError;

/// Why the shop will not do it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) title: &'static str,
}

/// Whose dialect an answer is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Shop,
    Stripe,
}

impl Problem {
    pub(crate) const fn new(status: StatusCode, code: &'static str, title: &'static str) -> Self {
        Self { status, code, title }
    }

    pub(crate) const NO_ACCOUNT: Self =
        Self::new(StatusCode::UNAUTHORIZED, "no_account", "Send any bearer token: it is the account");
    pub(crate) const NOT_FOUND: Self =
        Self::new(StatusCode::NOT_FOUND, "not_found", "This account has no such thing");
    pub(crate) const AMOUNT: Self = Self::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "amount_invalid",
        "amount must be a whole number of cents above 0",
    );
    pub(crate) const BODY: Self = Self::new(
        StatusCode::BAD_REQUEST,
        "body_invalid",
        "The body must be a JSON object or a form, with an amount",
    );
    pub(crate) const FENCED: Self = Self::new(
        StatusCode::CONFLICT,
        "fenced",
        "A later probe has closed this key to this request; nothing was done",
    );
    pub(crate) const FAULT: Self =
        Self::new(StatusCode::BAD_REQUEST, "fault_unknown", "This is not a fault the shop knows");
    pub(crate) const QUERY: Self =
        Self::new(StatusCode::BAD_REQUEST, "query_invalid", "A query parameter is not what it should be");
    pub(crate) const ON_REQUEST: &'static str = "fault_injected";
    pub(crate) const FILE: Self = Self::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "file_unavailable",
        "The file of effects cannot be written; nothing was done",
    );

    pub(crate) fn answer(self, dialect: Dialect) -> Response {
        let (kind, body) = match dialect {
            Dialect::Shop => (
                "application/problem+json",
                json!({ "type": "about:blank", "title": self.title, "status": self.status.as_u16(), "code": self.code }),
            ),
            Dialect::Stripe => {
                let of = if self.status.is_server_error() { "api_error" } else { "invalid_request_error" };
                (
                    "application/json",
                    json!({ "error": { "type": of, "code": self.code, "message": self.title } }),
                )
            }
        };
        let mut response = (self.status, body.to_string()).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.answer(Dialect::Shop)
    }
}

impl From<ShopError> for Problem {
    fn from(error: ShopError) -> Self {
        tracing::error!(%error, "the shop's file failed");
        Self::FILE
    }
}
