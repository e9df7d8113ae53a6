//! Whose key it is: verified, stable identities (K5, protocol 1-3).

use axum::extract::Request;
use http::{HeaderValue, StatusCode};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use retrysafe_core::address::Account;
use retrysafe_server::{Application, BuildFault, Peer, Retrysafe};
use serde_json::json;

use crate::support::{
    Answer, CONTRACT,
    api::{Api, endpoint, order},
    faulty::Faulty,
};

const RSA: &[u8] = include_bytes!("keys/rsa-private.pem");
const RSA_OTHER: &[u8] = include_bytes!("keys/rsa-other-private.pem");
const EC: &[u8] = include_bytes!("keys/ec-private.pem");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/keys");
/// A variable that is set in every test: what it holds does not matter, only that both sides read it.
const SECRET_ENV: &str = "PATH";
const FAR: u64 = 4_000_000_000;

/// The contract with another scope.
fn scoped(scope: &str) -> String {
    let text = endpoint("", "");
    assert!(text.contains(CONTRACT));
    text.replace("scope = { source = \"api_key\", rotates = false }", &format!("scope = {scope}"))
}

fn jwt(more: &str) -> Api {
    Api::contract(&scoped(&format!("{{ source = \"jwt\", {more} }}")))
}

fn with_token(token: &str) -> Request {
    let mut request = order("k");
    request.headers_mut().insert("authorization", HeaderValue::try_from(format!("Bearer {token}")).unwrap());
    request
}

fn sign(algorithm: Algorithm, key: &EncodingKey, kid: Option<&str>, claims: &serde_json::Value) -> String {
    let header = Header { kid: kid.map(str::to_owned), ..Header::new(algorithm) };
    jsonwebtoken::encode(&header, claims, key).unwrap()
}

fn rs256(claims: &serde_json::Value) -> String {
    sign(Algorithm::RS256, &EncodingKey::from_rsa_pem(RSA).unwrap(), None, claims)
}

fn no_scope(answer: &Answer) -> bool {
    answer.status == StatusCode::UNAUTHORIZED && answer.code() == "idempotency_scope_missing"
}

fn rsa() -> String {
    format!("algorithms = [\"RS256\"], pem_file = \"{FOLDER}/rsa-public.pem\"")
}

/// Protocol 1: a session that is renewed between timeout and retry is the same account.
#[tokio::test]
async fn protocol_1_a_refreshed_token_is_the_same_account() {
    let api = jwt(&rsa());
    let first = api.send(with_token(&rs256(&json!({ "sub": "alice", "exp": FAR, "jti": 1 })))).await;
    assert_eq!(first.status, StatusCode::CREATED);
    let renewed = rs256(&json!({ "sub": "alice", "exp": FAR + 60, "jti": 2 }));
    assert_eq!(api.send(with_token(&renewed)).await, first);
    let bob = api.send(with_token(&rs256(&json!({ "sub": "bob", "exp": FAR })))).await;
    assert_ne!(bob, first, "K5: another account is another scope");
    assert_eq!(api.effects(), 2);
}

#[tokio::test]
async fn k5_only_a_verified_token_names_an_account() {
    let api = jwt(&format!("{}, issuer = \"https://id\", audience = \"shop\"", rsa()));
    let good = json!({ "sub": "alice", "exp": FAR, "iss": "https://id", "aud": "shop" });
    let with = |member: &str, value: serde_json::Value| {
        let mut claims = good.clone();
        match value {
            serde_json::Value::Null => claims.as_object_mut().unwrap().remove(member),
            value => claims.as_object_mut().unwrap().insert(member.to_owned(), value),
        };
        claims
    };
    assert_eq!(api.send(with_token(&rs256(&good))).await.status, StatusCode::CREATED);
    assert_eq!(
        api.send(with_token(&rs256(&with("aud", json!(["other", "shop"]))))).await.status,
        StatusCode::CREATED
    );
    let refused = [
        ("expired", rs256(&with("exp", json!(1_000_000)))),
        ("without end", rs256(&with("exp", json!(null)))),
        ("not yet valid", rs256(&with("nbf", json!(FAR)))),
        ("another audience", rs256(&with("aud", json!("bank")))),
        ("no audience", rs256(&with("aud", json!(null)))),
        ("another issuer", rs256(&with("iss", json!("https://evil")))),
        ("no issuer", rs256(&with("iss", json!(null)))),
        ("no subject", rs256(&with("sub", json!(null)))),
        ("an empty subject", rs256(&with("sub", json!("")))),
        ("a subject that is no name", rs256(&with("sub", json!({ "id": 1 })))),
        ("another key", sign(Algorithm::RS256, &EncodingKey::from_rsa_pem(RSA_OTHER).unwrap(), None, &good)),
        ("another algorithm", sign(Algorithm::RS384, &EncodingKey::from_rsa_pem(RSA).unwrap(), None, &good)),
        (
            "the public key as a shared secret",
            sign(
                Algorithm::HS256,
                &EncodingKey::from_secret(&std::fs::read(format!("{FOLDER}/rsa-public.pem")).unwrap())
                    .unwrap(),
                None,
                &good,
            ),
        ),
        ("alg none", format!("eyJhbGciOiJub25lIn0.{}.", rs256(&good).split('.').nth(1).unwrap())),
        ("tampered", format!("{}A", rs256(&good))),
        ("no token", "x".to_owned()),
    ];
    for (name, token) in refused {
        let answer = api.send(with_token(&token)).await;
        assert!(no_scope(&answer), "{name}: {answer:?}");
        assert!(!String::from_utf8_lossy(&answer.body).contains(&token), "{name}");
    }
    assert_eq!(api.effects(), 2 - 1, "the two good ones are one account and one key");
}

