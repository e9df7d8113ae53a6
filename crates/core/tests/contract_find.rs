//! From requests to endpoints.
#![allow(clippy::panic)] // helpers fail the test that calls them

use retrysafe_core::contract::{Contract, Lookup};

fn contract(paths: &[(&str, &str)]) -> Contract {
    let mut text =
        "api = \"Shop\"\nnamespace = \"shop\"\nlongest_retry_chain = \"24h\"\nunlisted = \"pass\"\n\
                    scope = { source = \"application\" }\nfailures = { policy = \"A\" }\n"
            .to_owned();
    for (method, path) in paths {
        text += &format!("[[endpoint]]\nmethod = \"{method}\"\npath = \"{path}\"\nkey = \"required\"\n");
    }
    Contract::parse(&text, "find.toml").unwrap_or_else(|faults| panic!("{faults}"))
}

/// The name of what is found, or the word for why nothing is.
fn found(contract: &Contract, method: &str, path: &str) -> String {
    match contract.find(method, path) {
        Lookup::Endpoint(endpoint, _) => endpoint.name.to_string(),
        Lookup::Unlisted => "unlisted".to_owned(),
        Lookup::SafeMethod => "safe".to_owned(),
    }
}

#[test]
fn requests_find_their_endpoint() {
    let contract = contract(&[
        ("POST", "/"),
        ("POST", "/orders"),
        ("POST", "/orders/{id}/lines"),
        ("POST", "/orders/bulk/lines"),
        ("DELETE", "/orders/{id}"),
        ("PATCH", "/files/{*rest}"),
        ("PURGE", "/cache"),
    ]);
    for (method, path, expected) in [
        ("POST", "/", "POST /"),
        ("POST", "/orders", "POST /orders"),
        ("POST", "/orders/7/lines", "POST /orders/{id}/lines"),
        ("POST", "/orders/bulk/lines", "POST /orders/bulk/lines"),
        ("DELETE", "/orders/7", "DELETE /orders/{id}"),
        ("PATCH", "/files/a/b/c", "PATCH /files/{*rest}"),
        ("PURGE", "/cache", "PURGE /cache"),
        ("POST", "/orders/7", "unlisted"),
        ("PUT", "/orders", "unlisted"),
        ("POST", "/refunds", "unlisted"),
        ("post", "/orders", "unlisted"),
        ("GET", "/orders", "safe"),
        ("HEAD", "/nowhere", "safe"),
        ("OPTIONS", "/orders", "safe"),
        ("TRACE", "/orders", "safe"),
    ] {
        assert_eq!(found(&contract, method, path), expected, "{method} {path}");
    }
}

/// A spelling that the upstream may take for a guarded path is no way past the layer.
#[test]
fn no_spelling_of_a_path_goes_past_the_layer() {
    let contract = contract(&[("POST", "/orders"), ("DELETE", "/orders/{id}")]);
    for path in
        ["/orders/", "//orders", "/./orders", "/x/../orders", "/%6frders", "/%6Frders//", "/orders/%2e"]
    {
        assert_eq!(found(&contract, "POST", path), "POST /orders", "{path}");
    }
    assert_eq!(found(&contract, "DELETE", "/orders/a%2Fb/"), "DELETE /orders/{id}");
    for path in ["", "*", "orders", "/Orders", "/orders%2F7/x", "/orders/../payments"] {
        assert_eq!(found(&contract, "POST", path), "unlisted", "{path:?}");
    }
}

/// They are compared with ids in stored answers, which are not percent-encoded.
#[test]
fn parameters_are_decoded() {
    let contract = contract(&[("DELETE", "/shops/{shop}/orders/{id}")]);
    for (sent, id) in
        [("a%2Fb", "a/b"), ("caf%C3%A9", "café"), ("%ff", "%ff"), ("100%", "100%"), ("a+b", "a+b")]
    {
        let Lookup::Endpoint(_, params) = contract.find("DELETE", &format!("/shops/%61cme/orders/{sent}"))
        else {
            panic!("{sent} is not found")
        };
        assert_eq!(
            (params.get("shop"), params.get("id"), params.get("none")),
            (Some("acme"), Some(id), None)
        );
    }
}
