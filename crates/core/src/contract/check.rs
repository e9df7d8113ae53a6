//! What a contract asks, against what the store and the place can keep.
//!
//! A store that cannot keep the contract is refused at start-up, with every shortfall in one answer (design 10.6). Each
//! rule is a function from one endpoint to at most one shortfall; the lists below are the whole of it. Equal findings of
//! several endpoints become one.
//!
//! ```
//! use retrysafe_core::{contract::{Contract, Offered, Severity}, policy::Place};
//!
//! # let text = include_str!("../../tests/contract/small.toml");
//! let contract = Contract::parse(text, "retrysafe.toml")?;
//! let found = contract.check(&Offered::memory(Place::Gateway));
//! assert!(found.iter().any(|one| one.rule == "store_forgets" && one.severity == Severity::Warning));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Limits: it sees the contract and what the store says of itself, not the API. That an upstream de-duplicates, that a
//! probe fences or that a key does not rotate is the contract's word; the gates test it.

mod clients;
mod effects;
mod exposure;
mod times;

use std::{fmt, sync::Arc, time::Duration};

use super::model::{ClaimMethod, Contract, Endpoint, KeyUse};
use crate::policy::Place;

/// What the chosen store and place can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offered {
    /// The store's name: `sqlite`.
    pub store: &'static str,
    /// In front of an API, or inside it.
    pub place: Place,
    /// Claims survive a crash of the process.
    pub survives_process: bool,
    /// Claims survive a power cut.
    pub survives_power_cut: bool,
    /// Claims survive the failover to a replica.
    pub survives_failover: bool,
    /// Several processes may share the store.
    pub shared: bool,
    /// A business transaction can commit with the claim.
    pub transactions: bool,
    /// It keeps journals of requests of several steps.
    pub journals: bool,
    /// How the store, as it was opened, arbitrates: every method whose promise it keeps.
    pub claims_by: &'static [ClaimMethod],
    /// There is an upstream that can be asked (probe, reauthorise).
    pub inquiries: bool,
    /// How long a statement of a handler's transaction may wait for a lock, or run, as the store was opened. `None`: not known,
    /// or there are no locks.
    pub handler_waits: Option<Duration>,
}

impl Offered {
    /// The memory store.
    pub const fn memory(place: Place) -> Self {
        Self {
            store: "memory",
            place,
            survives_process: false,
            survives_power_cut: false,
            survives_failover: false,
            shared: false,
            transactions: false,
            journals: false,
            claims_by: &ClaimMethod::ALL,
            inquiries: matches!(place, Place::Gateway),
            handler_waits: None,
        }
    }

    /// The SQLite store: durable on its machine. A handler in the same process joins its transactions.
    pub const fn sqlite(place: Place) -> Self {
        Self {
            store: "sqlite",
            place,
            survives_process: true,
            survives_power_cut: true,
            survives_failover: false,
            shared: true,
            transactions: matches!(place, Place::Library),
            journals: true,
            claims_by: &ClaimMethod::ALL,
            inquiries: matches!(place, Place::Gateway),
            handler_waits: None,
        }
    }

    /// The PostgreSQL store: durable, shared between machines, and it joins a handler's own transaction. A failover to a
    /// replica that is not synchronous loses its last moments.
    pub const fn postgres(place: Place) -> Self {
        Self {
            store: "postgres",
            place,
            survives_process: true,
            survives_power_cut: true,
            survives_failover: false,
            shared: true,
            transactions: matches!(place, Place::Library),
            journals: true,
            // Whether the store was opened for it is found when it is; handlers that read beside it are in the library.
            claims_by: match place {
                Place::Library => &ClaimMethod::ALL,
                Place::Gateway => &[ClaimMethod::Unique, ClaimMethod::Conditional],
            },
            inquiries: matches!(place, Place::Gateway),
            handler_waits: None,
        }
    }

    /// The MariaDB store, on a server that flushes at every commit: otherwise as [`Offered::postgres`].
    pub const fn mariadb(place: Place) -> Self {
        Self { store: "mariadb", ..Self::postgres(place) }
    }
}

/// How bad a shortfall is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// The contract cannot be kept here: nothing starts.
    Error,
    /// It is kept, and something about it is probably not meant.
    Warning,
    /// What the contract means here, said plainly.
    Note,
}

/// One way in which a contract falls short, or means less than it seems to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shortfall {
    /// How bad it is.
    pub severity: Severity,
    /// The rule's stable name.
    pub rule: &'static str,
    /// Endpoints it is about, in the file's order; empty: the contract as a whole.
    pub endpoints: Vec<Arc<str>>,
    /// Line of the first of them in the file.
    pub line: Option<usize>,
    /// What falls short, with its numbers.
    pub message: String,
    /// What to write instead.
    pub help: String,
}

/// What a rule found.
struct Finding {
    severity: Severity,
    rule: &'static str,
    message: String,
    help: String,
}

