//! Gates: they send requests to a running HTTP API and say whether it keeps what an idempotency key promises.
//!
//! An API in any language is a black box with one address. A gate brings identical requests together, reads the effects
//! from a place that is not the answer (a table, a list, a call to somebody else's service), and ends with **PASS**,
//! **FAIL** with a counter-example, or **INCONCLUSIVE** with what to change. A gate that could not have seen a fault never
//! says PASS: before anything else it checks that its observers count, and afterwards that the requests really overlapped.
//!
//! - [`plan`]: from the text of `gates.toml` to a [`plan::Plan`], with every fault in one answer.
//! - [`arrive`]: requests that are complete but for their last byte, and then all of these bytes in one loop.
//! - [`observe`]: what counts effects. [`stub`] plays the service that is called, and holds its first answer back.
//! - [`told`], [`history`], [`arms`]: what answers mean, and what they must be. Pure.
//! - [`power`]: how many rounds, and what a clean run leaves open. Pure.
//! - [`concurrency`] runs the arms, [`verify`] repeats operations that are said to be idempotent without a key,
//!   [`crash`] kills the API while it calls somebody else; [`delay`] makes its database far away; [`report`] is what came of it, as JSON, JUnit or one HTML page.
//!
//! ```
//! use retrysafe_gates::plan::Plan;
//!
//! let plan = Plan::parse(
//!     r#"
//!     base = "http://127.0.0.1:8080"
//!
//!     [request]
//!     method = "POST"
//!     path = "/orders"
//!     body = '{"amount": 4200, "note": "{{nonce}}"}'
//!
//!     [[observe]]
//!     kind = "list"
//!     url = "/orders"
//!     jsonpath = "$[?@.note == '{{nonce}}']"
//!     "#,
//!     "gates.toml",
//! )?;
//! assert_eq!(plan.concurrency.requests, 20);
//! # Ok::<(), retrysafe_core::contract::Faults>(())
//! ```
//!
//! Limits: HTTP/1.1 and, for races, HTTP/2, each with or without TLS; a target that is not on this machine needs its owner's word ([`safety`]). A gate finds
//! races, it does not prove their absence: every clean run says what it would have missed, and how likely.

#![forbid(unsafe_code)]

pub mod arms;
pub mod arrive;
pub mod concurrency;
#[cfg(unix)]
pub mod crash;
pub mod delay;
pub mod history;
pub mod observe;
pub mod plan;
pub mod power;
pub mod report;
pub mod safety;
pub mod stub;
pub mod told;
mod trace;
pub mod trust;
pub mod verify;
pub mod wire;
