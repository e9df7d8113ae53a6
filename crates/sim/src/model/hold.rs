//! What the holder of a claim does: it opens the journal, goes through the steps, and ends.

use bytes::Bytes;
use retrysafe_core::{
    claim::{Claim, Times},
    ids::{AttemptId, Fence, StatusId},
    outcome::{Body, Outcome},
    record::{Expect, Record, RemoveIf, State, Uncertainty, Write},
    recovery::{AfterAsk, AfterFailure, Attended, CallFailure, Found, Next, asked, failed, next},
};

use super::{
    Mutant, Step,
    act::{ADDRESS, Acting, append, forget_calls, show},
    world::{
        Actor, Answer, CHARGE, CREATE, Call, Class, DEADLINE, Ev, FINISH, LEASE, Pc, REAP, Rec, WINDOW,
        World, ticks, wall,
    },
};

/// Who holds a claim.
#[derive(Clone, Copy)]
pub(super) struct Holder {
    pub(super) sends: u8,
    pub(super) attempt: u8,
    pub(super) operation: u8,
    pub(super) class: Class,
}

impl Holder {
    fn at(self, at: Pc) -> Actor {
        let Self { sends, attempt, operation, class } = self;
        Actor::Holds { sends, attempt, operation, class, at }
    }

    fn done(self) -> Actor {
        Actor::Idle { sends: self.sends }
    }
}

