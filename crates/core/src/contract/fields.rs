//! Every field of a contract file, table by table: the shape of the file at one glance.
//!
//! The readers may ask for no other field and refuse every other name; `docs/reference/contract.md` has one row for each
//! (a test compares the two).

/// Fields that stand at the top, as the default of every endpoint, or in an endpoint, for it alone.
pub(super) const POLICY: [&str; 19] = [
    "carrier",
    "scope",
    "scope_headers",
    "fingerprint",
    "in_flight",
    "failures",
    "windows",
    "limits",
    "recovery",
    "transaction",
    "upstream_deduplicates",
    "probe",
    "rejected_before_processing",
    "final_5xx",
    "undecided",
    "reauthorise",
    "store_down",
    "stored_headers",
    "replay_marker",
];

const ROOT_ONLY: [&str; 13] = [
    "api",
    "version",
    "namespace",
    "profile",
    "longest_retry_chain",
    "unlisted",
    "claim",
    "concurrent_max",
    "status_path",
    "answer_timeout",
    "answers",
    "client",
    "endpoint",
];

const ENDPOINT_ONLY: [&str; 5] = ["method", "path", "key", "unsafe_reason", "ends_resource"];

pub(super) const ROOT: [&str; 32] = join(&ROOT_ONLY, &POLICY);
pub(super) const ENDPOINT: [&str; 24] = join(&ENDPOINT_ONLY, &POLICY);
pub(super) const CARRIER: &[&str] = &["header", "body_field", "syntax", "length_max"];
pub(super) const SCOPE_JWT: &[&str] = &[
    "source",
    "header",
    "claims",
    "issuer",
    "audience",
    "algorithms",
    "pem_file",
    "jwks_file",
    "secret_env",
];
pub(super) const SCOPE_TRUSTED_HEADER: &[&str] = &["source", "header", "peers"];
pub(super) const SCOPE_API_KEY: &[&str] = &["source", "header", "scheme", "rotates"];
pub(super) const SCOPE_ALONE: &[&str] = &["source"];
pub(super) const FINGERPRINT: &[&str] = &["headers", "exclude", "body", "decoded_max"];
pub(super) const IN_FLIGHT: &[&str] = &["answer", "retry_after", "wait_at_most"];
pub(super) const FAILURES_A: &[&str] = &["policy"];
pub(super) const FAILURES_B: &[&str] = &["policy", "keep"];
pub(super) const WINDOWS: &[&str] = &["replay", "reap", "lease", "resource"];
pub(super) const RESOURCE: &[&str] = &["id", "grace", "at_most"];
pub(super) const LIMITS: &[&str] = &["request_body_max", "response_body_max"];
pub(super) const PROBE: &[&str] =
    &["path", "found", "absent", "status_header", "status", "when_absent", "fences", "attempts"];
pub(super) const ANSWER_MATCH: &[&str] = &["status", "field", "value"];
pub(super) const REAUTHORISE: &[&str] = &["path"];
pub(super) const STORED_HEADERS: &[&str] = &["keep", "drop"];
pub(super) const ENDS_RESOURCE: &[&str] = &["param", "grace"];
pub(super) const ANSWERS: &[&str] =
    &["envelope", "template", "content_type", "type_base", "statuses", "headers"];
pub(super) const OWN_HEADER: &[&str] = &["name", "when_retryable", "when_final"];
pub(super) const CLIENT: &[&str] = &[
    "attempts",
    "elapsed",
    "base",
    "throttled_base",
    "cap",
    "retry_statuses",
    "drop_stored_statuses",
    "deadline_header",
    "quota",
];

/// Every table by the name that the reference page gives it, with its fields.
pub const TABLES: &[(&str, &[&str])] = &[
    ("top level", &ROOT_ONLY),
    ("[[endpoint]]", &ENDPOINT_ONLY),
    ("policies", &POLICY),
    ("carrier", CARRIER),
    ("scope, source = \"jwt\"", SCOPE_JWT),
    ("scope, source = \"trusted_header\"", SCOPE_TRUSTED_HEADER),
    ("scope, source = \"api_key\"", SCOPE_API_KEY),
    ("scope, source = \"application\" or \"anonymous\"", SCOPE_ALONE),
    ("fingerprint", FINGERPRINT),
    ("in_flight", IN_FLIGHT),
    ("failures, policy = \"A\"", FAILURES_A),
    ("failures, policy = \"B\"", FAILURES_B),
    ("windows", WINDOWS),
    ("windows.resource", RESOURCE),
    ("limits", LIMITS),
    ("probe", PROBE),
    ("rejected_before_processing and undecided", ANSWER_MATCH),
    ("reauthorise", REAUTHORISE),
    ("stored_headers", STORED_HEADERS),
    ("ends_resource", ENDS_RESOURCE),
    ("answers", ANSWERS),
    ("answers.headers", OWN_HEADER),
    ("client", CLIENT),
];

/// The table that has a field of this name, where only one has.
pub(super) fn home_of(name: &str) -> Option<&'static str> {
    let mut homes = TABLES.iter().filter(|(_, fields)| fields.contains(&name)).map(|(table, _)| *table);
    match (homes.next(), homes.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}

/// `a` followed by `b`. The array length is checked when the constant is evaluated, at compile time.
const fn join<const N: usize>(a: &[&'static str], b: &[&'static str]) -> [&'static str; N] {
    assert!(a.len() + b.len() == N);
    let mut all = [""; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < a.len() { a[at] } else { b[at - a.len()] };
        at += 1;
    }
    all
}