#[tokio::test]
async fn k5_two_authorization_lines_or_another_scheme_name_nobody() {
    let api = jwt(&rsa());
    let token = rs256(&json!({ "sub": "alice", "exp": FAR }));
    let line = |text: String| HeaderValue::try_from(text).unwrap();
    let mut twice = with_token(&token);
    twice.headers_mut().append("authorization", line(format!("Bearer {token}")));
    assert!(no_scope(&api.send(twice).await));
    for odd in [format!("Basic {token}"), token.clone(), "Bearer".to_owned(), "Bearer ".to_owned()] {
        let mut request = order("k");
        request.headers_mut().insert("authorization", line(odd));
        assert!(no_scope(&api.send(request).await));
    }
    let mut lower = order("k");
    lower.headers_mut().insert("authorization", line(format!("bearer  {token}")));
    assert_eq!(api.send(lower).await.status, StatusCode::CREATED, "a scheme has no case");
}

#[tokio::test]
async fn jwt_keys_of_every_kind_verify() {
    let claims = json!({ "sub": "alice", "exp": FAR });
    let secret = std::env::var(SECRET_ENV).unwrap();
    let hs = EncodingKey::from_secret(secret.as_bytes()).unwrap();
    let (rsa_key, ec_key) = (EncodingKey::from_rsa_pem(RSA).unwrap(), EncodingKey::from_ec_pem(EC).unwrap());
    let set = format!("algorithms = [\"RS256\", \"ES256\"], jwks_file = \"{FOLDER}/jwks.json\"");
    let ec = format!("algorithms = [\"ES256\"], pem_file = \"{FOLDER}/ec-public.pem\"");
    let shared = format!("algorithms = [\"HS256\"], secret_env = \"{SECRET_ENV}\"");
    for (scope, algorithm, key, kid, accepted) in [
        (&shared, Algorithm::HS256, &hs, None, true),
        (&ec, Algorithm::ES256, &ec_key, None, true),
        (&ec, Algorithm::RS256, &rsa_key, None, false),
        // One set, two kinds of keys.
        (&set, Algorithm::RS256, &rsa_key, Some("rsa-1"), true),
        (&set, Algorithm::ES256, &ec_key, Some("ec-1"), true),
        (&set, Algorithm::RS256, &rsa_key, Some("ec-1"), false),
        (&set, Algorithm::RS256, &rsa_key, Some("unknown"), false),
        (&set, Algorithm::RS256, &rsa_key, None, false),
        (&set, Algorithm::RS256, &rsa_key, Some("enc-1"), false),
    ] {
        let token = sign(algorithm, key, kid, &claims);
        let answer = jwt(scope).send(with_token(&token)).await;
        assert_eq!(answer.status == StatusCode::CREATED, accepted, "{algorithm:?} {kid:?}: {answer:?}");
        assert!(accepted || no_scope(&answer));
    }
}

#[tokio::test]
async fn several_claims_make_an_account_and_never_run_into_each_other() {
    let api = jwt(&format!("{}, claims = [\"tenant\", \"sub\"]", rsa()));
    let send = async |tenant: serde_json::Value, sub: &str| {
        api.send(with_token(&rs256(&json!({ "tenant": tenant, "sub": sub, "exp": FAR })))).await
    };
    let first = send(json!("a"), "bc").await;
    assert_ne!(send(json!("ab"), "c").await, first);
    assert_ne!(send(json!(7), "bc").await, first);
    assert_eq!(send(json!("a"), "bc").await, first);
    assert!(no_scope(&send(json!(null), "bc").await));
    assert_eq!(api.effects(), 3);
}

