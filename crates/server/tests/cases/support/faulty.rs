//! A store that fails as a test tells it to, counts what it is asked, and can be stopped at any write.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use retrysafe_core::{
    address::{Account, Address, Namespace},
    ids::StatusId,
    record::{Expect, Record, RemoveIf, ResourceId, State, Write},
    time::Wall,
};
use retrysafe_store::{
    Capability, Census, Due, ErrorKind, Filter, Store, StoreError, StoreFuture, Written,
    clock::ManualClock,
    memory::{MemoryOptions, MemoryStore},
};
use tokio::sync::{Semaphore, watch};

/// What a store is asked to do, as a test names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    Load,
    Claim,
    Renew,
    Complete,
    Hold,
    /// Somebody else marks a claim uncertain whose lease has ended.
    Mark,
    Remove,
    Locate,
    EndResource,
}

/// What happens instead.
#[derive(Clone)]
pub enum Fault {
    /// Nothing is done, and the caller is told.
    Fail(ErrorKind),
    /// It is done, and the caller is told that nobody knows (R6).
    LoseReply,
    /// It is not done, and the caller is told that nobody knows.
    LoseRequest,
    /// It is done when the test opens the gate, whether the caller still waits or not.
    Block(Gate),
}

/// Stops whoever comes until it is opened.
#[derive(Clone)]
pub struct Gate {
    reached: watch::Sender<u64>,
    open: Arc<Semaphore>,
}

impl Gate {
    pub fn closed() -> Self {
        Self { reached: watch::Sender::new(0), open: Arc::new(Semaphore::new(0)) }
    }

    pub fn open() -> Self {
        let gate = Self::closed();
        gate.open.close();
        gate
    }

    /// Passes once it is open.
    pub async fn pass(&self) {
        self.reached.send_modify(|reached| *reached += 1);
        if let Ok(permit) = self.open.acquire().await {
            permit.forget();
        }
    }

    /// Waits until `callers` in all have come to it.
    pub async fn reached(&self, callers: u64) {
        let _ = self.reached.subscribe().wait_for(|reached| *reached >= callers).await;
    }

    pub fn arrivals(&self) -> u64 {
        *self.reached.borrow()
    }

    /// Lets `callers` through.
    pub fn let_through(&self, callers: usize) {
        self.open.add_permits(callers);
    }

    /// Lets everybody through from now on.
    pub fn release(&self) {
        self.open.close();
    }
}

/// The memory store behind faults. Clones are the same store.
#[derive(Clone)]
pub struct Faulty {
    inner: Arc<MemoryStore>,
    clock: ManualClock,
    shared: Arc<Mutex<Shared>>,
    capability: Capability,
}

#[derive(Default)]
struct Shared {
    once: HashMap<Call, VecDeque<Fault>>,
    always: HashMap<Call, Fault>,
    counts: HashMap<Call, usize>,
}

impl Faulty {
    pub fn new() -> Self {
        let clock = ManualClock::at(Wall::from_unix_ms(1_800_000_000_000));
        let options = MemoryOptions { clock: Arc::new(clock.clone()), ..MemoryOptions::default() };
        let inner = Arc::new(MemoryStore::new(options));
        // A contract that says `atomic` is about the handler; what the store offers is not under test here.
        let capability = Capability { transactions: true, ..inner.capability() };
        Self { inner, clock, shared: Arc::default(), capability }
    }

    /// The next call of this kind meets the fault; several are met in turn.
    pub fn once(&self, call: Call, fault: Fault) -> &Self {
        self.shared.lock().unwrap().once.entry(call).or_default().push_back(fault);
        self
    }

    /// Every call of this kind meets the fault, from now on.
    pub fn always(&self, call: Call, fault: Fault) -> &Self {
        self.shared.lock().unwrap().always.insert(call, fault);
        self
    }

    /// The next call of this kind stops at the returned gate.
    pub fn block(&self, call: Call) -> Gate {
        let gate = Gate::closed();
        self.once(call, Fault::Block(gate.clone()));
        gate
    }

    /// The store is down, in every respect.
    pub fn down(&self) {
        for call in
            [Call::Load, Call::Claim, Call::Renew, Call::Complete, Call::Hold, Call::Mark, Call::Remove]
        {
            self.always(call, Fault::Fail(ErrorKind::Unavailable));
        }
    }

    /// No faults any more.
    pub fn heal(&self) {
        let mut shared = self.shared.lock().unwrap();
        shared.once.clear();
        shared.always.clear();
    }

    /// How often it was asked for this.
    pub fn count(&self, call: Call) -> usize {
        self.shared.lock().unwrap().counts.get(&call).copied().unwrap_or(0)
    }

    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Time passes for the store and for tokio's paused clock alike, in steps, so that whoever wakes in between finds
    /// the right time.
    pub async fn pass(&self, time: Duration) {
        let steps = (time / 200).clamp(Duration::from_millis(50), Duration::from_secs(1));
        let mut left = time;
        while !left.is_zero() {
            let step = left.min(steps);
            self.clock.advance(step);
            tokio::time::advance(step).await;
            settle_down().await;
            left -= step;
        }
    }

