//! What a request was, as a keyed digest that tells a retry from another request under the same key (SPEC 2.4).
//!
//! A retry is rarely the same bytes: JSON members come in another order, a multipart boundary is drawn anew, a proxy
//! compresses the body. Those are the same request. Everything that could mean something else is another one, and is
//! refused instead of being answered with a stored response that belongs to other work.
//!
//! ```
//! use retrysafe_core::fingerprint::{
//!     BodyRules, DeploymentKey, FingerprintInput, FingerprintKeys, Match, compute, verify,
//! };
//!
//! let keys = FingerprintKeys::new(DeploymentKey::new(1, &[7; 32])?);
//! let rules = BodyRules::default();
//! let request = |body| FingerprintInput {
//!     method: "POST",
//!     route: "/orders",
//!     path: "/orders",
//!     query: None,
//!     headers: &[],
//!     content_type: Some("application/json"),
//!     content_encoding: None,
//!     body,
//!     rules: &rules,
//! };
//! let stored = compute(&request(br#"{"amount": 5.0, "sku": "a"}"#), keys.current());
//! assert_eq!(verify(&stored, &request(br#"{"sku":"a","amount":5}"#), &keys), Match::Same);
//! assert_eq!(verify(&stored, &request(br#"{"sku":"a","amount":"5"}"#), &keys), Match::Different);
//! # Ok::<(), retrysafe_core::fingerprint::SecretTooShort>(())
//! ```
//!
//! # What goes in
//! Method, route template, original path, query, the headers that the contract names, the exclusions in force, the
//! content type, and the body in the canonical form of its kind: JSON (see [`canonical_json`]), multipart parts without
//! their boundary, or the bytes as they are. Every field is preceded by its length and every choice by a tag, so that
//! no two requests run together into one input (F15). Where a body is not wholly regular, its raw bytes stand for it:
//! that can only make two spellings differ, never two meanings agree.
//!
//! # Versions
//! A fingerprint names the algorithm and the deployment key it was made with, and is verified with exactly those (F18).
//! It is an HMAC, since a plain hash of a body with few possible values is an oracle in a dump (protocol 4).

mod coding;
mod json;
mod keys;
mod media;
mod multipart;
mod number;
mod transcript;

use std::fmt;

use hmac::Mac;

pub use self::json::{MAX_JSON_DEPTH, NotCanonical, canonical_json};
use self::keys::HmacSha256;
pub use self::keys::{DeploymentKey, FingerprintKeys, KeyIdTaken, SecretTooShort};
use self::media::MediaType;
use self::transcript::Transcript;
use crate::pointer::JsonPointer;

/// The algorithm of fingerprints made today. A new one is a new number and a new arm in `digest`; the old arm stays
/// for as long as records made with it live.
pub const ALGORITHM: u8 = 1;

/// A keyed, versioned digest of a request. Equality is decided in constant time; `Debug` does not show the digest.
#[derive(Clone, Copy, Eq)]
pub struct Fingerprint {
    algorithm: u8,
    key_id: u32,
    digest: [u8; 32],
}

impl Fingerprint {
    /// The length of the stored form.
    pub const BYTES: usize = 1 + 4 + 32;

    /// A fingerprint read back from a store.
    #[must_use]
    pub const fn from_parts(algorithm: u8, key_id: u32, digest: [u8; 32]) -> Self {
        Self { algorithm, key_id, digest }
    }

    /// Algorithm, key id and digest, for storage.
    #[must_use]
    pub const fn parts(&self) -> (u8, u32, [u8; 32]) {
        (self.algorithm, self.key_id, self.digest)
    }

    /// Algorithm, key id (big-endian) and digest in one.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (head, digest) = bytes.split_at_mut(5);
        head[0] = self.algorithm;
        head[1..].copy_from_slice(&self.key_id.to_be_bytes());
        digest.copy_from_slice(&self.digest);
        bytes
    }

    /// Reads [`Fingerprint::to_bytes`]; `None` where the length is another. An algorithm that this build does not know
    /// is kept as it is: [`verify`] answers [`Match::Unknown`] for it.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&[algorithm, a, b, c, d], digest) = bytes.split_first_chunk::<5>()?;
        let digest = digest.try_into().ok()?;
        Some(Self { algorithm, key_id: u32::from_be_bytes([a, b, c, d]), digest })
    }
}

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        let differing = self.digest.iter().zip(&other.digest).fold(0, |seen, (a, b)| seen | (a ^ b));
        (self.algorithm, self.key_id) == (other.algorithm, other.key_id)
            && std::hint::black_box(differing) == 0
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint(v{}, key {})", self.algorithm, self.key_id)
    }
}

/// How a stored fingerprint compares with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Match {
    /// The same request.
    Same,
    /// Another request: refuse it.
    Different,
    /// Made by an algorithm or a deployment key that is not known here, so nobody can say: never replay.
    Unknown,
}

/// How an endpoint's bodies are compared. Part of what is hashed: a request stored under other rules is
/// [`Match::Different`], so a change of rules takes hold for keys that are new.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BodyRules {
    /// Places of a JSON body that change between attempts (a client's clock, a trace id) and are left out (F19).
    /// An absent place is fine. They do nothing to bodies that are not canonical JSON.
    pub exclude: Vec<JsonPointer>,
    /// The body is not compared at all (F21). Off unless the contract says so.
    pub ignore_body: bool,
    /// The largest body, in bytes, that a compressed request is unpacked to; beyond it the packed bytes are compared.
    pub decoded_max: usize,
}

