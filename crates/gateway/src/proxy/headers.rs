//! Which fields cross the proxy, and which it writes itself.
//!
//! | field | towards the upstream | towards the client |
//! |---|---|---|
//! | hop-by-hop ([`HOP_BY_HOP`]) and what `Connection` lists | removed | removed |
//! | `TE: trailers` | kept to an HTTP/2 upstream, which can send them | - |
//! | `Host` | the client's, or the upstream's by option; of an absolute target, the target's | - |
//! | `Expect: 100-continue` | answered here when the body is wanted, and removed | - |
//! | `Via` | a line is added | left alone |
//! | `X-Forwarded-For`, `-Proto` | written; a trusted peer's list is extended | - |
//! | `X-Forwarded-Host` | written where `Host` is not the client's | - |
//! | `Forwarded`, other `X-Forwarded-*` | kept from a trusted peer, else removed | - |
//! | `Transfer-Encoding`, `Content-Length` | written anew from how the body really ends | likewise |
//!
//! A `Connection` field may not name away what a request *is*: an attacker who sends `Connection: Idempotency-Key`
//! would turn a keyed write into a keyless one behind the layer's back. Such options are ignored
//! ([`PROTECTED`], and the contract's own fields by option). Scope and key are read by the layer before any of
//! this runs.

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

use super::error::Refusal;

const HOP_BY_HOP_LEN: usize = 10;

/// Fields that speak about one connection (RFC 9110 7.6.1 and the pages it gathers): never forwarded.
pub static HOP_BY_HOP: [HeaderName; HOP_BY_HOP_LEN] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-authentication-info"),
];

/// Fields that no `Connection` option removes.
pub static PROTECTED: [HeaderName; 5] = [HOST, CONTENT_LENGTH, CONTENT_TYPE, AUTHORIZATION, COOKIE];

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const PROXY_NAME_1_0: HeaderValue = HeaderValue::from_static("1.0 retrysafe");
const PROXY_NAME_1_1: HeaderValue = HeaderValue::from_static("1.1 retrysafe");
const PROXY_NAME_2: HeaderValue = HeaderValue::from_static("2 retrysafe");
/// How many fields [`introduce`] adds.
const OWN_FIELDS: usize = 4;
const HTTP: HeaderValue = HeaderValue::from_static("http");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const CHUNKED: HeaderValue = HeaderValue::from_static("chunked");

/// Removes the hop-by-hop fields and those the `Connection` fields name, except the protected ones.
pub fn remove_hop_by_hop(headers: &mut HeaderMap, protected: &[HeaderName]) {
    // Most messages have none or one of them: a look at the few names that are there is cheaper than ten lookups.
    let mut there = [false; HOP_BY_HOP_LEN];
    for name in headers.keys() {
        if let Some(at) = hop_by_hop_index(name.as_str()) {
            there[at] = true;
        }
    }
    if there[0] {
        for name in connection_options(headers) {
            if !PROTECTED.contains(&name) && !protected.contains(&name) {
                headers.remove(name);
            }
        }
    }
    for (name, _) in HOP_BY_HOP.iter().zip(there).filter(|(_, there)| *there) {
        headers.remove(name);
    }
}

/// The place of a name in [`HOP_BY_HOP`]. As texts, because comparing header names one by one is slower.
fn hop_by_hop_index(name: &str) -> Option<usize> {
    Some(match name {
        "connection" => 0,
        "keep-alive" => 1,
        "proxy-connection" => 2,
        "te" => 3,
        "trailer" => 4,
        "transfer-encoding" => 5,
        "upgrade" => 6,
        "proxy-authenticate" => 7,
        "proxy-authorization" => 8,
        "proxy-authentication-info" => 9,
        _ => return None,
    })
}

fn connection_options(headers: &HeaderMap) -> Vec<HeaderName> {
    let lines = headers.get_all(CONNECTION).into_iter().filter_map(|line| line.to_str().ok());
    lines
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .filter(|option| !option.eq_ignore_ascii_case("close") && !option.eq_ignore_ascii_case("keep-alive"))
        .filter_map(|option| HeaderName::from_bytes(option.as_bytes()).ok())
        .collect()
}

