//! The verify gate: an operation that is said to be idempotent is done again, and must change nothing more.
//!
//! A method is a claim and not a proof: a PUT that appends to a log, and a DELETE that takes one from a counter, are not
//! idempotent whatever RFC 9110 says of their methods. What is compared is the *state*, read by a GET, and what observers
//! count beside it; answers may differ (a second DELETE may be told 404). Reading twice with no write between teaches
//! which members change by themselves.

mod judge;
mod state;

use std::time::{Duration, Instant};

pub use judge::{Observed, judge};
pub use state::State;

use crate::arms::{Arm, Exchange, Finding, Round, Shape, Step};
use crate::arrive::{Lanes, Shot, Timed};
use crate::concurrency::{Ids, Progress, TAG, places};
use crate::observe::{Blind, Observers, Seen};
use crate::plan::{Claim, HeaderLine, Operation, Shown, Values, VerifyPlan};
use crate::report::{Counterexample, Part, Report, Verdict};
use crate::safety::{Allowance, Estimate};
use crate::told::Told;
use crate::wire::{Answer, Filled};

/// Each claim is verified on so many things of its own.
const ROUNDS: u32 = 3;
/// Requests of one claim's round that change something, at most.
const WRITES: u64 = 8;

/// What a run sends at most.
#[must_use]
pub fn estimate(plan: &VerifyPlan) -> Estimate {
    let rounds = u64::from(ROUNDS) * plan.claims.len() as u64;
    Estimate { requests: rounds * WRITES * 2, effects: rounds * 3, effects_at_worst: rounds * WRITES }
}

/// Runs the gate.
#[must_use]
pub fn run(plan: &VerifyPlan, allowance: &Allowance, seed: u64, watch: &mut dyn FnMut(Progress)) -> Report {
    let origin = Instant::now();
    let ends = origin + allowance.time;
    let lanes = Lanes::new(plan.bases.clone(), origin, plan.timeout);
    let observers = Observers::new(&plan.observers, (&plan.bases, &plan.trust), plan.quiet, None);
    let mut gate = Gate { plan, lanes, observers, ids: Ids::new(seed), sent: 0 };
    let mut parts = Vec::new();
    for (at, claim) in plan.claims.iter().enumerate() {
        let shown = Values { id: "{id}".to_owned(), nonce: "{nonce}".to_owned(), ..Values::default() };
        let title = format!("{} {}", claim.operation.method, claim.operation.path.fill(&shown));
        let mut part = Part::new(&format!("V{}", at + 1), &title);
        for number in 1..=ROUNDS {
            watch(Progress { what: title.clone(), done: number, of: ROUNDS });
            if Instant::now() >= ends {
                part.add(
                    number,
                    vec![Finding::Unclear {
                        why: "the time was over".to_owned(),
                        change: "allow more with --at-most".to_owned(),
                    }],
                    None,
                );
                break;
            }
            gate.round(claim, number, &mut part);
            if part.verdict == Some(Verdict::Fail) {
                break;
            }
        }
        parts.push(part);
    }
    Report::of("verify", places(&plan.bases), parts, (seed, gate.sent), origin)
}

struct Gate<'a> {
    plan: &'a VerifyPlan,
    lanes: Lanes,
    observers: Observers<'a>,
    ids: Ids,
    sent: u64,
}

/// What one round did, for its counter-example.
#[derive(Default)]
struct Trail(Vec<Exchange>);

