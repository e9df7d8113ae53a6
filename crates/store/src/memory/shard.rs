//! One shard of the memory store: records in slots, and the indexes that find them.
//!
//! Every change goes through [`Shard::insert`], [`Shard::replace`] and [`Shard::remove`], which keep the indexes true.
//! An index holds four bytes for a record, not an address; and a change touches only the indexes whose entry changes:
//! this is the hot path of every keyed request.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use hashbrown::HashTable;
use retrysafe_core::{
    address::{Account, Address, Namespace},
    ids::StatusId,
    outcome::{Body, HeaderPair, Outcome},
    record::{Record, ResourceId, State},
    time::Wall,
};

use crate::{Census, Due, StateName};

/// Bodies shorter than this are copied out of whatever buffer they came in, which could be much longer and would stay
/// in memory as long as the record.
const COPIED_BODY_BYTES: usize = 16 * 1024;

/// Where a record is in [`Shard::entries`].
pub(super) type Slot = u32;

pub(super) struct Entry {
    hash: Hash,
    pub(super) address: Address,
    pub(super) record: Record,
}

/// What a table is asked by. Half of a whole hash is plenty within one shard.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Hash(u32);

/// A record in a table, with its hash: a table that grows would otherwise read every record, and most of them have left
/// the caches long ago.
#[derive(Clone, Copy)]
struct Place {
    hash: Hash,
    slot: Slot,
}

#[derive(Default)]
pub(super) struct Shard {
    /// Boxed, so that growing moves pointers and leaves no room for records that never come.
    entries: Vec<Option<Box<Entry>>>,
    free: Vec<Slot>,
    by_address: HashTable<Place>,
    by_status: HashTable<Place>,
    by_resource: BTreeSet<(Namespace, Account, Box<str>, Slot)>,
    leases: BTreeSet<(Wall, Slot)>,
    reaps: BTreeSet<(Wall, Slot)>,
    census: Census,
}

impl Shard {
    /// `hash` is that of `address`, made once for all shards.
    pub(super) fn find(&self, hash: Hash, address: &Address) -> Option<Slot> {
        let here = |place: &Place| place.hash == hash && self.get(place.slot).address == *address;
        self.by_address.find(hash.spread(), here).map(|place| place.slot)
    }

    pub(super) fn locate(&self, status: StatusId) -> Option<&Entry> {
        let hash = Hash::of_status(status);
        let here = |place: &Place| place.hash == hash && self.get(place.slot).record.status_id == status;
        self.by_status.find(hash.spread(), here).map(|place| self.get(place.slot))
    }

    /// What is in `slot`, which is taken.
    ///
    /// Slots come from this shard's own indexes, under one lock: they are always taken.
    #[expect(
        clippy::expect_used,
        reason = "an index that names a free slot is a bug of this file, not an input"
    )]
    pub(super) fn get(&self, slot: Slot) -> &Entry {
        self.entries[slot as usize].as_deref().expect("the slot is taken")
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten().map(|entry| &**entry)
    }

    pub(super) fn due(&self, due: Due, now: Wall) -> impl Iterator<Item = (Wall, &Entry)> {
        let index = match due {
            Due::LeaseEnded => &self.leases,
            Due::Reapable => &self.reaps,
        };
        index.range(..=(now, Slot::MAX)).map(|(at, slot)| (*at, self.get(*slot)))
    }

    pub(super) fn bound_to(
        &self,
        namespace: &Namespace,
        account: &Account,
        resource: &ResourceId,
    ) -> Vec<Slot> {
        let end = |slot| (namespace.clone(), account.clone(), resource.0.clone(), slot);
        self.by_resource.range(end(0)..=end(Slot::MAX)).map(|(.., slot)| *slot).collect()
    }

    pub(super) fn census(&self) -> Census {
        self.census
    }

    /// Adds a record at a free address.
    pub(super) fn insert(&mut self, hash: Hash, address: &Address, record: Record) {
        let record = compact(record);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            // 2^32 records of one shard do not fit into any machine.
            (self.entries.len() - 1) as Slot
        });
        self.index(slot, address, &record);
        self.index_status(slot, record.status_id);
        self.entries[slot as usize] = Some(Box::new(Entry { hash, address: address.clone(), record }));
        self.by_address.insert_unique(hash.spread(), Place { hash, slot }, Place::spread);
    }

    /// Puts `record` in the place of what is there.
    pub(super) fn replace(&mut self, slot: Slot, record: Record) {
        let record = compact(record);
        let Some(mut entry) = self.entries[slot as usize].take() else { return };
        self.unindex(slot, &entry);
        self.index(slot, &entry.address, &record);
        let (before, after) = (entry.record.status_id, record.status_id);
        entry.record = record;
        self.entries[slot as usize] = Some(entry);
        if before != after {
            self.unindex_status(slot, before);
            self.index_status(slot, after);
        }
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        let Some(entry) = self.entries[slot as usize].take() else { return };
        self.unindex(slot, &entry);
        self.unindex_status(slot, entry.record.status_id);
        if let Ok(found) = self.by_address.find_entry(entry.hash.spread(), |place| place.slot == slot) {
            found.remove();
        }
        self.free.push(slot);
    }

    fn index(&mut self, slot: Slot, address: &Address, record: &Record) {
        *self.count(&record.state) += 1;
        match &record.state {
            State::InFlight { lease_until } => {
                self.leases.insert((*lease_until, slot));
            }
            State::Uncertain { .. } => {}
            State::Completed { reap_at, resource, .. } => {
                self.reaps.insert((*reap_at, slot));
                if let Some(resource) = resource {
                    self.by_resource.insert(resource_entry(address, resource, slot));
                }
            }
        }
    }

    fn unindex(&mut self, slot: Slot, entry: &Entry) {
        *self.count(&entry.record.state) -= 1;
        match &entry.record.state {
            State::InFlight { lease_until } => {
                self.leases.remove(&(*lease_until, slot));
            }
            State::Uncertain { .. } => {}
            State::Completed { reap_at, resource, .. } => {
                self.reaps.remove(&(*reap_at, slot));
                if let Some(resource) = resource {
                    self.by_resource.remove(&resource_entry(&entry.address, resource, slot));
                }
            }
        }
    }

    fn index_status(&mut self, slot: Slot, status: StatusId) {
        let hash = Hash::of_status(status);
        self.by_status.insert_unique(hash.spread(), Place { hash, slot }, Place::spread);
    }

    fn unindex_status(&mut self, slot: Slot, status: StatusId) {
        let hash = Hash::of_status(status);
        if let Ok(found) = self.by_status.find_entry(hash.spread(), |place| place.slot == slot) {
            found.remove();
        }
    }

    fn count(&mut self, state: &State) -> &mut u64 {
        match StateName::of(state) {
            StateName::InFlight => &mut self.census.in_flight,
            StateName::Uncertain => &mut self.census.uncertain,
            StateName::Completed => &mut self.census.completed,
        }
    }
}

