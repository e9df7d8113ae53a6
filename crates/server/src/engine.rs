//! The claim protocol around any piece of work: `core` decides, this shell asks the store and keeps the lease.
//!
//! [`Engine::claim`] answers whether a keyed request may run; [`Held::run`] drives the work while renewing the lease;
//! [`Engine::settle`] ends the claim. The HTTP layer is one user of it; a consumer or a job is another.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use retrysafe_core::{
    address::Address,
    claim::{Change, Claim, Settled, Settling, Stale},
    codes::Code,
    contract::{Contract, Endpoint},
    decide::{Asked, Decision, Fresh, Refusal, Rules, Upkeep, decide, upkeep},
    ids::{AttemptId, StatusId},
    outcome::Outcome,
    record::{Record, RemoveIf, Write},
    time::Wall,
};
use retrysafe_store::{Due, ErrorKind, Store, StoreError, Written};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{meters::Meters, waiters::Waiters};

/// Rounds of "decide, write, lost, decide again" before a claim gives up with 503. Each lost round means that somebody
/// else made progress on the same key, so more than a few in a row point to a broken store.
const CLAIM_ROUNDS_MAX: u32 = 16;
/// How often a write whose result is unknown, or that found the store busy, is offered again. The store recognises one
/// that it has applied (R6).
const OFFERS_MAX: u32 = 5;
/// The pause before a write is offered again, doubled each time.
const OFFER_PAUSE: Duration = Duration::from_millis(20);
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
    waiters: Arc<Waiters>,
    permits: Arc<Semaphore>,
}

/// The answer to [`Engine::claim`].
pub(crate) enum Claimed {
    /// Run it.
    Run(Box<Held>),
    /// Answer with this.
    Replay(Arc<Outcome>),
    /// Answer with this.
    Refuse(Refusal),
    /// Answer 202.
    Accept { status_id: StatusId, retry_after: Duration },
    /// It may have happened; a probe could tell.
    Uncertain(Box<Record>),
}

