//! The crash gate: the API is killed while it works, started again, and has to come to an end without doing anything twice.
//!
//! A black box needs one lever, and most APIs have it: the address of the service that they call is configurable. The gate
//! plays that service and pulls the lever at the call: kill on receipt (it happened, and the API does not know), kill after
//! the answer (it may have been stored or not), a cut without an answer, SIGTERM in the middle, SIGSTOP past the lease. With
//! strace there is a sweep over system calls besides, which needs no call at all.
//!
//! A process can also be left alone and what it needs be taken away: its database, by the relay in front of it, and the room on
//! its disk. And with a second process on the same store, the one that is stopped finds another in its place when it is woken.
//!
//! After each crash somebody retries until there is an end; and, where the plan says that the API finishes by itself, once
//! more with nobody asking. A call that is made twice is a fault, unless it carries the same key downstream: then the provider
//! can know it, and the report says that the API relies on that.

mod blow;
mod judge;
mod outage;
mod process;
mod story;
mod sweep;
mod takeover;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::Signal;

pub use judge::{Crash, End, Missed, judge};

use self::blow::Blow;
use self::outage::{Needed, Outage};
use self::process::{Api, was_killed};
use self::story::Story;
use self::takeover::Taken;
use crate::arrive::{Lanes, Shot};
use crate::concurrency::{Ids, Keyed, NotRun, Progress, fill, relay, target};
use crate::delay::Hand;
use crate::observe::{Baseline, Observers, Seen};
use crate::plan::{CrashPlan, Source, Values};
use crate::report::{Counterexample, Part, Report, command};
use crate::safety::{Allowance, Estimate};
use crate::stub::{Act, Stub};
use crate::told::{Told, matches, told};
use crate::wire::{Answer, Filled};

/// Between two retries of a client that waits.
const RETRY: Duration = Duration::from_millis(100);
/// How long a killed process may take to be gone.
const GONE: Duration = Duration::from_secs(5);
/// What was taken away may come back this much later than it should.
const OVERDUE: Duration = Duration::from_secs(10);
/// After an outage a pool may hold connections that are gone: so many failures in a row are retried before they are the end.
const STALE_MAX: u32 = 20;

/// A kill that has to come between two things that follow each other is tried so often.
const TRIES: u32 = 10;

/// What is done to the API, for people.
pub fn parts() -> impl Iterator<Item = (&'static str, &'static str)> {
    let mut parts: Vec<_> = Blow::ALL.into_iter().map(Blow::about).chain([sweep::ABOUT]).collect();
    parts.sort_unstable();
    parts.into_iter()
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
    let rounds = 2 * (Blow::ALL.len() as u64 + u64::from(TRIES)) + u64::from(plan.sweep);
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
    let observers = Observers::new(
        &others,
        (&plan.plan.bases, &plan.plan.trust),
        plan.plan.concurrency.quiet,
        Some(&stub),
    );
    let lanes = Lanes::new(plan.all_bases(), origin, plan.plan.concurrency.timeout);
    let relay = relay(&plan.plan)?;
    let mut gate = Gate {
        plan,
        stub: &stub,
        counts_rows: !others.is_empty(),
        hand: relay.as_ref().map(|relay| relay.hand()),
        observers,
        lanes,
        ids: Ids::new(seed),
        story: Story::default(),
        sent: 0,
    };
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
    /// What cuts the database.
    hand: Option<Hand>,
    observers: Observers<'a>,
    /// Something else than the stub is counted.
    counts_rows: bool,
    /// The bases of the plan, and after them the second process's.
    lanes: Lanes,
    ids: Ids,
    story: Story,
    sent: u64,
}

/// Whom a request is sent to, and what it is called in a timeline.
#[derive(Clone, Copy)]
struct To {
    step: &'static str,
    base: usize,
}

const FIRST: To = To { step: "first", base: 0 };
const AGAIN: To = To { step: "retry", base: 0 };

