//! Every rule of `Contract::check`: found by a minimal contract, gone with what its help says.
#![allow(clippy::panic)] // helpers fail the test that calls them

use std::{collections::BTreeSet, time::Duration};

use retrysafe_core::{
    contract::{ClaimMethod, Contract, Offered, Severity, Shortfall},
    policy::Place::{self, Gateway, Library},
};

/// A contract with nothing to complain about but what a row adds: `top` before its tables, `endpoint` at its end.
fn contract(top: &str, endpoint: &str) -> Contract {
    let text = format!(
        r#"
        api = "Shop"
        namespace = "shop"
        longest_retry_chain = "24h"
        unlisted = "pass"
        {top}
        [[endpoint]]
        method = "POST"
        path = "/orders"
        key = "required"
        {endpoint}
        {}
        {}
        {}
        "#,
        unless(
            top,
            endpoint,
            "scope =",
            r#"scope = { source = "jwt", algorithms = ["RS256"], pem_file = "k.pem" }"#
        ),
        unless(top, endpoint, "failures =", r#"failures = { policy = "A" }"#),
        // Not a part of the endpoint: it goes last.
        unless(top, endpoint, "client", "[client]\ndrop_stored_statuses = true"),
    );
    Contract::parse(&text, "row.toml").unwrap_or_else(|faults| panic!("{faults}"))
}

fn unless<'a>(top: &str, endpoint: &str, word: &str, text: &'a str) -> &'a str {
    if top.contains(word) || endpoint.contains(word) { "" } else { text }
}

fn offered(store: &str, place: Place) -> Offered {
    match store {
        "memory" => Offered::memory(place),
        _ => Offered::sqlite(place),
    }
}

fn found(contract: &Contract, offered: &Offered, rule: &str) -> Vec<Shortfall> {
    contract.check(offered).into_iter().filter(|one| one.rule == rule).collect()
}

/// A rule, how bad it is, where it applies, what makes it appear (top, endpoint), what its message says, and what makes
/// it go away.
struct Row {
    rule: &'static str,
    severity: Severity,
    at: (&'static str, Place),
    with: (&'static str, &'static str),
    says: &'static [&'static str],
    without: (&'static str, &'static str),
}

use Severity::{Error, Note, Warning};

const PROBE: &str = r#"probe = { path = "/p?key={key}", status = 201, when_absent = "release" }"#;
const PROBE_FENCES: &str =
    r#"probe = { path = "/p?key={key}", status = 201, when_absent = "release", fences = true }"#;
const PROBE_STAYS: &str = r#"probe = { path = "/p?key={key}", status = 201 }"#;
const B: &str = r#"failures = { policy = "B", keep = { 500 = "window" } }"#;
const ENDS: &str = r#"
    [[endpoint]]
    method = "DELETE"
    path = "/orders/{id}"
    key = "optional"
    ends_resource = { param = "id" }
    scope = { source = "application" }
    failures = { policy = "A" }"#;
