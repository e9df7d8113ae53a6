//! What to send, where effects are counted, and what answers mean: `gates.toml`.
//!
//! The file is read once, at the edge, and every fault of it is in one answer ([`Plan::parse`]). What is left open has a
//! default that errs towards INCONCLUSIVE: a gate that guesses what an answer means would find faults that are not there.

mod answers;
mod contract;
mod crash;
mod fields;
mod model;
mod observers;
mod operations;
mod read;
mod slow;
mod template;

pub use fields::FIELDS;
pub use model::*;
pub(crate) use operations::base;
pub use read::Outside;
pub use template::{Template, Values};
