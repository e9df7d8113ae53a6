//! From what a client sent to a [`Key`] (SPEC 2.6).
//!
//! Clients in the market send the key bare, the IETF draft wants a quoted RFC 9651 String. Under
//! [`KeySyntax::Lenient`] both spellings are the *same* key: a client that changes its library between two attempts
//! still means one operation (K1). Under [`KeySyntax::Strict`] a bare key is refused.
//!
//! ```
//! use retrysafe_core::key::{KeyFault, KeyRules, parse_header};
//!
//! let rules = KeyRules::default();
//! let bare = parse_header([&b"order-991"[..]], &rules)?;
//! let quoted = parse_header([&br#""order-991";ttl=60"#[..]], &rules)?;
//! assert_eq!(bare, quoted);
//! assert_eq!(parse_header([&b"a"[..], b"b"], &rules), Err(KeyFault::Ambiguous));
//! # Ok::<(), KeyFault>(())
//! ```
//!
//! # What a bare key is
//! Its bytes, and nothing else: `42`, `?1`, `:aGk=:`, `%22k%22` and `k;v=1` are keys of exactly that text. None is
//! decoded to a number, a boolean, bytes or parameters, because a second hop that reads it differently would file the
//! same request under another key. It holds visible ASCII without comma and double quote: a comma cannot be told from
//! two header lines that a proxy merged (K2), and a quote is a damaged quoted form.
//!
//! # Limits
//! Length is counted in bytes and looked at first. A quoted field may be longer than its key, by its quotes,
//! its escapes and [`PARAMETERS_MAX_BYTES`] of parameters, and no more.

mod field;

use std::borrow::Cow;

use sfv::visitor::Ignored;
use sfv::{BareItemFromInput, Parser, StringRef};

use crate::address::Key;
use crate::codes::Code;
use crate::pointer::JsonPointer;

/// How much room a quoted field has for blanks and the parameters that are read and ignored.
pub const PARAMETERS_MAX_BYTES: usize = 256;

/// The contract's rules for keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRules {
    /// Which spellings a header may use.
    pub syntax: KeySyntax,
    /// The longest key, in bytes.
    pub max_len: usize,
}

impl Default for KeyRules {
    /// Both spellings, at most 255 bytes.
    fn default() -> Self {
        Self { syntax: KeySyntax::Lenient, max_len: 255 }
    }
}

/// Which spellings of a key a header may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySyntax {
    /// Bare or quoted; the two are the same key.
    Lenient,
    /// Only the quoted String of RFC 9651, as the IETF draft has it.
    Strict,
}

/// Why a request has no usable key. Each variant has its own wire code; a retry of the same bytes never helps.
/// None repeats the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// There is no such header or field at all.
    #[error(
        "no idempotency key was sent; send one that is unique to this operation and reuse it on every retry"
    )]
    Missing,
    /// It is there and holds nothing, or only blanks.
    #[error("the idempotency key is empty; send one that is unique to this operation")]
    Empty,
    /// It is longer than the contract allows.
    #[error("the idempotency key is longer than {max_len} bytes; send a shorter one")]
    TooLong {
        /// The contract's limit, in bytes.
        max_len: usize,
    },
    /// It is one value, but no key.
    #[error("the idempotency key is malformed: {0}")]
    Malformed(KeyDefect),
    /// Two header lines, or a list in one. Taking the first would silently drop the
    /// other, and hops disagree on which is first (K2).
    #[error("more than one idempotency key was sent; send one header line with one key")]
    Ambiguous,
}

impl KeyFault {
    /// The wire code, one for each variant (K7).
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            Self::Missing => Code::KeyMissing,
            Self::Empty => Code::KeyEmpty,
            Self::TooLong { .. } => Code::KeyTooLong,
            Self::Malformed(_) => Code::KeyMalformed,
            Self::Ambiguous => Code::KeyAmbiguous,
        }
    }
}

/// What is wrong with a malformed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyDefect {
    /// A control byte or a byte above `0x7e`.
    #[error("it holds a byte outside printable ASCII")]
    NotAscii,
    /// It begins with a double quote and is no RFC 9651 String with parameters.
    #[error("it begins with a double quote but is not a well-formed quoted string")]
    BadQuoting,
    /// Bare, with a blank or a double quote inside.
    #[error("an unquoted key may not hold blanks or double quotes")]
    BareCharacters,
    /// Bare, where the contract asks for the quoted form.
    #[error("it has to be sent as a quoted string, like \"k-1\"")]
    NotQuoted,
    /// A body field that is there and is not a JSON string.
    #[error("the field that carries it has to be a JSON string")]
    NotText,
}

