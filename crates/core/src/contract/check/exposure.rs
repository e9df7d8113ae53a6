//! Who may see a stored answer, and what counts as the same request (SPEC 2.2, 2.4, 3.4; protocol 1, 3).

use super::{Case, Finding, error, warning};
use crate::{contract::model::Scope, policy::Place};

/// Headers of one connection or hop (RFC 9110, 7.6.1): never stored, whatever a contract says.
const OF_THE_CONNECTION: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
];

/// Headers that real clients change between the attempts of one call.
const CHANGE_BETWEEN_ATTEMPTS: [&str; 14] = [
    "authorization",
    "amz-sdk-invocation-id",
    "amz-sdk-request",
    "b3",
    "baggage",
    "date",
    "sentry-trace",
    "svix-retry-count",
    "traceparent",
    "tracestate",
    "x-amzn-trace-id",
    "x-request-id",
    "x-stainless-retry-count",
    "x-stripe-client-telemetry",
];

pub(super) fn application_scope_at_gateway(case: &Case<'_>) -> Option<Finding> {
    (case.endpoint.scope == Scope::Application && case.offered.place == Place::Gateway).then(|| {
        let message = "source = \"application\" takes the account from the service's own authentication, and a gateway has none";
        let help = "write source = \"jwt\", \"trusted_header\" or \"api_key\"";
        error("application_scope_at_gateway", message, help)
    })
}

pub(super) fn replays_not_reauthorised(case: &Case<'_>) -> Option<Finding> {
    let unverified = matches!(case.endpoint.scope, Scope::ApiKey { .. } | Scope::Anonymous);
    let gateway = case.offered.place == Place::Gateway;
    (unverified && gateway && case.endpoint.reauthorise.is_none()).then(|| {
        let message = "the gateway cannot verify this identity, so a caller whose key was revoked still gets stored answers";
        let help = "write reauthorise = { path = \"/auth/check\" }: the upstream is asked before every replay";
        warning("replays_not_reauthorised", message, help)
    })
}

pub(super) fn one_scope_for_all(case: &Case<'_>) -> Option<Finding> {
    (case.endpoint.scope == Scope::Anonymous).then(|| {
        let message = "all callers share one scope: whoever knows or guesses a key gets the answer of whoever used it";
        let help = "write a [scope] with an identity, or let clients use keys that cannot be guessed (a random UUID)";
        warning("one_scope_for_all", message, help)
    })
}

pub(super) fn cookies_replayed(case: &Case<'_>) -> Option<Finding> {
    case.endpoint.headers.keep.iter().any(|name| name == "set-cookie").then(|| {
        let message =
            "Set-Cookie is stored and replayed: a later caller of the account gets the first one's session";
        warning(
            "cookies_replayed",
            message,
            "take set-cookie out of stored_headers.keep, unless the cookie is no secret",
        )
    })
}

pub(super) fn connection_headers_kept(case: &Case<'_>) -> Option<Finding> {
    let kept = case.endpoint.headers.keep.iter().find(|name| OF_THE_CONNECTION.contains(&name.as_str()))?;
    let message = format!("{kept} belongs to one connection and cannot be replayed on another");
    Some(error("connection_headers_kept", message, format!("take {kept} out of stored_headers.keep")))
}

pub(super) fn body_not_compared(case: &Case<'_>) -> Option<Finding> {
    case.endpoint.body_rules.ignore_body.then(|| {
        let message = "bodies are not compared: another order under the same key gets the first one's answer";
        let help = "leave out what changes between attempts instead: fingerprint.exclude = [\"/sent_at\"]";
        warning("body_not_compared", message, help)
    })
}

pub(super) fn changing_header_compared(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint;
    let compared = endpoint.fingerprint_headers.iter().chain(&endpoint.scope_headers);
    let changing: Vec<&str> =
        compared.map(String::as_str).filter(|name| CHANGE_BETWEEN_ATTEMPTS.contains(name)).collect();
    (!changing.is_empty()).then(|| {
        let message = format!(
            "{} changes between the attempts of one call: an honest retry would be refused, or run again",
            changing.join(", ")
        );
        error("changing_header_compared", message, "name only headers that select the account or the effect")
    })
}
