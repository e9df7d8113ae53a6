//! The crash gate: the API is killed while it works, started again, and has to come to an end without doing anything twice.
//!
//! A black box needs one lever, and most APIs have it: the address of the service that they call is configurable. The gate
//! plays that service and pulls the lever at the call: kill on receipt (it happened, and the API does not know), kill after
//! the answer (it may have been stored or not), a cut without an answer, SIGTERM in the middle, SIGSTOP past the lease. With
//! strace there is a sweep over system calls besides, which needs no call at all.
//!
//! After each crash somebody retries until there is an end; and, where the plan says that the API finishes by itself, once
//! more with nobody asking. A call that is made twice is a fault, unless it carries the same key downstream: then the provider
//! can know it, and the report says that the API relies on that.

mod judge;
mod process;
mod sweep;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

pub use judge::{Crash, End, judge};

use self::process::{Api, was_killed};
use crate::arms::Finding;
use crate::arrive::{Lanes, Shot};
use crate::concurrency::{Ids, Keyed, NotRun, Progress, fill, target};
use crate::observe::{Baseline, Observers, Seen};
use crate::plan::{CrashPlan, Source, Values};
use crate::report::{Part, Report};
use crate::safety::{Allowance, Estimate};
use crate::stub::{Lever, Stub};
use crate::told::{Told, matches, told};
use crate::wire::Answer;

/// Between two retries of a client that waits.
const RETRY: Duration = Duration::from_millis(100);
/// How long a killed process may take to be gone.
const GONE: Duration = Duration::from_secs(5);

/// What is done to the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blow {
    KillOnReceipt,
    KillAfterAnswer,
    Cut,
    Terminate,
    Stop,
}

impl Blow {
    const ALL: [Self; 5] =
        [Self::KillOnReceipt, Self::KillAfterAnswer, Self::Cut, Self::Terminate, Self::Stop];

    fn about(self) -> (&'static str, &'static str) {
        match self {
            Self::KillOnReceipt => ("K1", "killed when its call is received"),
            Self::KillAfterAnswer => ("K2", "killed when its call is answered"),
            Self::Cut => ("K3", "its call is carried out, and the answer lost"),
            Self::Terminate => ("K5", "SIGTERM while it waits for its call"),
            Self::Stop => ("K6", "stopped past its lease, another request, woken"),
        }
    }
}

/// What is done to the API, for people.
pub fn parts() -> impl Iterator<Item = (&'static str, &'static str)> {
    Blow::ALL.into_iter().map(Blow::about).chain([sweep::ABOUT])
}

/// Who brings a key to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    Retry,
    Alone,
}

/// What a run sends at most.
#[must_use]
pub fn estimate(plan: &CrashPlan) -> Estimate {
    let rounds = 2 * Blow::ALL.len() as u64 + u64::from(plan.sweep);
    let retries = plan.settled_within.as_millis() / RETRY.as_millis().max(1);
    let retries = u64::try_from(retries).unwrap_or(u64::MAX);
    Estimate {
        requests: rounds.saturating_mul(retries),
        effects: rounds,
        effects_at_worst: rounds.saturating_mul(retries),
    }
}

/// Runs the gate.
///
/// # Errors
/// The stub's address cannot be had, or the API cannot be started. Everything else is in the report.
pub fn run(
    plan: &CrashPlan,
    allowance: &Allowance,
    seed: u64,
    watch: &mut dyn FnMut(Progress),
) -> Result<Report, NotRun> {
    let origin = Instant::now();
    let stub = plan.plan.stub.as_ref().ok_or_else(|| NotRun("the plan has no [stub]".to_owned()))?;
    let stub = Stub::start(stub, origin).map_err(|error| {
        NotRun(format!("the stub cannot listen on {}: {error}; choose another address", stub.listen))
    })?;
    // The stub's calls are judged by their keys; the others are counted.
    let others: Vec<_> =
        plan.plan.observers.iter().filter(|it| !matches!(it.source, Source::Stub { .. })).cloned().collect();
    let observers = Observers::new(&others, &plan.plan.bases, plan.plan.concurrency.quiet, Some(&stub));
    let lanes = Lanes::new(plan.plan.bases.clone(), origin, plan.plan.concurrency.timeout);
    let mut gate = Gate { plan, stub: &stub, observers, lanes, ids: Ids::new(seed), sent: 0 };
    let mut parts = Vec::new();
    let of = u32::try_from(Blow::ALL.len()).unwrap_or_default() + 1;
    for (blow, number) in Blow::ALL.into_iter().zip(1..) {
        let (id, title) = blow.about();
        watch(Progress { what: format!("{id} {title}"), done: number, of });
        if origin.elapsed() > allowance.time {
            let mut part = Part::new(id, title);
            part.unclear("the time was over".to_owned(), "allow more with --at-most");
            parts.push(part);
            continue;
        }
        parts.push(gate.part(blow)?);
    }
    watch(Progress { what: "K4 a kill at each system call".to_owned(), done: of, of });
    parts.push(sweep::part(&mut gate, origin + allowance.time)?);
    parts.sort_by(|one, two| one.id.cmp(&two.id));
    Ok(Report::of("crash", target(&plan.plan), parts, (seed, gate.sent), origin))
}

struct Gate<'a> {
    plan: &'a CrashPlan,
    stub: &'a Stub,
    observers: Observers<'a>,
    lanes: Lanes,
    ids: Ids,
    sent: u64,
}

