//! The contract.
mod model;
pub use model::*;
