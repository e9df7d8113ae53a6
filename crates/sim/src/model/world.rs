//! Everything that the model knows, small enough to have millions of.
//!
//! A world holds numbers where the service holds records and journals; [`World::record`] and [`World::progress`] make the
//! real ones, and it is those that the real decisions are asked about.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use retrysafe_core::{
    ids::{AttemptId, Fence, StatusId},
    outcome::{Body, Outcome},
    record::{Record, RecoveryClass, State, Uncertainty},
    recovery::{
        Attended, DownstreamKey, Entry, Event, External, Progress, Shape, Snapshot, StepName, Stopped, Terms,
    },
    time::Wall,
};

use crate::request::{ENDPOINT, FINGERPRINT};

/// Clients that send the one request.
pub(super) const CLIENTS: usize = 3;
/// Completers, which also reap.
pub(super) const WORKERS: usize = 2;
pub(super) const ACTORS: usize = CLIENTS + WORKERS;
/// The last instant. All times are in ticks.
pub(super) const TIME_MAX: u8 = 9;
pub(super) const LEASE: u8 = 2;
/// How long a caller waits.
pub(super) const DEADLINE: u8 = 3;
pub(super) const WINDOW: u8 = 3;
pub(super) const REAP: u8 = 4;
/// How long the provider de-duplicates, where it does, and the margin before that.
pub(super) const PROVIDER_WINDOW: u8 = 4;
/// Also how long a call can be on its way.
pub(super) const PROVIDER_MARGIN: u8 = 1;
const JOURNAL_MAX: usize = 12;
const CALLS_MAX: usize = 3;

/// What is kept of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Rec {
    pub(super) attempt: u8,
    pub(super) fence: u8,
    /// Which operation: the model's status id.
    pub(super) operation: u8,
    pub(super) class: Class,
    pub(super) opened_at: u8,
    pub(super) state: St,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Class {
    Phased,
    Outside,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum St {
    InFlight { until: u8 },
    Uncertain,
    Completed { at: u8, expires_at: u8, reap_at: u8, receipt: u8 },
}

/// What is kept of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Ev {
    Opened { deadline: u8 },
    Retried,
    Completer,
    Done(u8),
    Intent,
    Resent,
    NotSent,
    Result { receipt: u8 },
    Failed,
    Stopped,
}

/// A journal, in place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Journal {
    len: u8,
    at: [u8; JOURNAL_MAX],
    events: [Ev; JOURNAL_MAX],
}

/// A call on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Call {
    pub(super) by: u8,
    pub(super) operation: u8,
    pub(super) sent_at: u8,
    pub(super) answer: Answer,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Answer {
    /// Not there yet.
    Coming,
    /// It is done, and the answer is on its way back.
    Receipt(u8),
}

/// What the provider did for one operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Charge {
    pub(super) operation: u8,
    pub(super) first_at: u8,
    pub(super) receipt: u8,
}

/// What the request stands for since the key was last free: what the promise is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Epoch {
    pub(super) charges: u8,
    pub(super) creates: u8,
    pub(super) finishes: u8,
    /// Operations from this one on belong to it.
    pub(super) first_operation: u8,
    /// When it was completed first.
    pub(super) done_at: Option<u8>,
    /// The receipt that a caller was shown.
    pub(super) shown: Option<u8>,
    /// A completer began the first foreign call of a request whose caller was gone.
    pub(super) late_charge: bool,
    /// A record that was in flight or uncertain was reaped.
    pub(super) reaped_alive: bool,
    /// A caller was shown a receipt of which nobody had charged.
    pub(super) invented: bool,
}

/// Somebody who acts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Actor {
    /// Has nothing in hand. A client may send this many times more.
    Idle { sends: u8 },
    /// Has read the record, and decides by what it read.
    Read { sends: u8, seen: Option<Rec> },
    /// Has decided, and its write is on its way.
    Writes { sends: u8, seen: Option<Rec>, by: u8, then: Then },
    /// Holds a claim.
    Holds { sends: u8, attempt: u8, operation: u8, class: Class, at: Pc },
}

/// What a write is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Then {
    /// To claim, new or over an expired record or an ended lease.
    Claim,
    /// To take over and free the key.
    Close,
    /// To mark it uncertain.
    Mark,
    /// To delete it.
    Reap,
}

