//! Requests of several steps: what is written down between the steps, and what it means when somebody goes on.
//!
//! A request that charges a card, writes an order and sends mail is cut into **steps** at each foreign mutation (SPEC 5.3).
//! Beside its record it keeps a **journal**, an append-only list of [`Entry`] under the operation's own id. Its last entry
//! of a step is the recovery point. What goes into it rides in the transaction that it speaks of:
//!
//! | entry | written |
//! |---|---|
//! | [`Opened`](Event::Opened): plan, request, deadline | after the claim, before anything runs |
//! | [`Done`](Event::Done) | in the commit of a phase's own rows |
//! | [`Intent`](Event::Intent) | **before** a foreign call, so that a crash after it leaves evidence |
//! | [`Result`](Event::Result) | after its answer |
//!
//! [`Progress`] folds a journal, [`next`] says what a resumed step does, [`judge`] what a completer does with a request
//! that nobody works on. All three are pure: the service, the model checker and the simulation call the same ones.
//!
//! ```
//! use retrysafe_core::recovery::{Attended, External, Next, Progress, Shape, StepName, next};
//! # let (journal, now) = retrysafe_core::recovery::example();
//! let shape = Shape::new("rides")?.phase("create")?.external("charge", External::NEVER_AGAIN)?.phase("finish")?;
//! // The process was killed between the call and its answer: nobody may send it again.
//! let progress = Progress::of(&journal)?;
//! let charge = StepName::new("charge")?;
//! assert!(matches!(next(&progress, &shape, &charge, Attended::Retry, now)?, Next::Uncertain(_)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! - A step has one foreign mutation. Two in one step would share one intent, and neither would be evidence.
//! - A plan has to take the same way when it is given the same results. What it decides by is an input or a result.

mod abandoned;
mod downstream;
mod journal;
mod progress;
mod resume;
mod shape;

pub use abandoned::{Judgement, Standing, Terms, is_untouched, judge, pause, stop, takeover};
pub use downstream::DownstreamKey;
pub use journal::{Act, Attended, Entry, Event, Snapshot, Stopped};
pub use progress::{Broken, Intent, Progress};
pub use resume::{AfterAsk, AfterFailure, CallFailure, Found, Next, Refused, asked, failed, next};
pub use shape::{BadName, External, Kind, Resend, STEPS_MAX, Shape, Step, StepName};

/// A journal that ends between a call and its answer, for the doctest.
#[doc(hidden)]
pub fn example() -> (Vec<Entry>, crate::time::Wall) {
    use crate::{ids::AttemptId, time::Wall};
    let at = Wall::from_unix_ms(1_000_000);
    let shape = Shape::new("rides")
        .and_then(|shape| shape.phase("create"))
        .and_then(|shape| shape.external("charge", External::NEVER_AGAIN))
        .and_then(|shape| shape.phase("finish"))
        .unwrap_or_else(|_| unreachable!());
    let step = StepName::new("charge").unwrap_or_else(|_| unreachable!());
    let key = DownstreamKey::derive(crate::ids::StatusId::new(7), "rides", &step);
    let request = Snapshot { principal: "rider-1".into(), fields: bytes::Bytes::from_static(b"{}") };
    let events = [
        Event::Opened { plan: shape.text(), request, deadline: at },
        Event::Intent { step, key, request: bytes::Bytes::from_static(b"{}") },
    ];
    let entries =
        (0..).zip(events).map(|(seq, event)| Entry { seq, attempt: AttemptId::new(1), at, event }).collect();
    (entries, at)
}
