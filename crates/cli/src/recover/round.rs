//! One round: reap, find what is abandoned, have it gone on with, count.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use retrysafe_core::{ids::StatusId, orphans, record::RecoveryClass};
use retrysafe_store::{
    Due, Filter, StateName, Store, StoreError,
    upkeep::{self, Passed},
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ask::{Became, Service};
use super::meters::Meters;

/// How many due records are looked at to find abandoned requests.
const LOOK: usize = 4096;
/// How many requests the service is asked about in one round.
const ASKED_MAX: usize = 512;
/// How long what the service left is not asked about again.
const LEFT_PAUSE: Duration = Duration::from_secs(30);
/// How many uncertain keys are counted one by one.
const PEOPLE_MAX: usize = 10_000;

/// What a round, or all of them, did.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Round {
    pub(super) reaped: usize,
    /// Abandoned, outside: uncertain now.
    pub(super) marked: usize,
    pub(super) became: [usize; Became::ALL.len()],
    /// How often the service did not answer.
    pub(super) unreachable: usize,
    pub(super) effects: u64,
    /// Abandoned requests that were found, and how long the oldest had been.
    pub(super) due: usize,
    pub(super) oldest: Duration,
}

impl Round {
    /// Whether anything was changed, so that another round may find more.
    pub(super) fn moved(&self) -> bool {
        let changed = [Became::Completed, Became::Closed, Became::Uncertain].map(|one| self.count(one));
        self.reaped + self.marked + changed.iter().sum::<usize>() > 0 || self.effects > 0
    }

    pub(super) fn count(&self, became: Became) -> usize {
        let at = Became::ALL.iter().position(|(_, one)| *one == became);
        at.and_then(|at| self.became.get(at)).copied().unwrap_or(0)
    }

    fn note(&mut self, became: Became) {
        let at = Became::ALL.iter().position(|(_, one)| *one == became);
        if let Some(count) = at.and_then(|at| self.became.get_mut(at)) {
            *count += 1;
        }
    }

    pub(super) fn add(&mut self, other: &Round) {
        self.reaped += other.reaped;
        self.marked += other.marked;
        self.unreachable += other.unreachable;
        self.effects += other.effects;
        self.became.iter_mut().zip(other.became).for_each(|(sum, count)| *sum += count);
        (self.due, self.oldest) = (other.due, other.oldest.max(self.oldest));
    }

    pub(super) fn as_json(&self, needs_people: usize) -> Value {
        let mut shown = json!({
            "reaped": self.reaped, "marked_uncertain": self.marked, "effects_tried": self.effects,
            "unreachable": self.unreachable, "oldest_ms": u64::try_from(self.oldest.as_millis()).unwrap_or(u64::MAX),
            "needs_people": needs_people,
        });
        if let Some(shown) = shown.as_object_mut() {
            for ((name, _), count) in Became::ALL.iter().zip(self.became) {
                shown.insert((*name).into(), count.into());
            }
        }
        shown
    }

    pub(super) fn as_text(&self, needs_people: usize) -> String {
        let count = |became| self.count(became);
        format!(
            "reaped {}; marked uncertain {}\ncompleted {}; freed {}; left to people {}; to be gone on with later {}; waiting \
             {}\neffects tried {}\n{needs_people} keys need a person: retrysafe keys list\n",
            self.reaped,
            self.marked,
            count(Became::Completed),
            count(Became::Closed),
            count(Became::Uncertain),
            count(Became::Later),
            count(Became::Left),
            self.effects,
        )
    }
}

/// What rounds are made with.
pub(super) struct Worker {
    store: Arc<dyn Store>,
    service: Option<Service>,
    batch: usize,
    parallel: usize,
    meters: Meters,
    /// What the service left, and until when it is not asked again.
    left: HashMap<StatusId, Instant>,
}

impl Worker {
    pub(super) fn new(
        store: Arc<dyn Store>,
        service: Option<Service>,
        batch: usize,
        parallel: usize,
    ) -> Self {
        Self { store, service, batch, parallel, meters: Meters::new(), left: HashMap::new() }
    }

