//! Stored outcomes and HTTP responses: what is kept of a response, and how it is sent again.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use retrysafe_core::{
    contract::StoredHeaders,
    outcome::{Body as OutcomeBody, HeaderPair, NotKept, Outcome},
};

use crate::body::Body;

/// Header lines that are never stored: they belong to one connection (RFC 9110 7.6.1) or to one moment. `Content-Length`
/// is recomputed from the stored bytes (S18).
const NEVER_STORED: [HeaderName; 10] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::DATE,
    header::PROXY_AUTHENTICATE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Whether a response header line is stored. `Set-Cookie` is not by default: a cookie made for one session must not be
/// handed to another that replays (S6).
fn is_stored(name: &HeaderName, connection: &ConnectionOptions, rules: &StoredHeaders) -> bool {
    if NEVER_STORED.contains(name) || connection.lists(name) {
        return false;
    }
    let named = |list: &[String]| list.iter().any(|entry| entry == name.as_str());
    !named(&rules.drop) && (*name != header::SET_COOKIE || named(&rules.keep))
}

/// The names that the `Connection` header lists as hop-by-hop.
struct ConnectionOptions(Vec<HeaderName>);

impl ConnectionOptions {
    fn of(headers: &HeaderMap) -> Self {
        let lines = headers.get_all(header::CONNECTION).iter();
        let names = lines
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(','))
            .filter_map(|name| name.trim().parse().ok())
            // A response that lists what describes its body would lose it on replay; such a listing is ignored.
            .filter(|name| *name != header::CONTENT_TYPE && *name != header::CONTENT_ENCODING)
            .collect();
        Self(names)
    }

    fn lists(&self, name: &HeaderName) -> bool {
        self.0.contains(name)
    }
}

/// A body shorter than this is copied for the record: the buffer that it came in can be much longer, and would stay in memory
/// as long as a store in memory keeps the record.
const COPIED_BODY_BYTES: usize = 16 * 1024;

/// The outcome of a response whose body is at hand. It shares no buffer with anybody.
pub(crate) fn outcome(
    parts: &http::response::Parts,
    body: &Bytes,
    trailers: Option<&HeaderMap>,
    rules: &StoredHeaders,
) -> Outcome {
    let body = match body.len() < COPIED_BODY_BYTES {
        true => Bytes::copy_from_slice(body),
        false => body.clone(),
    };
    Outcome {
        trailers: trailers.map(|map| pairs(map, rules)).unwrap_or_default(),
        ..head(parts, OutcomeBody::Kept(body), rules)
    }
}

/// The outcome of a response whose body is not kept: a tombstone (S11).
pub(crate) fn tombstone(parts: &http::response::Parts, why: NotKept, rules: &StoredHeaders) -> Outcome {
    head(parts, OutcomeBody::NotKept(why), rules)
}

fn head(parts: &http::response::Parts, body: OutcomeBody, rules: &StoredHeaders) -> Outcome {
    Outcome {
        status: parts.status.as_u16(),
        headers: pairs(&parts.headers, rules),
        body,
        trailers: Vec::new(),
    }
}

/// Header lines in order, repeated names kept apart (S5), values as bytes.
fn pairs(headers: &HeaderMap, rules: &StoredHeaders) -> Vec<HeaderPair> {
    let connection = ConnectionOptions::of(headers);
    headers
        .iter()
        .filter(|(name, _)| is_stored(name, &connection, rules))
        .map(|(name, value)| HeaderPair {
            name: name.as_str().into(),
            value: Bytes::copy_from_slice(value.as_bytes()),
        })
        .collect()
}

/// The response that replays `outcome`. `None` for a tombstone, and for a stored record that cannot be a response:
/// nothing from a store is trusted to be well-formed.
pub(crate) fn replay(outcome: &Outcome, marker: Option<&HeaderName>) -> Option<Response<Body>> {
    let OutcomeBody::Kept(bytes) = &outcome.body else { return None };
    let trailers = header_map(&outcome.trailers)?;
    let body = Body::full_with_trailers(bytes.clone(), (!trailers.is_empty()).then_some(trailers));
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(outcome.status).ok()?;
    *response.headers_mut() = header_map(&outcome.headers)?;
    if let Some(name) = marker {
        response.headers_mut().insert(name, HeaderValue::from_static("true"));
    }
    Some(response)
}

