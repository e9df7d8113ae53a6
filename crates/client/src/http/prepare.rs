//! From what a caller asks for to what is sent on every attempt: the key once, the bytes once.

use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, header};
use retrysafe_core::{
    contract::{AnswerMatch, Carrier, Endpoint, KeyUse, Lookup},
    fingerprint::{BodyRules, Fingerprint, FingerprintInput},
    key::{KeyFault, KeyRules, KeySyntax, parse_body, parse_header},
    pointer::JsonPointer,
    retry::{Body, Idempotence, Request, RetryPolicy, deadline::wire},
};

use super::{
    api::{Api, Inner, Knowledge, Target},
    kept::Kept,
    result::Refused,
};
use crate::{
    key::{Key, KeyRefused},
    nested::{self, ATTEMPT_HEADER},
};

/// What the caller asks for.
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) version: Version,
    pub(crate) extensions: Extensions,
    /// `None`: a stream, which is not looked at.
    pub(crate) body: Option<Bytes>,
    /// A stream that can be made anew.
    pub(crate) again: bool,
    pub(crate) key: Option<Key>,
}

/// What is sent on every attempt, and what is known about it.
pub(crate) struct Prepared {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    headers: HeaderMap,
    /// The headers, once the first attempt has taken the map itself.
    kept: Option<Kept>,
    version: Version,
    extensions: Extensions,
    pub(crate) body: Option<Bytes>,
    pub(crate) key: Option<Key>,
    pub(crate) policy: RetryPolicy,
    pub(crate) request: Request,
    pub(crate) replay: Option<Duration>,
    pub(crate) rejected: Vec<AnswerMatch>,
    pub(crate) target: Target,
    key_header: Option<HeaderName>,
    deadline_header: Option<HeaderName>,
    attempt_header: bool,
}

/// What contract or profile say about a request.
struct Known<'a> {
    policy: RetryPolicy,
    idempotence: Idempotence,
    /// Where the key goes; `None`: keys are not honoured.
    keys: Option<Keys<'a>>,
    deadline_header: Option<&'a str>,
    endpoint: Option<&'a Endpoint>,
}

struct Keys<'a> {
    place: Place<'a>,
    rules: KeyRules,
    replay: Duration,
}

