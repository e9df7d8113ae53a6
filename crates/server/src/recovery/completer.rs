//! The active job (SPEC 5.4): drives abandoned requests to an end.
//!
//! Many completers share the work without a lock. Each reads a window of what is due and goes through it in an order of its
//! own; who goes on with a request is decided by the store, by a guarded takeover, as it is for everybody else. What a
//! completer loses, somebody else has.

use std::{
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use retrysafe_core::{
    address::Address,
    claim::Claim,
    ids::AttemptId,
    record::{Record, RecoveryClass, RemoveIf},
    recovery::{
        Attended, Entry, Event, Judgement, Progress, Shape, Standing, Stopped, is_untouched, judge, pause,
        stop, takeover,
    },
    time::Wall,
};
use retrysafe_store::{
    Due, StoreError, Written,
    journal::{Journal, Notes},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Plan, Recovery,
    http::{Ended, attempt},
};
use crate::engine::fresh;

/// How often old journals are looked for: it is a write, and nobody waits for it.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// A completer chooses its window by chance among so many windows of what is due, so that many seldom reach for the same.
const SPREAD: usize = 8;
/// How many due records are looked at to find a window of them that a completer may do something about.
const LOOK_MAX: usize = 32_768;
/// How long a request whose plan or endpoint is not here is not looked at again: a deployment may bring it.
const ELSEWHERE_PAUSE: Duration = Duration::from_secs(30);

/// How busy completers and drainers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// How many requests one completer runs at once.
    pub parallel: usize,
    /// How many abandoned requests it goes through in one pass. Those that only wait for their caller are not among them.
    pub window: usize,
    /// The pause between two passes that found nothing.
    pub pause: Duration,
    /// How many staged effects a drainer takes at once.
    pub effects: usize,
    /// How long a staged effect is a drainer's own.
    pub effect_lease: Duration,
    /// How often the sending of a staged effect is tried.
    pub effect_tries_max: u32,
    /// How old the journal of a record that is gone becomes.
    pub keep_journals: Duration,
}

impl Default for Patience {
    /// Eight requests at once, a second between passes, effects for ten tries, journals for 30 days.
    fn default() -> Self {
        Self {
            parallel: 8,
            window: 512,
            pause: Duration::from_secs(1),
            effects: 32,
            effect_lease: Duration::from_secs(60),
            effect_tries_max: 10,
            keep_journals: Duration::from_secs(30 * 86_400),
        }
    }
}

/// What one pass did.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Pass {
    /// Abandoned requests of several steps that were found, up to several windows of them.
    pub looked_at: usize,
    /// Abandoned requests that wait for their caller, or for a plan that is not here.
    pub waiting: usize,
    /// Taken over and driven to their answer.
    pub completed: usize,
    /// Taken over, and to be gone on with later.
    pub later: usize,
    /// Freed: nothing had begun, and nobody waits any more.
    pub closed: usize,
    /// Shown to a person.
    pub stopped: usize,
    /// Somebody else was first.
    pub lost: usize,
    /// How long the oldest that was looked at had been abandoned.
    pub oldest: Duration,
}

impl Pass {
    /// Whether anything was changed.
    pub fn is_idle(&self) -> bool {
        self.completed + self.later + self.closed + self.stopped + self.lost == 0
    }
}

/// What became of one abandoned request.
pub(super) enum Done {
    Left,
    /// Not to be looked at before then.
    Waits(Wall),
    Lost,
    Closed,
    Stopped,
    Ran(Ended),
}

