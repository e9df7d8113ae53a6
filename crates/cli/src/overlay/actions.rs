//! What an overlay adds. No arrays but one: arrays grow whenever an overlay is applied again, objects do not.

use std::time::Duration;

use retrysafe_core::{
    codes::Code,
    contract::{Carrier, Contract, Endpoint, KeyUse, Scope, Unlisted},
    policy::Place,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    Spec,
    document::{Document, Operation},
};
use crate::docs::{failure, titled};

/// Statuses whose fate is told.
const STATUSES: [u16; 9] = [400, 402, 409, 422, 429, 500, 502, 503, 504];

/// An overlay, and what there is to say about it.
pub(super) struct Made {
    pub(super) overlay: Overlay,
    pub(super) notes: Vec<String>,
    /// An operation of the contract is not in the document.
    pub(super) unmatched: bool,
}

/// The overlay document, in the order in which people read it.
#[derive(Serialize)]
pub(super) struct Overlay {
    overlay: &'static str,
    info: Info,
    actions: Vec<Action>,
}

#[derive(Serialize)]
struct Info {
    title: String,
    version: String,
}

#[derive(Serialize)]
struct Action {
    target: String,
    description: String,
    update: Value,
}

/// The contract's overlay for a document.
pub(super) fn overlay(contract: &Contract, document: &Document, spec: Spec, place: Place) -> Made {
    let mut notes = Vec::new();
    let (mut parameters, mut responses) = (Map::new(), Map::new());
    let mut actions = Vec::new();
    let mut unmatched = false;
    for endpoint in &contract.endpoints {
        let Some(operation) = document.find(&endpoint.method, &endpoint.path) else {
            notes.push(format!("{} of the contract is not in this document", endpoint.name));
            unmatched = true;
            continue;
        };
        let own = responses_of(contract, endpoint, &operation, &mut responses, &mut notes);
        actions.push(Action {
            target: format!("$.paths[{}].{}", quoted(operation.path), operation.method),
            description: format!("How {} is retried", endpoint.name),
            update: json!({ "x-idempotency": extension(contract, endpoint, place), "responses": own }),
        });
        if let (Carrier::Header(header), false) =
            (&endpoint.carrier, matches!(endpoint.key, KeyUse::Unsafe { .. }))
        {
            if document.declares_header(&operation, header) {
                notes.push(format!(
                    "{} declares {} itself; it is left as it is",
                    endpoint.name,
                    titled(header)
                ));
            } else {
                let name = component(header, endpoint.key == KeyUse::Required);
                parameters.insert(name.clone(), parameter(endpoint, header));
                actions.extend(with_parameter(endpoint, &operation, &name, spec));
            }
        }
    }
    notes.extend(not_listed(contract, document));
    for (kind, own) in [("parameters", &mut parameters), ("responses", &mut responses)] {
        // A component of the document's own is not overwritten.
        own.retain(|name, _| document.components(kind).is_none_or(|there| !there.contains_key(name)));
    }
    let mut components = Map::new();
    for (kind, own) in [("parameters", parameters), ("responses", responses)] {
        if !own.is_empty() {
            components.insert(kind.to_owned(), Value::Object(own));
        }
    }
    if !components.is_empty() {
        let description = "What the operations below refer to".to_owned();
        actions.insert(
            0,
            Action { target: "$".to_owned(), description, update: json!({ "components": components }) },
        );
    }
    let info =
        Info { title: format!("Idempotency of {}", contract.api), version: contract.version.to_string() };
    let version = match spec {
        Spec::V1_0 => "1.0.0",
        Spec::V1_1 => "1.1.0",
    };
    Made { overlay: Overlay { overlay: version, info, actions }, notes, unmatched }
}

/// Operations of the document that the contract does not list: neither keyed nor documented as unsafe (SPEC 1.2).
fn not_listed(contract: &Contract, document: &Document) -> Vec<String> {
    let listed = |operation: &Operation<'_>| {
        contract.endpoints.iter().any(|endpoint| {
            document
                .find(&endpoint.method, &endpoint.path)
                .is_some_and(|found| found.path == operation.path && found.method == operation.method)
        })
    };
    let fate = match contract.unlisted {
        Unlisted::Pass => "passes unguarded",
        Unlisted::Refuse => "is refused",
    };
    let strangers = document.operations().filter(|operation| !listed(operation));
    strangers
        .map(|operation| {
            format!(
                "{} {} is not in the contract and {fate}",
                operation.method.to_uppercase(),
                operation.path
            )
        })
        .collect()
}

