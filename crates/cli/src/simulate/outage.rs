//! A fleet of clients, one server, and an outage: calls as they come, driven attempt by attempt by the engine.
//!
//! The clients are the real ones as far as decisions go: each call is a [`Call`] (one for each layer of retries), on the
//! [`Budget`] of its process, which may hold tokens of the account of the [`Fleet`]. What is simulated is the time, the
//! network and the server.

mod server;
mod tally;
#[cfg(test)]
mod tests;

use std::time::Duration;

use retrysafe_core::{
    retry::{
        Budget, Call, Cause, Deadline, Lost, Mono, NotSent, Pause, Reach, Request, Seen, Step, Why,
        budget::Fleet,
    },
    time::Wall,
};

use self::server::{Job, Reception, Server};
pub(super) use self::{
    server::{Fault, Spec},
    tally::{BIN, Bin, Tally},
};
use super::{
    cases::{Case, Key},
    chance::{Agenda, Chance},
};

/// Exchanges with the fleet's account within one lease.
const EXCHANGES: u32 = 3;
/// Events between two looks at the clock of the progress bar.
const PROGRESS_EVERY: u64 = 4_096;

/// What all cases meet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Scenario {
    pub(super) instances: u32,
    /// Calls a second of one instance.
    pub(super) rate: f64,
    /// Calls begin for this long.
    pub(super) duration: Duration,
    pub(super) server: Spec,
    /// Mean of one way through the network; it varies by a fifth.
    pub(super) hop: Duration,
    /// A client gives up on an attempt after this long.
    pub(super) timeout: Duration,
    pub(super) outage: Option<Outage>,
    pub(super) seed: u64,
}

/// When the server fails, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Outage {
    pub(super) fault: Fault,
    pub(super) at: Duration,
    pub(super) length: Duration,
}

impl Outage {
    pub(super) fn end(&self) -> Duration {
        self.at.saturating_add(self.length)
    }
}

impl Scenario {
    /// Calls a second of all instances.
    pub(super) fn offered(&self) -> f64 {
        f64::from(self.instances) * self.rate
    }
}

/// Runs one case. `progress` hears how far the calls have got.
pub(super) fn run(scenario: &Scenario, case: &Case, mut progress: impl FnMut(Duration)) -> Tally {
    let mut world = World::new(scenario, case);
    let mut events = 0_u64;
    while let Some((now, event)) = world.agenda.next() {
        world.happens(event, now);
        events += 1;
        if events.is_multiple_of(PROGRESS_EVERY) {
            progress(now.since(Mono::START).min(scenario.duration));
        }
    }
    world.tally.close();
    world.tally
}

enum Event {
    /// An instance begins a call, and knows when its next one begins.
    Begin(usize),
    /// A request reaches the server.
    Arrive(Job),
    /// A worker is done.
    Worked(Job),
    /// The answer to an attempt reaches its client.
    Answer(usize, Seen),
    /// A client gives up on an attempt.
    GiveUp(usize),
    /// A call has slept.
    Wake(usize),
    /// An instance talks to the fleet's account.
    Exchange(usize),
    Break,
    Mend,
}

/// A call under way.
struct Underway {
    instance: usize,
    began: Mono,
    /// One call of the engine for each layer, the outermost first. The last one acts.
    layers: Vec<Layer>,
    /// What the last attempt came to: what a layer tells the one around it.
    last: Seen,
}

struct Layer {
    call: Call,
    /// The last sleep, for formulas that need it.
    slept: Duration,
}

struct Attempt {
    call: usize,
    /// Its client still waits.
    awaited: bool,
}

