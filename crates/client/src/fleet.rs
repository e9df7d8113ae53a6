//! The budget of a fleet: one account in a store, and a task in each instance that leases tokens from it (SPEC 7.5).
//!
//! What the account does is core's [`Fleet`]; this is the store behind it, and the exchange. A retry never waits for the
//! store: it takes a token that is there, or there is none. An instance that cannot reach its store spends what it holds
//! until its lease ends, and then does not retry.
//!
//! ```
//! use retrysafe_client::fleet::{FleetStore, MemoryFleet, join};
//! use retrysafe_core::retry::{Budget, budget::{FleetRule, Rules}};
//! use std::sync::Arc;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let account: Arc<dyn FleetStore> = Arc::new(MemoryFleet::new(FleetRule::default()));
//! let budget = Budget::new(Rules { fleet: true, ..Rules::default() });
//! let membership = join(budget, account);
//! // `Api::budget(rules)`, and `join(api.budget_of(&uri), account)` for each target.
//! drop(membership); // the tokens count as spent when the lease ends
//! # });
//! ```
//!
//! **Limits.** An account is one for one target: instances that call two use two. Books are read and written back whole, some
//! tens of bytes for each instance, three times in a lease.

mod books;
#[cfg(feature = "mysql")]
mod mariadb;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use retrysafe_core::retry::{
    Budget,
    budget::{Fleet, FleetRule, Lease, Report},
};

#[cfg(feature = "mysql")]
pub use mariadb::MariaFleet;
#[cfg(feature = "postgres")]
pub use postgres::PgFleet;
#[cfg(feature = "redis")]
pub use redis::RedisFleet;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteFleet;

use crate::{BoxError, host::Host};

/// Exchanges in a lease: two in a row may fail before tokens are lost.
const EXCHANGES_PER_LEASE: u32 = 3;
/// How long an exchange may take; one that takes longer is made again with the same report.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(1);

/// A future of a store.
pub type FleetFuture<'a> = Pin<Box<dyn Future<Output = Result<Lease, FleetFault>> + Send + 'a>>;

/// The account cannot be reached, or read. The same report may be sent again.
#[derive(Debug, thiserror::Error)]
#[error("the fleet's account cannot be kept: {0}")]
pub struct FleetFault(#[source] pub BoxError);

/// Keeps a fleet's account. An exchange is one atomic step: load, [`Fleet::exchange`], write back.
pub trait FleetStore: fmt::Debug + Send + Sync {
    /// The rule that all instances share.
    fn rule(&self) -> FleetRule;

    /// Applies a report and answers with a lease.
    ///
    /// # Errors
    /// [`FleetFault`]: it is not known whether it was applied; the same report may be sent again.
    fn exchange<'a>(&'a self, instance: u64, report: &'a Report) -> FleetFuture<'a>;
}

/// An account in this process: for tests, and for instances that share one.
#[derive(Clone)]
pub struct MemoryFleet {
    rule: FleetRule,
    fleet: Arc<Mutex<Fleet>>,
}

impl MemoryFleet {
    /// A full account.
    pub fn new(rule: FleetRule) -> Self {
        Self { rule, fleet: Arc::new(Mutex::new(Fleet::new(rule))) }
    }
}

impl FleetStore for MemoryFleet {
    fn rule(&self) -> FleetRule {
        self.rule
    }

    fn exchange<'a>(&'a self, instance: u64, report: &'a Report) -> FleetFuture<'a> {
        let mut fleet = self.fleet.lock().unwrap_or_else(PoisonError::into_inner);
        let lease = fleet.exchange(instance, report, Host::default().wall());
        Box::pin(std::future::ready(Ok(lease)))
    }
}

impl fmt::Debug for MemoryFleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryFleet").field("rule", &self.rule).finish_non_exhaustive()
    }
}

/// An instance's place in the fleet. Dropping it ends the exchange.
#[derive(Debug)]
#[must_use = "dropping it leaves the fleet"]
pub struct Membership(tokio::task::JoinHandle<()>);

/// Joins a fleet: from now on `budget` gets its tokens from the account. Its rules must have `fleet: true`. Needs a runtime
/// of tokio.
pub fn join(budget: Budget, account: Arc<dyn FleetStore>) -> Membership {
    Membership(tokio::spawn(exchange_for_ever(budget, account)))
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn exchange_for_ever(budget: Budget, account: Arc<dyn FleetStore>) {
    let host = Host::default();
    // Whoever starts again is somebody else: a second life with the numbers of its first would be taken for a repetition.
    let mut number = [0; 8];
    if getrandom::fill(&mut number).is_err() {
        tracing::error!(target: "retrysafe::client", "no randomness to name this instance by; it does not retry");
        return;
    }
    let instance = u64::from_le_bytes(number);
    let pause = account.rule().lease / EXCHANGES_PER_LEASE;
    loop {
        let sent = host.now();
        let Some(report) = budget.report(sent) else {
            tracing::error!(target: "retrysafe::client", "the budget that was to join a fleet has no such rule");
            return;
        };
        match tokio::time::timeout(EXCHANGE_TIMEOUT.min(pause), account.exchange(instance, &report)).await {
            Ok(Ok(lease)) => budget.leased(&lease, sent),
            Ok(Err(fault)) => tracing::warn!(target: "retrysafe::client", %fault, "an exchange has failed"),
            Err(_) => {
                tracing::warn!(target: "retrysafe::client", "the fleet's account does not answer in time")
            }
        }
        tokio::time::sleep(pause).await;
    }
}
