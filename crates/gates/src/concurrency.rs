//! The concurrency gate: all arms against one operation.
//!
//! First a request alone (does it succeed, how long does it take), then the control (different keys at once: do the observers
//! count, does the server work on several), then the races, then the arms that need no race. A FAIL needs nothing but the
//! round that shows it; a PASS needs the control, proof of overlap, and rounds enough.

mod overlap;
mod rounds;
mod send;
mod slow;

use std::time::{Duration, Instant};

pub use overlap::{Evidence, proof};
pub use send::{Ids, Keyed, TAG, fill};

use self::rounds::Runner;
use crate::arms::{Arm, Round, judge, judge_replay};
use crate::delay::{Delay, Relay, Relaying};
use crate::observe::{Blind, Observers};
use crate::plan::{Base, DatabasePlan, Plan};
use crate::power;
use crate::report::{Counterexample, Part, Report, Verdict};
use crate::safety::{Allowance, Estimate};
use crate::stub::Stub;
use crate::trace::Untraced;

/// Rounds of arms that need no race: a fault there shows at once.
const FEW: u32 = 3;
/// Rounds with the stub's first call held: they show a fault every time.
const HELD: u32 = 4;

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Of which part.
    pub what: String,
    /// Rounds that are over.
    pub done: u32,
    /// Rounds in all.
    pub of: u32,
}

/// Why a gate could not be run at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotRun(pub String);

/// Rounds of each shape of race.
#[must_use]
pub fn rounds_of(plan: &Plan) -> u32 {
    plan.concurrency.rounds.unwrap_or_else(|| power::rounds(plan.concurrency.detect, plan.concurrency.miss))
}

/// What a run sends at most.
#[must_use]
pub fn estimate(plan: &Plan) -> Estimate {
    let requests = plan.concurrency.requests as u64;
    let rounds = u64::from(rounds_of(plan));
    let held = if holds(plan) { u64::from(HELD) } else { 0 };
    let (mixed, few) = (u64::from(mixed_rounds(plan)), u64::from(FEW));
    let races = u64::from(shapes(plan)) * rounds + held;
    let sent = 3 + requests + races * (requests + 1) + mixed * (requests + 1) + 7 * few * 3;
    Estimate { requests: sent, effects: 3 + requests + races + mixed + 8 * few, effects_at_worst: sent }
}

/// At once and late; in one packet where the plan says so.
fn shapes(plan: &Plan) -> u32 {
    if plan.concurrency.http2 { 3 } else { 2 }
}

fn mixed_rounds(plan: &Plan) -> u32 {
    rounds_of(plan).div_ceil(4)
}

fn holds(plan: &Plan) -> bool {
    plan.stub.as_ref().is_some_and(|stub| stub.hold)
}

/// Runs the gate.
///
/// # Errors
/// The stub's address cannot be had. Everything else is in the report.
pub fn run(
    plan: &Plan,
    allowance: &Allowance,
    seed: u64,
    watch: &mut dyn FnMut(Progress),
) -> Result<Report, NotRun> {
    let origin = Instant::now();
    let stub = match &plan.stub {
        Some(wanted) => Some(Stub::start(wanted, origin).map_err(|error| {
            NotRun(format!(
                "the stub cannot listen on {}: {error}; choose another address in [stub] listen",
                wanted.listen
            ))
        })?),
        None => None,
    };
    // It ends with this run.
    let _relay = relay(plan)?;
    let observers =
        Observers::new(&plan.observers, (&plan.bases, &plan.trust), plan.concurrency.quiet, stub.as_ref());
    let runner = Runner::new(plan, stub.as_ref(), observers, origin, seed);
    let mut gate = Gate {
        plan,
        runner,
        parts: Vec::new(),
        evidence: Evidence { instances: plan.bases.len(), ..Evidence::default() },
        ends: origin + allowance.time,
        slow: plan.slow.as_ref().map(slow::Slowed::begin),
        watch,
    };
    let overlap = gate.arms().unwrap_or_else(|blind| {
        gate.blind(blind);
        None
    });
    let report = Report::of("concurrency", target(plan), gate.parts, (seed, gate.runner.sent()), origin);
    let passes = report.verdict == Verdict::Pass;
    let power = passes.then(|| power::left_open(plan.concurrency.detect, rounds_of(plan)));
    Ok(Report { overlap, power, ..report })
}

