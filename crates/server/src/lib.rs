//! The server half: a keyed write runs once within its scope and replay window, and its answer is replayed.
//!
//! [`Retrysafe`] is a tower layer. It reads the [`Contract`](retrysafe_core::contract::Contract), claims each keyed
//! request in a [`Store`](retrysafe_store::Store), runs the handler in a task that nothing can cancel, stores its answer and
//! only then sends it. Decisions are made by `retrysafe-core`; this crate keeps leases, buffers bodies and speaks HTTP.
//!
//! # Limits
//! - It makes retries safe *within the contract's key scope and replay window*, not beyond.
//! - Only a handler that writes [through the claim's transaction](extract::Keyed::transaction) is joined to it. Any other
//!   that dies between its effect and the stored answer leaves the key *uncertain*, and it is not run again by itself.
//! - Bodies of keyed requests are read whole, up to the endpoint's limit.

#![forbid(unsafe_code)]
// Handlers join transactions by the extractor; a gateway has none, and what the extractor alone calls has no user there.
#![cfg_attr(not(feature = "axum"), allow(dead_code))]

mod admit;
mod answer;
mod body;
pub mod consume;
mod detached;
mod effects;
mod engine;
#[cfg(feature = "axum")]
pub mod extract;
mod finish;
mod guard;
mod inquire;
mod keyfile;
mod layer;
mod meters;
mod orphans;
mod plan;
mod probe;
pub mod recovery;
mod replays;
mod reply;
mod respond;
mod retrysafe;
mod scope;
mod status;
mod told;
mod transaction;
mod waiters;

pub use admit::{FENCE_HEADER, HOP_HEADER, TimeLeft};
pub use body::{Body, BoxError};
pub use guard::{Disposition, Guarded, NoUpstreamAnswer};
pub use inquire::{Inquire, InquireFuture, NoAnswer};
pub use keyfile::{KeyFileFault, fingerprint_keys_in};
pub use layer::RetrysafeService;
pub use reply::{Refuse, Reply};
pub use retrysafe::{BuildFault, Builder, Retrysafe};
pub use retrysafe_core::policy::{Effect, Place};
pub use scope::{Application, Peer, ScopeFault};
pub use transaction::Tx;
