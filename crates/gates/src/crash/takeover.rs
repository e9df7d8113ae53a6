//! A process that is stopped past its lease, another one that takes over, and the first one woken: it must change nothing more.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::process::Signal;

use super::blow::Blow;
use super::process::Api;
use super::{End, FIRST, Gate, RETRY, Recovery, To};
use crate::arrive::{Lanes, Shot};
use crate::concurrency::NotRun;
use crate::plan::Values;
use crate::wire::Answer;

/// Between two looks at whether the call has come.
const LOOK: Duration = Duration::from_millis(5);

/// What the callers of both processes were told.
pub(super) struct Taken {
    /// Whoever asked the one that was stopped.
    pub(super) first: Option<Answer>,
    /// Whoever asked the other one, where there is one.
    pub(super) second: Option<(End, Option<Answer>)>,
}

impl Gate<'_> {
    /// The second process, for the blow that needs one.
    pub(super) fn start_second(&self, blow: Blow) -> Result<Option<Api>, NotRun> {
        let Some(second) = self.plan.second.as_ref().filter(|_| blow == Blow::Stop) else { return Ok(None) };
        let started = Api::start(&second.command, std::slice::from_ref(&second.base), self.plan);
        started.map(Some).map_err(|why| NotRun(format!("the second process: {why}")))
    }

    /// The API is stopped by its call, and woken when its lease is over and the other process, if there is one, has an end.
    pub(super) fn stopped(
        &mut self,
        values: &Values,
        api: &Api,
        second: bool,
        hit: &Arc<OnceLock<Duration>>,
    ) -> Result<Taken, NotRun> {
        let lease = self.plan.lease.unwrap_or_default();
        // Its caller waits for as long as it is stopped, and for its answer afterwards.
        let patience = self.plan.plan.concurrency.timeout + lease + self.plan.settled_within;
        let mut lanes = Lanes::new(self.plan.plan.bases.clone(), self.lanes.clock(), patience);
        let request = self.filled(values);
        self.sent += 1;
        let caller = std::thread::spawn(move || lanes.one(Shot { base: FIRST.base, request }));
        while hit.get().is_none() && !caller.is_finished() {
            std::thread::sleep(LOOK);
        }
        let mut taken = None;
        if hit.get().is_some() {
            std::thread::sleep(lease + RETRY);
            if second {
                let other = To { step: "other", base: self.plan.plan.bases.len() };
                taken = Some(self.end(values, Recovery::Retry, other, 0));
            }
        }
        api.group().signal(Signal::CONT);
        self.story.did(self.lanes.now(), "the API is woken (SIGCONT)");
        let timed = caller.join().map_err(|_| NotRun("the thread of the first request failed".to_owned()))?;
        self.note(FIRST, &timed);
        Ok(Taken { first: timed.outcome.ok(), second: taken })
    }
}