enum Place<'a> {
    Header(&'a str),
    Body(&'a str),
}

impl<'a> Place<'a> {
    fn of(carrier: &'a Carrier) -> Self {
        match carrier {
            Carrier::Header(name) => Place::Header(name),
            Carrier::BodyField(pointer) => Place::Body(pointer),
        }
    }
}

impl Prepared {
    pub(crate) fn new(api: &Api, asked: Asked) -> Result<Self, Refused> {
        let inner = api.inner();
        let known = known(inner, &asked.method, asked.uri.path());
        let Asked { method, uri, mut headers, version, extensions, mut body, again, key } = asked;
        let mut key_header = None;
        // A key that somebody chose can meet another body; one that was just drawn cannot.
        let mut chosen = key.is_some();
        let make = |key: Option<Key>| made(key, &method, &uri);
        let key = match &known.keys {
            None => None,
            Some(Keys { place: Place::Header(name), rules, .. }) => {
                let name = header_name(name)?;
                let key = match carried(&headers, &name, rules)? {
                    Some(carried) => {
                        chosen = true;
                        carried
                    }
                    None => {
                        let key = make(key)?;
                        headers.insert(&name, spelled(&key, rules)?);
                        key
                    }
                };
                key_header = Some(name);
                Some(key)
            }
            Some(Keys { place: Place::Body(pointer), rules, .. }) => {
                let bytes = body.as_ref().ok_or(Refused::NoPlaceForKey)?;
                let pointer: JsonPointer = pointer.parse().map_err(|_| Refused::NoPlaceForKey)?;
                match parse_body(bytes, &pointer, rules) {
                    Ok(carried) => {
                        chosen = true;
                        Some(Key::carried(carried)?)
                    }
                    Err(KeyFault::Missing) => {
                        let key = make(key)?;
                        within_length(&key, rules)?;
                        body = Some(with_member(bytes, &pointer, key.as_str())?);
                        Some(key)
                    }
                    Err(fault) => return Err(fault.into()),
                }
            }
        };
        let replay = known.keys.as_ref().map(|keys| keys.replay);
        let target = api.target(&uri);
        let prepared = Self {
            request: Request {
                idempotence: known.idempotence,
                body: if body.is_some() || again { Body::Replayable } else { Body::OneShot },
            },
            policy: known.policy,
            replay,
            rejected: known
                .endpoint
                .map(|endpoint| endpoint.rejected_before_processing.clone())
                .unwrap_or_default(),
            target,
            key_header,
            deadline_header: known.deadline_header.map(header_name).transpose()?,
            attempt_header: inner.attempt_header,
            method,
            uri,
            headers,
            kept: None,
            version,
            extensions,
            body,
            key,
        };
        if chosen
            && let (Some(key), Some(body)) = (&prepared.key, &prepared.body)
            && !prepared.fingerprinted(known.endpoint, body, |input| inner.used.allows(key, input))
        {
            return Err(Refused::BodyChanged);
        }
        Ok(prepared)
    }

    /// The digest of a request by this process's secret: whether an [`crate::Operation`] is asked for the same thing.
    pub(crate) fn digest(api: &Api, asked: &Asked) -> Option<Fingerprint> {
        let known = known(api.inner(), &asked.method, asked.uri.path());
        let body = asked.body.as_ref()?;
        let used = &api.inner().used;
        fingerprinted(&asked.method, &asked.uri, &asked.headers, known.endpoint, body, |input| {
            used.digest(input)
        })
    }

    fn fingerprinted<T>(
        &self,
        endpoint: Option<&Endpoint>,
        body: &Bytes,
        then: impl FnOnce(&FingerprintInput<'_>) -> T,
    ) -> T {
        fingerprinted(&self.method, &self.uri, &self.headers, endpoint, body, then)
    }

    /// The head of an attempt: the same for all of them but for its number and the time it has.
    pub(crate) fn head(&self, attempt: u32, timeout: Duration) -> http::request::Parts {
        let headers = self.kept.as_ref().map_or_else(|| self.headers.clone(), Kept::headers);
        self.with_headers(headers, attempt, timeout)
    }

    /// The head of the first attempt, which takes the headers as they are; for others they are kept.
    #[cfg(feature = "tower")]
    pub(crate) fn first_head(&mut self, timeout: Duration) -> http::request::Parts {
        self.kept = Some(Kept::of(&self.headers));
        let headers = std::mem::take(&mut self.headers);
        self.with_headers(headers, 1, timeout)
    }

    fn with_headers(&self, headers: HeaderMap, attempt: u32, timeout: Duration) -> http::request::Parts {
        let (mut parts, ()) = http::Request::new(()).into_parts();
        parts.method = self.method.clone();
        parts.uri = self.uri.clone();
        parts.version = self.version;
        parts.headers = headers;
        if !self.extensions.is_empty() {
            parts.extensions = self.extensions.clone();
        }
        self.dress(&mut parts.headers, attempt, timeout);
        parts
    }

    /// The head of a question to a status URL: a GET by the same caller, and not keyed.
    pub(crate) fn poll_head(&self, url: Uri, timeout: Duration) -> http::request::Parts {
        const OF_THE_BODY: [HeaderName; 5] = [
            header::CONTENT_LENGTH,
            header::CONTENT_TYPE,
            header::CONTENT_ENCODING,
            header::TRANSFER_ENCODING,
            header::EXPECT,
        ];
        let mut parts = self.head(1, timeout);
        (parts.method, parts.uri) = (Method::GET, url);
        OF_THE_BODY.iter().for_each(|name| drop(parts.headers.remove(name)));
        if let Some(name) = &self.key_header {
            parts.headers.remove(name);
        }
        parts
    }

    fn dress(&self, headers: &mut HeaderMap, attempt: u32, timeout: Duration) {
        if let Some(name) = &self.deadline_header
            && let Ok(value) = HeaderValue::try_from(wire::write(name.as_str(), timeout))
        {
            headers.insert(name, value);
        }
        if self.attempt_header {
            let known = usize::try_from(attempt).ok().and_then(|attempt| NUMBERS.get(attempt));
            let number =
                known.map_or_else(|| HeaderValue::from(attempt), |text| HeaderValue::from_static(text));
            headers.insert(HeaderName::from_static(ATTEMPT_HEADER), number);
        }
    }
}

fn fingerprinted<T>(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    endpoint: Option<&Endpoint>,
    body: &Bytes,
    then: impl FnOnce(&FingerprintInput<'_>) -> T,
) -> T {
    let plain = BodyRules::default();
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let lines: Vec<(&str, &[u8])> = endpoint
        .into_iter()
        .flat_map(|endpoint| &endpoint.fingerprint_headers)
        .filter_map(|name| Some((name.as_str(), headers.get(name)?.as_bytes())))
        .collect();
    then(&FingerprintInput {
        method: method.as_str(),
        route: endpoint.map_or(uri.path(), |endpoint| &endpoint.path),
        path: uri.path(),
        query: uri.query(),
        headers: &lines,
        content_type: text(header::CONTENT_TYPE),
        content_encoding: text(header::CONTENT_ENCODING),
        body,
        rules: endpoint.map_or(&plain, |endpoint| &endpoint.body_rules),
    })
}

fn known<'a>(inner: &'a Inner, method: &Method, path: &str) -> Known<'a> {
    let mut known = match &inner.knowledge {
        Knowledge::Nothing(policy) => Known::keyless(*policy, Idempotence::of(method.as_str(), false)),
        Knowledge::Profile(profile) => {
            let honoured = profile.methods.iter().any(|honoured| honoured == method.as_str());
            let place = Place::of(&profile.carrier);
            let keys = Keys { place, rules: profile.rules, replay: profile.replay };
            Known {
                keys: honoured.then_some(keys),
                ..Known::keyless(profile.policy, Idempotence::of(method.as_str(), honoured))
            }
        }
        Knowledge::Contract(contract) => {
            let plain = RetryPolicy::from(&contract.client);
            let deadline_header = contract.client.deadline_header.as_deref();
            match contract.find(method.as_str(), path) {
                Lookup::Endpoint(endpoint, _) => {
                    let policy = RetryPolicy::for_endpoint(contract, endpoint, inner.place);
                    let place = Place::of(&endpoint.carrier);
                    let keys = Keys { place, rules: endpoint.key_rules, replay: endpoint.windows.replay };
                    // Documented as unsafe to retry, whatever its method says.
                    let honoured = !matches!(endpoint.key, KeyUse::Unsafe { .. });
                    let idempotence = if honoured { Idempotence::Keyed } else { Idempotence::Unsafe };
                    Known {
                        policy,
                        idempotence,
                        keys: honoured.then_some(keys),
                        deadline_header,
                        endpoint: Some(endpoint),
                    }
                }
                Lookup::Unlisted | Lookup::SafeMethod => Known {
                    deadline_header,
                    ..Known::keyless(plain, Idempotence::of(method.as_str(), false))
                },
            }
        }
    };
    known.policy.attempt_timeout = inner.attempt_timeout.or(known.policy.attempt_timeout);
    known.policy.uncertain = inner.uncertain;
    known
}

impl Known<'_> {
    fn keyless(policy: RetryPolicy, idempotence: Idempotence) -> Self {
        Self { policy, idempotence, keys: None, deadline_header: None, endpoint: None }
    }
}

