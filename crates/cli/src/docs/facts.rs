//! What a contract tells integrators, as plain values for the texts: numbers and names, no sentences.

use std::time::Duration;

use retrysafe_core::{
    codes::Code,
    contract::{
        Carrier, Contract, Endpoint, FailurePolicy, InFlightAnswer, Keep, KeyUse, Quota, Scope, Unlisted,
        show,
    },
    policy::Place,
    profile::{Fact, Profile},
    retry::{
        Backoff, Pace, RetryPolicy,
        presets::{self, Delays},
    },
};
use serde_json::{Value, json};

/// Statuses that the page speaks of, in this order.
const STATUSES: [u16; 11] = [400, 401, 402, 403, 409, 422, 429, 500, 502, 503, 504];
/// Retries of other clients that the page compares.
const COMPARED: u32 = 4;

/// Google Cloud's Rust client: full jitter between these.
const GOOGLE_BASE: Duration = Duration::from_secs(1);
const GOOGLE_CAP: Duration = Duration::from_secs(60);

/// All of it.
pub(super) fn facts(contract: &Contract, place: Place, base_url: &str) -> Value {
    let keyed: Vec<&Endpoint> =
        contract.endpoints.iter().filter(|one| !matches!(one.key, KeyUse::Unsafe { .. })).collect();
    let refused: Vec<Value> = contract.endpoints.iter().filter_map(unsafe_endpoint).collect();
    json!({
        "api": contract.api,
        "version": contract.version,
        "base_url": base_url,
        "refuses_unlisted": contract.unlisted == Unlisted::Refuse,
        "endpoints": keyed.iter().map(|one| endpoint(contract, one, place)).collect::<Vec<_>>(),
        "unsafe_endpoints": refused,
        "codes": codes(contract),
        "mismatch": code(contract, Code::PayloadMismatch),
        "in_flight": code(contract, Code::KeyInFlight),
        "unknown": code(contract, Code::OutcomeUnknown),
        "type_base": contract.answers.type_base,
        "chain": show(contract.longest_retry_chain),
        "client": client(contract),
        "quota": contract.client.quota.map(|quota| match quota {
            Quota::Attempts => "attempts",
            Quota::Operations => "operations",
        }),
        "others": others(),
        // One row for all of them, where all have the same.
        "one_retried": keyed.windows(2).all(|pair| {
            contract.retried_statuses(pair[0], place) == contract.retried_statuses(pair[1], place)
        }),
        "any_optional": keyed.iter().any(|one| one.key == KeyUse::Optional),
        "example": shown(&keyed).map(|one| example(contract, one, place, base_url)),
        "story": shown(&keyed).or(keyed.first().copied()).map(story),
        "vendors": Profile::all().map(vendor).collect::<Vec<_>>(),
        "as_of": Profile::all().map(|profile| profile.as_of.as_str()).max(),
    })
}

/// The operation that the life of a key is told by.
fn story(endpoint: &Endpoint) -> Value {
    let windows = &endpoint.windows;
    json!({
        "name": &*endpoint.name,
        "lease": show(windows.lease),
        "replay": show(windows.replay),
        "reap": show(windows.reap),
    })
}

fn vendor(profile: &Profile) -> Value {
    let fact = |fact: &Fact| json!({ "about": fact.about, "says": fact.says, "source": fact.source });
    json!({ "title": profile.title, "facts": profile.facts.iter().map(fact).collect::<Vec<_>>() })
}

fn unsafe_endpoint(endpoint: &Endpoint) -> Option<Value> {
    let KeyUse::Unsafe { reason } = &endpoint.key else { return None };
    Some(json!({ "name": &*endpoint.name, "reason": reason }))
}

fn endpoint(contract: &Contract, endpoint: &Endpoint, place: Place) -> Value {
    let windows = &endpoint.windows;
    let resource = windows.resource.as_ref();
    json!({
        "name": &*endpoint.name,
        "required": endpoint.key == KeyUse::Required,
        "carrier": carrier(&endpoint.carrier),
        "in_body": matches!(endpoint.carrier, Carrier::BodyField(_)),
        "length_max": endpoint.key_rules.max_len,
        "scope": scope(&endpoint.scope),
        "scope_headers": endpoint.scope_headers.iter().map(|name| titled(name)).collect::<Vec<_>>(),
        "fingerprint_headers": endpoint.fingerprint_headers.iter().map(|name| titled(name)).collect::<Vec<_>>(),
        "replay": show(windows.replay),
        "reap": show(windows.reap),
        "resource_grace": resource.map(|bound| show(bound.grace)),
        "resource_at_most": resource.map(|bound| show(bound.at_most)),
        "in_flight": in_flight(&endpoint.in_flight.answer),
        "wait": match endpoint.in_flight.answer {
            InFlightAnswer::Wait { at_most } => Some(show(at_most)),
            _ => None,
        },
        "retry_after": show(endpoint.in_flight.retry_after),
        "stores_all": endpoint.failures == FailurePolicy::StoreAll,
        "failures": STATUSES.iter().map(|status| failure(endpoint, *status, place)).collect::<Vec<_>>(),
        "retried": contract.retried_statuses(endpoint, place),
        "body_max": endpoint.limits.request_body_max,
        "replay_marker": endpoint.replay_marker.as_deref().map(titled),
    })
}

