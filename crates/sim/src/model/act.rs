//! What may happen next in a world: every step of every actor, every fault, the clock.
//!
//! The actors read, decide, write and call as the service does, in separate steps, so that anything can come in between.
//! What they decide, and what a write may replace, is asked of the real functions.

use std::sync::LazyLock;

use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    decide::{Decision, Fresh, Upkeep, upkeep},
    ids::{AttemptId, StatusId},
    outcome::Body,
    record::{Expect, RemoveIf, Write},
    recovery::{Judgement, Standing, judge, takeover},
};

use super::{
    Mutant, Step,
    hold::Holder,
    world::{
        ACTORS, Actor, Answer, Book, CLIENTS, Call, Charge, Epoch, Ev, Journal, LEASE, PROVIDER_MARGIN,
        PROVIDER_WINDOW, Pc, Provider, Rec, St, TIME_MAX, Then, WINDOW, World, terms, tick, ticks, wall,
    },
};

use crate::request::{decision, recovery};

/// What a run is about.
pub(super) struct Setting {
    pub(super) provider: Provider,
    pub(super) mutant: Option<Mutant>,
    /// The deployed contract may change, once.
    pub(super) deploys: bool,
    pub(super) sends: u8,
    pub(super) workers: usize,
}

pub(super) static ADDRESS: LazyLock<Address> = LazyLock::new(|| {
    let parts = || {
        let namespace = Namespace::new("model").ok()?;
        Some(Address::new(namespace, Account::new(&["rider"]).ok()?, Key::trusted("k").ok()?))
    };
    parts().unwrap_or_else(|| unreachable!("plain words"))
});

/// Adds every world that can follow `world`.
pub(super) fn successors(world: &World, setting: &Setting, book: &mut Book, into: &mut Vec<(Step, World)>) {
    if world.now < TIME_MAX {
        into.push((Step::Tick, World { now: world.now + 1, ..*world }));
    }
    if setting.deploys && !world.deployed {
        into.push((Step::Deploy, World { deployed: true, ..*world }));
    }
    for at in 0..world.calls.len() {
        travel(world, setting, at, into);
    }
    for who in 0..ACTORS {
        let mut acting = Acting { before: world, setting, book, who, into };
        acting.act();
    }
}

/// A call arrives, or never does.
fn travel(world: &World, setting: &Setting, at: usize, into: &mut Vec<(Step, World)>) {
    let Some(Some(call)) = world.calls.get(at).copied() else { return };
    let who = usize::from(call.by);
    if call.answer != Answer::Coming {
        return;
    }
    if world.now > call.sent_at + PROVIDER_MARGIN {
        let mut next = *world;
        next.calls[at] = None;
        into.push((Step::CallDied { who }, next));
        return;
    }
    let mut next = *world;
    let known = world.charges.iter().flatten().find(|charge| {
        charge.operation == call.operation
            && setting.provider == Provider::Deduplicates
            && world.now < charge.first_at + PROVIDER_WINDOW
    });
    let receipt = match known {
        Some(charge) => charge.receipt,
        None => {
            next.receipts += 1;
            let charge = Charge { operation: call.operation, first_at: world.now, receipt: next.receipts };
            match next.charges.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(charge),
                None => return, // more than a run is looked at for: a violation was reported long before
            }
            if call.operation >= world.epoch.first_operation {
                next.epoch.charges += 1;
            }
            next.receipts
        }
    };
    // An answer whose caller is gone is read by nobody.
    let reader = matches!(world.actors.get(who), Some(Actor::Holds { at: Pc::Await, operation, .. })
        if *operation == call.operation);
    next.calls[at] = reader.then_some(Call { answer: Answer::Receipt(receipt), ..call });
    into.push((Step::Charged { who, receipt, again: known.is_some() }, next));
}

/// One actor's turn.
pub(super) struct Acting<'a> {
    pub(super) before: &'a World,
    pub(super) setting: &'a Setting,
    pub(super) book: &'a mut Book,
    pub(super) who: usize,
    into: &'a mut Vec<(Step, World)>,
}

