//! The machine codes of the layer's own answers: the one table (SPEC 5.5).
//!
//! A code says what happened; the status is only its default dress, which a contract may change (the IETF draft wants
//! 422 for a mismatch). A client looks at the code, never at the status alone: 409 and 422 mean other things too (O4).
//! Each code has a page, `docs/errors/CODE.md`; `cargo xtask tidy` keeps the two in step.

/// A code of the table. The wire form is [`Code::as_str`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Code {
    /// The endpoint requires a key and there is none.
    KeyMissing,
    /// The key is there, and empty.
    KeyEmpty,
    /// The key is longer than the contract allows.
    KeyTooLong,
    /// The key has bytes or a syntax that keys cannot have.
    KeyMalformed,
    /// More than one key: two header lines, or a list.
    KeyAmbiguous,
    /// Same key, another request.
    PayloadMismatch,
    /// Received, unfinished.
    KeyInFlight,
    /// It may have happened; being looked at.
    OutcomeUnknown,
    /// Done; the body was too large or is not to be kept.
    ResponseNotKept,
    /// No identity to scope by.
    ScopeMissing,
    /// The store cannot answer; nothing was run.
    StoreUnavailable,
    /// Too many requests are running; nothing was run.
    Overloaded,
    /// The upstream could not be reached; nothing was sent to it, or sending again is safe.
    UpstreamUnavailable,
    /// The upstream broke off after the request had been sent, in part or whole; the request carried no key.
    UpstreamBroken,
    /// The upstream did not answer in time; the request carried no key.
    UpstreamTimeout,
    /// It cannot be forwarded as it is; nothing was sent.
    RequestRefused,
    /// The contract does not list this state-changing operation.
    EndpointUnlisted,
    /// Arrived past its deadline; nothing was run.
    DeadlineExceeded,
    /// Refused by size before any claim.
    RequestTooLarge,
    /// A keyed request that cannot be guarded as it is (a protocol upgrade).
    NotGuardable,
    /// Two hops on the request's way use one namespace (protocol 2): a fault of the deployment, not of the caller.
    NamespaceCollision,
}

use Code::*;

impl Code {
    /// Every code, in the table's order.
    pub const ALL: [Code; 21] = [
        KeyMissing,
        KeyEmpty,
        KeyTooLong,
        KeyMalformed,
        KeyAmbiguous,
        PayloadMismatch,
        KeyInFlight,
        OutcomeUnknown,
        ResponseNotKept,
        ScopeMissing,
        StoreUnavailable,
        Overloaded,
        UpstreamUnavailable,
        UpstreamBroken,
        UpstreamTimeout,
        RequestRefused,
        EndpointUnlisted,
        DeadlineExceeded,
        RequestTooLarge,
        NotGuardable,
        NamespaceCollision,
    ];

