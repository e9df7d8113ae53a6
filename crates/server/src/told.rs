//! Answers for everybody who did not run: replays, refusals, and what a probe finds out about an uncertain key.

use std::sync::Arc;

use http::{Response, request::Parts};
use retrysafe_core::{
    address::Address,
    claim::{Settled, Stale, Unsettled},
    codes::Code,
    contract::WhenAbsent,
    decide::Refusal,
    fingerprint::Fingerprint,
    ids::StatusId,
    outcome::{Body as Kept, Outcome},
    record::{Record, State},
};

use crate::{
    answer,
    body::Body,
    engine::{RETRY_AFTER_OUTAGE, SettleFault, Told},
    finish::times,
    guard::{Guard, Job},
    plan::Plan,
};

impl Guard {
    /// Answers a caller that did not win. What it is told is about another request, so it must be allowed to see it (K4;
    /// protocol 1: replay, mismatch and in-flight alike).
    pub(crate) async fn tell(&self, told: Told, job: &Job) -> Response<Body> {
        if let Err(refused) = self.authorise(&job.plan, &job.parts).await {
            return refused;
        }
        match told {
            Told::Replay { outcome, journal } => self.replay_of(&job.plan, &outcome, journal),
            other => Box::pin(self.tell_more(other, job)).await,
        }
    }

    async fn tell_more(&self, told: Told, job: &Job) -> Response<Body> {
        match told {
            Told::Replay { outcome, journal } => self.replay_of(&job.plan, &outcome, journal),
            Told::Refuse(refusal) => self.refuse(refusal),
            Told::Accept { status_id, retry_after } => {
                self.engine.meters.accepted();
                self.respond.accepted(&self.engine.contract.status_path, status_id, retry_after)
            }
            Told::Uncertain(record) => {
                self.uncertain(&job.plan, &job.address, *record, &job.parts.headers).await
            }
        }
    }

    /// A holder that was taken over answers with what stands now, never with its own result (R3). What stands may be
    /// another request's, if the key was freed and used again meanwhile.
    pub(crate) async fn answer_stale(
        &self,
        plan: &Plan,
        address: &Address,
        fingerprint: &Fingerprint,
    ) -> Response<Body> {
        match self.engine.store.load(address).await {
            Ok(Some(record)) => self.answer_standing(plan, &record, fingerprint),
            Ok(None) | Err(_) => self.refuse(Refusal::of(Code::OutcomeUnknown)),
        }
    }

    /// The answer that another attempt's record stands for.
    pub(crate) fn answer_standing(
        &self,
        plan: &Plan,
        record: &Record,
        fingerprint: &Fingerprint,
    ) -> Response<Body> {
        match &record.state {
            _ if record.fingerprint != *fingerprint => self.refuse(Refusal::of(Code::OutcomeUnknown)),
            State::Completed { outcome, .. } => self.replay(plan, outcome),
            State::InFlight { .. } => {
                self.refuse(Refusal::after(Code::KeyInFlight, plan.endpoint.in_flight.retry_after))
            }
            State::Uncertain { .. } => self.refuse(Refusal::of(Code::OutcomeUnknown)),
        }
    }

    /// A replay that the timeline of its key tells of, where it has one.
    fn replay_of(&self, plan: &Plan, outcome: &Arc<Outcome>, journal: Option<StatusId>) -> Response<Body> {
        if let Some(operation) = journal.filter(|_| matches!(outcome.body, Kept::Kept(_))) {
            self.engine.replayed_of(operation);
        }
        self.replay(plan, outcome)
    }

    pub(crate) fn replay(&self, plan: &Plan, outcome: &Arc<Outcome>) -> Response<Body> {
        match answer::replay(outcome, plan.replay_marker.as_ref()) {
            Some(response) => {
                self.engine.meters.replayed();
                response
            }
            None => self.refuse(Refusal::of(Code::ResponseNotKept)),
        }
    }

    /// Answers for an uncertain record: asks the probe, if the contract has one, whether it can be settled now.
    pub(crate) async fn uncertain(
        &self,
        plan: &Plan,
        address: &Address,
        record: Record,
        headers: &http::HeaderMap,
    ) -> Response<Body> {
        let unknown = || self.refuse(Refusal::of(Code::OutcomeUnknown));
        let (Some(probe), Some(inquire)) = (&plan.endpoint.probe, &self.inquire) else { return unknown() };
        let fingerprint = record.fingerprint;
        let Some(unsettled) = Unsettled::of(address.clone(), record) else { return unknown() };
        let path = crate::probe::path(probe, address.key(), unsettled.fence());
        let found = crate::probe::ask(inquire.as_ref(), probe, &path, headers).await;
        let Ok(now) = self.engine.store.now() else { return unknown() };
        let settling = match found {
            crate::probe::Found::Done(parts, body) => {
                let outcome = answer::outcome(&parts, &body, None, &plan.endpoint.headers);
                let (times, _) = times(&plan.endpoint, plan.endpoint.windows.replay, &outcome);
                unsettled.complete(outcome, times, now)
            }
            crate::probe::Found::Absent if probe.when_absent == WhenAbsent::Release => unsettled.release(),
            // "Absent" alone never permits a re-run: the first run may still be on its way (protocol 22).
            crate::probe::Found::Absent | crate::probe::Found::Unclear => return unknown(),
        };
        match self.engine.settle(settling).await {
            Ok(Settled::Stored(outcome)) => self.replay(plan, &outcome),
            Ok(Settled::Released) => {
                self.refuse(Refusal::after(Code::UpstreamUnavailable, RETRY_AFTER_OUTAGE))
            }
            Ok(Settled::Held) => unknown(),
            // Somebody else settled it first; what they wrote stands.
            Err(SettleFault::Stale(Stale)) => self.answer_stale(plan, address, &fingerprint).await,
            Err(SettleFault::Store(error)) => self.not_stored(&error),
        }
    }

    /// Asks whether this caller may see answers of this endpoint, where this hop cannot know by itself.
    pub(crate) async fn authorise(&self, plan: &Plan, parts: &Parts) -> Result<(), Response<Body>> {
        let (Some(rule), Some(inquire)) = (&plan.endpoint.reauthorise, &self.inquire) else { return Ok(()) };
        match inquire.get(&rule.path, &parts.headers).await {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) if matches!(answer.status().as_u16(), 401 | 403) => Err(answer.map(Body::full)),
            Ok(_) | Err(_) => Err(self.refuse(Refusal::after(Code::UpstreamUnavailable, RETRY_AFTER_OUTAGE))),
        }
    }
}
