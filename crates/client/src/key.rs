//! The key of an operation: where it comes from, and what is no key (SPEC 2.3).
//!
//! | | from | stays the same |
//! |---|---|---|
//! | [`Key::from_event`] | the event that causes the operation | over attempts, restarts and processes: the best there is |
//! | [`Key::for_request`] | the id of the request that is being handled | over attempts, and whoever repeats that request |
//! | [`Key::random`] | chance, once for a logical call | over the attempts of that call |
//!
//! The client makes a random one where nothing else is given; a key in the request always wins (I-16). What an absent
//! value turns into on its way (`null`, `undefined`, an empty text) is refused: a thousand orders under one key are one.
//!
//! ```
//! use retrysafe_client::{Key, KeyRefused};
//!
//! let key = Key::from_event("order-confirm", 991)?;
//! assert_eq!(key.as_str(), "order-confirm-991");
//! assert_eq!(Key::from_event("order-confirm", "undefined"), Err(KeyRefused::Placeholder));
//! # Ok::<(), KeyRefused>(())
//! ```

use std::{
    cell::RefCell,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
};

use retrysafe_core::address;

#[cfg(feature = "http")]
use crate::nested::{Lineage, Root};

/// What values that are not there look like as text.
const PLACEHOLDERS: &[&str] = &[
    "null",
    "undefined",
    "none",
    "nil",
    "nan",
    "false",
    "true",
    "[object object]",
    "00000000-0000-0000-0000-000000000000",
];
/// An id of a request that is shorter is guessable, and soon there twice. UUIDs, trace ids and nginx's ids are longer.
const REQUEST_ID_LEN_MIN: usize = 16;
/// Different characters in such an id.
const REQUEST_ID_DISTINCT_MIN: usize = 5;
/// The longest key that contracts allow by default.
const LEN_MAX: usize = 255;

/// An idempotency key. Private: its `Debug` tells the length.
#[derive(Clone)]
pub struct Key(Text);

/// A key that was drawn has one length and lies where its owner does: one is made for every call.
#[derive(Clone)]
enum Text {
    Drawn([u8; UUID]),
    Other(address::Key),
}

/// Characters of a UUID.
const UUID: usize = 36;

/// Why a text is not taken for a key. It repeats nothing of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyRefused {
    /// Nothing, or only blanks.
    #[error("the id is empty; a key needs one that names the operation")]
    Empty,
    /// What an absent value looks like.
    #[error("the id is what an absent value looks like; every such operation would share one key")]
    Placeholder,
    /// One character over and over, or an id of a request that is too short to be unique.
    #[error(
        "the id is too simple to be unique; request ids have {REQUEST_ID_LEN_MIN} characters, \
         {REQUEST_ID_DISTINCT_MIN} of them different, or more"
    )]
    LowEntropy,
    /// Bytes that keys cannot have.
    #[error("a key is printable ASCII without blanks, comma and double quote")]
    Characters,
    /// Longer than the contract allows.
    #[error("the key is longer than the {max} bytes that the contract allows")]
    TooLong {
        /// The limit, in bytes.
        max: usize,
    },
}

impl Key {
    /// The key of the operation that an event causes: `order-confirm-991` for the confirmation of order 991. Whoever
    /// handles the event again, after a crash or in another process, comes to the same key.
    ///
    /// `event` is a constant of the program, one for each kind of operation; `id` is the id that the event has in its
    /// system of record, never its content and never a time (I-20).
    ///
    /// # Errors
    /// [`KeyRefused`].
    pub fn from_event(event: &str, id: impl fmt::Display) -> Result<Self, KeyRefused> {
        let id = id.to_string();
        check_id(event)?;
        check_id(&id)?;
        Self::checked(&format!("{event}-{id}"))
    }

    /// The key of an operation within the handling of a request, whose id somebody in front has drawn. Whoever repeats
    /// the request with the same id comes to the same key.
    ///
    /// # Errors
    /// [`KeyRefused`]; of the id of a request it is also asked that it can be unique.
    pub fn for_request(operation: &str, request_id: &str) -> Result<Self, KeyRefused> {
        check_id(operation)?;
        check_id(request_id)?;
        let mut seen = [false; 128];
        request_id.bytes().for_each(|byte| seen[usize::from(byte & 127)] = true);
        let distinct = seen.into_iter().filter(|seen| *seen).count();
        if request_id.len() < REQUEST_ID_LEN_MIN || distinct < REQUEST_ID_DISTINCT_MIN {
            return Err(KeyRefused::LowEntropy);
        }
        Self::checked(&format!("{operation}-{request_id}"))
    }