impl Acting<'_> {
    /// The holder's claim, as the service would hold it.
    fn claim(&self, holder: Holder) -> Option<Claim> {
        let present = self.before.record?;
        let record = Record {
            attempt: AttemptId::new(u128::from(holder.attempt)),
            status_id: StatusId::new(u128::from(holder.operation)),
            state: State::InFlight { lease_until: wall(0) },
            ..present.real()
        };
        let fence = Fence::from_u64(u64::from(present.fence));
        Claim::won(ADDRESS.clone(), &Write { expect: Expect::Absent, next: record }, fence)
    }

    /// A write of the holder with what goes into the same commit. Refused where the guard does not hold: then all of it is
    /// rolled back, and the holder is done.
    fn commits(
        &mut self,
        holder: Holder,
        step: Step,
        write: impl FnOnce(Claim, u8) -> Option<Write>,
        with: impl FnOnce(&mut World),
        then: Actor,
    ) {
        let now = self.before.now;
        let write = self.claim(holder).and_then(|claim| write(claim, now));
        let Some(write) = write.filter(|write| self.allows(write.expect, None)) else {
            return self
                .goes(Step::IsRefused { who: self.who }, |world, who| world.actors[who] = holder.done());
        };
        self.goes(step, |world, who| {
            let fence = world.record.map_or(0, |record| record.fence);
            world.record = Some(Rec::of(&write.next, fence));
            with(world);
            world.actors[who] = then;
        });
    }

    /// Entries in a commit that goes on.
    fn notes(&mut self, holder: Holder, step: Step, events: &[Ev], then: Actor) {
        let goes_on = |claim: Claim, now| Some(claim.renewal(wall(now), ticks(LEASE)));
        self.commits(holder, step, goes_on, |world| append(world, events), then);
    }

    pub(super) fn holds(&mut self, holder: Holder, at: Pc) {
        let (who, now) = (self.who, self.before.now);
        if self.before.journal.is_full() {
            return;
        }
        match at {
            Pc::Free => {
                let guard = RemoveIf::Attempt(AttemptId::new(u128::from(holder.attempt)));
                let removed = self.before.record.is_some_and(|record| guard.allows(&record.real()));
                self.goes(Step::Frees { who, removed }, |world, who| {
                    if removed {
                        world.record = None;
                    }
                    world.actors[who] = holder.done();
                });
            }
            Pc::Open if holder.class == Class::Outside => {
                self.goes(Step::Begins { who }, |world, who| world.actors[who] = holder.at(Pc::Send));
            }
            Pc::Open => {
                // The journal that is read is the holder's only while the guard holds, which the write tells.
                let event = match (self.before.journal.is_empty(), self.is_client()) {
                    (true, _) => Ev::Opened { deadline: now + DEADLINE },
                    (false, true) => Ev::Retried,
                    (false, false) => Ev::Completer,
                };
                self.notes(holder, Step::Opens { who }, &[event], holder.at(Pc::Steps));
            }
            Pc::Steps => self.goes_on(holder),
            Pc::Send => self.sends(holder),
            Pc::Await => self.awaits(holder),
            Pc::Answered(receipt) => match holder.class {
                Class::Outside => self.completes(holder, receipt, None),
                Class::Phased => {
                    let result = Ev::Result { receipt };
                    let events: &[Ev] = match self.setting.mutant {
                        Some(Mutant::IntentAfterTheCall) => &[Ev::Intent, result],
                        _ => &[result],
                    };
                    self.notes(holder, Step::WritesResult { who, receipt }, events, holder.at(Pc::Steps));
                }
            },
        }
    }

    /// The first step that is not done.
    fn goes_on(&mut self, holder: Holder) {
        let (who, now) = (self.who, self.before.now);
        // A zombie acts by the journal as it knew it; what it misses is what its guard is there for. Its own view can only
        // be shorter, and a shorter one is a state that it was in before, when it acted by that.
        let Some(progress) = self.book.progress(&self.before.journal) else { return };
        for (place, name) in (0..).zip(self.book.steps.clone()) {
            let by = if self.is_client() { Attended::Retry } else { Attended::Completer };
            let decided = match next(&progress, &self.book.shape, &name, by, wall(now)) {
                Ok(Next::Skip(_)) => continue,
                Ok(decided) => decided,
                Err(_) => return,
            };
            return match (place, decided) {
                (CREATE, Next::Run) => {
                    let goes_on = |claim: Claim, now| Some(claim.renewal(wall(now), ticks(LEASE)));
                    let rows = |world: &mut World| {
                        world.epoch.creates += 1;
                        append(world, &[Ev::Done(CREATE)]);
                    };
                    self.commits(holder, Step::Creates { who }, goes_on, rows, holder.at(Pc::Steps));
                }
                (CHARGE, Next::Run) if self.setting.mutant == Some(Mutant::IntentAfterTheCall) => {
                    self.goes(Step::Begins { who }, |world, who| world.actors[who] = holder.at(Pc::Send));
                }
                (CHARGE, Next::Run) => {
                    let late = !self.is_client() && progress.deadline <= wall(now);
                    let goes_on = |claim: Claim, now| Some(claim.renewal(wall(now), ticks(LEASE)));
                    let rows = |world: &mut World| {
                        world.epoch.late_charge |= late;
                        append(world, &[Ev::Intent]);
                    };
                    self.commits(holder, Step::WritesIntent { who }, goes_on, rows, holder.at(Pc::Send));
                }
                (_, Next::Resend(_)) => {
                    self.notes(holder, Step::WritesResent { who }, &[Ev::Resent], holder.at(Pc::Send));
                }
                (_, Next::Ask(intent)) => self.asks(holder, &intent),
                (_, Next::TooLate) => self.parks(holder, &[]),
                (FINISH, Next::Run) => {
                    let receipt = progress.result(&self.book.steps[usize::from(CHARGE)]);
                    let receipt = receipt.and_then(|result| result.first().copied()).unwrap_or(0);
                    self.completes(holder, receipt, Some(Ev::Done(FINISH)));
                }
                (_, _) => self.stops(holder),
            };
        }
    }

    fn asks(&mut self, holder: Holder, intent: &retrysafe_core::recovery::Intent) {
        let (who, now) = (self.who, self.before.now);
        let charge = self.before.charges.iter().flatten().find(|charge| charge.operation == holder.operation);
        let found =
            charge.map_or(Found::Absent, |charge| Found::Done(Bytes::copy_from_slice(&[charge.receipt])));
        let absent = found == Found::Absent;
        let step = &self.book.steps[usize::from(CHARGE)];
        match asked(self.book.external, step, intent, found, wall(now)) {
            _ if absent && self.setting.mutant == Some(Mutant::AbsenceIsFailure) => {
                self.notes(holder, Step::TakesAbsenceForFailure { who }, &[Ev::Resent], holder.at(Pc::Send));
            }
            AfterAsk::Record(result) => {
                let receipt = result.first().copied().unwrap_or(0);
                let result = Ev::Result { receipt };
                self.notes(holder, Step::FindsResult { who, receipt }, &[result], holder.at(Pc::Steps));
            }
            AfterAsk::Resend => {
                self.notes(holder, Step::WritesResent { who }, &[Ev::Resent], holder.at(Pc::Send));
            }
            AfterAsk::Later => self.parks(holder, &[]),
            AfterAsk::Uncertain(_) => self.stops(holder),
        }
    }

    fn sends(&mut self, holder: Holder) {
        let (who, now) = (self.who, self.before.now);
        // The age is looked at again right before the call: its holder may have slept since it wrote the intent.
        if let Some(resend) = self.book.external.resend
            && let Some(progress) = self.book.progress(&self.before.journal)
            && let Some(intent) = progress.intent(&self.book.steps[usize::from(CHARGE)])
            && !resend.permits(wall(now).since(intent.at))
        {
            return self.stops(holder);
        }
        if let Some(place) = self.before.calls.iter().position(Option::is_none) {
            self.goes(Step::Calls { who }, |world, who| {
                let by = u8::try_from(who).unwrap_or(u8::MAX);
                let call = Call { by, operation: holder.operation, sent_at: now, answer: Answer::Coming };
                world.calls[place] = Some(call);
                world.actors[who] = holder.at(Pc::Await);
            });
        }
        let may_void = holder.class == Class::Phased
            && self.setting.mutant != Some(Mutant::IntentAfterTheCall)
            && self.before.faults > 0;
        if may_void {
            self.fails(holder, CallFailure::NotSent);
        }
    }

    fn awaits(&mut self, holder: Holder) {
        let who = self.who;
        let own = |call: &&Option<Call>| {
            call.is_some_and(|call| usize::from(call.by) == who && call.operation == holder.operation)
        };
        let answer = self.before.calls.iter().find(own).copied().flatten().map(|call| call.answer);
        if let Some(Answer::Receipt(receipt)) = answer {
            self.goes(Step::ReadsAnswer { who, receipt }, |world, who| {
                forget_calls(world, who);
                world.actors[who] = holder.at(Pc::Answered(receipt));
            });
        }
        let died = answer.is_none();
        if died || self.before.faults > 0 {
            match holder.class {
                // A lost upstream, outside: nobody knows.
                Class::Outside => self.stops(holder),
                Class::Phased => self.fails(holder, CallFailure::Unknown),
            }
        }
    }

    fn fails(&mut self, holder: Holder, failure: CallFailure) {
        let now = self.before.now;
        let Some(progress) = self.book.progress(&self.before.journal) else { return };
        let step = &self.book.steps[usize::from(CHARGE)];
        let Some(intent) = progress.intent(step) else { return self.parks(holder, &[]) };
        match failed(self.book.external, step, intent, failure, wall(now)) {
            AfterFailure::Void => self.parks(holder, &[Ev::NotSent]),
            AfterFailure::Later => self.parks(holder, &[]),
            AfterFailure::Uncertain(_) => self.stops(holder),
        }
    }

    /// Ends the attempt, and lets another go on.
    fn parks(&mut self, holder: Holder, events: &[Ev]) {
        let who = self.who;
        let rests = |claim: Claim, now| Some(claim.renewal(wall(now), ticks(1)));
        // Giving up is bounded as crashes are, or a story would have no end.
        let faults = self.before.faults.saturating_sub(1);
        let rows = |world: &mut World| {
            world.faults = faults;
            append(world, events);
            append(world, &[Ev::Failed]);
            forget_calls(world, who);
        };
        self.commits(holder, Step::Parks { who }, rests, rows, holder.done());
    }

    /// Ends the attempt, and shows the request to a person.
    fn stops(&mut self, holder: Holder) {
        let who = self.who;
        let held = |claim: Claim, now| {
            let settling = claim.hold(Uncertainty::Stopped, wall(now));
            match settling.change() {
                retrysafe_core::claim::Change::Write(write) => Some(Write::clone(write)),
                retrysafe_core::claim::Change::Remove(_) => None,
            }
        };
        let phased = holder.class == Class::Phased;
        let rows = |world: &mut World| {
            if phased {
                append(world, &[Ev::Stopped]);
            }
            forget_calls(world, who);
        };
        self.commits(holder, Step::Stops { who }, held, rows, holder.done());
    }

    fn completes(&mut self, holder: Holder, receipt: u8, event: Option<Ev>) {
        let who = self.who;
        let client = self.is_client();
        let window_from_claim = self.setting.mutant == Some(Mutant::WindowFromTheClaim);
        let ends = |claim: Claim, now| {
            let body = Body::Kept(Bytes::copy_from_slice(&[receipt]));
            let outcome = Outcome { status: 200, headers: Vec::new(), body, trailers: Vec::new() };
            let times = Times { replay: ticks(WINDOW), reap: ticks(REAP) };
            let mut write = claim.in_transaction().complete(outcome, times, None, wall(now));
            let opened_at = write.next.opened_at;
            if window_from_claim && let State::Completed { expires_at, reap_at, .. } = &mut write.next.state {
                *expires_at = opened_at.plus(ticks(WINDOW));
                *reap_at = opened_at.plus(ticks(REAP));
            }
            Some(write)
        };
        let rows = |world: &mut World| {
            world.epoch.finishes += 1;
            let now = world.now;
            world.epoch.done_at.get_or_insert(now);
            if let Some(event) = event {
                append(world, &[event]);
            }
            if client {
                show(&mut world.epoch, receipt);
            }
        };
        self.commits(holder, Step::Completes { who, receipt }, ends, rows, holder.done());
    }
}
