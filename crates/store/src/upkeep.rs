//! One pass of upkeep over any store: what is abandoned and outside becomes uncertain, what is past its threshold is reaped.
//!
//! What may be done to a record is decided by [`upkeep`](retrysafe_core::decide::upkeep); nothing that is in flight or
//! uncertain is ever reaped (T4). Batches are small on purpose: a reaper that deletes millions in one statement is a lock
//! storm (T5).

use retrysafe_core::{
    address::Address,
    decide::{Upkeep, upkeep},
    record::{Record, RemoveIf},
    time::Wall,
};

use crate::{Due, Store, StoreError, Written};

/// How many records are looked at to find some that may be changed.
const LOOK_MAX: usize = 32_768;
/// How much further each look goes than the one before.
const LOOK_FURTHER: usize = 8;

/// What a pass changed.
#[derive(Debug, Default)]
pub struct Passed {
    /// Records that were deleted past their reap threshold.
    pub reaped: usize,
    /// Abandoned requests that were marked uncertain, as they were before.
    pub marked: Vec<(Address, Record)>,
}

impl Passed {
    /// How many records were changed.
    pub fn changed(&self) -> usize {
        self.reaped + self.marked.len()
    }
}

/// Marks and reaps, at most `batch` of each, and adds what was changed to `passed`: where a call fails in the middle, what was
/// changed before stays changed, and somebody may be waiting to be told.
///
/// # Errors
/// As the store's calls.
pub async fn pass(store: &dyn Store, batch: usize, passed: &mut Passed) -> Result<(), StoreError> {
    let now = store.now()?;
    let abandoned = changeable(store, Due::LeaseEnded, now, batch).await?;
    change_all(store, abandoned, now, &mut passed.marked).await?;
    // What is completed and due is reaped, whatever else it says: there is nothing to look at first.
    if let Some(reaped) = store.reap_batch(now, batch).await? {
        passed.reaped += reaped;
        return Ok(());
    }
    let (old, mut gone) = (changeable(store, Due::Reapable, now, batch).await?, Vec::new());
    let ended = change_all(store, old, now, &mut gone).await;
    passed.reaped += gone.len();
    ended
}

/// Changes all at once: a store with group commit puts them into one transaction. Each is seen to its end, whatever
/// becomes of the others; the first failure is told.
async fn change_all(
    store: &dyn Store,
    records: Vec<(Address, Record)>,
    now: Wall,
    changed: &mut Vec<(Address, Record)>,
) -> Result<(), StoreError> {
    let changes = records.iter().map(|(address, record)| change(store, address, record, now));
    let results = futures_util::future::join_all(changes).await;
    let mut ended = Ok(());
    for (one, result) in records.into_iter().zip(results) {
        match result {
            Ok(true) => changed.push(one),
            Ok(false) => {}
            Err(error) => ended = ended.and(Err(error)),
        }
    }
    ended
}

/// Up to `batch` records that are due and that upkeep may change. What only its own retry may touch stays due for as
/// long as nobody retries, and must not keep what stands behind it out of sight.
async fn changeable(
    store: &dyn Store,
    due: Due,
    now: Wall,
    batch: usize,
) -> Result<Vec<(Address, Record)>, StoreError> {
    let mut look = batch;
    loop {
        let mut records = store.due(due, now, look).await?;
        let all = records.len() < look;
        records.retain(|(_, record)| upkeep(record, now) != Upkeep::Leave);
        if !records.is_empty() || all || look >= LOOK_MAX {
            records.truncate(batch);
            return Ok(records);
        }
        look = look.saturating_mul(LOOK_FURTHER).min(LOOK_MAX);
    }
}

async fn change(
    store: &dyn Store,
    address: &Address,
    record: &Record,
    now: Wall,
) -> Result<bool, StoreError> {
    match upkeep(record, now) {
        Upkeep::Leave => Ok(false),
        Upkeep::Mark(write) => Ok(matches!(store.write_if(address, &write).await?, Written::Yes(_))),
        Upkeep::Reap(attempt) => store.remove_if(address, RemoveIf::Reapable { attempt, by: now }).await,
    }
}
