//! What the effect ledgers of databases have in common (SPEC 10.3).
//!
//! A row is written by the handler's own transaction, at the database's clock, and is guarded by nothing: a ledger that a
//! claim keeps free of duplicates would say nothing about the claim.

use std::time::Duration;

use retrysafe_core::{address::Address, ids::AttemptId, time::Wall};

use super::{Value, row::address_values};
use crate::{ErrorKind, StoreError};

pub(crate) const WRITING: &str = "writing to the effect ledger";
pub(crate) const COUNTING: &str = "counting effects";
pub(crate) const FORGETTING: &str = "forgetting old effects";

/// The longest name of a step, in bytes. MariaDB would cut a longer one where a handler's session is not strict, and two
/// steps would be one.
const STEP_MAX_BYTES: usize = 255;

/// Namespace, account, key, step, attempt.
pub(crate) fn row(address: &Address, attempt: AttemptId, step: &str) -> Result<Vec<Value>, StoreError> {
    if step.len() > STEP_MAX_BYTES {
        let what =
            format!("a step is named by up to {STEP_MAX_BYTES} bytes, and this one has {}", step.len());
        return Err(StoreError::with_source(ErrorKind::Full, WRITING, what));
    }
    let mut values = Vec::from(address_values(address));
    values.push(Value::bytes(step.as_bytes()));
    values.push(Value::bytes(&attempt.as_u128().to_be_bytes()));
    Ok(values)
}

/// From, to, within.
pub(crate) fn span(from: Wall, to: Wall, within: Duration) -> Vec<Value> {
    let within = i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
    vec![from.unix_ms().into(), to.unix_ms().into(), within.into()]
}

/// Before, at most.
pub(crate) fn oldest(before: Wall, limit: usize) -> Vec<Value> {
    vec![before.unix_ms().into(), i64::try_from(limit).unwrap_or(i64::MAX).into()]
}
