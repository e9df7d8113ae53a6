//! What the holder of a claim does: it opens the journal, goes through the steps, and ends.

use retrysafe_core::{
    claim::{Claim, Times},
    ids::Fence,
    outcome::{Body, Outcome},
    record::{RecoveryClass, RemoveIf, State, Uncertainty, Write},
    recovery::{
        AfterAsk, AfterFailure, Attended, CallFailure, DownstreamKey, Entry, Event, Found, Intent, Next,
        Progress, Snapshot, StepName, Stopped, asked, failed, is_untouched, next, pause,
    },
};

use super::{
    LEASE, PATIENCE, REAP, WINDOW,
    act::{ADDRESS, receipt_bytes, receipt_in},
    plan::{CHARGE, Does},
    store::{Commit, Op, Row},
    world::{At, Happens, Held, Then, Told, World},
};
use crate::model::Mutant;

/// A lease is renewed this many times in its length.
const RENEWALS: u32 = 3;

impl World {
    /// A claim was won. `closes`: only to free its key.
    pub(super) fn won(&mut self, id: u32, write: &Write, fence: Fence, closes: bool) {
        let Some(claim) = Claim::won(ADDRESS.clone(), write, fence) else {
            self.tasks.remove(&id);
            return;
        };
        let (operation, class) = (write.next.status_id, write.next.recovery);
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let completer = task.caller.is_none();
        task.held = Some(Held { claim, operation, progress: None, lost: false });
        if closes {
            task.at = At::Closing;
            return self.asks_store(id, Op::Journal(operation));
        }
        self.counts.by_completers += u64::from(completer);
        self.at(u64::try_from((LEASE / RENEWALS).as_millis()).unwrap_or(1), Happens::Renews { task: id });
        match class {
            // A handler without steps: it calls, and answers what it was told.
            RecoveryClass::Outside | RecoveryClass::Atomic | RecoveryClass::Deduplicated => {
                if let Some(task) = self.tasks.get_mut(&id) {
                    task.at = At::Calling(CHARGE);
                }
                self.calls(id, (operation, CHARGE));
            }
            RecoveryClass::Phased => {
                if let Some(task) = self.tasks.get_mut(&id) {
                    task.at = At::Reading;
                }
                self.asks_store(id, Op::Journal(operation));
            }
        }
    }

    /// Frees the key, if nothing was done; else it is somebody's to go on with.
    pub(super) fn closes(&mut self, id: u32, journal: &[Entry]) {
        let Some((claim, server)) = self.claim(id) else { return };
        let guard = RemoveIf::Attempt(claim.attempt());
        if !is_untouched(journal) {
            let write = claim.renewal(self.clock(server), std::time::Duration::ZERO);
            return self.writes(id, write, Vec::new(), Row::None, Then::Tell(Told::InFlight));
        }
        if let Some(task) = self.tasks.get_mut(&id) {
            task.at = At::Freeing(guard);
        }
        self.asks_store(id, Op::Remove(guard));
    }

    pub(super) fn renews(&mut self, id: u32) {
        let Some(task) = self.tasks.get(&id) else { return };
        let (server, key) = (task.server, task.key);
        let awake = self.servers.get(server).is_some_and(|server| server.paused_until <= self.now);
        let now = self.clock(server);
        if let Some(held) = self.tasks.get(&id).and_then(|task| task.held.as_ref()).filter(|_| awake) {
            let write = Box::new(held.claim.renewal(now, LEASE));
            let after = self.chance.between(1, 20);
            self.at(after, Happens::RenewalArrives { task: id, key, write });
        }
        self.at(u64::try_from((LEASE / RENEWALS).as_millis()).unwrap_or(1), Happens::Renews { task: id });
    }

    /// The journal was read: who goes on is written down.
    pub(super) fn opens(&mut self, id: u32, journal: Vec<Entry>) {
        let Some(task) = self.tasks.get(&id) else { return };
        let by = if task.caller.is_some() { Attended::Retry } else { Attended::Completer };
        let now = self.clock(task.server);
        let event = match journal.is_empty() {
            true if by == Attended::Completer => return drop(self.tasks.remove(&id)),
            true => Event::Opened {
                plan: self.plan.shape.text(),
                request: Snapshot { principal: "rider".into(), fields: bytes::Bytes::new() },
                deadline: now.plus(PATIENCE),
            },
            false => Event::Resumed { by },
        };
        if let Some(held) = self.tasks.get_mut(&id).and_then(|task| task.held.as_mut()) {
            held.progress = Progress::of(&journal).ok();
        }
        self.notes(id, vec![event], Row::None, Then::GoOn);
    }

    /// The entries that follow what the holder knows of.
    fn entries(&self, id: u32, events: Vec<Event>) -> Vec<Entry> {
        let Some(task) = self.tasks.get(&id) else { return Vec::new() };
        let Some(held) = &task.held else { return Vec::new() };
        let next = held.progress.as_ref().map_or(0, |progress| progress.next_seq);
        let (attempt, at) = (held.claim.attempt(), self.clock(task.server));
        (next..).zip(events).map(|(seq, event)| Entry { seq, attempt, at, event }).collect()
    }

