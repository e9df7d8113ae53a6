//! The server: some workers, a queue in front of them, and an outage.
//!
//! It does not know who still waits for an answer. What a client has given up on is run all the same, once a worker is
//! free: that work is what keeps an overloaded server overloaded.

use std::{collections::VecDeque, time::Duration};

use retrysafe_core::{
    codes::Code,
    retry::{Answer, Lost, NotSent, Reach, Seen, after::Hint},
};

use super::super::chance::Chance;

/// What the layer asks of a client whose operation is in flight.
const COME_BACK: Duration = Duration::from_secs(1);

/// How the server fails while it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Fault {
    /// It answers 503 at once
    Error,
    /// It refuses connections
    Refuse,
    /// It takes requests and does not work on them until the outage is over
    Hang,
    /// It takes ten times as long for each
    Slow,
}

const SLOWER: u32 = 10;

/// The server's numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in crate::simulate) struct Spec {
    pub(in crate::simulate) workers: u32,
    /// Mean of the time that a worker takes for one request; exponential around it.
    pub(in crate::simulate) service: Duration,
    /// Requests that wait for a worker. One more is answered 503.
    pub(in crate::simulate) queue: usize,
    /// Whether it skips queued requests whose clients have given up: what a deadline that travels along buys.
    pub(in crate::simulate) drops_abandoned: bool,
    /// Of the requests, those that fail with 503 before anything was done.
    pub(in crate::simulate) failure_rate: f64,
    /// Of the answers, those that get lost after the work was done.
    pub(in crate::simulate) lost_answers: f64,
    /// Whether it recognises keys.
    pub(in crate::simulate) keyed: bool,
}

impl Spec {
    /// Requests a second that it can keep up with.
    pub(in crate::simulate) fn capacity(&self) -> f64 {
        f64::from(self.workers) / self.service.as_secs_f64()
    }
}

/// One request: which attempt of which call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Job {
    pub(super) attempt: usize,
    pub(super) call: usize,
}

/// What a call's operation has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Operation {
    #[default]
    Absent,
    InFlight,
    Completed,
}

/// What the server does about a request that has arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reception {
    /// A worker has it for this long.
    Started(Duration),
    /// It waits.
    Queued,
    /// Answered at once, without a worker.
    Answered(Seen, Told),
}

/// Answers that need no worker, as they are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    Failed,
    Rejected,
    Conflict,
    Replay,
}

/// What a finished piece of work was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Finished {
    pub(super) seen: Seen,
    /// The operation had been done before.
    pub(super) duplicate: bool,
}

/// Its state.
pub(super) struct Server {
    spec: Spec,
    fault: Option<Fault>,
    busy: u32,
    queue: VecDeque<Job>,
    operations: Vec<Operation>,
    effects: Vec<u32>,
    chance: Chance,
}

impl Server {
    pub(super) fn new(spec: Spec, chance: Chance) -> Self {
        let (queue, operations, effects) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { spec, fault: None, busy: 0, queue, operations, effects, chance }
    }

