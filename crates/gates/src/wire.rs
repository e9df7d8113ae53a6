//! HTTP/1.1 as bytes: requests from templates, and answers as they came.
//!
//! A gate needs what no HTTP client offers: a request whose last byte waits, and an answer of which nothing was tidied up.

use crate::plan::Base;

/// Headers of one answer, at most; more is a fault of the server and not a longer loop.
const HEADERS_MAX: usize = 128;
/// One answer may have this many bytes; lists that observers read are the largest.
pub const ANSWER_MAX: usize = 64 * 1024 * 1024;

/// One answer as it came over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Pairs in the order they came, names in lower case.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The body, without its transfer coding.
    pub body: Vec<u8>,
}

impl Answer {
    /// The first header of that (lower-case) name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_slice())
    }

    /// Whether the server closes the connection after this answer.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case(b"close"))
    }

    /// Whether these bytes are somewhere in the body.
    #[must_use]
    pub fn contains(&self, text: &str) -> bool {
        !text.is_empty() && self.body.windows(text.len()).any(|window| window == text.as_bytes())
    }
}

/// A request with nothing left open, before it is bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filled {
    /// `POST`
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// Pairs, the key and the tag included.
    pub headers: Vec<(String, String)>,
    /// The body; none is not the same as an empty one.
    pub body: Option<String>,
}

impl Filled {
    /// A plain GET, for observers.
    #[must_use]
    pub fn get(path: &str, headers: &[(String, String)]) -> Self {
        Self { method: "GET".to_owned(), path: path.to_owned(), headers: headers.to_vec(), body: None }
    }

    /// The bytes that go to this base.
    #[must_use]
    pub fn bytes(&self, to: &Base) -> Vec<u8> {
        let mut head =
            format!("{} {}{} HTTP/1.1\r\nhost: {}\r\n", self.method, to.prefix, self.path, to.authority);
        let named = |name: &str| self.headers.iter().any(|(header, _)| header.eq_ignore_ascii_case(name));
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = &self.body {
            if !named("content-type") {
                head += "content-type: application/json\r\n";
            }
            head += &format!("content-length: {}\r\n", body.len());
        } else if self.method != "GET" {
            head += "content-length: 0\r\n";
        }
        head += "\r\n";
        (head + self.body.as_deref().unwrap_or_default()).into_bytes()
    }
}

/// Why bytes are no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHttp(&'static str);

impl std::fmt::Display for NotHttp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// Parses one answer from the bytes so far: `None` while it is incomplete. `ended` says that the connection has.
///
/// # Errors
/// The bytes are no HTTP/1.1 answer.
pub fn parse(bytes: &[u8], ended: bool) -> Result<Option<Answer>, NotHttp> {
    if bytes.len() > ANSWER_MAX {
        return Err(NotHttp("the answer is longer than 64 MiB"));
    }
    let mut slots = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut slots);
    let status = head.parse(bytes).map_err(|_| NotHttp("the bytes that came are not an HTTP/1.1 answer"))?;
    let httparse::Status::Complete(head_bytes) = status else { return Ok(None) };
    let status = head.code.unwrap_or_default();
    let rest = bytes.get(head_bytes..).unwrap_or_default();
    if (100..200).contains(&status) {
        // An interim answer: the real one follows.
        return parse(rest, ended);
    }
    let headers: Vec<(String, Vec<u8>)> =
        head.headers.iter().map(|header| (header.name.to_ascii_lowercase(), header.value.to_vec())).collect();
    let find =
        |name: &str| headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_slice());
    let body = if matches!(status, 204 | 304) {
        Some(Vec::new())
    } else if find("transfer-encoding").is_some_and(|value| value.to_ascii_lowercase().ends_with(b"chunked"))
    {
        dechunk(rest)?
    } else if let Some(length) = find("content-length") {
        let length = std::str::from_utf8(length).ok().and_then(|text| text.trim().parse::<usize>().ok());
        let length = length.ok_or(NotHttp("the answer's content-length is not a number"))?;
        rest.get(..length).map(<[u8]>::to_vec)
    } else {
        // Framed by the end of the connection.
        ended.then(|| rest.to_vec())
    };
    Ok(body.map(|body| Answer { status, headers, body }))
}

/// Undoes the chunked coding, trailers dropped; `None` while it is incomplete.
fn dechunk(bytes: &[u8]) -> Result<Option<Vec<u8>>, NotHttp> {
    let (mut body, mut at) = (Vec::new(), 0_usize);
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let parsed =
            httparse::parse_chunk_size(rest).map_err(|_| NotHttp("a chunk of the answer is broken"))?;
        let httparse::Status::Complete((line, size)) = parsed else { return Ok(None) };
        let start = at.saturating_add(line);
        let size = usize::try_from(size).map_err(|_| NotHttp("a chunk of the answer is too long"))?;
        let Some(end) = start.checked_add(size) else {
            return Err(NotHttp("a chunk of the answer is too long"));
        };
        if size == 0 {
            return Ok(Some(body));
        }
        let Some(chunk) = bytes.get(start..end) else { return Ok(None) };
        body.extend_from_slice(chunk);
        at = end.saturating_add(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &[u8] = b"HTTP/1.1 201 Created\r\nX-A: 1\r\ncontent-length: 3\r\nx-a: 2\r\n\r\nabc";
    const CHUNKED: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";

    #[test]
    fn an_answer_is_read_as_it_came() {
        let answer = parse(PLAIN, false).expect("valid").expect("complete");
        assert_eq!((answer.status, answer.body.as_slice()), (201, b"abc".as_slice()));
        assert_eq!(answer.headers[2], ("x-a".to_owned(), b"2".to_vec()));
        assert!(answer.contains("bc") && !answer.contains("bd") && !answer.contains(""));
        assert_eq!(parse(CHUNKED, false).expect("valid").expect("complete").body, b"abcde");
    }

    #[test]
    fn every_cut_of_an_answer_is_incomplete() {
        for (whole, ends_at) in [(PLAIN, PLAIN.len()), (CHUNKED, CHUNKED.len() - 2)] {
            for cut in 0..ends_at {
                assert!(parse(&whole[..cut], false).expect("a prefix").is_none(), "{cut}");
            }
        }
    }

    #[test]
    fn an_interim_answer_is_passed_over_and_an_end_can_frame_a_body() {
        let bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\nall of it";
        assert_eq!(parse(bytes, false), Ok(None));
        assert_eq!(parse(bytes, true).expect("valid").expect("complete").body, b"all of it");
    }

    #[test]
    fn nonsense_is_said_to_be() {
        assert!(parse(b"SSH-2.0-x\r\n\r\n", false).is_err());
        assert!(parse(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", false).is_err());
    }

    #[test]
    fn a_request_says_how_long_it_is() {
        let to = Base {
            authority: "127.0.0.1:1".into(),
            host: "127.0.0.1".into(),
            port: 1,
            prefix: "/api".into(),
            trust: None,
        };
        let filled = Filled {
            method: "POST".into(),
            path: "/x".into(),
            headers: vec![("a".into(), "b".into())],
            body: Some("{}".into()),
        };
        let text = String::from_utf8(filled.bytes(&to)).expect("ASCII");
        assert!(text.starts_with("POST /api/x HTTP/1.1\r\nhost: 127.0.0.1:1\r\na: b\r\n"), "{text}");
        assert!(text.ends_with("content-length: 2\r\n\r\n{}"), "{text}");
        assert!(!String::from_utf8_lossy(&Filled::get("/x", &[]).bytes(&to)).contains("content-length"));
    }
}
