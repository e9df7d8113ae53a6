//! Journals of requests of several steps, and effects that leave after a commit.
//!
//! A journal is kept under the id of its operation, which survives takeovers, apart from the record: a renewal that arrives
//! late rewrites the record, and must not take a recovery point back. What guards an entry is the record's attempt
//! id: entries are written in the commit of a conditional [`Write`], or not at all.
//!
//! **Staged effects** are rows of the same commit, sent afterwards by whoever drains them, each with its own derived key.
//!
//! **Acts** are what people did about keys: a log of its own, which outlives records and journals, and to which is only ever
//! added. An act is in the commit that changes the record, so there is none without its line.

use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::{
    address::Address,
    ids::StatusId,
    record::Write,
    recovery::{Act, DownstreamKey, Entry},
    time::Wall,
};

use crate::{ErrorKind, Store, StoreError, StoreFuture, Written};

/// The most entries of one journal: what goes on for longer is going round in circles.
pub const JOURNAL_MAX: usize = 10_000;
/// The longest result, request or payload of one entry or effect.
pub const ENTRY_MAX_BYTES: usize = 1 << 20;
/// The most operations whose replays are written down at once.
pub const REPLAYS_AT_ONCE: usize = 1_024;
/// The longest name of a person, in bytes.
pub const WHO_MAX_BYTES: usize = 255;
/// The longest reason, and the longest evidence.
pub const WHY_MAX_BYTES: usize = 16 * 1024;

/// What is written beside a record, in the same commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notes {
    /// Whose journal.
    pub operation: StatusId,
    /// New entries, in their order.
    pub entries: Vec<Entry>,
    /// Effects that may leave once this is committed.
    pub staged: Vec<NewEffect>,
    /// What a person does with it, for the log.
    pub act: Option<NewAct>,
}

impl Notes {
    /// Entries, and nothing else.
    pub fn entries(operation: StatusId, entries: Vec<Entry>) -> Self {
        Self { operation, entries, staged: Vec::new(), act: None }
    }
}

/// What a person does about a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewAct {
    /// Who.
    pub who: Box<str>,
    /// What.
    pub act: Act,
    /// Why.
    pub why: Box<str>,
    /// What it was found out by.
    pub evidence: Option<Box<str>>,
    /// When, on the store's clock.
    pub at: Wall,
}

impl NewAct {
    /// Before anything is changed: a log that cuts what somebody said would be none.
    pub(crate) fn fits(&self) -> Result<(), StoreError> {
        let long = self.why.len().max(self.evidence.as_ref().map_or(0, |evidence| evidence.len()));
        match self.who.len() > WHO_MAX_BYTES || long > WHY_MAX_BYTES {
            true => Err(StoreError::new(ErrorKind::Full, "logging an act")),
            false => Ok(()),
        }
    }
}

/// A line of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoggedAct {
    /// Its place, from 1. There may be gaps.
    pub number: u64,
    /// Whose key.
    pub address: Address,
    /// Which of its operations.
    pub operation: StatusId,
    /// What was done.
    pub act: NewAct,
}

/// An effect to be staged.
#[derive(Clone, PartialEq, Eq)]
pub struct NewEffect {
    /// Unique in its operation.
    pub name: Box<str>,
    /// The key it is sent with, at every attempt.
    pub key: DownstreamKey,
    /// What is sent.
    pub payload: Bytes,
    /// When it is staged.
    pub at: Wall,
    /// From when on it is sent.
    pub due: Wall,
}

/// An effect that is somebody's to send, until its time is over.
#[derive(Clone, PartialEq, Eq)]
pub struct Staged {
    /// Of which operation.
    pub operation: StatusId,
    /// Which of its effects.
    pub name: Box<str>,
    /// The key it is sent with, at every attempt.
    pub key: DownstreamKey,
    /// What is sent.
    pub payload: Bytes,
    /// How often it was taken, this time included. Guards its end.
    pub tries: u32,
}

/// How the sending of an effect ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It was taken.
    Yes,
    /// It is to be tried again then; what was in the way.
    Later(Wall, Box<str>),
    /// It is not tried again; what was in the way.
    Never(Box<str>),
}

/// An effect as it stands, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StagedEffect {
    /// Which of its operation's effects.
    pub name: Box<str>,
    /// What became of it.
    pub state: EffectState,
    /// When it was staged. `None`: by a build that did not write it down.
    pub staged: Option<Wall>,
    /// How often it was taken to be sent.
    pub tries: u32,
    /// What was in the way, the last time.
    pub failure: Option<Box<str>>,
}