    pub(super) fn breaks(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    pub(super) fn mends(&mut self) {
        self.fault = None;
    }

    /// Nobody works at present.
    pub(super) fn hangs(&self) -> bool {
        self.fault == Some(Fault::Hang)
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn receive(&mut self, job: Job) -> Reception {
        match self.fault {
            Some(Fault::Refuse) => {
                return Reception::Answered(Seen::not_sent(NotSent::Refused), Told::Failed);
            }
            Some(Fault::Error) => return Reception::Answered(Seen::status(503), Told::Failed),
            Some(Fault::Hang | Fault::Slow) | None => {}
        }
        if self.spec.keyed {
            match self.operation(job.call) {
                Operation::Completed => return Reception::Answered(Seen::status(200), Told::Replay),
                Operation::InFlight => {
                    let hint = Hint::Wait(COME_BACK);
                    let code = Some(Code::KeyInFlight);
                    let answer = Answer { code, hint, ..Answer::new(Code::KeyInFlight.status()) };
                    return Reception::Answered(Seen::answered(answer), Told::Conflict);
                }
                Operation::Absent => {}
            }
        }
        if self.spec.failure_rate > 0.0 && self.chance.hits(self.spec.failure_rate) {
            return Reception::Answered(Seen::status(503), Told::Failed);
        }
        if self.busy < self.spec.workers && !self.hangs() {
            *self.slot(job.call) = Operation::InFlight;
            return Reception::Started(self.start());
        }
        if self.queue.len() >= self.spec.queue {
            return Reception::Answered(Seen::status(503), Told::Rejected);
        }
        *self.slot(job.call) = Operation::InFlight;
        self.queue.push_back(job);
        Reception::Queued
    }

    /// A worker is done with it.
    pub(super) fn finish(&mut self, job: Job) -> Finished {
        self.busy = self.busy.saturating_sub(1);
        *self.slot(job.call) = Operation::Completed;
        let effects = &mut self.effects[job.call];
        *effects += 1;
        let duplicate = *effects > 1;
        let lost = self.spec.lost_answers > 0.0 && self.chance.hits(self.spec.lost_answers);
        let seen = if lost { Seen::lost(Lost::Reset, Reach::Whole) } else { Seen::status(200) };
        Finished { seen, duplicate }
    }

    /// What a free worker takes from the queue, and for how long. `given_up` says of an attempt whether its client has.
    pub(super) fn next(&mut self, given_up: impl Fn(usize) -> bool) -> Option<(Job, Duration)> {
        while self.busy < self.spec.workers && !self.hangs() {
            let job = self.queue.pop_front()?;
            if self.spec.drops_abandoned && given_up(job.attempt) {
                *self.slot(job.call) = Operation::Absent;
                continue;
            }
            return Some((job, self.start()));
        }
        None
    }

    fn start(&mut self) -> Duration {
        self.busy += 1;
        let factor = if self.fault == Some(Fault::Slow) { SLOWER } else { 1 };
        self.chance.exponential(self.spec.service * factor)
    }

    fn operation(&self, call: usize) -> Operation {
        self.operations.get(call).copied().unwrap_or_default()
    }

    fn slot(&mut self, call: usize) -> &mut Operation {
        if self.operations.len() <= call {
            self.operations.resize(call + 1, Operation::Absent);
            self.effects.resize(call + 1, 0);
        }
        &mut self.operations[call]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(change: impl FnOnce(&mut Spec)) -> Server {
        let mut spec = Spec {
            workers: 1,
            service: Duration::from_millis(10),
            queue: 1,
            drops_abandoned: false,
            failure_rate: 0.0,
            lost_answers: 0.0,
            keyed: false,
        };
        change(&mut spec);
        Server::new(spec, Chance::stream(1, 0))
    }

    fn job(attempt: usize, call: usize) -> Job {
        Job { attempt, call }
    }

    fn told(reception: &Reception) -> Option<Told> {
        match reception {
            Reception::Answered(_, told) => Some(*told),
            Reception::Started(_) | Reception::Queued => None,
        }
    }

    #[test]
    fn workers_then_the_queue_then_a_refusal() {
        let mut server = server(|_| {});
        assert!(matches!(server.receive(job(0, 0)), Reception::Started(_)));
        assert_eq!(server.receive(job(1, 1)), Reception::Queued);
        assert_eq!(told(&server.receive(job(2, 2))), Some(Told::Rejected));
        server.finish(job(0, 0));
        assert_eq!(server.next(|_| false).unwrap().0, job(1, 1));
        assert!(server.next(|_| false).is_none());
    }

    /// Without keys a second attempt is a second effect, whether or not the first one's client has given up.
    #[test]
    fn abandoned_work_is_done_and_doubles() {
        let mut server = server(|_| {});
        server.receive(job(0, 0));
        server.receive(job(1, 0));
        assert!(!server.finish(job(0, 0)).duplicate);
        let (second, _) = server.next(|_| true).unwrap();
        assert!(server.finish(second).duplicate);
    }

    #[test]
    fn a_key_turns_the_second_attempt_away_and_then_replays() {
        let mut server = server(|spec| spec.keyed = true);
        server.receive(job(0, 0));
        assert_eq!(told(&server.receive(job(1, 0))), Some(Told::Conflict));
        server.finish(job(0, 0));
        assert_eq!(told(&server.receive(job(2, 0))), Some(Told::Replay));
    }

    /// A rejected request claims nothing: its key is free for the retry.
    #[test]
    fn a_rejected_request_leaves_its_key_free() {
        let mut server = server(|spec| (spec.keyed, spec.queue) = (true, 0));
        server.receive(job(0, 0));
        assert_eq!(told(&server.receive(job(1, 1))), Some(Told::Rejected));
        server.finish(job(0, 0));
        assert!(matches!(server.receive(job(2, 1)), Reception::Started(_)));
    }

    #[test]
    fn a_deadline_that_travels_along_saves_the_work() {
        let mut server = server(|spec| (spec.drops_abandoned, spec.keyed) = (true, true));
        server.receive(job(0, 0));
        server.receive(job(1, 1));
        server.finish(job(0, 0));
        assert!(server.next(|attempt| attempt == 1).is_none());
        assert!(matches!(server.receive(job(2, 1)), Reception::Started(_)), "its key is free again");
    }

    #[test]
    fn a_hanging_server_takes_requests_and_works_on_none() {
        let mut server = server(|_| {});
        server.breaks(Fault::Hang);
        assert_eq!(server.receive(job(0, 0)), Reception::Queued);
        assert!(server.next(|_| false).is_none());
        server.mends();
        assert!(server.next(|_| false).is_some());
    }
}
