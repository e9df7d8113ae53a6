//! What happens: clients, processes, and the ways between them and the store.

use std::sync::LazyLock;

use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    decide::{Decision, Fresh, Upkeep, upkeep},
    ids::{AttemptId, StatusId},
    outcome::Body,
    record::{Record, RemoveIf, Write},
    recovery::{Entry, Event, Found, Judgement, Progress, Standing, judge, stop, takeover},
};

use super::{
    KEYS, LEASE, PATIENCE, SERVERS,
    store::{Commit, Op, Row, Said, Store},
    world::{At, Called, Happens, Task, Told, World},
};
use crate::request::{decision, recovery};

pub(super) static ADDRESS: LazyLock<Address> = LazyLock::new(|| {
    let parts = || {
        let namespace = Namespace::new("simulation").ok()?;
        Some(Address::new(namespace, Account::new(&["rider"]).ok()?, Key::trusted("k").ok()?))
    };
    parts().unwrap_or_else(|| unreachable!("plain words"))
});

/// How often a task asks the store again, or decides anew, before it gives up.
const ROUNDS_MAX: u32 = 12;
/// After so long a question without an answer is asked again.
const LOST_AFTER_MS: u64 = 300;
/// The longest that a call is on its way, and how long its caller waits for the answer.
const CALL_MS: u64 = 1_200;
const CALL_TIMEOUT_MS: u64 = 2_000;

impl World {
    pub(super) fn happen(&mut self, happens: Happens) {
        match happens {
            Happens::Sends { client } => self.sends(client),
            Happens::Arrives { client, request, server } => self.arrives(client, request, server),
            Happens::Told { client, request, told } => self.told(client, request, told),
            Happens::GivesUp { client, request } => {
                if self.clients.get(client).is_some_and(|client| client.request == request) {
                    self.comes_again(client, 200);
                }
            }
            Happens::OpArrives { task, ticket, key, op } => self.op_arrives(task, ticket, key, op),
            Happens::OpSaid { task, ticket, said } => {
                if self.is_awake(task, ticket, || Happens::OpSaid { task, ticket, said: said.clone() }) {
                    match said {
                        Some(said) => self.heard(task, said),
                        None => self.offers_again(task),
                    }
                }
            }
            Happens::CallArrives { task, ticket, call } => {
                let receipt = self.charge(call);
                let heard = (!self.fails(80)).then_some(receipt);
                let after = if heard.is_some() { self.chance.between(1, 200) } else { CALL_TIMEOUT_MS };
                self.at(after, Happens::CallSaid { task, ticket, receipt: heard });
            }
            Happens::CallSaid { task, ticket, receipt } => {
                if self.is_awake(task, ticket, || Happens::CallSaid { task, ticket, receipt }) {
                    self.call_said(task, receipt);
                }
            }
            Happens::AskArrives { task, ticket, call } => {
                let known = self.charged.get(&call).and_then(|charges| charges.first());
                let found = known.map_or(Found::Absent, |(_, receipt)| Found::Done(receipt_bytes(*receipt)));
                let found = if self.fails(100) { Found::Silent } else { found };
                let after = self.chance.between(1, 50);
                self.at(after, Happens::AskSaid { task, ticket, found });
            }
            Happens::AskSaid { task, ticket, found } => {
                if self.is_awake(task, ticket, || Happens::AskSaid { task, ticket, found: found.clone() }) {
                    self.ask_said(task, found);
                }
            }
            Happens::Renews { task } => self.renews(task),
            Happens::RenewalArrives { task, key, write } => {
                let commit = Commit { write: *write, entries: Vec::new(), row: Row::None, seen: None };
                let kept = matches!(self.store.commit(key, &commit).0, Said::Yes(_));
                if let Some(held) = self.tasks.get_mut(&task).and_then(|task| task.held.as_mut()) {
                    held.lost |= !kept;
                }
            }
            Happens::Passes { server } => self.passes(server),
            Happens::Crashes { server } => self.crashes(server),
            Happens::Pauses { server } => self.pauses(server),
            Happens::Deploys => {
                self.tell(format_args!("the contract changes: requests run in steps from now on"));
                self.deployed = true;
            }
            Happens::Quiet => {
                self.tell(format_args!("nothing fails any more"));
                self.quiet = true;
                for server in &mut self.servers {
                    (server.up, server.paused_until) = (true, 0);
                }
                for client in 0..self.clients.len() {
                    self.comes_again(client, 3_000);
                }
            }
            Happens::PersonLooks => self.person_looks(),
        }
    }

