//! Records as bytes, for stores that keep them as one value.
//!
//! The first byte is the version, the rest is [postcard](https://postcard.jamesmunns.com) of the structs in this file.
//! They mirror those of `retrysafe-core` on purpose: a `Serialize` derived there would make every refactoring a change
//! of what is on people's disks. A version this build does not know is refused, never guessed; a later version gets
//! its own mirror, and the older one stays readable.
//!
//! What is read may be anything: decoding never panics, allocates no more than the input is long, and what it returns
//! keeps every byte of header values and bodies.
//!
//! ```
//! # use retrysafe_core::{fingerprint::Fingerprint, ids::*, record::*, time::Wall};
//! # let record = Record {
//! #     attempt: AttemptId::new(1), fence: Fence::from_u64(2), status_id: StatusId::new(3),
//! #     fingerprint: Fingerprint::from_parts(1, 1, [0; 32]), recovery: RecoveryClass::Outside, contract_version: 1,
//! #     endpoint: "POST /orders".into(), opened_at: Wall::from_unix_ms(0),
//! #     state: State::InFlight { lease_until: Wall::from_unix_ms(30_000) },
//! # };
//! use retrysafe_store::codec;
//! let bytes = codec::encode(&record)?;
//! assert_eq!(codec::decode(&bytes.into())?, record);
//! # Ok::<(), retrysafe_store::StoreError>(())
//! ```

use bytes::Bytes;
use retrysafe_core::{
    ids::Fence,
    outcome::Outcome,
    record::{Record, State},
};

use crate::{ErrorKind, StoreError};

pub(crate) mod entry;
mod v1;

/// The version this build writes.
pub const VERSION: u8 = 1;

/// The longest encoded record. Contracts bound bodies far below; this bounds what a damaged file can make us read.
pub const MAX_ENCODED_BYTES: usize = 64 * 1024 * 1024;

/// The most header or trailer lines of one stored answer.
pub const MAX_HEADER_LINES: usize = 4096;

const ENCODING: &str = "encoding a record";
const DECODING: &str = "decoding a record";

/// `record` in the current version.
///
/// # Errors
/// [`ErrorKind::Full`] where it is longer than [`MAX_ENCODED_BYTES`] or has more than [`MAX_HEADER_LINES`]: nothing is
/// written that could not be read.
pub fn encode(record: &Record) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    encode_into(record, record.fence, &mut bytes)?;
    Ok(bytes)
}

/// As [`encode`], with the fence that the store issued, into a buffer that is used again: replaces what is in it.
pub(crate) fn encode_into(record: &Record, fence: Fence, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
    let fits = |outcome: &Outcome| {
        outcome.headers.len() <= MAX_HEADER_LINES
            && outcome.trailers.len() <= MAX_HEADER_LINES
            && outcome.body_len().is_none_or(|len| len <= MAX_ENCODED_BYTES)
    };
    if let State::Completed { outcome, .. } = &record.state
        && !fits(outcome)
    {
        return Err(StoreError::new(ErrorKind::Full, ENCODING));
    }
    let mut bytes = std::mem::take(buffer);
    bytes.clear();
    bytes.push(VERSION);
    *buffer = postcard::to_extend(&v1::Record::new(record, fence), bytes)
        .map_err(|error| StoreError::with_source(ErrorKind::Corrupt, ENCODING, error))?;
    if buffer.len() > MAX_ENCODED_BYTES {
        return Err(StoreError::new(ErrorKind::Full, ENCODING));
    }
    Ok(())
}

/// The record in `bytes`. The body and header values are slices of `bytes`, not copies.
///
/// # Errors
/// [`ErrorKind::UnknownVersion`] or [`ErrorKind::Corrupt`].
pub fn decode(bytes: &Bytes) -> Result<Record, StoreError> {
    match bytes.first() {
        Some(1) => v1::decode(bytes),
        Some(_) => Err(StoreError::new(ErrorKind::UnknownVersion, DECODING)),
        None => Err(StoreError::new(ErrorKind::Corrupt, DECODING)),
    }
}

fn corrupt() -> StoreError {
    StoreError::new(ErrorKind::Corrupt, DECODING)
}

#[cfg(test)]
mod tests;
