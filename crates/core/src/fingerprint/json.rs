//! JSON in one spelling for each meaning.
//!
//! The form is RFC 8785 but for numbers (see [`super::number`]). `serde_json` judges the text and unescapes strings; the
//! walker below only lays out again what it accepted. A tree of `serde_json` values would not do: it keeps the last of two
//! members with one name, and the double nearest to a number. Nor would its raw values, which read the whole inside
//! of a container again at every level of nesting.
//!
//! # Cost
//! One pass to judge and one to walk, whatever the nesting. Members that are out of order are copied once for each object
//! around them, at most [`MAX_JSON_DEPTH`] times. Memory is the canonical text, at most a few times the body (`1e20` is
//! written out), and one entry for each member of the objects being read.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use memchr::memchr2;
use serde_json::value::RawValue;

use super::number;
use crate::pointer::JsonPointer;

/// The deepest nesting that is read; it bounds the walker's stack and its copying.
pub const MAX_JSON_DEPTH: usize = 64;

/// Why a text has no canonical form. It is then compared byte by byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCanonical {
    /// Not JSON in UTF-8.
    #[error("the text is not JSON in UTF-8")]
    NotJson,
    /// Readers take the first, the last, or both (F5).
    #[error("an object has two members with one name")]
    DuplicateMember,
    /// A string that is no Unicode text; readers replace it, each in its own way.
    #[error("a string holds half of a surrogate pair")]
    LoneSurrogate,
    /// Nested more than [`MAX_JSON_DEPTH`] deep.
    #[error("the text is nested more than {MAX_JSON_DEPTH} deep")]
    TooDeep,
}

/// The canonical form of a JSON text: RFC 8785, but a number whose RFC 8785 form would have another decimal value keeps its
/// text (`9007199254740993`, `1e400`).
///
/// ```
/// use retrysafe_core::fingerprint::canonical_json;
///
/// let canonical = canonical_json(br#"{ "b": [1.0, 9007199254740993], "a": "\u00e9" }"#)?;
/// assert_eq!(canonical, r#"{"a":"é","b":[1,9007199254740993]}"#.as_bytes());
/// # Ok::<(), retrysafe_core::fingerprint::NotCanonical>(())
/// ```
///
/// # Errors
/// [`NotCanonical`] where two readers could take the text for different values.
pub fn canonical_json(text: &[u8]) -> Result<Vec<u8>, NotCanonical> {
    canonicalise(text, &[])
}

/// The canonical form without the values at `exclude`. An element that is left out of an array leaves no gap.
pub(super) fn canonicalise(text: &[u8], exclude: &[JsonPointer]) -> Result<Vec<u8>, NotCanonical> {
    let judged: &RawValue = serde_json::from_slice(text).map_err(|_| NotCanonical::NotJson)?;
    let text = judged.get();
    let mut walker = Walker { text, at: 0, out: Vec::with_capacity(text.len()) };
    let places: Vec<&[String]> = exclude.iter().map(JsonPointer::tokens).collect();
    walker.value(&places, 0)?;
    if exclude.iter().any(JsonPointer::is_root) {
        walker.out.clear();
    }
    Ok(walker.out)
}

/// Reads a text that is known to be JSON. Where it is not, which cannot be, it stops with an error.
struct Walker<'a> {
    text: &'a str,
    at: usize,
    out: Vec<u8>,
}

/// A string as it stands in the text.
struct Quoted<'a> {
    /// With its quotes.
    source: &'a str,
    text: Cow<'a, str>,
}

struct Member<'a> {
    name: Cow<'a, str>,
    /// Where its canonical text is, from the beginning of the object's.
    text: Range<usize>,
}

impl<'a> Walker<'a> {
    fn value(&mut self, places: &[&[String]], depth: usize) -> Result<(), NotCanonical> {
        match self.next_byte()? {
            b'{' | b'[' if depth == MAX_JSON_DEPTH => Err(NotCanonical::TooDeep),
            b'{' => self.object(places, depth + 1),
            b'[' => self.array(places, depth + 1),
            b'"' => {
                let string = self.string()?;
                self.write_string(&string)
            }
            b'-' | b'0'..=b'9' => {
                let text = self.word();
                number::write(text, &mut self.out);
                Ok(())
            }
            _ => {
                let word = self.word();
                self.out.extend_from_slice(word.as_bytes());
                Ok(())
            }
        }
    }

    fn object(&mut self, places: &[&[String]], depth: usize) -> Result<(), NotCanonical> {
        self.at += 1;
        self.out.push(b'{');
        let begin = self.out.len();
        let mut members: Vec<Member<'a>> = Vec::new();
        while self.more(b'}')? {
            let name = self.string()?;
            if self.next_byte()? != b':' {
                return Err(NotCanonical::NotJson);
            }
            self.at += 1;
            let (excluded, inside) = step(places, &name.text);
            let from = self.out.len();
            self.write_string(&name)?;
            self.out.push(b':');
            self.value(&inside, depth)?;
            self.out.push(b',');
            if excluded {
                self.out.truncate(from);
            }
            members.push(Member { name: name.text, text: from - begin..self.out.len() - begin });
        }
        self.order(begin, members)?;
        self.close(begin, b'}');
        Ok(())
    }