/// What stands in front of the API's database, if the plan has it.
///
/// # Errors
/// Its address cannot be had.
pub(crate) fn relay(plan: &Plan) -> Result<Option<Relaying>, NotRun> {
    let Some(DatabasePlan { listen, to, each_way, .. }) = plan.database else { return Ok(None) };
    let relay = Relay::bind(Delay { listen, to, each_way }).and_then(Relay::start);
    relay.map(Some).map_err(|error| {
        NotRun(format!("cannot listen on {listen}: {error}; choose another address in [database] listen"))
    })
}

/// What a plan's requests go to, as reports have it.
pub(crate) fn target(plan: &Plan) -> String {
    format!("{} {} at {}", plan.request.method, shown_path(plan), places(&plan.bases))
}

/// Where an API is.
pub(crate) fn places(bases: &[Base]) -> String {
    let places: Vec<&str> = bases.iter().map(|base| base.authority.as_str()).collect();
    places.join(", ")
}

pub(crate) fn shown_path(plan: &Plan) -> String {
    let shown =
        crate::plan::Values { key: "KEY".to_owned(), nonce: "NONCE".to_owned(), ..Default::default() };
    plan.request.path.fill(&shown)
}

fn part_of(arm: Arm) -> Part {
    Part::new(arm.about().id, arm.about().title)
}

fn example(round: &Round, plan: &Plan) -> Counterexample {
    Counterexample::of(round, &plan.shown())
}

fn named(arm: Arm) -> String {
    format!("{} {}", arm.about().id, arm.about().title)
}

struct Gate<'a> {
    plan: &'a Plan,
    runner: Runner<'a>,
    parts: Vec<Part>,
    evidence: Evidence,
    ends: Instant,
    /// What makes the process slow, where the plan asks for it.
    slow: Option<slow::Slowed>,
    watch: &'a mut dyn FnMut(Progress),
}

impl<'a> Gate<'a> {
    /// All arms, in order; how it is known that requests overlapped.
    fn arms(&mut self) -> Result<Option<String>, Blind> {
        let plan = self.plan;
        if !self.alone()? || !self.control()? {
            return Ok(None);
        }
        let overlap = self.races()?;
        self.few(Arm::A3, None, Runner::other_body)?;
        self.few(
            Arm::A4,
            plan.second_account.is_none().then_some("[second_account]"),
            Runner::other_account,
        )?;
        self.few(
            Arm::A5,
            plan.other_operation.is_none().then_some("[other_operation]"),
            Runner::other_operation,
        )?;
        let keyless = match (plan.key.required, &plan.key.header) {
            (None, _) => Some("[key] required"),
            (_, None) => Some("a key in a header"),
            _ => None,
        };
        self.few(Arm::A6, keyless, Runner::keyless)?;
        self.few(Arm::A7, None, Runner::twice)?;
        self.few(Arm::A8, None, Runner::other_key)?;
        self.arm(Arm::A9, mixed_rounds(plan), Runner::mixed)?;
        self.few(Arm::A10, plan.failing.is_none().then_some("[failing]"), Runner::failing)?;
        self.parts.sort_by_key(|part| Arm::ALL.iter().position(|arm| arm.about().id == part.id));
        Ok(overlap)
    }

    /// One request alone, a few times: how long it takes. `false` ends the run.
    fn alone(&mut self) -> Result<bool, Blind> {
        let round = self.runner.alone(FEW)?;
        let mut times: Vec<Duration> =
            round.exchanges.iter().map(|it| it.timed.done.saturating_sub(it.timed.first_sent)).collect();
        times.sort_unstable();
        // The shortest for the proof of overlap, since a busy machine makes any of them longer; the middle one for the pace.
        self.evidence.alone = times.first().copied().unwrap_or_default();
        self.runner.set_pace(times.get(times.len() / 2).copied().unwrap_or_default());
        self.control_holds(&round)
    }

    /// A0. `false` ends the run: what cannot be counted cannot be judged.
    fn control(&mut self) -> Result<bool, Blind> {
        let round = self.runner.control()?;
        let complete = round.exchanges.iter().map(|it| it.timed.last_sent).max().unwrap_or_default();
        let done = round.exchanges.iter().map(|it| it.timed.done).max().unwrap_or_default();
        self.evidence.control = done.saturating_sub(complete);
        self.evidence.requests = round.exchanges.len();
        self.evidence.calls_beside_a_held_one = round.held.unwrap_or_default().saturating_sub(1);
        self.control_holds(&round)
    }

    fn control_holds(&mut self, round: &Round) -> Result<bool, Blind> {
        let findings = judge(round, &self.plan.answers, &self.plan.key);
        let holds = findings.is_empty();
        self.parts.retain(|part| part.id != Arm::A0.about().id);
        let mut part = part_of(Arm::A0);
        part.add(round.number, findings, Some(&|| example(round, self.plan)));
        self.parts.push(part);
        Ok(holds)
    }

