//! Where a keyed request lives: (namespace, account, key), protocol 2.
//!
//! The namespace is the hop's own word, so that a gateway and a library on one store never meet each other's claims.
//! The account is the verified subject that the key belongs to (SPEC 2.2); the key is what the client sent. All three
//! are compared as bytes: `abc`, `ABC` and `abc ` are three keys (F16), and a store has to keep them apart.
//!
//! Accounts and keys are private. They have no `Display`, and their `Debug` tells only how long they are.
//!
//! ```
//! use retrysafe_core::address::{Account, Address, Key, Namespace};
//!
//! let address = Address::new(
//!     Namespace::new("gateway")?,
//!     Account::new(&["acme", "user-7"])?,
//!     Key::trusted("order-confirm-991")?,
//! );
//! assert_eq!(address.key().as_str(), "order-confirm-991");
//! assert!(!format!("{address:?}").contains("order-confirm-991"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::sync::Arc;

/// The hop that keeps the record. Nested hops on one store need different ones.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// The longest namespace, in bytes.
    pub const MAX_BYTES: usize = 64;

    /// A namespace from the contract: 1 to 64 of `a-z`, `0-9`, `-`, `_` and `.`.
    ///
    /// # Errors
    /// [`NamespaceFault`] where the text is not of that shape.
    pub fn new(text: &str) -> Result<Self, NamespaceFault> {
        let shape = |b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
        if text.is_empty() || text.len() > Self::MAX_BYTES || !text.bytes().all(shape) {
            return Err(NamespaceFault);
        }
        Ok(Self(text.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({})", self.0)
    }
}

/// The namespace is not of the allowed shape; choose another in the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a namespace is 1 to {} of a-z, 0-9, '-', '_' and '.'", Namespace::MAX_BYTES)]
pub struct NamespaceFault;

/// The verified, stable subject that a key belongs to, joined with whatever the contract lets select the account
/// (a tenant, a connected account; protocol 3).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Account(Arc<str>);

impl Account {
    /// The longest account, in bytes after joining.
    pub const MAX_BYTES: usize = 1024;

    /// Joins `parts` with `/`, each escaped as in a JSON pointer (`~` as `~0`, `/` as `~1`), so that two different
    /// lists never make one account: `["a", "bc"]` is not `["ab", "c"]`, and `["a/b"]` is not `["a", "b"]`.
    ///
    /// Later parts may be empty (an absent tenant header); the first is the subject and may not.
    ///
    /// # Errors
    /// [`AccountFault`]: no subject, or more than [`Account::MAX_BYTES`].
    pub fn new(parts: &[&str]) -> Result<Self, AccountFault> {
        let Some(subject) = parts.first() else { return Err(AccountFault::Empty) };
        if subject.is_empty() {
            return Err(AccountFault::Empty);
        }
        // Before anything is copied: the parts come from tokens and headers.
        if parts.iter().map(|part| part.len() + 1).sum::<usize>() - 1 > Self::MAX_BYTES {
            return Err(AccountFault::TooLong);
        }
        let mut joined = String::with_capacity(parts.iter().map(|part| part.len() + 1).sum());
        for (at, part) in parts.iter().enumerate() {
            if at > 0 {
                joined.push('/');
            }
            if !part.contains(['~', '/']) {
                joined.push_str(part);
                continue;
            }
            for c in part.chars() {
                match c {
                    '~' => joined.push_str("~0"),
                    '/' => joined.push_str("~1"),
                    other => joined.push(other),
                }
            }
        }
        Self::from_stored(&joined)
    }

    /// An account that [`Account::new`] joined before, read back from a store.
    ///
    /// # Errors
    /// [`AccountFault`] where the text cannot have come from [`Account::new`] because it is empty or too long.
    pub fn from_stored(joined: &str) -> Result<Self, AccountFault> {
        match joined.len() {
            0 => Err(AccountFault::Empty),
            len if len > Self::MAX_BYTES => Err(AccountFault::TooLong),
            _ => Ok(Self(joined.into())),
        }
    }

    /// The joined text, for storage.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({} bytes)", self.0.len())
    }
}