/// What a rule looks at.
struct Case<'a> {
    contract: &'a Contract,
    endpoint: &'a Endpoint,
    offered: &'a Offered,
}

type EndpointRule = fn(&Case<'_>) -> Option<Finding>;
type ContractRule = fn(&Contract, &Offered) -> Option<Finding>;

/// Rules of endpoints that take a key.
const OF_ENDPOINTS: [EndpointRule; 32] = [
    times::window_below_retry_chain,
    times::reap_below_replay,
    times::resource_window,
    times::resource_never_ends,
    times::failures_kept_shorter_than_retries,
    times::lease_too_short,
    times::lease_outlives_clients,
    times::handlers_wait_past_the_lease,
    clients::waits_longer_than_clients,
    clients::retry_after_outlives_clients,
    clients::stored_status_is_retried,
    clients::accepted_always,
    clients::accepted_in_foreign_envelope,
    effects::atomic_at_gateway,
    effects::atomic_without_transactions,
    effects::phased_not_offered,
    effects::accepted_in_one_transaction,
    effects::claim_first_outside,
    effects::probe_releases_without_fence,
    effects::nobody_to_ask,
    effects::deploys_make_uncertain_keys,
    effects::server_errors_are_uncertain,
    effects::upstream_window_unknown,
    effects::store_forgets,
    effects::runs_unguarded_without_store,
    exposure::application_scope_at_gateway,
    exposure::replays_not_reauthorised,
    exposure::one_scope_for_all,
    exposure::cookies_replayed,
    exposure::connection_headers_kept,
    exposure::body_not_compared,
    exposure::changing_header_compared,
];

/// Rules of the contract as a whole.
const OF_CONTRACTS: [ContractRule; 7] = [
    clients::clients_retry_longer_than_stated,
    clients::clients_never_reach_last_attempt,
    clients::answer_timeout_outlives_clients,
    effects::claim_method_not_offered,
    effects::lost_in_power_cut,
    effects::lost_in_failover,
    effects::one_process_only,
];

impl Contract {
    /// Every way in which this contract cannot be kept by what is offered, worst first. Nothing may start while one of
    /// them is a [`Severity::Error`].
    pub fn check(&self, offered: &Offered) -> Vec<Shortfall> {
        let mut found: Vec<Shortfall> = Vec::new();
        for rule in OF_CONTRACTS {
            found.extend(rule(self, offered).map(|finding| shortfall(finding, None)));
        }
        let keyed = |endpoint: &&Endpoint| !matches!(endpoint.key, KeyUse::Unsafe { .. });
        for rule in OF_ENDPOINTS {
            for endpoint in self.endpoints.iter().filter(keyed) {
                let Some(finding) = rule(&Case { contract: self, endpoint, offered }) else { continue };
                let same = |one: &&mut Shortfall| one.rule == finding.rule && one.message == finding.message;
                match found.iter_mut().find(same) {
                    Some(known) => known.endpoints.push(endpoint.name.clone()),
                    None => found.push(shortfall(finding, Some(endpoint))),
                }
            }
        }
        found.sort_by_key(|one| one.severity);
        found
    }

    /// Whether a request that arrives with the namespace of another hop has been through this one's own: two hops with one
    /// namespace on one store take each other's claims for their own, and the inner one would answer "in flight" to the
    /// outer one for ever (protocol 2).
    pub fn nested(&self, inbound: &str) -> Option<Shortfall> {
        let equal = inbound == self.namespace.as_str();
        let message =
            || format!("a hop in front of this one has the same namespace, \"{}\"", self.namespace.as_str());
        equal.then(|| {
            let finding =
                error("equal_namespaces", message(), "give each hop its own: namespace = \"shop-api\"");
            shortfall(finding, None)
        })
    }
}

fn shortfall(finding: Finding, endpoint: Option<&Endpoint>) -> Shortfall {
    Shortfall {
        severity: finding.severity,
        rule: finding.rule,
        endpoints: endpoint.map(|endpoint| endpoint.name.clone()).into_iter().collect(),
        line: endpoint.map(|endpoint| endpoint.line),
        message: finding.message,
        help: finding.help,
    }
}

fn error(rule: &'static str, message: impl Into<String>, help: impl Into<String>) -> Finding {
    Finding { severity: Severity::Error, rule, message: message.into(), help: help.into() }
}

fn warning(rule: &'static str, message: impl Into<String>, help: impl Into<String>) -> Finding {
    Finding { severity: Severity::Warning, ..error(rule, message, help) }
}

fn note(rule: &'static str, message: impl Into<String>, help: impl Into<String>) -> Finding {
    Finding { severity: Severity::Note, ..error(rule, message, help) }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}[{}]: {}", self.severity, self.rule, self.message)?;
        if !self.endpoints.is_empty() {
            writeln!(f, "  = endpoints: {}", self.endpoints.join(", "))?;
        }
        write!(f, "  = help: {}", self.help)
    }
}
