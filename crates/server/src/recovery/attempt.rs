//! One attempt at a request: its claim, its view of the journal, and the guarded commits that both go into.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use retrysafe_core::{
    address::Address,
    claim::Claim,
    ids::StatusId,
    record::{Record, State, Uncertainty, Write},
    recovery::{Attended, Entry, Event, Progress, Snapshot, Stopped},
    time::Wall,
};
use retrysafe_store::{
    ErrorKind, StoreError, Written,
    journal::{Journal, NewEffect, Notes},
};
use tokio::time::Instant;

use super::{Halt, Observe, Plan, Point};

/// How often a commit of entries is offered while the store is busy or down: about seven seconds, in which the lease is
/// kept. What is to be written down may be the result of a charge.
const OFFERS_MAX: u32 = 12;
const OFFER_PAUSE: Duration = Duration::from_millis(20);
const OFFER_PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// A lease is renewed this many times in its length, so that one lost renewal does not end it.
const RENEWALS_PER_LEASE: u32 = 3;

/// What all parts of one attempt share.
pub(super) struct Attempt<D> {
    pub(super) database: Arc<D>,
    pub(super) claim: Claim,
    pub(super) operation: StatusId,
    pub(super) plan: Plan<D>,
    pub(super) lease: Duration,
    pub(super) observe: Observe,
    pub(super) home: Arc<dyn super::http::Home>,
    pub(super) by: Attended,
    progress: Mutex<Progress>,
    /// It was taken over, for all that is known: nothing foreign is begun any more.
    lost: AtomicBool,
}

/// What an attempt is made of, before its journal is read.
pub(crate) struct Opening<D> {
    pub(super) database: Arc<D>,
    pub(super) claim: Claim,
    pub(super) record: Record,
    pub(super) plan: Plan<D>,
    pub(super) lease: Duration,
    pub(super) observe: Observe,
    pub(super) home: Arc<dyn super::http::Home>,
    pub(super) by: Attended,
    /// What it takes to run it, where it is new. `None`: it is only gone on with.
    pub(super) request: Option<(Snapshot, Duration)>,
}

impl<D: Journal> Opening<D> {
    /// Reads the journal, and writes down who goes on: the first entry of a new one, or one more.
    pub(super) async fn open(self) -> Result<Attempt<D>, Halt> {
        let Self { database, claim, record, plan, lease, observe, home, by, request } = self;
        observe.at(Point::Claimed);
        let operation = record.status_id;
        let entries = database.journal(operation).await.map_err(Halt::store)?;
        let now = database.now().map_err(Halt::store)?;
        let event = match (entries.is_empty(), request) {
            (true, Some((request, patience))) => {
                Event::Opened { plan: plan.shape.text(), request, deadline: now.plus(patience) }
            }
            (true, None) => return Err(Halt::Lost("there is no journal to go on by".into())),
            (false, _) => Event::Resumed { by },
        };
        let first = Entry {
            seq: u32::try_from(entries.len()).unwrap_or(u32::MAX),
            attempt: claim.attempt(),
            at: now,
            event,
        };
        let mut all = entries;
        all.push(first.clone());
        let progress = Progress::of(&all).map_err(|broken| Halt::astray(broken.to_string()))?;
        let notes = Notes::entries(operation, vec![first.clone()]);
        let write = claim.renewal(now, lease);
        let committer = Committer { database: &*database, address: claim.address(), operation };
        committer.commit(&write, &notes).await?;
        observe.at(Point::Opened);
        Ok(Attempt {
            database,
            claim,
            operation,
            plan,
            lease,
            observe,
            home,
            by,
            progress: Mutex::new(progress),
            lost: AtomicBool::new(false),
        })
    }
}

impl<D: Journal> Attempt<D> {
    pub(super) fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn address(&self) -> &Address {
        self.claim.address()
    }

    pub(super) fn now(&self) -> Result<Wall, Halt> {
        self.database.now().map_err(Halt::store)
    }

    /// Nothing foreign is begun by a holder that knows that it was taken over.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// The entries that follow what is written, at `now`.
    pub(super) fn entries(&self, events: Vec<Event>, now: Wall) -> Vec<Entry> {
        let next = self.progress().next_seq;
        let entry = |(seq, event)| Entry { seq, attempt: self.claim.attempt(), at: now, event };
        (next..).zip(events).map(entry).collect()
    }

    /// They are committed.
    pub(super) fn add(&self, entries: &[Entry]) -> Result<(), Halt> {
        let mut progress = self.progress();
        for entry in entries {
            progress.add(entry).map_err(|broken| Halt::astray(broken.to_string()))?;
        }
        Ok(())
    }

    /// Commits events, and keeps the claim.
    pub(super) async fn note(&self, events: Vec<Event>) -> Result<(), Halt> {
        let now = self.now()?;
        self.note_with(self.claim.renewal(now, self.lease), events, now).await
    }

