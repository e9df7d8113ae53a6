//! A database of rows beside the store with faults, whose commits end as a test tells them to.
//!
//! Real databases are tested with the stores. This one is for ends that none of them can be brought to at will: a commit
//! whose answer is lost, a conflict at the commit, a constraint that fails there, a transaction that is gone.

use std::{
    collections::{HashSet, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use retrysafe_core::{
    address::{Account, Address, Namespace},
    ids::StatusId,
    record::{Record, RemoveIf, ResourceId, Write},
    time::Wall,
};
use retrysafe_store::{
    Capability, Census, Due, ErrorKind, Filter, Store, StoreError, StoreFuture, Written,
    transactional::{Begun, Committed, OpenTransaction, Transactional, Undone},
};

use super::faulty::Faulty;

/// Rows, and the store that keeps the records.
pub struct Rows {
    pub store: Faulty,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    committed: Mutex<Vec<String>>,
    locked: Mutex<HashSet<Address>>,
    ends: Mutex<VecDeque<Planned>>,
    begun: Mutex<u64>,
}

/// How the next commit ends.
#[derive(Clone, Copy, Debug)]
pub enum Planned {
    /// It is rolled back.
    Undone(Undone),
    /// It is committed, and nobody is told.
    AnswerLost,
    /// It is not, and nobody is told.
    RequestLost,
}

impl Rows {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { store: Faulty::new(), shared: Arc::default() })
    }

    pub fn committed(&self) -> Vec<String> {
        self.shared.committed.lock().unwrap().clone()
    }

    pub fn ends(&self, planned: Planned) {
        self.shared.ends.lock().unwrap().push_back(planned);
    }

    /// How often a transaction was begun.
    pub fn begun(&self) -> u64 {
        *self.shared.begun.lock().unwrap()
    }

    pub fn held(&self) -> usize {
        self.shared.locked.lock().unwrap().len()
    }
}

/// An open transaction: rows that are not committed yet, and perhaps the lock of an address.
pub struct Open {
    store: Faulty,
    shared: Arc<Shared>,
    pending: Vec<String>,
    lock: Option<Address>,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(address) = &self.lock {
            self.shared.locked.lock().unwrap().remove(address);
        }
    }
}

impl Transactional for Rows {
    type Open = Open;

    async fn begin(&self, address: &Address, opening: &Write) -> Result<Begun<Open>, StoreError> {
        *self.shared.begun.lock().unwrap() += 1;
        let locked = !self.shared.locked.lock().unwrap().insert(address.clone());
        let mut open = self.open().await?;
        open.lock = (!locked).then(|| address.clone());
        let present = self.store.load(address).await?;
        if !opening.expect.allows(present.as_ref()) {
            return Ok(Begun::Seen(present));
        }
        Ok(if locked { Begun::Locked } else { Begun::Won(open) })
    }

    async fn open(&self) -> Result<Open, StoreError> {
        let (store, shared) = (self.store.clone(), Arc::clone(&self.shared));
        Ok(Open { store, shared, pending: Vec::new(), lock: None })
    }
}

impl OpenTransaction for Open {
    type Handle = Vec<String>;

    fn handle(&mut self) -> &mut Vec<String> {
        &mut self.pending
    }

    async fn undo(&mut self) -> Result<(), StoreError> {
        self.pending.clear();
        Ok(())
    }

    async fn commit(self, address: &Address, write: &Write) -> Result<Committed, StoreError> {
        let planned = self.shared.ends.lock().unwrap().pop_front();
        match planned {
            Some(Planned::Undone(why)) => return Ok(Committed::No(why)),
            Some(Planned::RequestLost) => {
                return Err(StoreError::new(ErrorKind::Unknown, "losing a commit on its way"));
            }
            Some(Planned::AnswerLost) | None => {}
        }
        let committed = match self.store.write_if(address, write).await? {
            Written::Yes(fence) => {
                self.shared.committed.lock().unwrap().extend(self.pending.iter().cloned());
                Committed::Yes(fence)
            }
            Written::No(_) => Committed::No(Undone::Stale),
        };
        match planned {
            Some(_) => Err(StoreError::new(ErrorKind::Unknown, "losing the answer of a commit")),
            None => Ok(committed),
        }
    }

    async fn roll_back(self) {}
}

impl Store for Rows {
    fn capability(&self) -> Capability {
        self.store.capability()
    }

    fn now(&self) -> Result<Wall, StoreError> {
        self.store.now()
    }

    fn load<'a>(&'a self, address: &'a Address) -> StoreFuture<'a, Option<Record>> {
        self.store.load(address)
    }

    fn write_if<'a>(&'a self, address: &'a Address, write: &'a Write) -> StoreFuture<'a, Written> {
        self.store.write_if(address, write)
    }

    fn remove_if<'a>(&'a self, address: &'a Address, guard: RemoveIf) -> StoreFuture<'a, bool> {
        self.store.remove_if(address, guard)
    }

    fn due<'a>(&'a self, due: Due, now: Wall, limit: usize) -> StoreFuture<'a, Vec<(Address, Record)>> {
        self.store.due(due, now, limit)
    }

    fn locate<'a>(&'a self, namespace: &'a Namespace, status: StatusId) -> StoreFuture<'a, Option<Address>> {
        self.store.locate(namespace, status)
    }

    fn end_resource<'a>(
        &'a self,
        namespace: &'a Namespace,
        account: &'a Account,
        resource: &'a ResourceId,
        expires_at: Wall,
    ) -> StoreFuture<'a, usize> {
        self.store.end_resource(namespace, account, resource, expires_at)
    }

    fn list<'a>(
        &'a self,
        filter: &'a Filter,
        cursor: Option<&'a Address>,
        limit: usize,
    ) -> StoreFuture<'a, Vec<(Address, Record)>> {
        self.store.list(filter, cursor, limit)
    }

    fn census<'a>(&'a self) -> StoreFuture<'a, Census> {
        self.store.census()
    }

    fn duplicate_effects<'a>(
        &'a self,
        from: Wall,
        to: Wall,
        within: Duration,
    ) -> StoreFuture<'a, Option<u64>> {
        self.store.duplicate_effects(from, to, within)
    }
}
