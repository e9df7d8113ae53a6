//! The store: records, journals and local rows, changed whole or not at all.

use std::collections::BTreeMap;

use retrysafe_core::{
    ids::{Fence, StatusId},
    record::{Expect, Record, RemoveIf, State, Write},
    recovery::Entry,
    time::Wall,
};

use super::LEASE;
use crate::model::Mutant;

/// A local row that a commit writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Row {
    None,
    /// The ride.
    Create,
    /// What stands between the two calls of the longer plan.
    Enter,
    /// Its confirmation, with the answer.
    Finish,
}

/// Something that is asked of the store.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Load,
    /// The journal of an operation.
    Journal(StatusId),
    Commit(Box<Commit>),
    Remove(RemoveIf),
}

/// A guarded write with everything that rides in it.
#[derive(Clone, Debug)]
pub(super) struct Commit {
    pub(super) write: Write,
    pub(super) entries: Vec<Entry>,
    pub(super) row: Row,
    /// What was read before it, which a mutant guards by.
    pub(super) seen: Option<Record>,
}

/// What it says.
#[derive(Clone, Debug)]
pub(super) enum Said {
    Record(Option<Record>),
    Journal(Vec<Entry>),
    Yes(Fence),
    No(Option<Record>),
    /// The place of an entry is taken: somebody else goes on with it.
    Taken,
    Removed,
}

/// What one key holds.
#[derive(Default)]
pub(super) struct Shelf {
    pub(super) record: Option<Record>,
}

pub(super) struct Store {
    pub(super) shelves: Vec<Shelf>,
    pub(super) journals: BTreeMap<StatusId, Vec<Entry>>,
    fence: u64,
    mutant: Option<Mutant>,
}

impl Store {
    pub(super) fn new(keys: usize, mutant: Option<Mutant>) -> Self {
        let shelves = (0..keys).map(|_| Shelf::default()).collect();
        Self { shelves, journals: BTreeMap::new(), fence: 0, mutant }
    }

    pub(super) fn record(&self, key: usize) -> Option<&Record> {
        self.shelves.get(key).and_then(|shelf| shelf.record.as_ref())
    }

    pub(super) fn journal(&self, operation: StatusId) -> &[Entry] {
        self.journals.get(&operation).map_or(&[], Vec::as_slice)
    }

    /// Whether a write applies: the one definition, or what a mutant has for it.
    fn allows(&self, expect: Expect, present: Option<&Record>, seen: Option<&Record>) -> bool {
        match (self.mutant, expect) {
            (Some(Mutant::FenceAlone), Expect::Takeover { .. }) => {
                present.is_some() && present.map(|present| present.fence) == seen.map(|seen| seen.fence)
            }
            (Some(Mutant::AgeOnly), Expect::Takeover { expired_by, .. }) => {
                present.is_some_and(|present| present.opened_at.plus(LEASE) <= expired_by)
            }
            _ => expect.allows(present),
        }
    }

    /// Applies a commit, or says why not; and whether it was applied now, and not before.
    pub(super) fn commit(&mut self, key: usize, commit: &Commit) -> (Said, bool) {
        let present = self.record(key).cloned();
        let Commit { write, entries, seen, .. } = commit;
        // One's own, sent again because its answer was lost.
        if let Some(own) = present.as_ref().filter(|present| self.is_own(write, entries, present)) {
            return (Said::Yes(own.fence), false);
        }
        if !self.allows(write.expect, present.as_ref(), seen.as_ref()) {
            return (Said::No(present), false);
        }
        let journal = self.journal(write.next.status_id).len();
        if entries.first().is_some_and(|first| first.seq as usize != journal) {
            return (Said::Taken, false);
        }
        let fence = match present {
            Some(present) if !write.opens_claim() => present.fence,
            _ => {
                self.fence += 1;
                Fence::from_u64(self.fence)
            }
        };
        if let Some(shelf) = self.shelves.get_mut(key) {
            shelf.record = Some(Record { fence, ..write.next.clone() });
        }
        if !entries.is_empty() {
            self.journals.entry(write.next.status_id).or_default().extend(entries.iter().cloned());
        }
        (Said::Yes(fence), true)
    }

    /// Whether this very commit was applied before: its last entry is there, or, without entries, its record. What keeps a
    /// claim and nothing else may be applied twice.
    fn is_own(&self, write: &Write, entries: &[Entry], present: &Record) -> bool {
        match entries.last() {
            Some(last) => self.journal(write.next.status_id).get(last.seq as usize) == Some(last),
            None => present.attempt == write.next.attempt && present.state == write.next.state,
        }
    }

    /// `Some` of what it removed.
    pub(super) fn remove(&mut self, key: usize, guard: RemoveIf) -> Option<Record> {
        let shelf = self.shelves.get_mut(key)?;
        let allowed = shelf.record.as_ref().is_some_and(|record| guard.allows(record));
        if allowed { shelf.record.take() } else { None }
    }

    /// Whether `record` is due to somebody whose clock says `now`.
    pub(super) fn is_due(record: &Record, now: Wall) -> bool {
        match &record.state {
            State::InFlight { lease_until } => *lease_until <= now,
            State::Uncertain { .. } => false,
            State::Completed { reap_at, .. } => *reap_at <= now,
        }
    }
}
