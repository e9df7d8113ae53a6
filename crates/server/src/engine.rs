//! The claim protocol around any piece of work: `core` decides, this shell asks the store and keeps the lease.
//!
//! [`Engine::claim`] answers whether a keyed request may run, whoever arbitrates: a claim of its own in the store, or a
//! transaction that the claim is part of ([`Arbiter`]). [`Engine::keep`] drives the work while renewing the lease;
//! [`Engine::settle`] ends the claim.

mod arbiter;
mod fresh;

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use retrysafe_core::{
    address::Address,
    claim::{Change, Claim, Settled, Settling, Stale},
    codes::Code,
    contract::{Contract, Endpoint, InFlightAnswer},
    decide::{Asked, Decision, Refusal, Rules, decide, locked},
    ids::AttemptId,
    record::{Record, RemoveIf, State, Write},
    time::Wall,
};
use retrysafe_store::{
    ErrorKind, Store, StoreError, Written,
    upkeep::{self, Passed},
};
use tokio::{sync::Semaphore, time::Instant};

use crate::{
    meters::Meters,
    replays::{self, ReplayTally},
    waiters::Waiters,
};

pub(crate) use arbiter::{Arbiter, Claimed, Held, InStore, Told, Tried};
pub(crate) use fresh::{fresh, with_fresh};

/// Rounds of "decide, write, lost, decide again" before a claim gives up with 503. Each lost round means that somebody
/// else made progress on the same key, so more than a few in a row point to a broken store.
const CLAIM_ROUNDS_MAX: u32 = 16;
/// How often a claim whose result is unknown, or that found the store busy, is offered again. The store recognises one
/// that it has applied (R6).
const CLAIM_OFFERS_MAX: u32 = 5;
/// The same for the end of a claim: about seven seconds. Nothing is lost by waiting, since the lease is kept meanwhile,
/// and giving up makes the key uncertain (S14).
const SETTLE_OFFERS_MAX: u32 = 12;
/// The pause before a write is offered again, doubled each time up to the longest.
const OFFER_PAUSE: Duration = Duration::from_millis(20);
const OFFER_PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// First and longest pause between two looks at a record that another process may complete.
const POLL_FIRST: Duration = Duration::from_millis(20);
const POLL_LONGEST: Duration = Duration::from_millis(500);
/// A lease is renewed this many times in its length, so that one lost renewal does not end it.
const RENEWALS_PER_LEASE: u32 = 3;
/// Retry-After of answers that mean "come back when the store is there".
pub(crate) const RETRY_AFTER_OUTAGE: Duration = Duration::from_secs(1);

/// The protocol, bound to a contract and a store. Cheap to clone through its `Arc`.
pub(crate) struct Engine {
    pub(crate) contract: Arc<Contract>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) meters: Meters,
    pub(crate) replays: ReplayTally,
    pub(crate) waiters: Arc<Waiters>,
    permits: Arc<Semaphore>,
}

