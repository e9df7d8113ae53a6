//! Reading contracts: what a complete file becomes, and what every mistake is told.
#![allow(clippy::panic)] // helpers fail the test that calls them

use std::time::Duration;

use retrysafe_core::{address::Namespace, codes::Code, contract::*, key::KeySyntax, record::RecoveryClass};

const SMALL: &str = include_str!("contract/small.toml");
const FULL: &str = include_str!("contract/full.toml");
const HOUR: Duration = Duration::from_secs(3600);

fn read(text: &str) -> Contract {
    Contract::parse(text, "retrysafe.toml").unwrap_or_else(|faults| panic!("{faults}"))
}

/// The only fault of `text`, as `path: message | help`.
fn only_fault(text: &str) -> String {
    let faults =
        Contract::parse(text, "retrysafe.toml").err().map(|faults| faults.faults).unwrap_or_default();
    let shown: Vec<_> = faults.iter().map(|f| format!("{}: {} | {}", f.path, f.message, f.help)).collect();
    assert_eq!(shown.len(), 1, "{shown:#?}");
    shown.into_iter().next().unwrap_or_default()
}

#[test]
fn a_small_contract_gets_the_documented_defaults() {
    let contract = read(SMALL);
    assert_eq!((contract.version, contract.concurrent_max), (1, 1024));
    assert_eq!(contract.status_path, "/.retrysafe/status");
    assert_eq!(contract.answer_timeout, Duration::from_secs(30));
    let client = &contract.client;
    assert_eq!((client.attempts, client.elapsed), (3, Duration::from_secs(30)));
    assert_eq!((client.base, client.throttled_base), (Duration::from_millis(50), Duration::from_secs(1)));
    assert_eq!((client.cap, &*client.retry_statuses), (Duration::from_secs(20), &[429, 502, 503, 504][..]));

    let [orders] = &contract.endpoints[..] else { panic!("one endpoint") };
    assert_eq!((&*orders.name, orders.line), ("POST /orders", 13));
    assert_eq!(orders.carrier, Carrier::Header("idempotency-key".into()));
    assert_eq!((orders.key_rules.syntax, orders.key_rules.max_len), (KeySyntax::Lenient, 255));
    assert_eq!(orders.scope, Scope::ApiKey { header: "authorization".into(), scheme: Some("Bearer".into()) });
    assert_eq!((orders.windows.replay, orders.windows.reap), (24 * HOUR, 72 * HOUR));
    assert_eq!(orders.windows.lease, Duration::from_secs(30));
    assert_eq!(orders.in_flight.answer, InFlightAnswer::Refuse);
    assert_eq!(orders.recovery, RecoveryClass::Outside);
    assert_eq!(orders.store_down, StoreDown::Closed);
    assert_eq!((orders.limits.request_body_max, orders.limits.response_body_max), (1 << 20, 1 << 20));
    assert_eq!(orders.replay_marker, None);
}

#[test]
fn an_endpoint_overrides_single_settings_and_whole_decisions() {
    let contract = read(FULL);
    let [orders, delete, payments, log] = &contract.endpoints[..] else { panic!("four endpoints") };
    // Independent settings: what the endpoint does not mention stays as above.
    assert_eq!(payments.windows.replay, 72 * HOUR);
    assert_eq!((payments.windows.reap, payments.windows.lease), (96 * HOUR, Duration::from_secs(15)));
    assert_eq!(payments.carrier, Carrier::BodyField("/idempotency_key".into()));
    assert_eq!((payments.key_rules.syntax, payments.key_rules.max_len), (KeySyntax::Strict, 64));
    assert_eq!(payments.in_flight.answer, InFlightAnswer::AcceptPreferred);
    assert_eq!(payments.in_flight.retry_after, Duration::from_secs(2));
    assert_eq!(payments.recovery, RecoveryClass::Deduplicated);
    // Decisions: replaced as a whole.
    assert_eq!(payments.failures, FailurePolicy::StoreAll);
    let Scope::TrustedHeader { header, peers } = &payments.scope else { panic!("{:?}", payments.scope) };
    assert_eq!((header.as_str(), peers.len()), ("x-account", 2));
    assert_eq!(log.scope, Scope::Anonymous);
    assert_eq!(log.key, KeyUse::Unsafe { reason: "every call appends a line".into() });
    // What stands above holds for the rest.
    for endpoint in [orders, delete] {
        let Scope::Jwt(jwt) = &endpoint.scope else { panic!("{:?}", endpoint.scope) };
        assert_eq!(
            (&*jwt.claims, &jwt.key),
            (&["iss".into(), "sub".into()][..], &JwtKey::JwksFile("keys.json".into()))
        );
        assert_eq!(endpoint.in_flight.answer, InFlightAnswer::Wait { at_most: Duration::from_secs(5) });
        assert_eq!(endpoint.headers.keep, ["set-cookie"]);
        assert_eq!(
            (&*endpoint.scope_headers, &*endpoint.fingerprint_headers),
            (&["x-tenant".into()][..], &["api-version".into()][..])
        );
    }
    assert_eq!(delete.ends_resource, Some(EndsResource { param: "id".into(), grace: 24 * HOUR }));
    assert_eq!(contract.answers.statuses, [(Code::PayloadMismatch, 422)]);
    let probe = payments.probe.as_ref().expect("a probe");
    assert_eq!((probe.when_absent, probe.fences, probe.attempts), (WhenAbsent::Release, true, 3));
}