const RESOURCE: &str = r#"windows = { resource = { id = "/id" } }"#;

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row { rule: "resource_window", severity: Error, at: ("sqlite", Library),
        with: ("", r#"windows = { resource = { id = "/id", grace = "1h" } }"#), says: &["1h", "24h"],
        without: ("", RESOURCE) },
    Row { rule: "resource_window", severity: Error, at: ("sqlite", Library),
        with: ("", r#"windows = { replay = "60d", resource = { id = "/id" } }"#), says: &["30d", "60d"],
        without: ("", r#"windows = { replay = "60d", resource = { id = "/id", at_most = "90d" } }"#) },
    Row { rule: "resource_never_ends", severity: Warning, at: ("sqlite", Library),
        with: ("", RESOURCE), says: &["30d"],
        without: (ENDS, r#"windows = { resource = { id = "/id" } }
            scope = { source = "application" }
            failures = { policy = "A" }"#) },
    Row { rule: "failures_kept_shorter_than_retries", severity: Note, at: ("sqlite", Library),
        with: ("", B), says: &["402 for 1h", "401 for 1m", "24h"],
        without: ("", r#"failures = { policy = "B", keep = { "4xx" = "window", 500 = "window" } }"#) },
    Row { rule: "lease_too_short", severity: Error, at: ("sqlite", Library),
        with: ("", r#"windows = { lease = "200ms" }"#), says: &["200ms"],
        without: ("", r#"windows = { lease = "1s" }"#) },
    Row { rule: "lease_outlives_clients", severity: Warning, at: ("sqlite", Library),
        with: ("", r#"windows = { lease = "5m" }"#), says: &["5m", "30s"],
        without: ("", r#"windows = { lease = "30s" }"#) },
    Row { rule: "waits_longer_than_clients", severity: Error, at: ("sqlite", Library),
        with: ("", r#"in_flight = { answer = "wait", wait_at_most = "30s" }"#), says: &["30s"],
        without: ("", r#"in_flight = { answer = "wait", wait_at_most = "29s" }"#) },
    Row { rule: "retry_after_outlives_clients", severity: Warning, at: ("sqlite", Library),
        with: ("", r#"in_flight = { answer = "409", retry_after = "1m" }"#), says: &["1m", "30s"],
        without: ("", r#"in_flight = { answer = "409", retry_after = "5s" }"#) },
    Row { rule: "stored_status_is_retried", severity: Error, at: ("sqlite", Library),
        with: ("client = { retry_statuses = [429, 502, 503] }", ""), says: &["502, 503"],
        without: ("client = { retry_statuses = [429, 502, 503] }", B) },
    Row { rule: "stored_status_is_retried", severity: Error, at: ("sqlite", Gateway),
        with: ("client = { retry_statuses = [423, 503] }", ""), says: &["retry 423 with"],
        without: ("client = { retry_statuses = [429, 503] }", "") },
    Row { rule: "stored_status_is_retried", severity: Error, at: ("sqlite", Gateway),
        with: ("client = { retry_statuses = [429, 503] }", "undecided = [429]\nfinal_5xx = [503]"), says: &["retry 503 with"],
        without: ("client = { retry_statuses = [429, 503] }", "undecided = [429]\nrejected_before_processing = [503]") },
    Row { rule: "accepted_always", severity: Warning, at: ("sqlite", Library),
        with: ("", r#"in_flight = { answer = "202-always" }"#), says: &["202"],
        without: ("", r#"in_flight = { answer = "202" }"#) },
    Row { rule: "accepted_in_foreign_envelope", severity: Error, at: ("sqlite", Library),
        with: (r#"answers = { envelope = "stripe" }"#, r#"in_flight = { answer = "202-always" }"#), says: &["202"],
        without: (r#"answers = { envelope = "stripe" }"#, r#"in_flight = { answer = "202" }"#) },
    Row { rule: "clients_retry_longer_than_stated", severity: Error, at: ("sqlite", Library),
        with: (r#"client = { elapsed = "25h", drop_stored_statuses = true }"#, ""), says: &["25h", "24h"],
        without: (r#"client = { elapsed = "24h", drop_stored_statuses = true }"#, "") },
    Row { rule: "clients_never_reach_last_attempt", severity: Warning, at: ("sqlite", Library),
        with: (r#"client = { attempts = 20, drop_stored_statuses = true }"#, ""), says: &["20 attempts", "30s"],
        without: (r#"client = { attempts = 5, drop_stored_statuses = true }"#, "") },
    Row { rule: "answer_timeout_outlives_clients", severity: Warning, at: ("sqlite", Library),
        with: (r#"answer_timeout = "2m""#, ""), says: &["2m", "30s"],
        without: (r#"answer_timeout = "20s""#, "") },
    Row { rule: "atomic_at_gateway", severity: Error, at: ("sqlite", Gateway),
        with: ("", r#"recovery = "atomic""#), says: &["transaction"],
        without: ("", "upstream_deduplicates = true") },
    Row { rule: "atomic_without_transactions", severity: Error, at: ("memory", Library),
        with: ("", r#"recovery = "atomic""#), says: &["memory"],
        without: ("", r#"recovery = "outside""#) },
    Row { rule: "phased_not_offered", severity: Error, at: ("memory", Library),
        with: ("", r#"recovery = "phased""#), says: &["recovery points"],
        without: ("", r#"recovery = "outside""#) },
    Row { rule: "phased_not_offered", severity: Error, at: ("sqlite", Gateway),
        with: ("", r#"recovery = "phased""#), says: &["recovery points"],
        without: ("", r#"recovery = "outside""#) },
    Row { rule: "accepted_in_one_transaction", severity: Error, at: ("sqlite", Library),
        with: ("", "recovery = \"atomic\"\nin_flight = { answer = \"202\" }"), says: &["one transaction"],
        without: ("", "recovery = \"atomic\"\nin_flight = { answer = \"wait\" }") },
    Row { rule: "accepted_in_one_transaction", severity: Error, at: ("sqlite", Library),
        with: ("", "recovery = \"atomic\"\nin_flight = { answer = \"202\" }"), says: &["one transaction"],
        without: ("", "recovery = \"atomic\"\ntransaction = \"claim_first\"\nin_flight = { answer = \"202\" }") },
    Row { rule: "claim_first_outside", severity: Error, at: ("sqlite", Library),
        with: ("", r#"transaction = "claim_first""#), says: &["elsewhere"],
        without: ("", "recovery = \"atomic\"\ntransaction = \"claim_first\"") },
    Row { rule: "probe_releases_without_fence", severity: Error, at: ("sqlite", Gateway),
        with: ("", PROBE), says: &["first run"], without: ("", PROBE_FENCES) },
    Row { rule: "probe_releases_without_fence", severity: Error, at: ("sqlite", Gateway),
        with: ("", PROBE), says: &["absent"], without: ("", PROBE_STAYS) },
    Row { rule: "nobody_to_ask", severity: Error, at: ("sqlite", Library),
        with: ("reauthorise = { path = \"/me\" }", PROBE_STAYS), says: &["probe and reauthorise"], without: ("", "") },
    Row { rule: "deploys_make_uncertain_keys", severity: Note, at: ("sqlite", Gateway),
        with: ("", ""), says: &["restart"], without: ("", "rejected_before_processing = [503]") },
    Row { rule: "server_errors_are_uncertain", severity: Note, at: ("sqlite", Gateway),
        with: ("", B), says: &["5xx"], without: ("", "final_5xx = [500]") },
    Row { rule: "upstream_window_unknown", severity: Note, at: ("sqlite", Gateway),
        with: ("", "upstream_deduplicates = true"), says: &["24h"], without: ("", "") },
    Row { rule: "runs_unguarded_without_store", severity: Warning, at: ("sqlite", Gateway),
        with: ("", r#"store_down = "open""#), says: &["duplicates"], without: ("", r#"store_down = "closed""#) },
    Row { rule: "application_scope_at_gateway", severity: Error, at: ("sqlite", Gateway),
        with: ("", r#"scope = { source = "application" }"#), says: &["gateway"],
        without: ("", r#"scope = { source = "trusted_header", header = "X-User", peers = ["10.0.0.1"] }"#) },
    Row { rule: "replays_not_reauthorised", severity: Warning, at: ("sqlite", Gateway),
        with: ("", r#"scope = { source = "api_key", rotates = false }"#), says: &["revoked"],
        without: (r#"reauthorise = { path = "/me" }"#, r#"scope = { source = "api_key", rotates = false }"#) },
    Row { rule: "one_scope_for_all", severity: Warning, at: ("sqlite", Gateway),
        with: ("", r#"scope = { source = "anonymous" }"#), says: &["share one scope"], without: ("", "") },
    Row { rule: "cookies_replayed", severity: Warning, at: ("sqlite", Library),
        with: ("", r#"stored_headers = { keep = ["Set-Cookie"] }"#), says: &["session"], without: ("", "") },
    Row { rule: "connection_headers_kept", severity: Error, at: ("sqlite", Library),
        with: ("", r#"stored_headers = { keep = ["Keep-Alive"] }"#), says: &["keep-alive"], without: ("", "") },
    Row { rule: "body_not_compared", severity: Warning, at: ("sqlite", Library),
        with: ("", "fingerprint = { body = false }"), says: &["another order"],
        without: ("", r#"fingerprint = { exclude = ["/sent_at"] }"#) },
    Row { rule: "changing_header_compared", severity: Error, at: ("sqlite", Library),
        with: ("", r#"fingerprint = { headers = ["X-Stainless-Retry-Count"] }"#), says: &["x-stainless-retry-count"],
        without: ("", r#"fingerprint = { headers = ["Api-Version"] }"#) },
    Row { rule: "changing_header_compared", severity: Error, at: ("sqlite", Library),
        with: ("", r#"scope_headers = ["Authorization"]"#), says: &["authorization"],
        without: ("", r#"scope_headers = ["X-Tenant"]"#) },
];

#[test]
fn every_rule_is_found_and_goes_with_its_help() {
    for row in ROWS {
        let offered = offered(row.at.0, row.at.1);
        let hits = found(&contract(row.with.0, row.with.1), &offered, row.rule);
        let [hit] = &hits[..] else { panic!("{}: {hits:#?}", row.rule) };
        assert_eq!(hit.severity, row.severity, "{}", row.rule);
        for part in row.says {
            assert!(hit.message.contains(part), "{}: {part:?} is not in {:?}", row.rule, hit.message);
        }
        assert!(hit.help.len() > 10, "{}", row.rule);
        let without = contract(row.without.0, row.without.1);
        assert_eq!(found(&without, &offered, row.rule), [], "{} with {:?}", row.rule, row.without);
    }
}

/// The reader refuses such files; a contract can also be changed in code.
#[test]
fn t2_windows_changed_in_code_are_checked_again() {
    let offered = Offered::sqlite(Library);
    let mut contract = contract("", "");
    contract.endpoints[0].windows.replay = Duration::from_secs(3600);
    let hits = found(&contract, &offered, "window_below_retry_chain");
    assert!(hits[0].message.contains("1h") && hits[0].message.contains("24h"), "{hits:?}");
    contract.endpoints[0].windows.reap = Duration::from_secs(60);
    let hits = found(&contract, &offered, "reap_below_replay");
    assert!(hits[0].message.contains("1m") && hits[0].message.contains("1h"), "{hits:?}");
}

#[test]
fn what_the_store_cannot_keep_is_said() {
    let contract = contract("", "");
    let severity = |offered: &Offered, rule| found(&contract, offered, rule).first().map(|one| one.severity);
    let (memory, sqlite) = (Offered::memory(Library), Offered::sqlite(Library));
    assert_eq!(severity(&memory, "store_forgets"), Some(Warning));
    assert_eq!(severity(&sqlite, "store_forgets"), None);
    assert_eq!(severity(&memory, "one_process_only"), Some(Note));
    assert_eq!(severity(&sqlite, "one_process_only"), None);
    // Protocol 27: printed, not hidden.
    assert_eq!(severity(&sqlite, "lost_in_failover"), Some(Note));
    assert_eq!(severity(&Offered { survives_failover: true, ..sqlite }, "lost_in_failover"), None);
    assert_eq!(
        severity(&Offered { survives_power_cut: false, ..sqlite }, "lost_in_power_cut"),
        Some(Warning)
    );
    assert_eq!(severity(&sqlite, "lost_in_power_cut"), None);
}

/// Protocol 13, 15: none of a handler's waits is above the lease.
#[test]
fn protocol_15_a_store_whose_handlers_may_wait_past_a_lease_is_refused() {
    let waits = |seconds| Offered {
        transactions: true,
        handler_waits: Some(Duration::from_secs(seconds)),
        ..Offered::sqlite(Library)
    };
    let endpoint = |shape: &str| {
        contract(
            "",
            &format!("recovery = \"atomic\"\ntransaction = \"{shape}\"\nwindows = {{ lease = \"5s\" }}"),
        )
    };
    let refused = |offered: &Offered, shape| found(&endpoint(shape), offered, "handlers_wait_past_the_lease");
    let hits = refused(&waits(10), "claim_first");
    assert!(
        hits[0].severity == Error && hits[0].message.contains("10s") && hits[0].message.contains("5s"),
        "{hits:?}"
    );
    assert_eq!(refused(&waits(5), "claim_first"), [], "the same is not above");
    assert_eq!(refused(&waits(10), "one"), [], "nobody takes over");
    assert_eq!(refused(&Offered { handler_waits: None, ..waits(10) }, "claim_first"), []);
}

/// SPEC 4.2: the store is opened with the method that the contract names.
#[test]
fn a_claim_method_that_the_store_was_not_opened_with_is_refused() {
    let sqlite = Offered::sqlite(Library);
    let unique = Offered { claims_by: &[ClaimMethod::Unique], ..sqlite };
    for (line, refused) in [("", false), ("claim = \"unique\"", false), ("claim = \"serializable\"", true)] {
        let contract = contract(line, "");
        let hits = found(&contract, &unique, "claim_method_not_offered");
        assert_eq!(!hits.is_empty(), refused, "{line}");
        assert!(
            hits.iter().all(|hit| hit.severity == Error && hit.message.contains("serializable")),
            "{hits:?}"
        );
        assert_eq!(found(&contract, &sqlite, "claim_method_not_offered"), []);
    }
}

/// SPEC 6.4, second half: the client's list loses what is stored.
#[test]
fn clients_drop_stored_statuses_where_the_contract_says_so() {
    let drops = contract("", "");
    let orders = &drops.endpoints[0];
    // A 429 is no result, under policy A either (protocol 20).
    assert_eq!(drops.retried_statuses(orders, Library), [429]);
    // At a gateway a 5xx is not stored, so it stays on the list.
    assert_eq!(drops.retried_statuses(orders, Gateway), [429, 502, 503, 504]);
    let keeps = contract("client = { retry_statuses = [503] }", "");
    assert_eq!(keeps.retried_statuses(&keeps.endpoints[0], Library), [503]);
}

#[test]
fn a_sound_contract_in_its_place_has_no_error_and_no_warning() {
    let contract = contract("", "rejected_before_processing = [503]");
    for place in [Library, Gateway] {
        let found = contract.check(&Offered::sqlite(place));
        let bad: Vec<_> = found.iter().filter(|one| one.severity != Note).collect();
        assert!(bad.is_empty(), "{bad:#?}");
    }
}

#[test]
fn unsafe_endpoints_promise_nothing_and_are_not_judged() {
    let one = contract("", r#"windows = { lease = "10m" }"#);
    assert_eq!(found(&one, &Offered::sqlite(Library), "lease_outlives_clients").len(), 1);
    let mut none = one;
    none.endpoints[0].key = retrysafe_core::contract::KeyUse::Unsafe { reason: "appends".into() };
    assert_eq!(found(&none, &Offered::sqlite(Library), "lease_outlives_clients"), []);
}

#[test]
fn one_finding_about_many_endpoints_is_one_shortfall_and_the_worst_come_first() {
    let second = "[[endpoint]]\nmethod = \"POST\"\npath = \"/payments\"\nkey = \"required\"\n\
                  scope = { source = \"application\" }\nfailures = { policy = \"A\" }\n";
    let first = "scope = { source = \"application\" }\nfailures = { policy = \"A\" }\n";
    let contract = contract(second, first);
    let all = contract.check(&Offered::memory(Gateway));
    assert!(all.is_sorted_by_key(|one| one.severity), "{all:#?}");
    let [both] = &found(&contract, &Offered::memory(Gateway), "application_scope_at_gateway")[..] else {
        panic!("{all:#?}")
    };
    assert_eq!(both.endpoints, ["POST /payments".into(), "POST /orders".into()]);
    let shown = both.to_string();
    assert!(shown.starts_with("error[application_scope_at_gateway]: "), "{shown}");
    assert!(
        shown.contains("POST /payments, POST /orders") && shown.contains("= help: write source"),
        "{shown}"
    );
}

/// Protocol 2.
#[test]
fn equal_namespaces_on_nested_hops_are_refused() {
    let contract = contract("", "");
    assert_eq!(
        contract.nested("shop").map(|one| (one.rule, one.severity)),
        Some(("equal_namespaces", Error))
    );
    assert_eq!(contract.nested("shop-gateway"), None);
}

/// A rule that no test names is a rule that nobody knows to work.
#[test]
fn every_rule_in_the_source_is_named_in_this_file() {
    let sources = [
        include_str!("../src/contract/check.rs"),
        include_str!("../src/contract/check/clients.rs"),
        include_str!("../src/contract/check/effects.rs"),
        include_str!("../src/contract/check/exposure.rs"),
        include_str!("../src/contract/check/times.rs"),
    ];
    let mut rules = BTreeSet::new();
    for (source, kind) in
        sources.iter().flat_map(|source| ["error(", "warning(", "note("].map(|kind| (source, kind)))
    {
        for after in source.split(kind).skip(1) {
            let literal = after.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
            rules.extend(literal);
        }
    }
    assert!(rules.len() >= 36, "{rules:?}");
    let here = include_str!("contract_check.rs");
    let unnamed: Vec<_> = rules.iter().filter(|rule| !here.contains(&format!("\"{rule}\""))).collect();
    assert!(unnamed.is_empty(), "{unnamed:?}");
}

/// A store of somebody else's may join transactions and still keep no journals.
#[test]
fn steps_need_a_store_that_keeps_journals() {
    let file = FILE_WITH_STEPS;
    let contract = Contract::parse(file, "steps.toml").unwrap();
    let said = |offered: Offered| {
        let found = contract.check(&offered).into_iter().find(|found| found.rule == "phased_not_offered");
        found.map(|found| found.message)
    };
    for offered in [Offered::sqlite(Library), Offered::postgres(Library), Offered::mariadb(Library)] {
        assert_eq!(said(offered), None);
        let without = said(Offered { journals: false, ..offered }).unwrap();
        assert!(without.contains("keeps no journal"), "{without}");
    }
    assert!(said(Offered::memory(Library)).unwrap().contains("cannot commit"));
}

const FILE_WITH_STEPS: &str = r#"
api = "Rides"
namespace = "rides"
longest_retry_chain = "24h"
unlisted = "refuse"
[scope]
source = "api_key"
rotates = false
[failures]
policy = "A"
[client]
drop_stored_statuses = true
[[endpoint]]
method = "POST"
path = "/rides"
key = "required"
recovery = "phased"
"#;
