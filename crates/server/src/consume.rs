//! The guard for any function that is called at least once: queue consumers, webhooks, jobs (SPEC 11.3).
//!
//! The event's own id is the key. Its reservation is made in the transaction that the function writes through (O7), and
//! the result is kept as bytes in the same commit. So of two deliveries of one event at once, one writes; a later one gets
//! the kept result; and a function that fails leaves no mark that would make its event look done (O6).
//!
//! ```
//! # use std::{sync::Arc, time::Duration};
//! # use retrysafe_core::fingerprint::{DeploymentKey, FingerprintKeys};
//! # use retrysafe_server::consume::{Consumed, Consumer, Event, Terms};
//! # use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let keys = FingerprintKeys::new(DeploymentKey::new(1, &[7; 32])?);
//! let store = Arc::new(SqliteStore::open(SqliteOptions::new(folder.path().join("invoices.db")))?);
//! store.define("CREATE TABLE invoice (order_id TEXT)").await?;
//! let consumer = Consumer::new(store, Terms::new("invoices", Duration::from_secs(72 * 3600))?, keys);
//!
//! let event = Event { source: "billing", id: "evt_1", payload: b"{\"order\": \"o-1\"}" };
//! let done = consumer.guard_sync(&event, |tx| {
//!     tx.execute("INSERT INTO invoice VALUES ('o-1')", [])?;
//!     Ok::<_, retrysafe_server::BoxError>("invoice 1".into())
//! }).await?;
//! assert_eq!(done, Consumed::Done("invoice 1".into()));
//! let again = consumer.guard_sync(&event, |_| -> Result<_, retrysafe_server::BoxError> { unreachable!() }).await?;
//! assert_eq!(again, Consumed::Replayed("invoice 1".into()));
//! # Ok(())
//! # }
//! ```
//!
//! A function that calls outside is a plan of [steps](Consumer::steps) instead.
//!
//! # Limits
//! - Deliveries are told apart for the length of the window, from the end of the first run on. It is to be at least as
//!   long as the sender goes on sending.
//! - What the function does outside of the transaction is not taken back with it.

mod open;
#[cfg(feature = "sqlite")]
mod sqlite;
mod steps;

use std::{sync::Arc, time::Duration};

pub use bytes::Bytes;
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    claim::{Opened, Times},
    codes::Code,
    contract::{InFlight, InFlightAnswer},
    decide::{Asked, Decision, Rules, decide},
    fingerprint::{BodyRules, Fingerprint, FingerprintInput, FingerprintKeys, Match, compute, verify},
    outcome::{Body, Outcome},
    record::{Record, RecoveryClass, RemoveIf, State, Write},
    time::Wall,
};
use retrysafe_store::{Due, ErrorKind, Store, StoreError, transactional::Undone};

use crate::{body::BoxError, engine::fresh};

/// Rounds of "decide, try, lost, decide again", as for requests: more than a few in a row point to a broken store.
const ROUNDS_MAX: u32 = 16;
/// The most bytes of an event id, and of a result.
const ID_MAX: usize = 255;
const RESULT_MAX: usize = 1 << 20;
/// How long a claim of an event in steps is kept without a renewal, where nothing else is said. One in a transaction lives with
/// that, so its lease is never looked at; a record has to name one.
const LEASE: Duration = Duration::from_secs(30);
/// The shortest lease: it is renewed three times in its length, and a store may take a while.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// How long a kept result stands beyond its window, for people.
const REAP: Duration = Duration::from_secs(72 * 3600);
const POLICY: InFlight = InFlight { answer: InFlightAnswer::Refuse, retry_after: Duration::from_secs(1) };

/// What holds for all events of a consumer.
#[derive(Clone, Debug)]
pub struct Terms {
    namespace: Namespace,
    /// What records and metrics call it.
    name: Arc<str>,
    window: Duration,
    reap: Duration,
    lease: Duration,
}

impl Terms {
    /// Events of the consumer `name` are told apart for `window`. Two consumers of one event each have a name of their own.
    ///
    /// # Errors
    /// [`BadEvent`]: the name is not 1 to 64 of `a-z 0-9 - _ .`.
    pub fn new(name: &str, window: Duration) -> Result<Self, BadEvent> {
        let namespace = Namespace::new(name).map_err(|fault| BadEvent(fault.to_string()))?;
        Ok(Self { namespace, name: name.into(), window, reap: REAP.max(window), lease: LEASE })
    }

