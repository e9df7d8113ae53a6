//! Requests of several steps (SPEC 5.3): a plan of named steps that can be killed anywhere, and goes on where it stopped.
//!
//! A [`Plan`] is a function and its [`Shape`]. It calls [`Steps::phase`] (on SQLite `phase_sync`) for local work, which is
//! committed together with its recovery point, and [`Steps::external`] for one foreign mutation, whose **intent is written before
//! the call**. When the request is sent again, or when nobody does and a completer goes on with it, the same function runs
//! from its beginning: what is done gives its recorded result and does nothing.
//!
//! | a step that is resumed | does |
//! |---|---|
//! | done | nothing; its recorded result is returned |
//! | not begun | runs |
//! | intent without result, can ask | asks the provider by the downstream key |
//! | intent without result, provider de-duplicates, young enough | sends the stored bytes again, with the same key |
//! | intent without result, else | stops: the key is uncertain, and a person sees the evidence |
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use retrysafe_server::{Retrysafe, Reply, recovery::{CallFault, External, Halt, Phase, Plan, Recovery, Request, Shape, Steps}};
//! # use retrysafe_store::sqlite::SqliteStore;
//! # use serde::{Deserialize, Serialize};
//! # #[derive(Serialize, Deserialize)]
//! # struct NewRide { cents: u32 }
//! # async fn charge(key: &str, body: &[u8]) -> Result<String, CallFault> { unimplemented!() }
//! # fn recovery(retrysafe: &Retrysafe, store: Arc<SqliteStore>) -> Result<(), Box<dyn std::error::Error>> {
//! let shape = Shape::new("rides")?.phase("create")?.external("charge", External::ASK)?.phase("finish")?;
//! let plan = Plan::new(shape, |mut steps: Steps<SqliteStore>, request: Request<NewRide>| async move {
//!     let cents = request.fields.cents;
//!     steps.phase_sync("create", move |tx| {
//!         tx.execute("INSERT INTO ride (cents) VALUES (?1)", [cents])?;
//!         Ok(Phase::Point(()))
//!     }).await?;
//!     let receipt: String = steps.external("charge", &cents, |call| async move {
//!         charge(call.key(), call.body()).await
//!     }).await?;
//!     steps.answer_sync("finish", move |tx| {
//!         tx.execute("UPDATE ride SET receipt = ?1", [&receipt])?;
//!         Ok(Reply::json(201, &receipt))
//!     }).await
//! });
//! let recovery = Recovery::of(retrysafe, store).plan(plan).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//! - A plan takes the same way when it is given the same results. Whatever it decides by comes from its request or a step.
//! - What is kept to run it without its caller is a principal id and the fields that the plan's request type declares
//!   (protocol 25). Declare no credentials and no card data.
//! - A fence and a downstream key protect only where the provider compares them.

mod attempt;
mod completer;
#[cfg(feature = "axum")]
mod door;
mod drainer;
mod http;
mod meters;
mod phase;
mod points;
mod steps;
mod waiting;

