//! Calls over HTTP, whatever carries them: what is sent, what an answer means, and how a failure is told apart.

mod answer;
mod api;
mod body;
pub(crate) mod call;
mod exchange;
mod failure;
mod kept;
mod prepare;
mod profile;
mod result;
mod used;

pub use answer::Held;
pub use api::{Api, ContractFault};
pub(crate) use body::{Bodies, Progress};
pub use body::{BodyFactory, Outgoing};
#[cfg(feature = "tower")]
pub(crate) use exchange::judged_at_once;
pub(crate) use exchange::{Attempts, End, HttpExchange, Sent, Transport};
#[cfg(feature = "reqwest")]
pub(crate) use failure::NoSuchName;
pub(crate) use failure::failure_of;
pub(crate) use prepare::{Asked, Prepared};
pub use profile::Profile;
pub use result::{Error, OutcomeUnknown, Refused, Stopped};
