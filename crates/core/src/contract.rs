//! The contract: one file that the server layer and the gateway enforce, the client obeys and the docs print.
//!
//! `retrysafe.toml` lists every operation that changes state, and decides for each what a key means, whose it is, how long
//! an answer is replayed and what becomes of failures (SPEC 0 to 6). [`Contract::parse`] reads it and reports every fault
//! at once; [`Contract::check`] compares it with what the chosen store and place can keep; [`Contract::find`] takes a
//! request to its endpoint.
//!
//! ```
//! use retrysafe_core::contract::{Contract, KeyUse};
//!
//! let contract = Contract::parse(
//!     r#"
//!     api = "Shop"
//!     namespace = "shop"
//!     longest_retry_chain = "24h"
//!     unlisted = "pass"
//!     scope = { source = "api_key", rotates = false }
//!     failures = { policy = "A" }
//!
//!     [[endpoint]]
//!     method = "POST"
//!     path = "/orders"
//!     key = "required"
//!     "#,
//!     "retrysafe.toml",
//! )?;
//! assert_eq!(contract.endpoints[0].key, KeyUse::Required);
//! # Ok::<(), retrysafe_core::contract::Faults>(())
//! ```
//!
//! Limits: the file is read once, at start; it holds names of secrets, never secrets. Nothing here does I/O.

mod check;
mod failures;
mod fault;
mod fields;
mod model;
mod outward;
mod policies;
mod read;
mod routes;
mod scope;
mod section;
mod values;

pub use check::{Offered, Severity, Shortfall};
pub use fault::{Fault, Faults};
pub use fields::TABLES;
pub use model::*;
pub use routes::{Lookup, Params};
pub use values::{read_duration, show};

/// Walking a file of tables field by field, with every fault in one answer: for other files that are read as a contract is.
pub mod walk {
    pub use super::{
        fault::{Kind, Sink},
        section::{Item, Section},
        values::{Wrong, header, header_value, local_path, said},
    };
}