use std::{collections::HashMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use retrysafe_core::{
    contract::{Contract, Faults},
    recovery::Snapshot,
};
use retrysafe_store::{Store, journal::Journal};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

pub use completer::{Pass, Patience};
#[cfg(feature = "axum")]
pub use door::{DoorSecret, DoorSecretFault};
pub use drainer::{Effect, NotSent};
#[cfg(feature = "sqlite")]
pub use phase::SqlitePhaseTx;
pub use phase::{Phase, PhaseTx};
pub use points::{Observe, Point};
pub use retrysafe_core::recovery::{BadName, External, Resend, Shape, Terms};
pub use steps::{Asked, Call, CallFault, Found, Halt, Steps};

#[cfg(feature = "axum")]
pub(crate) use http::declared;
pub(crate) use http::{Ended, Home, attempt};

use crate::{BuildFault, Retrysafe, consume::Consumer, reply::Reply};
use drainer::Sender;
use meters::Meters;

/// What a plan's function returns.
type Running = Pin<Box<dyn Future<Output = Result<Reply, Halt>> + Send>>;

/// The function, given what was kept of the request.
type Run<D> = dyn Fn(Steps<D>, &Snapshot) -> Result<Running, serde_json::Error> + Send + Sync;

/// A function of steps, and their shape.
pub struct Plan<D> {
    shape: Arc<Shape>,
    run: Arc<Run<D>>,
}

/// What a plan is run with: at the first attempt and at every later one.
#[derive(Debug)]
pub struct Request<I> {
    /// Whom it is done for.
    pub principal: Box<str>,
    /// The declared fields.
    pub fields: I,
}

impl<D> Plan<D> {
    /// The plan of this `shape` that `run` carries out. `run` is called once for each attempt.
    pub fn new<I, W, F>(shape: Shape, run: W) -> Self
    where
        I: DeserializeOwned,
        W: Fn(Steps<D>, Request<I>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Reply, Halt>> + Send + 'static,
    {
        let run = move |steps, request: &Snapshot| {
            let fields = serde_json::from_slice(&request.fields)?;
            Ok(Box::pin(run(steps, Request { principal: request.principal.clone(), fields })) as Running)
        };
        Self { shape: Arc::new(shape), run: Arc::new(run) }
    }
}

impl<D> Clone for Plan<D> {
    fn clone(&self) -> Self {
        Self { shape: Arc::clone(&self.shape), run: Arc::clone(&self.run) }
    }
}

/// The plans of a service, with what completes their abandoned requests and sends their staged effects. Cheap to clone.
pub struct Recovery<D> {
    shared: Arc<Shared<D>>,
}

struct Shared<D> {
    retrysafe: Retrysafe,
    database: Arc<D>,
    plans: HashMap<Arc<str>, Plan<D>>,
    senders: HashMap<Box<str>, Sender>,
    terms: Terms,
    patience: Patience,
    observe: Observe,
    meters: Meters,
    consumers: HashMap<Arc<str>, Arc<dyn Home>>,
    waiting: waiting::Waiting,
}

impl<D> Clone for Recovery<D> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<D> std::fmt::Debug for Recovery<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plans: Vec<_> = self.shared.plans.keys().collect();
        f.debug_struct("Recovery").field("plans", &plans).finish_non_exhaustive()
    }
}

/// Sets up a [`Recovery`].
#[must_use]
pub struct RecoveryBuilder<D> {
    retrysafe: Retrysafe,
    database: Arc<D>,
    plans: Vec<Plan<D>>,
    senders: HashMap<Box<str>, Sender>,
    consumers: Vec<Consumer<D>>,
    terms: Terms,
    patience: Patience,
    observe: Observe,
}

/// Why a [`Recovery`] could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryFault {
    /// Two plans of one name would each be given the other's requests.
    #[error("two plans are called `{0}`; give each a name of its own")]
    TwoPlans(Arc<str>),
    /// A service that only consumes has to have a consumer.
    #[error("no consumer was named, so there are no events to guard")]
    NoConsumer,
    /// The store cannot keep what events in steps need.
    #[error("events in steps cannot be guarded here: {0}")]
    Unguarded(#[from] BuildFault),
    /// A time is none that a contract may have.
    #[error("events in steps cannot be guarded so: {0}")]
    NoContract(#[from] Faults),
    /// The layer decides in another store, so its claims would not guard what is written here.
    #[error(
        "plans write to another database than the one the layer decides in; pass the store that the layer was built with"
    )]
    AnotherStore,
}

impl<D: Journal> Recovery<D> {
    /// Plans whose requests are guarded by `retrysafe` and whose journals are in `database`, the store of that layer.
    pub fn of(retrysafe: &Retrysafe, database: Arc<D>) -> RecoveryBuilder<D> {
        RecoveryBuilder {
            retrysafe: retrysafe.clone(),
            database,
            plans: Vec::new(),
            senders: HashMap::new(),
            consumers: Vec::new(),
            terms: Terms::default(),
            patience: Patience::default(),
            observe: Observe::default(),
        }
    }

    /// Plans of a service that only consumes: it answers no requests, so there is no contract to write. Events of `consumers`
    /// run in its steps. An attempt at one may take `longest`; past that its lease may end, and somebody else goes on with it.
    ///
    /// Spawn [`Recovery::upkeep`] as well as [`Recovery::run`] there: no layer does it.
    ///
    /// # Errors
    /// [`RecoveryFault`]: there is no consumer, or `longest` is no time that a contract may have.
    pub fn of_consumers(
        consumers: &[Consumer<D>],
        longest: Duration,
    ) -> Result<RecoveryBuilder<D>, RecoveryFault> {
        let first = consumers.first().ok_or(RecoveryFault::NoConsumer)?;
        let chain = consumers.iter().map(Consumer::window).max().unwrap_or_default();
        let (database, contract) =
            (Arc::clone(first.database()), Contract::of_events(first.namespace(), chain, longest)?);
        let layer = Retrysafe::builder(contract, database.clone()).fingerprint_keys(first.keys().clone());
        let builder = Self::of(&layer.build()?, database);
        Ok(consumers.iter().fold(builder, RecoveryBuilder::consumer))
    }