impl<D: Journal> Recovery<D> {
    /// Completes abandoned requests, sends staged effects, writes down what was counted of replays and forgets old journals,
    /// until `stop`. Spawn it once in each
    /// process, beside [`Retrysafe::upkeep`](crate::Retrysafe::upkeep), which reaps; several do no harm.
    pub async fn run(&self, stop: CancellationToken) {
        let mut forget_at = Instant::now();
        loop {
            let forgets = forget_at <= Instant::now();
            if forgets {
                forget_at = Instant::now() + FORGET_EVERY;
            }
            let found = self.round(forgets).await;
            self.shared.retrysafe.guard.engine.write_due_replays().await;
            let pause = if found { Duration::ZERO } else { self.shared.patience.pause };
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.shared.retrysafe.last_replays().await;
    }

    /// One round of everything. Returns whether there was anything to do.
    async fn round(&self, forgets: bool) -> bool {
        let completed = self.pass().await;
        let drained = self.drain().await;
        let forgotten = if forgets { self.forget().await } else { Ok(0) };
        self.count().await;
        let worked = [
            completed.map(|pass| !pass.is_idle()),
            drained.map(|sent| sent > 0),
            forgotten.map(|forgotten| forgotten > 0),
        ];
        worked.into_iter().fold(false, |any, result| match result {
            Ok(did) => any | did,
            Err(error) => {
                tracing::warn!(%error, "a part of recovery failed and is tried again");
                any
            }
        })
    }

    async fn count(&self) {
        if let Ok(census) = self.shared.database.staged_census().await {
            self.shared.meters.staged(census);
        }
    }

    /// Looks once at what is abandoned, and drives it on.
    ///
    /// # Errors
    /// As reading the store. What fails for one request is counted and tried again.
    pub async fn pass(&self) -> Result<Pass, StoreError> {
        let Self { shared } = self;
        let now = shared.database.now()?;
        let (mut due, waiting) = self.due(now).await?;
        let oldest =
            due.iter().filter_map(|(_, record)| record.lease_until()).map(|until| now.since(until)).max();
        let oldest = oldest.unwrap_or_default();
        let pass = Pass { looked_at: due.len(), waiting, oldest, ..Pass::default() };
        shuffle(&mut due);
        due.truncate(shared.patience.window);
        let next = AtomicUsize::new(0);
        let tally = std::sync::Mutex::new(pass);
        let worker = || async {
            while let Some((address, record)) = due.get(next.fetch_add(1, Ordering::Relaxed)) {
                let done = self.clone().look_after(address.clone(), record.clone()).await;
                tally.lock().unwrap_or_else(PoisonError::into_inner).count(&done);
            }
        };
        futures_util::future::join_all((0..shared.patience.parallel.max(1)).map(|_| worker())).await;
        let pass = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
        shared.meters.passed(&pass);
        if !pass.is_idle() {
            tracing::info!(
                completed = pass.completed,
                later = pass.later,
                closed = pass.closed,
                stopped = pass.stopped,
                lost = pass.lost,
                "abandoned requests were looked after"
            );
        }
        Ok(pass)
    }

    /// Abandoned requests that something may be done about, up to a few windows of them, and how many there are besides that
    /// wait. What waits stays due, and must not keep what stands behind it out of sight.
    async fn due(&self, now: Wall) -> Result<(Vec<(Address, Record)>, usize), StoreError> {
        let Self { shared } = self;
        let wanted = shared.patience.window.saturating_mul(SPREAD).min(LOOK_MAX);
        let mut look = wanted;
        loop {
            let mut due = match look {
                0 => Vec::new(),
                _ => shared.database.due(Due::LeaseEnded, now, look).await?,
            };
            let all = due.len() < look;
            due.retain(|(_, record)| record.recovery == RecoveryClass::Phased);
            let phased = due.len();
            shared.waiting.keep_out(&mut due, now);
            if due.len() >= shared.patience.window || all || look >= LOOK_MAX {
                let waiting = phased - due.len();
                return Ok((due, waiting));
            }
            look = look.saturating_mul(SPREAD).min(LOOK_MAX);
        }
    }

    /// In a task of its own: what was begun is not cut in two by whoever stops waiting for it.
    pub(super) async fn look_after(self, address: Address, record: Record) -> Done {
        let (shared, operation, attempt) = (Arc::clone(&self.shared), record.status_id, record.attempt);
        let task = tokio::spawn(async move { self.judged(&address, record).await });
        match task.await {
            Ok(Ok(done)) => {
                if let Done::Waits(until) = done {
                    shared.waiting.note(operation, attempt, until);
                }
                done
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "an abandoned request was left for the next pass");
                Done::Left
            }
            Err(_) => Done::Left,
        }
    }

    async fn judged(&self, address: &Address, record: Record) -> Result<Done, StoreError> {
        let Self { shared } = self;
        let journal = shared.database.journal(record.status_id).await?;
        let now = shared.database.now()?;
        let progress = Progress::of(&journal).ok();
        let plan = progress.as_ref().and_then(|progress| shared.plans.get(Shape::name_in(&progress.plan)));
        let standing = match &progress {
            Some(progress) => Standing::Known(progress, plan.map(|plan| &*plan.shape)),
            None if journal.is_empty() => Standing::Unopened,
            None => {
                let what = "its journal cannot be read; somebody changed it, or entries are missing";
                return self
                    .stop(address, &record, &journal, Stopped::Astray { what: what.into() }, now)
                    .await;
            }
        };
        match judge(&record, standing, &shared.terms, now) {
            Judgement::Leave => Ok(Done::Waits(now.plus(ELSEWHERE_PAUSE))),
            Judgement::Wait(until) => Ok(Done::Waits(until)),
            Judgement::Stop(why) => self.stop(address, &record, &journal, why, now).await,
            Judgement::Close => self.close(address, &record, now).await,
            Judgement::GoOn => match plan {
                Some(plan) => {
                    if progress.as_ref().is_some_and(|progress| progress.tries == 0) {
                        shared.retrysafe.guard.engine.meters.orphaned(&record.endpoint);
                    }
                    self.go_on(address, &record, plan.clone(), now).await
                }
                None => Ok(Done::Waits(now.plus(ELSEWHERE_PAUSE))),
            },
        }
    }