    /// Events in [steps](Consumer::steps) are kept for `lease` without a renewal: so long nobody goes on with what a lost process
    /// held. Default: 30 s. Events in one transaction need none.
    ///
    /// # Errors
    /// [`BadEvent`]: it is below a second, in which it could not be renewed in time.
    pub fn lease(mut self, lease: Duration) -> Result<Self, BadEvent> {
        if lease < LEASE_MIN {
            return Err(BadEvent(format!(
                "a lease of {lease:?} cannot be renewed in time; give it {LEASE_MIN:?} or more"
            )));
        }
        self.lease = lease;
        Ok(self)
    }

    fn times(&self) -> Times {
        Times { replay: self.window, reap: self.reap }
    }
}

/// One delivery of an event.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    /// Who sends it: ids of two senders are never mistaken for each other.
    pub source: &'a str,
    /// Its id, the same at every delivery. Printable ASCII, up to 255 bytes.
    pub id: &'a str,
    /// Its content: another content under the same id is a fault of the sender, and not run.
    pub payload: &'a [u8],
}

/// What became of a delivery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Consumed {
    /// The function ran, and this is its result. Acknowledge.
    Done(Bytes),
    /// It ran at an earlier delivery, with this result. Acknowledge.
    Replayed(Bytes),
    /// It ran, and its result was too long to be kept. Acknowledge.
    NotKept,
    /// Another delivery of it is being worked on, and may still fail: let it come again.
    InFlight,
    /// The same id with another content: nobody can say which is right. Put it where people look.
    Mismatch,
    /// A record stands there that this build cannot judge: it may have been done. Put it where people look.
    OutcomeUnknown,
}

