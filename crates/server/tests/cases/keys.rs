//! Which key a request has and which request it is, through the layer (K1-K3, K7, F7-F9, F18-F19).

use axum::{body::Body, extract::Request};
use http::{HeaderValue, Method, StatusCode};
use retrysafe_core::fingerprint::{DeploymentKey, FingerprintKeys};

use crate::support::{
    api::{Api, endpoint, order},
    faulty::Faulty,
    post,
};

fn with_keys(lines: &[&[u8]]) -> Request {
    let mut request = order("-");
    request.headers_mut().remove("idempotency-key");
    for line in lines {
        request.headers_mut().append("idempotency-key", HeaderValue::from_bytes(line).unwrap());
    }
    request
}

#[tokio::test]
async fn k1_the_bare_and_the_quoted_form_are_one_key() {
    let api = Api::new("");
    let bare = api.send(with_keys(&[b"abc"])).await;
    assert_eq!(bare.status, StatusCode::CREATED);
    assert_eq!(api.send(with_keys(&[b"\"abc\""])).await, bare);
    assert_eq!(api.effects(), 1);
    let strict = Api::new("carrier = { syntax = \"strict\" }");
    assert_eq!(strict.send(with_keys(&[b"\"abc\""])).await.status, StatusCode::CREATED);
    assert_eq!(strict.send(with_keys(&[b"abc"])).await.code(), "idempotency_key_malformed");
}

/// K2, K3, K7: each fault has its own code, claims nothing and runs nothing.
#[tokio::test]
async fn k2_k3_k7_every_fault_of_a_key_has_its_own_code() {
    let api = Api::new("");
    let (long, limit) = (vec![b'k'; 256], vec![b'k'; 255]);
    let quoted = [b"\"", limit.as_slice(), b"\""].concat();
    let rows: [(&[&[u8]], &str); 12] = [
        (&[], "idempotency_key_missing"),
        (&[b""], "idempotency_key_empty"),
        (&[b"\"\""], "idempotency_key_empty"),
        (&[&long], "idempotency_key_too_long"),
        (&[&[b'k'; 10_000]], "idempotency_key_too_long"),
        (&[b"a", b"b"], "idempotency_key_ambiguous"),
        (&[b"a", b"a"], "idempotency_key_ambiguous"),
        (&[b"a, b"], "idempotency_key_ambiguous"),
        (&[b"a b"], "idempotency_key_malformed"),
        (&["käse".as_bytes()], "idempotency_key_malformed"),
        (&[b"a\tb"], "idempotency_key_malformed"),
        (&[b"\"unfinished"], "idempotency_key_malformed"),
    ];
    for (lines, code) in rows {
        let answer = api.send(with_keys(lines)).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (400, code), "{lines:?}");
        assert_eq!(answer.json()["retryable"], false);
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(!text.contains("kkk") && !text.contains("käse"), "a refusal repeats no key: {text}");
    }
    assert_eq!((api.effects(), api.store.records().await.len()), (0, 0));
    assert_eq!(api.send(with_keys(&[&limit])).await.status, StatusCode::CREATED, "the limit itself is a key");
    assert_eq!(api.send(with_keys(&[&quoted])).await.json()["id"], "o-1", "quotes do not count");
}

