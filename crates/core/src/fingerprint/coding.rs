//! Compressed request bodies, unpacked within a bound.

use std::borrow::Cow;
use std::io::{BufRead, Read};

use flate2::bufread::{GzDecoder, ZlibDecoder};

/// The body stays as it was sent, under the name of its encoding.
pub(super) struct Packed {
    /// In lower case.
    pub(super) encoding: String,
}

/// The plain body. The same content compressed twice is rarely the same bytes (gzip carries a time), so a retry is
/// only recognised unpacked (F17).
///
/// Packed stays: an encoding we do not unpack, a list of several, a body that is corrupt, that has bytes behind its end
/// (some servers read them, some do not), or that grows beyond `max` bytes.
pub(super) fn decode<'a>(
    encoding: Option<&str>,
    body: &'a [u8],
    max: usize,
) -> Result<Cow<'a, [u8]>, Packed> {
    let encoding = encoding.unwrap_or_default().trim();
    let is = |name: &str| encoding.eq_ignore_ascii_case(name);
    let mut rest = body;
    let plain = if encoding.is_empty() || is("identity") {
        return Ok(Cow::Borrowed(body));
    } else if is("gzip") || is("x-gzip") {
        bounded(GzDecoder::new(&mut rest), max)
    } else if is("deflate") {
        bounded(ZlibDecoder::new(&mut rest), max)
    } else {
        None
    };
    match plain {
        Some(plain) if rest.fill_buf().is_ok_and(<[u8]>::is_empty) => Ok(Cow::Owned(plain)),
        _ => Err(Packed { encoding: encoding.to_ascii_lowercase() }),
    }
}

fn bounded(decoder: impl Read, max: usize) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    // One byte more than allowed, to tell "fits" from "cut off".
    decoder.take((max as u64).saturating_add(1)).read_to_end(&mut plain).ok()?;
    (plain.len() <= max).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f17_unpacking_without_end_stops_at_the_bound() {
        assert_eq!(bounded(std::io::repeat(b'x'), 1000), None);
        assert_eq!(bounded(std::io::repeat(b'x').take(1001), 1000), None);
        assert_eq!(bounded(std::io::repeat(b'x').take(1000), 1000).map(|plain| plain.len()), Some(1000));
    }
}