    // ---- clients

    fn sends(&mut self, client: usize) {
        let quiet = self.quiet;
        let Some(state) = self.clients.get_mut(client) else { return };
        let may = quiet || state.sends_left > 0;
        if !may || (quiet && state.satisfied) {
            return;
        }
        state.sends_left = state.sends_left.saturating_sub(1);
        state.request += 1;
        let request = state.request;
        let server = usize::try_from(self.chance.below(SERVERS as u64)).unwrap_or(0);
        let after = self.chance.between(1, 30);
        if !self.fails(50) {
            self.at(after, Happens::Arrives { client, request, server });
        }
        let patience = u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX);
        self.at(patience, Happens::GivesUp { client, request });
    }

    /// Sends again after a while; what was asked before is not waited for any more.
    fn comes_again(&mut self, client: usize, at_least: u64) {
        if let Some(state) = self.clients.get_mut(client) {
            state.request += 1;
        }
        let after = at_least + self.chance.below(1_500);
        self.at(after, Happens::Sends { client });
    }

    fn told(&mut self, client: usize, request: u32, told: Told) {
        let quiet = self.quiet;
        let Some(state) = self.clients.get_mut(client).filter(|client| client.request == request) else {
            return;
        };
        match told {
            Told::Receipt(_) => {
                state.satisfied |= quiet;
                // It may have lost the answer, or somebody else may want it: replays, also past the window.
                let after = if self.chance.happens(500) { 7_000 } else { 500 };
                self.comes_again(client, after);
            }
            Told::InFlight => self.comes_again(client, 200),
            Told::Unknown => self.comes_again(client, 2_000),
        }
    }

    fn arrives(&mut self, client: usize, request: u32, server: usize) {
        let Some(key) = self.clients.get(client).map(|client| client.key) else { return };
        if !self.runs(server) {
            return; // refused, or nobody reads it
        }
        let id = self.task(server, key, Some((client, request)));
        self.decides(id, None);
    }

    /// A process that is up and awake.
    fn runs(&self, server: usize) -> bool {
        self.servers.get(server).is_some_and(|server| server.up && server.paused_until <= self.now)
    }

    fn task(&mut self, server: usize, key: usize, caller: Option<(usize, u32)>) -> u32 {
        self.tasks_made += 1;
        let at = At::Reading;
        let task = Task { server, key, caller, ticket: 0, rounds: 0, at, held: None };
        self.tasks.insert(self.tasks_made, task);
        self.tasks_made
    }

    /// Whether a task may go on now. One whose process sleeps hears it when that wakes.
    fn is_awake(&mut self, task: u32, ticket: u32, again: impl FnOnce() -> Happens) -> bool {
        let Some(state) = self.tasks.get(&task).filter(|task| task.ticket == ticket) else { return false };
        let Some(server) = self.servers.get(state.server) else { return false };
        if server.paused_until > self.now {
            let after = server.paused_until - self.now;
            self.at(after, again());
            return false;
        }
        true
    }

    // ---- the ways to the store and back

    /// Asks the store. What is on its way arrives, whatever becomes of who asked.
    pub(super) fn asks_store(&mut self, id: u32, op: Op) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.ticket += 1;
        let (ticket, key) = (task.ticket, task.key);
        let slow = self.fails(15);
        let after = if slow { self.chance.between(500, 4_000) } else { self.chance.between(1, 20) };
        self.at(after, Happens::OpArrives { task: id, ticket, key, op });
        // If nothing is heard: asked again. An answer in between makes the ticket an old one.
        let patience = LOST_AFTER_MS + if slow { 4_000 } else { 0 };
        self.at(after + patience, Happens::OpSaid { task: id, ticket, said: None });
    }

    pub(super) fn commits(&mut self, id: u32, commit: Commit, at: impl FnOnce(Box<Commit>) -> At) {
        let commit = Box::new(commit);
        if let Some(task) = self.tasks.get_mut(&id) {
            task.at = at(commit.clone());
        }
        self.asks_store(id, Op::Commit(commit));
    }

    fn op_arrives(&mut self, task: u32, ticket: u32, key: usize, op: Op) {
        let said = match op {
            Op::Load => Said::Record(self.store.record(key).cloned()),
            Op::Journal(operation) => Said::Journal(self.store.journal(operation).to_vec()),
            Op::Commit(commit) => {
                let (said, fresh) = self.store.commit(key, &commit);
                if fresh {
                    self.applied(key, &commit);
                }
                said
            }
            Op::Remove(guard) => {
                let removed = self.store.remove(key, guard);
                if let Some(record) = &removed {
                    self.removed(key, guard, record);
                }
                Said::Removed
            }
        };
        if !self.fails(30) {
            let after = self.chance.between(1, 20);
            self.at(after, Happens::OpSaid { task, ticket, said: Some(said) });
        }
    }

    /// Nothing was heard of what was asked.
    fn offers_again(&mut self, id: u32) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.rounds += 1;
        if task.rounds > ROUNDS_MAX {
            // Its lease decides.
            self.tasks.remove(&id);
            return;
        }
        let operation = task.held.as_ref().map(|held| held.operation);
        let op = match task.at.clone() {
            At::Claiming(commit)
            | At::Marking(commit)
            | At::TakingOver(commit, _)
            | At::Committing(commit, _) => Op::Commit(commit),
            At::Freeing(guard) | At::Reaping(guard) => Op::Remove(guard),
            At::Reading | At::Closing => match operation {
                Some(operation) => Op::Journal(operation),
                None => Op::Load,
            },
            At::Calling(_) | At::Asking(..) => return,
        };
        self.asks_store(id, op);
    }

    fn heard(&mut self, id: u32, said: Said) {
        let Some(task) = self.tasks.get(&id) else { return };
        let at = task.at.clone();
        match (at, said) {
            (At::Claiming(commit), Said::Yes(fence)) => self.won(id, &commit.write, fence, false),
            (At::TakingOver(commit, closes), Said::Yes(fence)) => self.won(id, &commit.write, fence, closes),
            (At::Claiming(_) | At::Marking(_), Said::No(present)) => self.decides(id, present),
            (At::Marking(commit), Said::Yes(_)) => self.decides(id, Some(commit.write.next)),
            (At::Reading, Said::Record(present)) => self.decides(id, present),
            (At::Reading, Said::Journal(journal)) => self.opens(id, journal),
            (At::Closing, Said::Journal(journal)) => self.closes(id, &journal),
            (At::Committing(commit, then), Said::Yes(_)) => self.committed(id, &commit, then),
            (At::Committing(..), Said::No(_) | Said::Taken) => {
                self.counts.refused += 1;
                self.answers(id, Told::InFlight);
            }
            // Somebody else was first, or it is done.
            _ => drop(self.tasks.remove(&id)),
        }
    }

    /// Tells the caller, if there is one, and ends the task.
    pub(super) fn answers(&mut self, id: u32, told: Told) {
        let Some(task) = self.tasks.remove(&id) else { return };
        let Some((client, request)) = task.caller else { return };
        if let Told::Receipt(receipt) = told {
            self.shows(task.key, receipt);
        }
        if !self.fails(50) {
            let after = self.chance.between(1, 30);
            self.at(after, Happens::Told { client, request, told });
        }
    }

    // ---- deciding

    fn fresh(&mut self) -> Fresh {
        Fresh { attempt: AttemptId::new(self.chance.id()), status_id: StatusId::new(self.chance.id()) }
    }

    fn decides(&mut self, id: u32, seen: Option<Record>) {
        let fresh = self.fresh();
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.rounds += 1;
        if task.caller.is_none() || task.rounds > ROUNDS_MAX {
            self.tasks.remove(&id);
            return;
        }
        let now = self.clock(self.tasks[&id].server);
        let terms = (recovery(self.deployed), LEASE);
        let decided = decision(seen.clone(), terms, self.mutant, fresh, now);
        let commit = |write: Write| Commit { write, entries: Vec::new(), row: Row::None, seen: seen.clone() };
        match decided {
            Decision::Claim(write) => self.commits(id, commit(write), At::Claiming),
            Decision::MarkUncertain(write) => self.commits(id, commit(write), At::Marking),
            Decision::Replay(outcome) => {
                self.counts.replays += 1;
                self.answers(id, Told::Receipt(receipt_of(&outcome.body)));
            }
            Decision::Uncertain(_) => self.answers(id, Told::Unknown),
            Decision::Refuse(_) | Decision::Wait(_) | Decision::Accept { .. } => {
                self.answers(id, Told::InFlight);
            }
        }
    }

    // ---- completers and reapers

    fn passes(&mut self, server: usize) {
        let after = self.chance.between(300, 1_100);
        self.at(after, Happens::Passes { server });
        if !self.runs(server) {
            return;
        }
        let now = self.clock(server);
        for key in 0..KEYS {
            let Some(record) = self.store.record(key).filter(|record| Store::is_due(record, now)).cloned()
            else {
                continue;
            };
            // Not everybody gets to everything in one pass.
            if self.chance.happens(700) {
                self.looks_after(server, key, &record);
            }
        }
    }

    /// What upkeep does with a record that is due, and a completer.
    fn looks_after(&mut self, server: usize, key: usize, record: &Record) {
        let now = self.clock(server);
        let id = self.task(server, key, None);
        let commit = |write, entries| Commit { write, entries, row: Row::None, seen: Some(record.clone()) };
        match upkeep(record, now) {
            Upkeep::Reap(attempt) => {
                let guard = RemoveIf::Reapable { attempt, by: now };
                if let Some(task) = self.tasks.get_mut(&id) {
                    task.at = At::Reaping(guard);
                }
                return self.asks_store(id, Op::Remove(guard));
            }
            Upkeep::Mark(write) => return self.commits(id, commit(*write, Vec::new()), At::Marking),
            Upkeep::Leave => {}
        }
        let journal = self.store.journal(record.status_id);
        let progress = Progress::of(journal).ok();
        let standing = progress
            .as_ref()
            .map_or(Standing::Unopened, |progress| Standing::Known(progress, Some(&self.plan.shape)));
        let seq = u32::try_from(journal.len()).unwrap_or(u32::MAX);
        let attempt = AttemptId::new(self.chance.id());
        match judge(record, standing, &self.terms, now) {
            Judgement::GoOn => {
                let write = takeover(record, attempt, LEASE, now);
                self.commits(id, commit(write, Vec::new()), |commit| At::TakingOver(commit, false));
            }
            Judgement::Close => {
                let write = takeover(record, attempt, LEASE, now);
                self.commits(id, commit(write, Vec::new()), |commit| At::TakingOver(commit, true));
            }
            Judgement::Stop(why) => {
                let entry = Entry { seq, attempt: record.attempt, at: now, event: Event::Stopped(why) };
                self.commits(id, commit(stop(record, now), vec![entry]), At::Marking);
            }
            Judgement::Leave | Judgement::Wait(_) => drop(self.tasks.remove(&id)),
        }
    }

    // ---- faults

    fn crashes(&mut self, server: usize) {
        let next = self.chance.between(3_000, 14_000);
        self.at(next, Happens::Crashes { server });
        // Drawn in any case, so that the quiet phase is the same chance.
        let off_ms = self.off_by();
        if self.quiet {
            return;
        }
        let Some(state) = self.servers.get_mut(server) else { return };
        // Every other time it comes back, on another machine.
        state.up = !state.up;
        if state.up {
            return self.hears_the_time(server, off_ms);
        }
        self.counts.crashes += 1;
        self.tell(format_args!("process {server} crashes"));
        self.tasks.retain(|_, task| task.server != server);
    }

    fn pauses(&mut self, server: usize) {
        let next = self.chance.between(2_000, 9_000);
        self.at(next, Happens::Pauses { server });
        let length = self.chance.between(100, 5_000);
        if self.quiet {
            return;
        }
        let until = self.now + length;
        if let Some(state) = self.servers.get_mut(server) {
            state.paused_until = until;
            self.counts.pauses += 1;
            self.tell(format_args!("process {server} sleeps for {length} ms"));
        }
    }

    // ---- the provider

    /// Sends the call. It may be lost on the way, before anything left, or arrive late.
    pub(super) fn calls(&mut self, id: u32, call: Called) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.ticket += 1;
        let ticket = task.ticket;
        let after = self.chance.between(1, CALL_MS);
        if !self.fails(50) {
            self.at(after, Happens::CallArrives { task: id, ticket, call });
        }
        self.at(CALL_TIMEOUT_MS + CALL_MS, Happens::CallSaid { task: id, ticket, receipt: None });
    }

    pub(super) fn asks_provider(&mut self, id: u32, call: Called) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.ticket += 1;
        let ticket = task.ticket;
        let after = self.chance.between(1, 50);
        self.at(after, Happens::AskArrives { task: id, ticket, call });
    }
}

pub(super) fn receipt_bytes(receipt: u32) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(&receipt.to_be_bytes())
}

pub(super) fn receipt_in(bytes: &bytes::Bytes) -> u32 {
    bytes.as_ref().try_into().map_or(0, u32::from_be_bytes)
}

fn receipt_of(body: &Body) -> u32 {
    match body {
        Body::Kept(bytes) => receipt_in(bytes),
        Body::NotKept(_) => 0,
    }
}