impl Default for BodyRules {
    /// The whole body; compressed ones are unpacked to at most 1 MiB.
    fn default() -> Self {
        Self { exclude: Vec::new(), ignore_body: false, decoded_max: 1 << 20 }
    }
}

/// A request, as far as it is compared.
#[derive(Clone, Copy)]
pub struct FingerprintInput<'a> {
    /// As sent; methods are case-sensitive.
    pub method: &'a str,
    /// The contract's path template: `/orders/{id}`.
    pub route: &'a str,
    /// The original path, not what nested routers left of it (protocol 3).
    pub path: &'a str,
    /// What follows the `?`, as sent; `None` where there is no `?`.
    pub query: Option<&'a str>,
    /// The header lines that select the effect (an API version), and no others: name in any case, value as sent.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// The `Content-Type` line.
    pub content_type: Option<&'a str>,
    /// The `Content-Encoding` line.
    pub content_encoding: Option<&'a str>,
    /// The whole body, as sent.
    pub body: &'a [u8],
    /// How the endpoint's bodies are compared.
    pub rules: &'a BodyRules,
}

/// The fingerprint of a request, by today's algorithm.
#[must_use]
pub fn compute(input: &FingerprintInput<'_>, key: &DeploymentKey) -> Fingerprint {
    let digest = digest_v1(input, key).finalize().into_bytes().into();
    Fingerprint { algorithm: ALGORITHM, key_id: key.id(), digest }
}

/// Whether `input` is the request that `stored` was made from, by the algorithm and the key of that time (F18).
#[must_use]
pub fn verify(stored: &Fingerprint, input: &FingerprintInput<'_>, keys: &FingerprintKeys) -> Match {
    let Some(key) = keys.get(stored.key_id) else { return Match::Unknown };
    let Some(mac) = digest(stored.algorithm, input, key) else { return Match::Unknown };
    match mac.verify_slice(&stored.digest) {
        Ok(()) => Match::Same,
        Err(_) => Match::Different,
    }
}

fn digest(algorithm: u8, input: &FingerprintInput<'_>, key: &DeploymentKey) -> Option<HmacSha256> {
    match algorithm {
        1 => Some(digest_v1(input, key)),
        _ => None,
    }
}

fn digest_v1(input: &FingerprintInput<'_>, key: &DeploymentKey) -> HmacSha256 {
    let mut transcript = Transcript::new(key.mac(), b"retrysafe fingerprint 1");
    transcript.bytes(input.method.as_bytes());
    transcript.bytes(input.route.as_bytes());
    transcript.bytes(input.path.as_bytes());
    transcript.optional(input.query.map(str::as_bytes));
    headers(input.headers, &mut transcript);
    body(input, &mut transcript);
    transcript.finish()
}

/// By name, since proxies reorder lines of different names; lines of one name keep their order.
fn headers(lines: &[(&str, &[u8])], transcript: &mut Transcript) {
    let mut lines: Vec<_> = lines.iter().map(|(name, value)| (name.to_ascii_lowercase(), *value)).collect();
    lines.sort_by(|(a, _), (b, _)| a.cmp(b));
    transcript.count(lines.len());
    for (name, value) in lines {
        transcript.bytes(name.as_bytes());
        transcript.bytes(value);
    }
}

/// The forms that a body is compared in. The numbers are hashed; they never change meaning within an algorithm.
#[repr(u8)]
enum BodyKind {
    Ignored = 0,
    Json = 1,
    Multipart = 2,
    Raw = 3,
}

fn body(input: &FingerprintInput<'_>, transcript: &mut Transcript) {
    let rules = input.rules;
    let mut excluded: Vec<&JsonPointer> = rules.exclude.iter().collect();
    excluded.sort_unstable();
    excluded.dedup();
    transcript.count(excluded.len());
    for pointer in &excluded {
        transcript.bytes(pointer.to_string().as_bytes());
    }
    if rules.ignore_body {
        return transcript.tag(BodyKind::Ignored as u8);
    }

    let media = input.content_type.map(MediaType::parse);
    let decoded = coding::decode(input.content_encoding, input.body, rules.decoded_max);
    if let (Some(Some(media)), Ok(plain)) = (&media, &decoded) {
        if media.is_json()
            && let Ok(canonical) = json::canonicalise(plain, &rules.exclude)
        {
            transcript.tag(BodyKind::Json as u8);
            media.join(transcript, "charset");
            return transcript.bytes(&canonical);
        }
        if let Some(boundary) = media.form_boundary()
            && let Some(parts) = multipart::parts(plain, boundary)
        {
            transcript.tag(BodyKind::Multipart as u8);
            media.join(transcript, "boundary");
            return multipart::join(&parts, transcript);
        }
    }

    transcript.tag(BodyKind::Raw as u8);
    match media {
        None => transcript.tag(0),
        Some(Some(media)) => {
            transcript.tag(1);
            media.join(transcript, "");
        }
        // Not to be understood, but still part of what was asked.
        Some(None) => {
            transcript.tag(2);
            transcript.bytes(input.content_type.unwrap_or_default().as_bytes());
        }
    }
    match decoded {
        Ok(plain) => {
            transcript.optional(None);
            transcript.bytes(&plain);
        }
        Err(coding::Packed { encoding }) => {
            transcript.optional(Some(encoding.as_bytes()));
            transcript.bytes(input.body);
        }
    }
}
