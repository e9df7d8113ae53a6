//! One shard of the memory store: encoded records in slots, and the indexes that find them.
//!
//! Every change goes through [`Shard::insert`], [`Shard::replace`] and [`Shard::remove`], which keep the indexes true.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use retrysafe_core::{
    address::{Account, Address, Namespace},
    ids::{Fence, StatusId},
    record::{Record, ResourceId, State},
    time::Wall,
};

use crate::{Census, Due, StateName, StoreError, codec};

/// The longest encoding buffer that is kept between writes.
const KEPT_BUFFER_BYTES: usize = 64 * 1024;

/// Where a record is in [`Shard::entries`]. Four bytes, since every index holds one for each record.
pub(super) type Slot = u32;

struct Entry {
    address: Address,
    encoded: Bytes,
}

#[derive(Default)]
pub(super) struct Shard {
    entries: Vec<Option<Entry>>,
    free: Vec<Slot>,
    by_address: HashMap<Address, Slot>,
    by_status: HashMap<StatusId, Slot>,
    by_resource: BTreeSet<(Namespace, Account, Box<str>, Slot)>,
    leases: BTreeSet<(Wall, Slot)>,
    reaps: BTreeSet<(Wall, Slot)>,
    census: Census,
    buffer: Vec<u8>,
}

impl Shard {
    pub(super) fn find(&self, address: &Address) -> Option<Slot> {
        self.by_address.get(address).copied()
    }

    pub(super) fn locate(&self, status: StatusId) -> Option<&Address> {
        self.by_status.get(&status).map(|slot| self.address(*slot))
    }

    /// The record in `slot`, which is taken.
    pub(super) fn record(&self, slot: Slot) -> Result<Record, StoreError> {
        codec::decode(&self.entry(slot).encoded)
    }

    pub(super) fn address(&self, slot: Slot) -> &Address {
        &self.entry(slot).address
    }

    pub(super) fn encoded_len(&self, slot: Slot) -> usize {
        self.entry(slot).encoded.len()
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.by_address.values().copied()
    }

    pub(super) fn due(&self, due: Due, now: Wall) -> impl Iterator<Item = (Wall, Slot)> {
        let index = match due {
            Due::LeaseEnded => &self.leases,
            Due::Reapable => &self.reaps,
        };
        index.range(..=(now, Slot::MAX)).copied()
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

    /// Adds a record at a free address. Returns its encoded length.
    pub(super) fn insert(
        &mut self,
        address: &Address,
        next: &Record,
        fence: Fence,
    ) -> Result<usize, StoreError> {
        let encoded = self.encode(next, fence)?;
        let len = encoded.len();
        let entry = Some(Entry { address: address.clone(), encoded });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                // 2^32 records of one shard do not fit into any machine.
                (self.entries.len() - 1) as Slot
            }
        };
        self.by_address.insert(address.clone(), slot);
        self.index(slot, address, next);
        Ok(len)
    }

    /// Puts `next` in the place of `seen`. Returns its encoded length.
    pub(super) fn replace(
        &mut self,
        slot: Slot,
        seen: &Record,
        next: &Record,
        fence: Fence,
    ) -> Result<usize, StoreError> {
        let encoded = self.encode(next, fence)?;
        let len = encoded.len();
        let address = self.address(slot).clone();
        self.unindex(slot, &address, seen);
        self.index(slot, &address, next);
        if let Some(entry) = &mut self.entries[slot as usize] {
            entry.encoded = encoded;
        }
        Ok(len)
    }

    pub(super) fn remove(&mut self, slot: Slot, seen: &Record) {
        if let Some(entry) = self.entries[slot as usize].take() {
            self.unindex(slot, &entry.address, seen);
            self.by_address.remove(&entry.address);
            self.free.push(slot);
        }
    }

    fn encode(&mut self, record: &Record, fence: Fence) -> Result<Bytes, StoreError> {
        codec::encode_into(record, fence, &mut self.buffer)?;
        let encoded = Bytes::copy_from_slice(&self.buffer);
        if self.buffer.capacity() > KEPT_BUFFER_BYTES {
            self.buffer = Vec::new();
        }
        Ok(encoded)
    }

    fn index(&mut self, slot: Slot, address: &Address, record: &Record) {
        self.by_status.insert(record.status_id, slot);
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

    fn unindex(&mut self, slot: Slot, address: &Address, record: &Record) {
        self.by_status.remove(&record.status_id);
        *self.count(&record.state) -= 1;
        match &record.state {
            State::InFlight { lease_until } => {
                self.leases.remove(&(*lease_until, slot));
            }
            State::Uncertain { .. } => {}
            State::Completed { reap_at, resource, .. } => {
                self.reaps.remove(&(*reap_at, slot));
                if let Some(resource) = resource {
                    self.by_resource.remove(&resource_entry(address, resource, slot));
                }
            }
        }
    }

    fn count(&mut self, state: &State) -> &mut u64 {
        match StateName::of(state) {
            StateName::InFlight => &mut self.census.in_flight,
            StateName::Uncertain => &mut self.census.uncertain,
            StateName::Completed => &mut self.census.completed,
        }
    }

    /// Slots come from this shard's own indexes, under one lock: they are always taken.
    #[expect(
        clippy::expect_used,
        reason = "an index that names a free slot is a bug of this file, not an input"
    )]
    fn entry(&self, slot: Slot) -> &Entry {
        self.entries[slot as usize].as_ref().expect("the slot is taken")
    }
}

fn resource_entry(
    address: &Address,
    resource: &ResourceId,
    slot: Slot,
) -> (Namespace, Account, Box<str>, Slot) {
    (address.namespace().clone(), address.account().clone(), resource.0.clone(), slot)
}