    /// A key of chance: a UUID of version 7 (RFC 9562), so that keys sort by their age. Make it **outside** of whatever
    /// repeats the call: a key for each attempt is no key.
    ///
    /// # Errors
    /// The system has no randomness; nothing was sent.
    pub fn random() -> Result<Self, NoRandomness> {
        let random = chance()?;
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok(Self::uuid_v7(since.as_millis() as u64, random))
    }

    /// A key that the caller has: checked, otherwise untouched.
    ///
    /// # Errors
    /// [`KeyRefused`]: empty, a placeholder, or bytes that no key has.
    pub fn given(text: &str) -> Result<Self, KeyRefused> {
        check_id(text)?;
        Self::checked(text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            // Hexadecimal digits and hyphens are always a text.
            Text::Drawn(text) => std::str::from_utf8(text).unwrap_or_default(),
            Text::Other(key) => key.as_str(),
        }
    }

    #[cfg(feature = "http")]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Drawn(text) => text,
            Text::Other(key) => key.as_str().as_bytes(),
        }
    }

    /// The key that a request carries already, however spelled: it wins, and only what cannot be a key was refused.
    #[cfg(feature = "http")]
    pub(crate) fn carried(key: address::Key) -> Result<Self, KeyRefused> {
        check_id(key.as_str())?;
        Ok(Self(Text::Other(key)))
    }

    /// The key of a call nested in one that is retried: the same for every attempt of the outer call.
    #[cfg(feature = "http")]
    pub(crate) fn nested(lineage: &Lineage) -> Result<Self, KeyRefused> {
        let root = base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, lineage.root);
        Self::checked(&format!("{root}-{:016x}-{}", lineage.place, lineage.ordinal))
    }

    #[cfg(feature = "http")]
    pub(crate) fn root() -> Option<Root> {
        let mut root = Root::default();
        getrandom::fill(&mut root).ok().map(|()| root)
    }

    fn checked(text: &str) -> Result<Self, KeyRefused> {
        if text.len() > LEN_MAX {
            return Err(KeyRefused::TooLong { max: LEN_MAX });
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b'"')) {
            return Err(KeyRefused::Characters);
        }
        address::Key::trusted(text).map(|key| Self(Text::Other(key))).map_err(|_| KeyRefused::Characters)
    }

    /// RFC 9562 5.7: 48 bits of milliseconds, version 7, 12 bits, variant 2, 62 bits.
    fn uuid_v7(ms: u64, random: [u8; CHANCE]) -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut bytes = [0; 16];
        bytes[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
        bytes[6..].copy_from_slice(&random);
        bytes[6] = 0x70 | bytes[6] & 0x0f;
        bytes[8] = 0x80 | bytes[8] & 0x3f;
        let mut text = [b'-'; UUID];
        let mut at = 0;
        for (index, byte) in bytes.into_iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                at += 1;
            }
            text[at] = HEX[usize::from(byte >> 4)];
            text[at + 1] = HEX[usize::from(byte & 15)];
            at += 2;
        }
        Self(Text::Drawn(text))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.as_str().len())
    }
}

/// Random bytes of one key.
const CHANCE: usize = 10;

/// Ten bytes of the system's randomness. They are fetched for many keys at once, since the system call costs more than all
/// else of a call; and anew in a process that was forked, which would else draw the keys of its parent.
fn chance() -> Result<[u8; CHANCE], NoRandomness> {
    struct Drawn {
        process: u32,
        bytes: [u8; CHANCE * 64],
        left: usize,
    }
    thread_local! {
        static DRAWN: RefCell<Drawn> = const { RefCell::new(Drawn { process: 0, bytes: [0; CHANCE * 64], left: 0 }) };
    }
    DRAWN.with_borrow_mut(|drawn| {
        let process = std::process::id();
        if drawn.left == 0 || drawn.process != process {
            drawn.left = 0;
            getrandom::fill(&mut drawn.bytes).map_err(|_| NoRandomness)?;
            (drawn.process, drawn.left) = (process, drawn.bytes.len() / CHANCE);
        }
        drawn.left -= 1;
        let mut random = [0; CHANCE];
        let used = drawn.left * CHANCE..(drawn.left + 1) * CHANCE;
        random.copy_from_slice(&drawn.bytes[used.clone()]);
        drawn.bytes[used].fill(0);
        Ok(random)
    })
}

