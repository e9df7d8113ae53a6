//! Whose key it is: from a request to a verified, stable account (SPEC 2.2, protocol 1).
//!
//! The account is never a hash of something that is renewed: a session token that is refreshed between a timeout and its
//! retry would put the retry into another scope, and the write would run twice. So a JWT counts by its verified claims, a
//! header only when a listed peer set it, and an API key only where the contract says that it does not rotate.

use std::{borrow::Cow, collections::HashMap, fmt, net::IpAddr};

use http::{HeaderMap, HeaderName, request::Parts};
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, Validation,
    jwk::{JwkSet, PublicKeyUse},
};
use retrysafe_core::{
    address::Account,
    contract::{JwtKey, JwtScope, Scope},
};

use api_key::ApiKeys;

mod api_key;

/// Claims of a token. Only strings and numbers can name an account.
type Claims = HashMap<String, serde_json::Value>;

/// The peer's address, put into the request's extensions by whoever accepted the connection. Without it no header is
/// trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer(pub IpAddr);

/// There is no identity to scope by; answered with `idempotency_scope_missing`. Never says which part was wrong with
/// the credentials.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no verified identity to scope the key by")]
pub(crate) struct NoScope;

/// A scope that cannot be set up: the start fails with it.
#[derive(Debug, thiserror::Error)]
pub enum ScopeFault {
    /// The key file cannot be read.
    #[error("cannot read the JWT key file {path}: {source}; check [scope] in the contract")]
    KeyFile {
        /// The path in the contract.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The key is not usable with the algorithms.
    #[error("the JWT key in {from} cannot be used: {why}")]
    Key {
        /// Where it was read from.
        from: String,
        /// What is wrong.
        why: String,
    },
    /// The environment variable is not set.
    #[error(
        "the environment variable {0} with the JWT secret is not set; set it, or name another in [scope]"
    )]
    NoSecret(String),
    /// A header name that is none.
    #[error("{0:?} is not a header name")]
    Header(String),
    /// A JSON pointer that is none.
    #[error("{0:?} is not a JSON pointer")]
    Pointer(String),
    /// An algorithm that is not known.
    #[error("{0} is not a JWT algorithm; use RS256, ES256, EdDSA, HS256 or their longer forms")]
    Algorithm(String),
}

/// Finds the account of a request.
pub(crate) struct AccountSource {
    how: How,
    /// Headers that select the account: they join it (protocol 3).
    selecting: Vec<HeaderName>,
}

enum How {
    Jwt(Box<JwtVerifier>),
    TrustedHeader { header: HeaderName, peers: Vec<ipnet::IpNet> },
    ApiKey { header: HeaderName, scheme: Option<String>, keys: ApiKeys },
    Application,
    Anonymous,
}

impl AccountSource {
    pub(crate) fn new(scope: &Scope, selecting: &[String]) -> Result<Self, ScopeFault> {
        let how = match scope {
            Scope::Jwt(jwt) => How::Jwt(Box::new(JwtVerifier::new(jwt)?)),
            Scope::TrustedHeader { header, peers } => {
                How::TrustedHeader { header: header_name(header)?, peers: peers.clone() }
            }
            Scope::ApiKey { header, scheme } => {
                How::ApiKey { header: header_name(header)?, scheme: scheme.clone(), keys: ApiKeys::new() }
            }
            Scope::Application => How::Application,
            Scope::Anonymous => How::Anonymous,
        };
        let selecting = selecting.iter().map(|name| header_name(name)).collect::<Result<_, _>>()?;
        Ok(Self { how, selecting })
    }

