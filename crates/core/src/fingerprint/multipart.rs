//! `multipart/form-data` by its parts: clients draw a new boundary for every attempt (F10).
//!
//! Only the plain shape that clients produce is read. Readers of multipart differ on everything else (text before the
//! first delimiter, bare line feeds, delimiters with something behind them), and what two readers could take for two
//! different forms is compared by its bytes.

use memchr::memmem;

use super::transcript::Transcript;

/// The most parts that are read as such.
const MAX_PARTS: usize = 4096;
/// The most header lines of a part.
const MAX_PART_HEADERS: usize = 32;
/// The longest boundary (RFC 2046, 5.1.1).
const MAX_BOUNDARY_BYTES: usize = 70;

pub(super) struct Part<'a> {
    headers: Vec<(&'a [u8], &'a [u8])>,
    content: &'a [u8],
}

/// The parts in order, or `None` where the body is not wholly regular.
///
/// Every occurrence of the delimiter text has to be a delimiter: first in the body or after CRLF, and followed by CRLF or
/// by the closing dashes. So nothing inside a part can be a delimiter to anyone.
pub(super) fn parts<'a>(body: &'a [u8], boundary: &str) -> Option<Vec<Part<'a>>> {
    if boundary.is_empty()
        || boundary.len() > MAX_BOUNDARY_BYTES
        || !boundary.bytes().all(|byte| matches!(byte, 0x21..=0x7e))
    {
        return None;
    }
    let delimiter = format!("--{boundary}");
    let mut delimiters = memmem::find_iter(body, &delimiter);
    let mut parts = Vec::new();
    let mut at = delimiters.next().filter(|&first| first == 0)?;
    loop {
        let begin = at + delimiter.len();
        let behind = body.get(begin..)?;
        if let Some(end) = behind.strip_prefix(b"--") {
            let regular = matches!(end, b"" | b"\r\n") && delimiters.next().is_none();
            return regular.then_some(parts);
        }
        if parts.len() == MAX_PARTS {
            return None;
        }
        let next = delimiters.next()?;
        // The CRLF before a delimiter belongs to it, not to the part.
        let part = body.get(begin..next)?.strip_prefix(b"\r\n")?.strip_suffix(b"\r\n")?;
        parts.push(read(part)?);
        at = next;
    }
}

fn read(part: &[u8]) -> Option<Part<'_>> {
    let end = memmem::find(part, b"\r\n\r\n")?;
    let (head, content) = (part.get(..end)?, part.get(end + 4..)?);
    let mut headers = Vec::new();
    let mut rest = Some(head);
    while let Some(lines) = rest {
        let line;
        (line, rest) = match memmem::find(lines, b"\r\n") {
            Some(at) => (lines.get(..at)?, Some(lines.get(at + 2..)?)),
            None => (lines, None),
        };
        let colon = memchr::memchr(b':', line)?;
        let (name, value) = (line.get(..colon)?, line.get(colon + 1..)?.trim_ascii());
        let folded_or_split = line.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
        let token = !name.is_empty() && name.iter().all(|byte| matches!(byte, 0x21..=0x7e));
        if folded_or_split || !token || headers.len() == MAX_PART_HEADERS {
            return None;
        }
        headers.push((name, value));
    }
    Some(Part { headers, content })
}

/// Hashes each part's header lines (name, file name, type) and content.
pub(super) fn join(parts: &[Part<'_>], transcript: &mut Transcript) {
    transcript.count(parts.len());
    for part in parts {
        transcript.count(part.headers.len());
        for (name, value) in &part.headers {
            transcript.bytes(&name.to_ascii_lowercase());
            transcript.bytes(value);
        }
        transcript.bytes(part.content);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOKENS: [&str; 12] = [
        "--B\r\n",
        "--B--",
        "\r\n--B",
        "--",
        "\r\n",
        "\r\n\r\n",
        "n: v\r\n\r\n",
        "n: v",
        "B",
        "x",
        "\n",
        "\r",
    ];

    fn rebuilt(parts: &[Part<'_>]) -> Vec<u8> {
        let mut body = Vec::new();
        for part in parts {
            body.extend_from_slice(b"--B\r\n");
            for (name, value) in &part.headers {
                body.extend_from_slice(&[name, &b": "[..], value, b"\r\n"].concat());
            }
            body.extend_from_slice(&[b"\r\n", part.content, b"\r\n"].concat());
        }
        body.extend_from_slice(b"--B--");
        body
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 5000, failure_persistence: None, ..ProptestConfig::default() })]

        /// So no two bodies have the same parts, but for the line end behind the last delimiter.
        #[test]
        fn f10_a_body_can_be_rebuilt_from_its_parts(
            middle in prop::collection::vec(prop::sample::select(&TOKENS[..]), 0..7),
            (framed, line_end) in any::<(bool, bool)>(),
        ) {
            let middle = middle.concat();
            let end = if line_end { "\r\n" } else { "" };
            let body = if framed { format!("--B\r\nn: v\r\n\r\n{middle}\r\n--B--{end}") } else { middle };
            if let Some(parts) = parts(body.as_bytes(), "B") {
                let rebuilt = String::from_utf8(rebuilt(&parts)).unwrap();
                prop_assert!(body == rebuilt || body == format!("{rebuilt}\r\n"), "{:?} {:?}", body, rebuilt);
            }
        }
    }

    #[test]
    fn f10_header_lines_that_readers_split_differently_are_irregular() {
        let form = |head: &str| format!("--B\r\n{head}\r\n\r\nx\r\n--B--");
        assert!(parts(form("n: v").as_bytes(), "B").is_some());
        for head in
            ["n: v\nm: w", "n: v\rm: w", "n: v\0", "n: v\r\n folded", "n : v", ": v", "n", "n: v\r\n--B"]
        {
            assert!(parts(form(head).as_bytes(), "B").is_none(), "{head:?}");
        }
    }

    #[test]
    fn f10_counts_are_bounded() {
        let part = "--B\r\nn: v\r\n\r\n\r\n";
        let form = |count: usize| format!("{}--B--", part.repeat(count));
        assert_eq!(parts(form(MAX_PARTS).as_bytes(), "B").map(|parts| parts.len()), Some(MAX_PARTS));
        assert!(parts(form(MAX_PARTS + 1).as_bytes(), "B").is_none());
        let headers = |count: usize| format!("--B\r\n{}\r\nx\r\n--B--", "n: v\r\n".repeat(count));
        assert!(parts(headers(MAX_PART_HEADERS).as_bytes(), "B").is_some());
        assert!(parts(headers(MAX_PART_HEADERS + 1).as_bytes(), "B").is_none());
        for boundary in ["", "a b", "a\r\n", &"b".repeat(MAX_BOUNDARY_BYTES + 1)] {
            assert!(parts(format!("--{boundary}--").as_bytes(), boundary).is_none(), "{boundary:?}");
        }
    }
}