impl Gate<'_> {
    /// One blow, met by a retry and, where the plan says so, by nobody.
    fn part(&mut self, blow: Blow) -> Result<Part, NotRun> {
        let (id, title) = blow.about();
        let mut part = Part::new(id, title);
        if blow == Blow::Stop && self.plan.lease.is_none() {
            part.said.push("the plan has no [crash] lease".to_owned());
            return Ok(part);
        }
        let mut ways = vec![Recovery::Retry];
        // Who is stopped or told to end is not crashed: what it left is its own to finish.
        let crashes = matches!(blow, Blow::KillOnReceipt | Blow::KillAfterAnswer);
        ways.extend((crashes && self.plan.completes_within.is_some()).then_some(Recovery::Alone));
        for (way, number) in ways.into_iter().zip(1..) {
            let findings = self.round(blow, way)?;
            part.add(number, findings, None);
        }
        Ok(part)
    }

    fn start(&self) -> Result<Api, NotRun> {
        Api::start(self.plan).map_err(NotRun)
    }

    fn round(&mut self, blow: Blow, way: Recovery) -> Result<Vec<Finding>, NotRun> {
        let values = self.ids.fresh();
        let mut api = self.start()?;
        let baseline = match self.observers.baseline() {
            Ok(baseline) => baseline,
            Err(blind) => return Ok(vec![unreadable(&blind.observer, &blind.what)]),
        };
        let hit = Arc::new(AtomicBool::new(false));
        let (lever, signal) = match blow {
            Blow::KillOnReceipt => (Lever::OnReceipt, Some(Signal::KILL)),
            Blow::KillAfterAnswer => (Lever::AfterAnswer, Some(Signal::KILL)),
            Blow::Cut => (Lever::Cut, None),
            Blow::Terminate => (Lever::OnReceipt, Some(Signal::TERM)),
            Blow::Stop => (Lever::OnReceipt, Some(Signal::STOP)),
        };
        let (group, mark) = (api.group(), hit.clone());
        let act = Box::new(move || {
            mark.store(true, Ordering::SeqCst);
            if let Some(signal) = signal {
                group.signal(signal);
            }
        });
        self.stub.arm(&values.nonce, lever, act);
        let first = if blow == Blow::Stop { self.stopped(&values, &mut api)? } else { self.send(&values) };
        self.stub.disarm();
        let mut landed = hit.load(Ordering::SeqCst);
        if signal == Some(Signal::KILL) {
            // The signal was sent; that it ended the process is asked of the process.
            landed &= api.ended_within(GONE).is_some_and(was_killed)
                && first.as_ref().is_none_or(|it| it.status >= 500);
        }
        if blow == Blow::Terminate {
            let ended = api.terminate();
            landed &= ended;
        }
        if matches!(blow, Blow::KillOnReceipt | Blow::KillAfterAnswer | Blow::Terminate) {
            drop(api);
            api = self.start()?;
        }
        let end = self.end(&values, way);
        let crash = Crash {
            landed,
            first: first.map(|answer| answer.status),
            end,
            calls: self.calls(&values),
            seen: self.seen(&values, &baseline),
        };
        drop(api);
        Ok(judge(&crash))
    }

    /// The API is stopped in the middle; another process of it answers somebody else, past the lease; then it is woken.
    fn stopped(&mut self, values: &Values, api: &mut Api) -> Result<Option<Answer>, NotRun> {
        let group = api.group();
        let lease = self.plan.lease.unwrap_or_default();
        let waker = std::thread::spawn(move || {
            std::thread::sleep(lease + RETRY);
            group.signal(Signal::CONT);
        });
        let first = self.send(values);
        waker.join().map_err(|_| NotRun("the thread that wakes the API failed".to_owned()))?;
        Ok(first)
    }

    /// One request with the key; no answer where there is none.
    fn send(&mut self, values: &Values) -> Option<Answer> {
        let plan = &self.plan.plan;
        let request = fill(&plan.request, plan, values, Keyed::Yes, None, &self.ids.tag());
        self.sent += 1;
        self.lanes.one(Shot { base: 0, request }).outcome.ok()
    }

    /// Brings the key to an end.
    fn end(&mut self, values: &Values, way: Recovery) -> End {
        if way == Recovery::Alone {
            std::thread::sleep(self.plan.completes_within.unwrap_or_default());
            return End::NotAsked;
        }
        let start = Instant::now();
        let mut last = End::Silent;
        while start.elapsed() < self.plan.settled_within {
            let answer = self.send(values);
            last = match &answer {
                None => End::Silent,
                Some(answer) if self.is_uncertain(answer) => return End::Uncertain,
                Some(answer) => match told(&Ok(answer.clone()), &self.plan.plan.answers) {
                    Told::Success | Told::Refused(_) => return End::Told(answer.status),
                    Told::Failed(status) => End::Told(status),
                    _ => End::Stuck(answer.status),
                },
            };
            std::thread::sleep(RETRY);
        }
        last
    }

    fn is_uncertain(&self, answer: &Answer) -> bool {
        self.plan.plan.answers.uncertain.iter().any(|sign| matches(sign, answer))
    }

    fn calls(&self, values: &Values) -> Vec<(Option<String>, usize)> {
        self.stub.by_key(&values.nonce).into_iter().collect()
    }

    fn seen(&mut self, values: &Values, baseline: &Baseline) -> Vec<Seen> {
        self.observers.settled(std::slice::from_ref(values), baseline, &|_| false).unwrap_or_default()
    }
}

fn unreadable(observer: &str, what: &str) -> Finding {
    Finding::Unclear {
        why: format!("observer `{observer}` cannot count: {what}"),
        change: "mend it and run again".to_owned(),
    }
}
