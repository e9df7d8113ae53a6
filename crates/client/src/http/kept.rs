//! The headers of a call, kept for attempts after its first.
//!
//! Few calls have a second attempt, and each could have one. A copy of a header map takes memory for the map and for each
//! value in it; so names and values are written down one behind the other, in memory that the calls of a thread use in turn,
//! and made to headers again only when they are needed.

use std::cell::RefCell;

use http::{HeaderMap, HeaderName, HeaderValue};

/// What a thread keeps of these, and of the marks of progress, for its next calls. One for each call under way at once.
pub(super) const SPARE_MAX: usize = 64;
/// Memory that one of them may keep.
const SPARE_BYTES_MAX: usize = 16 << 10;

/// Header lines as text.
#[derive(Default)]
pub(crate) struct Kept {
    lines: Vec<Line>,
    text: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Line {
    name_ends: usize,
    ends: usize,
    sensitive: bool,
}

thread_local! {
    static SPARE: RefCell<Vec<Kept>> = const { RefCell::new(Vec::new()) };
}

impl Kept {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        let mut kept = spare.unwrap_or_default();
        for (name, value) in headers {
            kept.text.extend_from_slice(name.as_str().as_bytes());
            let name_ends = kept.text.len();
            kept.text.extend_from_slice(value.as_bytes());
            kept.lines.push(Line { name_ends, ends: kept.text.len(), sensitive: value.is_sensitive() });
        }
        kept
    }

    /// The headers as they were; lines of one name in their order.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(self.lines.len());
        let mut begins = 0;
        for line in &self.lines {
            let name = HeaderName::from_bytes(&self.text[begins..line.name_ends]);
            let value = HeaderValue::from_bytes(&self.text[line.name_ends..line.ends]);
            begins = line.ends;
            // They were headers before, so they are.
            if let (Ok(name), Ok(mut value)) = (name, value) {
                value.set_sensitive(line.sensitive);
                headers.append(name, value);
            }
        }
        headers
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.text.capacity() == 0 || self.text.capacity() > SPARE_BYTES_MAX {
            return;
        }
        let (mut lines, mut text) = (std::mem::take(&mut self.lines), std::mem::take(&mut self.text));
        // Credentials do not outlive their call in memory that stays.
        text.fill(0);
        text.clear();
        lines.clear();
        // A thread that ends has no place for it any more.
        let _kept = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push(Kept { lines, text });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were() {
        let mut headers = HeaderMap::new();
        headers.append("x-a", HeaderValue::from_static("1"));
        headers.append("authorization", HeaderValue::from_static("Bearer t"));
        headers.append("x-a", HeaderValue::from_bytes(b"\xff 2").unwrap());
        headers.append("x-empty", HeaderValue::from_static(""));
        headers.get_mut("authorization").unwrap().set_sensitive(true);
        let kept = Kept::of(&headers);
        assert_eq!(kept.headers(), headers);
        assert!(kept.headers()["authorization"].is_sensitive());
    }

    /// What one call kept is not there for the next, neither as headers nor in the memory itself.
    #[test]
    fn memory_that_is_used_again_holds_nothing_of_the_last_call() {
        let mut secret = HeaderMap::new();
        secret.append("authorization", HeaderValue::from_static("Bearer long-secret"));
        drop(Kept::of(&secret));
        let spare = SPARE.with_borrow_mut(|spare| spare.pop()).unwrap();
        assert!(spare.lines.is_empty() && spare.text.is_empty() && spare.text.capacity() > 0);
        SPARE.with_borrow_mut(|all| all.push(spare));
        assert!(Kept::of(&HeaderMap::new()).headers().is_empty());
    }
}