    /// A1 in its shapes, and A2 after each.
    fn races(&mut self) -> Result<Option<String>, Blind> {
        let (mut race, mut replay) = (part_of(Arm::A1), part_of(Arm::A2));
        let rounds = rounds_of(self.plan);
        let held = if holds(self.plan) { HELD } else { 0 };
        let shapes = shapes(self.plan);
        let of = shapes * rounds + held;
        for number in 1..=of {
            if Instant::now() >= self.ends {
                race.unclear(
                    format!("the time was over after {} of {of} rounds", number - 1),
                    "allow more with --at-most",
                );
                break;
            }
            // Held ones first: where they show a fault, they show it at once.
            let round = match number {
                number if number <= held => self.runner.held_race(number)?,
                number => match (number - held) % shapes {
                    1 => self.runner.race(number)?,
                    2 => self.runner.packet_race(number)?,
                    _ => self.runner.late_race(number)?,
                },
            };
            self.note(&round);
            let findings = judge(&round, &self.plan.answers, &self.plan.key);
            let replays = judge_replay(&round, &self.plan.answers);
            race.add(round.number, findings, Some(&|| example(&round, self.plan)));
            replay.add(round.number, replays, Some(&|| example(&round, self.plan)));
            (self.watch)(Progress { what: named(Arm::A1), done: number, of });
            // One round is a counter-example; a few more say how rare it is.
            if race.failed_rounds >= FEW {
                break;
            }
        }
        match self.slow.as_mut().map(slow::Slowed::end) {
            None => {}
            Some(Ok(what)) => race.said.push(what),
            Some(Err(Untraced { why, change })) => race.unclear(why, change),
        }
        if held > 0 && self.runner.stub_calls() == 0 {
            race.unclear(
                "the stub was never called".to_owned(),
                "point the API at [stub] listen, or take [stub] out",
            );
        }
        let overlap = proof(&self.evidence);
        // What is found needs no proof that it could have been.
        if let (0, Err((why, change))) = (race.failed_rounds, &overlap) {
            race.unclear(why.clone(), change);
        }
        let late = self.runner.late_effects()?;
        if race.failed_rounds == 0 {
            late.into_iter().for_each(|what| race.fail(what));
        }
        self.parts.extend([race, replay]);
        Ok(Some(overlap.unwrap_or_else(|(why, _)| format!("not shown: {why}"))))
    }

    /// What a race shows about time.
    fn note(&mut self, round: &Round) {
        if round.shape == crate::arms::Shape::AtOnce {
            self.evidence.rounds += 1;
            self.evidence.in_hand += u32::from(round.in_hand);
        }
        let in_flight = |told| matches!(told, crate::told::Told::Conflict { in_flight: true, .. });
        let race =
            round.exchanges.iter().filter(|it| it.step == crate::arms::Step::Race && in_flight(it.told));
        self.evidence.in_flight += race.count() as u64;
    }

    fn few(&mut self, arm: Arm, missing: Option<&str>, make: Make<'a>) -> Result<(), Blind> {
        match missing {
            None => self.arm(arm, FEW, make),
            Some(field) => {
                let mut part = part_of(arm);
                part.said = vec![format!("the plan has no {field}")];
                self.parts.push(part);
                Ok(())
            }
        }
    }

    fn arm(&mut self, arm: Arm, rounds: u32, make: Make<'a>) -> Result<(), Blind> {
        let mut tally = part_of(arm);
        for number in 1..=rounds {
            if Instant::now() >= self.ends {
                tally.unclear("the time was over".to_owned(), "allow more with --at-most");
                break;
            }
            let round = make(&mut self.runner, number)?;
            let findings = judge(&round, &self.plan.answers, &self.plan.key);
            tally.add(round.number, findings, Some(&|| example(&round, self.plan)));
            (self.watch)(Progress { what: named(arm), done: number, of: rounds });
            if tally.failed_rounds > 0 {
                break;
            }
        }
        self.parts.push(tally);
        Ok(())
    }

    /// An observer that cannot read makes the whole run unclear.
    fn blind(&mut self, blind: Blind) {
        let mut tally = part_of(Arm::A0);
        tally.unclear(
            format!("observer `{}` cannot count: {}", blind.observer, blind.what),
            "mend it and run again",
        );
        self.parts.retain(|part| part.id != Arm::A0.about().id);
        self.parts.insert(0, tally);
    }
}

type Make<'a> = for<'r> fn(&'r mut Runner<'a>, u32) -> Result<Round, Blind>;
