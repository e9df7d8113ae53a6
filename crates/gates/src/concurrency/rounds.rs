//! Sending the rounds of each arm. Nothing is judged here.

use std::time::{Duration, Instant};

use super::send::{Ids, Keyed, fill};
use crate::arms::{Arm, Exchange, Round, Shape, Step};
use crate::arrive::{Lanes, Shot, Timed, Volley};
use crate::observe::{Baseline, Blind, Observers, Seen};
use crate::plan::{HeaderLine, Operation, Plan, Source, Values};
use crate::stub::Stub;
use crate::told::told;
use crate::wire::Filled;

/// Late requests come over this many times the time of one alone.
const SPREAD: u32 = 3;
const SPREAD_MIN: Duration = Duration::from_millis(4);
const SPREAD_MAX: Duration = Duration::from_secs(2);
/// Operations whose effects are counted once more at the end; more would take long and say little.
const LATE_MAX: usize = 2_000;

/// Sends, and reads the observers.
pub(crate) struct Runner<'a> {
    plan: &'a Plan,
    stub: Option<&'a Stub>,
    observers: Observers<'a>,
    lanes: Lanes,
    ids: Ids,
    spread: Duration,
    sent: u64,
    /// Operations of races, with what was counted for them: effects that come after the round would be missed otherwise.
    raced: Vec<Values>,
}

/// One request to be sent.
struct Order {
    step: Step,
    variant: usize,
    request: Filled,
    base: usize,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(
        plan: &'a Plan,
        stub: Option<&'a Stub>,
        observers: Observers<'a>,
        origin: Instant,
        seed: u64,
    ) -> Self {
        let lanes = Lanes::new(plan.bases.clone(), origin, plan.concurrency.timeout);
        let spread = plan.concurrency.spread.unwrap_or(SPREAD_MIN);
        Self { plan, stub, observers, lanes, ids: Ids::new(seed), spread, sent: 0, raced: Vec::new() }
    }

