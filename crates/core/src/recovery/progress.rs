//! How far a request came, by its journal.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use super::{Act, Attended, DownstreamKey, Entry, Event, Snapshot, StepName};
use crate::time::Wall;

/// A journal, folded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The line of the plan that began it.
    pub plan: Arc<str>,
    /// What it takes to run it.
    pub request: Snapshot,
    /// When its caller stops waiting.
    pub deadline: Wall,
    /// When it was taken on.
    pub opened_at: Wall,
    /// The position of the next entry.
    pub next_seq: u32,
    /// How often a completer went on since anything moved, a person's resuming included.
    pub tries: u32,
    /// The last failure.
    pub last_failure: Option<Box<str>>,
    /// A person said that it is to be gone on with, whoever is still waiting.
    pub resumed: bool,
    steps: BTreeMap<StepName, Known>,
}

/// What is known of one step.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Known {
    /// A phase is committed.
    Done(Bytes),
    /// A foreign call may have been made.
    Meant(Intent),
    /// A foreign call was made.
    Called(Bytes),
}

/// A foreign call that may have been made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Intent {
    /// The key it is sent with.
    pub key: DownstreamKey,
    /// The bytes it is sent with.
    pub request: Bytes,
    /// When it was first meant to be sent: the provider's window may have begun then.
    pub at: Wall,
    /// It was meant to be sent more than once. What is known of one sending says nothing of the others.
    pub resent: bool,
}

/// A journal that no writer of ours leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("entry {seq} of a journal does not fit those before it; somebody changed it, or entries are missing")]
pub struct Broken {
    /// Which entry.
    pub seq: u32,
}

impl Progress {
    /// Folds a journal, given whole and in its order.
    ///
    /// # Errors
    /// [`Broken`]: it does not begin with its opening, has gaps, or tells of steps twice. An empty one is broken too: a
    /// request whose opening was not written has no progress.
    pub fn of(entries: &[Entry]) -> Result<Self, Broken> {
        let Some((first, rest)) = entries.split_first() else { return Err(Broken { seq: 0 }) };
        let Event::Opened { plan, request, deadline } = &first.event else { return Err(Broken { seq: 0 }) };
        if first.seq != 0 {
            return Err(Broken { seq: first.seq });
        }
        let mut progress = Self {
            plan: Arc::clone(plan),
            request: request.clone(),
            deadline: *deadline,
            opened_at: first.at,
            next_seq: 1,
            tries: 0,
            last_failure: None,
            resumed: false,
            steps: BTreeMap::new(),
        };
        for entry in rest {
            let fits = entry.seq == progress.next_seq && progress.take(entry);
            if !fits {
                return Err(Broken { seq: entry.seq });
            }
            progress.next_seq += 1;
        }
        Ok(progress)
    }

    /// Whether `entry` fits what is there. Also how a holder keeps its own view up to date.
    fn take(&mut self, entry: &Entry) -> bool {
        match &entry.event {
            Event::Opened { .. } => return false,
            Event::Done { step, result } => {
                self.moved();
                return self.steps.insert(step.clone(), Known::Done(result.clone())).is_none();
            }
            Event::Intent { step, key, request } => {
                // Not a move: a provider that is down would be called for ever.
                let intent =
                    Intent { key: key.clone(), request: request.clone(), at: entry.at, resent: false };
                return self.steps.insert(step.clone(), Known::Meant(intent)).is_none();
            }
            Event::Resent { step } => match self.steps.get_mut(step) {
                Some(Known::Meant(intent)) => intent.resent = true,
                _ => return false,
            },
            // Void is only an intent of which no sending can be under way.
            Event::NotSent { step } => {
                return matches!(self.steps.remove(step), Some(Known::Meant(intent)) if !intent.resent);
            }
            Event::Result { step, result } => {
                self.moved();
                let meant = self.steps.insert(step.clone(), Known::Called(result.clone()));
                return matches!(meant, Some(Known::Meant(_)));
            }
            Event::Resumed { by: Attended::Completer } => self.tries += 1,
            Event::Failed { why } => self.last_failure = Some(why.clone()),
            Event::Operator { act: Act::Resume, .. } => {
                self.tries = 0;
                self.resumed = true;
            }
            Event::Resumed { by: Attended::Retry }
            | Event::Stopped(_)
            | Event::Ended { .. }
            | Event::Operator { .. } => {}
        }
        true
    }

    /// Adds an entry of our own, which was just written.
    ///
    /// # Errors
    /// [`Broken`], and then nothing was added.
    pub fn add(&mut self, entry: &Entry) -> Result<(), Broken> {
        let mut next = self.clone();
        if entry.seq != self.next_seq || !next.take(entry) {
            return Err(Broken { seq: entry.seq });
        }
        next.next_seq += 1;
        *self = next;
        Ok(())
    }

    fn moved(&mut self) {
        self.tries = 0;
        self.last_failure = None;
    }

    /// Whether its caller was told meanwhile that it failed, so that nothing foreign may be begun for it by itself (protocol 24).
    /// A person who resumes it knows that, and means it.
    pub fn is_late(&self, now: Wall) -> bool {
        self.deadline <= now && !self.resumed
    }

    /// Something was committed beyond the opening.
    pub fn has_started(&self) -> bool {
        !self.steps.is_empty()
    }

    /// A foreign mutation was begun: an intent was written that is not known to have stayed here.
    pub fn is_past_foreign(&self) -> bool {
        self.steps.values().any(|known| matches!(known, Known::Meant(_) | Known::Called(_)))
    }

    /// The recorded result of `step`.
    pub fn result(&self, step: &StepName) -> Option<&Bytes> {
        match self.steps.get(step) {
            Some(Known::Done(result) | Known::Called(result)) => Some(result),
            Some(Known::Meant(_)) | None => None,
        }
    }

    /// The call of `step` that may have been made, and whose result nobody wrote down.
    pub fn intent(&self, step: &StepName) -> Option<&Intent> {
        match self.steps.get(step) {
            Some(Known::Meant(intent)) => Some(intent),
            Some(Known::Done(_) | Known::Called(_)) | None => None,
        }
    }

    /// Every step of which anything is known.
    pub fn steps(&self) -> impl Iterator<Item = &StepName> {
        self.steps.keys()
    }
}
