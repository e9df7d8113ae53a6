//! The store in PostgreSQL, on a real server.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod clock;
mod conformance;
mod cut;
mod doctor;
mod effects;
mod lost;
mod on_sqlx;
mod pooler;
mod samples;
mod sparing;
mod support;
mod tls;
mod transactions;
mod upkeep;
