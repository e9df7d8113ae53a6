//! The entries of a journal.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::{DownstreamKey, StepName};
use crate::{ids::AttemptId, time::Wall};

/// One line of a journal. Never changed once written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Position, from 0. Two attempts that write the same one cannot both succeed.
    pub seq: u32,
    /// Who wrote it.
    pub attempt: AttemptId,
    /// When, on the store's clock.
    pub at: Wall,
    /// What.
    pub event: Event,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The request was taken on.
    Opened {
        /// [`Shape::text`](super::Shape::text) of the plan that runs it.
        plan: Arc<str>,
        /// What it takes to run it without its caller.
        request: Snapshot,
        /// When its caller stops waiting.
        deadline: Wall,
    },
    /// Somebody went on with it.
    Resumed {
        /// Who.
        by: Attended,
    },
    /// Local work was committed, in this very commit.
    Done {
        /// Which.
        step: StepName,
        /// What it gave back.
        result: Bytes,
    },
    /// A foreign call is about to be made.
    Intent {
        /// Which.
        step: StepName,
        /// The key it is sent with.
        key: DownstreamKey,
        /// The bytes it is sent with, now and ever after (protocol 23).
        request: Bytes,
    },
    /// It is about to be made again, with the same key and bytes.
    Resent {
        /// Which.
        step: StepName,
    },
    /// Nothing of it left this process: the intent is void.
    NotSent {
        /// Which.
        step: StepName,
    },
    /// The call was answered, or the provider told what had become of it.
    Result {
        /// Which.
        step: StepName,
        /// What it gave back.
        result: Bytes,
    },
    /// An attempt ended without an end, and another is to go on.
    Failed {
        /// What was in the way, for people.
        why: Box<str>,
    },
    /// Nobody goes on by itself: a person has to look.
    Stopped(Stopped),
    /// It is done, with this status.
    Ended {
        /// Of the stored answer.
        status: u16,
    },
    /// A person did something.
    Operator {
        /// Who.
        who: Box<str>,
        /// What.
        act: Act,
        /// Why, with the evidence.
        why: Box<str>,
    },
}

/// Who goes on with a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Attended {
    /// Its caller sent it again.
    Retry,
    /// Nobody did.
    Completer,
}

/// What a person can do about a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Act {
    /// Go on from the recovery point.
    Resume,
    /// It was done; this is the outcome.
    Resolve,
    /// It was not done; the next retry runs it from its beginning.
    Release,
}

impl Act {
    /// All of them.
    pub const ALL: [Act; 3] = [Act::Resume, Act::Resolve, Act::Release];

    /// One word for it.
    pub fn name(self) -> &'static str {
        match self {
            Act::Resume => "resume",
            Act::Resolve => "resolve",
            Act::Release => "release",
        }
    }

    /// The act of that name.
    pub fn named(name: &str) -> Option<Act> {
        Self::ALL.into_iter().find(|act| act.name() == name)
    }
}

/// Why a request needs a person.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Stopped {
    /// A foreign call was meant to be sent, nobody wrote its result down, and it may neither be asked for nor sent again.
    Unresolved {
        /// Which.
        step: StepName,
    },
    /// The completer tried as often as it may.
    GaveUp {
        /// The last failure.
        why: Box<str>,
    },
    /// The plan that began it is not the one that is there now.
    PlanChanged {
        /// The line of the plan that is there now.
        current: Arc<str>,
    },
    /// Its caller is gone since long, and nothing foreign was begun. Local work was committed, so it is not nothing.
    Abandoned,
    /// The plan took another way than its journal: it called what is not in its shape, or out of order.
    Astray {
        /// What it did.
        what: Box<str>,
    },
}

/// What it takes to run a request without its caller: who it is for, and the fields that the plan declares. Never a
/// credential, never card data (protocol 25): whoever can read the store could use them.
#[derive(Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The id of whom it is done for.
    pub principal: Box<str>,
    /// The declared fields, encoded.
    pub fields: Bytes,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({} bytes)", self.fields.len())
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stopped::Unresolved { step } => write!(
                f,
                "the call of step `{step}` may have been made, and nobody wrote its result down; look it up at the provider by its \
                 downstream key, then resolve or release"
            ),
            Stopped::GaveUp { why } => {
                write!(f, "the completer tried as often as it may; the last time: {why}. Repair that, then resume")
            }
            Stopped::PlanChanged { current } => write!(
                f,
                "the plan that began it is not the one that is deployed ({current}); deploy the old plan and resume, or finish it by \
                 hand and resolve"
            ),
            Stopped::Abandoned => f.write_str(
                "its caller is gone since long and nothing foreign was begun, but local work was committed; resume to finish it, or \
                 undo that work and release",
            ),
            Stopped::Astray { what } => {
                write!(f, "the plan took another way than its journal: {what}. Repair the plan, then resume")
            }
        }
    }
}