/// The key that the request carries already. It wins (I-16).
fn carried(headers: &HeaderMap, name: &HeaderName, rules: &KeyRules) -> Result<Option<Key>, Refused> {
    let lines = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    match parse_header(lines, rules) {
        Ok(key) => Ok(Some(Key::carried(key)?)),
        Err(KeyFault::Missing) => Ok(None),
        Err(fault) => Err(fault.into()),
    }
}

/// The caller's key; in a call that is nested in one that is retried, one that its attempts share; else a random one.
fn made(key: Option<Key>, method: &Method, uri: &Uri) -> Result<Key, Refused> {
    if let Some(key) = key {
        return Ok(key);
    }
    let place = (method.as_str(), uri.authority().map(http::uri::Authority::as_str), uri.path());
    match nested::lineage(&place, Key::root) {
        Some(lineage) => Ok(Key::nested(&lineage)?),
        None => Ok(Key::random()?),
    }
}

fn within_length(key: &Key, rules: &KeyRules) -> Result<(), KeyRefused> {
    if key.as_bytes().len() > rules.max_len {
        return Err(KeyRefused::TooLong { max: rules.max_len });
    }
    Ok(())
}

fn spelled(key: &Key, rules: &KeyRules) -> Result<HeaderValue, Refused> {
    within_length(key, rules)?;
    let spelling = match rules.syntax {
        KeySyntax::Lenient => HeaderValue::from_bytes(key.as_bytes()),
        // Keys of ours hold neither quotes nor backslashes that an RFC 9651 String would have to escape, but one.
        KeySyntax::Strict => HeaderValue::try_from(format!("\"{}\"", key.as_str().replace('\\', "\\\\"))),
    };
    let mut value = spelling.map_err(|_| KeyRefused::Characters)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Numbers of attempts, as few calls have more.
const NUMBERS: [&str; 6] = ["0", "1", "2", "3", "4", "5"];

/// The name that most APIs have settled on, which then is not parsed for each call.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

fn header_name(name: &str) -> Result<HeaderName, Refused> {
    if IDEMPOTENCY_KEY.as_str().eq_ignore_ascii_case(name) {
        return Ok(IDEMPOTENCY_KEY);
    }
    HeaderName::from_bytes(name.as_bytes()).map_err(|error| Refused::Request(error.to_string()))
}

/// The body with the key in it. Only into an object that is there: nothing else of the body is made up.
fn with_member(body: &Bytes, pointer: &JsonPointer, key: &str) -> Result<Bytes, Refused> {
    let mut document: serde_json::Value = serde_json::from_slice(body).map_err(|_| Refused::NoPlaceForKey)?;
    let (member, above) = pointer.tokens().split_last().ok_or(Refused::NoPlaceForKey)?;
    let parent = above.iter().try_fold(&mut document, |at, step| at.get_mut(step));
    let object = parent.and_then(serde_json::Value::as_object_mut);
    object.ok_or(Refused::NoPlaceForKey)?.insert(member.clone(), key.into());
    serde_json::to_vec(&document).map(Bytes::from).map_err(|_| Refused::NoPlaceForKey)
}
