//! Which parameter of an operation is an idempotency key, which only looks like one, and which says that it does nothing.
//!
//! A name that means nothing else (`Idempotency-Key`) is a key. A name that may mean anything (`requestId`) is one only where
//! its description speaks of repetition. `x-ms-client-request-id` never is.

use crate::{
    bundle::Place,
    effect::{Confidence, Evidence},
    operation::{In, Operation, Parameter},
    words::{find, folded, prose, quote},
};

/// What a candidate is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Standing {
    /// A key.
    Key,
    /// A name that may mean a key, and no word about repetition.
    Ambiguous,
    /// For traces and support.
    Tracing,
    /// A second use is refused: no double effect, and no answer either.
    RefusesReuse,
    /// Its own description says that it does nothing (yet).
    Unsupported,
}

/// A parameter that looks like a key.
#[derive(Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) parameter: &'a Parameter<'a>,
    pub(crate) standing: Standing,
    pub(crate) confidence: Confidence,
    /// What decided.
    pub(crate) quote: String,
}

impl Standing {
    /// As reports spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Ambiguous => "ambiguous",
            Self::Tracing => "tracing",
            Self::RefusesReuse => "refuses-reuse",
            Self::Unsupported => "unsupported",
        }
    }
}

impl Candidate<'_> {
    pub(crate) fn evidence(&self) -> Evidence {
        Evidence { place: self.at().clone(), quote: self.quote.clone(), weight: self.confidence }
    }

    pub(crate) fn at(&self) -> &Place {
        &self.parameter.at
    }

    /// Its description, for searching.
    pub(crate) fn prose(&self) -> String {
        prose(&self.parameter.description)
    }
}

/// Names, folded, that mean a key and nothing else, beside everything with `idempot` in it.
const STRONG: &[&str] =
    &["repeatabilityrequestid", "paypalrequestid", "deduplicationid", "dedupekey", "deduplicationkey"];
/// Names, folded, that mean many things.
const AMBIGUOUS: &[&str] = &[
    "clienttoken",
    "xamzclienttoken",
    "requestid",
    "xrequestid",
    "clientrequestid",
    "clientrequesttoken",
    "creationtoken",
    "xuniquetransactionid",
    "clientmutationid",
    "transactiontoken",
    "requesttoken",
];
/// The same, where they are fields of a body: their meaning is the resource's own more often than not.
const AMBIGUOUS_IN_BODY: &[&str] = &["externalid", "reference", "clientreference"];
/// Names, folded, that are for traces whatever their description says.
const NEVER: &[&str] = &[
    "xmsclientrequestid",
    "traceparent",
    "tracestate",
    "xcorrelationid",
    "correlationid",
    "xb3traceid",
    "xtraceid",
];

/// What a description of a key speaks of.
const REPETITION: &[&str] = &[
    "idempot",
    "duplicat",
    "same request",
    "already been completed",
    "already completed",
    "already processed",
    "been processed",
    "retry",
    "retries",
    "retried",
    "processed twice",
    "executed twice",
    "more than once",
    "exactly-once", // tidy: allow(promise)
    "only once",
    "repeated request",
    "with the same id",
    "with the same request",
    "with the same `request_id`",
    "existing request id",
    "replay",
];
const TRACES: &[&str] =
    &["trac", "correlat", "debug", "troubleshoot", "support", "logging", "diagnos", "log ", "logs"];
const UNSUPPORTED: &[&str] = &[
    "isn't currently supported",
    "is not currently supported",
    "not currently supported",
    "isn't supported",
    "not yet supported",
    "is not supported",
    "currently not supported",
    "is ignored",
    "currently ignored",
    "reserved for future",
    "not implemented",
    "has no effect",
];
const REFUSES: &[&str] = &[
    "cannot be reused",
    "can not be reused",
    "must not be reused",
    "can't be reused",
    "may not be reused",
    "will be rejected",
    "is rejected",
    "be rejected",
    "will be refused",
    "must be unique",
    "should be unique",
    "been used before",
    "already used",
    "will be denied",
    "will fail",
    "is used again",
    "respond with an error when the same",
];

/// The candidates of an operation, in the order of the document.
pub(crate) fn candidates<'a>(operation: &'a Operation<'_>) -> Vec<Candidate<'a>> {
    let declared = operation.parameters.iter().filter(|one| matches!(one.place_in, In::Header | In::Query));
    declared.chain(&operation.body.fields).filter_map(candidate).collect()
}

fn candidate<'a>(parameter: &'a Parameter<'_>) -> Option<Candidate<'a>> {
    let name = folded(parameter.name);
    let in_body = parameter.place_in == In::Body;
    // A flag or a count is no key whatever it is called.
    let kind = parameter.shaped("type").and_then(crate::tree::Node::text).unwrap_or("string");
    if matches!(kind, "boolean" | "integer" | "number" | "array" | "object") {
        return None;
    }
    let strong = STRONG.contains(&&*name) || name.contains("idempot") && !is_about_keys(&name);
    let never = NEVER.contains(&&*name);
    let ambiguous = AMBIGUOUS.contains(&&*name)
        || ["clientrequestid", "clienttoken"].iter().any(|end| name.ends_with(end))
        || in_body && AMBIGUOUS_IN_BODY.contains(&&*name);
    if !(strong || never || ambiguous) {
        return None;
    }
    let text = prose(&parameter.description);
    let said = |phrase: &str| quote(&parameter.description, phrase);
    let named = || parameter.name.to_owned();
    let (standing, confidence, quote) = if never {
        (Standing::Tracing, Confidence::High, named())
    } else if let Some((phrase, _)) = unsupported(&text) {
        (Standing::Unsupported, Confidence::Medium, said(phrase))
    } else if strong {
        (Standing::Key, Confidence::High, named())
    } else if let Some((phrase, _)) = find(&text, REPETITION) {
        (Standing::Key, Confidence::Medium, said(phrase))
    } else if let Some((phrase, _)) = find(&text, REFUSES).filter(|_| !in_body) {
        (Standing::RefusesReuse, Confidence::Medium, said(phrase))
    } else if let Some((phrase, _)) = find(&text, TRACES) {
        (Standing::Tracing, Confidence::Medium, said(phrase))
    } else if in_body && AMBIGUOUS_IN_BODY.contains(&&*name) {
        // A reference without a word about repetition is a reference.
        return None;
    } else {
        (Standing::Ambiguous, Confidence::Low, named())
    };
    Some(Candidate { parameter, standing, confidence, quote })
}

/// `idempotencyKeyExpiry`, `is_idempotent`: about keys, and none.
fn is_about_keys(name: &str) -> bool {
    name.starts_with("isidempot")
        || ["ttl", "expiry", "expires", "replayed", "replay", "status", "enabled", "expiration", "at"]
            .iter()
            .any(|end| name.ends_with(end))
}

/// What says that it does nothing: only in a sentence that speaks of the key itself.
fn unsupported(text: &str) -> Option<(&'static str, usize)> {
    let sentence = crate::words::sentences(text).find(|sentence| {
        find(sentence, UNSUPPORTED).is_some()
            && (sentence.contains("idempot") || sentence.contains("token") || sentence.contains("this header") || sentence.contains("this field") || sentence.contains("this parameter"))
            // "is ignored if": under a condition it works.
            && !sentence.contains("ignored if") && !sentence.contains("ignored when") && !sentence.contains("ignored for")
    })?;
    find(sentence, UNSUPPORTED)
}