    /// Commits events with a write of the record.
    pub(super) async fn note_with(&self, write: Write, events: Vec<Event>, now: Wall) -> Result<(), Halt> {
        let entries = self.entries(events, now);
        let notes = self.notes(entries, Vec::new());
        self.committer().commit(&write, &notes).await?;
        self.add(&notes.entries)
    }

    pub(super) fn notes(&self, entries: Vec<Entry>, staged: Vec<NewEffect>) -> Notes {
        Notes { staged, ..Notes::entries(self.operation, entries) }
    }

    pub(super) fn committer(&self) -> Committer<'_, D> {
        Committer { database: &self.database, address: self.address(), operation: self.operation }
    }

    /// Ends the attempt, so that another goes on after `pause`.
    pub(super) async fn park(&self, why: &str, pause: Duration) -> Result<(), Halt> {
        let now = self.now()?;
        let write = self.claim.renewal(now, pause);
        self.note_with(write, vec![Event::Failed { why: why.into() }], now).await
    }

    /// Ends the attempt, and shows the request to a person.
    pub(super) async fn stop(&self, why: Stopped) -> Result<(), Halt> {
        let now = self.now()?;
        let write = self.claim.in_transaction().hold(Uncertainty::Stopped, now);
        self.note_with(write, vec![Event::Stopped(why)], now).await
    }

    /// Drives `work` while keeping the lease, for at most `longest`: what hangs must not hold its key for ever.
    pub(super) async fn keep<T>(&self, longest: Duration, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        let started = Instant::now();
        loop {
            tokio::select! {
                biased;
                result = &mut work => return result,
                () = tokio::time::sleep(self.lease / RENEWALS_PER_LEASE) => {}
            }
            if started.elapsed() >= longest {
                return work.await;
            }
            let renew = async {
                let write = self.claim.renewal(self.database.now()?, self.lease);
                self.database.write_if(self.address(), &write).await
            };
            tokio::select! {
                biased;
                result = &mut work => return result,
                renewed = renew => match renewed {
                    Ok(Written::Yes(_)) => {}
                    Ok(Written::No(present)) => {
                        // Its own end may be on its way; anything else is a takeover.
                        let own = |record: &Record| {
                            record.attempt == self.claim.attempt() && matches!(record.state, State::Completed { .. })
                        };
                        self.lost.store(!present.as_ref().is_some_and(own), Ordering::Relaxed);
                        return work.await;
                    }
                    Err(error) => tracing::warn!(%error, "a lease was not renewed"),
                },
            }
        }
    }
}

/// Commits entries beside the record, or finds out that somebody else may.
pub(super) struct Committer<'a, D> {
    pub(super) database: &'a D,
    pub(super) address: &'a Address,
    pub(super) operation: StatusId,
}

impl<D: Journal> Committer<'_, D> {
    /// Offers it until its result is known. `Ok`: committed.
    pub(super) async fn commit(&self, write: &Write, notes: &Notes) -> Result<(), Halt> {
        let mut pause = OFFER_PAUSE;
        let mut offer = 1;
        loop {
            let error = match self.database.note_if(self.address, write, notes).await {
                Ok(Written::Yes(_)) => return Ok(()),
                // It may be our own, of an offer whose answer was lost.
                Ok(Written::No(_)) => {
                    return if self.holds(notes).await? { Ok(()) } else { Err(Halt::Stale) };
                }
                Err(error) => error,
            };
            if self.holds(notes).await.unwrap_or(false) {
                return Ok(());
            }
            // A later offer of the same entries fails on their place if an earlier one is still to be applied.
            if !error.kind().may_retry() || offer == OFFERS_MAX {
                return Err(Halt::store(error));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(OFFER_PAUSE_LONGEST);
            offer += 1;
        }
    }

    /// Whether the journal has these entries, by this attempt: the last word on a commit whose answer was lost.
    pub(super) async fn holds(&self, notes: &Notes) -> Result<bool, Halt> {
        let Some(last) = notes.entries.last() else { return Ok(false) };
        let journal = self.database.journal(self.operation).await.map_err(Halt::store)?;
        Ok(journal
            .iter()
            .any(|entry| entry.seq == last.seq && entry.attempt == last.attempt && entry.event == last.event))
    }
}

impl Halt {
    /// The store did not do it, and nobody knows whether it was done.
    pub(super) fn store(error: StoreError) -> Self {
        match error.kind() {
            // Written down by a build that knows more, or damaged: going round again does not mend it.
            ErrorKind::Corrupt | ErrorKind::UnknownVersion | ErrorKind::Full => {
                Halt::Lost(error.to_string().into())
            }
            _ => Halt::Lost(error.to_string().into()),
        }
    }
}
