//! The client half: retries that are safe, bounded, budgeted, and keep their key.
//!
//! **The idea.** Whether a call is sent again is decided by core's pure [`Call`](retrysafe_core::retry::Call): what may have
//! happened, what the call permits, what is left. This crate sends, sleeps and writes down, over any function ([`retry()`]),
//! any HTTP service of tower, and reqwest.
#![cfg_attr(
    feature = "reqwest",
    doc = "
```no_run
use retrysafe_client::Client;

# async fn run() -> Result<(), Box<dyn std::error::Error>> {
let client = Client::from_contract(\"retrysafe.toml\", \"https://api.example.com\")?;
let order = client.post(\"/orders\").event(\"order-confirm\", 991)?.json(&serde_json::json!({\"amount\": 5}))?;
let answer = order.send().await?;
println!(\"{}\", answer.status());
# Ok(())
# }
```
"
)]
//!
//! On by default: three attempts, full jitter, one deadline, a budget for each target, and a key that is made once for a
//! logical call and sent with every attempt.
//!
//! **Limits.** It promises *safe to retry within this key scope and replay window*, and no more: a server that ignores
//! keys is not found out here. What may have happened is told as [`OutcomeUnknown`], never as a timeout.

#![forbid(unsafe_code)]

mod drive;
#[cfg(feature = "fleet")]
pub mod fleet;
#[cfg(feature = "tonic")]
mod grpc;
#[cfg(feature = "http")]
mod hedging;
mod history;
mod host;
#[cfg(feature = "http")]
#[cfg_attr(not(feature = "reqwest"), allow(dead_code, reason = "tower hands answers on as they come"))]
mod http;
#[cfg(feature = "reqwest")]
pub mod intents;
mod key;
mod limits;
mod nested;
#[cfg(feature = "reqwest")]
mod operation;
#[cfg(feature = "reqwest")]
mod reqwest;
mod retry;
#[cfg(feature = "tower")]
mod tower;

#[cfg(feature = "http")]
pub use crate::http::{
    Api, BodyFactory, ContractFault, Error, Held, OutcomeUnknown, Outgoing, Profile, Refused, Stopped,
};
#[cfg(feature = "reqwest")]
pub use crate::reqwest::{Answer, BuildFault, Client, ClientBuilder, RequestBuilder, Resumed, StillOpen};
#[cfg(feature = "tower")]
pub use crate::tower::{BODY_KEPT_MAX, RetryFuture, RetryLayer, RetryService};
#[cfg(feature = "tonic")]
pub use grpc::{CODE_METADATA, Grpc, GrpcError, GrpcFailed};
pub use history::{History, Step, Told};
pub use host::{Clock, Host, Sleep, VirtualClock};
pub use key::{Key, KeyRefused, NoRandomness};
pub use limits::{Breaker, Bulkhead, Limits, RateLimit};
pub use nested::{ATTEMPT_HEADER, inherit, is_retried, time_left, time_left_by, within, within_by};
#[cfg(feature = "reqwest")]
pub use operation::Operation;
pub use retry::{Attempt, AttemptError, Failed, Retries, retry, retry_by};

/// An error of somebody else's.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