    /// A commit that keeps the claim.
    fn notes(&mut self, id: u32, events: Vec<Event>, row: Row, then: Then) {
        let Some((claim, server)) = self.claim(id) else { return };
        let write = claim.renewal(self.clock(server), LEASE);
        self.writes(id, write, events, row, then);
    }

    fn claim(&self, id: u32) -> Option<(&Claim, usize)> {
        let task = self.tasks.get(&id)?;
        Some((&task.held.as_ref()?.claim, task.server))
    }

    fn writes(&mut self, id: u32, write: Write, events: Vec<Event>, row: Row, then: Then) {
        let entries = self.entries(id, events);
        let commit = Commit { write, entries, row, seen: None };
        self.commits(id, commit, |commit| At::Committing(commit, then));
    }

    pub(super) fn committed(&mut self, id: u32, commit: &Commit, then: Then) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.rounds = 0;
        if let Some(held) = &mut task.held {
            for entry in &commit.entries {
                match &mut held.progress {
                    Some(progress) => drop(progress.add(entry)),
                    empty => *empty = Progress::of(std::slice::from_ref(entry)).ok(),
                }
            }
        }
        match then {
            Then::GoOn => self.steps(id),
            Then::Call(step) => self.about_to_call(id, step),
            Then::Tell(told) => self.answers(id, told),
        }
    }

    /// What the plan does next, by what is known.
    fn steps(&mut self, id: u32) {
        let Some(task) = self.tasks.get(&id) else { return };
        let by = if task.caller.is_some() { Attended::Retry } else { Attended::Completer };
        let now = self.clock(task.server);
        let Some(progress) = task.held.as_ref().and_then(|held| held.progress.clone()) else {
            return drop(self.tasks.remove(&id));
        };
        let operation = task.held.as_ref().map(|held| held.operation);
        for step in 0..self.plan.steps.len() {
            let name = self.step(step);
            let Ok(next) = next(&progress, &self.plan.shape, &name, by, now) else {
                return self.stops(id, Stopped::Astray { what: "the shape".into() });
            };
            match next {
                Next::Skip(_) => continue,
                Next::Run => match self.plan.does(step) {
                    Does::Writes(row) => {
                        let done = Event::Done { step: name, result: bytes::Bytes::new() };
                        self.notes(id, vec![done], row, Then::GoOn);
                    }
                    Does::Calls if self.mutant == Some(Mutant::IntentAfterTheCall) => {
                        self.about_to_call(id, step);
                    }
                    Does::Calls => {
                        let Some(intent) = operation.map(|operation| self.intent(operation, step)) else {
                            return;
                        };
                        self.notes(id, vec![intent], Row::None, Then::Call(step));
                    }
                    Does::Answers => {
                        let receipt = progress.result(&self.step(CHARGE)).map_or(0, receipt_in);
                        let done = Event::Done { step: name, result: bytes::Bytes::new() };
                        self.completes(id, receipt, vec![done, Event::Ended { status: 201 }]);
                    }
                },
                Next::Ask(intent) => {
                    if let Some(task) = self.tasks.get_mut(&id) {
                        task.at = At::Asking(Box::new(intent), step);
                    }
                    if let Some(operation) = operation {
                        self.asks_provider(id, (operation, step));
                    }
                }
                Next::Resend(_) => {
                    self.notes(id, vec![Event::Resent { step: name }], Row::None, Then::Call(step));
                }
                Next::Uncertain(why) => self.stops(id, why),
                Next::TooLate => self.parks(id, Vec::new()),
            }
            return;
        }
    }

    fn step(&self, step: usize) -> StepName {
        self.plan.steps[step].0.clone()
    }

    fn intent(&self, operation: retrysafe_core::ids::StatusId, step: usize) -> Event {
        let step = self.step(step);
        let key = DownstreamKey::derive(operation, "rides", &step);
        Event::Intent { step, key, request: bytes::Bytes::new() }
    }

    fn known_intent(&self, id: u32, step: usize) -> Option<Intent> {
        let progress = self.tasks.get(&id)?.held.as_ref()?.progress.as_ref()?;
        progress.intent(&self.step(step)).cloned()
    }

    /// The last look before the call.
    fn about_to_call(&mut self, id: u32, step: usize) {
        let intent = self.known_intent(id, step);
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let server = task.server;
        let Some((operation, lost)) = task.held.as_ref().map(|held| (held.operation, held.lost)) else {
            return;
        };
        if lost {
            // Taken over, for all that is known: nothing foreign is begun any more.
            return self.answers(id, Told::InFlight);
        }
        task.at = At::Calling(step);
        let now = self.clock(server);
        if let (Some(resend), Some(intent)) = (self.external.resend, &intent)
            && !resend.permits(now.since(intent.at))
        {
            return self.stops(id, Stopped::Unresolved { step: self.step(step) });
        }
        if intent.is_some() && self.fails(50) {
            return self.call_failed(id, step, CallFailure::NotSent);
        }
        self.calls(id, (operation, step));
    }

    pub(super) fn call_said(&mut self, id: u32, receipt: Option<u32>) {
        let Some(task) = self.tasks.get(&id) else { return };
        let At::Calling(called) = task.at else { return };
        let phased = task.held.as_ref().is_some_and(|held| held.claim.recovery() == RecoveryClass::Phased);
        match (phased, receipt) {
            (true, Some(receipt)) => {
                let step = self.step(called);
                let result = Event::Result { step, result: receipt_bytes(receipt) };
                let events = match (self.known_intent(id, called), self.tasks[&id].held.as_ref()) {
                    (None, Some(held)) => vec![self.intent(held.operation, called), result],
                    _ => vec![result],
                };
                self.notes(id, events, Row::None, Then::GoOn);
            }
            (true, None) => self.call_failed(id, called, CallFailure::Unknown),
            (false, Some(receipt)) => self.completes(id, receipt, Vec::new()),
            (false, None) => self.holds_back(id, Uncertainty::UpstreamLost, Vec::new()),
        }
    }

    fn call_failed(&mut self, id: u32, called: usize, failure: CallFailure) {
        let Some(intent) = self.known_intent(id, called) else { return self.parks(id, Vec::new()) };
        let Some(now) = self.tasks.get(&id).map(|task| self.clock(task.server)) else { return };
        let step = self.step(called);
        match failed(self.external, &step, &intent, failure, now) {
            AfterFailure::Void => self.parks(id, vec![Event::NotSent { step }]),
            AfterFailure::Later => self.parks(id, Vec::new()),
            AfterFailure::Uncertain(why) => self.stops(id, why),
        }
    }

    pub(super) fn ask_said(&mut self, id: u32, found: Found) {
        let Some(task) = self.tasks.get(&id) else { return };
        let At::Asking(intent, called) = task.at.clone() else { return };
        let (now, step) = (self.clock(task.server), self.step(called));
        let absent = found == Found::Absent;
        match asked(self.external, &step, &intent, found, now) {
            _ if absent && self.mutant == Some(Mutant::AbsenceIsFailure) => {
                self.notes(id, vec![Event::Resent { step }], Row::None, Then::Call(called));
            }
            AfterAsk::Record(result) => {
                self.notes(id, vec![Event::Result { step, result }], Row::None, Then::GoOn);
            }
            AfterAsk::Resend => {
                self.notes(id, vec![Event::Resent { step }], Row::None, Then::Call(called));
            }
            AfterAsk::Later => self.parks(id, Vec::new()),
            AfterAsk::Uncertain(why) => self.stops(id, why),
        }
    }

    /// Ends the attempt, and lets another go on after a rest.
    fn parks(&mut self, id: u32, mut events: Vec<Event>) {
        let entropy = self.chance.draw();
        let Some((claim, server)) = self.claim(id) else { return };
        let tries =
            self.tasks[&id].held.as_ref().and_then(|held| held.progress.as_ref()).map_or(1, |p| p.tries);
        let rest = pause(&self.terms, tries.max(1), entropy);
        let write = claim.renewal(self.clock(server), rest);
        events.push(Event::Failed { why: "no answer".into() });
        self.writes(id, write, events, Row::None, Then::Tell(Told::InFlight));
    }

    /// Ends the attempt, and shows the request to a person.
    fn stops(&mut self, id: u32, why: Stopped) {
        self.holds_back(id, Uncertainty::Stopped, vec![Event::Stopped(why)]);
    }

    fn holds_back(&mut self, id: u32, why: Uncertainty, events: Vec<Event>) {
        let Some((claim, server)) = self.claim(id) else { return };
        let write = claim.in_transaction().hold(why, self.clock(server));
        self.writes(id, write, events, Row::None, Then::Tell(Told::Unknown));
    }

    fn completes(&mut self, id: u32, receipt: u32, events: Vec<Event>) {
        let Some((claim, server)) = self.claim(id) else { return };
        let body = Body::Kept(receipt_bytes(receipt));
        let outcome = Outcome { status: 201, headers: Vec::new(), body, trailers: Vec::new() };
        let times = Times { replay: WINDOW, reap: REAP };
        let mut write = claim.in_transaction().complete(outcome, times, None, self.clock(server));
        let opened_at = write.next.opened_at;
        if self.mutant == Some(Mutant::WindowFromTheClaim)
            && let State::Completed { expires_at, reap_at, .. } = &mut write.next.state
        {
            (*expires_at, *reap_at) = (opened_at.plus(WINDOW), opened_at.plus(REAP));
        }
        self.writes(id, write, events, Row::Finish, Then::Tell(Told::Receipt(receipt)));
    }
}
