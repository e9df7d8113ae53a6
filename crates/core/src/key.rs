//! What a key may look like (SPEC 2.6).

/// Syntax and length of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRules {
    /// Which forms are accepted.
    pub syntax: KeySyntax,
    /// Length limit in bytes.
    pub max_len: usize,
}

/// Accepted forms of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeySyntax {
    /// Bare, or an RFC 9651 string.
    Lenient,
    /// An RFC 9651 string only.
    Strict,
}
