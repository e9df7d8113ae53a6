//! Calls one after the other, each attempt of which fails by chance (V4): what a budget makes of a failure rate.
//!
//! The drained bucket is the point of it. A bucket pays for every retry out of what successes bring back, so above some
//! rate of failures it drains, and the retries that are left are rationed: at 100% there are none.

use std::time::Duration;

use retrysafe_core::retry::{Budget, Call, Deadline, Idempotence, Mono, Request, Seen, Step, Why};

use super::{
    cases::{Rules, Sender},
    chance::Chance,
};

/// What many calls at one failure rate came to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Share {
    /// Attempts beyond the first, for each call.
    pub(super) retries_per_call: f64,
    /// Calls that succeeded.
    pub(super) succeeded: f64,
}

/// Runs `calls` calls, one every `every`. What a call waits before its retries is not added: the next one begins in time.
pub(super) fn run(
    sender: &Sender,
    rules: Rules,
    failures: f64,
    calls: u32,
    every: Duration,
    seed: u64,
) -> Share {
    let budget = Budget::new(rules.process);
    let (mut luck, mut chance) = (Chance::stream(seed, 0), Chance::stream(seed, 1));
    let (mut attempts, mut succeeded) = (0_u64, 0_u32);
    for place in 0..calls {
        let start = Mono::START.plus(every * place);
        let request = Request::new(Idempotence::Keyed);
        let (mut call, mut step) = Call::open(&sender.policy, &budget, request, Deadline::UNSET, start);
        loop {
            step = match step {
                Step::Send { .. } => {
                    attempts += 1;
                    let seen = Seen::status(if luck.hits(failures) { 503 } else { 200 });
                    call.observe(&seen, chance.entropy(), start)
                }
                Step::Sleep(pause) => call.woke(start.plus(pause.delay)),
                Step::Poll { .. } => break,
                Step::Finish(why) => {
                    succeeded += u32::from(why == Why::Done);
                    break;
                }
            };
        }
    }
    let calls = f64::from(calls.max(1));
    Share { retries_per_call: attempts as f64 / calls - 1.0, succeeded: f64::from(succeeded) / calls }
}

/// The failure rate above which a bucket drains, with three attempts and a retry that costs `cost`: where the tokens that
/// calls bring back at their first attempt, `1 - f`, are those that failed retries take, `cost * f^2 * (1 + f)` (V4).
pub(super) fn drains_above(cost: u32) -> f64 {
    const STEPS: u32 = 60;
    let surplus = |rate: f64| (1.0 - rate) - f64::from(cost) * rate * rate * (1.0 + rate);
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..STEPS {
        let middle = f64::midpoint(low, high);
        if surplus(middle) > 0.0 { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::*;

    fn retries(budget: &str, failures: f64) -> f64 {
        let sender = cases::sender("aws-2.1").unwrap();
        run(&sender, cases::rules(budget).unwrap(), failures, 30_000, Duration::from_millis(10), 1)
            .retries_per_call
    }

    /// V4, with the tolerance it states.
    #[test]
    fn v4_the_bucket_rations_retries() {
        let rows = [(0.2, 0.241, 0.241), (0.3, 0.391, 0.166), (0.5, 0.2, 0.072), (1.0, 0.0, 0.0)];
        for (failures, cost_5, cost_14) in rows {
            for (budget, expected) in [("bucket-5", cost_5), ("bucket", cost_14)] {
                let found = retries(budget, failures);
                assert!((found - expected).abs() <= 0.01, "{budget} at {failures}: {found}, not {expected}");
            }
        }
        assert!((retries("none", 1.0) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn v4_where_it_drains() {
        for (cost, rate) in [(14, 0.215), (10, 0.246), (5, 0.321)] {
            assert!((drains_above(cost) - rate).abs() < 0.001, "{cost}: {}", drains_above(cost));
        }
    }
}