    /// Every record, without meeting a fault or counting.
    pub async fn records(&self) -> Vec<(Address, Record)> {
        self.inner.list(&Filter::default(), None, 10_000).await.unwrap()
    }

    /// The one record there is.
    pub async fn record(&self) -> Record {
        let mut records = self.records().await;
        assert_eq!(records.len(), 1, "{records:?}");
        records.remove(0).1
    }

    /// The state of the one record there is: `in_flight`, `uncertain` or `completed`; `absent`.
    pub async fn state(&self) -> &'static str {
        match self.records().await.as_slice() {
            [] => "absent",
            [(_, record)] => match record.state {
                State::InFlight { .. } => "in_flight",
                State::Uncertain { .. } => "uncertain",
                State::Completed { .. } => "completed",
            },
            several => panic!("{several:?}"),
        }
    }

    fn fault(&self, call: Call) -> Option<Fault> {
        let mut shared = self.shared.lock().unwrap();
        *shared.counts.entry(call).or_default() += 1;
        let once = shared.once.get_mut(&call).and_then(VecDeque::pop_front);
        once.or_else(|| shared.always.get(&call).cloned())
    }

    /// Runs `act` under the fault planned for `call`. What was started ends, even if the caller has gone.
    async fn under<T: Send + 'static>(
        &self,
        call: Call,
        act: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let unknown = || StoreError::new(ErrorKind::Unknown, "losing a reply");
        match self.fault(call) {
            None => act.await,
            Some(Fault::Fail(kind)) => Err(StoreError::new(kind, "failing as told")),
            Some(Fault::LoseReply) => {
                act.await?;
                Err(unknown())
            }
            Some(Fault::LoseRequest) => Err(unknown()),
            Some(Fault::Block(gate)) => {
                let act = async move {
                    gate.pass().await;
                    act.await
                };
                tokio::spawn(act).await.unwrap()
            }
        }
    }
}

/// Gives every task that can go on its turn.
pub async fn settle_down() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

fn kind_of(write: &Write) -> Call {
    match (&write.next.state, write.expect) {
        (State::InFlight { .. }, _) if write.opens_claim() => Call::Claim,
        (State::InFlight { .. }, _) => Call::Renew,
        (State::Completed { .. }, _) => Call::Complete,
        (State::Uncertain { .. }, Expect::Takeover { .. }) => Call::Mark,
        (State::Uncertain { .. }, _) => Call::Hold,
    }
}

impl Store for Faulty {
    fn capability(&self) -> Capability {
        self.capability
    }

    fn now(&self) -> Result<Wall, StoreError> {
        self.inner.now()
    }

    fn load<'a>(&'a self, address: &'a Address) -> StoreFuture<'a, Option<Record>> {
        let (inner, address) = (Arc::clone(&self.inner), address.clone());
        Box::pin(self.under(Call::Load, async move { inner.load(&address).await }))
    }

    fn write_if<'a>(&'a self, address: &'a Address, write: &'a Write) -> StoreFuture<'a, Written> {
        let (inner, address, write) = (Arc::clone(&self.inner), address.clone(), write.clone());
        Box::pin(self.under(kind_of(&write), async move { inner.write_if(&address, &write).await }))
    }

    fn remove_if<'a>(&'a self, address: &'a Address, guard: RemoveIf) -> StoreFuture<'a, bool> {
        let (inner, address) = (Arc::clone(&self.inner), address.clone());
        Box::pin(self.under(Call::Remove, async move { inner.remove_if(&address, guard).await }))
    }

    fn due<'a>(&'a self, due: Due, now: Wall, limit: usize) -> StoreFuture<'a, Vec<(Address, Record)>> {
        self.inner.due(due, now, limit)
    }

    fn locate<'a>(&'a self, namespace: &'a Namespace, status: StatusId) -> StoreFuture<'a, Option<Address>> {
        let (inner, namespace) = (Arc::clone(&self.inner), namespace.clone());
        Box::pin(self.under(Call::Locate, async move { inner.locate(&namespace, status).await }))
    }

    fn end_resource<'a>(
        &'a self,
        namespace: &'a Namespace,
        account: &'a Account,
        resource: &'a ResourceId,
        expires_at: Wall,
    ) -> StoreFuture<'a, usize> {
        let inner = Arc::clone(&self.inner);
        let (namespace, account, resource) = (namespace.clone(), account.clone(), resource.clone());
        Box::pin(self.under(Call::EndResource, async move {
            inner.end_resource(&namespace, &account, &resource, expires_at).await
        }))
    }

    fn list<'a>(
        &'a self,
        filter: &'a Filter,
        cursor: Option<&'a Address>,
        limit: usize,
    ) -> StoreFuture<'a, Vec<(Address, Record)>> {
        self.inner.list(filter, cursor, limit)
    }

    fn census<'a>(&'a self) -> StoreFuture<'a, Census> {
        self.inner.census()
    }
}