    /// What [`Retrysafe::upkeep`](crate::Retrysafe::upkeep) of its layer does, until `stop`: where somebody has the layer it is
    /// called there.
    pub async fn upkeep(&self, stop: CancellationToken) {
        self.shared.retrysafe.upkeep(stop).await;
    }

    /// The database.
    pub fn database(&self) -> &Arc<D> {
        &self.shared.database
    }

    /// The plan of that name.
    pub(crate) fn plan(&self, name: &str) -> Option<Plan<D>> {
        self.shared.plans.get(name).cloned()
    }

    /// What is said of the events of that consumer.
    pub(crate) fn consumer(&self, name: &str) -> Option<Arc<dyn Home>> {
        self.shared.consumers.get(name).cloned()
    }

    /// After how long somebody goes on after a failure.
    pub(crate) fn first_pause(&self) -> std::time::Duration {
        retrysafe_core::recovery::pause(&self.shared.terms, 1, 0)
    }

    /// An event was claimed, or taken over.
    pub(crate) fn claimed(&self, consumer: &str, taken_over: Option<&retrysafe_core::record::Record>) {
        self.shared.retrysafe.guard.engine.meters.claimed(consumer, taken_over);
    }

    /// The answer of `record` was replayed.
    pub(crate) fn replayed(&self, record: &retrysafe_core::record::Record) {
        if let Some(operation) = crate::replays::journal_of(record) {
            self.shared.retrysafe.guard.engine.replayed_of(operation);
        }
    }

    /// An attempt ended.
    pub(crate) fn attempted(&self, by: retrysafe_core::recovery::Attended, ended: &Ended) {
        self.shared.meters.attempted(by, ended);
    }
}

impl<D: Store> RecoveryBuilder<D> {
    /// With a plan more.
    pub fn plan(mut self, plan: Plan<D>) -> Self {
        self.plans.push(plan);
        self
    }

    /// Staged effects called `name` are sent by `send`.
    pub fn effect<W, F>(mut self, name: &str, send: W) -> Self
    where
        W: Fn(Effect) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), NotSent>> + Send + 'static,
    {
        self.senders.insert(name.into(), Arc::new(move |effect| Box::pin(send(effect))));
        self
    }

    /// Events of this consumer run in steps ([`Consumer::steps`]), and abandoned ones are completed.
    pub fn consumer(mut self, consumer: &Consumer<D>) -> Self {
        self.consumers.push(consumer.clone());
        self
    }

    /// How often and how long a completer tries.
    pub fn terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// How busy completers and drainers are.
    pub fn patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Calls `observe` at every point at which a crash would leave something else behind. For logs and tests.
    pub fn observe(mut self, observe: impl Fn(Point<'_>) + Send + Sync + 'static) -> Self {
        self.observe = Observe::new(observe);
        self
    }

    /// The plans, ready.
    ///
    /// # Errors
    /// [`RecoveryFault`] says what does not fit.
    pub fn build(self) -> Result<Recovery<D>, RecoveryFault> {
        let Self { retrysafe, database, plans, senders, consumers, terms, patience, observe } = self;
        let elsewhere = consumers.iter().any(|consumer| !Arc::ptr_eq(consumer.database(), &database));
        if elsewhere || !std::ptr::addr_eq(Arc::as_ptr(&database), Arc::as_ptr(retrysafe.store())) {
            return Err(RecoveryFault::AnotherStore);
        }
        let longest = retrysafe.guard.engine.contract.answer_timeout;
        let consumers = consumers.iter().map(|consumer| consumer.home(longest)).collect();
        let mut by_name = HashMap::with_capacity(plans.len());
        for plan in plans {
            let name = Arc::clone(plan.shape.name());
            if by_name.insert(Arc::clone(&name), plan).is_some() {
                return Err(RecoveryFault::TwoPlans(name));
            }
        }
        let meters = Meters::new();
        let waiting = waiting::Waiting::default();
        let shared = Shared {
            retrysafe,
            database,
            plans: by_name,
            senders,
            terms,
            patience,
            observe,
            meters,
            consumers,
            waiting,
        };
        Ok(Recovery { shared: Arc::new(shared) })
    }
}

/// A value as the journal keeps it.
fn encoded(value: &(impl serde::Serialize + ?Sized)) -> Result<Bytes, Halt> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| Halt::astray(format!("a value cannot be written down: {error}")))
}

/// A value as the journal kept it.
fn decoded<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Halt> {
    serde_json::from_slice(bytes).map_err(|error| {
        Halt::astray(format!("a recorded value cannot be read as what the plan expects: {error}"))
    })
}