/// What became of a staged effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EffectState {
    /// Not sent yet.
    Waiting {
        /// When it is sent, or sent again; while somebody is sending it, when it is free for another.
        due: Wall,
    },
    /// It was taken.
    Sent {
        /// When. `None`: by a build that did not write it down.
        at: Option<Wall>,
    },
    /// It is not tried again.
    GivenUp {
        /// Since when. `None`: by a build that did not write it down.
        at: Option<Wall>,
    },
}

/// How often the answer of an operation was replayed: **at least** so often, since what a process counted and had not written
/// down yet ends with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replays {
    /// Of which operation.
    pub operation: StatusId,
    /// How often.
    pub times: u64,
    /// The first time, on the store's clock.
    pub first: Wall,
    /// The last time.
    pub last: Wall,
}

/// How many effects are staged, for metrics.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct StagedCensus {
    /// Not sent yet.
    pub waiting: u64,
    /// Given up.
    pub dead: u64,
}

/// A store that keeps journals. Reached by [`Store::journals`].
pub trait Journal: Store {
    /// Applies `write` as [`Store::write_if`] does, and `notes` in the same commit.
    ///
    /// An entry whose place is taken is an error that changes nothing. Whether an error is a write that was applied after
    /// all is found out by reading the journal: it holds the entry, by this attempt, or it does not.
    fn note_if<'a>(
        &'a self,
        address: &'a Address,
        write: &'a Write,
        notes: &'a Notes,
    ) -> StoreFuture<'a, Written>;

    /// The journal of `operation`, in its order, as committed.
    fn journal<'a>(&'a self, operation: StatusId) -> StoreFuture<'a, Vec<Entry>>;

    /// Takes at most `limit` effects that are due at `now` and not taken, oldest first; nobody else gets them for `lease`.
    fn take_staged<'a>(&'a self, now: Wall, lease: Duration, limit: usize) -> StoreFuture<'a, Vec<Staged>>;

    /// Ends a sending, at `at`. `false`: it was taken by somebody else meanwhile, or is over.
    fn end_staged<'a>(&'a self, staged: &'a Staged, sent: &'a Sent, at: Wall) -> StoreFuture<'a, bool>;

    /// The effects of `operation`, by name, at most `limit`.
    fn staged_of<'a>(&'a self, operation: StatusId, limit: usize) -> StoreFuture<'a, Vec<StagedEffect>>;

    /// Adds what a process counted to what was counted before, in one commit. At most [`REPLAYS_AT_ONCE`], of operations that
    /// each stand there once; more is [`ErrorKind::Full`]. Those without a journal are left out: nothing would ever delete them.
    fn add_replays<'a>(&'a self, counted: &'a [Replays]) -> StoreFuture<'a, ()>;

    /// How often the answer of `operation` was replayed, as far as that was written down.
    fn replays<'a>(&'a self, operation: StatusId) -> StoreFuture<'a, Option<Replays>>;

    /// How many effects are staged.
    fn staged_census<'a>(&'a self) -> StoreFuture<'a, StagedCensus>;

    /// The log of acts after number `after`, in its order, at most `limit`; of one address, or of all.
    fn acts<'a>(
        &'a self,
        of: Option<&'a Address>,
        after: u64,
        limit: usize,
    ) -> StoreFuture<'a, Vec<LoggedAct>>;

    /// Deletes at most `limit` journals that were opened before `before`, whose record is gone and whose effects are sent, with
    /// what was counted of their replays; returns how many.
    fn forget_journals<'a>(&'a self, before: Wall, limit: usize) -> StoreFuture<'a, usize>;
}

/// Refuses more than is written down at once.
pub(crate) fn fits(counted: &[Replays]) -> Result<(), StoreError> {
    match counted.len() > REPLAYS_AT_ONCE {
        true => Err(StoreError::new(ErrorKind::Full, COUNTING)),
        false => Ok(()),
    }
}

pub(crate) const COUNTING: &str = "counting replays";

impl std::fmt::Debug for NewEffect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NewEffect({}, {} bytes)", self.name, self.payload.len())
    }
}

impl std::fmt::Debug for Staged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Staged({}, {} bytes, try {})", self.name, self.payload.len(), self.tries)
    }
}
