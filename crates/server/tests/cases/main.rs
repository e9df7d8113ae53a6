//! The layer against the cases of public trackers and the rules of the claim protocol, each test named after its own.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers fail the test that calls them

mod disconnects;
mod extract;
mod failures;
mod in_flight;
mod inquiries;
mod keys;
mod layer;
mod outages;
mod profiles;
mod races;
mod replay;
mod scopes;
mod shutdown;
mod status;
mod support;
mod transactions;
mod windows;