/// Says whether a request may be forwarded, before anything about it is changed.
///
/// # Errors
/// The first rule it breaks.
pub fn admit(
    method: &Method,
    uri: &Uri,
    version: Version,
    headers: &HeaderMap,
    key_headers: &[HeaderName],
) -> Result<(), Refusal> {
    if *method == Method::CONNECT || *method == Method::TRACE {
        return Err(Refusal::Method);
    }
    if uri.authority().is_none() && !uri.path().starts_with('/') && uri.path() != "*" {
        return Err(Refusal::Target);
    }
    let (mut hosts, mut codings, mut changes_protocol) = (0, 0, false);
    // One pass: this runs for every request, and most of them break no rule.
    for (name, value) in headers {
        match *name {
            HOST if !is_host(value) => return Err(Refusal::Host),
            HOST => hosts += 1,
            TRANSFER_ENCODING if !value.as_bytes().eq_ignore_ascii_case(b"chunked") => {
                return Err(Refusal::TransferCoding);
            }
            TRANSFER_ENCODING => codings += 1,
            EXPECT if !value.as_bytes().eq_ignore_ascii_case(b"100-continue") => {
                return Err(Refusal::Expectation);
            }
            // `h2c` is only an offer, which Java's client makes with every first request; ignoring it is an answer.
            UPGRADE => changes_protocol |= !value.as_bytes().eq_ignore_ascii_case(b"h2c"),
            _ => {}
        }
    }
    if hosts > 1 || (hosts == 0 && version == Version::HTTP_11) {
        return Err(Refusal::Host);
    }
    if codings > 1 {
        return Err(Refusal::TransferCoding);
    }
    if changes_protocol && key_headers.iter().any(|name| headers.contains_key(name)) {
        return Err(Refusal::KeyedUpgrade);
    }
    Ok(())
}

/// Whether a `Host` is made of what hosts and ports are made of (RFC 3986 3.2.2): no user, no path, no blank.
fn is_host(value: &HeaderValue) -> bool {
    value.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]~%!$&'()*+,;=".contains(byte))
}

/// What the proxy knows about the client of a request.
#[derive(Clone, Debug)]
pub struct From<'a> {
    /// Its address as text, without the port.
    pub address: Option<&'a HeaderValue>,
    /// Whether what it says about *its* client is believed.
    pub trusted: bool,
    /// What it spoke.
    pub version: Version,
    /// Its `Host`, or `:authority`, or the authority of an absolute target, where the upstream's `Host` will not say it.
    pub host: Option<HeaderValue>,
}

/// Writes the proxy's own fields over a request that has lost its hop-by-hop ones.
pub fn introduce(headers: &mut HeaderMap, from: From<'_>) {
    let speaks_for_others =
        |name: &HeaderName| *name == FORWARDED || name.as_str().starts_with("x-forwarded-");
    let (mut expects, mut claims) = (false, false);
    for name in headers.keys() {
        expects |= *name == EXPECT;
        claims |= speaks_for_others(name);
    }
    if expects {
        headers.remove(EXPECT);
    }
    if claims && !from.trusted {
        let claimed: Vec<HeaderName> =
            headers.keys().filter(|name| speaks_for_others(name)).cloned().collect();
        for name in claimed {
            headers.remove(name);
        }
    }
    headers.reserve(OWN_FIELDS);
    let via = match from.version {
        Version::HTTP_2 => PROXY_NAME_2,
        Version::HTTP_11 => PROXY_NAME_1_1,
        _ => PROXY_NAME_1_0,
    };
    headers.append(VIA, via);
    if let Some(address) = from.address {
        headers.append(X_FORWARDED_FOR, address.clone());
    }
    headers.entry(X_FORWARDED_PROTO).or_insert(HTTP);
    if let Some(host) = from.host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
}

