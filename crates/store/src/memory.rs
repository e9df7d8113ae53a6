//! Records in the memory of one process: for tests, for development, and for services that may forget everything
//! when they stop.
//!
//! Nothing here survives the process, and [`Capability`] says so: a contract that needs more is refused at start-up. It is
//! bounded. A claim beyond [`MemoryOptions::max_records`] or [`MemoryOptions::max_bytes`] is refused with
//! [`ErrorKind::Full`]; a record is never dropped to make room, since a key that is forgotten inside its window runs
//! twice. A holder's completion is never refused for want of room: its effect has happened, so the bytes may run
//! over by what is in flight.
//!
//! Records are in shards, each behind a mutex that is held for well under a microsecond and never across an await. A
//! replay shares the stored answer with the record instead of copying it.
//!
//! ```
//! use retrysafe_store::{Store, memory::{MemoryOptions, MemoryStore}};
//! let store = MemoryStore::new(MemoryOptions { max_records: 1_000, ..MemoryOptions::default() });
//! assert!(!store.capability().survives_process);
//! ```

use std::{
    collections::hash_map::RandomState,
    future::ready,
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use retrysafe_core::{
    address::{Account, Address, Namespace},
    clock::Limits,
    contract::ClaimMethod,
    ids::{Fence, StatusId},
    record::{Record, RemoveIf, ResourceId, State, Write},
    time::Wall,
};

use crate::{
    Capability, Census, Due, ErrorKind, Filter, Store, StoreError, StoreFuture, Written,
    clock::{Clock, SystemClock, TimeKeeper},
    is_own_write,
};
use shard::{Hash, Shard, Slot, weight};

mod shard;

/// How many shards. More than cores, so that two requests seldom meet on one.
const SHARDS: usize = 64;

/// Fences of a process start at its start in milliseconds times this. A process therefore hands out larger fences than
/// every one before it, as long as those made fewer claims in a millisecond, on average, than this.
const FENCES_PER_MS: u64 = 64;

/// What a memory store may take, and its clock.
#[derive(Clone)]
pub struct MemoryOptions {
    /// The most records, in any state.
    pub max_records: usize,
    /// The most bytes of stored answers, over which no claim is accepted. The rest of a record takes some 600 bytes.
    pub max_bytes: usize,
    /// What it reads the time from.
    pub clock: Arc<dyn Clock>,
    /// How far that clock may be off.
    pub clock_limits: Limits,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            max_records: 1_000_000,
            max_bytes: 1 << 30,
            clock: Arc::new(SystemClock::new()),
            clock_limits: Limits::default(),
        }
    }
}

/// A store in memory.
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    records: AtomicUsize,
    bytes: AtomicUsize,
    last_fence: AtomicU64,
    time: TimeKeeper,
    max_records: usize,
    max_bytes: usize,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(options: MemoryOptions) -> Self {
        let started_ms = u64::try_from(options.clock.read().wall.unix_ms()).unwrap_or(0);
        let before_first = started_ms.saturating_mul(FENCES_PER_MS).min(Fence::MAX_NUMBER / 2);
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect(),
            hasher: RandomState::new(),
            records: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            last_fence: AtomicU64::new(before_first),
            time: TimeKeeper::new(options.clock, options.clock_limits),
            max_records: options.max_records,
            max_bytes: options.max_bytes,
        }
    }

    /// Takes the clock as it is after a jump, once a person has looked (protocol 10).
    pub fn acknowledge_clock_jump(&self) {
        self.time.acknowledge();
    }

    /// How many records there are, and how many bytes their answers take.
    pub fn usage(&self) -> Usage {
        Usage { records: self.records.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }

    /// The shard of `address`, locked, and the hash to find it by.
    fn shard(&self, address: &Address) -> (MutexGuard<'_, Shard>, Hash) {
        let hash = self.hasher.hash_one(address);
        // The tables in a shard use the lower half, so the shard is chosen by the upper one.
        let at = (hash >> 32) as usize % SHARDS;
        (lock(&self.shards[at]), Hash::of_address(hash))
    }

    fn each_shard(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards.iter().map(lock)
    }

    fn apply(&self, address: &Address, write: &Write) -> Result<Written, StoreError> {
        let (mut shard, hash) = self.shard(address);
        let slot = shard.find(hash, address);
        let seen = slot.map(|slot| &shard.get(slot).record);
        if !write.expect.allows(seen) {
            let own = seen.and_then(|present| is_own_write(write, present));
            return Ok(own.map_or_else(|| Written::No(seen.cloned()), Written::Yes));
        }
        let fence = match seen {
            Some(present) if !write.opens_claim() => present.fence,
            _ => {
                self.admit(slot.is_none())?;
                self.issue_fence()?
            }
        };
        let next = Record { fence, ..write.next.clone() };
        match slot {
            Some(slot) => self.replace(&mut shard, slot, next),
            None => {
                self.records.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(weight(&next), Ordering::Relaxed);
                shard.insert(hash, address, next);
            }
        }
        Ok(Written::Yes(fence))
    }

    fn replace(&self, shard: &mut Shard, slot: Slot, next: Record) {
        let (before, after) = (weight(&shard.get(slot).record), weight(&next));
        self.bytes.fetch_add(after, Ordering::Relaxed);
        self.bytes.fetch_sub(before, Ordering::Relaxed);
        shard.replace(slot, next);
    }

    /// Refuses a claim when there is no room. Two claims at once may pass the bound together by their own number, at
    /// most one for each shard: the bound protects memory, not a promise.
    fn admit(&self, adds_record: bool) -> Result<(), StoreError> {
        let usage = self.usage();
        let full = (adds_record && usage.records >= self.max_records) || usage.bytes >= self.max_bytes;
        if full { Err(StoreError::new(ErrorKind::Full, "claiming a key in memory")) } else { Ok(()) }
    }

    fn issue_fence(&self) -> Result<Fence, StoreError> {
        let number = self.last_fence.fetch_add(1, Ordering::Relaxed) + 1;
        Fence::new(0, number).ok_or_else(|| StoreError::new(ErrorKind::Full, "issuing a fence"))
    }

    fn remove(&self, address: &Address, guard: RemoveIf) -> bool {
        let (mut shard, hash) = self.shard(address);
        let Some(slot) = shard.find(hash, address) else { return false };
        let seen = &shard.get(slot).record;
        if !guard.allows(seen) {
            return false;
        }
        self.records.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(weight(seen), Ordering::Relaxed);
        shard.remove(slot);
        true
    }

    fn collect_due(&self, due: Due, now: Wall, limit: usize) -> Vec<(Address, Record)> {
        let mut found = Vec::new();
        for shard in self.each_shard() {
            let due = shard.due(due, now).take(limit);
            found.extend(due.map(|(at, entry)| (at, entry.address.clone(), entry.record.clone())));
        }
        found.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        found.truncate(limit);
        found.into_iter().map(|(_, address, record)| (address, record)).collect()
    }

    fn end(&self, namespace: &Namespace, account: &Account, resource: &ResourceId, ends_at: Wall) -> usize {
        let mut ended = 0;
        for mut shard in self.each_shard() {
            for slot in shard.bound_to(namespace, account, resource) {
                let mut next = shard.get(slot).record.clone();
                let State::Completed { expires_at, .. } = &mut next.state else { continue };
                if *expires_at > ends_at {
                    *expires_at = ends_at;
                    self.replace(&mut shard, slot, next);
                    ended += 1;
                }
            }
        }
        ended
    }

    /// Reads every record: listing is for people, who page through it, and keeps no index up to date on the hot path.
    fn page(&self, filter: &Filter, cursor: Option<&Address>, limit: usize) -> Vec<(Address, Record)> {
        let mut found = Vec::new();
        for shard in self.each_shard() {
            let matching = shard.iter().filter(|entry| {
                cursor.is_none_or(|cursor| entry.address > *cursor)
                    && filter.allows_address(&entry.address)
                    && filter.allows_record(&entry.record)
            });
            found.extend(matching.map(|entry| (entry.address.clone(), entry.record.clone())));
            // Keeps what a page holds, not what matches: no more than a page and one shard are ever copied.
            found.sort_by(|a, b| a.0.cmp(&b.0));
            found.truncate(limit);
        }
        found
    }
}