#[test]
fn an_endpoint_can_do_without_what_stands_above_it() {
    let off = "probe = false\nreauthorise = false\nreplay_marker = false\nwindows = { resource = false }\n";
    let text = FULL.replacen("key = \"required\"\n", &format!("key = \"required\"\n{off}"), 1);
    let (all, none) = (read(FULL), read(&text));
    let (all, none) = (&all.endpoints[0], &none.endpoints[0]);
    assert!(all.reauthorise.is_some() && all.replay_marker.is_some() && all.windows.resource.is_some());
    assert!(none.reauthorise.is_none() && none.replay_marker.is_none() && none.windows.resource.is_none());
    assert_eq!(none.windows.replay, all.windows.replay);
    let fault = only_fault(&format!("{SMALL}probe = true\n"));
    assert!(fault.contains("`probe` is a table"), "{fault}");
}

/// SPEC 6.2: the narrower entry wins, then the user's, then the defaults; 500 is the user's.
#[test]
fn s1_policy_b_decides_by_the_narrowest_class() {
    let contract = read(FULL);
    let failures = &contract.endpoints[0].failures;
    for (status, keep) in [
        (200, Keep::Window),
        (303, Keep::Window),
        (402, Keep::For(2 * HOUR)),
        (409, Keep::Window),
        (422, Keep::Window),
        (429, Keep::Release),
        (500, Keep::Uncertain),
        (501, Keep::Window),
        (502, Keep::Release),
        (503, Keep::Release),
        (504, Keep::Release),
    ] {
        assert_eq!(failures.keep(status), keep, "{status}");
    }
    let defaults = SMALL.replace("policy = \"A\"", "policy = \"B\"\nkeep = { 500 = \"window\" }");
    let failures = &read(&defaults).endpoints[0].failures;
    for (status, keep) in [
        (400, Keep::Window),
        (401, Keep::For(Duration::from_secs(60))),
        (402, Keep::For(HOUR)),
        (403, Keep::For(Duration::from_secs(60))),
        (409, Keep::For(HOUR)),
        (422, Keep::Window),
        (429, Keep::Release),
        (503, Keep::Release),
    ] {
        assert_eq!(failures.keep(status), keep, "{status}");
    }
}

/// What only the user can know is never filled in.
#[test]
fn decisions_are_not_defaulted() {
    for (cut, path) in [
        ("longest_retry_chain = \"24h\"\n", "longest_retry_chain"),
        ("unlisted = \"pass\"\n", "unlisted"),
        ("namespace = \"shop\"\n", "namespace"),
        ("api = \"Shop\"\n", "api"),
        ("[scope]\nsource = \"api_key\"\nrotates = false\n", "scope"),
        ("rotates = false\n", "scope.rotates"),
        ("[failures]\npolicy = \"A\"\n", "failures"),
        ("policy = \"A\"\n", "failures"),
        ("key = \"required\"\n", "endpoint[1].key"),
        ("method = \"POST\"\n", "endpoint[1].method"),
        ("[[endpoint]]\nmethod = \"POST\"\npath = \"/orders\"\nkey = \"required\"\n", "endpoint"),
    ] {
        assert!(SMALL.contains(cut), "{cut:?}");
        let fault = only_fault(&SMALL.replace(cut, ""));
        assert!(fault.starts_with(&format!("{path}: ")) && fault.contains("not decided"), "{cut:?}: {fault}");
    }
    let b = only_fault(&SMALL.replace("policy = \"A\"", "policy = \"B\""));
    assert!(b.starts_with("failures.keep.500: "), "{b}");
}

/// T2, SPEC 3.2: both numbers are in the message, and it stands where the number was written.
#[test]
fn t2_a_window_below_the_longest_retry_chain_does_not_load() {
    let chain = SMALL.replace("chain = \"24h\"", "chain = \"72h\"");
    let fault = only_fault(&chain);
    assert!(
        fault.starts_with("longest_retry_chain: ") && fault.contains("(24h)") && fault.contains("(72h)"),
        "{fault}"
    );
    let written = chain.replace("key = \"required\"", "key = \"required\"\nwindows = { replay = \"48h\" }");
    let fault = only_fault(&written);
    assert!(fault.starts_with("endpoint[1].windows.replay: ") && fault.contains("(48h)"), "{fault}");
    let enough = chain.replace("key = \"required\"", "key = \"required\"\nwindows = { replay = \"72h\" }");
    assert_eq!(read(&enough).endpoints[0].windows.replay, 72 * HOUR);
}

#[test]
fn a_record_is_kept_at_least_as_long_as_it_is_replayed() {
    let long = format!("{SMALL}windows = {{ replay = \"30d\" }}\n");
    assert_eq!(read(&long).endpoints[0].windows.reap, 30 * 24 * HOUR);
    let fault = only_fault(&format!("{SMALL}windows = {{ replay = \"30d\", reap = \"72h\" }}\n"));
    assert!(fault.contains("72h") && fault.contains("30d") && fault.contains("reap = \"30d\""), "{fault}");
}