/// Design 5: who nobody is learns nothing about keys.
#[tokio::test]
async fn the_identity_is_asked_for_before_the_key_is_looked_at() {
    let api = Api::new("");
    for lines in [&[][..], &[&b"a, b"[..]], &[b"good"]] {
        let mut request = with_keys(lines);
        request.headers_mut().remove("authorization");
        let answer = api.send(request).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (401, "idempotency_scope_missing"));
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_any_claim() {
    let api = Api::new("limits = { request_body_max = \"16B\" }");
    let answer = api.send(post("/orders", "alice", "k", r#"{"amount":  5000}"#)).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (413, "request_too_large".into()));
    assert_eq!((api.effects(), api.store.records().await.len()), (0, 0));
    assert_eq!(
        api.send(post("/orders", "alice", "k", r#"{"amount": 5000}"#)).await.status,
        StatusCode::CREATED
    );
}

const SEVERAL: &str = r#"
[[endpoint]]
method = "PATCH"
path = "/orders/{id}"
key = "required"
[[endpoint]]
method = "POST"
path = "/orders/{id}"
key = "required"
"#;

/// F7, F8, F9: another query, path, parameter or method under one key is another request, and never gets the first's
/// answer.
#[tokio::test]
async fn f7_f8_f9_query_path_and_method_are_part_of_the_request() {
    let api = Api::new(SEVERAL);
    let send = async |method: &str, target: &str| {
        let mut request = post(target, "alice", "k", r#"{"amount": 5}"#);
        *request.method_mut() = Method::from_bytes(method.as_bytes()).unwrap();
        api.send(request).await
    };
    let first = send("POST", "/orders/7?dry=1").await;
    assert_eq!(first.status, StatusCode::CREATED);
    for (method, target) in [
        ("POST", "/orders/7"),
        ("POST", "/orders/7?dry=0"),
        ("POST", "/orders/8?dry=1"),
        ("PATCH", "/orders/7?dry=1"),
        ("POST", "/orders?dry=1"),
    ] {
        let other = send(method, target).await;
        assert_eq!(other.code(), "idempotency_key_payload_mismatch", "{method} {target}");
    }
    assert_eq!(send("POST", "/orders/7?dry=1").await, first);
    assert_eq!(api.effects(), 1);
}

/// F1, F17 through the layer: one meaning is one request.
#[tokio::test]
async fn f1_f17_another_spelling_of_the_same_json_is_the_same_request() {
    let api = Api::new("");
    let first = api.send(post("/orders", "alice", "k", r#"{"a":1,"b":[2.50]}"#)).await;
    assert_eq!(api.send(post("/orders", "alice", "k", "{ \"b\" : [ 25e-1 ],\r\n \"a\": 1.0 }")).await, first);
    for other in [r#"{"a":"1","b":[2.50]}"#, r#"{"a":1,"b":2.50}"#, r#"{"A":1,"b":[2.50]}"#, r#"{"a":1}"#] {
        let answer = api.send(post("/orders", "alice", "k", other)).await;
        assert_eq!(answer.code(), "idempotency_key_payload_mismatch", "{other}");
    }
}

/// F19: what changes between attempts is left out by the contract; a header that nobody named does not count.
#[tokio::test]
async fn f19_what_the_contract_leaves_out_is_not_compared_and_the_rest_is() {
    let api = Api::new("fingerprint = { exclude = [\"/sent_at\"], headers = [\"api-version\"] }");
    let send = async |body: &str, version: &str, attempt: &str| {
        let mut request = post("/orders", "alice", "k", body);
        request.headers_mut().insert("api-version", version.parse().unwrap());
        request.headers_mut().insert("x-attempt", attempt.parse().unwrap());
        api.send(request).await
    };
    let first = send(r#"{"amount": 5, "sent_at": 1}"#, "2024", "1").await;
    assert_eq!(send(r#"{"amount": 5, "sent_at": 2}"#, "2024", "2").await, first);
    assert_eq!(send(r#"{"amount": 5}"#, "2024", "3").await, first);
    let mismatch = "idempotency_key_payload_mismatch";
    assert_eq!(send(r#"{"amount": 6, "sent_at": 1}"#, "2024", "1").await.code(), mismatch);
    assert_eq!(send(r#"{"amount": 5, "sent_at": 1}"#, "2025", "1").await.code(), mismatch, "protocol 3");
    assert_eq!(api.effects(), 1);
}

/// F18: keys rotate in a deploy, and live records are verified with the key they were made with.
#[tokio::test]
async fn f18_a_rotated_fingerprint_key_keeps_live_records_valid() {
    let store = Faulty::new();
    let key = |id: u32| DeploymentKey::new(id, &[u8::try_from(id).unwrap(); 32]).unwrap();
    let open = |keys: FingerprintKeys| {
        Api::built(&endpoint("", ""), store.clone(), |builder| builder.fingerprint_keys(keys))
    };
    let old = open(FingerprintKeys::new(key(1)));
    let first = old.order("k").await;
    let rotated = open(FingerprintKeys::new(key(2)).with_older(key(1)).unwrap());
    assert_eq!(rotated.order("k").await, first);
    let other = rotated.send(post("/orders", "alice", "k", "{}")).await;
    assert_eq!(other.code(), "idempotency_key_payload_mismatch", "still told apart");
    // Without the old key nobody can tell. Neither a replay nor a mismatch may be guessed, and nothing runs.
    let forgot = open(FingerprintKeys::new(key(2)));
    for body in [r#"{"amount": 5}"#, "{}"] {
        let answer = forgot.send(post("/orders", "alice", "k", body)).await;
        assert_eq!(answer.code(), "idempotency_outcome_unknown");
    }
    assert_eq!((old.effects(), rotated.effects(), forgot.effects()), (1, 0, 0));
}

#[tokio::test]
async fn a_key_in_the_body_is_a_key() {
    let api = Api::new("carrier = { body_field = \"/request/id\" }");
    let send = async |body: &str| {
        let mut request = post("/orders", "alice", "a header of that name means nothing here", body);
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
        api.send(request).await
    };
    let first = send(r#"{"request": {"id": "k"}, "amount": 5}"#).await;
    assert_eq!(first.status, StatusCode::CREATED);
    assert_eq!(send(r#"{"amount": 5, "request": {"id": "k"}}"#).await, first);
    let rows = [
        (r#"{"request": {"id": "k"}, "amount": 6}"#, "idempotency_key_payload_mismatch"),
        (r#"{"request": {}, "amount": 5}"#, "idempotency_key_missing"),
        (r#"{"request": {"id": null}}"#, "idempotency_key_missing"),
        ("not json", "idempotency_key_missing"),
        (r#"{"request": {"id": ""}}"#, "idempotency_key_empty"),
        (r#"{"request": {"id": 7}}"#, "idempotency_key_malformed"),
        (r#"{"request": {"id": "a", "id": "b"}}"#, "idempotency_key_ambiguous"),
    ];
    for (body, code) in rows {
        assert_eq!(send(body).await.code(), code, "{body}");
    }
    assert_eq!(api.effects(), 1);
}

/// SPEC 1.2: an endpoint takes a key, may take one, or is unsafe to retry and ignores it.
#[tokio::test]
async fn optional_keys_guard_when_they_are_there_and_unsafe_endpoints_ignore_them() {
    let keyless = || with_keys(&[]);
    let optional = Api::contract(&endpoint("", "").replace("\"required\"", "\"optional\""));
    assert_eq!(optional.order("k").await, optional.order("k").await);
    assert_ne!(optional.send(keyless()).await, optional.send(keyless()).await);
    assert_eq!(optional.effects(), 3);
    assert_eq!(
        optional.send(with_keys(&[b""])).await.code(),
        "idempotency_key_empty",
        "an empty key is a fault, not none"
    );

    let text = endpoint("", "unsafe_reason = \"appends to a log\"").replace("\"required\"", "\"unsafe\"");
    let ignores = Api::contract(&text);
    assert_ne!(ignores.order("k").await, ignores.order("k").await);
    assert_eq!((ignores.effects(), ignores.store.records().await.len()), (2, 0));

    let in_body = Api::contract(
        &endpoint("", "carrier = { body_field = \"/id\" }").replace("\"required\"", "\"optional\""),
    );
    let with = |body: &str| post("/orders", "alice", "-", body);
    assert_eq!(in_body.send(with(r#"{"id": "k"}"#)).await, in_body.send(with(r#"{"id": "k"}"#)).await);
    assert_ne!(in_body.send(with("{}")).await, in_body.send(with("{}")).await);
    assert_eq!(in_body.effects(), 3);
}

#[tokio::test]
async fn unlisted_operations_are_passed_or_refused_as_the_contract_says() {
    let passes = Api::new("");
    let refuses = Api::contract(&endpoint("", "").replace("unlisted = \"pass\"", "unlisted = \"refuse\""));
    for (method, target) in
        [("POST", "/refunds"), ("PUT", "/orders"), ("DELETE", "/orders/7"), ("PURGE", "/orders")]
    {
        let request = || {
            let mut request = post(target, "alice", "k", "");
            *request.method_mut() = Method::from_bytes(method.as_bytes()).unwrap();
            request
        };
        assert_eq!(passes.send(request()).await.status, StatusCode::CREATED);
        let refused = refuses.send(request()).await;
        assert_eq!((refused.status.as_u16(), refused.code()), (403, "idempotency_endpoint_unlisted".into()));
    }
    assert_eq!((passes.effects(), refuses.effects()), (4, 0));
    for method in ["GET", "HEAD", "OPTIONS"] {
        let request = Request::builder().method(method).uri("/orders").body(Body::empty()).unwrap();
        assert_eq!(refuses.send(request).await.status, StatusCode::CREATED, "{method} changes nothing");
    }
    // Other spellings of a listed path are not a way past the guard.
    for target in ["/orders/", "//orders", "/./orders", "/%6frders"] {
        assert_eq!(
            passes.send(post(target, "alice", "", "{}")).await.code(),
            "idempotency_key_empty",
            "{target}"
        );
    }
}

#[tokio::test]
async fn an_upgrade_cannot_be_guarded_and_is_refused() {
    let api = Api::new("");
    let mut request = order("k");
    request.headers_mut().insert("connection", HeaderValue::from_static("upgrade"));
    request.headers_mut().insert("upgrade", HeaderValue::from_static("websocket"));
    let answer = api.send(request).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (400, "idempotency_not_guardable".into()));
    assert_eq!((api.effects(), api.store.records().await.len()), (0, 0));
    // Java's client offers h2c with every first request. Not taking it up is an answer.
    let mut offer = order("k");
    offer.headers_mut().insert("upgrade", HeaderValue::from_static("h2c"));
    assert_eq!(api.send(offer).await.status, StatusCode::CREATED);
}

/// Protocol 2: two hops of one namespace would meet each other's claims. In front of this one, or around it.
#[tokio::test]
async fn protocol_2_nested_hops_of_one_namespace_are_refused() {
    use tower::{Layer, ServiceExt};
    let collision = "idempotency_namespace_collision";
    let api = Api::new("");
    let mut request = order("k");
    request.headers_mut().append(retrysafe_server::HOP_HEADER, HeaderValue::from_static("another"));
    assert_eq!(api.send(request).await.status, StatusCode::CREATED);
    let mut request = order("k");
    for hop in ["another", "test"] {
        request.headers_mut().append(retrysafe_server::HOP_HEADER, HeaderValue::from_static(hop));
    }
    let refused = api.send(request).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (500, collision));

    let around = |namespace: &str| {
        let text = endpoint("", "").replace("namespace = \"test\"", &format!("namespace = \"{namespace}\""));
        Api::built(&text, api.store.clone(), |builder| builder).retrysafe
    };
    let before = api.effects();
    let response = around("test").layer(api.router.clone()).oneshot(order("k-2")).await.unwrap();
    assert_eq!(crate::support::api::read(response).await.code(), collision, "the fault is shown");
    let records = api.store.records().await;
    assert!(records.iter().all(|(address, _)| address.key().as_str() != "k-2"), "and not stored as a result");
    let response = around("outer").layer(api.router.clone()).oneshot(order("k-2")).await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED, "two namespaces are two hops");
    assert_eq!(api.effects(), before + 1);
}

/// Protocol 3: the path is the original one, not what nested routers left.
#[tokio::test]
async fn protocol_3_two_nests_do_not_share_a_request() {
    use axum::{Router, routing::post as on_post};
    use tower::ServiceExt;
    let text = endpoint("", "").replace("\"/orders\"", "\"/{shop}/orders\"");
    let api = Api::contract(&text);
    let inner = Router::new()
        .route("/orders", on_post(|| async { StatusCode::CREATED }))
        .layer(api.retrysafe.clone());
    let app = Router::new().nest("/a", inner.clone()).nest("/b", inner);
    let send = async |target: &str| {
        let response = app.clone().oneshot(post(target, "alice", "k", "{}")).await.unwrap();
        crate::support::api::read(response).await
    };
    assert_eq!(send("/a/orders").await.status, StatusCode::CREATED);
    assert_eq!(send("/a/orders").await.status, StatusCode::CREATED);
    assert_eq!(send("/b/orders").await.code(), "idempotency_key_payload_mismatch");
}

/// A key in a packed body cannot be read. Where the key is optional the request would otherwise run unguarded.
#[tokio::test]
async fn a_body_key_in_a_compressed_body_is_refused_not_overlooked() {
    let api = Api::contract(
        &endpoint("", "carrier = { body_field = \"/id\" }").replace("\"required\"", "\"optional\""),
    );
    let mut request = order("-");
    request.headers_mut().insert("content-encoding", HeaderValue::from_static("gzip"));
    assert_eq!(api.send(request).await.code(), "idempotency_key_malformed");
    assert_eq!(api.effects(), 0);
}