impl Gate<'_> {
    /// One blow, met by a retry and, where the plan says so, by nobody.
    fn part(&mut self, blow: Blow) -> Result<Part, NotRun> {
        let (id, title) = blow.about();
        let mut part = Part::new(id, title);
        if let Some(lacking) = blow.lacks(self.plan) {
            part.said.push(format!("the plan has no {lacking}"));
            return Ok(part);
        }
        let mut ways = vec![Recovery::Retry];
        let alone = blow.leaves_work() && self.plan.completes_within.is_some();
        ways.extend(alone.then_some(Recovery::Alone));
        for (way, number) in ways.into_iter().zip(1..) {
            let mut crash = self.round(blow, way)?;
            // Who is killed after an answer may have been faster.
            for _ in 1..if blow == Blow::KillAfterAnswer { TRIES } else { 1 } {
                if crash.missed.is_none() {
                    break;
                }
                crash = self.round(blow, way)?;
            }
            let shape = match way {
                Recovery::Retry => "until there is an end",
                Recovery::Alone => "by nobody: the API is left to itself",
            };
            part.add(number, judge(&crash), Some(&|| self.example(number, shape, &crash, blow.about())));
        }
        if blow == Blow::Stop && self.plan.second.is_some() && !self.counts_rows {
            part.unclear(
                "only calls are counted: a row that the woken process adds would not be seen".to_owned(),
                "add an [[observe]] that counts rows: kind = \"sql\" or \"list\"",
            );
        }
        Ok(part)
    }

    fn start(&self) -> Result<Api, NotRun> {
        Api::start(&self.plan.command, &self.plan.plan.bases, self.plan).map_err(NotRun)
    }

    /// Starts it once more, and says so.
    fn start_again(&mut self) -> Result<Api, NotRun> {
        let api = self.start()?;
        self.story.did(self.lanes.now(), "the API is started again");
        Ok(api)
    }

    fn round(&mut self, blow: Blow, way: Recovery) -> Result<Crash, NotRun> {
        let values = self.ids.fresh();
        self.story = Story::default();
        let mut api = self.start()?;
        let second = self.start_second(blow)?;
        let baseline = match self.observers.baseline() {
            Ok(baseline) => baseline,
            Err(blind) => return Ok(missed(unreadable(&blind.observer, &blind.what))),
        };
        let (hit, outage) = (Arc::new(OnceLock::new()), Outage::default());
        self.stub.arm(&self.marker(&values), blow.lever(), self.act(blow, &api, &hit, &outage));
        let Taken { first, second: taken } = match blow {
            Blow::Stop => self.stopped(&values, &api, second.is_some(), &hit)?,
            _ => Taken { first: self.send(&values, FIRST), second: None },
        };
        self.stub.disarm();
        if let Some(at) = hit.get() {
            self.story.did(*at, blow.word());
        }
        let (mut notes, mut missed) = (Vec::<String>::new(), hit.get().is_none().then(not_hit));
        if blow.signal() == Some(Signal::KILL) {
            // The signal was sent; that it ended the process is asked of the process.
            let killed = api.ended_within(GONE).is_some_and(was_killed)
                && first.as_ref().is_none_or(|it| it.status >= 500);
            missed = missed.or_else(|| (!killed).then(not_hit));
        }
        if blow == Blow::Terminate {
            let ended = api.terminate();
            missed = missed.or_else(|| (!ended).then(not_hit));
        }
        if matches!(blow, Blow::Database | Blow::Disk) {
            let felt = outage.over(self.away() + OVERDUE);
            self.story.did(self.lanes.now(), "it is back");
            missed = missed.or_else(|| untaken(blow, felt));
        }
        if blow == Blow::Stop && second.is_none() {
            notes.push("without [crash.second], nobody took over while it was stopped".to_owned());
        }
        let ended = !blow.ends_it() && api.ended_within(Duration::ZERO).is_some();
        if ended {
            notes.push("the API ended by itself, and was started again".to_owned());
        }
        if ended || blow.ends_it() {
            drop(api);
            api = self.start_again()?;
        }
        let told_first = first.as_ref().filter(|it| (200..300).contains(&it.status));
        let mut blind = None;
        let mut seen = |gate: &mut Self| {
            gate.seen(&values, &baseline).unwrap_or_else(|why| {
                blind = Some(why);
                Vec::new()
            })
        };
        let seen_first = if told_first.is_some() { seen(self) } else { Vec::new() };
        if blow == Blow::Disk && told_first.is_some() && seen_first.iter().all(|seen| seen.total > 0) {
            missed = missed.or_else(|| Some(unfelt()));
        }
        let stale = if matches!(blow, Blow::Database | Blow::Disk) { STALE_MAX } else { 0 };
        let (end, last) = self.end(&values, way, AGAIN, stale);
        self.stub.calls(&self.marker(&values)).iter().for_each(|call| self.story.called(call));
        let (second, taken) = taken.map_or((None, None), |(end, answer)| (Some(end), answer));
        let seen = seen(self);
        let crash = Crash {
            // Who counts nothing has seen nothing that is wrong.
            missed: blind.or(missed),
            first: first.as_ref().map(|answer| answer.status),
            seen_first,
            second,
            end,
            differs: differ(&[taken, first, last]),
            calls: self.calls(&values),
            seen,
            notes,
        };
        drop(api);
        Ok(crash)
    }

    /// How long something is away at most.
    fn away(&self) -> Duration {
        let database = self.plan.plan.database.map_or(Duration::ZERO, |database| database.away);
        database.max(self.plan.disk.as_ref().map_or(Duration::ZERO, |disk| disk.full_for))
    }

    /// What the stub does when the call comes, and the time at which it did.
    fn act(&self, blow: Blow, api: &Api, hit: &Arc<OnceLock<Duration>>, outage: &Outage) -> Act {
        let (group, hit, outage) = (api.group(), hit.clone(), outage.clone());
        let clock = self.lanes.clock();
        let needed = match (blow, &self.hand, self.plan.plan.database, &self.plan.disk) {
            (Blow::Database, Some(hand), Some(database), _) => {
                Some(Needed::Database(hand.clone(), database.away))
            }
            (Blow::Disk, _, _, Some(disk)) => Some(Needed::Disk(disk.clone())),
            _ => None,
        };
        Box::new(move || {
            // First: whoever was killed is gone, and its caller told so, before the next line runs.
            let _ = hit.set(clock.elapsed());
            if let Some(signal) = blow.signal() {
                group.signal(signal);
            }
            if let Some(needed) = needed {
                outage.begin(needed);
            }
        })
    }

    /// The request of an operation.
    fn filled(&self, values: &Values) -> Filled {
        fill(&self.plan.plan.request, &self.plan.plan, values, Keyed::Yes, None, &self.ids.tag())
    }

    /// One request with the key; no answer where there is none.
    fn send(&mut self, values: &Values, to: To) -> Option<Answer> {
        let request = self.filled(values);
        self.sent += 1;
        let timed = self.lanes.one(Shot { base: to.base, request });
        self.note(to, &timed);
        timed.outcome.ok()
    }

    /// A request in the timeline.
    fn note(&mut self, to: To, timed: &crate::arrive::Timed) {
        let answers = &self.plan.plan.answers;
        let uncertain = timed.outcome.as_ref().is_ok_and(|answer| self.is_uncertain(answer));
        let word = if uncertain { "uncertain".to_owned() } else { told(&timed.outcome, answers).word() };
        let base = self.lanes.name(to.base).to_owned();
        self.story.asked(to.step, &base, timed, word);
    }

    /// Brings the key to an end; failures in a row are no end while there are fewer than `stale`.
    fn end(&mut self, values: &Values, way: Recovery, to: To, stale: u32) -> (End, Option<Answer>) {
        if way == Recovery::Alone {
            std::thread::sleep(self.plan.completes_within.unwrap_or_default());
            return (End::NotAsked, None);
        }
        let start = Instant::now();
        let (mut last, mut failures) = (End::Silent, 0);
        while start.elapsed() < self.plan.settled_within {
            let answer = self.send(values, to);
            last = match &answer {
                None => End::Silent,
                Some(answer) if self.is_uncertain(answer) => return (End::Uncertain, None),
                Some(answer) => match told(&Ok(answer.clone()), &self.plan.plan.answers) {
                    Told::Success | Told::Refused(_) => {
                        return (End::Told(answer.status), Some(answer.clone()));
                    }
                    Told::Failed(status) if failures >= stale => return (End::Told(status), None),
                    Told::Failed(status) => {
                        failures += 1;
                        End::Told(status)
                    }
                    _ => End::Stuck(answer.status),
                },
            };
            std::thread::sleep(RETRY);
        }
        (last, None)
    }

    fn is_uncertain(&self, answer: &Answer) -> bool {
        self.plan.plan.answers.uncertain.iter().any(|sign| matches(sign, answer))
    }

    fn calls(&self, values: &Values) -> Vec<(Option<String>, usize)> {
        self.stub.by_key(&self.marker(values)).into_iter().collect()
    }

    /// What a call to the stub has in it if it is about this operation: what its observer looks for, else the nonce.
    fn marker(&self, values: &Values) -> String {
        let contains = self.plan.plan.observers.iter().find_map(|observer| match &observer.source {
            Source::Stub { contains } => Some(contains.fill(values)),
            _ => None,
        });
        contains.unwrap_or_else(|| values.nonce.clone())
    }

    fn seen(&mut self, values: &Values, baseline: &Baseline) -> Result<Vec<Seen>, Missed> {
        self.observers
            .settled(std::slice::from_ref(values), baseline, &|_| false)
            .map_err(|blind| unreadable(&blind.observer, &blind.what))
    }

    /// The last round as one that shows a fault, with what shows it without the gate.
    fn example(&self, round: u32, shape: &str, crash: &Crash, (id, title): (&str, &str)) -> Counterexample {
        let effects = crash.seen.iter().map(|seen| (seen.observer.clone(), seen.total)).collect();
        let plan = &self.plan.plan;
        let shown = plan.shown();
        let values = Values { key: "KEY".to_owned(), nonce: "NONCE".to_owned(), ..Values::default() };
        let line = command(&self.filled(&values), plan.bases.first(), &shown);
        let then = format!("# {id}: {title}; then, to the end:");
        let curl = vec![format!("{} &", self.plan.command.join(" ")), line.clone(), then, line];
        self.story.example(round, shape, effects, curl)
    }
}

