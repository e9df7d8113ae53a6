//! The store in PostgreSQL, on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod conformance;
mod samples;
mod support;
mod transactions;
