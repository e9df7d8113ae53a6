//! How often answers of requests of several steps were replayed, for their timelines.
//!
//! A replay must not cost a write, so a process counts in memory, and upkeep writes what it counted now and then, in one commit.
//! What was not written down yet ends with the process: what a timeline shows is *at least* so much. Only records that have a
//! journal are counted; everybody else's replays do not come by here.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use retrysafe_core::{
    ids::StatusId,
    record::{Record, RecoveryClass},
    time::Wall,
};
use retrysafe_store::{
    ErrorKind, StoreError,
    journal::{REPLAYS_AT_ONCE, Replays},
};
use tokio::time::Instant;

use crate::engine::Engine;

/// The most operations whose replays are counted between two writes. Replays of more are counted by a metric alone.
const OPERATIONS_MAX: usize = 4 * REPLAYS_AT_ONCE;
/// How often what was counted is written down.
const WRITE_EVERY: Duration = Duration::from_secs(10);

/// Whose journal tells of replays of `record`. `None`: it has none.
pub(crate) fn journal_of(record: &Record) -> Option<StatusId> {
    (record.recovery == RecoveryClass::Phased).then_some(record.status_id)
}

/// What this process counted since it last wrote it down.
#[derive(Default)]
pub(crate) struct ReplayTally {
    counted: Mutex<HashMap<StatusId, Replays>>,
    /// When it was written down by whoever of those that run beside each other came first.
    wrote_at: Mutex<Option<Instant>>,
}

impl ReplayTally {
    /// Counts one. `false`: there is no room for another operation.
    pub(crate) fn note(&self, operation: StatusId, now: Wall) -> bool {
        self.add(Replays { operation, times: 1, first: now, last: now })
    }

    fn add(&self, more: Replays) -> bool {
        let mut counted = self.lock();
        let room = counted.len() < OPERATIONS_MAX;
        match counted.get_mut(&more.operation) {
            Some(present) => {
                present.times = present.times.saturating_add(more.times);
                present.first = present.first.min(more.first);
                present.last = present.last.max(more.last);
            }
            None if room => {
                counted.insert(more.operation, more);
            }
            None => return false,
        }
        true
    }

    fn take(&self) -> Vec<Replays> {
        std::mem::take(&mut *self.lock()).into_values().collect()
    }

    /// Whether it is time to write it down, which then is the caller's to do.
    fn is_due(&self) -> bool {
        let mut wrote_at = self.wrote_at.lock().unwrap_or_else(PoisonError::into_inner);
        let due = wrote_at.is_none_or(|at| at.elapsed() >= WRITE_EVERY);
        if due {
            *wrote_at = Some(Instant::now());
        }
        due
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<StatusId, Replays>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// The answer of `operation` was replayed.
    pub(crate) fn replayed_of(&self, operation: StatusId) {
        let counted = self.store.now().is_ok_and(|now| self.replays.note(operation, now));
        if !counted {
            self.meters.replay_untold(1);
        }
    }

    /// Writes down what was counted, if it is time.
    pub(crate) async fn write_due_replays(&self) {
        if !self.replays.is_due() {
            return;
        }
        if let Err(error) = self.write_replays().await {
            tracing::warn!(%error, "replays were not written down, and are with the next pass");
        }
    }

    /// Writes down what was counted. What a store did not take is with the next write; what it may have taken is not written
    /// again, or a timeline would tell of more than there was.
    pub(crate) async fn write_replays(&self) -> Result<(), StoreError> {
        let counted = self.replays.take();
        let Some(journals) = self.store.journals() else { return Ok(()) };
        let mut ended = Ok(());
        for batch in counted.chunks(REPLAYS_AT_ONCE) {
            let Err(error) = journals.add_replays(batch).await else { continue };
            let again = error.kind() != ErrorKind::Unknown;
            let kept = |one: &Replays| again && self.replays.add(*one);
            let untold = batch.iter().filter(|one| !kept(one)).map(|one| one.times).sum();
            self.meters.replay_untold(untold);
            ended = ended.and(Err(error));
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Wall {
        Wall::from_unix_ms(1000 * second)
    }

    #[test]
    fn an_operation_is_one_row_however_often_it_is_replayed() {
        let tally = ReplayTally::default();
        for second in [5, 3, 9] {
            assert!(tally.note(StatusId::new(1), at(second)));
        }
        let one = Replays { operation: StatusId::new(1), times: 3, first: at(3), last: at(9) };
        assert_eq!(tally.take(), [one]);
        assert_eq!(tally.take(), [], "written once");
    }

    #[test]
    fn a_full_tally_goes_on_counting_what_it_has_and_refuses_the_rest() {
        let tally = ReplayTally::default();
        for id in 0..OPERATIONS_MAX {
            assert!(tally.note(StatusId::new(id as u128), at(1)));
        }
        assert!(!tally.note(StatusId::new(u128::MAX), at(2)));
        assert!(tally.note(StatusId::new(0), at(2)));
        let taken = tally.take();
        assert_eq!(
            (taken.len(), taken.iter().map(|one| one.times).sum()),
            (OPERATIONS_MAX, OPERATIONS_MAX as u64 + 1)
        );
        assert!(tally.note(StatusId::new(u128::MAX), at(3)), "there is room again");
    }

    #[test]
    fn of_two_that_run_beside_each_other_one_writes() {
        let tally = ReplayTally::default();
        assert!(tally.is_due());
        assert!(!tally.is_due());
    }

    /// A store that is closing took nothing: it is counted when there is one again.
    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn what_was_not_written_down_is_with_the_next_write() {
        use std::sync::Arc;

        use retrysafe_core::{address::Namespace, contract::Contract};
        use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};

        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(SqliteStore::open(SqliteOptions::new(folder.path().join("keys.db"))).unwrap());
        let (name, day) = (Namespace::new("mails").unwrap(), Duration::from_secs(86_400));
        let contract = Contract::of_events(&name, day, Duration::from_secs(9)).unwrap();
        let engine = Engine::new(Arc::new(contract), store.clone());
        assert!(engine.replays.note(StatusId::new(1), at(5)));
        store.close();
        assert_eq!(engine.write_replays().await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(engine.replays.note(StatusId::new(1), at(7)));
        let both = Replays { operation: StatusId::new(1), times: 2, first: at(5), last: at(7) };
        assert_eq!(engine.replays.take(), [both]);
    }
}
