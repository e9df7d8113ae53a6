//! One request out of a connection's bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::Call;

/// A request of more bytes than this is not one that an API sends to its provider in a test.
const REQUEST_MAX: usize = 4 * 1024 * 1024;
const HEADERS_MAX: usize = 128;

/// Reads one request: the call, its length in bytes, and whether the connection goes on. `None` at the end.
pub(super) fn next(
    stream: &mut TcpStream,
    came: &mut Vec<u8>,
    key_header: &str,
) -> std::io::Result<Option<(Call, usize, bool)>> {
    let mut chunk = [0_u8; 8 * 1024];
    let mut continued = false;
    loop {
        if let Some(parsed) = parse_call(came, key_header)? {
            match parsed {
                Parsed::Whole(call, length, goes_on) => return Ok(Some((call, length, goes_on))),
                Parsed::WaitsForContinue if !continued => {
                    continued = true;
                    stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
                }
                Parsed::WaitsForContinue => {}
            }
        }
        let count = stream.read(&mut chunk)?;
        if count == 0 || came.len() > REQUEST_MAX {
            return Ok(None);
        }
        came.extend_from_slice(chunk.get(..count).unwrap_or_default());
    }
}

enum Parsed {
    Whole(Call, usize, bool),
    WaitsForContinue,
}

fn parse_call(bytes: &[u8], key_header: &str) -> std::io::Result<Option<Parsed>> {
    let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let mut slots = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut slots);
    let httparse::Status::Complete(head_bytes) = head.parse(bytes).map_err(|_| invalid())? else {
        return Ok(None);
    };
    let find = |name: &str| {
        let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| String::from_utf8_lossy(header.value).into_owned())
    };
    let rest = bytes.get(head_bytes..).unwrap_or_default();
    let (body, length) = if find("transfer-encoding")
        .is_some_and(|value| value.to_ascii_lowercase().contains("chunked"))
    {
        // The text is searched, so the chunk lines may stay in it; the end is the empty chunk.
        let Some(end) = rest.windows(5).position(|window| window == b"0\r\n\r\n") else { return Ok(None) };
        (rest.get(..end).unwrap_or_default(), head_bytes + end + 5)
    } else {
        let length = find("content-length")
            .map_or(Ok(0), |text| text.trim().parse::<usize>())
            .map_err(|_| invalid())?;
        let Some(body) = rest.get(..length) else {
            let waits = find("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue"));
            return Ok(waits.then_some(Parsed::WaitsForContinue));
        };
        (body, head_bytes + length)
    };
    let closes = find("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let head_text = String::from_utf8_lossy(bytes.get(..head_bytes).unwrap_or_default()).into_owned();
    let call = Call {
        at: Duration::ZERO,
        answered: None,
        text: head_text + &String::from_utf8_lossy(body),
        key: find(key_header),
    };
    Ok(Some(Parsed::Whole(call, length, !closes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunked_call_and_one_that_asks_first_are_read() {
        let chunked = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        assert!(
            matches!(parse_call(chunked, "k"), Ok(Some(Parsed::Whole(_, length, true))) if length == chunked.len())
        );
        let asks = b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n";
        assert!(matches!(parse_call(asks, "k"), Ok(Some(Parsed::WaitsForContinue))));
        assert!(parse_call(b"nonsense\r\n\r\n", "k").is_err());
    }
}
