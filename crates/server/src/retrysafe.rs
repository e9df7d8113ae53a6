//! The built layer: a contract, a store and the keys, checked against each other.

use std::{collections::HashMap, sync::Arc, time::Duration};

use retrysafe_core::{
    contract::{Contract, Offered, Severity, Shortfall},
    fingerprint::{DeploymentKey, FingerprintKeys},
    policy::Place,
};
use retrysafe_store::Store;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    effects::EffectWatch, engine::Engine, guard::Guard, inquire::Inquire, orphans::OrphanWatch, plan::Plan,
    respond::Responder, scope::ScopeFault,
};

/// How many records one pass of upkeep takes at a time.
const UPKEEP_BATCH: usize = 500;
/// The pause between two looks at the effect ledger.
const EFFECTS_PAUSE: Duration = Duration::from_secs(10);
/// The pause between two passes that found nothing to do.
const UPKEEP_PAUSE: Duration = Duration::from_secs(1);

/// The layer, and the handle on what it runs. Cheap to clone: clones share everything.
#[derive(Clone)]
pub struct Retrysafe {
    pub(crate) guard: Arc<Guard>,
}

/// Sets up a [`Retrysafe`].
#[must_use]
pub struct Builder {
    contract: Arc<Contract>,
    store: Arc<dyn Store>,
    keys: Option<FingerprintKeys>,
    place: Place,
    inquire: Option<Arc<dyn Inquire>>,
}

/// Why the layer could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildFault {
    /// The scope of an endpoint cannot be set up.
    #[error("endpoint {endpoint}: {source}")]
    Scope {
        /// Its name.
        endpoint: String,
        /// What is wrong.
        source: ScopeFault,
    },
    /// The store or the place cannot keep the contract. All of it, not the first.
    #[error("the contract cannot be kept here:\n{}", list(.0))]
    Shortfalls(Vec<Shortfall>),
    /// The store outlives the process, and the fingerprint key would not: after a restart every retry would be strange.
    #[error(
        "the store survives this process, so its fingerprint key has to as well: pass one with `fingerprint_keys`, for \
         example from `fingerprint_keys_in(\"retrysafe.db.key\", \"retrysafe.db\")`"
    )]
    NoFingerprintKey,
    /// The system gave no randomness for a fingerprint key.
    #[error("cannot draw a fingerprint key: {0}")]
    NoRandomness(String),
}

impl Retrysafe {
    /// A layer that enforces `contract` with claims in `store`.
    pub fn builder(contract: impl Into<Arc<Contract>>, store: Arc<dyn Store>) -> Builder {
        Builder { contract: contract.into(), store, keys: None, place: Place::Library, inquire: None }
    }

    /// The contract it enforces.
    pub fn contract(&self) -> &Contract {
        &self.guard.engine.contract
    }