#[test]
fn a_scope_that_cannot_be_set_up_stops_the_start() {
    for more in [
        "algorithms = [\"RS256\"], pem_file = \"/nowhere/key.pem\"".to_owned(),
        "algorithms = [\"HS256\"], secret_env = \"RETRYSAFE_NO_SUCH_SECRET\"".to_owned(),
        format!("algorithms = [\"RS256\"], pem_file = \"{FOLDER}/README.md\""),
        format!("algorithms = [\"EdDSA\"], jwks_file = \"{FOLDER}/jwks.json\""),
        format!("algorithms = [\"RS256\"], jwks_file = \"{FOLDER}/rsa-public.pem\""),
    ] {
        let text = scoped(&format!("{{ source = \"jwt\", {more} }}"));
        let contract = retrysafe_core::contract::Contract::parse(&text, "t.toml").unwrap();
        let store = std::sync::Arc::new(Faulty::new());
        let Err(fault) = Retrysafe::builder(contract, store).build() else { panic!("{more}") };
        assert!(matches!(fault, BuildFault::Scope { .. }), "{fault}");
        assert!(!fault.to_string().contains("BEGIN"), "{fault}");
    }
}

/// A header counts only when a listed peer set it.
#[tokio::test]
async fn k5_a_trusted_header_from_anybody_else_names_nobody() {
    let scope =
        "{ source = \"trusted_header\", header = \"X-Account\", peers = [\"10.0.0.0/8\", \"::1/128\"] }";
    let api = Api::contract(&scoped(scope));
    let from = |peer: Option<&str>, accounts: &[&str]| {
        let mut request = order("k");
        if let Some(peer) = peer {
            request.extensions_mut().insert(Peer(peer.parse().unwrap()));
        }
        for account in accounts {
            request.headers_mut().append("x-account", account.parse().unwrap());
        }
        request
    };
    for (peer, accounts, accepted) in [
        (Some("10.1.2.3"), &["alice"][..], true),
        (Some("::ffff:10.1.2.3"), &["alice"], true),
        (Some("::1"), &["alice"], true),
        (Some("11.0.0.1"), &["alice"], false),
        (Some("::ffff:11.0.0.1"), &["alice"], false),
        (None, &["alice"], false),
        (Some("10.1.2.3"), &["alice", "bob"], false),
        (Some("10.1.2.3"), &[], false),
        (Some("10.1.2.3"), &[""], false),
    ] {
        let answer = api.send(from(peer, accounts)).await;
        assert_eq!(answer.status == StatusCode::CREATED, accepted, "{peer:?} {accounts:?}");
        assert!(accepted || no_scope(&answer));
    }
    assert_eq!(api.effects(), 1);
}

/// Protocol 3: headers that select the account join the scope.
#[tokio::test]
async fn protocol_3_a_connected_account_is_a_scope_of_its_own() {
    let api = Api::contract(&endpoint("", "scope_headers = [\"X-Connected\"]"));
    let with = |lines: &[&str]| {
        let mut request = order("k");
        for line in lines {
            request.headers_mut().append("x-connected", line.parse().unwrap());
        }
        request
    };
    let own = api.send(with(&[])).await;
    let connected = api.send(with(&["acct-1"])).await;
    assert_ne!(own, connected);
    assert_ne!(api.send(with(&[""])).await, own, "an empty line is not no line");
    assert_eq!(api.send(with(&["acct-1"])).await, connected);
    assert!(no_scope(&api.send(with(&["acct-1", "acct-2"])).await));
    assert_eq!(api.effects(), 3);
}

#[tokio::test]
async fn the_applications_own_authentication_can_name_the_account() {
    let api = Api::contract(&scoped("{ source = \"application\" }"));
    let from = |account: Option<&str>| {
        let mut request = order("k");
        if let Some(account) = account {
            request.extensions_mut().insert(Application(Account::new(&[account]).unwrap()));
        }
        request
    };
    let alice = api.send(from(Some("alice"))).await;
    assert_eq!(api.send(from(Some("alice"))).await, alice);
    assert_ne!(api.send(from(Some("bob"))).await, alice);
    assert!(no_scope(&api.send(from(None)).await), "whatever its headers say");
}

/// SPEC 2.2: one scope for everybody only where the contract says so.
#[tokio::test]
async fn an_anonymous_scope_is_stated_and_shared() {
    let api = Api::contract(&scoped("{ source = \"anonymous\" }"));
    let mut request = order("k");
    request.headers_mut().remove("authorization");
    assert_eq!(api.send(request).await, api.order("k").await);
    assert_eq!(api.effects(), 1);
}

/// No secret of a caller is kept: the account of an API key is a digest.
#[tokio::test]
async fn an_api_key_is_not_stored_as_it_is() {
    let api = Api::new("");
    api.order("k").await;
    let records = api.store.records().await;
    let (address, _) = &records[0];
    assert!(!address.account().as_str().contains("alice"));
    assert!(!format!("{records:?}").contains("alice"));
}