/// A won claim with what it needs while it runs. The permit was taken before the claim and lives as long: a client that
/// resets streams does not free it (protocol 14).
#[must_use = "a claim that is dropped blocks its key until the lease ends"]
pub(crate) struct Held {
    pub(crate) claim: Claim,
    pub(crate) permit: OwnedSemaphorePermit,
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
            meters: Meters::new(),
            waiters: Arc::default(),
            contract,
            store,
        }
    }

    /// Whether the request at `address` may run. Waits where the contract says so, for as long as it says.
    pub(crate) async fn claim(
        &self,
        endpoint: &Endpoint,
        address: &Address,
        asked: &Asked<'_>,
    ) -> Result<Claimed, StoreError> {
        let rules = Rules {
            endpoint: &endpoint.name,
            contract_version: self.contract.version,
            recovery: endpoint.recovery,
            lease: endpoint.windows.lease,
            in_flight: &endpoint.in_flight,
        };
        let mut seen: Option<Record> = None;
        let mut waited_since: Option<Instant> = None;
        let mut rounds = 0;
        while rounds < CLAIM_ROUNDS_MAX {
            let now = self.store.now()?;
            match decide(seen.as_ref(), asked, &rules, fresh()?, now) {
                Decision::Claim(write) => {
                    rounds += 1;
                    let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                        return Ok(Claimed::Refuse(Refusal::after(Code::Overloaded, RETRY_AFTER_OUTAGE)));
                    };
                    match self.offer(address, &write).await {
                        Ok(Written::Yes(fence)) => {
                            let Some(claim) = Claim::won(address.clone(), &write, fence) else { continue };
                            self.meters.claimed(seen.as_ref());
                            return Ok(Claimed::Run(Box::new(Held { claim, permit })));
                        }
                        Ok(Written::No(present)) => seen = present,
                        Err(error) => {
                            // It may have been committed, and nobody will run it: leave nothing behind if possible, else
                            // the key is blocked until a lease ends that nobody holds.
                            if error.kind() == ErrorKind::Unknown {
                                let guard = RemoveIf::Attempt(write.next.attempt);
                                let _ = self.store.remove_if(address, guard).await;
                            }
                            return Err(error);
                        }
                    }
                }
                Decision::MarkUncertain(write) => {
                    rounds += 1;
                    seen = match self.offer(address, &write).await? {
                        Written::Yes(fence) => {
                            self.meters.marked_uncertain();
                            Some(Record { fence, ..write.next })
                        }
                        Written::No(present) => present,
                    };
                }
                Decision::Wait(at_most) => {
                    let since = *waited_since.get_or_insert_with(Instant::now);
                    let Some(left) = at_most.checked_sub(since.elapsed()).filter(|left| !left.is_zero())
                    else {
                        let refusal = Refusal::after(Code::KeyInFlight, endpoint.in_flight.retry_after);
                        return Ok(Claimed::Refuse(refusal));
                    };
                    seen = self.wait(address, left).await?;
                }
                Decision::Replay(outcome) => return Ok(Claimed::Replay(outcome)),
                Decision::Refuse(refusal) => return Ok(Claimed::Refuse(refusal)),
                Decision::Uncertain(record) => return Ok(Claimed::Uncertain(record)),
                Decision::Accept { status_id, retry_after } => {
                    return Ok(Claimed::Accept { status_id, retry_after });
                }
            }
        }
        Err(StoreError::new(ErrorKind::Unavailable, "claiming a key that keeps changing"))
    }

    /// Waits until the record at `address` is no longer in flight, its lease has ended, or `at_most` has passed; returns
    /// it. Holds no store connection and no permit meanwhile (protocol 14).
    async fn wait(&self, address: &Address, at_most: Duration) -> Result<Option<Record>, StoreError> {
        let until = tokio::time::Instant::now() + at_most;
        let waiting = self.waiters.join(address);
        let mut pause = POLL_FIRST;
        loop {
            let woken = waiting.woken();
            let record = self.store.load(address).await?;
            let now = self.store.now()?;
            let in_flight = record.as_ref().and_then(|record| record.lease_until());
            let over = tokio::time::Instant::now() >= until;
            match in_flight {
                Some(lease_until) if now < lease_until && !over => {}
                _ => return Ok(record),
            }
            let next_look = (tokio::time::Instant::now() + pause).min(until);
            let _ = tokio::time::timeout_at(next_look, woken).await;
            pause = (pause * 2).min(POLL_LONGEST);
        }
    }

    /// Offers a write until its result is known. Only faults that leave the question open, or changed nothing, are offered
    /// again, with the same attempt id: an own write that was applied is recognised.
    async fn offer(&self, address: &Address, write: &Write) -> Result<Written, StoreError> {
        let mut pause = OFFER_PAUSE;
        let mut unknown = false;
        for offer in 1.. {
            let error = match self.store.write_if(address, write).await {
                Ok(written) => return Ok(written),
                Err(error) => error,
            };
            unknown |= error.kind() == ErrorKind::Unknown;
            if !error.may_retry() || offer == OFFERS_MAX {
                // One unknown result makes the whole offer unknown, whatever came after it.
                return Err(if unknown {
                    StoreError::with_source(ErrorKind::Unknown, "offering a write", error)
                } else {
                    error
                });
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        unreachable!("the loop returns at OFFERS_MAX")
    }

    /// Ends a claim. A store that is down is asked again for a while; then the claim is left to its lease, and the record
    /// becomes uncertain (S14): the true answer is never sent before it is stored (protocol 18).
    pub(crate) async fn settle(&self, settling: Settling) -> Result<Settled, SettleFault> {
        let address = settling.address().clone();
        let applied = match settling.change() {
            Change::Write(write) => matches!(self.offer(&address, write).await?, Written::Yes(_)),
            Change::Remove(guard) => self.store.remove_if(&address, *guard).await?,
        };
        self.waiters.wake(&address);
        let settled = settling.settle(applied);
        self.meters.settled(&settled);
        Ok(settled?)
    }

    /// One pass of upkeep: marks abandoned outside work uncertain and reaps what is past its threshold, in batches of
    /// `batch`. Returns how many records it changed.
    pub(crate) async fn upkeep(&self, batch: usize) -> Result<usize, StoreError> {
        let now = self.store.now()?;
        let mut changed = 0;
        for due in [Due::LeaseEnded, Due::Reapable] {
            let records = self.store.due(due, now, batch).await?;
            // All at once: a store with group commit puts them into one transaction.
            let changes = records.iter().map(|(address, record)| self.maintain(address, record, now));
            for result in futures_util::future::join_all(changes).await {
                changed += usize::from(result?);
            }
        }
        Ok(changed)
    }

    /// Shows how many records are in each state. A store that cannot count now leaves the last count standing.
    pub(crate) async fn count_records(&self) {
        if let Ok(census) = self.store.census().await {
            self.meters.records(census);
        }
    }

    async fn maintain(&self, address: &Address, record: &Record, now: Wall) -> Result<bool, StoreError> {
        match upkeep(record, now) {
            Upkeep::Leave => Ok(false),
            Upkeep::Mark(write) => {
                let marked = matches!(self.store.write_if(address, &write).await?, Written::Yes(_));
                if marked {
                    self.meters.marked_uncertain();
                    self.waiters.wake(address);
                    tracing::warn!(endpoint = %record.endpoint, attempt = %record.attempt, "abandoned request is uncertain now");
                }
                Ok(marked)
            }
            Upkeep::Reap(attempt) => {
                let reaped = self.store.remove_if(address, RemoveIf::Reapable { attempt, by: now }).await?;
                if reaped {
                    self.meters.reaped();
                }
                Ok(reaped)
            }
        }
    }

    /// Drives `work` to its end while keeping the claim's lease, for at most `longest`: a handler that hangs must not hold its
    /// key for ever. Past that the work still runs, but its lease may end.
    ///
    /// Renewing is bound to this call (R4): it cannot go on after the claim is settled.
    pub(crate) async fn keep<T>(
        &self,
        claim: &Claim,
        lease: Duration,
        longest: Duration,
        work: impl Future<Output = T>,
    ) -> T {
        tokio::pin!(work);
        let started = tokio::time::Instant::now();
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
            let renewal = async {
                let now = self.store.now()?;
                self.store.write_if(claim.address(), &claim.renewal(now, lease)).await
            };
            tokio::select! {
                biased;
                result = &mut work => return result,
                renewed = renewal => match renewed {
                    Ok(Written::Yes(_)) => {}
                    // Taken over, or settled: nothing left to keep. The work goes on, its completion will be refused.
                    Ok(Written::No(_)) => {
                        self.meters.lease_lost();
                        return work.await;
                    }
                    Err(error) => tracing::warn!(%error, "a lease was not renewed"),
                },
            }
        }
    }
}

/// Randomness for one claim. The operating system's, since a guessed status id would show another caller's answer.
fn fresh() -> Result<Fresh, StoreError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| {
        StoreError::with_source(ErrorKind::Unavailable, "drawing an attempt id", error.to_string())
    })?;
    let (attempt, status) = bytes.split_at(16);
    let number = |half: &[u8]| half.iter().fold(0u128, |number, byte| (number << 8) | u128::from(*byte));
    Ok(Fresh { attempt: AttemptId::new(number(attempt)), status_id: StatusId::new(number(status)) })
}
