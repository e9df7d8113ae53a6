//! HTTP/1.1 as bytes: what the load drivers send, and what they read back.
//!
//! The drivers share two cores with the servers they measure, and they need what no HTTP client offers: a
//! request whose last byte waits, and the answer exactly as it came. So requests are byte strings with a
//! slot for the key, and answers are parsed from whatever has arrived so far.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};

/// Headers in front of an answer's body, at most; more is an error, not a longer loop.
const MAX_HEADERS: usize = 64;

/// Every key the drivers write has this many bytes, so that a template can be patched in place.
pub(crate) const KEY_BYTES: usize = 32;

/// One answer as it came over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Pairs in the order they came, names in lower case.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The first header of that (lower-case) name.
    pub(crate) fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_slice())
    }

    /// The `code` member of a problem body.
    pub(crate) fn code(&self) -> Option<String> {
        let body: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        Some(body.get("code")?.as_str()?.to_owned())
    }

    /// Whether the server will close the connection after this answer.
    pub(crate) fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case(b"close"))
    }
}

/// A request ready to send, with the place of its key.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    key_at: Option<usize>,
}

impl Template {
    /// A request of JSON with a key; the key's value is set by [`Template::keyed`].
    pub(crate) fn keyed_post(to: SocketAddr, path: &str, headers: &[(&str, &str)], body: &str) -> Self {
        let (head, tail) = Self::parts("POST", to, path, headers, body);
        let key_at = head.len() + "idempotency-key: ".len();
        let bytes = format!("{head}idempotency-key: {}\r\n{tail}", "k".repeat(KEY_BYTES)).into_bytes();
        Self { bytes, key_at: Some(key_at) }
    }

