//! JSON pointers (RFC 6901), by which a contract names places in a body.

use std::fmt;
use std::str::FromStr;

/// A place in a JSON document: `/items/0/sku`. The empty text is the whole document.
///
/// ```
/// use retrysafe_core::pointer::JsonPointer;
///
/// let pointer: JsonPointer = "/a~1b/0".parse()?;
/// assert_eq!(pointer.tokens(), ["a/b", "0"]);
/// # Ok::<(), retrysafe_core::pointer::PointerFault>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JsonPointer {
    tokens: Vec<String>,
}

impl JsonPointer {
    /// The most steps of a pointer; a deeper place lies below what a fingerprint reads as JSON anyway.
    pub const MAX_STEPS: usize = 64;

    /// The steps from the root, unescaped. In an array a step is an index without leading zeros.
    #[must_use]
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// Whether this is the empty pointer, the whole document.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.tokens.is_empty()
    }
}

impl FromStr for JsonPointer {
    type Err = PointerFault;

    fn from_str(text: &str) -> Result<Self, PointerFault> {
        if text.is_empty() {
            return Ok(Self { tokens: Vec::new() });
        }
        let Some(steps) = text.strip_prefix('/') else { return Err(PointerFault::NoSlash) };
        let tokens = steps.split('/').map(unescape).collect::<Result<Vec<_>, _>>()?;
        if tokens.len() > Self::MAX_STEPS {
            return Err(PointerFault::TooDeep);
        }
        Ok(Self { tokens })
    }
}

fn unescape(step: &str) -> Result<String, PointerFault> {
    let mut plain = String::with_capacity(step.len());
    let mut chars = step.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '~' => match chars.next() {
                Some('0') => '~',
                Some('1') => '/',
                _ => return Err(PointerFault::BadEscape),
            },
            other => other,
        });
    }
    Ok(plain)
}

impl fmt::Display for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tokens.iter().try_for_each(|step| write!(f, "/{}", step.replace('~', "~0").replace('/', "~1")))
    }
}

impl fmt::Debug for JsonPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JsonPointer({self})")
    }
}

/// The text is no JSON pointer; correct it in the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PointerFault {
    /// It is neither empty nor begins with a slash.
    #[error("a JSON pointer begins with '/', or is empty for the whole document")]
    NoSlash,
    /// A tilde that is not followed by 0 or 1.
    #[error("in a JSON pointer '~' is written '~0' and '/' within a name '~1'")]
    BadEscape,
    /// More than [`JsonPointer::MAX_STEPS`] steps.
    #[error("a JSON pointer has at most {} steps", JsonPointer::MAX_STEPS)]
    TooDeep,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_reads_back_as_it_was_written() {
        for text in ["", "/", "/a", "/a/0", "/a~1b/m~0n", "/ /\u{e9}", "/a//b"] {
            assert_eq!(text.parse::<JsonPointer>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_pointer_is_refused() {
        assert_eq!("a".parse::<JsonPointer>(), Err(PointerFault::NoSlash));
        assert_eq!("/a~".parse::<JsonPointer>(), Err(PointerFault::BadEscape));
        assert_eq!("/a~2".parse::<JsonPointer>(), Err(PointerFault::BadEscape));
        let deep = "/x".repeat(JsonPointer::MAX_STEPS + 1);
        assert_eq!(deep.parse::<JsonPointer>(), Err(PointerFault::TooDeep));
    }
}