fn header_map(pairs: &[HeaderPair]) -> Option<HeaderMap> {
    let mut map = HeaderMap::with_capacity(pairs.len());
    for pair in pairs {
        let name = HeaderName::from_bytes(pair.name.as_bytes()).ok()?;
        map.append(name, HeaderValue::from_maybe_shared(pair.value.clone()).ok()?);
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(lines: &[(&str, &[u8])]) -> http::response::Parts {
        let mut response = Response::builder().status(201);
        for (name, value) in lines {
            response = response.header(*name, HeaderValue::from_bytes(value).unwrap());
        }
        response.body(()).unwrap().into_parts().0
    }

    fn kept(lines: &[(&str, &[u8])], rules: &StoredHeaders) -> Vec<(String, Vec<u8>)> {
        let outcome = outcome(&parts(lines), &Bytes::new(), None, rules);
        outcome.headers.into_iter().map(|pair| (pair.name.to_string(), pair.value.to_vec())).collect()
    }

    #[test]
    fn s5_repeated_lines_keep_their_order_and_their_number() {
        let lines: [(&str, &[u8]); 3] = [("link", b"<a>"), ("x-a", b"\xff\xfe"), ("link", b"<b>")];
        let kept = kept(&lines, &StoredHeaders::default());
        let links: Vec<_> =
            kept.iter().filter(|(name, _)| name == "link").map(|(_, value)| value.clone()).collect();
        assert_eq!(links, [b"<a>".to_vec(), b"<b>".to_vec()]);
        assert!(kept.contains(&("x-a".into(), b"\xff\xfe".to_vec())), "obs-text survives");
    }

    #[test]
    fn s6_a_cookie_is_stored_only_where_the_contract_says_so() {
        let lines: [(&str, &[u8]); 2] = [("set-cookie", b"a=1"), ("set-cookie", b"b=2")];
        assert_eq!(kept(&lines, &StoredHeaders::default()), []);
        let keep = StoredHeaders { keep: vec!["set-cookie".into()], ..Default::default() };
        assert_eq!(kept(&lines, &keep).len(), 2, "each line apart, never joined");
    }

    #[test]
    fn hop_by_hop_lines_and_those_that_connection_lists_are_not_stored() {
        let lines: [(&str, &[u8]); 7] = [
            ("connection", b"close, X-Private"),
            ("x-private", b"1"),
            ("keep-alive", b"timeout=5"),
            ("transfer-encoding", b"chunked"),
            ("date", b"Mon, 30 Nov 2026 10:00:00 GMT"),
            ("content-length", b"3"),
            ("x-keep", b"2"),
        ];
        assert_eq!(kept(&lines, &StoredHeaders::default()), [("x-keep".into(), b"2".to_vec())]);
    }

    #[test]
    fn s7_s10_status_location_and_binary_bytes_come_back_as_they_were() {
        let binary = Bytes::from((0..=255).collect::<Vec<u8>>());
        let parts = parts(&[("location", b"/orders/1"), ("etag", b"\"v1\""), ("content-encoding", b"gzip")]);
        let stored = outcome(&parts, &binary, None, &StoredHeaders::default());
        let response = replay(&stored, None).unwrap();
        assert_eq!(response.status(), 201);
        assert_eq!(response.headers(), &parts.headers);
        assert_eq!(response.body().as_bytes(), Some(binary));
    }

    #[test]
    fn a_malformed_record_is_not_a_response() {
        let pair = |name: &str, value: &'static [u8]| HeaderPair {
            name: name.into(),
            value: Bytes::from_static(value),
        };
        let stored = |status, headers| Outcome {
            status,
            headers,
            body: OutcomeBody::Kept(Bytes::new()),
            trailers: vec![],
        };
        assert!(replay(&stored(99, vec![]), None).is_none());
        assert!(replay(&stored(200, vec![pair("a b", b"1")]), None).is_none());
        assert!(replay(&stored(200, vec![pair("x", b"a\r\nb")]), None).is_none());
    }
}
