//! A reverse proxy that puts the retrysafe layer in front of any HTTP API.
//!
//! Two halves that do not know each other: [`proxy`] moves requests to the upstream and says truthfully how far
//! each one got; the layer of `retrysafe-server` decides which of them may be sent at all. Between them stands one
//! promise the proxy makes: **one call is at most one send**. It never retries, so a claim that was won once
//! cannot become two requests on the upstream's wire.

#![forbid(unsafe_code)]

//!
//! [`Gateway`] is the two put together.

mod gateway;
mod handover;
pub mod proxy;
mod questions;

pub use gateway::{Answering, Ended, Front, FrontBody, Gateway, GatewayFault, GatewayOptions};
pub use handover::FENCE_HEADER;
