//! Version 1. Frozen: a field that is added, moved or retyped here makes records on disk unreadable.

use std::sync::Arc;

use bytes::Bytes;
use retrysafe_core::{
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence, StatusId},
    outcome::{self, HeaderPair, NotKept},
    record::{self, RecoveryClass, ResourceId, Uncertainty},
    time::Wall,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{DECODING, MAX_ENCODED_BYTES, MAX_HEADER_LINES, corrupt};
use crate::{ErrorKind, StoreError};

#[derive(Serialize, Deserialize)]
pub(super) struct Record<'a> {
    attempt: u128,
    fence: u64,
    status_id: u128,
    fingerprint_algorithm: u8,
    fingerprint_key: u32,
    fingerprint_digest: [u8; 32],
    recovery: u8,
    contract_version: u32,
    #[serde(borrow)]
    endpoint: &'a str,
    opened_at: i64,
    #[serde(borrow)]
    state: State<'a>,
}

#[derive(Serialize, Deserialize)]
enum State<'a> {
    InFlight {
        lease_until: i64,
    },
    Uncertain {
        since: i64,
        why: u8,
    },
    Completed {
        at: i64,
        expires_at: i64,
        reap_at: i64,
        #[serde(borrow)]
        resource: Option<&'a str>,
        #[serde(borrow)]
        outcome: Outcome<'a>,
    },
}

#[derive(Serialize, Deserialize)]
struct Outcome<'a> {
    status: u16,
    #[serde(borrow)]
    headers: Vec<(&'a str, Raw<'a>)>,
    #[serde(borrow)]
    body: Body<'a>,
    #[serde(borrow)]
    trailers: Vec<(&'a str, Raw<'a>)>,
}

#[derive(Serialize, Deserialize)]
enum Body<'a> {
    #[serde(borrow)]
    Kept(Raw<'a>),
    NotKept(u8),
}

/// Bytes written at once. Serde takes a plain `&[u8]` for a sequence of numbers and visits each.
struct Raw<'a>(&'a [u8]);

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&[u8]>::deserialize(deserializer).map(Raw)
    }
}

impl<'a> Record<'a> {
    /// `record` with the fence that the store issued.
    pub(super) fn new(record: &'a record::Record, fence: Fence) -> Self {
        let (fingerprint_algorithm, fingerprint_key, fingerprint_digest) = record.fingerprint.parts();
        Self {
            attempt: record.attempt.as_u128(),
            fence: fence.as_u64(),
            status_id: record.status_id.as_u128(),
            fingerprint_algorithm,
            fingerprint_key,
            fingerprint_digest,
            recovery: recovery_number(record.recovery),
            contract_version: record.contract_version,
            endpoint: &record.endpoint,
            opened_at: record.opened_at.unix_ms(),
            state: State::from(&record.state),
        }
    }
}

impl<'a> From<&'a record::State> for State<'a> {
    fn from(state: &'a record::State) -> Self {
        match state {
            record::State::InFlight { lease_until } => State::InFlight { lease_until: lease_until.unix_ms() },
            record::State::Uncertain { since, why } => {
                State::Uncertain { since: since.unix_ms(), why: why_number(*why) }
            }
            record::State::Completed { outcome, at, expires_at, reap_at, resource } => State::Completed {
                at: at.unix_ms(),
                expires_at: expires_at.unix_ms(),
                reap_at: reap_at.unix_ms(),
                resource: resource.as_ref().map(|ResourceId(id)| &**id),
                outcome: Outcome {
                    status: outcome.status,
                    headers: lines(&outcome.headers),
                    body: match &outcome.body {
                        outcome::Body::Kept(bytes) => Body::Kept(Raw(bytes)),
                        outcome::Body::NotKept(why) => Body::NotKept(not_kept_number(*why)),
                    },
                    trailers: lines(&outcome.trailers),
                },
            },
        }
    }
}

