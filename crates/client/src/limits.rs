//! What stands between a call's retries and the wire, in this order (SPEC 7.7):
//! retry, circuit breaker, rate limiter, bulkhead, attempt timeout.
//!
//! The order is not a matter of taste. A breaker outside of the retries sees one failure for three attempts; a bulkhead
//! outside of them is held while they sleep; a timeout outside of the bulkhead runs while the attempt waits for its
//! place. So it is fixed here, and nobody has to remember it (I-70).
//!
//! What a limiter keeps back was no attempt: it costs no budget, and is tried again only when the limiter opens before the
//! call's deadline.
//!
//! ```
//! use retrysafe_client::{Breaker, Limits};
//!
//! let limits = Limits { breaker: Some(Breaker::default()), ..Limits::default() };
//! assert!(limits.bulkhead.is_none());
//! ```

mod breaker;
mod bulkhead;
mod rate;

use std::time::Duration;

use retrysafe_core::retry::{Mono, Outcome, Reach, Seen};

pub use breaker::Breaker;
use breaker::{Circuit, Through};
pub use bulkhead::Bulkhead;
use bulkhead::{Place, Places};
use rate::Rate;
pub use rate::RateLimit;

use crate::host::Host;

/// The limiters of one target; none by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Stops calling a target that fails.
    pub breaker: Option<Breaker>,
    /// Spaces attempts out.
    pub rate: Option<RateLimit>,
    /// Bounds the attempts that are under way.
    pub bulkhead: Option<Bulkhead>,
}

/// The state of a target's limiters. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limiters {
    circuit: Option<Circuit>,
    rate: Option<Rate>,
    places: Option<Places>,
}

/// An attempt that all limiters have let through. Dropping it without an outcome counts as none.
#[derive(Debug, Default)]
pub(crate) struct Admitted {
    through: Option<Through>,
    _place: Option<Place>,
}

impl Limiters {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            circuit: limits.breaker.map(Circuit::new),
            rate: limits.rate.map(Rate::new),
            places: limits.bulkhead.map(Places::new),
        }
    }

    /// Whether there is anything to ask.
    pub(crate) fn any(&self) -> bool {
        self.circuit.is_some() || self.rate.is_some() || self.places.is_some()
    }

    /// Lets an attempt through, or says when to come back. `timeout` bounds the wait for a place.
    pub(crate) async fn admit(&self, host: &Host, timeout: Duration) -> Result<Admitted, Seen> {
        let through = match &self.circuit {
            Some(circuit) => Some(circuit.admit(host.now()).map_err(|delay| held(Some(delay)))?),
            None => None,
        };
        if let Some(rate) = &self.rate {
            rate.admit(host.now()).map_err(|delay| held(Some(delay)))?;
        }
        let place = match &self.places {
            Some(places) => Some(places.admit(host, timeout).await.ok_or_else(|| held(None))?),
            None => None,
        };
        Ok(Admitted { through, _place: place })
    }
}

impl Admitted {
    /// What came of it. An outcome that says nothing about the target leaves the breaker as it was.
    pub(crate) fn ended(mut self, seen: &Seen, now: Mono) {
        let Some(through) = self.through.take() else { return };
        match &seen.outcome {
            Outcome::NotSent(_) | Outcome::Lost(_) => through.failed(now),
            Outcome::Answered(answer) if answer.status >= 500 => through.failed(now),
            Outcome::Answered(_) => through.succeeded(now),
            Outcome::Held { .. } | Outcome::Fault => drop(through),
        }
    }
}

fn held(opens_in: Option<Duration>) -> Seen {
    Seen { outcome: Outcome::Held { opens_in }, reach: Reach::Nothing }
}