/// Whether a request asked for trailers, which only an HTTP/2 upstream will send.
pub(super) fn wants_trailers(headers: &HeaderMap) -> bool {
    headers.get_all(TE).into_iter().any(|value| {
        value
            .as_bytes()
            .split(|byte| *byte == b',')
            .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    })
}

pub(super) fn ask_for_trailers(headers: &mut HeaderMap) {
    headers.insert(TE, TRAILERS);
}

/// A body whose length nobody knows is sent in chunks, whatever the method: hyper would drop a GET's.
pub(super) fn frame_by_chunks(headers: &mut HeaderMap) {
    headers.insert(TRANSFER_ENCODING, CHUNKED);
}

/// HTTP/2 may split `Cookie` into crumbs; HTTP/1.1 knows one line only (RFC 9113 8.2.3).
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let mut crumbs = headers.get_all(COOKIE).into_iter();
    if crumbs.next().is_none() || crumbs.next().is_none() {
        return;
    }
    let all: Vec<&[u8]> = headers.get_all(COOKIE).into_iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn map(value: &Value) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in value.as_object().unwrap() {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.as_str().unwrap().parse().unwrap());
        }
        headers
    }

    #[test]
    fn the_index_is_the_list() {
        for (at, name) in HOP_BY_HOP.iter().enumerate() {
            assert_eq!(hop_by_hop_index(name.as_str()), Some(at));
        }
        assert_eq!(hop_by_hop_index("host"), None);
    }

    #[test]
    fn hop_by_hop_vectors() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../../../vectors/http1/hop-by-hop.json")).unwrap();
        let listed: Vec<HeaderName> = vectors["never_forward_and_never_store"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap().parse().unwrap())
            .collect();
        assert!(listed.iter().all(|name| HOP_BY_HOP.contains(name)));
        let key = [HeaderName::from_static("idempotency-key")];
        let mut compared = 0;
        for case in vectors["cases"].as_array().unwrap() {
            let mut headers = map(&case["in"]);
            let before = headers.clone();
            remove_hop_by_hop(&mut headers, &key);
            if case["out"].is_object() {
                assert_eq!(headers, map(&case["out"]), "{case}");
                compared += 1;
            }
            // The cases without an output name what must not be lost.
            for kept in [&key[0], &AUTHORIZATION] {
                assert_eq!(headers.get(kept), before.get(kept), "{case}");
            }
            assert!(HOP_BY_HOP.iter().all(|name| !headers.contains_key(name)), "{case}");
        }
        assert!(compared >= 5, "the vectors were read");
    }

    #[test]
    fn connection_lines_are_all_read_whatever_their_case() {
        let mut headers = HeaderMap::new();
        headers.append(CONNECTION, HeaderValue::from_static("X-A ,, keep-alive"));
        headers.append(CONNECTION, HeaderValue::from_static("x-B, host, CONTENT-LENGTH, bad name"));
        for name in ["x-a", "x-b", "host", "content-length", "x-c"] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("1"));
        }
        remove_hop_by_hop(&mut headers, &[]);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable(); // removal may move other fields; only lines of one name have an order
        assert_eq!(left, ["content-length", "host", "x-c"]);
    }

    fn verdict(method: &str, target: &str, version: Version, lines: &[(&str, &str)]) -> Result<(), Refusal> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        let key = [HeaderName::from_static("idempotency-key")];
        admit(&method.parse().unwrap(), &target.parse().unwrap(), version, &headers, &key)
    }

    #[test]
    fn what_may_be_forwarded() {
        const HOST: (&str, &str) = ("host", "a");
        let (http_1_1, http_1_0) = (Version::HTTP_11, Version::HTTP_10);
        for (method, target, version, lines, expected) in [
            ("GET", "/", http_1_1, &[HOST][..], Ok(())),
            ("OPTIONS", "*", http_1_1, &[HOST], Ok(())),
            ("GET", "http://a/b", http_1_1, &[HOST], Ok(())),
            ("GET", "/", http_1_0, &[], Ok(())),
            ("GET", "/", http_1_1, &[], Err(Refusal::Host)),
            ("GET", "/", http_1_1, &[HOST, HOST], Err(Refusal::Host)),
            ("GET", "/", http_1_0, &[HOST, HOST], Err(Refusal::Host)),
            ("GET", "/", http_1_1, &[("host", "a/b")], Err(Refusal::Host)),
            ("GET", "/", http_1_1, &[("host", "a@b")], Err(Refusal::Host)),
            ("CONNECT", "a:1", http_1_1, &[HOST], Err(Refusal::Method)),
            ("TRACE", "/", http_1_1, &[HOST], Err(Refusal::Method)),
            ("POST", "/", http_1_1, &[HOST, ("transfer-encoding", "Chunked")], Ok(())),
            (
                "POST",
                "/",
                http_1_1,
                &[HOST, ("transfer-encoding", "gzip, chunked")],
                Err(Refusal::TransferCoding),
            ),
            (
                "POST",
                "/",
                http_1_1,
                &[HOST, ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
                Err(Refusal::TransferCoding),
            ),
            ("POST", "/", http_1_1, &[HOST, ("expect", "100-Continue")], Ok(())),
            ("POST", "/", http_1_1, &[HOST, ("expect", "miracles")], Err(Refusal::Expectation)),
            ("GET", "/", http_1_1, &[HOST, ("upgrade", "websocket")], Ok(())),
            (
                "POST",
                "/",
                http_1_1,
                &[HOST, ("idempotency-key", "k"), ("upgrade", "websocket")],
                Err(Refusal::KeyedUpgrade),
            ),
            ("POST", "/", http_1_1, &[HOST, ("idempotency-key", "k"), ("upgrade", "h2c")], Ok(())),
        ] {
            assert_eq!(verdict(method, target, version, lines), expected, "{method} {target} {lines:?}");
        }
    }

    #[test]
    fn a_stranger_cannot_speak_for_others_and_a_trusted_peer_can() {
        let claimed = || {
            map(&serde_json::json!({
                "x-forwarded-for": "6.6.6.6", "x-forwarded-proto": "https", "x-forwarded-host": "real",
                "forwarded": "for=6.6.6.6", "x-forwarded-prefix": "/admin", "via": "1.1 edge"
            }))
        };
        let address = HeaderValue::from_static("10.0.0.1");
        let host = Some(HeaderValue::from_static("seen"));
        let from = |trusted| From {
            address: Some(&address),
            trusted,
            version: Version::HTTP_11,
            host: host.clone(),
        };
        let all = |headers: &HeaderMap, name: &str| {
            headers.get_all(name).into_iter().map(|v| v.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };

        let mut headers = claimed();
        introduce(&mut headers, from(false));
        assert_eq!(all(&headers, "x-forwarded-for"), ["10.0.0.1"]);
        assert_eq!(all(&headers, "x-forwarded-proto"), ["http"]);
        assert_eq!(all(&headers, "x-forwarded-host"), ["seen"]);
        assert!(!headers.contains_key("forwarded") && !headers.contains_key("x-forwarded-prefix"));
        assert_eq!(all(&headers, "via"), ["1.1 edge", "1.1 retrysafe"]);

        let mut headers = claimed();
        introduce(&mut headers, from(true));
        assert_eq!(all(&headers, "x-forwarded-for"), ["6.6.6.6", "10.0.0.1"]);
        assert_eq!(all(&headers, "x-forwarded-proto"), ["https"]);
        assert_eq!(all(&headers, "x-forwarded-host"), ["real"]);
        assert!(headers.contains_key("forwarded") && headers.contains_key("x-forwarded-prefix"));
    }

    #[test]
    fn cookie_crumbs_become_one_line() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("a=1"));
        headers.append(COOKIE, HeaderValue::from_static("b=2"));
        join_cookies(&mut headers);
        let lines: Vec<_> = headers.get_all(COOKIE).into_iter().collect();
        assert_eq!(lines, ["a=1; b=2"]);
    }
}
