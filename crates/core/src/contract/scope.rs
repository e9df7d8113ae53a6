//! `[scope]`: whose key it is (SPEC 2.2, protocol 1).

use super::{
    fields,
    model::{JwtKey, JwtScope, Scope},
    section::{Item, Section},
    values,
};

/// Where identities are carried unless the contract says otherwise.
const AUTHORIZATION: &str = "authorization";

/// Algorithms that the layer verifies. `none` is not among them, whatever a token says about itself.
const ALGORITHMS: [&str; 11] =
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA", "HS256", "HS512"];

pub(super) fn read(item: &Item<'_>) -> Option<Scope> {
    let kinds: [(&'static str, &'static [&'static str]); 5] = [
        ("jwt", fields::SCOPE_JWT),
        ("trusted_header", fields::SCOPE_TRUSTED_HEADER),
        ("api_key", fields::SCOPE_API_KEY),
        ("application", fields::SCOPE_ALONE),
        ("anonymous", fields::SCOPE_ALONE),
    ];
    let (source, section) = item.section_by(
        "source",
        &kinds,
        "a key belongs to an account, and the account comes from somewhere",
    )?;
    match source {
        "jwt" => jwt(&section).map(Scope::Jwt),
        "trusted_header" => trusted_header(&section),
        "api_key" => api_key(&section),
        "application" => Some(Scope::Application),
        _ => Some(Scope::Anonymous),
    }
}

fn jwt(section: &Section<'_>) -> Option<JwtScope> {
    let claims = section.list("claims", values::said, vec!["sub".to_owned()]);
    if claims.is_empty() {
        section.fault("claims", "no claim names the account", "write claims = [\"sub\"]");
    }
    let algorithm = |text: &str| {
        let known = ALGORITHMS.contains(&text).then(|| text.to_owned());
        known.ok_or_else(|| {
            (format!("{text:?} is not an algorithm here"), format!("write some of {}", ALGORITHMS.join(", ")))
        })
    };
    let why = "a token chooses its own algorithm unless the contract does";
    section.require("algorithms", why, "write what the issuer signs with: algorithms = [\"RS256\"]");
    let algorithms = section.list("algorithms", algorithm, Vec::new());
    let key = jwt_key(section)?;
    let shared = matches!(key, JwtKey::SecretEnv(_));
    if let Some(odd) = algorithms.iter().find(|name| name.starts_with("HS") != shared) {
        // A public key taken for an HMAC secret lets anybody sign.
        let message = format!("{odd} does not go with this kind of key");
        section.fault("algorithms", message, "HS* takes secret_env, all others take pem_file or jwks_file");
    }
    Some(JwtScope {
        header: section.text("header", values::header).unwrap_or_else(|| AUTHORIZATION.to_owned()),
        claims,
        issuer: section.text("issuer", values::said),
        audience: section.text("audience", values::said),
        algorithms,
        key,
    })
}

fn jwt_key(section: &Section<'_>) -> Option<JwtKey> {
    let help = "write one of pem_file, jwks_file (paths) or secret_env (the name of an environment variable)";
    let given: Vec<JwtKey> = [
        section.text("pem_file", values::said).map(JwtKey::PemFile),
        section.text("jwks_file", values::said).map(JwtKey::JwksFile),
        section.text("secret_env", values::said).map(JwtKey::SecretEnv),
    ]
    .into_iter()
    .flatten()
    .collect();
    match <[JwtKey; 1]>::try_from(given) {
        Ok([key]) => Some(key),
        Err(given) if given.is_empty() => {
            section.missing("pem_file", "a token that nobody verifies names no account", help);
            None
        }
        Err(_) => {
            section.fault("source", "more than one verification key", help);
            None
        }
    }
}

fn trusted_header(section: &Section<'_>) -> Option<Scope> {
    let why = "the account is what this header says";
    section.require("header", why, "write the header that your proxy sets: header = \"X-Account\"");
    let why = "a header that any caller may set is no identity";
    let help = "write the addresses of what sets it: peers = [\"10.0.0.0/8\"]";
    let listed = section.require("peers", why, help)?.list();
    if listed.is_empty() {
        section.fault("peers", "no peer is trusted, so no request has an account", help);
    }
    let peers = listed.iter().filter_map(|peer| peer.text(values::network)).collect();
    Some(Scope::TrustedHeader { header: section.text("header", values::header)?, peers })
}

fn api_key(section: &Section<'_>) -> Option<Scope> {
    let header = section.text("header", values::header).unwrap_or_else(|| AUTHORIZATION.to_owned());
    let scheme = section.text("scheme", values::said);
    let why = "after a renewal the same caller would be another account, and its retry a second effect";
    let help = "write rotates = false if the key outlives every retry; else use source = \"jwt\" and a claim that stays";
    let rotates = section.require("rotates", why, help)?.flag()?;
    if rotates {
        section.fault("rotates", format!("a key that rotates is no scope: {why}"), help);
        return None;
    }
    let bearer = (header == AUTHORIZATION).then(|| "Bearer".to_owned());
    Some(Scope::ApiKey { header, scheme: scheme.or(bearer) })
}