    async fn go_on(
        &self,
        address: &Address,
        record: &Record,
        plan: Plan<D>,
        now: Wall,
    ) -> Result<Done, StoreError> {
        let Self { shared } = self;
        // The endpoint is gone from the contract, or its consumer is elsewhere.
        let Some(home) = self.home(&record.endpoint) else {
            return Ok(Done::Waits(now.plus(ELSEWHERE_PAUSE)));
        };
        let Some(claim) = self.take_over(address, record, now).await? else { return Ok(Done::Lost) };
        let opening = self.opening(claim, plan, home, (Attended::Completer, None));
        let terms = shared.terms;
        let entropy = entropy();
        let ended = attempt(opening, move |tries| pause(&terms, tries, entropy)).await;
        shared.meters.attempted(Attended::Completer, &ended);
        shared.retrysafe.guard.engine.waiters.wake(address);
        Ok(Done::Ran(ended))
    }

    async fn take_over(
        &self,
        address: &Address,
        record: &Record,
        now: Wall,
    ) -> Result<Option<Claim>, StoreError> {
        let Self { shared } = self;
        let lease = self.home(&record.endpoint).map_or(shared.terms.patience, |home| home.lease());
        let attempt: AttemptId = fresh()?.attempt;
        let write = takeover(record, attempt, lease, now);
        match shared.database.write_if(address, &write).await? {
            Written::Yes(fence) => Ok(Claim::won(address.clone(), &write, fence)),
            Written::No(_) => Ok(None),
        }
    }

    /// Frees a key of which nothing was done. Taken over first: a holder that is only slow must find that out. And looked at
    /// once more then: its last commit may have come in between.
    async fn close(&self, address: &Address, record: &Record, now: Wall) -> Result<Done, StoreError> {
        let Some(claim) = self.take_over(address, record, now).await? else { return Ok(Done::Lost) };
        let Self { shared } = self;
        if !is_untouched(&shared.database.journal(record.status_id).await?) {
            // Somebody's to go on with, at once.
            shared.database.write_if(address, &claim.renewal(now, Duration::ZERO)).await?;
            return Ok(Done::Lost);
        }
        let freed = shared.database.remove_if(address, RemoveIf::Attempt(claim.attempt())).await?;
        tracing::info!(endpoint = %record.endpoint, attempt = %record.attempt, "an abandoned request had not begun; its key is free");
        let engine = &self.shared.retrysafe.guard.engine;
        engine.waiters.wake(address);
        if freed {
            engine.meters.orphaned(&record.endpoint);
        }
        Ok(if freed { Done::Closed } else { Done::Lost })
    }

    async fn stop(
        &self,
        address: &Address,
        record: &Record,
        journal: &[Entry],
        why: Stopped,
        now: Wall,
    ) -> Result<Done, StoreError> {
        tracing::error!(endpoint = %record.endpoint, attempt = %record.attempt, %why, "a request needs a person");
        let seq = journal.last().map_or(0, |last| last.seq.saturating_add(1));
        let entry = Entry { seq, attempt: record.attempt, at: now, event: Event::Stopped(why) };
        let notes = Notes::entries(record.status_id, vec![entry]);
        match self.shared.database.note_if(address, &stop(record, now), &notes).await? {
            Written::Yes(_) => {
                self.shared.retrysafe.guard.engine.waiters.wake(address);
                Ok(Done::Stopped)
            }
            Written::No(_) => Ok(Done::Lost),
        }
    }

    /// Deletes journals whose records are gone since long.
    async fn forget(&self) -> Result<usize, StoreError> {
        const FORGET_AT_ONCE: usize = 256;
        let now = self.shared.database.now()?;
        let keep = i64::try_from(self.shared.patience.keep_journals.as_millis()).unwrap_or(i64::MAX);
        let before = Wall::from_unix_ms(now.unix_ms().saturating_sub(keep));
        self.shared.database.forget_journals(before, FORGET_AT_ONCE).await
    }
}

impl Pass {
    fn count(&mut self, done: &Done) {
        match done {
            Done::Left => {}
            Done::Waits(_) => self.waiting += 1,
            Done::Lost | Done::Ran(Ended::Stale) => self.lost += 1,
            Done::Closed => self.closed += 1,
            Done::Stopped | Done::Ran(Ended::Stopped) => self.stopped += 1,
            Done::Ran(Ended::Answered(_)) => self.completed += 1,
            Done::Ran(Ended::Later | Ended::Lost(_)) => self.later += 1,
        }
    }
}

/// An order of its own for each completer, so that they seldom reach for the same request.
fn shuffle<T>(items: &mut [T]) {
    for last in (1..items.len()).rev() {
        let drawn = entropy() % (last as u64 + 1);
        items.swap(last, usize::try_from(drawn).unwrap_or(0));
    }
}

fn entropy() -> u64 {
    // Attempt ids are random; half of one will do. Without randomness nothing could be claimed either.
    fresh().map_or(0, |fresh| u64::try_from(fresh.attempt.as_u128() & u128::from(u64::MAX)).unwrap_or(0))
}
