//! Plans behind HTTP requests: the first attempt, and what an answer becomes.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, StatusCode};
use retrysafe_core::{
    claim::{Claim, Times},
    codes::Code,
    decide::Refusal,
    outcome::{NotKept, Outcome},
    record::{Record, RecoveryClass, ResourceId, State},
    recovery::{Attended, Snapshot, pause},
};
use retrysafe_store::journal::Journal;
use serde::Serialize;

use super::{
    Halt, Plan, Point, Recovery, Steps,
    attempt::{Attempt, Opening},
    steps::Cause,
};
use crate::{
    answer,
    body::Body,
    engine::{Claimed, Held, InStore},
    finish::times,
    guard::{Guard, Job},
    plan::Plan as Endpoint,
    reply::{Reply, respond},
};

/// What an endpoint says of its requests.
pub(crate) trait Home: Send + Sync {
    /// What is stored of a plan's answer, and what is sent.
    fn conclude(&self, reply: Reply) -> (Outcome, Times, Option<ResourceId>, Response<Body>);

    /// How long a claim is kept without a renewal.
    fn lease(&self) -> Duration;

    /// How long an attempt may take.
    fn longest(&self) -> Duration;
}

/// An endpoint of a contract.
pub(super) struct OfEndpoint {
    pub(super) plan: Arc<Endpoint>,
    pub(super) longest: Duration,
}

impl Home for OfEndpoint {
    /// A plan's answer is stored whatever its status: what its steps did is done. One that cannot answer yet says
    /// [`Halt::later`].
    fn conclude(&self, reply: Reply) -> (Outcome, Times, Option<ResourceId>, Response<Body>) {
        let endpoint = &self.plan.endpoint;
        let (parts, body) = respond(Ok(reply)).into_parts();
        let outcome = match body.len() > endpoint.limits.response_body_max {
            true => answer::tombstone(&parts, NotKept::TooLarge, &endpoint.headers),
            false => answer::outcome(&parts, &body, None, &endpoint.headers),
        };
        let (times, resource) = times(endpoint, endpoint.windows.replay, &outcome);
        (outcome, times, resource, Response::from_parts(parts, Body::full(body)))
    }

    fn lease(&self) -> Duration {
        self.plan.endpoint.windows.lease
    }

    fn longest(&self) -> Duration {
        self.longest
    }
}

/// How an attempt ended.
pub(crate) enum Ended {
    /// With an answer, which is stored.
    Answered(Box<Response<Body>>),
    /// Another is to go on.
    Later,
    /// A person has to look.
    Stopped,
    /// Somebody else holds the claim.
    Stale,
    /// Nothing could be written down; the lease decides.
    Lost(Box<str>),
}

/// Runs one attempt to its end, and writes down how it ended. `rest` is how long the request rests after a failure.
pub(crate) async fn attempt<D: Journal>(opening: Opening<D>, rest: impl FnOnce(u32) -> Duration) -> Ended {
    let home = Arc::clone(&opening.home);
    let endpoint = Arc::clone(&opening.record.endpoint);
    let attempt = match opening.open().await {
        Ok(attempt) => Arc::new(attempt),
        Err(halt) => return unopened(halt),
    };
    let tries = attempt.progress().tries;
    let work = run(Arc::clone(&attempt), endpoint, rest(tries.max(1)));
    attempt.keep(home.longest(), work).await
}

async fn run<D: Journal>(attempt: Arc<Attempt<D>>, endpoint: Arc<str>, rest: Duration) -> Ended {
    let plan: Plan<D> = attempt.plan.clone();
    let request: Snapshot = attempt.progress().request.clone();
    let stored = Arc::clone(&attempt.progress().plan);
    let ran = match (plan.run)(Steps::new(Arc::clone(&attempt)), &request) {
        _ if *stored != *plan.shape.text() => {
            let current = plan.shape.text();
            Err(Halt::stopped(retrysafe_core::recovery::Stopped::PlanChanged { current }))
        }
        Ok(running) => {
            match futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(running)).await {
                Ok(ran) => ran,
                Err(_) => Err(Halt::later("the plan panicked")),
            }
        }
        Err(error) => Err(Halt::astray(format!("the declared fields cannot be read: {error}"))),
    };
    let halt = match ran {
        Ok(reply) => match complete(&attempt, reply).await {
            Ok(live) => return Ended::Answered(Box::new(live)),
            Err(halt) => halt,
        },
        Err(halt) => halt,
    };
    let noted = match halt.0 {
        Cause::Answered(live) => return Ended::Answered(live),
        Cause::Stale => return Ended::Stale,
        Cause::Lost(why) => return Ended::Lost(why),
        Cause::Later(why) => {
            tracing::warn!(%endpoint, attempt = %attempt.claim.attempt(), %why, "an attempt ended; another goes on");
            attempt.park(&why, rest).await.map(|()| Ended::Later)
        }
        Cause::Stopped(why) => {
            tracing::error!(%endpoint, attempt = %attempt.claim.attempt(), %why, "a request needs a person");
            attempt.stop(why).await.map(|()| Ended::Stopped)
        }
    };
    noted.unwrap_or_else(unopened)
}

fn unopened(halt: Halt) -> Ended {
    match halt.0 {
        Cause::Answered(live) => Ended::Answered(live),
        Cause::Stale => Ended::Stale,
        Cause::Lost(why) | Cause::Later(why) => Ended::Lost(why),
        Cause::Stopped(why) => Ended::Lost(why.to_string().into()),
    }
}