impl Gate<'_> {
    /// One thing: made, read twice, written once, again, twice at once; then an older write after a newer one.
    fn round(&mut self, claim: &Claim, number: u32, part: &mut Part) {
        let mut trail = Trail::default();
        let findings = match self.observe(claim, &mut trail) {
            Ok(observed) => judge(&observed),
            Err(Blind { observer, what }) => vec![Finding::Unclear {
                why: format!("observer `{observer}` cannot count: {what}"),
                change: "mend it and run again".to_owned(),
            }],
        };
        let setup = claim.setup.iter().flat_map(|setup| &setup.operation.headers);
        let shown = Shown::new(&self.plan.bases, claim.operation.headers.iter().chain(setup));
        let round = Round {
            arm: Arm::A7,
            shape: Shape::InTurn,
            number,
            exchanges: trail.0,
            nonces: Vec::new(),
            seen: Vec::new(),
            in_hand: false,
            held: None,
            effect_at: None,
        };
        part.add(number, findings, Some(&|| Counterexample::of(&round, &shown)));
    }

    fn observe(&mut self, claim: &Claim, trail: &mut Trail) -> Result<Observed, Blind> {
        let mut values = self.ids.fresh();
        let mut observed = Observed::new(&claim.volatile);
        if let Some(setup) = &claim.setup {
            let made = self.send(&setup.operation, &values, None, Step::First, trail);
            observed.setup = Some(made.clone());
            if let (Some(pointer), Ok(answer)) = (&setup.id, &made) {
                match id_of(answer, pointer) {
                    Some(id) => values.id = id,
                    None => return Ok(observed),
                }
            }
        }
        let baseline = self.observers.baseline()?;
        let operations = [values.clone()];
        observed.before = [self.read(claim, &values), self.read(claim, &values)];
        observed.answers.push(self.send(&claim.operation, &values, None, Step::Race, trail));
        observed.states.push(self.read(claim, &values));
        observed.counts.push(self.counts(&operations, &baseline)?);
        observed.answers.push(self.send(&claim.operation, &values, None, Step::After, trail));
        observed.states.push(self.read(claim, &values));
        observed.counts.push(self.counts(&operations, &baseline)?);
        self.twice_at_once(claim, &values, &mut observed, trail);
        observed.states.push(self.read(claim, &values));
        observed.counts.push(self.counts(&operations, &baseline)?);
        if claim.newer_body.is_some() {
            let newer = self.send(&claim.operation, &values, claim.newer_body.as_ref(), Step::After, trail);
            let after_newer = self.read(claim, &values);
            let late = self.send(&claim.operation, &values, None, Step::After, trail);
            observed.late = newer.is_ok().then(|| (after_newer, self.read(claim, &values), late));
        }
        Ok(observed)
    }

    fn counts(
        &mut self,
        operations: &[Values],
        baseline: &crate::observe::Baseline,
    ) -> Result<Vec<Seen>, Blind> {
        self.observers.settled(operations, baseline, &|_| false)
    }

    fn filled(&self, operation: &Operation, values: &Values, body: Option<&crate::plan::Template>) -> Filled {
        let mut headers: Vec<(String, String)> = lines(&operation.headers, values);
        headers.push((TAG.to_owned(), self.ids.tag()));
        Filled {
            method: operation.method.clone(),
            path: operation.path.fill(values),
            headers,
            body: body.or(operation.body.as_ref()).map(|body| body.fill(values)),
        }
    }

    fn send(
        &mut self,
        operation: &Operation,
        values: &Values,
        body: Option<&crate::plan::Template>,
        step: Step,
        trail: &mut Trail,
    ) -> Result<Answer, String> {
        let request = self.filled(operation, values, body);
        let timed = self.lanes.one(Shot { base: 0, request: request.clone() });
        self.keep(request, timed, step, trail)
    }

    fn keep(
        &mut self,
        request: Filled,
        timed: Timed,
        step: Step,
        trail: &mut Trail,
    ) -> Result<Answer, String> {
        self.sent += 1;
        let told = match &timed.outcome {
            Ok(answer) if answer.status < 300 => Told::Success,
            Ok(answer) if answer.status >= 500 => Told::Failed(answer.status),
            Ok(answer) => Told::Refused(answer.status),
            Err(_) => Told::Lost,
        };
        let outcome = timed.outcome.clone().map_err(|lost| lost.0);
        trail.0.push(Exchange { step, variant: 0, base: 0, request, timed, told });
        outcome
    }

    fn twice_at_once(&mut self, claim: &Claim, values: &Values, observed: &mut Observed, trail: &mut Trail) {
        let request = self.filled(&claim.operation, values, None);
        let shots = (0..2)
            .map(|at| Shot { base: at % self.lanes.bases().max(1), request: request.clone() })
            .collect();
        let volley = self.lanes.at_once(shots, Duration::from_millis(10), &mut |_| ());
        for timed in volley.timed {
            let answer = self.keep(request.clone(), timed, Step::After, trail);
            observed.answers.push(answer);
        }
    }

    fn read(&mut self, claim: &Claim, values: &Values) -> State {
        let headers = lines(&claim.operation.headers, values);
        let request = Filled::get(&claim.read.fill(values), &headers);
        self.sent += 1;
        State::of(&self.lanes.one(Shot { base: 0, request }).outcome)
    }
}

fn lines(headers: &[HeaderLine], values: &Values) -> Vec<(String, String)> {
    headers.iter().map(|line| (line.name.clone(), line.value.fill(values))).collect()
}

/// What an answer calls the thing that was made.
fn id_of(answer: &Answer, pointer: &str) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(&answer.body).ok()?;
    match body.pointer(pointer)? {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}