/// Why a delivery was not done. Nothing of it is kept, except where it says so: let it come again, or give up on it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumeError {
    /// The function failed with this.
    #[error("the function failed, and its writes are rolled back; the event is free to come again")]
    Failed(#[source] BoxError),
    /// The function panicked.
    #[error("the function panicked, and its writes are rolled back; the event is free to come again")]
    Panicked,
    /// The database rolled the transaction back at its end.
    #[error("the transaction was rolled back ({0:?}); the event is free to come again")]
    Undone(Undone),
    /// The commit had no answer. Let it come again: the next delivery finds out.
    #[error("whether the transaction was committed is not known; let the event come again, which finds out")]
    Unknown,
    /// The store failed.
    #[error("the store failed; let the event come again")]
    Store(#[source] StoreError),
    /// It is to run in steps, and nobody gave the recovery such a plan, or this consumer.
    #[error("{0}")]
    NoSteps(&'static str),
    /// There is no such event.
    #[error(transparent)]
    Bad(#[from] BadEvent),
}

/// A name, source or id that cannot be one.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadEvent(String);

/// Guards the functions of one consumer. Clones share the database.
pub struct Consumer<D> {
    database: Arc<D>,
    terms: Arc<Terms>,
    keys: Arc<FingerprintKeys>,
}

impl<D> Clone for Consumer<D> {
    fn clone(&self) -> Self {
        let Self { database, terms, keys } = self;
        Self { database: Arc::clone(database), terms: Arc::clone(terms), keys: Arc::clone(keys) }
    }
}

impl<D> std::fmt::Debug for Consumer<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").field("terms", &self.terms).finish_non_exhaustive()
    }
}

/// What to do with a delivery next.
enum Step {
    /// Try to win it with this.
    Try(Box<Write>),
    Told(Consumed),
}

/// A delivery, addressed and fingerprinted.
struct Delivery {
    address: Address,
    fingerprint: Fingerprint,
    verify: Box<dyn Fn(&Fingerprint) -> Match + Send + Sync>,
}

impl<D: Store> Consumer<D> {
    /// A consumer whose events are kept in `database`. The keys are those of the deployment, and outlive the process.
    pub fn new(database: Arc<D>, terms: Terms, keys: FingerprintKeys) -> Self {
        Self { database, terms: Arc::new(terms), keys: Arc::new(keys) }
    }

    /// The database.
    pub fn database(&self) -> &Arc<D> {
        &self.database
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.terms.namespace
    }

    pub(crate) fn window(&self) -> Duration {
        self.terms.window
    }

    pub(crate) fn keys(&self) -> &FingerprintKeys {
        &self.keys
    }

    /// Deletes up to `limit` results whose time is over; returns how many. Where a layer runs
    /// [`upkeep`](crate::Retrysafe::upkeep) on the same store, that does it.
    ///
    /// # Errors
    /// As the store's own calls.
    pub async fn reap(&self, limit: usize) -> Result<usize, StoreError> {
        let now = self.database.now()?;
        if let Some(reaped) = self.database.reap_batch(now, limit).await? {
            return Ok(reaped);
        }
        let mut reaped = 0;
        for (address, record) in self.database.due(Due::Reapable, now, limit).await? {
            let guard = RemoveIf::Reapable { attempt: record.attempt, by: now };
            reaped += usize::from(self.database.remove_if(&address, guard).await?);
        }
        Ok(reaped)
    }

    fn deliver(&self, event: &Event<'_>) -> Result<Delivery, BadEvent> {
        if event.id.len() > ID_MAX {
            return Err(BadEvent(format!(
                "an event id has {} bytes, and up to {ID_MAX} are kept",
                event.id.len()
            )));
        }
        let account = Account::new(&[event.source]).map_err(|fault| BadEvent(fault.to_string()))?;
        let key = Key::trusted(event.id).map_err(|fault| BadEvent(fault.to_string()))?;
        let input = Input {
            name: self.terms.namespace.as_str().into(),
            payload: Bytes::copy_from_slice(event.payload),
        };
        let fingerprint = input.with(|input| compute(input, self.keys.current()));
        let keys = Arc::clone(&self.keys);
        let verify = move |stored: &Fingerprint| match *stored == fingerprint {
            true => Match::Same,
            false => input.with(|input| verify(stored, input, &keys)),
        };
        let address = Address::new(self.terms.namespace.clone(), account, key);
        Ok(Delivery { address, fingerprint, verify: Box::new(verify) })
    }

    /// The same decision as for a request (F14: a mismatch before anything else).
    fn step(
        &self,
        delivery: &Delivery,
        seen: Option<&Record>,
        recovery: RecoveryClass,
    ) -> Result<Step, StoreError> {
        let asked =
            Asked { fingerprint: delivery.fingerprint, verify: &*delivery.verify, prefers_async: false };
        let rules = Rules {
            endpoint: &self.terms.name,
            contract_version: 1,
            recovery,
            lease: self.terms.lease,
            in_flight: &POLICY,
        };
        let told = match decide(seen, &asked, &rules, fresh()?, self.database.now()?) {
            Decision::Claim(write) => return Ok(Step::Try(Box::new(write))),
            Decision::Replay(outcome) => match &outcome.body {
                Body::Kept(bytes) => Consumed::Replayed(bytes.clone()),
                Body::NotKept(_) => Consumed::NotKept,
            },
            Decision::Refuse(refusal) if refusal.code == Code::PayloadMismatch => Consumed::Mismatch,
            Decision::Refuse(refusal) if refusal.code == Code::KeyInFlight => Consumed::InFlight,
            Decision::Wait(_) | Decision::Accept { .. } => Consumed::InFlight,
            Decision::Refuse(_) | Decision::Uncertain(_) | Decision::MarkUncertain(_) => {
                Consumed::OutcomeUnknown
            }
        };
        Ok(Step::Told(told))
    }

    /// The write that keeps `result`, and whether all of it is kept.
    fn ending(&self, opened: Opened, result: &Bytes, now: Wall) -> Write {
        let body = match result.len() > RESULT_MAX {
            true => Body::NotKept(retrysafe_core::outcome::NotKept::TooLarge),
            false => Body::Kept(result.clone()),
        };
        let outcome = Outcome { status: 200, headers: Vec::new(), body, trailers: Vec::new() };
        opened.complete(outcome, self.terms.times(), None, now)
    }

    /// After a commit that had no answer: what is there decides, and absence decides nothing (protocol 19).
    async fn look(
        &self,
        address: &Address,
        attempt: retrysafe_core::ids::AttemptId,
        result: Option<Bytes>,
    ) -> Result<Consumed, ConsumeError> {
        match self.database.load(address).await {
            Ok(Some(Record { attempt: found, state: State::Completed { outcome, .. }, .. }))
                if found == attempt =>
            {
                Ok(match (result, &outcome.body) {
                    (Some(result), _) => Consumed::Done(result),
                    (None, Body::Kept(bytes)) => Consumed::Done(bytes.clone()),
                    (None, Body::NotKept(_)) => Consumed::NotKept,
                })
            }
            Ok(_) | Err(_) => Err(ConsumeError::Unknown),
        }
    }
}

/// What is hashed of an event.
struct Input {
    name: Box<str>,
    payload: Bytes,
}

impl Input {
    fn with<T>(&self, hash: impl FnOnce(&FingerprintInput<'_>) -> T) -> T {
        hash(&FingerprintInput {
            method: "CONSUME",
            route: &self.name,
            path: &self.name,
            query: None,
            headers: &[],
            content_type: None,
            content_encoding: None,
            body: &self.payload,
            rules: &BodyRules::default(),
        })
    }
}

/// The error of a consumer that found a key changing under its hands too often.
fn too_many_rounds() -> StoreError {
    StoreError::new(ErrorKind::Unavailable, "claiming an event whose record keeps changing")
}