    /// One request alone takes this long; late requests are spread accordingly, if the plan says nothing else.
    pub(crate) fn set_pace(&mut self, alone: Duration) {
        self.spread =
            self.plan.concurrency.spread.unwrap_or_else(|| (alone * SPREAD).clamp(SPREAD_MIN, SPREAD_MAX));
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn stub_calls(&self) -> usize {
        self.stub.map_or(0, |stub| stub.calls("").len())
    }

    fn filled(
        &self,
        operation: &Operation,
        values: &Values,
        keyed: Keyed,
        account: Option<&[HeaderLine]>,
    ) -> Filled {
        fill(operation, self.plan, values, keyed, account, &self.ids.tag())
    }

    fn plain(&self, values: &Values) -> Filled {
        self.filled(&self.plan.request, values, Keyed::Yes, None)
    }

    /// Requests in turn go to the bases in turn: a key that was used at one instance is known at the others.
    fn base(&self, at: usize) -> usize {
        at % self.lanes.bases().max(1)
    }

    fn order(&self, step: Step, variant: usize, at: usize, request: Filled) -> Order {
        Order { step, variant, request, base: self.base(at) }
    }

    fn exchange(&mut self, order: Order, timed: Timed) -> Exchange {
        self.sent += 1;
        let told = told(&timed.outcome, &self.plan.answers);
        Exchange {
            step: order.step,
            variant: order.variant,
            base: order.base,
            request: order.request,
            timed,
            told,
        }
    }

    fn one(&mut self, order: Order) -> Exchange {
        let timed = self.lanes.one(Shot { base: order.base, request: order.request.clone() });
        self.exchange(order, timed)
    }

    fn volley(
        &mut self,
        orders: Vec<Order>,
        shape: Shape,
        spread: Duration,
        watch: &mut dyn FnMut(usize),
    ) -> (Vec<Exchange>, bool) {
        let shots =
            orders.iter().map(|order| Shot { base: order.base, request: order.request.clone() }).collect();
        let Volley { timed, early } = match shape {
            Shape::Late | Shape::InTurn => self.lanes.late(shots, spread, watch),
            Shape::AtOnce => self.lanes.at_once(shots, self.plan.concurrency.settle, watch),
            Shape::OnePacket => self.lanes.one_packet(&shots, self.plan.concurrency.settle),
        };
        let exchanges =
            orders.into_iter().zip(timed).map(|(order, timed)| self.exchange(order, timed)).collect();
        (exchanges, early == 0)
    }

    /// What was counted for these operations, when nothing was added any more.
    fn seen(
        &mut self,
        arm: Arm,
        operations: &[Values],
        baseline: &Baseline,
        expected: u64,
    ) -> Result<Vec<Seen>, Blind> {
        // Late effects of races are counted when all of them are over; a total, and every other arm, has to be right now.
        let patient = arm != Arm::A1 || !self.observers.all_count_one();
        let enough = |seen: &[Seen]| {
            seen.iter().any(|it| it.total > expected)
                || (!patient && seen.iter().all(|it| it.total == expected))
        };
        self.observers.settled(operations, baseline, &enough)
    }

    fn round(
        &mut self,
        arm: Arm,
        (shape, number): (Shape, u32),
        (exchanges, in_hand): (Vec<Exchange>, bool),
        operations: &[Values],
        (baseline, expected): (&Baseline, u64),
    ) -> Result<Round, Blind> {
        let seen = self.seen(arm, operations, baseline, expected)?;
        let nonces = operations.iter().map(|values| values.nonce.clone()).collect();
        Ok(Round { arm, shape, number, exchanges, nonces, seen, in_hand, held: None, effect_at: None })
    }

    /// Requests with keys of their own, one after the other.
    pub(crate) fn alone(&mut self, count: u32) -> Result<Round, Blind> {
        let baseline = self.observers.baseline()?;
        let operations: Vec<Values> = (0..count).map(|_| self.ids.fresh()).collect();
        self.never_sent(&operations, &baseline)?;
        let mut exchanges = Vec::new();
        for (at, values) in operations.iter().enumerate() {
            let order = self.order(Step::First, at, at, self.plain(values));
            exchanges.push(self.one(order));
        }
        self.round(
            Arm::A0,
            (Shape::InTurn, 1),
            (exchanges, false),
            &operations,
            (&baseline, u64::from(count)),
        )
    }

    /// Operations that were never sent have no effects: else their keys are known too, and every answer would be a replay.
    fn never_sent(&mut self, operations: &[Values], baseline: &Baseline) -> Result<(), Blind> {
        let own = |observer: &str| {
            self.plan.observers.iter().any(|it| it.name == observer && it.source.counts_one())
        };
        let seen = self.observers.read(operations, baseline)?;
        match seen.into_iter().find(|seen| seen.total > 0 && own(&seen.observer)) {
            None => Ok(()),
            Some(Seen { observer, total, .. }) => Err(Blind {
                observer,
                what: format!(
                    "it has {total} effects of operations that were not sent yet: this --seed was used here before; leave it out"
                ),
            }),
        }
    }

    /// A0: requests with keys of their own, at once; the first call to the stub is held.
    pub(crate) fn control(&mut self) -> Result<Round, Blind> {
        let baseline = self.observers.baseline()?;
        let count = self.plan.concurrency.requests;
        let operations: Vec<Values> = (0..count).map(|_| self.ids.fresh()).collect();
        let orders: Vec<Order> = operations
            .iter()
            .enumerate()
            .map(|(at, values)| self.order(Step::Race, at, at, self.plain(values)))
            .collect();
        let stub = self.stub.filter(|_| super::holds(self.plan));
        if let Some(stub) = stub {
            stub.hold("");
        }
        let exchanges = self.volley(orders, Shape::AtOnce, Duration::ZERO, &mut |_| {
            // A second call beside the held one is all that it is held for.
            if let Some(stub) = stub.filter(|stub| stub.seen_while_holding() > 1) {
                stub.release();
            }
        });
        let held = stub.map(Stub::seen_while_holding);
        self.release();
        let mut round =
            self.round(Arm::A0, (Shape::AtOnce, 1), exchanges, &operations, (&baseline, count as u64))?;
        round.held = held;
        Ok(round)
    }

    /// A1: one key at once.
    pub(crate) fn race(&mut self, number: u32) -> Result<Round, Blind> {
        self.one_key(number, Shape::AtOnce, self.spread, false)
    }

    /// A1: one key, late.
    pub(crate) fn late_race(&mut self, number: u32) -> Result<Round, Blind> {
        self.one_key(number, Shape::Late, self.spread, false)
    }

    /// A1: one key in one packet.
    pub(crate) fn packet_race(&mut self, number: u32) -> Result<Round, Blind> {
        self.one_key(number, Shape::OnePacket, Duration::ZERO, false)
    }

    /// A1 while the stub holds the first call: at once and, over the time of the hold, late.
    pub(crate) fn held_race(&mut self, number: u32) -> Result<Round, Blind> {
        let hold = self.plan.stub.as_ref().map_or(SPREAD_MAX, |stub| stub.hold_at_most);
        let shape = if number % 2 == 1 { Shape::AtOnce } else { Shape::Late };
        self.one_key(number, shape, hold / 2, true)
    }

    fn one_key(&mut self, number: u32, shape: Shape, spread: Duration, hold: bool) -> Result<Round, Blind> {
        let baseline = self.observers.baseline()?;
        let values = self.ids.fresh();
        let count = self.plan.concurrency.requests;
        let request = self.plain(&values);
        let orders: Vec<Order> =
            (0..count).map(|at| self.order(Step::Race, 0, at, request.clone())).collect();
        let stub = self.stub.filter(|_| hold);
        if let Some(stub) = stub {
            stub.hold(&self.marker(&values));
        }
        let (mut exchanges, in_hand) = self.volley(orders, shape, spread, &mut |ended| {
            // Everybody else was told something, or a second call has come, which is what was looked for.
            if let Some(stub) = stub.filter(|stub| ended + 1 >= count || stub.seen_while_holding() > 1) {
                stub.release();
            }
        });
        let held = stub.map(Stub::seen_while_holding);
        self.release();
        let after = self.order(Step::After, 0, 1, request);
        exchanges.push(self.one(after));
        let operations = [values.clone()];
        let mut round =
            self.round(Arm::A1, (shape, number), (exchanges, in_hand), &operations, (&baseline, 1))?;
        round.held = held;
        round.effect_at = self.effect_at(&values);
        if self.raced.len() < LATE_MAX {
            self.raced.push(values);
        }
        Ok(round)
    }

    /// What a call to the stub has in it if it is about this operation; empty where the plan counts all calls.
    fn marker(&self, values: &Values) -> String {
        let contains = self.plan.observers.iter().find_map(|observer| match &observer.source {
            Source::Stub { contains } => Some(contains.fill(values)),
            _ => None,
        });
        contains.unwrap_or_default()
    }

    /// When the stub was first called for an operation, where calls tell operations apart.
    fn effect_at(&self, values: &Values) -> Option<Duration> {
        let marker = self.marker(values);
        let calls = self.stub.filter(|_| !marker.is_empty())?.calls(&marker);
        calls.first().map(|call| call.at)
    }

    fn release(&self) {
        if let Some(stub) = self.stub {
            stub.release();
        }
    }

    /// Effects of races that came after their round.
    pub(crate) fn late_effects(&mut self) -> Result<Vec<String>, Blind> {
        if !self.observers.all_count_one() || self.raced.is_empty() {
            return Ok(Vec::new());
        }
        let (raced, baseline) = (std::mem::take(&mut self.raced), self.observers.baseline()?);
        let seen = self.observers.read(&raced, &baseline)?;
        let late = |seen: &Seen| {
            let over = seen.each.iter().flatten().filter(|&&count| count > 1).count();
            (over > 0).then(|| {
                format!(
                    "observer `{}` counted more than one effect for {over} keys when the races were over",
                    seen.observer
                )
            })
        };
        Ok(seen.iter().filter_map(late).collect())
    }

    /// A3: the same key with another body, while the first request runs and afterwards.
    pub(crate) fn other_body(&mut self, number: u32) -> Result<Round, Blind> {
        let baseline = self.observers.baseline()?;
        let values = self.ids.fresh();
        let other = Values { key: values.key.clone(), ..self.ids.fresh() };
        let (own, foreign) = (self.plain(&values), self.plain(&other));
        let orders = vec![
            self.order(Step::Race, 0, 0, own),
            self.order(Step::Race, 1, 1, foreign.clone()),
            self.order(Step::Race, 1, 2, foreign.clone()),
        ];
        let (mut exchanges, _) = self.volley(orders, Shape::Late, self.spread / 2, &mut |_| ());
        let after = self.order(Step::After, 1, 0, foreign);
        exchanges.push(self.one(after));
        self.round(Arm::A3, (Shape::Late, number), (exchanges, false), &[values, other], (&baseline, 1))
    }

    /// A4: the same key, sent by another account.
    pub(crate) fn other_account(&mut self, number: u32) -> Result<Round, Blind> {
        let first = self.ids.fresh();
        let second = Values { key: first.key.clone(), ..self.ids.fresh() };
        let theirs =
            self.filled(&self.plan.request, &second, Keyed::Yes, self.plan.second_account.as_deref());
        self.two(Arm::A4, number, (self.plain(&first), theirs), vec![first, second], 2, 1)
    }

    /// A5: the same key at another operation.
    pub(crate) fn other_operation(&mut self, number: u32) -> Result<Round, Blind> {
        let first = self.ids.fresh();
        let second = Values { key: first.key.clone(), ..self.ids.fresh() };
        let operation = self.plan.other_operation.as_ref().unwrap_or(&self.plan.request);
        let other = self.filled(operation, &second, Keyed::Yes, None);
        self.two(Arm::A5, number, (self.plain(&first), other), vec![first], 1, 1)
    }

    /// A6: no key.
    pub(crate) fn keyless(&mut self, number: u32) -> Result<Round, Blind> {
        let baseline = self.observers.baseline()?;
        let values = self.ids.fresh();
        let request = self.filled(&self.plan.request, &values, Keyed::No, None);
        let order = self.order(Step::First, 0, 0, request);
        let exchange = self.one(order);
        let expected = u64::from(self.plan.key.required == Some(false));
        self.round(
            Arm::A6,
            (Shape::InTurn, number),
            (vec![exchange], false),
            &[values],
            (&baseline, expected),
        )
    }

    /// A7: the same twice.
    pub(crate) fn twice(&mut self, number: u32) -> Result<Round, Blind> {
        let values = self.ids.fresh();
        let request = self.plain(&values);
        self.two(Arm::A7, number, (request.clone(), request), vec![values], 1, 0)
    }

    /// A8: another key for the same body.
    pub(crate) fn other_key(&mut self, number: u32) -> Result<Round, Blind> {
        let first = self.ids.fresh();
        let second = Values { key: self.ids.fresh().key, ..first.clone() };
        let requests = (self.plain(&first), self.plain(&second));
        self.two(Arm::A8, number, requests, vec![first, second], 2, 1)
    }

    /// A9: one key, two bodies, at once.
    pub(crate) fn mixed(&mut self, number: u32) -> Result<Round, Blind> {
        let baseline = self.observers.baseline()?;
        let values = self.ids.fresh();
        let other = Values { key: values.key.clone(), ..self.ids.fresh() };
        let requests = [self.plain(&values), self.plain(&other)];
        let count = self.plan.concurrency.requests;
        let orders: Vec<Order> = (0..count)
            .filter_map(|at| Some(self.order(Step::Race, at % 2, at / 2, requests.get(at % 2)?.clone())))
            .collect();
        let (mut exchanges, in_hand) = self.volley(orders, Shape::AtOnce, Duration::ZERO, &mut |_| ());
        // Who asks again afterwards asks for what ran; if nobody was told, for the first.
        let ran =
            exchanges.iter().find(|it| it.told == crate::told::Told::Success).map_or(0, |it| it.variant);
        if let Some(request) = requests.get(ran) {
            let after = self.order(Step::After, ran, 0, request.clone());
            exchanges.push(self.one(after));
        }
        self.round(Arm::A9, (Shape::AtOnce, number), (exchanges, in_hand), &[values, other], (&baseline, 1))
    }

    /// A10: what fails, twice.
    pub(crate) fn failing(&mut self, number: u32) -> Result<Round, Blind> {
        let values = self.ids.fresh();
        let operation = self.plan.failing.as_ref().unwrap_or(&self.plan.request);
        let request = self.filled(operation, &values, Keyed::Yes, None);
        self.two(Arm::A10, number, (request.clone(), request), vec![values], 1, 0)
    }

    /// Two requests, one after the other.
    fn two(
        &mut self,
        arm: Arm,
        number: u32,
        (first, second): (Filled, Filled),
        operations: Vec<Values>,
        expected: u64,
        variant: usize,
    ) -> Result<Round, Blind> {
        let baseline = self.observers.baseline()?;
        let first = self.order(Step::First, 0, 0, first);
        let second = self.order(Step::After, variant, 1, second);
        let exchanges = vec![self.one(first), self.one(second)];
        self.round(arm, (Shape::InTurn, number), (exchanges, false), &operations, (&baseline, expected))
    }
}