/// How far the holder is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Pc {
    /// Has the claim, and has not looked at the journal.
    Open,
    /// Goes through the steps.
    Steps,
    /// The intent is written, the call is not made.
    Send,
    /// Waits for the answer.
    Await,
    /// Has the answer, which is not written.
    Answered(u8),
    /// Frees the key.
    Free,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct World {
    pub(super) now: u8,
    pub(super) record: Option<Rec>,
    pub(super) journal: Journal,
    pub(super) actors: [Actor; ACTORS],
    pub(super) calls: [Option<Call>; CALLS_MAX],
    pub(super) charges: [Option<Charge>; CALLS_MAX],
    pub(super) epoch: Epoch,
    pub(super) attempts: u8,
    pub(super) fences: u8,
    pub(super) operations: u8,
    pub(super) receipts: u8,
    /// Crashes, lost answers and failed connections that may still happen.
    pub(super) faults: u8,
    /// The deployed contract runs the request in steps.
    pub(super) deployed: bool,
}

/// What the step `charge` declares, and what is asked of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Provider {
    /// Can be asked.
    Asked,
    /// De-duplicates by the downstream key.
    Deduplicates,
    /// Neither.
    Plain,
}

impl Provider {
    pub(super) fn external(self) -> External {
        match self {
            Provider::Asked => External::ASK,
            Provider::Deduplicates => External::resend(ticks(PROVIDER_WINDOW), ticks(PROVIDER_MARGIN)),
            Provider::Plain => External::NEVER_AGAIN,
        }
    }
}

pub(super) fn ticks(ticks: u8) -> Duration {
    Duration::from_secs(u64::from(ticks))
}

pub(super) fn wall(tick: u8) -> Wall {
    Wall::from_unix_ms(i64::from(tick) * 1000)
}

pub(super) fn tick(at: Wall) -> u8 {
    u8::try_from(at.unix_ms() / 1000).unwrap_or(u8::MAX)
}

pub(super) fn terms() -> Terms {
    Terms {
        tries_max: 2,
        pause_first: ticks(1),
        pause_longest: ticks(1),
        patience: ticks(DEADLINE),
        keep: ticks(6),
    }
}

/// The names of the steps, by their place.
pub(super) const STEPS: [&str; 3] = ["create", "charge", "finish"];
pub(super) const CREATE: u8 = 0;
pub(super) const CHARGE: u8 = 1;
pub(super) const FINISH: u8 = 2;

impl Journal {
    pub(super) const EMPTY: Journal =
        Journal { len: 0, at: [0; JOURNAL_MAX], events: [Ev::Failed; JOURNAL_MAX] };

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn is_full(&self) -> bool {
        usize::from(self.len) == JOURNAL_MAX
    }

    pub(super) fn push(&mut self, at: u8, event: Ev) {
        if let (Some(place), Some(time)) =
            (self.events.get_mut(usize::from(self.len)), self.at.get_mut(usize::from(self.len)))
        {
            (*place, *time) = (event, at);
            self.len += 1;
        }
    }

    pub(super) fn events(&self) -> impl Iterator<Item = (u8, Ev)> + '_ {
        self.at.iter().copied().zip(self.events.iter().copied()).take(usize::from(self.len))
    }
}

impl Rec {
    /// The record that the real decisions are asked about.
    pub(super) fn real(&self) -> Record {
        let state = match self.state {
            St::InFlight { until } => State::InFlight { lease_until: wall(until) },
            St::Uncertain => State::Uncertain { since: wall(0), why: Uncertainty::Stopped },
            St::Completed { at, expires_at, reap_at, receipt } => State::Completed {
                outcome: Arc::new(Outcome {
                    status: 200,
                    headers: Vec::new(),
                    body: Body::Kept(Bytes::copy_from_slice(&[receipt])),
                    trailers: Vec::new(),
                }),
                at: wall(at),
                expires_at: wall(expires_at),
                reap_at: wall(reap_at),
                resource: None,
            },
        };
        Record {
            attempt: AttemptId::new(u128::from(self.attempt)),
            fence: Fence::from_u64(u64::from(self.fence)),
            status_id: StatusId::new(u128::from(self.operation)),
            fingerprint: FINGERPRINT,
            recovery: match self.class {
                Class::Phased => RecoveryClass::Phased,
                Class::Outside => RecoveryClass::Outside,
            },
            contract_version: 1,
            endpoint: Arc::clone(&ENDPOINT),
            opened_at: wall(self.opened_at),
            state,
        }
    }