fn carrier(carrier: &Carrier) -> String {
    match carrier {
        Carrier::Header(name) => titled(name),
        Carrier::BodyField(pointer) => pointer.clone(),
    }
}

/// `idempotency-key` as people write it.
pub(crate) fn titled(name: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        letters
            .next()
            .map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + letters.as_str())
    };
    name.split('-').map(word).collect::<Vec<_>>().join("-")
}

fn scope(scope: &Scope) -> Value {
    match scope {
        Scope::Jwt(jwt) => json!({ "kind": "jwt", "claims": jwt.claims }),
        Scope::TrustedHeader { header, .. } => json!({ "kind": "header", "header": titled(header) }),
        Scope::ApiKey { header, .. } => json!({ "kind": "api_key", "header": titled(header) }),
        Scope::Application => json!({ "kind": "application" }),
        Scope::Anonymous => json!({ "kind": "anonymous" }),
    }
}

fn in_flight(answer: &InFlightAnswer) -> &'static str {
    match answer {
        InFlightAnswer::Refuse => "refuse",
        InFlightAnswer::Wait { .. } => "wait",
        InFlightAnswer::AcceptPreferred => "accept_preferred",
        InFlightAnswer::AcceptAlways => "accept_always",
    }
}

/// What becomes of a failure with this status: `stored` (for `time`), `released`, `unknown`.
pub(crate) fn failure(endpoint: &Endpoint, status: u16, place: Place) -> Value {
    let keep = match &endpoint.failures {
        FailurePolicy::StoreAll => Keep::Window,
        FailurePolicy::ByClass(classes) => classes
            .iter()
            .find(|class| class.statuses.iter().any(|(low, high)| (*low..=*high).contains(&status)))
            .map_or(Keep::Window, |class| class.keep),
    };
    let kept = match (endpoint.stores(status, place), keep) {
        (true, Keep::For(time)) => json!({ "is": "stored", "time": show(time) }),
        (true, _) => json!({ "is": "stored", "time": show(endpoint.windows.replay) }),
        (false, Keep::Release | Keep::For(_)) if status < 500 => json!({ "is": "released" }),
        (false, Keep::Release) if place == Place::Library => json!({ "is": "released" }),
        (false, _) if status < 500 => json!({ "is": "released" }),
        // A gateway cannot know what a 5xx did.
        (false, _) => json!({ "is": "unknown" }),
    };
    let mut row = kept;
    row["status"] = json!(status);
    row
}

fn codes(contract: &Contract) -> Vec<Value> {
    Code::ALL.into_iter().map(|one| code(contract, one)).collect()
}

fn code(contract: &Contract, code: Code) -> Value {
    let own = contract.answers.statuses.iter().find(|(known, _)| *known == code).map(|(_, status)| *status);
    json!({
        "code": code.as_str(), "status": own.unwrap_or(code.status()), "retryable": code.retryable(), "title": code.title(),
        "detail": code.detail(),
    })
}

/// The numbers of the retry loop, from the engine that every client of this contract runs.
fn client(contract: &Contract) -> Value {
    let policy = RetryPolicy::from(&contract.client);
    let plan = policy.explain();
    let row = |(place, sleep): (usize, &Duration)| {
        let retry = u32::try_from(place).unwrap_or(u32::MAX);
        json!({
            "attempt": place + 2,
            "sleep_max": spoken(*sleep),
            "throttled_max": spoken(policy.backoff.bound(Pace::Throttled, retry)),
        })
    };
    json!({
        "attempts": plan.requests_max,
        "elapsed": show(policy.elapsed),
        "base": show(policy.backoff.base),
        "throttled_base": show(policy.backoff.throttled_base),
        "cap": show(policy.backoff.cap),
        "schedule": plan.sleeps.iter().take(10).enumerate().map(row).collect::<Vec<_>>(),
        "deadline_header": contract.client.deadline_header.as_deref().map(titled),
        "drops_stored": contract.client.drop_stored_statuses,
    })
}

