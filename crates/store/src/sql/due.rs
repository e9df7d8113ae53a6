//! Looking for what is due, past what cannot be read.

use std::future::Future;

use metrics::counter;
use retrysafe_core::{address::Address, record::Record};

use crate::{ErrorKind, StoreError};

/// How many rows are looked at to find one that can be read.
const LOOK_MAX: usize = 32_768;

/// A page of rows, each read as far as it can be.
pub(crate) struct Page {
    /// How many there were.
    pub(crate) rows: usize,
    pub(crate) found: Vec<Result<(Address, Record), StoreError>>,
}

/// Up to `limit` records of pages that `read` reads from the first on. Passes over what cannot be read: one damaged record
/// must not keep all others from being looked after. It stays where it is, and whoever asks for its key is told that nobody
/// knows.
pub(crate) async fn readable<F, R>(limit: usize, read: F) -> Result<Vec<(Address, Record)>, StoreError>
where
    F: Fn(usize) -> R,
    R: Future<Output = Result<Page, StoreError>>,
{
    let mut look = limit.max(1);
    loop {
        let page = read(look).await?;
        let (last, mut passed_over) = (page.rows < look, 0_u64);
        let mut readable = Vec::with_capacity(page.found.len());
        for found in page.found {
            match found {
                Ok(found) => readable.push(found),
                Err(error) if is_unreadable(&error) => passed_over += 1,
                Err(error) => return Err(error),
            }
        }
        if last || !readable.is_empty() || look >= LOOK_MAX {
            if passed_over > 0 {
                tracing::error!(records = passed_over, "due records cannot be read and are passed over");
                counter!("retrysafe_store_unreadable_total").increment(passed_over);
            }
            readable.truncate(limit);
            return Ok(readable);
        }
        look = look.saturating_mul(8).min(LOOK_MAX);
    }
}

/// Whether it is the record, and not the way to it.
fn is_unreadable(error: &StoreError) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::UnknownVersion)
}
