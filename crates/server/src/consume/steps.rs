//! Events whose function calls outside: the same plans as requests of several steps have.
//!
//! The claim comes first, with a lease, and each step is committed with its recovery point. When the process dies, the next
//! delivery of the event goes on where it stopped, or a completer does; whoever comes meanwhile is told that it is in flight.

use std::{sync::Arc, time::Duration};

use http::Response;
use retrysafe_core::{
    claim::{Claim, Times},
    outcome::{self, NotKept, Outcome},
    record::{Record, RecoveryClass, ResourceId},
    recovery::{Attended, Snapshot},
};
use retrysafe_store::{Written, journal::Journal};
use serde::Serialize;

use super::{
    ConsumeError, Consumed, Consumer, Delivery, Event, RESULT_MAX, ROUNDS_MAX, Step, Terms, too_many_rounds,
};
use crate::{
    body::Body,
    recovery::{Ended, Home, Plan, Recovery, attempt},
    reply::{Reply, respond},
};

/// A consumer, to attempts at its events.
struct OfConsumer {
    terms: Arc<Terms>,
    longest: Duration,
}

impl Home for OfConsumer {
    /// The body of a plan's answer is the result; its status says nothing to a queue, and is kept for people.
    fn conclude(&self, reply: Reply) -> (Outcome, Times, Option<ResourceId>, Response<Body>) {
        let (parts, body) = respond(Ok(reply)).into_parts();
        let kept = match body.len() > RESULT_MAX {
            true => outcome::Body::NotKept(NotKept::TooLarge),
            false => outcome::Body::Kept(body.clone()),
        };
        let status = parts.status.as_u16();
        let outcome = Outcome { status, headers: Vec::new(), body: kept, trailers: Vec::new() };
        (outcome, self.terms.times(), None, Response::from_parts(parts, Body::full(body)))
    }

    fn lease(&self) -> Duration {
        self.terms.lease
    }

    fn longest(&self) -> Duration {
        self.longest
    }
}

impl<D> Consumer<D> {
    /// What attempts at its events are told, by its name.
    pub(crate) fn home(&self, longest: Duration) -> (Arc<str>, Arc<dyn Home>) {
        (Arc::clone(&self.terms.name), Arc::new(OfConsumer { terms: Arc::clone(&self.terms), longest }))
    }
}

impl<D: Journal> Consumer<D> {
    /// Runs the plan `plan` of `recovery` for `event`, unless it was done before; goes on with it, if somebody began it and was
    /// lost. `fields` is what the plan's request type declares, and is kept to run it without another delivery: no
    /// credentials, no card data (protocol 25). The recovery has to know this consumer
    /// ([`RecoveryBuilder::consumer`](crate::recovery::RecoveryBuilder::consumer)).
    ///
    /// [`Consumed::InFlight`] means: let it come again. A completer goes on with it meanwhile, for as long as the window is.
    ///
    /// # Errors
    /// [`ConsumeError`]: nothing was begun.
    pub async fn steps(
        &self,
        event: &Event<'_>,
        recovery: &Recovery<D>,
        plan: &str,
        fields: &impl Serialize,
    ) -> Result<Consumed, ConsumeError> {
        let Some(plan) = recovery.plan(plan) else {
            return Err(ConsumeError::NoSteps("no plan of that name was given to the recovery"));
        };
        let Some(home) = recovery.consumer(&self.terms.name) else {
            return Err(ConsumeError::NoSteps(
                "the recovery was not given this consumer, whose events nobody would complete",
            ));
        };
        let fields = serde_json::to_vec(fields).map_err(|error| ConsumeError::Failed(error.into()))?;
        let request = Snapshot { principal: event.source.into(), fields: fields.into() };
        let delivery = self.deliver(event)?;
        let (consumer, recovery) = (self.clone(), recovery.clone());
        // In a task of its own: a consumer that is dropped in the middle does not cut a step in two.
        let task =
            tokio::spawn(async move { consumer.in_steps(delivery, recovery, (plan, home), request).await });
        task.await.unwrap_or(Err(ConsumeError::Unknown))
    }

    async fn in_steps(
        &self,
        delivery: Delivery,
        recovery: Recovery<D>,
        (plan, home): (Plan<D>, Arc<dyn Home>),
        request: Snapshot,
    ) -> Result<Consumed, ConsumeError> {
        let claim = match self.claim(&delivery, &recovery).await? {
            Ok(claim) => claim,
            Err(told) => return Ok(told),
        };
        let own = claim.attempt();
        // Its sender goes on sending for the window: until then nobody was told that it failed.
        let patience = self.terms.window;
        let opening = recovery.opening(claim, plan, home, (Attended::Retry, Some((request, patience))));
        let pause = recovery.first_pause();
        let ended = attempt(opening, move |_| pause).await;
        recovery.attempted(Attended::Retry, &ended);
        match ended {
            Ended::Answered(_) => self.look(&delivery.address, own, None).await,
            Ended::Stopped => Ok(Consumed::OutcomeUnknown),
            Ended::Later | Ended::Stale => Ok(Consumed::InFlight),
            Ended::Lost(why) => {
                tracing::error!(
                    consumer = %self.terms.name,
                    %why,
                    "an attempt ended and could not write that down; its lease decides"
                );
                Ok(Consumed::InFlight)
            }
        }
    }

    /// Wins the event, or says what became of it.
    async fn claim(
        &self,
        delivery: &Delivery,
        recovery: &Recovery<D>,
    ) -> Result<Result<Claim, Consumed>, ConsumeError> {
        let mut seen: Option<Record> = None;
        for _ in 0..ROUNDS_MAX {
            let step = self.step(delivery, seen.as_ref(), RecoveryClass::Phased);
            let write = match step.map_err(ConsumeError::Store)? {
                Step::Told(told) => {
                    if let (Consumed::Replayed(_), Some(record)) = (&told, &seen) {
                        recovery.replayed(record);
                    }
                    return Ok(Err(told));
                }
                Step::Try(write) => write,
            };
            match self.database.write_if(&delivery.address, &write).await.map_err(ConsumeError::Store)? {
                Written::Yes(fence) => {
                    recovery.claimed(&self.terms.name, seen.as_ref());
                    let won = Claim::won(delivery.address.clone(), &write, fence);
                    return won.map(Ok).ok_or_else(|| ConsumeError::Store(too_many_rounds()));
                }
                Written::No(present) => seen = present,
            }
        }
        Err(ConsumeError::Store(too_many_rounds()))
    }
}