/// Why a claim could not be settled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettleFault {
    /// Somebody took over.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// The store did not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Engine {
    pub(crate) fn new(contract: Arc<Contract>, store: Arc<dyn Store>) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(contract.concurrent_max)),
            meters: Meters::new(contract.endpoints.iter().map(|endpoint| &*endpoint.name)),
            replays: ReplayTally::default(),
            waiters: Arc::default(),
            contract,
            store,
        }
    }

    /// Whether the request at `address` may run. Waits where the contract says so, for as long as it says, and never past
    /// `deadline`: a caller that was told "failed" must not be surprised by an effect that began after that.
    pub(crate) async fn claim<A: Arbiter>(
        &self,
        rules: &Rules<'_>,
        address: &Address,
        asked: &Asked<'_>,
        deadline: Option<Instant>,
        arbiter: &mut A,
    ) -> Result<Claimed<A::Won>, StoreError> {
        let told = |told| Ok(Claimed::Told(told));
        let in_flight = || Refusal::after(Code::KeyInFlight, rules.in_flight.retry_after);
        let bounded = |until: Instant| deadline.map_or(until, |deadline| deadline.min(until));
        // Joined before the attempt that may find it locked, so that an end in between is not missed.
        let waits = A::MAY_LOCK && matches!(rules.in_flight.answer, InFlightAnswer::Wait { .. });
        let waiting = waits.then(|| self.waiters.join(address));
        let mut pause = POLL_FIRST;
        let mut seen: Option<Record> = None;
        let mut wait_until: Option<Instant> = None;
        let mut rounds = 0;
        while rounds < CLAIM_ROUNDS_MAX {
            let now = self.store.now()?;
            match with_fresh(|fresh| decide(seen.as_ref(), asked, rules, fresh, now))? {
                Decision::Claim(write) => {
                    rounds += 1;
                    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                        return told(Told::Refuse(Refusal::of(Code::DeadlineExceeded)));
                    }
                    let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                        // Nothing may run, but what is there can still be told: an overload must not turn away the
                        // retries of what is already done.
                        if seen.is_none() {
                            seen = self.store.load(address).await?;
                            if seen.is_some() {
                                continue;
                            }
                        }
                        return told(Told::Refuse(Refusal::after(Code::Overloaded, RETRY_AFTER_OUTAGE)));
                    };
                    let woken = waiting.as_ref().map(|waiting| Box::pin(waiting.woken()));
                    match arbiter.attempt(address, &write).await? {
                        Tried::Won(won) => {
                            self.meters.claimed(&write.next.endpoint, seen.as_ref());
                            return Ok(Claimed::Won(Box::new(Held { won, permit })));
                        }
                        Tried::Seen(present) => seen = present,
                        Tried::Locked => {
                            let (Decision::Wait(at_most), Some(woken)) = (locked(rules.in_flight), woken)
                            else {
                                return told(Told::Refuse(in_flight()));
                            };
                            // Nothing is held while waiting (protocol 14), and time bounds it, not rounds.
                            drop(permit);
                            rounds -= 1;
                            let until = *wait_until.get_or_insert_with(|| bounded(Instant::now() + at_most));
                            if until <= Instant::now() {
                                return told(Told::Refuse(in_flight()));
                            }
                            let next_look = (Instant::now() + pause).min(until);
                            let _ = Box::pin(tokio::time::timeout_at(next_look, woken)).await;
                            pause = (pause * 2).min(POLL_LONGEST);
                            seen = None;
                        }
                    }
                }
                Decision::MarkUncertain(write) => {
                    rounds += 1;
                    seen = Box::pin(self.mark_uncertain(address, write)).await?;
                }
                Decision::Wait(at_most) => {
                    let until = *wait_until.get_or_insert_with(|| bounded(Instant::now() + at_most));
                    if until <= Instant::now() {
                        return told(Told::Refuse(in_flight()));
                    }
                    seen = Box::pin(self.wait(address, until)).await?;
                }
                Decision::Replay(outcome) => {
                    self.meters.replaying(seen.as_ref(), now);
                    let journal = seen.as_ref().and_then(replays::journal_of);
                    return told(Told::Replay { outcome, journal });
                }
                Decision::Refuse(refusal) => return told(Told::Refuse(refusal)),
                Decision::Uncertain(record) => return told(Told::Uncertain(record)),
                Decision::Accept { status_id, retry_after } => {
                    return told(Told::Accept { status_id, retry_after });
                }
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, "claiming a key that keeps changing"))
    }

    /// Writes that nobody knows what became of a request, and returns what is there then.
    async fn mark_uncertain(&self, address: &Address, write: Write) -> Result<Option<Record>, StoreError> {
        Ok(match self.offer(address, &write, CLAIM_OFFERS_MAX).await? {
            Written::Yes(fence) => {
                self.meters.marked_uncertain(&write.next.endpoint);
                Some(Record { fence, ..write.next })
            }
            Written::No(present) => present,
        })
    }

    /// Waits until the record at `address` is no longer in flight, its lease has ended, or it is `until`; returns it. Holds
    /// no store connection and no permit meanwhile (protocol 14).
    async fn wait(&self, address: &Address, until: Instant) -> Result<Option<Record>, StoreError> {
        let waiting = self.waiters.join(address);
        let mut pause = POLL_FIRST;
        loop {
            let woken = waiting.woken();
            let record = self.store.load(address).await?;
            let now = self.store.now()?;
            let in_flight = record.as_ref().and_then(|record| record.lease_until());
            let over = Instant::now() >= until;
            match in_flight {
                Some(lease_until) if now < lease_until && !over => {}
                _ => return Ok(record),
            }
            let next_look = (Instant::now() + pause).min(until);
            let _ = tokio::time::timeout_at(next_look, woken).await;
            pause = (pause * 2).min(POLL_LONGEST);
        }
    }

    /// Offers a write until its result is known. Only faults that leave the question open, or changed nothing, are offered
    /// again, with the same attempt id: an own write that was applied is recognised.
    async fn offer(&self, address: &Address, write: &Write, offers: u32) -> Result<Written, StoreError> {
        let mut patience = Patience::of(offers);
        loop {
            match self.store.write_if(address, write).await {
                Ok(written) => return Ok(written),
                Err(error) => Box::pin(patience.after(error)).await?,
            }
        }
    }

    /// Removes a record until the result is known.
    async fn remove(&self, address: &Address, guard: RemoveIf) -> Result<bool, StoreError> {
        let mut patience = Patience::of(SETTLE_OFFERS_MAX);
        loop {
            match self.store.remove_if(address, guard).await {
                // An earlier offer may have been applied. A removal leaves no attempt id to recognise it by, but it
                // leaves the place empty, which nobody else could have done.
                Ok(false) if patience.unknown => return Ok(self.store.load(address).await?.is_none()),
                Ok(removed) => return Ok(removed),
                Err(error) => Box::pin(patience.after(error)).await?,
            }
        }
    }

    /// Ends a claim with evidence from elsewhere. A store that is down is asked again for a while.
    pub(crate) async fn settle(&self, settling: Settling) -> Result<Settled, SettleFault> {
        let applied = self.apply(&settling).await?;
        self.settled(settling, applied)
    }

    /// Ends a claim of our own, keeping its lease until the completing write has returned (design 6). If no offer is
    /// accepted the claim is left to its lease, and the record becomes uncertain (S14): the true answer is never sent
    /// before it is stored (protocol 18).
    pub(crate) async fn settle_own(
        &self,
        settling: Settling,
        lease: Duration,
    ) -> Result<Settled, SettleFault> {
        let renewal = |now| settling.renewal(now, lease);
        let applied = {
            let apply = pin!(self.apply(&settling));
            self.keep(settling.address(), renewal, lease, Duration::MAX, apply).await?
        };
        self.settled(settling, applied)
    }

    async fn apply(&self, settling: &Settling) -> Result<bool, StoreError> {
        let address = settling.address();
        match settling.change() {
            Change::Write(write) => {
                let written = self.offer(address, write, SETTLE_OFFERS_MAX).await?;
                Ok(matches!(written, Written::Yes(_)))
            }
            Change::Remove(guard) => self.remove(address, *guard).await,
        }
    }

    fn settled(&self, settling: Settling, applied: bool) -> Result<Settled, SettleFault> {
        self.waiters.wake(settling.address());
        let settled = settling.settle(applied);
        self.meters.settled(&settled);
        Ok(settled?)
    }

    /// One pass of upkeep: marks abandoned outside work uncertain and reaps what is past its threshold, in batches of
    /// `batch`. Returns how many records it changed.
    pub(crate) async fn upkeep(&self, batch: usize) -> Result<usize, StoreError> {
        let mut passed = Passed::default();
        let ended = upkeep::pass(&*self.store, batch, &mut passed).await;
        for (address, record) in &passed.marked {
            self.meters.marked_uncertain(&record.endpoint);
            self.waiters.wake(address);
            tracing::warn!(endpoint = %record.endpoint, attempt = %record.attempt, "abandoned request is uncertain now");
        }
        self.meters.reaped(passed.reaped);
        ended.map(|()| passed.changed())
    }

    /// Shows how many records are in each state. A store that cannot count now leaves the last count standing.
    pub(crate) async fn count_records(&self) {
        if let Ok(census) = self.store.census().await {
            self.meters.records(census);
        }
    }

    /// Frees the key of an attempt that left nothing. What cannot be freed now is when its lease ends.
    pub(crate) async fn give_up(&self, address: &Address, attempt: AttemptId) {
        if let Err(error) = self.remove(address, RemoveIf::Attempt(attempt)).await {
            tracing::warn!(%error, %attempt, "a claim was not released; it ends with its lease");
        }
        self.waiters.wake(address);
    }

    /// Drives `work` to its end while keeping the lease of `claim`, as long as a handler may take.
    pub(crate) async fn keep_claim<T>(
        &self,
        claim: &Claim,
        endpoint: &Endpoint,
        work: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        let lease = endpoint.windows.lease;
        let renewal = |now| Some(claim.renewal(now, lease));
        self.keep(claim.address(), renewal, lease, self.contract.answer_timeout, work).await
    }

    /// Drives `work` to its end while keeping the lease of the claim at `address`, for at most `longest`: a handler that
    /// hangs must not hold its key for ever. Past that the work still runs, but its lease may end.
    ///
    /// Renewing is bound to this call (R4). A renewal that was dropped here may still reach the store, where it finds
    /// whatever ended the claim and changes nothing.
    pub(crate) async fn keep<T>(
        &self,
        address: &Address,
        renewal: impl Fn(Wall) -> Option<Write>,
        lease: Duration,
        longest: Duration,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        // What ends at once needs no lease renewed, and no timer.
        if let Poll::Ready(result) = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
            return result;
        }
        Box::pin(self.renew_until(address, renewal, lease, longest, work)).await
    }

    async fn renew_until<T>(
        &self,
        address: &Address,
        renewal: impl Fn(Wall) -> Option<Write>,
        lease: Duration,
        longest: Duration,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        let started = Instant::now();
        let every = lease / RENEWALS_PER_LEASE;
        loop {
            let next = tokio::time::sleep(every);
            tokio::select! {
                biased;
                result = &mut work => return result,
                () = next => {}
            }
            if started.elapsed() >= longest {
                return work.await;
            }
            // A renewal that fails is tried again at the next turn; the lease outlives a few of them.
            let renew = async {
                let Some(write) = renewal(self.store.now()?) else { return Ok(None) };
                let written = self.store.write_if(address, &write).await?;
                Ok::<_, StoreError>(Some((written, write.next.attempt)))
            };
            tokio::select! {
                biased;
                result = &mut work => return result,
                renewed = renew => match renewed {
                    Ok(Some((Written::Yes(_), _))) => {}
                    Ok(None) => return work.await,
                    // Nothing left to keep: settled by this very work, whose reply is on its way; or taken over or
                    // marked, and then the work goes on and the store judges its result.
                    Ok(Some((Written::No(present), own))) => {
                        let settled = |record: &Record| {
                            record.attempt == own && matches!(record.state, State::Completed { .. })
                        };
                        if !present.as_ref().is_some_and(settled) {
                            self.meters.lease_lost();
                        }
                        return work.await;
                    }
                    Err(error) => tracing::warn!(%error, "a lease was not renewed"),
                },
            }
        }
    }
}

/// How long an offer is repeated.
struct Patience {
    offers_left: u32,
    pause: Duration,
    /// Whether any offer so far may have been applied.
    unknown: bool,
}

impl Patience {
    fn of(offers: u32) -> Self {
        Self { offers_left: offers, pause: OFFER_PAUSE, unknown: false }
    }

    /// Pauses after a failure, or gives up with what is known by then.
    async fn after(&mut self, error: StoreError) -> Result<(), StoreError> {
        self.unknown |= error.kind() == ErrorKind::Unknown;
        self.offers_left = self.offers_left.saturating_sub(1);
        if !error.may_retry() || self.offers_left == 0 {
            // One unknown result makes the whole offer unknown, whatever came after it.
            return Err(match self.unknown {
                true => StoreError::with_source(ErrorKind::Unknown, "offering a write", error),
                false => error,
            });
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(OFFER_PAUSE_LONGEST);
        Ok(())
    }
}
