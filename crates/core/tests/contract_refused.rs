//! One slip each: the field it is told about, and what it is told.
#![allow(clippy::expect_used)] // helpers fail the test that calls them

use retrysafe_core::{
    codes::Code,
    contract::{Contract, Keep, Scope},
    record::RecoveryClass,
};

/// A sound contract; `top` goes above its tables, `endpoint` into its endpoint.
fn text(top: &str, endpoint: &str) -> String {
    let scope = if top.contains("scope = ") { "" } else { "scope = { source = \"application\" }" };
    let failures = if top.contains("failures = ") { "" } else { "failures = { policy = \"A\" }" };
    format!(
        "api = \"Shop\"\nnamespace = \"shop\"\nlongest_retry_chain = \"24h\"\nunlisted = \"pass\"\n{scope}\n{failures}\n{top}\n\
         [[endpoint]]\nmethod = \"POST\"\npath = \"/orders/{{id}}\"\nkey = \"required\"\n{endpoint}\n"
    )
}

fn told(top: &str, endpoint: &str) -> Vec<String> {
    let faults = Contract::parse(&text(top, endpoint), "slip.toml").err();
    let faults = faults.map(|faults| faults.faults).unwrap_or_default();
    faults.iter().map(|fault| format!("{}: {} | {}", fault.path, fault.message, fault.help)).collect()
}

/// Above the tables, in the endpoint, the path of the only fault, and a part of what it says.
#[rustfmt::skip]
const SLIPS: &[(&str, &str, &str, &str)] = &[
    // values out of bounds
    ("version = 0", "", "version", "1 to"),
    ("concurrent_max = 0", "", "concurrent_max", "1 to"),
    ("answer_timeout = \"0s\"", "", "answer_timeout", "zero"),
    ("longest_retry_chain_ = \"1h\"", "", "longest_retry_chain_", "did you mean `longest_retry_chain`"),
    ("client = { attempts = 101 }", "", "client.attempts", "1 to 100"),
    ("client = { elapsed = 30 }", "", "client.elapsed", "\"30s\""),
    ("client = { retry_statuses = [503, 700] }", "", "client.retry_statuses[2]", "200 to 599"),
    ("status_path = \"status\"", "", "status_path", "not a path"),
    ("", "limits = { request_body_max = \"1GiB\" }", "endpoint[1].limits.request_body_max", "out of bounds"),
    ("", "limits = { response_body_max = \"0B\" }", "endpoint[1].limits.response_body_max", "out of bounds"),
    ("", "carrier = { length_max = 4096 }", "endpoint[1].carrier.length_max", "1 to 1024"),
    ("", "replay_marker = \"a b\"", "endpoint[1].replay_marker", "header name"),
    // two decisions where there is one
    ("", "carrier = { header = \"K\", body_field = \"/k\" }", "endpoint[1].carrier.body_field", "two places"),
    ("", "recovery = \"atomic\"\nupstream_deduplicates = true", "endpoint[1].recovery", "keep either"),
    ("", "fingerprint = { body = false, exclude = [\"/a\"] }", "endpoint[1].fingerprint.exclude", "left out already"),
    ("", "unsafe_reason = \"x\"", "endpoint[1].unsafe_reason", "takes no key"),
    ("", "in_flight = { answer = \"202\", wait_at_most = \"1s\" }", "endpoint[1].in_flight.wait_at_most", "nobody waits"),
    // scopes that are none
    ("scope = { source = \"cookie\" }", "", "scope.source", "\"jwt\""),
    ("scope = { source = \"jwt\", algorithms = [\"RS256\"], claims = [], pem_file = \"k\" }", "", "scope.claims", "no claim"),
    ("scope = { source = \"jwt\", pem_file = \"k\" }", "", "scope.algorithms", "chooses its own algorithm"),
    ("scope = { source = \"jwt\", algorithms = [\"RS256\"] }", "", "scope.pem_file", "nobody verifies"),
    ("scope = { source = \"jwt\", algorithms = [\"RS256\"], secret_env = \"S\" }", "", "scope.algorithms", "does not go with"),
    ("scope = { source = \"jwt\", algorithms = [\"RS256\"], pem_file = \"a\", jwks_file = \"b\" }", "", "scope.source", "more than one"),
    ("scope = { source = \"trusted_header\", header = \"X-User\" }", "", "scope.peers", "any caller may set"),
    ("scope = { source = \"trusted_header\", header = \"X-User\", peers = [] }", "", "scope.peers", "no peer is trusted"),
    ("scope = { source = \"trusted_header\", peers = [\"::1\"] }", "", "scope.header", "what this header says"),
    ("scope = { source = \"api_key\", rotates = true }", "", "scope.rotates", "second effect"),
    // probes that cannot work
    ("", "probe = { path = \"/p?k={key}&x={x}\", status = 200 }", "endpoint[1].probe.path", "nothing fills"),
    ("", "probe = { path = \"/p\", status = 200 }", "endpoint[1].probe.path", "{key}"),
    ("", "probe = { path = \"/p/{key}\" }", "endpoint[1].probe.status", "not decided"),
    ("", "probe = { path = \"/p/{key}\", status = 200, absent = [200] }", "endpoint[1].probe.absent", "both"),
    ("", "undecided = [{ status = 409, field = \"/code\" }]", "endpoint[1].undecided[1].field", "go together"),
    ("", "undecided = [{ field = \"/code\", value = \"x\" }]", "endpoint[1].undecided[1].status", "not decided"),
    ("", "final_5xx = [404]", "endpoint[1].final_5xx[1]", "no 5xx"),
    // windows and resources
    ("", "windows = { resource = {} }", "endpoint[1].windows.resource.id", "id = \"/id\""),
    ("", "ends_resource = { param = \"id\", grace = \"1h\" }", "endpoint[1].ends_resource.grace", "(1h)"),
    ("", "ends_resource = { param = \"order\" }", "endpoint[1].ends_resource.param", "{order}"),
    // answers
    ("answers = { headers = [{ name = \"X-A\", when_final = \"b\" }] }", "", "answers.headers[1].when_retryable", "not decided"),
    ("answers = { statuses = { idempotency_key_emty = 400 } }", "", "answers.statuses.idempotency_key_emty", "idempotency_key_empty"),
    ("answers = { content_type = \"text/\\u00e4\" }", "", "answers.content_type", "ASCII"),
];