/// What a memory store holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Records in any state.
    pub records: usize,
    /// Bytes of their stored answers.
    pub bytes: usize,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

/// A panic while a shard was locked cannot have left it half changed: nothing between the first and the last change of
/// a record can panic.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for MemoryStore {
    fn capability(&self) -> Capability {
        Capability {
            name: "memory",
            survives_process: false,
            survives_power_cut: false,
            survives_failover: false,
            shared: false,
            transactions: false,
        }
    }

    fn now(&self) -> Result<Wall, StoreError> {
        self.time.now().map(|mark| mark.now)
    }

    fn load<'a>(&'a self, address: &'a Address) -> StoreFuture<'a, Option<Record>> {
        Box::pin(ready(Ok(self.at_hand(address))))
    }

    fn at_hand(&self, address: &Address) -> Option<Record> {
        let (shard, hash) = self.shard(address);
        shard.find(hash, address).map(|slot| shard.get(slot).record.clone())
    }

    fn write_if<'a>(&'a self, address: &'a Address, write: &'a Write) -> StoreFuture<'a, Written> {
        Box::pin(ready(self.apply(address, write)))
    }

    fn remove_if<'a>(&'a self, address: &'a Address, guard: RemoveIf) -> StoreFuture<'a, bool> {
        Box::pin(ready(Ok(self.remove(address, guard))))
    }

    fn due<'a>(&'a self, due: Due, now: Wall, limit: usize) -> StoreFuture<'a, Vec<(Address, Record)>> {
        Box::pin(ready(Ok(self.collect_due(due, now, limit))))
    }

    fn locate<'a>(&'a self, namespace: &'a Namespace, status: StatusId) -> StoreFuture<'a, Option<Address>> {
        let found =
            self.each_shard().find_map(|shard| shard.locate(status).map(|entry| entry.address.clone()));
        Box::pin(ready(Ok(found.filter(|address| address.namespace() == namespace))))
    }

    fn end_resource<'a>(
        &'a self,
        namespace: &'a Namespace,
        account: &'a Account,
        resource: &'a ResourceId,
        expires_at: Wall,
    ) -> StoreFuture<'a, usize> {
        Box::pin(ready(Ok(self.end(namespace, account, resource, expires_at))))
    }

    fn list<'a>(
        &'a self,
        filter: &'a Filter,
        cursor: Option<&'a Address>,
        limit: usize,
    ) -> StoreFuture<'a, Vec<(Address, Record)>> {
        Box::pin(ready(Ok(self.page(filter, cursor, limit))))
    }

    fn claims_by(&self) -> &'static [ClaimMethod] {
        &ClaimMethod::ALL
    }

    fn census<'a>(&'a self) -> StoreFuture<'a, Census> {
        let sum = self.each_shard().fold(Census::default(), |sum, shard| {
            let census = shard.census();
            Census {
                in_flight: sum.in_flight + census.in_flight,
                uncertain: sum.uncertain + census.uncertain,
                completed: sum.completed + census.completed,
            }
        });
        Box::pin(ready(Ok(sum)))
    }
}

#[cfg(test)]
mod tests;
