//! Counts orphans day by day, in the store, and compares the week with the first month (SPEC 10.4).
//!
//! A process counts for itself and adds to the day's row once a minute: a counter that ends with its process knows no
//! month, and a write for each claim would cost as much as the claim.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use retrysafe_core::{
    orphans::{Day, Verdict, trend},
    time::Wall,
};
use retrysafe_store::{ErrorKind, StoreError};
use tokio::time::Instant;

use crate::engine::Engine;

/// How often what was counted is written down.
const WRITE_EVERY: Duration = Duration::from_secs(60);

/// What this process counted since it last wrote it down.
#[derive(Default)]
pub(crate) struct Tally {
    claims: AtomicU64,
    orphans: AtomicU64,
}

impl Tally {
    pub(crate) fn claimed(&self) {
        self.claims.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn orphaned(&self) {
        self.orphans.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self, day: i64) -> Day {
        let taken = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        Day { day, claims: taken(&self.claims), orphans: taken(&self.orphans) }
    }

    fn give_back(&self, day: Day) {
        self.claims.fetch_add(day.claims, Ordering::Relaxed);
        self.orphans.fetch_add(day.orphans, Ordering::Relaxed);
    }
}

/// When this process wrote its counts down, and on which day it last warned.
#[derive(Default)]
pub(crate) struct OrphanWatch {
    wrote_at: Option<Instant>,
    warned_on: Option<i64>,
}

impl OrphanWatch {
    /// Writes down what was counted and looks at the trend, if it is time.
    pub(crate) async fn pass(&mut self, engine: &Engine) -> Result<(), StoreError> {
        if self.wrote_at.is_some_and(|at| at.elapsed() < WRITE_EVERY) {
            return Ok(());
        }
        self.wrote_at = Some(Instant::now());
        let today = day_of(engine.store.now()?);
        self.write(engine, today).await?;
        let Some(trend) = trend(&engine.store.days().await?, today) else { return Ok(()) };
        engine.meters.orphan_rates(&trend);
        if trend.verdict() == Verdict::Rising && self.warned_on != Some(today) {
            self.warned_on = Some(today);
            tracing::warn!(
                first_month = trend.baseline.share(),
                last_week = trend.recent.share(),
                orphans = trend.recent.orphans,
                "more requests lose their holder than in the first month: something crashes, or leases are too short"
            );
        }
        Ok(())
    }

    /// Before the process ends.
    pub(crate) async fn last(&self, engine: &Engine) -> Result<(), StoreError> {
        self.write(engine, day_of(engine.store.now()?)).await
    }

    async fn write(&self, engine: &Engine, today: i64) -> Result<(), StoreError> {
        let counted = engine.meters.tally.take(today);
        if (counted.claims, counted.orphans) == (0, 0) {
            return Ok(());
        }
        let written = engine.store.count_day(counted).await;
        // What may have been written is not added twice.
        if written.as_ref().is_err_and(|error| error.kind() != ErrorKind::Unknown) {
            engine.meters.tally.give_back(counted);
        }
        written
    }
}

/// Days since 1970.
fn day_of(now: Wall) -> i64 {
    const MS_A_DAY: i64 = 24 * 60 * 60 * 1000;
    now.unix_ms().div_euclid(MS_A_DAY)
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::sync::Arc;

    use retrysafe_core::contract::Contract;
    use retrysafe_store::{
        Store,
        sqlite::{SqliteOptions, SqliteStore},
    };

    use super::*;

    const CONTRACT: &str = r#"
api = "Orders"
namespace = "orders"
longest_retry_chain = "24h"
unlisted = "refuse"
[scope]
source = "api_key"
rotates = false
[failures]
policy = "A"
[client]
drop_stored_statuses = true
[[endpoint]]
method = "POST"
path = "/orders"
key = "required"
"#;

    #[tokio::test]
    async fn spec_10_4_what_processes_counted_is_in_the_store_when_they_have_ended() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(SqliteStore::open(SqliteOptions::new(folder.path().join("keys.db"))).unwrap());
        let contract = Arc::new(Contract::parse(CONTRACT, "orders.toml").unwrap());
        let process = || Engine::new(Arc::clone(&contract), store.clone());
        let (one, two) = (process(), process());
        for _ in 0..3 {
            one.meters.claimed("POST /orders", None);
        }
        two.meters.claimed("a-consumer", None);
        two.meters.marked_uncertain("POST /orders");
        let mut watch = OrphanWatch::default();
        watch.pass(&one).await.unwrap();
        one.meters.claimed("POST /orders", None);
        // Not yet a minute later.
        watch.pass(&one).await.unwrap();
        assert_eq!(store.days().await.unwrap()[0].claims, 3);
        watch.last(&one).await.unwrap();
        OrphanWatch::default().last(&two).await.unwrap();
        let today = day_of(store.now().unwrap());
        assert_eq!(store.days().await.unwrap(), [Day { day: today, claims: 5, orphans: 1 }]);
        // And nothing twice.
        watch.last(&one).await.unwrap();
        assert_eq!(store.days().await.unwrap()[0].claims, 5);
    }

    /// A store that is closing took nothing: it is counted when there is one again.
    #[tokio::test]
    async fn what_was_not_written_down_is_with_the_next_count() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(SqliteStore::open(SqliteOptions::new(folder.path().join("keys.db"))).unwrap());
        let contract = Contract::parse(CONTRACT, "orders.toml").unwrap();
        let engine = Engine::new(Arc::new(contract), store.clone());
        engine.meters.claimed("POST /orders", None);
        store.close();
        let error = OrphanWatch::default().last(&engine).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(engine.meters.tally.take(7), Day { day: 7, claims: 1, orphans: 0 });
    }
}
