//! What a completer need not look at again yet.
//!
//! A request that only waits for its caller stays due: its lease has ended, and the caller has to find it free. So each
//! completer remembers which those are and until when, and reads past them. It forgets nothing by that: what it remembers is
//! about one attempt, and whoever goes on with the request makes another.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use retrysafe_core::{
    address::Address,
    ids::{AttemptId, StatusId},
    record::Record,
    time::Wall,
};

/// How many are remembered. What is forgotten is only looked at once more.
const REMEMBERED_MAX: usize = 65_536;

#[derive(Default)]
pub(super) struct Waiting(Mutex<HashMap<StatusId, (AttemptId, Wall)>>);

impl Waiting {
    fn map(&self) -> MutexGuard<'_, HashMap<StatusId, (AttemptId, Wall)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This attempt at this operation need not be looked at before `until`.
    pub(super) fn note(&self, operation: StatusId, attempt: AttemptId, until: Wall) {
        let mut map = self.map();
        if map.len() >= REMEMBERED_MAX {
            map.clear();
        }
        map.insert(operation, (attempt, until));
    }

    /// Leaves in `due` what has to be looked at now.
    pub(super) fn keep_out(&self, due: &mut Vec<(Address, Record)>, now: Wall) {
        let mut map = self.map();
        map.retain(|_, (_, until)| now < *until);
        due.retain(|(_, record)| {
            map.get(&record.status_id).is_none_or(|(attempt, _)| *attempt != record.attempt)
        });
    }
}