/// Reads the key from the values of the header's lines.
///
/// # Errors
/// [`KeyFault`], for the five ways in which there is not exactly one usable key.
pub fn parse_header<'a>(
    lines: impl IntoIterator<Item = &'a [u8]>,
    rules: &KeyRules,
) -> Result<Key, KeyFault> {
    let mut lines = lines.into_iter();
    let line = lines.next().ok_or(KeyFault::Missing)?;
    if lines.next().is_some() {
        return Err(KeyFault::Ambiguous);
    }
    // The longest field that can hold a key within the limit: two quotes, and each byte of the key escaped.
    let longest = rules.max_len.saturating_mul(2).saturating_add(2 + PARAMETERS_MAX_BYTES);
    if line.len() > longest {
        return Err(KeyFault::TooLong { max_len: rules.max_len });
    }
    let value = trim_blanks(line);
    match (value.first(), rules.syntax) {
        (None, _) => Err(KeyFault::Empty),
        (Some(b'"'), _) => quoted(value, rules),
        (Some(_), KeySyntax::Lenient) => bare(value, rules),
        (Some(_), KeySyntax::Strict) if value.contains(&b',') => Err(KeyFault::Ambiguous),
        (Some(_), KeySyntax::Strict) => Err(KeyFault::Malformed(KeyDefect::NotQuoted)),
    }
}

/// Takes a key from a field of the request's body, already decoded from JSON. The text is the key, whatever it looks
/// like: quotes, commas and blanks in a JSON string are its own characters, under either syntax.
///
/// # Errors
/// [`KeyFault::Empty`], [`KeyFault::TooLong`] or [`KeyFault::Malformed`].
pub fn parse_field(value: &str, rules: &KeyRules) -> Result<Key, KeyFault> {
    checked(value, rules)
}

/// Reads the key from the string at `pointer` in a JSON body.
///
/// A body that is not JSON has no such field, and neither has one where it is `null`. Two members of one name on the way
/// are two keys: readers disagree on which of them counts, as they do on two header lines (K2).
///
/// # Errors
/// [`KeyFault`], as [`parse_header`].
pub fn parse_body(body: &[u8], pointer: &JsonPointer, rules: &KeyRules) -> Result<Key, KeyFault> {
    match field::find(body, pointer) {
        field::Found::Nothing => Err(KeyFault::Missing),
        field::Found::Text(text) => parse_field(&text, rules),
        field::Found::NotText => Err(KeyFault::Malformed(KeyDefect::NotText)),
        field::Found::Several => Err(KeyFault::Ambiguous),
    }
}

fn quoted<'a>(value: &'a [u8], rules: &KeyRules) -> Result<Key, KeyFault> {
    let mut text: Option<Cow<'a, StringRef>> = None;
    let parsed = Parser::new(value).parse_item_with_visitor(|item: BareItemFromInput<'a>| {
        if let BareItemFromInput::String(string) = item {
            text = Some(string);
        }
        Ok::<_, std::convert::Infallible>(Ignored)
    });
    match (parsed, text) {
        (Ok(()), Some(text)) => checked(text.as_str(), rules),
        _ if lists_several(value) => Err(KeyFault::Ambiguous),
        _ if !value.iter().all(|b| is_printable(*b)) => Err(KeyFault::Malformed(KeyDefect::NotAscii)),
        _ => Err(KeyFault::Malformed(KeyDefect::BadQuoting)),
    }
}

fn bare(value: &[u8], rules: &KeyRules) -> Result<Key, KeyFault> {
    if value.len() > rules.max_len {
        return Err(KeyFault::TooLong { max_len: rules.max_len });
    }
    if value.contains(&b',') {
        return Err(KeyFault::Ambiguous);
    }
    if !value.iter().all(|b| is_printable(*b)) {
        return Err(KeyFault::Malformed(KeyDefect::NotAscii));
    }
    if value.iter().any(|b| matches!(b, b' ' | b'"')) {
        return Err(KeyFault::Malformed(KeyDefect::BareCharacters));
    }
    let text = str::from_utf8(value).map_err(|_| KeyFault::Malformed(KeyDefect::NotAscii))?;
    checked(text, rules)
}

/// The rules that hold however the key was carried.
fn checked(text: &str, rules: &KeyRules) -> Result<Key, KeyFault> {
    if text.len() > rules.max_len {
        return Err(KeyFault::TooLong { max_len: rules.max_len });
    }
    if text.bytes().all(|b| matches!(b, b' ' | b'\t')) {
        return Err(KeyFault::Empty);
    }
    Key::trusted(text).map_err(|_| KeyFault::Malformed(KeyDefect::NotAscii))
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x20..=0x7e)
}

fn trim_blanks(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Whether a comma stands outside quoted strings, which makes the field a list.
fn lists_several(value: &[u8]) -> bool {
    let mut in_string = false;
    let mut bytes = value.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => {
                bytes.next();
            }
            b',' if !in_string => return true,
            _ => {}
        }
    }
    false
}
