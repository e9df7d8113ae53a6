//! gRPC's retry throttle (A6, V5): failures against successes.
//!
//! A failure takes one token, a success brings a part of one back, and retries need more than half. It holds no tokens
//! for a retry, so there is nothing to give back.

use super::{Denied, Name};

/// One token, in the unit of the count.
pub(super) const TOKEN: u32 = 1_000;

/// The numbers of the throttle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Throttle {
    /// Tokens at the start, and at most.
    pub tokens_max: u32,
    /// Thousandths of a token that a success brings back. A6 keeps three decimals and drops the rest.
    pub ratio_milli: u32,
}

impl Default for Throttle {
    /// A6's example: 10 tokens, a tenth back.
    fn default() -> Self {
        Self { tokens_max: 10, ratio_milli: 100 }
    }
}

pub(super) struct Score {
    rule: Throttle,
    milli: u32,
}

impl Score {
    pub(super) fn new(rule: Throttle) -> Self {
        Self { milli: rule.tokens_max.saturating_mul(TOKEN), rule }
    }

    pub(super) fn failed(&mut self) {
        self.milli = self.milli.saturating_sub(TOKEN);
    }

    pub(super) fn succeeded(&mut self) {
        self.milli = self.milli.saturating_add(self.rule.ratio_milli).min(self.max());
    }

    pub(super) fn affords(&self) -> Result<(), Denied> {
        if self.milli > self.max() / 2 {
            return Ok(());
        }
        let (balance, capacity) = (i64::from(self.milli), u64::from(self.max()));
        Err(Denied { rule: Name::Throttle, balance, cost: 0, capacity })
    }

    pub(super) fn milli(&self) -> u32 {
        self.milli
    }

    fn max(&self) -> u32 {
        self.rule.tokens_max.saturating_mul(TOKEN)
    }
}
