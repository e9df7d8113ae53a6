//! Work that nobody can cancel, and a caller that waits for it.
//!
//! A client that disconnects, a timeout layer outside or a stream reset drops only the *wait* for the answer (D1, D2). A
//! request that was dropped between its effect and its record is how retries run twice, and a commit that was polled once
//! and dropped still commits (protocol 19).

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::Response;
use retrysafe_core::{
    codes::Code,
    contract::{Endpoint, InFlightAnswer},
    decide::Refusal,
};

use crate::{body::Body, guard::Guard};

/// How much longer than waiting and working may take a caller is kept, for the store to claim and to complete.
const STORE_GRACE: Duration = Duration::from_secs(10);

/// Work that makes an answer.
pub(crate) type Detached = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

impl Guard {
    /// Runs `task` to its end, whatever becomes of whoever waits for it, and waits for as long as a caller is kept.
    ///
    /// `task` has no type here, for two reasons. That it can be sent is proven where it is made, and not again in every
    /// user's handler, where the compiler gives up on closures that take references. And it is boxed before anything wraps
    /// it: the wrappers would each copy some kilobytes.
    pub(crate) async fn detached(&self, endpoint: &Endpoint, mut task: Detached) -> Response<Body> {
        // From before its first poll on: a shutdown waits for it.
        let tracked = self.tasks.token();
        // Only a bug in this layer can panic here: handlers are caught inside. Whatever happened is not known.
        let broken = || self.refuse(Refusal::of(Code::OutcomeUnknown));
        match poll_once(task.as_mut()) {
            Ok(Poll::Ready(response)) => return response,
            Ok(Poll::Pending) => {}
            Err(Panicked) => return broken(),
        }
        let rest = async move {
            let _tracked = tracked;
            task.await
        };
        let rest = tokio::spawn(tracing::Instrument::instrument(rest, tracing::Span::current()));
        match tokio::time::timeout(self.patience(endpoint), rest).await {
            Ok(Ok(response)) => response,
            Ok(Err(_)) => broken(),
            // A handler that hangs: it goes on, and its caller is told what every other caller is told. Once the lease
            // has ended too, the next attempt learns what the record has become.
            Err(_) => self.refuse(Refusal::after(Code::KeyInFlight, endpoint.in_flight.retry_after)),
        }
    }

    /// How long a caller is kept: as long as waiting and working may take, and some more.
    fn patience(&self, endpoint: &Endpoint) -> Duration {
        let waits = match endpoint.in_flight.answer {
            InFlightAnswer::Wait { at_most } => at_most,
            InFlightAnswer::Refuse | InFlightAnswer::AcceptPreferred | InFlightAnswer::AcceptAlways => {
                Duration::ZERO
            }
        };
        waits.saturating_add(self.engine.contract.answer_timeout).saturating_add(STORE_GRACE)
    }
}

/// The first poll of a task, before it is one. Nobody can cancel in the middle of a poll, so what ends in it (a replay, a
/// conflict, a handler that awaits nothing) needs no task of its own, and that saves a third of what the layer costs. What
/// does not end is spawned, and polled there at once: no wake-up is lost with the waker that does nothing.
fn poll_once<F: Future + ?Sized>(task: Pin<&mut F>) -> Result<Poll<F::Output>, Panicked> {
    let mut context = Context::from_waker(Waker::noop());
    catch_unwind(AssertUnwindSafe(|| task.poll(&mut context))).map_err(|_| Panicked)
}

struct Panicked;