#[test]
fn one_line_that_is_wrong_for_many_endpoints_is_one_fault() {
    let text = SMALL.replace("[scope]", "[windows]\nreplay = \"1h\"\n\n[scope]")
        + "\n[[endpoint]]\nmethod = \"POST\"\npath = \"/payments\"\nkey = \"required\"\n";
    assert!(only_fault(&text).starts_with("windows.replay: "));
}

#[test]
fn a_misspelt_field_is_refused_with_the_nearest_name() {
    let fault = only_fault(&format!("{SMALL}replay_makrer = \"Replayed\"\n"));
    assert!(fault.contains("did you mean `replay_marker`?"), "{fault}");
    let fault = only_fault(&format!("{SMALL}zzz = 1\n"));
    assert!(fault.contains("known here: method, path"), "{fault}");
}

/// The commonest slip of the format: a line below a table header belongs to that table.
#[test]
fn a_field_in_the_wrong_table_is_told_where_it_belongs() {
    for (line, help) in [
        ("concurrent_max = 7", "top of the file, above the first table"),
        ("longest_retry_chain = \"1h\"", "top of the file, above the first table"),
        ("request_body_max = \"1MiB\"", "belongs to `limits`"),
        ("retry_statuses = [503]", "belongs to `client`"),
    ] {
        let fault = only_fault(&format!("{SMALL}{line}\n"));
        assert!(fault.contains(help), "{line}: {fault}");
    }
    let below = SMALL.replace("rotates = false", "rotates = false\nstore_down = \"open\"");
    assert!(only_fault(&below).contains("top of the file or to an endpoint"));
    let single = SMALL.replace("[[endpoint]]", "[endpoint]");
    assert!(only_fault(&single).contains("double brackets"));
}

#[test]
fn two_endpoints_for_one_path_are_refused_with_both_lines() {
    let again = "\n[[endpoint]]\nmethod = \"POST\"\npath = \"/orders\"\nkey = \"optional\"\n";
    let fault = only_fault(&format!("{SMALL}{again}"));
    assert!(fault.contains("line 13 lists POST /orders already"), "{fault}");
    let named = SMALL.replace("/orders", "/orders/{id}") + &again.replace("/orders", "/orders/{order}");
    assert!(only_fault(&named).contains("line 13 lists POST /orders/{id} already"));
    // Another method, or a fixed word beside a parameter, is no conflict.
    read(&format!("{SMALL}{}", again.replace("POST", "PUT")));
    read(&(SMALL.replace("/orders", "/orders/{id}") + &again.replace("/orders", "/orders/bulk")));
}

#[test]
fn broken_toml_is_located_and_the_rest_is_still_read() {
    let text = SMALL.replace("unlisted = \"pass\"", "unlisted = pass\nversion = \"x\"");
    let faults = Contract::parse(&text, "shop.toml").unwrap_err().faults;
    assert!(faults.iter().any(|f| f.line == 4 && f.message.starts_with("not TOML")), "{faults:#?}");
    assert!(faults.iter().any(|f| f.path == "version"), "{faults:#?}");
}

/// Whatever the bytes, the answer is a contract or faults with a place in the file.
#[test]
fn any_prefix_of_a_contract_is_read_or_refused() {
    for end in (0..FULL.len()).filter(|end| FULL.is_char_boundary(*end)) {
        if let Err(faults) = Contract::parse(&FULL[..end], "cut.toml") {
            assert!(!faults.faults.is_empty());
            assert!(faults.faults.iter().all(|f| f.line >= 1 && f.column >= 1 && !f.help.is_empty()));
        }
    }
}

#[test]
fn every_fault_of_a_bad_contract_is_told_in_one_answer() {
    let faults = Contract::parse(include_str!("contract/bad.toml"), "bad.toml").unwrap_err();
    insta::assert_snapshot!(faults.to_string());
}

/// What is for events alone has no endpoint; what is for requests has one, or guards nothing.
#[test]
fn a_contract_of_events_has_no_endpoint_and_what_is_parsed_has() {
    let name = Namespace::new("by-mail").unwrap();
    let (day, minute) = (Duration::from_secs(86_400), Duration::from_secs(60));
    let contract = Contract::of_events(&name, day, minute).unwrap();
    assert!(contract.endpoints.is_empty());
    assert_eq!((contract.namespace, contract.longest_retry_chain), (name.clone(), day));
    assert_eq!((contract.answer_timeout, contract.unlisted), (minute, Unlisted::Refuse));
    assert!(Contract::of_events(&name, day, Duration::ZERO).is_err(), "no time at all");
    let parsed = "api = 'A'\nnamespace = 'a'\nlongest_retry_chain = '1h'\nunlisted = 'refuse'\n";
    let faults = Contract::parse(parsed, "a.toml").unwrap_err();
    assert!(faults.to_string().contains("the contract guards nothing"), "{faults}");
}