impl Hash {
    pub(super) fn of_address(hash: u64) -> Self {
        Self(hash as u32)
    }

    /// A status id is random bits, drawn here and not by a caller: it needs no hashing, only cutting.
    fn of_status(status: StatusId) -> Self {
        Self(status.as_u128() as u32)
    }

    /// Over the width that the tables look at: they take bits from both ends (Knuth's multiplicative hashing).
    fn spread(self) -> u64 {
        u64::from(self.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Place {
    fn spread(&self) -> u64 {
        self.hash.spread()
    }
}

fn resource_entry(
    address: &Address,
    resource: &ResourceId,
    slot: Slot,
) -> (Namespace, Account, Box<str>, Slot) {
    (address.namespace().clone(), address.account().clone(), resource.0.clone(), slot)
}

/// `record` without a hold on buffers of others: the bytes of its answer in one buffer of its own. An answer that shares
/// nothing is taken as it is.
fn compact(mut record: Record) -> Record {
    if let State::Completed { outcome, .. } = &mut record.state
        && shares_a_buffer(outcome)
    {
        *outcome = Arc::new(compact_outcome(outcome));
    }
    record
}

fn shares_a_buffer(outcome: &Outcome) -> bool {
    let mut lines = outcome.headers.iter().chain(&outcome.trailers);
    let body = match &outcome.body {
        Body::Kept(body) => body.len() < COPIED_BODY_BYTES && !body.is_unique(),
        Body::NotKept(_) => false,
    };
    // A static value has no buffer, and says that it is not unique.
    body || lines.any(|line| !line.value.is_unique() && !line.value.is_empty())
}

fn compact_outcome(outcome: &Outcome) -> Outcome {
    let body: &[u8] = match &outcome.body {
        Body::Kept(body) if body.len() < COPIED_BODY_BYTES => body,
        _ => &[],
    };
    let lines = || outcome.headers.iter().chain(&outcome.trailers);
    let mut buffer = Vec::with_capacity(lines().map(|line| line.value.len()).sum::<usize>() + body.len());
    lines().for_each(|line| buffer.extend_from_slice(&line.value));
    buffer.extend_from_slice(body);
    let mut rest = Bytes::from(buffer);
    let mut moved = |lines: &[HeaderPair]| {
        let own = |line: &HeaderPair| HeaderPair {
            name: line.name.clone(),
            value: rest.split_to(line.value.len()),
        };
        lines.iter().map(own).collect()
    };
    let (headers, trailers) = (moved(&outcome.headers), moved(&outcome.trailers));
    let body = match &outcome.body {
        Body::Kept(body) if body.len() < COPIED_BODY_BYTES => Body::Kept(rest),
        other => other.clone(),
    };
    Outcome { status: outcome.status, headers, body, trailers }
}

/// About how many bytes of a caller's content a record keeps.
pub(super) fn weight(record: &Record) -> usize {
    let State::Completed { outcome, .. } = &record.state else { return 0 };
    let lines = outcome.headers.iter().chain(&outcome.trailers);
    let lines: usize = lines.map(|line| size_of_val(line) + line.name.len() + line.value.len()).sum();
    lines + outcome.body_len().unwrap_or(0)
}