    /// The account of the request, or the fact that it has none.
    pub(crate) fn account(&self, parts: &Parts) -> Result<Account, NoScope> {
        let mut account: Vec<Cow<'_, str>> = match &self.how {
            How::Jwt(verifier) => verifier.subject(&parts.headers)?,
            How::TrustedHeader { header, peers } => {
                let Peer(peer) = parts.extensions.get::<Peer>().ok_or(NoScope)?;
                // A dual-stack socket shows an IPv4 peer as ::ffff:a.b.c.d.
                let peer = peer.to_canonical();
                if !peers.iter().any(|net| net.contains(&peer)) {
                    return Err(NoScope);
                }
                vec!["header".into(), only_line(&parts.headers, header)?.into()]
            }
            How::ApiKey { header, scheme, keys } => {
                let line = only_line(&parts.headers, header)?;
                let secret = match scheme {
                    Some(scheme) => after_scheme(line, scheme)?,
                    None => line,
                };
                if self.selecting.is_empty() {
                    return keys.account(secret);
                }
                api_key::parts(secret).map(Cow::from).into()
            }
            How::Application => {
                let Application(account) = parts.extensions.get::<Application>().ok_or(NoScope)?;
                if self.selecting.is_empty() {
                    return Ok(account.clone());
                }
                vec!["app".into(), account.as_str().into()]
            }
            How::Anonymous => vec!["anonymous".into()],
        };
        // The subject's own text is the second part; an empty one would be a scope that strangers share.
        if account.get(1).is_some_and(|subject| subject.is_empty()) {
            return Err(NoScope);
        }
        for name in &self.selecting {
            // Absent and present are told apart: `+` marks a value.
            account.push(match parts.headers.contains_key(name) {
                true => format!("+{}", only_line(&parts.headers, name)?).into(),
                false => "".into(),
            });
        }
        let borrowed: Vec<&str> = account.iter().map(AsRef::as_ref).collect();
        Account::new(&borrowed).map_err(|_| NoScope)
    }
}

/// The account of a request, set by the application's own authentication in front of the layer (`scope.source =
/// "application"`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Application(pub Account);

struct JwtVerifier {
    header: HeaderName,
    claims: Vec<String>,
    keys: Keys,
}

enum Keys {
    One(Box<VerifyingKey>),
    /// By key id. A token without `kid` is accepted when there is only one key.
    Set(Vec<(Option<String>, VerifyingKey)>),
}

/// A key with the checks of the tokens it verifies.
struct VerifyingKey {
    key: DecodingKey,
    validation: Validation,
}

impl JwtVerifier {
    fn new(scope: &JwtScope) -> Result<Self, ScopeFault> {
        Ok(Self {
            header: header_name(&scope.header)?,
            claims: scope.claims.clone(),
            keys: Keys::read(&scope.key, &validation(scope)?)?,
        })
    }

    /// The claims that name the account, in the contract's order.
    fn subject(&self, headers: &HeaderMap) -> Result<Vec<Cow<'static, str>>, NoScope> {
        let token = after_scheme(only_line(headers, &self.header)?, "Bearer")?;
        let claims: Claims = self.decode(token)?;
        let mut subject = vec!["jwt".into()];
        for name in &self.claims {
            subject.push(match claims.get(name) {
                Some(serde_json::Value::String(text)) if !text.is_empty() => text.clone().into(),
                Some(serde_json::Value::Number(number)) => number.to_string().into(),
                _ => return Err(NoScope),
            });
        }
        Ok(subject)
    }

    fn decode(&self, token: &str) -> Result<Claims, NoScope> {
        let VerifyingKey { key, validation } = match &self.keys {
            Keys::One(key) => key,
            Keys::Set(keys) => {
                let kid = jsonwebtoken::decode_header(token).map_err(|_| NoScope)?.kid;
                match (&kid, keys.as_slice()) {
                    (None, [(_, only)]) => only,
                    (Some(_), _) => &keys.iter().find(|(id, _)| *id == kid).ok_or(NoScope)?.1,
                    (None, _) => return Err(NoScope),
                }
            }
        };
        jsonwebtoken::decode::<Claims>(token, key, validation).map(|data| data.claims).map_err(|_| NoScope)
    }
}