impl Acting<'_> {
    fn act(&mut self) {
        let actor = self.before.actors[self.who];
        match actor {
            Actor::Idle { sends } if self.is_client() && sends > 0 && self.is_next() => {
                // The optimistic first attempt: nothing is known, so nothing is read.
                self.goes(Step::Sends { who: self.who }, |world, who| {
                    world.actors[who] =
                        Actor::Writes { sends: sends - 1, seen: None, by: world.now, then: Then::Claim };
                });
            }
            Actor::Idle { .. } if self.works() => {
                // The store tells workers of what is due, and of nothing else.
                let seen = self.before.record;
                let now = self.before.now;
                let is_due = seen.is_some_and(|seen| match seen.state {
                    St::InFlight { until } => until <= now,
                    St::Uncertain => false,
                    St::Completed { reap_at, .. } => reap_at <= now,
                });
                if is_due {
                    self.goes(Step::Reads { who: self.who }, |world, who| {
                        world.actors[who] = Actor::Read { sends: 0, seen };
                    });
                }
            }
            Actor::Idle { .. } => {}
            Actor::Read { sends, seen } => match (self.is_client(), seen) {
                (true, seen) => self.decides(sends, seen),
                (false, Some(seen)) => self.judges(seen),
                (false, None) => {}
            },
            Actor::Writes { sends, seen, by, then } => self.writes(sends, seen, by, then),
            Actor::Holds { sends, attempt, operation, class, at } => {
                self.holds(Holder { sends, attempt, operation, class }, at);
            }
        }
        if !matches!(actor, Actor::Idle { .. }) && self.before.faults > 0 {
            self.goes(Step::Crashes { who: self.who }, |world, who| {
                world.faults -= 1;
                world.actors[who] = Actor::Idle { sends: sends_of(actor) };
                // Nobody is there any more to read an answer.
                forget_calls(world, who);
            });
        }
    }

    pub(super) fn is_client(&self) -> bool {
        self.who < CLIENTS
    }

    fn works(&self) -> bool {
        (CLIENTS..CLIENTS + self.setting.workers).contains(&self.who)
    }

    /// Clients that have done nothing yet are the same: they begin in their order.
    fn is_next(&self) -> bool {
        let fresh = Actor::Idle { sends: self.setting.sends };
        self.before.actors[self.who] != fresh || !self.before.actors[..self.who].contains(&fresh)
    }

    pub(super) fn goes(&mut self, step: Step, change: impl FnOnce(&mut World, usize)) {
        let mut next = *self.before;
        change(&mut next, self.who);
        self.into.push((step, next));
    }

    fn rests(&mut self, step: Step, sends: u8) {
        self.goes(step, |world, who| world.actors[who] = Actor::Idle { sends });
    }

    /// The real decision on what was read.
    fn decision(&self, seen: Option<Rec>, now: u8) -> Decision {
        let fresh = Fresh {
            attempt: AttemptId::new(u128::from(self.before.attempts) + 1),
            status_id: StatusId::new(u128::from(self.before.operations) + 1),
        };
        let terms = (recovery(self.before.deployed), ticks(LEASE));
        decision(seen.map(|seen| seen.real()), terms, self.setting.mutant, fresh, wall(now))
    }

    fn decides(&mut self, sends: u8, seen: Option<Rec>) {
        let now = self.before.now;
        let who = self.who;
        let then = |then| {
            move |world: &mut World, who: usize| {
                world.actors[who] = Actor::Writes { sends, seen, by: now, then }
            }
        };
        match self.decision(seen, now) {
            Decision::Claim(write) => {
                let over = matches!(write.expect, Expect::Takeover { .. });
                self.goes(Step::Decides { who, over }, then(Then::Claim));
            }
            Decision::MarkUncertain(_) => self.goes(Step::DecidesUncertain { who }, then(Then::Mark)),
            Decision::Replay(outcome) => {
                let receipt = match &outcome.body {
                    Body::Kept(bytes) => bytes.first().copied().unwrap_or(0),
                    Body::NotKept(_) => 0,
                };
                self.goes(Step::Replayed { who, receipt }, |world, who| {
                    world.actors[who] = Actor::Idle { sends };
                    show(&mut world.epoch, receipt);
                });
            }
            Decision::Refuse(_) => self.rests(Step::ToldInFlight { who }, sends),
            Decision::Uncertain(_) => self.rests(Step::ToldUnknown { who }, sends),
            Decision::Wait(_) | Decision::Accept { .. } => {}
        }
    }

    /// A worker's look at a record: upkeep, and what the completer makes of it.
    fn judges(&mut self, seen: Rec) {
        let (who, now) = (self.who, self.before.now);
        let record = seen.real();
        let then = |then| {
            move |world: &mut World, who: usize| {
                world.actors[who] = Actor::Writes { sends: 0, seen: Some(seen), by: now, then }
            }
        };
        match upkeep(&record, wall(now)) {
            Upkeep::Reap(_) => return self.goes(Step::DecidesToReap { who }, then(Then::Reap)),
            Upkeep::Mark(_) => return self.goes(Step::DecidesUncertain { who }, then(Then::Mark)),
            Upkeep::Leave => {}
        }
        // A worker reads record and journal apart; the journal of an operation is only ever longer.
        let current = self.before.record.is_some_and(|record| record.operation == seen.operation);
        if !current {
            return self.rests(Step::Leaves { who }, 0);
        }
        let progress = self.book.progress(&self.before.journal);
        let standing = progress
            .as_deref()
            .map_or(Standing::Unopened, |progress| Standing::Known(progress, Some(&self.book.shape)));
        match judge(&record, standing, &terms(), wall(now)) {
            Judgement::Leave | Judgement::Wait(_) => self.rests(Step::Leaves { who }, 0),
            Judgement::GoOn => self.goes(Step::Decides { who, over: true }, then(Then::Claim)),
            Judgement::Close => self.goes(Step::DecidesToClose { who }, then(Then::Close)),
            Judgement::Stop(_) => self.goes(Step::DecidesUncertain { who }, then(Then::Mark)),
        }
    }

    /// Whether a write applies: the one definition, or what a mutant has for it.
    pub(super) fn allows(&self, expect: Expect, seen: Option<Rec>) -> bool {
        let present = self.before.record;
        match (self.setting.mutant, expect) {
            (Some(Mutant::FenceAlone), Expect::Takeover { .. }) => {
                present.map(|present| present.fence) == seen.map(|seen| seen.fence)
            }
            (Some(Mutant::AgeOnly), Expect::Takeover { expired_by, .. }) => {
                present.is_some_and(|present| present.opened_at + LEASE <= tick(expired_by))
            }
            _ => expect.allows(present.map(|present| present.real()).as_ref()),
        }
    }

    fn writes(&mut self, sends: u8, seen: Option<Rec>, by: u8, then: Then) {
        let who = self.who;
        let write = match then {
            Then::Claim if self.is_client() => match self.decision(seen, by) {
                Decision::Claim(write) => write,
                // The contract changed in between: it decides anew.
                _ => {
                    return self.goes(Step::Reads { who }, |world, who| {
                        world.actors[who] = Actor::Read { sends, seen }
                    });
                }
            },
            Then::Claim | Then::Close => match seen {
                Some(seen) => {
                    let attempt = AttemptId::new(u128::from(self.before.attempts) + 1);
                    takeover(&seen.real(), attempt, ticks(LEASE), wall(by))
                }
                None => return,
            },
            Then::Mark => match seen {
                Some(seen) => retrysafe_core::recovery::stop(&seen.real(), wall(by)),
                None => return,
            },
            Then::Reap => return self.reaps(seen, by),
        };
        if !self.allows(write.expect, seen) {
            // A client gets the present record with the refusal; a worker looks elsewhere.
            let present = self.before.record;
            let client = self.is_client();
            return self.goes(Step::Loses { who }, |world, who| {
                world.actors[who] =
                    if client { Actor::Read { sends, seen: present } } else { Actor::Idle { sends } };
            });
        }
        match then {
            Then::Claim | Then::Close => self.wins(sends, &write, then),
            Then::Mark => {
                let client = self.is_client();
                self.goes(Step::Marks { who }, |world, who| {
                    let fence = world.record.map_or(0, |record| record.fence);
                    let marked = Rec::of(&write.next, fence);
                    world.record = Some(marked);
                    world.actors[who] = if client {
                        Actor::Read { sends, seen: Some(marked) }
                    } else {
                        Actor::Idle { sends }
                    };
                });
            }
            Then::Reap => {}
        }
    }

    fn wins(&mut self, sends: u8, write: &Write, then: Then) {
        let over = matches!(write.expect, Expect::Takeover { .. });
        let at = if then == Then::Close { Pc::Free } else { Pc::Open };
        self.goes(Step::Wins { who: self.who, over, attempt: self.before.attempts + 1 }, |world, who| {
            world.attempts += 1;
            world.fences += 1;
            let won = Rec::of(&write.next, world.fences);
            if !over {
                world.operations += 1;
                world.journal = Journal::EMPTY;
                // The window that was promised is over: it stands for a new request now.
                if world.epoch.done_at.is_some_and(|done| done + WINDOW <= world.now) {
                    world.epoch = Epoch { first_operation: world.operations, ..Epoch::default() };
                }
            }
            world.record = Some(won);
            world.actors[who] =
                Actor::Holds { sends, attempt: won.attempt, operation: won.operation, class: won.class, at };
        });
    }

    fn reaps(&mut self, seen: Option<Rec>, by: u8) {
        let Some(seen) = seen else { return };
        let guard = RemoveIf::Reapable { attempt: AttemptId::new(u128::from(seen.attempt)), by: wall(by) };
        let removed = self.before.record.is_some_and(|record| guard.allows(&record.real()));
        let who = self.who;
        self.goes(if removed { Step::Reaps { who } } else { Step::Loses { who } }, |world, who| {
            if removed {
                let alive = world.record.is_some_and(|record| !matches!(record.state, St::Completed { .. }));
                world.epoch.reaped_alive |= alive;
                world.record = None;
            }
            world.actors[who] = Actor::Idle { sends: 0 };
        });
    }
}

pub(super) fn append(world: &mut World, events: &[Ev]) {
    for event in events {
        world.journal.push(world.now, *event);
    }
}

pub(super) fn forget_calls(world: &mut World, who: usize) {
    for call in &mut world.calls {
        // What is on its way stays on its way; only its answer has no reader.
        let answered = call.is_some_and(|call| call.answer != Answer::Coming);
        if answered && call.is_some_and(|call| usize::from(call.by) == who) {
            *call = None;
        }
    }
}

pub(super) fn show(epoch: &mut Epoch, receipt: u8) {
    epoch.invented |= receipt == 0 || epoch.charges == 0 || epoch.shown.is_some_and(|shown| shown != receipt);
    epoch.shown = Some(receipt);
}

fn sends_of(actor: Actor) -> u8 {
    match actor {
        Actor::Idle { sends }
        | Actor::Read { sends, .. }
        | Actor::Writes { sends, .. }
        | Actor::Holds { sends, .. } => sends,
    }
}
