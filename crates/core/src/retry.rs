//! The retry engine: when a call is sent again, and when it is not (SPEC 7).
//!
//! **The idea.** Sending again is a decision about what may already have happened. So each attempt's outcome is first
//! sorted by certainty (not processed, unknown, answered), then held against what the call permits (idempotent, keyed,
//! neither) and what its body can do, and only then against the limits: attempts, elapsed time, the deadline, and a budget
//! that all calls to one target share. What ends as "nobody knows" is said so: [`Why::OutcomeUnknown`] is a result of its
//! own.
//!
//! Everything here is pure: the host tells the time ([`Mono`]) and brings the entropy, sends and sleeps. The same code
//! drives an async client, a blocking one, a simulator and other languages.
//!
//! ```
//! use retrysafe_core::retry::*;
//! use std::time::Duration;
//!
//! let at = |ms| Mono::from_elapsed(Duration::from_millis(ms));
//! let (policy, budget) = (RetryPolicy::default(), Budget::default());
//! // A POST with a key that the endpoint honours.
//! let request = Request::new(Idempotence::of("POST", true));
//! let (mut call, step) = Call::open(&policy, &budget, request, Deadline::within(at(0), Duration::from_secs(5)), at(0));
//! assert_eq!(step, Step::Send { attempt: 1, timeout: Duration::from_secs(5) });
//!
//! // The connection was reset after the request was written. With the key it is safe to send it again.
//! let Step::Sleep(pause) = call.observe(&Seen::lost(Lost::Reset, Reach::Whole), u64::MAX, at(40)) else { panic!() };
//! assert_eq!(pause.delay, Duration::from_millis(50));
//!
//! // The timeout of the next attempt is cut from what is left now.
//! assert_eq!(call.woke(at(90)), Step::Send { attempt: 2, timeout: Duration::from_millis(4_910) });
//! assert_eq!(call.observe(&Seen::status(201), 0, at(120)), Step::Finish(Why::Done));
//! ```
//!
//! | module | |
//! |---|---|
//! | [`backoff`] | how long to sleep |
//! | [`after`] | when the server says so |
//! | [`deadline`] | one deadline, and what an attempt gets of it |
//! | [`budget`] | what all calls together may spend |
//! | [`presets`] | what others do, for comparison |
//!
//! **Limits.** It knows what the transport and the contract tell it. A key permits a retry only where the endpoint
//! honours keys, and a server that lies about either is not found out here. The numbers, and why they are what they are:
//! `docs/reference/retry.md`.

pub mod after;
pub mod backoff;
pub mod budget;
mod call;
mod classify;
pub mod deadline;
mod explain;
mod facts;
mod hedge;
mod policy;
mod poll;
pub mod presets;
mod seen;
mod undecided;
mod why;

pub use backoff::{Backoff, Jitter, Pace};
pub use budget::{Budget, Permit};
pub use call::{Call, Cause, Pause, Step, WAITS_MAX};
pub use deadline::{Deadline, Mono};
pub use explain::Plan;
pub use facts::Failure;
pub use hedge::{Hedge, HedgePolicy, HedgeStep};
pub use policy::{Advice, Exhausted, Obedience, RetryPolicy, StatusSet, Uncertain};
pub use seen::{Answer, Body, Idempotence, Lost, NotSent, Outcome, Reach, Request, Seen};
pub use why::{Rule, Stop, Unknown, Why};