/// What every token has to show. What the contract names is required, not only compared where it is there: a token
/// without `aud` was made for nobody in particular, and not for this API.
fn validation(scope: &JwtScope) -> Result<Validation, ScopeFault> {
    let algorithms = scope
        .algorithms
        .iter()
        .map(|name| name.parse::<Algorithm>().map_err(|_| ScopeFault::Algorithm(name.clone())))
        .collect::<Result<Vec<_>, _>>()?;
    let mut validation = Validation::new(algorithms.first().copied().unwrap_or(Algorithm::RS256));
    validation.algorithms = algorithms;
    validation.validate_nbf = true;
    let mut required = vec!["exp"];
    if let Some(issuer) = &scope.issuer {
        validation.set_issuer(&[issuer]);
        required.push("iss");
    }
    match &scope.audience {
        Some(audience) => {
            validation.set_audience(&[audience]);
            required.push("aud");
        }
        None => validation.validate_aud = false,
    }
    validation.set_required_spec_claims(&required);
    Ok(validation)
}

impl VerifyingKey {
    /// `key` with those of the contract's algorithms that it can be used with; `None` if it is for none of them.
    fn new(key: DecodingKey, validation: &Validation) -> Option<Self> {
        let mut validation = validation.clone();
        validation.algorithms.retain(|algorithm| algorithm.family() == key.family());
        (!validation.algorithms.is_empty()).then_some(Self { key, validation })
    }
}

impl Keys {
    fn read(key: &JwtKey, validation: &Validation) -> Result<Self, ScopeFault> {
        let read = |path: &String| {
            std::fs::read(path).map_err(|source| ScopeFault::KeyFile { path: path.clone(), source })
        };
        let unusable = |from: &str, why: &dyn fmt::Display| ScopeFault::Key {
            from: from.to_owned(),
            why: why.to_string(),
        };
        let one = |from: &str, key: Result<DecodingKey, jsonwebtoken::errors::Error>| {
            let key = key.map_err(|error| unusable(from, &error))?;
            let key = VerifyingKey::new(key, validation);
            key.map(|key| Keys::One(Box::new(key)))
                .ok_or_else(|| unusable(from, &"it is of another kind than the algorithms"))
        };
        match key {
            JwtKey::SecretEnv(name) => {
                let secret = std::env::var(name).map_err(|_| ScopeFault::NoSecret(name.clone()))?;
                one(name, DecodingKey::from_secret(secret.as_bytes()))
            }
            JwtKey::PemFile(path) => {
                let pem = read(path)?;
                one(
                    path,
                    match validation.algorithms.first().map(|first| first.family()) {
                        Some(AlgorithmFamily::Ec) => DecodingKey::from_ec_pem(&pem),
                        Some(AlgorithmFamily::Ed) => DecodingKey::from_ed_pem(&pem),
                        _ => DecodingKey::from_rsa_pem(&pem),
                    },
                )
            }
            JwtKey::JwksFile(path) => {
                let set: JwkSet =
                    serde_json::from_slice(&read(path)?).map_err(|error| unusable(path, &error))?;
                // Issuers publish keys for other uses next to those that sign; they verify nothing.
                let keys: Vec<_> = set
                    .keys
                    .iter()
                    .filter(|jwk| jwk.common.public_key_use != Some(PublicKeyUse::Encryption))
                    .filter_map(|jwk| {
                        let key = VerifyingKey::new(DecodingKey::from_jwk(jwk).ok()?, validation)?;
                        Some((jwk.common.key_id.clone(), key))
                    })
                    .collect();
                if keys.is_empty() {
                    return Err(unusable(path, &"it holds no signing key for the algorithms"));
                }
                Ok(Keys::Set(keys))
            }
        }
    }
}

/// The value of a header that must be there once: with two lines, hops could disagree on which one counts.
fn only_line<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a str, NoScope> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (Some(line), None) => line.to_str().map_err(|_| NoScope),
        _ => Err(NoScope),
    }
}

/// What follows an authentication scheme, whose name has no case (RFC 9110 11.1).
fn after_scheme<'a>(line: &'a str, scheme: &str) -> Result<&'a str, NoScope> {
    let (found, rest) = line.split_once(' ').ok_or(NoScope)?;
    let rest = rest.trim();
    (found.eq_ignore_ascii_case(scheme) && !rest.is_empty()).then_some(rest).ok_or(NoScope)
}

pub(crate) fn header_name(name: &str) -> Result<HeaderName, ScopeFault> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| ScopeFault::Header(name.to_owned()))
}
