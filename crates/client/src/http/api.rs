//! What is known about the API that is called, and what its callers share.

use std::{
    collections::HashMap,
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::Uri;
use retrysafe_core::{
    contract::{Contract, Faults},
    policy::Place,
    retry::{Budget, Plan, RetryPolicy, Uncertain, budget::Rules},
};

use super::{profile::Profile, used::UsedKeys};
use crate::{
    host::Host,
    limits::{Limiters, Limits},
};

/// Targets with a budget of their own; those beyond share one.
const TARGETS_MAX: usize = 1_024;

/// An API: its contract or profile, and the budgets and limiters of its targets. Cloning shares them.
#[derive(Clone)]
pub struct Api(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) knowledge: Knowledge,
    pub(crate) place: Place,
    pub(crate) host: Host,
    pub(crate) attempt_timeout: Option<Duration>,
    pub(crate) uncertain: Uncertain,
    pub(crate) attempt_header: bool,
    pub(crate) used: UsedKeys,
    rules: Rules,
    limits: Limits,
    targets: Mutex<HashMap<Box<str>, Target>>,
}

pub(crate) enum Knowledge {
    /// Nothing: no key is sent, and what may have happened is not repeated.
    Nothing(RetryPolicy),
    Profile(Profile),
    Contract(Box<Contract>),
}

/// What all calls to one authority share.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) name: Arc<str>,
    pub(crate) budget: Budget,
    pub(crate) limiters: Limiters,
}

impl Api {
    /// An API of which nothing is known. Requests that are idempotent by their method are retried; others only where
    /// nothing was processed.
    pub fn unknown() -> Self {
        Self::of(Knowledge::Nothing(RetryPolicy::default()))
    }

    /// The same with another policy.
    pub fn with_policy(policy: RetryPolicy) -> Self {
        Self::of(Knowledge::Nothing(policy))
    }

    /// An API whose handling of keys is published.
    pub fn profile(profile: Profile) -> Self {
        Self::of(Knowledge::Profile(profile))
    }

    /// An API with a contract: every number, header name and code is the server's own.
    pub fn contract(contract: Contract) -> Self {
        Self::of(Knowledge::Contract(Box::new(contract)))
    }

    /// The contract in this file.
    ///
    /// # Errors
    /// [`ContractFault`]: the file cannot be read, or says something that is no contract.
    pub fn contract_file(path: impl AsRef<Path>) -> Result<Self, ContractFault> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|error| ContractFault::Unreadable { path: path.display().to_string(), error })?;
        Ok(Self::contract(Contract::parse(&text, &path.display().to_string())?))
    }

    fn of(knowledge: Knowledge) -> Self {
        Self(Arc::new(Inner {
            knowledge,
            place: Place::Library,
            host: Host::default(),
            attempt_timeout: None,
            uncertain: Uncertain::End,
            attempt_header: true,
            used: UsedKeys::new(),
            rules: Rules::default(),
            limits: Limits::default(),
            targets: Mutex::default(),
        }))
    }

    /// The contract is enforced by a gateway: its 5xx are unknown outcomes there, and not stored.
    #[must_use]
    pub fn behind_gateway(self) -> Self {
        self.with(|inner| inner.place = Place::Gateway)
    }

    /// With another clock, sleeper or seed.
    #[must_use]
    pub fn host(self, host: Host) -> Self {
        self.with(|inner| inner.host = host)
    }

    /// The longest time of one attempt. Two to three times the measured 99th percentile: `policy.advise(p99)`.
    #[must_use]
    pub fn attempt_timeout(self, timeout: Duration) -> Self {
        self.with(|inner| inner.attempt_timeout = Some(timeout))
    }

    /// What to do when the server says that it does not know the outcome of a key.
    #[must_use]
    pub fn uncertain(self, uncertain: Uncertain) -> Self {
        self.with(|inner| inner.uncertain = uncertain)
    }

    /// Other rules for the budget of each target.
    #[must_use]
    pub fn budget(self, rules: Rules) -> Self {
        self.with(|inner| inner.rules = rules)
    }

    /// Circuit breaker, rate limiter and bulkhead of each target.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        self.with(|inner| inner.limits = limits)
    }

    /// Does not send the number of the attempt.
    #[must_use]
    pub fn without_attempt_header(self) -> Self {
        self.with(|inner| inner.attempt_header = false)
    }

    /// The schedule and the worst case of a call, before anything runs.
    pub fn explain(&self) -> Plan {
        let policy = match &self.0.knowledge {
            Knowledge::Nothing(policy) => *policy,
            Knowledge::Profile(profile) => profile.policy,
            Knowledge::Contract(contract) => RetryPolicy::from(&contract.client),
        };
        RetryPolicy { attempt_timeout: self.0.attempt_timeout.or(policy.attempt_timeout), ..policy }.explain()
    }

    /// The budget that calls to this address share.
    pub fn budget_of(&self, uri: &Uri) -> Budget {
        self.target(uri).budget
    }

    /// Whether a limiter has to let attempts through.
    #[cfg(feature = "tower")]
    pub(crate) fn limited(&self) -> bool {
        self.0.limits != Limits::default()
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// What calls to this authority share. A process-wide budget would let one dead host silence the retries to all.
    pub(crate) fn target(&self, uri: &Uri) -> Target {
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let mut targets = self.0.targets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = targets.get(authority) {
            return target.clone();
        }
        let name = if targets.len() < TARGETS_MAX { authority } else { "" };
        if let Some(target) = targets.get(name) {
            return target.clone();
        }
        let target = Target {
            name: name.into(),
            budget: Budget::new(self.0.rules),
            limiters: Limiters::new(&self.0.limits),
        };
        targets.insert(name.into(), target.clone());
        target
    }

    /// Settings are made before the first call; afterwards they make another API, with budgets of its own.
    fn with(self, set: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = match Arc::try_unwrap(self.0) {
            Ok(inner) => inner,
            Err(shared) => shared.fresh(),
        };
        inner.targets = Mutex::default();
        set(&mut inner);
        Self(Arc::new(inner))
    }
}

impl Inner {
    fn fresh(&self) -> Self {
        Self {
            knowledge: match &self.knowledge {
                Knowledge::Nothing(policy) => Knowledge::Nothing(*policy),
                Knowledge::Profile(profile) => Knowledge::Profile(profile.clone()),
                Knowledge::Contract(contract) => Knowledge::Contract(contract.clone()),
            },
            place: self.place,
            host: self.host.clone(),
            attempt_timeout: self.attempt_timeout,
            uncertain: self.uncertain,
            attempt_header: self.attempt_header,
            used: UsedKeys::new(),
            rules: self.rules,
            limits: self.limits,
            targets: Mutex::default(),
        }
    }
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match &self.0.knowledge {
            Knowledge::Nothing(_) => "nothing known",
            Knowledge::Profile(profile) => profile.name.as_str(),
            Knowledge::Contract(contract) => contract.api.as_str(),
        };
        f.debug_tuple("Api").field(&what).finish()
    }
}

/// Why there is no contract.
#[derive(Debug, thiserror::Error)]
pub enum ContractFault {
    /// The file cannot be read.
    #[error("the contract {path} cannot be read: {error}")]
    Unreadable {
        /// Which.
        path: String,
        /// Why.
        #[source]
        error: std::io::Error,
    },
    /// It is no contract; every fault is listed.
    #[error(transparent)]
    Faults(#[from] Faults),
}