    fn array(&mut self, places: &[&[String]], depth: usize) -> Result<(), NotCanonical> {
        self.at += 1;
        self.out.push(b'[');
        let begin = self.out.len();
        let mut index = 0_usize;
        while self.more(b']')? {
            let (excluded, inside) =
                if places.is_empty() { (false, Vec::new()) } else { step(places, &index.to_string()) };
            let from = self.out.len();
            self.value(&inside, depth)?;
            self.out.push(b',');
            if excluded {
                self.out.truncate(from);
            }
            index += 1;
        }
        self.close(begin, b']');
        Ok(())
    }

    /// Puts the members, each with a comma behind it, into the order of their names' UTF-16 code units.
    fn order(&mut self, begin: usize, mut members: Vec<Member<'a>>) -> Result<(), NotCanonical> {
        let compare = |a: &Member<'_>, b: &Member<'_>| by_utf16(&a.name, &b.name);
        if members.is_sorted_by(|a, b| compare(a, b).is_lt()) {
            return Ok(());
        }
        members.sort_unstable_by(compare);
        if members.windows(2).any(|pair| pair[0].name == pair[1].name) {
            return Err(NotCanonical::DuplicateMember);
        }
        let unordered = self.out.split_off(begin);
        for member in members {
            self.out.extend_from_slice(&unordered[member.text]);
        }
        Ok(())
    }

    /// Ends a container, without the comma of its last entry.
    fn close(&mut self, begin: usize, bracket: u8) {
        if self.out.len() > begin {
            self.out.pop();
        }
        self.out.push(bracket);
    }

    /// Whether another entry follows, past the comma if there is one. Steps over the closing bracket if not.
    fn more(&mut self, bracket: u8) -> Result<bool, NotCanonical> {
        let next = self.next_byte()?;
        if next == bracket || next == b',' {
            self.at += 1;
        }
        if next != bracket {
            self.next_byte()?;
        }
        Ok(next != bracket)
    }

    /// The next byte that is not blank; it is not stepped over.
    fn next_byte(&mut self) -> Result<u8, NotCanonical> {
        let rest = self.rest();
        let blanks = rest.bytes().take_while(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')).count();
        self.at += blanks;
        rest.as_bytes().get(blanks).copied().ok_or(NotCanonical::NotJson)
    }

    /// A number or a name: up to whatever can follow it.
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let ends = |b| matches!(b, b' ' | b'\t' | b'\n' | b'\r' | b',' | b']' | b'}');
        let len = rest.bytes().position(ends).unwrap_or(rest.len());
        self.at += len;
        rest.get(..len).unwrap_or_default()
    }

    fn string(&mut self) -> Result<Quoted<'a>, NotCanonical> {
        if self.next_byte()? != b'"' {
            return Err(NotCanonical::NotJson);
        }
        let rest = self.rest();
        let mut end = 1;
        let mut escaped = false;
        loop {
            let tail = rest.as_bytes().get(end..).ok_or(NotCanonical::NotJson)?;
            end += memchr2(b'"', b'\\', tail).ok_or(NotCanonical::NotJson)?;
            if rest.as_bytes().get(end) == Some(&b'"') {
                break;
            }
            escaped = true;
            end += 2;
        }
        let source = rest.get(..=end).ok_or(NotCanonical::NotJson)?;
        self.at += source.len();
        let text = if escaped {
            // The judge looked at the form of the escapes only; this looks at what they stand for.
            Cow::Owned(serde_json::from_str(source).map_err(|_| NotCanonical::LoneSurrogate)?)
        } else {
            Cow::Borrowed(source.get(1..end).ok_or(NotCanonical::NotJson)?)
        };
        Ok(Quoted { source, text })
    }

    fn write_string(&mut self, string: &Quoted<'_>) -> Result<(), NotCanonical> {
        match &string.text {
            // Without an escape it holds nothing that needs one.
            Cow::Borrowed(_) => self.out.extend_from_slice(string.source.as_bytes()),
            // serde_json escapes as RFC 8785 does: short forms, else `\u00xx` in lower case, and nothing above 0x1f.
            Cow::Owned(text) => {
                serde_json::to_writer(&mut self.out, text).map_err(|_| NotCanonical::NotJson)?
            }
        }
        Ok(())
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }
}

/// The order of RFC 8785. That of UTF-8 is another only between a character beyond the first plane and one of U+E000 or above.
fn by_utf16(a: &str, b: &str) -> Ordering {
    match a.is_ascii() && b.is_ascii() {
        true => a.cmp(b),
        false => a.encode_utf16().cmp(b.encode_utf16()),
    }
}

/// Follows the excluded places into the entry called `name`: whether the entry is one, and which lie inside it.
fn step<'p>(places: &[&'p [String]], name: &str) -> (bool, Vec<&'p [String]>) {
    let below = places.iter().filter_map(|place| place.split_first()).filter(|(first, _)| *first == name);
    let inside: Vec<_> = below.map(|(_, rest)| rest).collect();
    (inside.iter().any(|rest| rest.is_empty()), inside)
}