/// Other clients' sleeps before their first retries, by their formulas; a dash where they have given up.
fn others() -> Vec<Value> {
    let range = |(low, high): (Duration, Duration)| {
        if low == high { spoken(high) } else { format!("{} – {}", spoken(low), spoken(high)) }
    };
    let row = |who: &str, attempts: u32, cap: &str, sleep: &dyn Fn(u32) -> (Duration, Duration)| {
        let cell = |retry| if retry + 1 < attempts { range(sleep(retry)) } else { "–".to_owned() };
        let sleeps: Vec<String> = (0..COMPARED).map(cell).collect();
        json!({ "who": who, "attempts": attempts, "sleeps": sleeps, "cap": cap })
    };
    let (aws, google) =
        (presets::aws_2_1(), Backoff { base: GOOGLE_BASE, cap: GOOGLE_CAP, ..Backoff::default() });
    let full = |backoff: Backoff, retry| (Duration::ZERO, backoff.bound(Pace::Transient, retry));
    vec![
        row("AWS SDKs 2.1", aws.attempts.get(), "20s", &|retry| full(aws.backoff, retry)),
        row("Stripe (Python)", 3, "5s", &|retry| Delays::Stripe.range(retry)),
        row("Google Cloud (Rust)", 10, "60s", &|retry| full(google, retry)),
        row("Twilio (Node, autoRetry)", 4, "3s", &|retry| Delays::TwilioNode.range(retry)),
        row("Resend (Node)", 1, "–", &|_| (Duration::ZERO, Duration::ZERO)),
    ]
}

/// Short times as people say them: `0`, `750ms`, `1.5s`.
fn spoken(time: Duration) -> String {
    let ms = time.as_millis();
    match ms {
        0 => "0".to_owned(),
        1..1_000 => format!("{ms}ms"),
        _ if ms.is_multiple_of(1_000) => format!("{}s", ms / 1_000),
        _ => format!("{}.{}s", ms / 1_000, (ms % 1_000) / 100),
    }
}

/// The endpoint of the examples: one that takes its key in a header, a POST that requires one if there is any.
fn shown<'a>(keyed: &[&'a Endpoint]) -> Option<&'a Endpoint> {
    let in_header = keyed.iter().filter(|one| matches!(one.carrier, Carrier::Header(_)));
    let best = |one: &&&Endpoint| (one.method == "POST", one.key == KeyUse::Required);
    // The first of the best: `max_by_key` alone would take the last.
    in_header.rev().max_by_key(best).copied()
}

/// The values of the examples.
fn example(contract: &Contract, endpoint: &Endpoint, place: Place, base_url: &str) -> Value {
    let policy = RetryPolicy::from(&contract.client);
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    // A template's parameter stands for something that exists.
    let path: Vec<&str> =
        endpoint.path.split('/').map(|part| if part.starts_with('{') { "1" } else { part }).collect();
    let header = carrier(&endpoint.carrier);
    let url = format!("{base_url}{}", path.join("/"));
    let (host, port) = authority(base_url);
    json!({
        "method": endpoint.method,
        "path": behind_authority(&url),
        "url": url,
        "host": host,
        "port": port,
        "header": header,
        "attempts": policy.attempts,
        "elapsed_ms": ms(policy.elapsed),
        // A part of the time for each attempt: one that hangs must not use up the others'.
        "attempt_ms": ms(policy.elapsed / policy.attempts.get()),
        "base_ms": ms(policy.backoff.base),
        "throttled_base_ms": ms(policy.backoff.throttled_base),
        "cap_ms": ms(policy.backoff.cap),
        "retried": contract.retried_statuses(endpoint, place),
        "in_flight_code": Code::KeyInFlight.as_str(),
    })
}

/// What a request line says of a URL.
fn behind_authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map_or("/", |slash| &rest[slash..])
}

/// Host and port of a URL, for the one example that opens its connection itself.
fn authority(url: &str) -> (String, u16) {
    let default = if url.starts_with("http://") { 80 } else { 443 };
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or(rest);
    match authority.rsplit_once(':') {
        Some((host, port)) => (host.to_owned(), port.parse().unwrap_or(default)),
        None => (authority.to_owned(), default),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let spell = |ms| spoken(Duration::from_millis(ms));
        assert_eq!([0, 50, 1_000, 1_500, 20_000].map(spell), ["0", "50ms", "1s", "1.5s", "20s"]);
    }

    #[test]
    fn hosts_and_ports() {
        assert_eq!(authority("http://127.0.0.1:8787"), ("127.0.0.1".to_owned(), 8787));
        assert_eq!(authority("https://api.example.com/v1"), ("api.example.com".to_owned(), 443));
        assert_eq!(behind_authority("https://api.example.com/v1/orders"), "/v1/orders");
    }
}
