//! What is tried, as data, and what must come of it, as pure functions.
//!
//! All arms run against one operation in one run. Each catches a kind of server that the others pass: a server that ignores
//! the header passes no race, but one that hashes bodies passes every race and fails on two intended twins.

mod judge;

use std::time::Duration;

use crate::arrive::Timed;
use crate::observe::Seen;
use crate::told::Told;
use crate::wire::Filled;

pub use judge::{Finding, judge, judge_replay};

/// One thing that is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "`Arm::about` says what they are")]
pub enum Arm {
    A0,
    A1,
    A2,
    A3,
    A4,
    A5,
    A6,
    A7,
    A8,
    A9,
    A10,
}

/// An arm for people.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// `A1`
    pub id: &'static str,
    /// What is sent.
    pub title: &'static str,
    /// What it finds.
    pub catches: &'static str,
}

impl Arm {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::A0,
        Self::A1,
        Self::A2,
        Self::A3,
        Self::A4,
        Self::A5,
        Self::A6,
        Self::A7,
        Self::A8,
        Self::A9,
        Self::A10,
    ];

    /// What it is.
    #[must_use]
    pub fn about(self) -> About {
        let (id, title, catches) = match self {
            Self::A0 => ("A0", "different keys at once", "an observer that does not count (control)"),
            Self::A1 => {
                ("A1", "one key at once, and late", "a check before the insert, a lock that ends too early")
            }
            Self::A2 => ("A2", "the same again afterwards", "a replay that is not the answer"),
            Self::A3 => ("A3", "one key, another body", "a silent replay, or a second run"),
            Self::A4 => ("A4", "one key, another account", "keys of one account that are seen by another"),
            Self::A5 => ("A5", "one key, another operation", "the answer of one operation told by another"),
            Self::A6 => ("A6", "no key", "a required key that is not required"),
            Self::A7 => {
                ("A7", "the same twice, one after the other", "a key that is accepted and not applied")
            }
            Self::A8 => ("A8", "another key, the same body", "keys that the server derives from bodies"),
            Self::A9 => ("A9", "one key, two bodies at once", "a mismatch that is not seen in a race"),
            Self::A10 => ("A10", "a failure, twice", "an effect that a failure hides from the key"),
        };
        About { id, title, catches }
    }
}

/// How requests were brought together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One after the other.
    InTurn,
    /// All complete in one moment.
    AtOnce,
    /// Spread over the time of the first one.
    Late,
    /// All complete in one packet, over HTTP/2.
    OnePacket,
}

impl Shape {
    /// For people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::InTurn => "one after the other",
            Self::AtOnce => "at once",
            Self::Late => "spread over the time of the first",
            Self::OnePacket => "in one packet",
        }
    }
}

/// What part a request plays in its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Before the others.
    First,
    /// Among others.
    Race,
    /// When everything was settled.
    After,
}

impl Step {
    /// A word for a timeline.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Race => "race",
            Self::After => "after",
        }
    }
}

/// One request and what became of it.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Its part.
    pub step: Step,
    /// Which request: equal for equal fingerprints.
    pub variant: usize,
    /// Which of the bases.
    pub base: usize,
    /// What was sent.
    pub request: Filled,
    /// When, and what came back.
    pub timed: Timed,
    /// What that means.
    pub told: Told,
}

/// Requests that belong together, and the effects that they had.
#[derive(Clone, Debug)]
pub struct Round {
    /// Of which arm.
    pub arm: Arm,
    /// How they arrived.
    pub shape: Shape,
    /// From 1.
    pub number: u32,
    /// In the order of sending.
    pub exchanges: Vec<Exchange>,
    /// The texts that tell its operations apart.
    pub nonces: Vec<String>,
    /// By each observer, when nothing was added any more.
    pub seen: Vec<Seen>,
    /// When the last request was complete, none had an answer.
    pub in_hand: bool,
    /// Calls to the stub while it held the first one; `None`: nothing was held.
    pub held: Option<usize>,
    /// When the stub got the first call of this round, if effects are calls to it.
    pub effect_at: Option<Duration>,
}