/// The answer of a plan that no phase gave.
async fn complete<D: Journal>(attempt: &Attempt<D>, reply: Reply) -> Result<Response<Body>, Halt> {
    let now = attempt.now()?;
    let (outcome, times, resource, live) = attempt.home.conclude(reply);
    let event = retrysafe_core::recovery::Event::Ended { status: outcome.status };
    let write = attempt.claim.in_transaction().complete(outcome, times, resource, now);
    attempt.observe.at(Point::Completing);
    attempt.note_with(write, vec![event], now).await?;
    attempt.observe.at(Point::Completed);
    Ok(live)
}

impl Guard {
    /// Runs the plan `name` for `job`, if it wins its claim; goes on with it, if somebody began it and was lost.
    pub(crate) async fn in_steps<D: Journal>(
        self: Arc<Self>,
        job: Box<Job>,
        recovery: Recovery<D>,
        name: &str,
        principal: &str,
        fields: Bytes,
    ) -> Response<Body> {
        let Some(plan) = recovery.shared.plans.get(name).cloned() else {
            tracing::error!(plan = name, "no such plan was given to `Recovery`");
            return fault();
        };
        let own = Arc::ptr_eq(&recovery.shared.retrysafe.guard, &self);
        if !own || job.plan.endpoint.recovery != RecoveryClass::Phased {
            tracing::error!(
                endpoint = %job.plan.endpoint.name,
                "a request of several steps runs where the contract does not say so, or under another layer; write \
                 recovery = \"phased\""
            );
            return fault();
        }
        let request = Snapshot { principal: principal.into(), fields };
        let guard = Arc::clone(&self);
        let endpoint = Arc::clone(&job.plan);
        let task = Box::pin(async move { guard.claim_and_step(job, recovery, plan, request).await });
        self.detached(&endpoint.endpoint, task).await
    }

    async fn claim_and_step<D: Journal>(
        &self,
        job: Box<Job>,
        recovery: Recovery<D>,
        plan: Plan<D>,
        request: Snapshot,
    ) -> Response<Body> {
        let held = match self.claim(&job, RecoveryClass::Phased, &mut InStore(&self.engine)).await {
            Ok(Claimed::Won(held)) => *held,
            Ok(Claimed::Told(told)) => return self.tell(told, &job).await,
            Err(error) => return self.claim_failed(&job, &error),
        };
        let Held { won: claim, permit: _permit } = held;
        let _running = self.engine.meters.running();
        let fingerprint = *claim.fingerprint();
        let patience = match job.deadline {
            Some(deadline) => deadline.saturating_duration_since(tokio::time::Instant::now()),
            None => self.engine.contract.answer_timeout,
        };
        let home = recovery.of_endpoint(&job.plan);
        let opening = recovery.opening(claim, plan, home, (Attended::Retry, Some((request, patience))));
        let terms = recovery.shared.terms;
        // A caller that comes again finds it free; a completer that is quick finds it first.
        let ended = attempt(opening, move |_| pause(&terms, 1, 0)).await;
        recovery.shared.meters.attempted(Attended::Retry, &ended);
        self.engine.waiters.wake(&job.address);
        let in_flight = || Refusal::after(Code::KeyInFlight, job.plan.endpoint.in_flight.retry_after);
        match ended {
            Ended::Answered(live) => {
                self.ended(&job.plan.endpoint, &job.address, job.resource.clone(), live.status().as_u16())
                    .await;
                *live
            }
            Ended::Later => self.refuse(in_flight()),
            Ended::Lost(why) => {
                tracing::error!(endpoint = %job.plan.endpoint.name, %why, "an attempt ended and could not write that down; its lease decides");
                self.refuse(in_flight())
            }
            Ended::Stopped => self.refuse(Refusal::of(Code::OutcomeUnknown)),
            Ended::Stale => self.answer_stale(&job.plan, &job.address, &fingerprint).await,
        }
    }
}

impl<D: Journal> Recovery<D> {
    /// How long an attempt may take, whoever asked for it.
    pub(crate) fn longest(&self) -> Duration {
        self.shared.retrysafe.guard.engine.contract.answer_timeout
    }

    fn of_endpoint(&self, endpoint: &Arc<Endpoint>) -> Arc<dyn Home> {
        Arc::new(OfEndpoint { plan: Arc::clone(endpoint), longest: self.longest() })
    }

    /// What is said of requests of this name: an endpoint of the contract, or a consumer. `None`: nobody here knows how its
    /// answers are kept.
    pub(super) fn home(&self, name: &Arc<str>) -> Option<Arc<dyn Home>> {
        let endpoint = self.shared.retrysafe.guard.plans.get(name).map(|endpoint| self.of_endpoint(endpoint));
        endpoint.or_else(|| self.shared.consumers.get(name).cloned())
    }

    pub(crate) fn opening(
        &self,
        claim: Claim,
        plan: Plan<D>,
        home: Arc<dyn Home>,
        (by, request): (Attended, Option<(Snapshot, Duration)>),
    ) -> Opening<D> {
        let write = claim.renewal(retrysafe_core::time::Wall::from_unix_ms(0), Duration::ZERO);
        Opening {
            database: Arc::clone(&self.shared.database),
            record: Record {
                state: State::InFlight { lease_until: retrysafe_core::time::Wall::from_unix_ms(0) },
                ..write.next
            },
            claim,
            plan,
            lease: home.lease(),
            observe: self.shared.observe.clone(),
            home,
            by,
            request,
        }
    }
}

/// The declared fields of a request, as they are kept.
pub(crate) fn declared(fields: &impl Serialize) -> Result<Bytes, serde_json::Error> {
    serde_json::to_vec(fields).map(Bytes::from)
}

fn fault() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}
