//! From seven answers to a contract, and the reasons for it (SPEC 0).
//!
//! [`Answers`] are what only the owner of an API can know. [`rank()`] orders the ways to claim a key by value, effort and
//! efficiency, and removes what cannot be reached; [`Plan::of`] decides everything else; [`contract`] and [`record`] write it down.
//! All of it is pure: the same answers give the same contract, so that a person can argue with it.
//!
//! ```
//! use retrysafe_core::contract::{ClaimMethod, Contract};
//! use retrysafe_design::{Answers, Plan, contract};
//!
//! let answers = Answers::parse("
//! api = 'Shop'
//! interface = 'rest'
//! endpoints = ['POST /orders']
//! store = 'relational'
//! irreversible_calls = false
//! sdk_languages = ['python']
//! raw_http = true
//! longest_retry_chain = '48h'
//! horizon = 'one_off'
//! effort_ceiling = 'weeks'
//! schema_migration = true
//! isolation_migration = true
//! serializable_today = false
//! callers = 'third_parties'
//! service = 'rust'
//! identity = 'api_key'
//! failures = 'A'
//! ")?;
//! let plan = Plan::of(&answers);
//! assert_eq!(plan.claim, ClaimMethod::Unique);
//! let text = contract(&answers, &plan);
//! let read = Contract::parse(&text, "retrysafe.toml").map_err(|faults| faults.to_string())?;
//! assert_eq!(read.endpoints[0].windows.replay.as_secs(), 48 * 3_600, "never below the longest chain of retries");
//! # Ok::<(), String>(())
//! ```
//!
//! Limits: it knows what was answered and nothing of the API. Numbers that have to be measured (lease, timeouts) are the defaults.

#![forbid(unsafe_code)]

mod answers;
mod difference;
mod plan;
mod rank;
mod write;

pub use answers::{
    Answers, Callers, Effort, Failures, Horizon, Identity, Interface, QUESTIONS, Question, Service, StoreKind,
};
pub use difference::difference;
pub use plan::{Place, Plan, Recovery};
pub use rank::{Ranked, Ranking, Removed, rank};
pub use write::{contract, record};