/// The system's source of randomness does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the system has no randomness to make a key of; nothing was sent")]
pub struct NoRandomness;

/// What holds for every id: it is there.
fn check_id(id: &str) -> Result<(), KeyRefused> {
    let id = id.trim();
    if id.is_empty() {
        return Err(KeyRefused::Empty);
    }
    if PLACEHOLDERS.iter().any(|placeholder| id.eq_ignore_ascii_case(placeholder)) {
        return Err(KeyRefused::Placeholder);
    }
    let first = id.as_bytes()[0];
    // `7` and `1111` may be orders; `0`, `----` and `000000` are what is left where there is none.
    let one_character = id.bytes().all(|byte| byte == first);
    if one_character
        && (matches!(first, b'0' | b'-' | b'_' | b'.') || id.len() > 3 && !first.is_ascii_digit())
    {
        return Err(KeyRefused::LowEntropy);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_absent_value_looks_like_is_refused() {
        for id in ["null", "NULL", " undefined ", "None", "nil", "NaN", "[object Object]", "false"] {
            assert_eq!(Key::from_event("order", id), Err(KeyRefused::Placeholder), "{id}");
            assert!(Key::given(id).is_err(), "{id}");
        }
        assert_eq!(Key::from_event("order", ""), Err(KeyRefused::Empty));
        assert_eq!(Key::from_event("order", "  "), Err(KeyRefused::Empty));
        assert_eq!(Key::from_event("", 7), Err(KeyRefused::Empty));
        for id in ["0", "0000", "----", "aaaa"] {
            assert_eq!(Key::from_event("order", id), Err(KeyRefused::LowEntropy), "{id}");
        }
        assert!(Key::from_event("order", 7).is_ok() && Key::from_event("order", 1111).is_ok());
        assert_eq!(
            Key::from_event("order", "00000000-0000-0000-0000-000000000000"),
            Err(KeyRefused::Placeholder)
        );
    }

    #[test]
    fn an_id_of_a_request_has_to_be_able_to_be_unique() {
        for id in ["1", "req-17", "abababababababababab"] {
            assert_eq!(Key::for_request("charge", id), Err(KeyRefused::LowEntropy), "{id}");
        }
        let key = Key::for_request("charge", "4bf92f3577b34da6a3ce929d0e0e4736").unwrap();
        assert_eq!(key.as_str(), "charge-4bf92f3577b34da6a3ce929d0e0e4736");
    }

    #[test]
    fn bytes_that_no_key_has_are_refused() {
        for text in ["a,b", "a\"b", "a b", "\u{e9}", "a\n"] {
            assert_eq!(Key::given(text), Err(KeyRefused::Characters), "{text:?}");
        }
        assert_eq!(Key::given(&"k".repeat(40)), Err(KeyRefused::LowEntropy));
        assert_eq!(Key::given(&"kx".repeat(200)), Err(KeyRefused::TooLong { max: 255 }));
    }

    /// RFC 9562, A.6: the example of a version 7.
    #[test]
    fn a_random_key_is_a_uuid_of_version_7() {
        let random = [0x0c, 0xc3, 0x18, 0xc4, 0xdc, 0x0c, 0x0c, 0x07, 0x39, 0x8f];
        let key = Key::uuid_v7(0x017F_22E2_79B0, random);
        assert_eq!(key.as_str(), "017f22e2-79b0-7cc3-98c4-dc0c0c07398f");
        let drawn: std::collections::HashSet<Key> = (0..1_000).map(|_| Key::random().unwrap()).collect();
        assert_eq!(drawn.len(), 1_000);
    }

    /// However it came to be: one that was drawn, written down and read again is the same.
    #[test]
    fn a_key_is_its_text() {
        let drawn = Key::random().unwrap();
        let read = Key::given(drawn.as_str()).unwrap();
        assert_eq!(drawn, read);
        assert_eq!(drawn.cmp(&read), Ordering::Equal);
        assert!(std::collections::HashSet::from([drawn]).contains(&read));
    }

    #[test]
    fn debug_tells_nothing() {
        let key = Key::from_event("order-confirm", 991).unwrap();
        assert_eq!(format!("{key:?}"), "Key(17 bytes)");
    }
}