fn lines(pairs: &[HeaderPair]) -> Vec<(&str, Raw<'_>)> {
    pairs.iter().map(|pair| (&*pair.name, Raw(&pair.value))).collect()
}

/// The record in `bytes`, of which the first is known to be this version's.
pub(super) fn decode(bytes: &Bytes) -> Result<record::Record, StoreError> {
    if bytes.len() > MAX_ENCODED_BYTES {
        return Err(corrupt());
    }
    let (stored, rest) = postcard::take_from_bytes::<Record<'_>>(&bytes[1..])
        .map_err(|error| StoreError::with_source(ErrorKind::Corrupt, DECODING, error))?;
    if !rest.is_empty() {
        return Err(corrupt());
    }
    Ok(record::Record {
        attempt: AttemptId::new(stored.attempt),
        fence: Fence::from_u64(stored.fence),
        status_id: StatusId::new(stored.status_id),
        fingerprint: Fingerprint::from_parts(
            stored.fingerprint_algorithm,
            stored.fingerprint_key,
            stored.fingerprint_digest,
        ),
        recovery: recovery(stored.recovery)?,
        contract_version: stored.contract_version,
        endpoint: stored.endpoint.into(),
        opened_at: Wall::from_unix_ms(stored.opened_at),
        state: state(stored.state, bytes)?,
    })
}

fn state(stored: State<'_>, bytes: &Bytes) -> Result<record::State, StoreError> {
    Ok(match stored {
        State::InFlight { lease_until } => {
            record::State::InFlight { lease_until: Wall::from_unix_ms(lease_until) }
        }
        State::Uncertain { since, why } => {
            record::State::Uncertain { since: Wall::from_unix_ms(since), why: self::why(why)? }
        }
        State::Completed { at, expires_at, reap_at, resource, outcome } => record::State::Completed {
            outcome: Arc::new(outcome::Outcome {
                status: outcome.status,
                headers: pairs(outcome.headers, bytes)?,
                body: match outcome.body {
                    Body::Kept(Raw(body)) => outcome::Body::Kept(bytes.slice_ref(body)),
                    Body::NotKept(why) => outcome::Body::NotKept(not_kept(why)?),
                },
                trailers: pairs(outcome.trailers, bytes)?,
            }),
            at: Wall::from_unix_ms(at),
            expires_at: Wall::from_unix_ms(expires_at),
            reap_at: Wall::from_unix_ms(reap_at),
            resource: resource.map(|id| ResourceId(id.into())),
        },
    })
}

fn pairs(lines: Vec<(&str, Raw<'_>)>, bytes: &Bytes) -> Result<Vec<HeaderPair>, StoreError> {
    if lines.len() > MAX_HEADER_LINES {
        return Err(corrupt());
    }
    let pair =
        |(name, Raw(value)): (&str, Raw<'_>)| HeaderPair { name: name.into(), value: bytes.slice_ref(value) };
    Ok(lines.into_iter().map(pair).collect())
}

/// Numbers on disk for the values of an enum: append only. The match that writes them is exhaustive, so that a value
/// added in core does not compile until it has a number.
macro_rules! numbered {
    ($write:ident, $read:ident, $type:ident { $($variant:ident = $number:literal),+ $(,)? }) => {
        fn $write(value: $type) -> u8 {
            match value { $($type::$variant => $number),+ }
        }

        fn $read(number: u8) -> Result<$type, StoreError> {
            match number { $($number => Ok($type::$variant),)+ _ => Err(corrupt()) }
        }
    };
}

numbered!(recovery_number, recovery, RecoveryClass { Atomic = 0, Phased = 1, Outside = 2, Deduplicated = 3 });
numbered!(why_number, why, Uncertainty {
    HolderLost = 0, UpstreamLost = 1, Panicked = 2, Declared = 3, ResultNotStored = 4, Stopped = 5,
});
numbered!(not_kept_number, not_kept, NotKept { TooLarge = 0, Streamed = 1, ByContract = 2 });