    /// The code on the wire, stable for ever.
    pub fn as_str(self) -> &'static str {
        self.row().0
    }

    /// Default status.
    pub fn status(self) -> u16 {
        self.row().1
    }

    /// Whether the same request with the same key may succeed later.
    pub fn retryable(self) -> bool {
        self.row().2
    }

    /// One line for the `title` of the problem.
    pub fn title(self) -> &'static str {
        self.row().3
    }

    /// What the caller can do, for the `detail` of the problem. Holds no value of the request.
    pub fn detail(self) -> &'static str {
        self.row().4
    }

    /// The page that explains this code to people, in Markdown: `docs/errors/CODE.md`.
    pub fn page(self) -> &'static str {
        match self {
            KeyMissing => include_str!("../../../docs/errors/idempotency_key_missing.md"),
            KeyEmpty => include_str!("../../../docs/errors/idempotency_key_empty.md"),
            KeyTooLong => include_str!("../../../docs/errors/idempotency_key_too_long.md"),
            KeyMalformed => include_str!("../../../docs/errors/idempotency_key_malformed.md"),
            KeyAmbiguous => include_str!("../../../docs/errors/idempotency_key_ambiguous.md"),
            PayloadMismatch => include_str!("../../../docs/errors/idempotency_key_payload_mismatch.md"),
            KeyInFlight => include_str!("../../../docs/errors/idempotency_key_in_flight.md"),
            OutcomeUnknown => include_str!("../../../docs/errors/idempotency_outcome_unknown.md"),
            ResponseNotKept => include_str!("../../../docs/errors/idempotency_response_not_kept.md"),
            ScopeMissing => include_str!("../../../docs/errors/idempotency_scope_missing.md"),
            StoreUnavailable => include_str!("../../../docs/errors/idempotency_store_unavailable.md"),
            Overloaded => include_str!("../../../docs/errors/idempotency_overloaded.md"),
            UpstreamUnavailable => include_str!("../../../docs/errors/upstream_unavailable.md"),
            UpstreamBroken => include_str!("../../../docs/errors/upstream_broken.md"),
            UpstreamTimeout => include_str!("../../../docs/errors/upstream_timeout.md"),
            RequestRefused => include_str!("../../../docs/errors/request_refused.md"),
            EndpointUnlisted => include_str!("../../../docs/errors/idempotency_endpoint_unlisted.md"),
            DeadlineExceeded => include_str!("../../../docs/errors/deadline_exceeded_before_start.md"),
            RequestTooLarge => include_str!("../../../docs/errors/request_too_large.md"),
            NotGuardable => include_str!("../../../docs/errors/idempotency_not_guardable.md"),
            NamespaceCollision => include_str!("../../../docs/errors/idempotency_namespace_collision.md"),
        }
    }

    /// The code with this wire form.
    pub fn from_wire(code: &str) -> Option<Code> {
        Code::ALL.into_iter().find(|known| known.as_str() == code)
    }

    #[rustfmt::skip]
    fn row(self) -> (&'static str, u16, bool, &'static str, &'static str) {
        match self {
            KeyMissing => ("idempotency_key_missing", 400, false,
                "An idempotency key is required",
                "Make one key for this operation and send it on every attempt."),
            KeyEmpty => ("idempotency_key_empty", 400, false,
                "The idempotency key is empty",
                "Send a key of at least one visible character."),
            KeyTooLong => ("idempotency_key_too_long", 400, false,
                "The idempotency key is too long",
                "Send a shorter key; the API's documentation states the limit in bytes."),
            KeyMalformed => ("idempotency_key_malformed", 400, false,
                "The idempotency key is malformed",
                "Send visible ASCII characters, bare or as one quoted string."),
            KeyAmbiguous => ("idempotency_key_ambiguous", 400, false,
                "More than one idempotency key",
                "Send the key on one header line, as one value without a list."),
            PayloadMismatch => ("idempotency_key_payload_mismatch", 409, false,
                "The idempotency key was used for another request",
                "Send the original request with this key, or a new key for a new operation."),
            KeyInFlight => ("idempotency_key_in_flight", 409, true,
                "A request with this idempotency key is in flight",
                "Wait, then send the same request with the same key."),
            OutcomeUnknown => ("idempotency_outcome_unknown", 409, false,
                "The outcome of the request with this idempotency key is unknown",
                "It may have happened. Do not send it with a new key; look the operation up, or ask the API's operator."),
            ResponseNotKept => ("idempotency_response_not_kept", 409, false,
                "The request with this idempotency key is done; its answer was not kept",
                "It happened and is not run again. Look the result up."),
            ScopeMissing => ("idempotency_scope_missing", 401, false,
                "No identity to scope the idempotency key by",
                "Authenticate as the API's documentation says."),
            StoreUnavailable => ("idempotency_store_unavailable", 503, true,
                "The idempotency store is unavailable",
                "Send the same request with the same key later. Should it have been done, that gets its answer."),
            Overloaded => ("idempotency_overloaded", 503, true,
                "Too many requests are in flight",
                "Nothing was run. Send the same request with the same key later."),
            UpstreamUnavailable => ("upstream_unavailable", 503, true,
                "The API behind this gateway cannot be reached",
                "Send the same request with the same key later; that is safe."),
            UpstreamBroken => ("upstream_broken", 502, false,
                "The API behind this gateway broke off before it had answered",
                "It may have acted on the request. Only a request that is safe to repeat should be sent again."),
            UpstreamTimeout => ("upstream_timeout", 504, false,
                "The API behind this gateway did not answer in time",
                "It may still act on the request. Only a request that is safe to repeat should be sent again."),
            RequestRefused => ("request_refused", 400, false,
                "This request cannot be forwarded",
                "Nothing was sent. Use a method other than CONNECT and TRACE, one Host, no transfer coding but chunked, no expectation but 100-continue."),
            EndpointUnlisted => ("idempotency_endpoint_unlisted", 403, false,
                "This operation is not part of the API's contract",
                "Use a documented operation."),
            DeadlineExceeded => ("deadline_exceeded_before_start", 504, true,
                "The request arrived past its deadline",
                "Nothing was run. Send the same request with the same key and a new deadline."),
            RequestTooLarge => ("request_too_large", 413, false,
                "The request body is too large",
                "Nothing was run. Send a smaller body."),
            NotGuardable => ("idempotency_not_guardable", 400, false,
                "This request cannot carry an idempotency key",
                "Send it without protocol upgrade."),
            NamespaceCollision => ("idempotency_namespace_collision", 500, false,
                "Two hops of this API share a namespace",
                "Nothing was run. The API's operator has to give each hop its own namespace."),
        }
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_its_wire_form_and_by_no_other() {
        for code in Code::ALL {
            assert_eq!(Code::from_wire(code.as_str()), Some(code));
        }
        assert_eq!(Code::from_wire("idempotency"), None);
    }

    #[test]
    fn every_code_has_the_page_that_bears_its_name() {
        for code in Code::ALL {
            assert!(code.page().starts_with(&format!("# `{code}`")), "{code}");
        }
    }

    /// O4: the two 409s are told apart by their codes.
    #[test]
    fn o4_the_two_conflicts_have_different_codes() {
        assert_eq!(PayloadMismatch.status(), KeyInFlight.status());
        assert_ne!(PayloadMismatch.as_str(), KeyInFlight.as_str());
        assert!(KeyInFlight.retryable() && !PayloadMismatch.retryable());
    }
}
