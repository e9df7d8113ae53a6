//! Every field of `gates.toml`, table by table: the shape of the file at one glance.

/// Every table and its fields; the reference page has a row for each.
pub const FIELDS: &[(&str, &[&str])] = &[
    ("top level", ROOT),
    ("request, other_operation, failing", OPERATION),
    ("key", KEY),
    ("second_account", ACCOUNT),
    ("answers", ANSWERS),
    ("answers: a sign", SIGN),
    ("[[observe]]: list", LIST),
    ("[[observe]]: stub", STUB_OBSERVER),
    ("[[observe]]: sql", SQL),
    ("[[observe]]: metric", METRIC),
    ("[[observe]]: log", LOG),
    ("[[observe]]: command", COMMAND),
    ("stub", STUB),
    ("database", DATABASE),
    ("slow", SLOW),
    ("concurrency", CONCURRENCY),
    ("[[claim]]", CLAIM),
    ("claim.setup", SETUP),
    ("crash", CRASH),
    ("crash.second", SECOND),
    ("crash.disk", DISK),
];

pub(super) const ROOT: &[&str] = &[
    "base",
    "ca",
    "contract",
    "request",
    "key",
    "second_account",
    "other_operation",
    "failing",
    "answers",
    "observe",
    "stub",
    "database",
    "slow",
    "concurrency",
    "claim",
    "crash",
];
pub(super) const OPERATION: &[&str] = &["method", "path", "headers", "body"];
pub(super) const KEY: &[&str] = &["header", "quoted", "required"];
pub(super) const ACCOUNT: &[&str] = &["headers"];
pub(super) const ANSWERS: &[&str] = &[
    "in_flight",
    "mismatch",
    "not_now",
    "uncertain",
    "missing_key",
    "replay_marker",
    "varying_headers",
    "mismatch_beats_in_flight",
];
pub(super) const SIGN: &[&str] = &["status", "contains"];
pub(super) const LIST: &[&str] = &["kind", "name", "url", "jsonpath", "headers"];
pub(super) const STUB_OBSERVER: &[&str] = &["kind", "name", "contains"];
pub(super) const SQL: &[&str] = &["kind", "name", "url", "query"];
pub(super) const METRIC: &[&str] = &["kind", "name", "url", "series"];
pub(super) const LOG: &[&str] = &["kind", "name", "file", "contains"];
pub(super) const COMMAND: &[&str] = &["kind", "name", "command"];
pub(super) const STUB: &[&str] = &["listen", "status", "body", "key_header", "hold", "hold_at_most"];
pub(super) const DATABASE: &[&str] = &["listen", "to", "each_way", "away"];
pub(super) const SLOW: &[&str] = &["pid_file", "by", "calls"];
pub(super) const CONCURRENCY: &[&str] =
    &["requests", "rounds", "detect", "miss", "http2", "settle", "spread", "quiet", "timeout"];

pub(super) const CLAIM: &[&str] =
    &["method", "path", "headers", "body", "read", "newer_body", "volatile", "setup"];
pub(super) const SETUP: &[&str] = &["method", "path", "headers", "body", "id"];

pub(super) const CRASH: &[&str] = &[
    "command",
    "ready",
    "ready_within",
    "settled_within",
    "completes_within",
    "lease",
    "second",
    "disk",
    "sweep",
];
pub(super) const SECOND: &[&str] = &["command", "base"];
pub(super) const DISK: &[&str] = &["folder", "at_most", "full_for"];

pub(super) const KINDS: &[(&str, &[&str])] = &[
    ("list", LIST),
    ("stub", STUB_OBSERVER),
    ("sql", SQL),
    ("metric", METRIC),
    ("log", LOG),
    ("command", COMMAND),
];

/// The table that has a field of this name, where only one has.
pub(super) fn home_of(name: &str) -> Option<&'static str> {
    let mut homes = FIELDS.iter().filter(|(_, fields)| fields.contains(&name)).map(|(table, _)| *table);
    match (homes.next(), homes.next()) {
        (Some(only), None) => Some(only),
        _ => None,
    }
}