    /// What a real record is here.
    pub(super) fn of(record: &Record, fence: u8) -> Self {
        let state = match &record.state {
            State::InFlight { lease_until } => St::InFlight { until: tick(*lease_until) },
            State::Uncertain { .. } => St::Uncertain,
            State::Completed { outcome, at, expires_at, reap_at, .. } => St::Completed {
                at: tick(*at),
                expires_at: tick(*expires_at),
                reap_at: tick(*reap_at),
                receipt: match &outcome.body {
                    Body::Kept(bytes) => bytes.first().copied().unwrap_or(0),
                    Body::NotKept(_) => 0,
                },
            },
        };
        let small = |number: u128| u8::try_from(number).unwrap_or(u8::MAX);
        Self {
            attempt: small(record.attempt.as_u128()),
            fence,
            operation: small(record.status_id.as_u128()),
            class: if record.recovery == RecoveryClass::Phased { Class::Phased } else { Class::Outside },
            opened_at: tick(record.opened_at),
            state,
        }
    }
}

/// What is the same in all worlds of a run, and folded journals, of which there are few.
pub(super) struct Book {
    pub(super) shape: Shape,
    pub(super) external: External,
    pub(super) steps: [StepName; 3],
    folded: HashMap<Journal, Option<Arc<Progress>>>,
}

impl Book {
    pub(super) fn new(provider: Provider) -> Self {
        let external = provider.external();
        let [create, charge, finish] = STEPS;
        let shape = Shape::new("rides")
            .and_then(|shape| shape.phase(create))
            .and_then(|shape| shape.external(charge, external))
            .and_then(|shape| shape.phase(finish));
        let step = |name: &str| StepName::new(name).unwrap_or_else(|_| unreachable!("a plain name"));
        Self {
            shape: shape.unwrap_or_else(|_| unreachable!("plain names")),
            external,
            steps: STEPS.map(step),
            folded: HashMap::new(),
        }
    }

    /// The real progress of a journal. `None`: it has not begun.
    pub(super) fn progress(&mut self, journal: &Journal) -> Option<Arc<Progress>> {
        if let Some(known) = self.folded.get(journal) {
            return known.clone();
        }
        let entries: Vec<Entry> = (0..)
            .zip(journal.events())
            .map(|(seq, (at, event))| Entry {
                seq,
                attempt: AttemptId::new(0),
                at: wall(at),
                event: self.event(event),
            })
            .collect();
        let progress = Progress::of(&entries).ok().map(Arc::new);
        self.folded.insert(*journal, progress.clone());
        progress
    }

    /// Whether a journal that has begun cannot be folded: no writer of ours leaves such a one.
    pub(super) fn is_broken(&mut self, journal: &Journal) -> bool {
        !journal.is_empty() && self.progress(journal).is_none()
    }

    fn event(&self, event: Ev) -> Event {
        let [_, charge, _] = &self.steps;
        let charge = charge.clone();
        match event {
            Ev::Opened { deadline } => Event::Opened {
                plan: self.shape.text(),
                request: Snapshot { principal: "rider".into(), fields: Bytes::new() },
                deadline: wall(deadline),
            },
            Ev::Retried => Event::Resumed { by: Attended::Retry },
            Ev::Completer => Event::Resumed { by: Attended::Completer },
            Ev::Done(step) => Event::Done {
                step: self.steps.get(usize::from(step)).cloned().unwrap_or(charge),
                result: Bytes::new(),
            },
            Ev::Intent => {
                let key = DownstreamKey::derive(StatusId::new(0), "rides", &charge);
                Event::Intent { step: charge, key, request: Bytes::new() }
            }
            Ev::Resent => Event::Resent { step: charge },
            Ev::NotSent => Event::NotSent { step: charge },
            Ev::Result { receipt } => {
                Event::Result { step: charge, result: Bytes::copy_from_slice(&[receipt]) }
            }
            Ev::Failed => Event::Failed { why: "no answer".into() },
            Ev::Stopped => Event::Stopped(Stopped::Unresolved { step: charge }),
        }
    }
}

impl World {
    pub(super) fn new(clients: usize, sends: u8, faults: u8, deployed: bool) -> Self {
        let mut actors = [Actor::Idle { sends: 0 }; ACTORS];
        actors.iter_mut().take(clients.min(CLIENTS)).for_each(|actor| *actor = Actor::Idle { sends });
        Self {
            now: 0,
            record: None,
            journal: Journal::EMPTY,
            actors,
            calls: [None; CALLS_MAX],
            charges: [None; CALLS_MAX],
            epoch: Epoch::default(),
            attempts: 0,
            fences: 0,
            operations: 0,
            receipts: 0,
            faults,
            deployed,
        }
    }
}
