//! Hedged calls (V5, I-33, I-34), and the gate that they pass like retries.

use std::{num::NonZeroU32, time::Duration};

use retrysafe_core::retry::{
    budget::{Bucket, Rules},
    *,
};
use serde_json::Value;

use crate::{play, vectors};

fn word(why: &Why) -> &'static str {
    match why {
        Why::Done => "done",
        Why::OutcomeUnknown(_) => "unknown",
        Why::Stopped(Stop::Budget(_)) => "budget",
        Why::Stopped(Stop::Attempts { .. }) => "attempts",
        Why::Stopped(Stop::RetryAfter { .. }) => "retry_after",
        Why::Stopped(_) => "stopped",
    }
}

fn follows(step: &HedgeStep, expect: &Value, at: &str) {
    match step {
        HedgeStep::Send { attempt, .. } => assert_eq!(expect["send"], *attempt, "{at}"),
        HedgeStep::Wait { until } => {
            assert_eq!(expect["wait"], until.since(Mono::START).as_millis() as u64, "{at}");
        }
        HedgeStep::Finish(why) => assert_eq!(expect["finish"], word(why), "{at}: {why}"),
    }
}

#[test]
fn v5_hedges_start_and_stop_as_they_should() {
    let file = vectors("hedges.json");
    for case in file["cases"].as_array().unwrap() {
        let number = |name: &str, default| case[name].as_u64().map_or(default, |number| number as u32);
        let attempts = NonZeroU32::new(number("attempts", 4)).unwrap();
        let policy = RetryPolicy { attempts, ..RetryPolicy::default() };
        let bucket = Bucket { capacity: number("capacity", 500), ..Bucket::default() };
        let budget = Budget::new(Rules { bucket: Some(bucket), ..Rules::NONE });
        let request = Request::new(play::idempotence(&case["idempotence"]));
        let hedging = HedgePolicy { delay: Duration::from_millis(500) };
        let mut hedge = None;
        for event in case["play"].as_array().unwrap() {
            let at = format!("{}: {event}", case["name"]);
            let now = Mono::from_elapsed(play::ms(&event[0]));
            let step = match event[1].as_str() {
                Some("open") => {
                    let (opened, step) =
                        Hedge::open(&policy, hedging, &budget, request, Deadline::UNSET, now);
                    hedge = Some(opened);
                    step
                }
                Some("next") => hedge.as_mut().unwrap().next(now),
                Some(other) => panic!("{other}"),
                None => hedge.as_mut().unwrap().observe(&play::seen(&event[1]), now),
            };
            follows(&step, &event[2], &at);
        }
        drop(hedge);
        let reading = budget.reading(Mono::START);
        assert_eq!(
            (reading.calls, reading.retries, reading.bucket.unwrap().held),
            (0, 0, 0),
            "{}",
            case["name"]
        );
    }
}

#[test]
fn a_hedged_call_that_is_cancelled_may_have_happened() {
    let open = |idempotence| {
        let (policy, budget) = (RetryPolicy::default(), Budget::default());
        let hedging = HedgePolicy { delay: Duration::from_millis(500) };
        Hedge::open(&policy, hedging, &budget, Request::new(idempotence), Deadline::UNSET, Mono::START).0
    };
    assert!(matches!(open(Idempotence::Unsafe).abandon(), Why::OutcomeUnknown(_)));
    assert_eq!(open(Idempotence::Safe).abandon(), Why::Stopped(Stop::Cancelled));
    let mut done = open(Idempotence::Keyed);
    done.observe(&Seen::status(200), Mono::START);
    assert_eq!(done.abandon(), Why::Done);
}