/// A JSONPath name.
fn quoted(name: &str) -> String {
    format!("'{}'", name.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// `IdempotencyKey`, `IdempotencyKeyOptional`.
fn component(header: &str, required: bool) -> String {
    let name: String = titled(header).split('-').collect();
    if required { name } else { name + "Optional" }
}

fn parameter(endpoint: &Endpoint, header: &str) -> Value {
    json!({
        "name": titled(header), "in": "header", "required": endpoint.key == KeyUse::Required,
        "description": "One key for one operation: made once, before the first attempt, and the same on every attempt.",
        "schema": { "type": "string", "minLength": 1, "maxLength": endpoint.key_rules.max_len },
        "example": "order-confirm-1042",
    })
}

/// Adds the parameter where it is not yet: the condition is what makes a second application harmless.
fn with_parameter(endpoint: &Endpoint, operation: &Operation<'_>, name: &str, spec: Spec) -> [Action; 2] {
    let reference = format!("#/components/parameters/{name}");
    let this = format!("@['x-idempotency'].operation == {}", quoted(&endpoint.name));
    let path = quoted(operation.path);
    let update = match spec {
        Spec::V1_0 => json!({ "$ref": reference }),
        Spec::V1_1 => json!([{ "$ref": reference }]),
    };
    [
        Action {
            target: format!("$.paths[{path}][?{this} && !@.parameters]"),
            description: "Room for the parameter".to_owned(),
            update: json!({ "parameters": [] }),
        },
        Action {
            target: format!(
                "$.paths[{path}][?{this} && count(@.parameters[?@['$ref'] == {}]) == 0].parameters",
                quoted(&reference)
            ),
            description: format!("The key of {}", endpoint.name),
            update,
        },
    ]
}

/// References to the answers that the layer adds, where the operation does not declare them itself.
fn responses_of(
    contract: &Contract,
    endpoint: &Endpoint,
    operation: &Operation<'_>,
    components: &mut Map<String, Value>,
    notes: &mut Vec<String>,
) -> Value {
    let mut own = Map::new();
    if matches!(endpoint.key, KeyUse::Unsafe { .. }) {
        return Value::Object(own);
    }
    let spelling = [Code::KeyTooLong, Code::KeyMalformed, Code::KeyAmbiguous];
    let refused = match endpoint.key {
        KeyUse::Required => ("IdempotencyKeyRefused", [&[Code::KeyMissing], spelling.as_slice()].concat()),
        KeyUse::Optional | KeyUse::Unsafe { .. } => ("IdempotencyKeyMalformed", spelling.to_vec()),
    };
    let answers: [(&str, Vec<Code>); 4] = [
        refused,
        ("IdempotencyConflict", vec![Code::KeyInFlight, Code::OutcomeUnknown, Code::ResponseNotKept]),
        ("IdempotencyKeyReused", vec![Code::PayloadMismatch]),
        ("IdempotencyUnavailable", vec![Code::StoreUnavailable, Code::Overloaded]),
    ];
    for (name, codes) in answers {
        let Some(status) = codes.first().map(|code| status(contract, *code)) else { continue };
        if own.contains_key(&status.to_string()) {
            // Two answers of one status share one description: the one that came first names both.
            continue;
        }
        if operation.declares_status(status) {
            notes.push(format!("{} declares {status} itself; it is left as it is", endpoint.name));
            continue;
        }
        let named: Vec<&str> = Code::ALL
            .into_iter()
            .filter(|code| {
                self::status(contract, *code) == status
                    && (codes.contains(code) || *code == Code::PayloadMismatch)
            })
            .map(Code::as_str)
            .collect();
        components.insert(name.to_owned(), answer(contract, &named));
        own.insert(status.to_string(), json!({ "$ref": format!("#/components/responses/{name}") }));
    }
    Value::Object(own)
}

fn status(contract: &Contract, code: Code) -> u16 {
    let own = contract.answers.statuses.iter().find(|(known, _)| *known == code).map(|(_, status)| *status);
    own.unwrap_or(code.status())
}

fn answer(contract: &Contract, codes: &[&str]) -> Value {
    json!({
        "description": format!("Not carried out, or not again. `code` says why: {}", codes.join(", ")),
        "content": { contract.answers.content_type.as_str(): { "schema": {
            "type": "object",
            "properties": {
                "code": { "type": "string", "description": codes.join(", ") },
                "retryable": { "type": "boolean", "description": "Whether the same request with the same key may succeed later" },
                "title": { "type": "string" },
                "detail": { "type": "string" },
            },
        } } },
    })
}

/// The contract of one operation, for tools that read it.
fn extension(contract: &Contract, endpoint: &Endpoint, place: Place) -> Value {
    if let KeyUse::Unsafe { reason } = &endpoint.key {
        return json!({ "operation": &*endpoint.name, "support": "unsafe", "reason": reason });
    }
    let (mechanism, name) = match &endpoint.carrier {
        Carrier::Header(name) => ("header", titled(name)),
        Carrier::BodyField(pointer) => ("body", pointer.clone()),
    };
    let fate = |status: u16| {
        let fate = match failure(endpoint, status, place)["is"].as_str() {
            Some("stored") => "replay",
            Some("released") => "rerun",
            _ => "unknown",
        };
        (status.to_string(), Value::from(fate))
    };
    let mut stored: Map<String, Value> = STATUSES.into_iter().map(fate).collect();
    stored.insert("success".to_owned(), Value::from("replay"));
    json!({
        "operation": &*endpoint.name,
        "support": if endpoint.key == KeyUse::Required { "required" } else { "optional" },
        "mechanism": mechanism,
        "name": name,
        "scope": if endpoint.scope == Scope::Anonymous { "none" } else { "account" },
        "fingerprint": "method, path, query, body",
        "replay-window": iso(endpoint.windows.replay),
        "stored": stored,
        "in-flight": {
            "status": status(contract, Code::KeyInFlight), "code": Code::KeyInFlight.as_str(), "retry-after": iso(endpoint.in_flight.retry_after),
        },
        "mismatch": { "status": status(contract, Code::PayloadMismatch), "code": Code::PayloadMismatch.as_str() },
    })
}

/// A duration by ISO 8601, in hours, minutes and seconds.
fn iso(time: Duration) -> String {
    let seconds = time.as_secs();
    let parts = [(seconds / 3_600, 'H'), (seconds % 3_600 / 60, 'M'), (seconds % 60, 'S')];
    let spelled: String = parts
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, unit)| format!("{number}{unit}"))
        .collect();
    if spelled.is_empty() { "PT0S".to_owned() } else { format!("PT{spelled}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_names() {
        assert_eq!(
            [86_400, 90, 5_400, 0].map(|s| iso(Duration::from_secs(s))),
            ["PT24H", "PT1M30S", "PT1H30M", "PT0S"]
        );
        assert_eq!(quoted("/it's"), "'/it\\'s'");
        assert_eq!(component("idempotency-key", false), "IdempotencyKeyOptional");
    }
}
