//! What to send, where effects are counted, and what answers mean: `gates.toml`.
//!
//! The file is read once, at the edge, and every fault of it is in one answer ([`Plan::parse`]). What is left open has a
//! default that errs towards INCONCLUSIVE: a gate that guesses what an answer means would find faults that are not there.

mod contract;
mod model;
mod read;
mod template;

pub use model::*;
pub(crate) use read::base;
pub use read::{FIELDS, Outside};
pub use template::{Template, Values};