#[test]
fn every_slip_is_one_fault_at_its_field() {
    for (top, endpoint, path, part) in SLIPS {
        let told = told(top, endpoint);
        assert!(told.len() == 1, "{top} {endpoint}: {told:#?}");
        assert!(
            told[0].starts_with(&format!("{path}: ")) && told[0].contains(part),
            "{top} {endpoint}: {told:#?}"
        );
    }
}

fn read(top: &str, endpoint: &str) -> Contract {
    let told = told(top, endpoint);
    Contract::parse(&text(top, endpoint), "ok.toml").ok().filter(|_| told.is_empty()).expect("a contract")
}

/// The order of the file, and of the alphabet, says nothing: `400-499` comes before `402` in both here.
#[test]
fn the_narrower_entry_decides_wherever_it_stands() {
    let keep =
        "{ \"400-499\" = \"2h\", \"401-403\" = \"uncertain\", 402 = \"release\", \"5xx\" = \"window\" }";
    let contract = read(&format!("failures = {{ policy = \"B\", keep = {keep} }}"), "");
    let failures = &contract.endpoints[0].failures;
    let two_hours = Keep::For(std::time::Duration::from_secs(7200));
    for (status, kept) in [
        (402, Keep::Release),
        (401, Keep::Uncertain),
        (404, two_hours),
        (429, two_hours),
        (500, Keep::Window),
        (503, Keep::Window),
    ] {
        assert_eq!(failures.keep(status), kept, "{status}");
    }
}

#[test]
fn an_endpoint_takes_back_that_its_upstream_deduplicates() {
    let class = |endpoint: &str| read("upstream_deduplicates = true", endpoint).endpoints[0].recovery;
    assert_eq!(class(""), RecoveryClass::Deduplicated);
    assert_eq!(class("upstream_deduplicates = false"), RecoveryClass::Outside);
    assert_eq!(class("upstream_deduplicates = false\nrecovery = \"atomic\""), RecoveryClass::Atomic);
}

#[test]
fn the_scheme_of_an_api_key_is_the_contracts() {
    let scope = |more: &str| {
        let top = format!("scope = {{ source = \"api_key\", rotates = false{more} }}");
        read(&top, "").endpoints[0].scope.clone()
    };
    let key = |header: &str, scheme: Option<&str>| Scope::ApiKey {
        header: header.to_owned(),
        scheme: scheme.map(str::to_owned),
    };
    assert_eq!(scope(""), key("authorization", Some("Bearer")));
    assert_eq!(scope(", scheme = \"Token\""), key("authorization", Some("Token")));
    assert_eq!(scope(", header = \"X-Api-Key\""), key("x-api-key", None));
}

/// The statuses of the user come before those of the envelope, and each code has one.
#[test]
fn a_status_of_ones_own_rules_over_the_envelope() {
    let top = "answers = { envelope = \"stripe\", statuses = { idempotency_key_payload_mismatch = 409 } }";
    assert_eq!(read(top, "").answers.statuses, [(Code::PayloadMismatch, 409)]);
}

#[test]
fn a_conflict_of_paths_names_the_endpoint_it_is_with() {
    for (first, second) in [
        ("/a/{id}", "/a/{other}"),
        ("/a/{id}/b", "/a/{other}/b"),
        ("/a/{*rest}", "/a/{*other}"),
        ("/a/{id}:cancel", "/a/{other}:cancel"),
        ("/{x}", "/{y}"),
    ] {
        let endpoint =
            |path: &str| format!("[[endpoint]]\nmethod = \"PUT\"\npath = \"{path}\"\nkey = \"required\"\n");
        let told = told("", &(endpoint(first) + &endpoint(second)));
        assert!(
            told.len() == 1 && told[0].contains(&format!("lists PUT {first} already")),
            "{second}: {told:#?}"
        );
    }
}