/// Why there is no account to scope a key by. The identity itself is not repeated here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountFault {
    /// The subject is absent or empty; an anonymous scope shared by accident is what SPEC 2.2 forbids.
    #[error("the identity has no subject to scope keys by")]
    Empty,
    /// The identity is longer than a scope may be.
    #[error("the identity is longer than {} bytes", Account::MAX_BYTES)]
    TooLong,
}

/// An idempotency key: printable ASCII, at least one byte. The value only; quoting and escapes are gone.
///
/// Keys that clients send are made by [`crate::key`], which knows the contract's syntax and length.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// A key that did not come from a client: read back from a store, or derived from an event's id.
    ///
    /// # Errors
    /// [`KeyCharacters`] where it is empty or holds a byte outside `0x20..=0x7e`; no client could ever send it.
    pub fn trusted(value: &str) -> Result<Self, KeyCharacters> {
        if value.is_empty() || !value.bytes().all(|b| matches!(b, 0x20..=0x7e)) {
            return Err(KeyCharacters);
        }
        Ok(Self(value.into()))
    }

    /// The value, for storage and for handing on to an upstream.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

/// The text is empty or holds something other than printable ASCII, so it is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is one or more printable ASCII characters")]
pub struct KeyCharacters;

/// The place of one keyed request in a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    namespace: Namespace,
    account: Account,
    key: Key,
}

impl Address {
    /// The address of `key`, sent by `account`, at the hop called `namespace`.
    #[must_use]
    pub fn new(namespace: Namespace, account: Account, key: Key) -> Self {
        Self { namespace, account, key }
    }

    /// The hop.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The subject.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The client's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k5_different_identities_never_join_into_one_account() {
        let lists: &[&[&str]] = &[
            &["a"],
            &["a", ""],
            &["a", "", ""],
            &["a", "bc"],
            &["ab", "c"],
            &["abc"],
            &["a/bc"],
            &["a~1bc"],
            &["a~", "1bc"],
            &["a~0", "1bc"],
        ];
        let joined: Vec<_> = lists.iter().map(|parts| Account::new(parts).unwrap()).collect();
        for (i, a) in joined.iter().enumerate() {
            for (j, b) in joined.iter().enumerate() {
                assert_eq!(a == b, i == j, "{:?} {:?}", lists[i], lists[j]);
            }
        }
    }

    #[test]
    fn k5_an_identity_without_a_subject_is_no_account() {
        for parts in [&[][..], &[""], &["", "tenant"]] {
            assert_eq!(Account::new(parts), Err(AccountFault::Empty));
        }
        let long = "x".repeat(Account::MAX_BYTES + 1);
        assert_eq!(Account::new(&[&long]), Err(AccountFault::TooLong));
        // Escaping doubles the length: the bound is on what a store will hold.
        let grows = "~".repeat(Account::MAX_BYTES / 2 + 1);
        assert_eq!(Account::new(&[&grows]), Err(AccountFault::TooLong));
    }

    #[test]
    fn f16_case_and_trailing_space_make_another_key() {
        let [lower, upper, spaced] = ["abc", "ABC", "abc "].map(|text| Key::trusted(text).unwrap());
        assert!(lower != upper && lower != spaced && upper != spaced);
    }

    #[test]
    fn a_key_is_printable_ascii() {
        for text in ["", "a\n", "a\0", "\u{7f}", "käse"] {
            assert_eq!(Key::trusted(text), Err(KeyCharacters), "{text:?}");
        }
    }

    #[test]
    fn debug_shows_neither_account_nor_key() {
        let address = Address::new(
            Namespace::new("shop").unwrap(),
            Account::new(&["alice"]).unwrap(),
            Key::trusted("secret-key").unwrap(),
        );
        let shown = format!("{address:?}");
        assert!(shown.contains("10 bytes") && shown.contains("shop"), "{shown}");
        assert!(!shown.contains("alice") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn a_namespace_is_a_short_plain_word() {
        for text in ["", "Gateway", "a b", "a/b", &"x".repeat(65)] {
            assert_eq!(Namespace::new(text), Err(NamespaceFault), "{text:?}");
        }
        assert_eq!(Namespace::new("shop-v1.eu_2").unwrap().to_string(), "shop-v1.eu_2");
    }
}