/// What several callers were told of one key, where they were told a success and not the same one.
fn differ(answers: &[Option<Answer>]) -> Option<String> {
    let mut told = answers.iter().flatten().filter(|answer| (200..300).contains(&answer.status));
    let first = told.next()?;
    let other = told.find(|other| (other.status, &other.body) != (first.status, &first.body))?;
    Some(format!(
        "two callers were told a success, and not the same: {} with {} bytes, and {} with {} others",
        first.status,
        first.body.len(),
        other.status,
        other.body.len()
    ))
}

fn not_hit() -> Missed {
    Missed {
        why: "the API was not hit while it worked on the request".to_owned(),
        change: "point the API's provider at [stub] listen; make [request] one that calls it".to_owned(),
    }
}

/// Whether what should have been away was there.
fn untaken(blow: Blow, felt: Result<usize, String>) -> Option<Missed> {
    let missed = |why: String, change: &str| Some(Missed { why, change: change.to_owned() });
    match (blow, felt) {
        (Blow::Database, Ok(0)) => missed(
            "no connection to the database was cut".to_owned(),
            "point the API's database at [database] listen",
        ),
        (_, Ok(_)) => None,
        (_, Err(why)) => missed(
            why,
            "give the API a small disk of its own: mount -t tmpfs -o size=64m none FOLDER; [crash.disk] at_most is its size or more",
        ),
    }
}

/// It told a success and kept it.
fn unfelt() -> Missed {
    Missed {
        why: "the API did not notice that the disk was full".to_owned(),
        change: "name in [crash.disk] the folder that holds its files; let [request] be one that needs room"
            .to_owned(),
    }
}

/// A round of which nothing can be said.
fn missed(why: Missed) -> Crash {
    Crash {
        missed: Some(why),
        first: None,
        seen_first: Vec::new(),
        second: None,
        end: End::NotAsked,
        differs: None,
        calls: Vec::new(),
        seen: Vec::new(),
        notes: Vec::new(),
    }
}

fn unreadable(observer: &str, what: &str) -> Missed {
    Missed {
        why: format!("observer `{observer}` cannot count: {what}"),
        change: "mend it and run again".to_owned(),
    }
}