    /// The store it claims in.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.guard.engine.store
    }

    /// Whether the layer would pass this request on as it is. Counts it if so: whoever asks then sends it on by a straighter
    /// way, and must not bring it to the layer's service as well. The path is the one the client sent.
    pub fn passes<B>(&self, request: &http::Request<B>) -> bool {
        self.guard.passes(request.method(), request.uri().path(), request.headers())
    }

    /// Runs upkeep until `stop`: abandoned requests become uncertain, expired records are reaped in batches, and the effect
    /// ledger is searched for what happened twice. Spawn it once in each process; several do no harm.
    pub async fn upkeep(&self, stop: CancellationToken) {
        let (mut effects, mut orphans) = (EffectWatch::default(), OrphanWatch::default());
        let mut count_effects_at = tokio::time::Instant::now();
        loop {
            self.guard.engine.count_records().await;
            if count_effects_at <= tokio::time::Instant::now() {
                count_effects_at = tokio::time::Instant::now() + EFFECTS_PAUSE;
                if let Err(error) = effects.pass(&self.guard.engine).await {
                    tracing::warn!(%error, "the effect ledger was not counted, and is tried again");
                }
            }
            if let Err(error) = orphans.pass(&self.guard.engine).await {
                tracing::warn!(%error, "orphans were not counted, and are with the next pass");
            }
            self.guard.engine.write_due_replays().await;
            let pause = match self.guard.engine.upkeep(UPKEEP_BATCH).await {
                Ok(changed) if changed >= UPKEEP_BATCH => Duration::ZERO,
                Ok(_) => UPKEEP_PAUSE,
                Err(error) => {
                    tracing::warn!(%error, "upkeep failed and is tried again");
                    UPKEEP_PAUSE
                }
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        if let Err(error) = orphans.last(&self.guard.engine).await {
            tracing::warn!(%error, "what was counted in the last minute was not written down");
        }
        self.last_replays().await;
    }

    /// Waits for the requests that are running now, at most `at_most`; call it after the server stopped accepting.
    /// Returns how many were still running: their leases end, and the records say what that means (D10). What was counted of
    /// replays is written down.
    pub async fn drain(&self, at_most: Duration) -> usize {
        self.guard.tasks.close();
        let _ = tokio::time::timeout(at_most, self.guard.tasks.wait()).await;
        let left = self.guard.tasks.len();
        if left > 0 {
            tracing::warn!(left, "requests were still running at the end of the drain; their leases decide");
        }
        self.last_replays().await;
        left
    }

    pub(crate) async fn last_replays(&self) {
        if let Err(error) = self.guard.engine.write_replays().await {
            tracing::warn!(%error, "the last replays were not written down; timelines tell of fewer than there were");
        }
    }
}

impl Builder {
    /// The deployment's fingerprint keys (protocol 4); [`fingerprint_keys_in`](crate::fingerprint_keys_in) keeps them in a
    /// file. Processes that share a store must share them. Without any a key is drawn at random, which only a store that
    /// does not outlive the process may use.
    pub fn fingerprint_keys(mut self, keys: FingerprintKeys) -> Self {
        self.keys = Some(keys);
        self
    }

    /// Where the handler runs. Default: in this process.
    pub fn place(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// Whom to ask about authorisation and lost requests.
    pub fn inquire(mut self, inquire: Arc<dyn Inquire>) -> Self {
        self.inquire = Some(inquire);
        self
    }

    /// Builds it. Refuses, with every shortfall listed, a contract that the store or the place cannot keep (design 10.6);
    /// what is kept but probably not meant is logged.
    pub fn build(self) -> Result<Retrysafe, BuildFault> {
        let offered = self.offered();
        let (errors, others): (Vec<_>, Vec<_>) =
            self.contract.check(&offered).into_iter().partition(|found| found.severity == Severity::Error);
        if !errors.is_empty() {
            return Err(BuildFault::Shortfalls(errors));
        }
        for found in others.iter().filter(|found| found.severity == Severity::Warning) {
            tracing::warn!(rule = found.rule, "{}; {}", found.message, found.help);
        }
        let keys = match self.keys {
            Some(keys) => keys,
            None if self.store.capability().survives_process => return Err(BuildFault::NoFingerprintKey),
            None => random_keys()?,
        };
        let mut plans = HashMap::with_capacity(self.contract.endpoints.len());
        for endpoint in &self.contract.endpoints {
            let plan = Plan::new(endpoint)
                .map_err(|source| BuildFault::Scope { endpoint: endpoint.name.to_string(), source })?;
            plans.insert(endpoint.name.clone(), Arc::new(plan));
        }
        let respond = Responder::new(&self.contract.answers);
        let guard = Guard {
            engine: Engine::new(self.contract, self.store),
            plans,
            keys,
            place: self.place,
            respond,
            inquire: self.inquire,
            tasks: TaskTracker::new(),
        };
        Ok(Retrysafe { guard: Arc::new(guard) })
    }
}

impl Builder {
    fn offered(&self) -> Offered {
        let capability = self.store.capability();
        Offered {
            store: capability.name,
            place: self.place,
            survives_process: capability.survives_process,
            survives_power_cut: capability.survives_power_cut,
            survives_failover: capability.survives_failover,
            shared: capability.shared,
            transactions: capability.transactions && self.place == Place::Library,
            journals: self.store.journals().is_some(),
            claims_by: self.store.claims_by(),
            inquiries: self.inquire.is_some(),
            handler_waits: self.store.handler_waits(),
        }
    }
}

fn list(shortfalls: &[Shortfall]) -> String {
    let lines =
        shortfalls.iter().map(|found| format!("- [{}] {}; {}", found.rule, found.message, found.help));
    lines.collect::<Vec<_>>().join("\n")
}

fn random_keys() -> Result<FingerprintKeys, BuildFault> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| BuildFault::NoRandomness(error.to_string()))?;
    let key = DeploymentKey::new(1, &secret).map_err(|error| BuildFault::NoRandomness(error.to_string()))?;
    Ok(FingerprintKeys::new(key))
}