    /// # Errors
    /// As the store's calls. A service that does not answer is counted.
    pub(super) async fn round(&mut self, stop: &CancellationToken) -> Result<Round, StoreError> {
        let mut round = Round::default();
        self.reap(&mut round, stop).await?;
        self.complete(&mut round, stop).await?;
        self.meters.count(&round);
        self.meters.records(self.store.census().await?);
        let today = self.store.now()?.unix_ms().div_euclid(24 * 60 * 60 * 1000);
        if let Some(trend) = orphans::trend(&self.store.days().await?, today) {
            self.meters.orphan_rate(&trend);
        }
        if round.moved() {
            tracing::info!(
                reaped = round.reaped,
                marked_uncertain = round.marked,
                completed = round.count(Became::Completed),
                later = round.count(Became::Later),
                closed = round.count(Became::Closed),
                uncertain = round.count(Became::Uncertain),
                effects = round.effects,
                due = round.due,
                "a round moved something"
            );
        }
        Ok(round)
    }

    /// Batch by batch, so that nobody waits long for a lock, until there is less than a batch.
    async fn reap(&self, round: &mut Round, stop: &CancellationToken) -> Result<(), StoreError> {
        loop {
            let mut passed = Passed::default();
            let ended = upkeep::pass(&*self.store, self.batch, &mut passed).await;
            round.reaped += passed.reaped;
            round.marked += passed.marked.len();
            for (address, record) in &passed.marked {
                tracing::warn!(
                    key = %format_args!("{}:{}", address.namespace().as_str(), record.status_id),
                    endpoint = %record.endpoint,
                    "an abandoned request could not be completed and is uncertain now"
                );
            }
            ended?;
            if passed.changed() < self.batch || stop.is_cancelled() {
                return Ok(());
            }
            tracing::debug!(reaped = round.reaped, "reaping");
        }
    }

    async fn complete(&mut self, round: &mut Round, stop: &CancellationToken) -> Result<(), StoreError> {
        let now = self.store.now()?;
        let mut due = self.store.due(Due::LeaseEnded, now, LOOK).await?;
        due.retain(|(_, record)| record.recovery == RecoveryClass::Phased);
        round.due = due.len();
        let ages = due.iter().filter_map(|(_, record)| record.lease_until()).map(|until| now.since(until));
        round.oldest = ages.max().unwrap_or_default();
        let Some(service) = &self.service else { return Ok(()) };
        self.left.retain(|_, until| Instant::now() < *until);
        let asked = due.iter().map(|(_, record)| record.status_id).filter(|id| !self.left.contains_key(id));
        let asked: Vec<StatusId> = asked.take(ASKED_MAX).collect();
        let asks = stream::iter(asked.into_iter().take_while(|_| !stop.is_cancelled()))
            .map(|operation| async move { (operation, service.go_on(operation).await) });
        let mut answers = asks.buffer_unordered(self.parallel.max(1));
        while let Some((operation, answer)) = answers.next().await {
            match answer {
                Ok(Some(became)) => {
                    round.note(became);
                    if became == Became::Left {
                        self.left.insert(operation, Instant::now() + LEFT_PAUSE);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    round.unreachable += 1;
                    tracing::warn!(%error, "the service could not be asked");
                    // The others would be told the same.
                    break;
                }
            }
        }
        drop(answers);
        match service.effects().await {
            Ok(tried) => round.effects += tried,
            Err(error) => {
                round.unreachable += 1;
                tracing::warn!(%error, "the service could not be asked to send staged effects");
            }
        }
        Ok(())
    }

    /// How many keys nobody but a person can settle.
    pub(super) async fn needs_people(&self) -> Result<usize, StoreError> {
        let filter = Filter { state: Some(StateName::Uncertain), ..Filter::default() };
        Ok(self.store.list(&filter, None, PEOPLE_MAX).await?.len())
    }
}
