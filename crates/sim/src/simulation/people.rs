//! People, who come when it is quiet: they ask the provider, and resolve, resume or release.

use retrysafe_core::{
    claim::Times,
    ids::AttemptId,
    operate,
    outcome::{Body, Outcome},
    record::{Record, RecoveryClass, State, Write},
    recovery::{Act, Entry, Event, Stopped},
};

use super::{
    KEYS, REAP, WINDOW,
    act::receipt_bytes,
    plan::CHARGE,
    store::{Commit, Row, Said},
    world::{Happens, World},
};

const EVERY_MS: u64 = 1_500;

impl World {
    /// One look at everything. Nothing is on its way to the provider any more, so its word is the last.
    pub(super) fn person_looks(&mut self) {
        self.at(EVERY_MS, Happens::PersonLooks);
        for key in 0..KEYS {
            let Some(record) = self.store.record(key).cloned() else { continue };
            if matches!(record.state, State::Uncertain { .. }) {
                self.person_decides(key, &record);
            }
        }
    }

    fn person_decides(&mut self, key: usize, record: &Record) {
        let now = self.clock(0);
        let charged =
            self.charged.get(&(record.status_id, CHARGE)).and_then(|charges| charges.first()).copied();
        let journal = self.store.journal(record.status_id);
        let worn_out = journal.iter().rev().find_map(|entry| match &entry.event {
            Event::Stopped(why) => Some(matches!(why, Stopped::GaveUp { .. } | Stopped::Abandoned)),
            _ => None,
        });
        let seq = u32::try_from(journal.len()).unwrap_or(u32::MAX);
        let attempt = AttemptId::new(self.chance.id());
        let decided = match (charged, worn_out == Some(true) && record.recovery == RecoveryClass::Phased) {
            // Whatever was in the way is gone.
            (_, true) => operate::resume(record, attempt, now).map(|write| (Act::Resume, write, None)),
            (Some((_, receipt)), false) => {
                let body = Body::Kept(receipt_bytes(receipt));
                let outcome = Outcome { status: 201, headers: Vec::new(), body, trailers: Vec::new() };
                let times = Times { replay: WINDOW, reap: REAP };
                operate::resolve(record, outcome, times, now).map(|write| (Act::Resolve, write, None))
            }
            (None, false) => operate::release(record, attempt, now)
                .map(|(write, removal)| (Act::Release, write, Some(removal))),
        };
        let Ok((act, write, removal)) = decided else { return };
        let event = Event::Operator { who: "ann".into(), act, why: "asked the provider".into() };
        let entry = Entry { seq, attempt: write.next.attempt, at: now, event };
        let entries = if seq > 0 { vec![entry] } else { Vec::new() };
        if !self.person_writes(key, write, entries) {
            return;
        }
        self.tell(format_args!("a person says {} of key {key}", act.name()));
        match (act, removal) {
            (Act::Release, Some(removal)) => {
                self.counts.released += 1;
                // Its local work is undone by hand.
                if let Some(epoch) = self.epoch(key) {
                    (epoch.creates, epoch.enters) = (0, 0);
                }
                if let Some(record) = self.store.remove(key, removal) {
                    self.removed(key, removal, &record);
                }
            }
            (Act::Resume, _) => self.counts.resumed += 1,
            _ => self.counts.resolved += 1,
        }
    }

    fn person_writes(&mut self, key: usize, write: Write, entries: Vec<Entry>) -> bool {
        let commit = Commit { write, entries, row: Row::None, seen: None };
        let (said, fresh) = self.store.commit(key, &commit);
        if fresh {
            self.applied(key, &commit);
        }
        matches!(said, Said::Yes(_))
    }
}
