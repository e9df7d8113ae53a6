//! What a failure of a statement means for the caller, as far as it is the same for every database.

use super::{Failure, FailureKind, ServerCode};
use crate::{ErrorKind, StoreError};

/// Whether a call would have changed something: only then is a lost answer an unknown result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    Read,
    Write,
}

/// The store's word for a failure while `doing`. What a database refused is for `refused` to judge.
pub(crate) fn failed(
    failure: Failure,
    doing: &'static str,
    does: Does,
    refused: impl FnOnce(ServerCode) -> ErrorKind,
) -> StoreError {
    let kind = match (failure.kind, does) {
        (FailureKind::Unreachable, _) => ErrorKind::Unavailable,
        (FailureKind::Refused(code), _) => refused(code),
        (FailureKind::Lost(_) | FailureKind::Malformed, Does::Write) => ErrorKind::Unknown,
        (FailureKind::Lost(_), Does::Read) => ErrorKind::Unavailable,
        (FailureKind::Malformed, Does::Read) => ErrorKind::Corrupt,
    };
    StoreError::with_source(kind, doing, failure)
}