struct World<'a> {
    scenario: &'a Scenario,
    case: &'a Case,
    agenda: Agenda<Event>,
    server: Server,
    tally: Tally,
    calls: Vec<Option<Underway>>,
    under_way: usize,
    attempts: Vec<Attempt>,
    /// Of each instance, one for each layer.
    budgets: Vec<Vec<Budget>>,
    /// Accounts of the fleet, one for each layer.
    accounts: Vec<Fleet>,
    arrivals: Chance,
    net: Chance,
    chance: Chance,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, case: &'a Case) -> Self {
        let layers = case.layers as usize;
        let stream = |number| Chance::stream(scenario.seed, number);
        let spec = Spec { keyed: case.key == Key::Honoured, ..scenario.server };
        let budgets =
            (0..scenario.instances).map(|_| (0..layers).map(|_| Budget::new(case.rules.process)).collect());
        let mut world = Self {
            scenario,
            case,
            agenda: Agenda::new(),
            server: Server::new(spec, stream(0)),
            tally: Tally::default(),
            calls: Vec::new(),
            under_way: 0,
            attempts: Vec::new(),
            budgets: budgets.collect(),
            accounts: case.rules.fleet.map(|rule| vec![Fleet::new(rule); layers]).unwrap_or_default(),
            arrivals: stream(1),
            net: stream(2),
            chance: stream(3),
        };
        // The outage first: what is due at its very end happens on a server that has mended.
        if let Some(outage) = scenario.outage {
            world.agenda.add(at(outage.at), Event::Break);
            world.agenda.add(at(outage.end()), Event::Mend);
        }
        for instance in 0..scenario.instances as usize {
            world.expect(instance, Mono::START);
            if let Some(interval) = world.exchange_interval() {
                // Spread over the interval, as processes that started at different times are.
                let offset = interval.mul_f64(instance as f64 / f64::from(scenario.instances));
                world.agenda.add(at(offset), Event::Exchange(instance));
            }
        }
        world
    }

    fn happens(&mut self, event: Event, now: Mono) {
        match event {
            Event::Begin(instance) => self.begin(instance, now),
            Event::Arrive(job) => self.arrive(job, now),
            Event::Worked(job) => self.worked(job, now),
            Event::Answer(attempt, seen) => self.learnt(attempt, seen, now),
            Event::GiveUp(attempt) => self.learnt(attempt, Seen::lost(Lost::Timeout, Reach::Whole), now),
            Event::Wake(id) => {
                let Some(layer) = self.acting(id) else { return };
                let step = layer.call.woke(now);
                self.drive(id, step, now);
            }
            Event::Exchange(instance) => self.exchange(instance, now),
            Event::Break => {
                if let Some(outage) = self.scenario.outage {
                    self.server.breaks(outage.fault);
                }
            }
            Event::Mend => {
                self.server.mends();
                self.employ(now);
            }
        }
    }

    /// Plans the next call of an instance, if calls still begin then.
    fn expect(&mut self, instance: usize, now: Mono) {
        let next = now.plus(self.arrivals.exponential(Duration::from_secs_f64(1.0 / self.scenario.rate)));
        if next.since(Mono::START) < self.scenario.duration {
            self.agenda.add(next, Event::Begin(instance));
        }
    }

    fn begin(&mut self, instance: usize, now: Mono) {
        self.expect(instance, now);
        self.tally.bin(now).calls += 1;
        let id = self.calls.len();
        let last = Seen::not_sent(NotSent::ConnectTimeout);
        self.calls.push(Some(Underway { instance, began: now, layers: Vec::new(), last }));
        self.under_way += 1;
        let step = self.open_layer(id, Deadline::UNSET, now);
        self.drive(id, step, now);
    }

    /// Opens the next layer of a call, within the deadline of the one around it.
    fn open_layer(&mut self, id: usize, deadline: Deadline, now: Mono) -> Step {
        let Some(underway) = &mut self.calls[id] else { return Step::Finish(Why::Done) };
        let budget = &self.budgets[underway.instance][underway.layers.len()];
        let request = Request::new(self.case.key.idempotence());
        let (call, step) = Call::open(&self.case.sender.policy, budget, request, deadline, now);
        underway.layers.push(Layer { call, slept: Duration::ZERO });
        step
    }

    /// Does what the engine says until something has to be waited for.
    fn drive(&mut self, id: usize, mut step: Step, now: Mono) {
        loop {
            let depth = self.calls[id].as_ref().map_or(0, |underway| underway.layers.len());
            step = match step {
                Step::Send { timeout, .. } if depth < self.case.layers as usize => {
                    self.open_layer(id, Deadline::within(now, timeout), now)
                }
                Step::Send { timeout, .. } => return self.send(id, timeout, now),
                Step::Sleep(pause) => return self.sleep(id, pause, now),
                // No server here gives a status URL.
                Step::Poll { .. } => return,
                Step::Finish(why) => {
                    let Some(underway) = &mut self.calls[id] else { return };
                    underway.layers.pop();
                    match underway.layers.last_mut() {
                        // An outer loop is told what an inner one was told last.
                        Some(outer) => outer.call.observe(&underway.last, self.chance.entropy(), now),
                        None => {
                            self.tally.ended(underway.began, now, &why);
                            self.calls[id] = None;
                            self.under_way -= 1;
                            return;
                        }
                    }
                }
            };
        }
    }

    fn send(&mut self, id: usize, timeout: Duration, now: Mono) {
        let attempt = self.attempts.len();
        self.attempts.push(Attempt { call: id, awaited: true });
        self.tally.bin(now).attempts += 1;
        let arrives = now.plus(self.hop());
        self.agenda.add(arrives, Event::Arrive(Job { attempt, call: id }));
        self.agenda.add(now.plus(timeout.min(self.scenario.timeout)), Event::GiveUp(attempt));
    }

    fn sleep(&mut self, id: usize, pause: Pause, now: Mono) {
        let entropy = self.chance.entropy();
        let Some(layer) = self.calls[id].as_mut().and_then(|underway| underway.layers.last_mut()) else {
            return;
        };
        let mut delay = pause.delay;
        if let (Some(delays), Cause::Retry(_)) = (self.case.sender.delays, pause.cause) {
            layer.slept = delays.sleep(pause.attempts.saturating_sub(1), layer.slept, entropy);
            delay = delay.max(layer.slept);
        }
        self.agenda.add(now.plus(delay), Event::Wake(id));
    }

    fn arrive(&mut self, job: Job, now: Mono) {
        match self.server.receive(job) {
            Reception::Started(service) => self.agenda.add(now.plus(service), Event::Worked(job)),
            Reception::Queued => {}
            Reception::Answered(seen, told) => {
                self.tally.told(now, told);
                self.answer(job.attempt, seen, now);
            }
        }
        self.look_at_queue(now);
    }

    fn worked(&mut self, job: Job, now: Mono) {
        if let (true, Some(outage)) = (self.server.hangs(), self.scenario.outage) {
            self.agenda.add(at(outage.end()), Event::Worked(job));
            return;
        }
        let finished = self.server.finish(job);
        let awaited = self.attempts[job.attempt].awaited;
        let bin = self.tally.bin(now);
        bin.useful += u64::from(awaited);
        bin.wasted += u64::from(!awaited);
        bin.duplicates += u64::from(finished.duplicate);
        self.answer(job.attempt, finished.seen, now);
        self.employ(now);
    }

    /// Gives free workers something to do.
    fn employ(&mut self, now: Mono) {
        let attempts = &self.attempts;
        while let Some((job, service)) = self.server.next(|attempt| !attempts[attempt].awaited) {
            self.agenda.add(now.plus(service), Event::Worked(job));
        }
        self.look_at_queue(now);
    }

    fn look_at_queue(&mut self, now: Mono) {
        let (queued, bin) = (self.server.queued() as u64, self.tally.bin(now));
        bin.queue = bin.queue.max(queued);
    }

    fn answer(&mut self, attempt: usize, seen: Seen, now: Mono) {
        let arrives = now.plus(self.hop());
        self.agenda.add(arrives, Event::Answer(attempt, seen));
    }

    /// A client hears of an attempt, unless it has given up on it.
    fn learnt(&mut self, attempt: usize, seen: Seen, now: Mono) {
        let Attempt { call: id, awaited } = &mut self.attempts[attempt];
        if !std::mem::take(awaited) {
            return;
        }
        let (id, entropy) = (*id, self.chance.entropy());
        let Some(underway) = &mut self.calls[id] else { return };
        let Some(layer) = underway.layers.last_mut() else { return };
        let step = layer.call.observe(&seen, entropy, now);
        underway.last = seen;
        self.drive(id, step, now);
    }

    fn exchange(&mut self, instance: usize, now: Mono) {
        let Some(interval) = self.exchange_interval() else { return };
        let wall = Wall::from_unix_ms(0).plus(now.since(Mono::START));
        for (budget, account) in self.budgets[instance].iter().zip(&mut self.accounts) {
            if let Some(report) = budget.report(now) {
                budget.leased(&account.exchange(instance as u64, &report, wall), now);
            }
        }
        if self.under_way > 0 || now.since(Mono::START) < self.scenario.duration {
            self.agenda.add(now.plus(interval), Event::Exchange(instance));
        }
    }

    fn exchange_interval(&self) -> Option<Duration> {
        self.case.rules.fleet.map(|rule| rule.lease / EXCHANGES)
    }

    fn acting(&mut self, id: usize) -> Option<&mut Layer> {
        self.calls.get_mut(id)?.as_mut()?.layers.last_mut()
    }

    fn hop(&mut self) -> Duration {
        self.net.normal(self.scenario.hop, self.scenario.hop / 5)
    }
}

fn at(offset: Duration) -> Mono {
    Mono::START.plus(offset)
}