    /// A request without a key.
    pub(crate) fn plain(
        method: &str,
        to: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Self {
        let (head, tail) = Self::parts(method, to, path, headers, body);
        Self { bytes: (head + &tail).into_bytes(), key_at: None }
    }

    /// The lines before and after the place of the key.
    fn parts(
        method: &str,
        to: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (String, String) {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {to}\r\n");
        let mut tail: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        if !body.is_empty() {
            tail += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        (head, tail + "\r\n" + body)
    }

    /// The bytes with this key in the slot, if there is one.
    pub(crate) fn keyed(&mut self, key: &Key) -> &[u8] {
        if let Some(at) = self.key_at {
            self.bytes[at..at + KEY_BYTES].copy_from_slice(&key.0);
        }
        &self.bytes
    }

    /// The bytes as they are.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A key of fixed width: a run's own prefix and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; KEY_BYTES]);

impl Key {
    /// The `number`-th key of a run; runs differ by `seed`, so that a kept store meets no old key.
    pub(crate) fn numbered(seed: u64, number: u64) -> Self {
        let mut bytes = [0; KEY_BYTES];
        for (half, value) in [seed, number].into_iter().enumerate() {
            for digit in 0..16 {
                let nibble = (value >> (60 - 4 * digit)) & 0xf;
                bytes[half * 16 + digit] = b"0123456789abcdef"[nibble as usize];
            }
        }
        Self(bytes)
    }

    pub(crate) fn as_str(&self) -> &str {
        // Only hexadecimal digits are ever written.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Parses one answer from the bytes so far: `None` while it is incomplete, else the answer and its length.
///
/// # Errors
/// The bytes are no HTTP/1.1 answer, or one framed by the end of the connection.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Answer, usize)>> {
    let mut slots = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut slots);
    let httparse::Status::Complete(head_bytes) = head.parse(bytes).context("not an HTTP/1.1 answer")? else {
        return Ok(None);
    };
    let status = head.code.unwrap_or_default();
    let headers: Vec<(String, Vec<u8>)> =
        head.headers.iter().map(|header| (header.name.to_ascii_lowercase(), header.value.to_vec())).collect();
    let answer = |body: Vec<u8>| Answer { status, headers: headers.clone(), body };
    if matches!(status, 204 | 304 | 100..=199) {
        return Ok(Some((answer(Vec::new()), head_bytes)));
    }
    let find =
        |name: &str| headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_slice());
    if find("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case(b"chunked")) {
        return Ok(dechunk(&bytes[head_bytes..])?.map(|(body, length)| (answer(body), head_bytes + length)));
    }
    let Some(length) = find("content-length") else { bail!("an answer without a length") };
    let length: usize = std::str::from_utf8(length)?.trim().parse().context("content-length")?;
    let end = head_bytes + length;
    Ok(bytes.get(head_bytes..end).map(|body| (answer(body.to_vec()), end)))
}

/// Undoes the chunked coding, without trailers: the body and the bytes it took, or `None` while incomplete.
fn dechunk(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let httparse::Status::Complete((line, size)) =
            httparse::parse_chunk_size(&bytes[at..]).map_err(|_| anyhow::anyhow!("a broken chunk"))?
        else {
            return Ok(None);
        };
        let start = at + line;
        let end = start + usize::try_from(size)?;
        let Some(chunk) = bytes.get(start..end + 2).and(bytes.get(start..end)) else { return Ok(None) };
        body.extend_from_slice(chunk);
        at = end + 2;
        if size == 0 {
            return Ok(Some((body, at)));
        }
    }
}

/// Length and status of the first answer, without building it: the closed-loop driver's fast path.
pub(crate) fn measure(bytes: &[u8]) -> Result<Option<(u16, usize)>> {
    let mut slots = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut slots);
    let httparse::Status::Complete(head_bytes) = head.parse(bytes).context("not an HTTP/1.1 answer")? else {
        return Ok(None);
    };
    let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let Some(length) = length else {
        return Ok(parse(bytes)?.map(|(answer, length)| (answer.status, length)));
    };
    let length: usize = std::str::from_utf8(length.value)?.trim().parse().context("content-length")?;
    let end = head_bytes + length;
    Ok((bytes.len() >= end).then_some((head.code.unwrap_or_default(), end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &[u8] = b"HTTP/1.1 201 Created\r\nX-A: 1\r\ncontent-length: 3\r\nx-a: 2\r\n\r\nabcREST";
    const CHUNKED: &[u8] =
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";

    #[test]
    fn an_answer_is_read_as_it_came() {
        let (answer, length) = parse(PLAIN).expect("valid").expect("complete");
        assert_eq!(
            (answer.status, answer.body.as_slice(), length),
            (201, b"abc".as_slice(), PLAIN.len() - 4)
        );
        assert_eq!(answer.headers[0], ("x-a".to_owned(), b"1".to_vec()));
        assert_eq!(answer.headers[2], ("x-a".to_owned(), b"2".to_vec()));
        assert_eq!(measure(PLAIN).expect("valid"), Some((201, length)));
    }

    #[test]
    fn every_cut_of_an_answer_is_incomplete() {
        for whole in [&PLAIN[..PLAIN.len() - 4], CHUNKED] {
            for cut in 0..whole.len() {
                assert!(parse(&whole[..cut]).expect("a prefix").is_none(), "{cut}");
                assert!(measure(&whole[..cut]).expect("a prefix").is_none(), "{cut}");
            }
        }
    }

    #[test]
    fn chunks_are_joined() {
        let (answer, length) = parse(CHUNKED).expect("valid").expect("complete");
        assert_eq!((answer.body.as_slice(), length), (b"abcde".as_slice(), CHUNKED.len()));
    }

    #[test]
    fn nonsense_is_an_error() {
        assert!(parse(b"SSH-2.0-x\r\n\r\n").is_err());
        assert!(parse(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }

    #[test]
    fn keys_are_patched_in_place_and_differ() {
        let to: SocketAddr = ([127, 0, 0, 1], 1).into();
        let mut template = Template::keyed_post(to, "/orders", &[("authorization", "Bearer a")], "{}");
        let (one, two) = (Key::numbered(7, 1), Key::numbered(7, 2));
        assert_ne!(one, two);
        let text = String::from_utf8(template.keyed(&one).to_vec()).expect("ASCII");
        assert!(text.contains(&format!("idempotency-key: {}\r\n", one.as_str())));
        let text = String::from_utf8(template.keyed(&two).to_vec()).expect("ASCII");
        assert!(text.contains(two.as_str()) && !text.contains(one.as_str()));
    }
}
