//! What may have happened, and has not been heard of.

use super::{
    classify::Doubt,
    seen::{Idempotence, Reach},
    why::{Stop, Unknown, Why},
};

/// How far the undecided attempts of a call got; empty while none is undecided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Undecided(Option<Reach>);

impl Undecided {
    /// An attempt that got so far may have happened.
    pub(super) fn raise(&mut self, reach: Reach) {
        if reach > Reach::Nothing {
            self.0 = self.0.max(Some(reach));
        }
    }

    /// What an outcome does to it.
    pub(super) fn hear(&mut self, doubt: Doubt, reach: Reach) {
        match doubt {
            Doubt::Raised => self.raise(reach),
            Doubt::Settled => self.settle(),
            Doubt::Unchanged => {}
        }
    }

    /// The operation itself has answered.
    pub(super) fn settle(&mut self) {
        self.0 = None;
    }

    /// How a call ends. One that stops with an attempt undecided may have happened, whatever stopped it. Where sending it
    /// again is harmless there is nothing to be careful about.
    pub(super) fn conclude(self, idempotence: Idempotence, attempts: u32, because: Stop) -> Why {
        match self.0 {
            Some(reach) if idempotence != Idempotence::Safe => {
                Why::OutcomeUnknown(Unknown { attempts, reach, because })
            }
            Some(_) | None => Why::Stopped(because),
        }
    }
}
