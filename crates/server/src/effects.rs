//! Counts effects that happened twice (SPEC 10.3).
//!
//! The ledger is written by handlers in their business transactions, and neither read nor guarded by the claim path: a
//! number that a claim makes zero by construction would measure nothing. Two rows of one (account, key, step) are two
//! effects of one operation if they are closer than the longest retry chain: whatever frees a key for a new operation
//! (the end of its window, the end of its resource and its grace) is at least that far from the effect before.

use std::time::Duration;

use retrysafe_core::time::Wall;
use retrysafe_store::StoreError;

use crate::engine::Engine;

/// Rows are counted when their transactions have ended, which takes a handler's time and some more.
const GRACE: Duration = Duration::from_secs(10);
/// How many old rows one pass forgets.
const FORGET_BATCH: usize = 1_000;

/// How far the ledger was counted. Every process counts by itself: an alert takes the largest number, not the sum.
#[derive(Default)]
pub(crate) struct EffectWatch {
    counted_to: Option<Wall>,
}

impl EffectWatch {
    /// Counts what was written since the last pass, and forgets what is older than anything that is kept for people.
    pub(crate) async fn pass(&mut self, engine: &Engine) -> Result<(), StoreError> {
        let contract = &engine.contract;
        let chain = contract.longest_retry_chain;
        let to = before(engine.store.now()?, contract.answer_timeout.saturating_add(GRACE));
        let from = self.counted_to.unwrap_or_else(|| before(to, chain));
        if from >= to {
            return Ok(());
        }
        let Some(duplicates) = engine.store.duplicate_effects(from, to, chain).await? else { return Ok(()) };
        self.counted_to = Some(to);
        if duplicates > 0 {
            engine.meters.duplicate_effects(duplicates);
            tracing::error!(duplicates, "effects happened twice; the effect ledger says which");
        }
        let kept = contract.endpoints.iter().map(|endpoint| endpoint.windows.reap).max().unwrap_or(chain);
        engine.store.forget_effects(before(to, kept.max(chain)), FORGET_BATCH).await?;
        Ok(())
    }
}

fn before(instant: Wall, by: Duration) -> Wall {
    let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
    Wall::from_unix_ms(instant.unix_ms().saturating_sub(by))
}
