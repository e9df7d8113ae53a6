//! The numeric vectors: hints, dates, deadlines on the wire, backoff, budgets, the conformance scenarios of GCS.

use std::time::Duration;

use retrysafe_core::{
    retry::{
        after::{self, Hint},
        backoff::{Backoff, Jitter, Pace},
        budget::{Bucket, Concurrency, Ratio, Rules, Throttle},
        deadline::wire,
        *,
    },
    time::Wall,
};
use serde_json::Value;

use crate::{play, play::ms, vectors};

fn rows<'a>(file: &'a Value, name: &str) -> &'a [Value] {
    let rows = file[name].as_array().unwrap();
    assert!(!rows.is_empty(), "{name}");
    rows
}

fn number<T: TryFrom<u64>>(value: &Value) -> Option<T> {
    value.as_u64().and_then(|number| T::try_from(number).ok())
}

#[test]
fn v11_hints_are_read_and_never_fail() {
    let file = vectors("hints.json");
    let now = Wall::from_unix_ms(file["now_unix_ms"].as_i64().unwrap());
    for case in rows(&file, "cases") {
        let lines = case["fields"].as_array().unwrap().iter();
        let fields = lines.map(|line| (line[0].as_str().unwrap(), line[1].as_str().unwrap().as_bytes()));
        let found = after::read(number(&case["status"]).unwrap_or(503), fields, || now);
        let expected = if case["never"] == true {
            Hint::Never
        } else if !case["pushback_ms"].is_null() {
            Hint::Pushback(ms(&case["pushback_ms"]))
        } else if case["wait_ms"] == "max" {
            Hint::Wait(Duration::MAX)
        } else if case["wait_ms"].is_null() {
            Hint::None
        } else {
            Hint::Wait(ms(&case["wait_ms"]))
        };
        assert_eq!(found, expected, "{case}");
    }
}

#[test]
fn rfc_9110_retry_after_in_all_its_forms() {
    let file = vectors("retry-after.json");
    let now = Wall::from_unix_ms(784_111_747_000);
    assert_eq!(file["now"], "1994-11-06T08:49:07Z");
    for case in rows(&file, "cases") {
        let value = case["v"].as_str().unwrap();
        let found = after::read(503, [("retry-after", value.as_bytes())], || now);
        match &case["delay_s"] {
            Value::Null => assert_eq!(found, Hint::None, "{value:?}"),
            Value::String(verdict) => given_up(found, verdict, value),
            seconds => {
                assert_eq!(found, Hint::Wait(Duration::from_secs(seconds.as_u64().unwrap())), "{value:?}")
            }
        }
    }
}

/// "cap", "cap-or-give-up": we surface it at once.
fn given_up(hint: Hint, verdict: &str, value: &str) {
    assert!(["cap", "cap-or-give-up"].contains(&verdict), "{verdict}");
    let request = Request::new(Idempotence::Safe);
    let (mut call, _) =
        Call::open(&RetryPolicy::default(), &Budget::default(), request, Deadline::UNSET, Mono::START);
    let seen = Seen::answered(Answer { hint, ..Answer::new(503) });
    let step = call.observe(&seen, u64::MAX, Mono::START);
    assert!(matches!(step, Step::Finish(Why::Stopped(Stop::RetryAfter { .. }))), "{value:?}: {step:?}");
}

/// "honour" on the answers that are retried, and on no other.
#[test]
fn rfc_9110_retry_after_counts_where_a_retry_would_happen() {
    let hint = Hint::Wait(Duration::from_secs(7));
    let observe = |answer: Answer| {
        let request = Request::new(Idempotence::Keyed);
        let policy =
            RetryPolicy { statuses: [425, 429, 500, 503].into_iter().collect(), ..RetryPolicy::default() };
        let (mut call, _) = Call::open(&policy, &Budget::default(), request, Deadline::UNSET, Mono::START);
        call.observe(&Seen::answered(answer), 0, Mono::START)
    };
    let in_flight = Answer { code: Some(retrysafe_core::codes::Code::KeyInFlight), hint, ..Answer::new(409) };
    let retried = [425, 429, 500, 503].map(|status| Answer { hint, ..Answer::new(status) });
    for answer in retried.into_iter().chain([in_flight]) {
        let Step::Sleep(pause) = observe(answer.clone()) else { panic!("{answer:?}") };
        assert_eq!(pause.delay, Duration::from_secs(7), "{answer:?}");
    }
    for status in [200, 301, 307] {
        assert_eq!(observe(Answer { hint, ..Answer::new(status) }), Step::Finish(Why::Done));
    }
}

#[test]
fn a_two_digit_year_more_than_fifty_years_ahead_is_past() {
    let now = Wall::from_unix_ms(1_780_000_000_000); // 2026
    let year = |date: &str| {
        let at = after::date::parse(date, now).unwrap();
        1970 + at.unix_ms() / 31_556_952_000
    };
    assert_eq!(year("Sunday, 06-Nov-94 08:49:37 GMT"), 1994);
    assert_eq!(year("Friday, 06-Nov-76 08:49:37 GMT"), 2076);
    assert_eq!(year("Sunday, 06-Nov-77 08:49:37 GMT"), 1977);
    for odd in
        ["Sun, 06-Nov-94 08:49:37 GMT", "Sunday, 06 Nov 1994 08:49:37 GMT", "Monday, 06-Nov-94 08:49:37 GMT"]
    {
        assert_eq!(after::date::parse(odd, now), None, "{odd}");
    }
}

#[test]
fn v12_v14_deadlines_travel_as_time_left() {
    let file = vectors("timeouts.json");
    for case in rows(&file, "grpc_parse") {
        let expected = case["nanos"].as_u64().map(Duration::from_nanos);
        assert_eq!(wire::parse_grpc(case["value"].as_str().unwrap()), expected, "{case}");
    }
    for case in rows(&file, "grpc_write") {
        let left = Duration::from_nanos(case["nanos"].as_u64().unwrap());
        assert_eq!(wire::grpc(left), case["value"].as_str().unwrap(), "{case}");
    }
    for case in rows(&file, "milliseconds_parse") {
        let expected = case["ms"].as_u64().map(Duration::from_millis);
        assert_eq!(wire::parse_milliseconds(case["value"].as_str().unwrap()), expected, "{case}");
    }
    for case in rows(&file, "milliseconds_write") {
        let left = Duration::from_nanos(case["nanos"].as_u64().unwrap());
        assert_eq!(wire::milliseconds(left), case["value"].as_str().unwrap(), "{case}");
    }
    assert_eq!(wire::grpc(Duration::MAX), "99999999H");
    for case in rows(&file, "headers") {
        let (name, value) = (case["name"].as_str().unwrap(), case["value"].as_str().unwrap());
        assert_eq!(wire::write(name, ms(&case["left_ms"])), value, "{case}");
        assert_eq!(wire::parse(name, value), Some(ms(&case["left_ms"])), "{case}");
    }
}

fn backoff(case: &Value, jitter: Jitter) -> Backoff {
    Backoff { jitter, base: ms(&case["base_ms"]), cap: ms(&case["cap_ms"]), ..Backoff::default() }
}

#[test]
fn v1_v2_bounds_double_up_to_the_cap() {
    let file = vectors("backoff.json");
    for case in rows(&file, "bounds_ms") {
        let backoff = backoff(case, Jitter::Full);
        for (retry, bound) in (0..).zip(rows(case, "bounds")) {
            assert_eq!(backoff.bound(Pace::Transient, retry), ms(bound), "{case}, retry {retry}");
            let drawn = |entropy| backoff.delay(Pace::Transient, retry, Duration::ZERO, entropy);
            assert_eq!((drawn(0), drawn(u64::MAX)), (Duration::ZERO, ms(bound)));
            assert_eq!(drawn(u64::MAX / 2), ms(bound) / 2, "uniform");
        }
    }
}

#[test]
fn i39_no_retry_number_overflows() {
    let file = vectors("backoff.json");
    let case = &file["far_retries"];
    let backoff = backoff(case, Jitter::Full);
    for retry in rows(case, "retries") {
        assert_eq!(backoff.bound(Pace::Transient, number(retry).unwrap()), ms(&case["bound_ms"]), "{retry}");
    }
    let uncapped = Backoff { cap: Duration::MAX, ..backoff };
    let bounds = (0..2_000).map(|retry| uncapped.bound(Pace::Transient, retry));
    assert!(bounds.is_sorted(), "a bound never comes round to something short");
}

#[test]
fn decorrelated_jitter_is_capped_before_it_is_drawn() {
    for case in rows(&vectors("backoff.json"), "decorrelated_ms") {
        let backoff = backoff(case, Jitter::Decorrelated);
        let drawn = |entropy| backoff.delay(Pace::Transient, 5, ms(&case["previous"]), entropy);
        assert_eq!((drawn(0), drawn(u64::MAX)), (ms(&case["low"]), ms(&case["high"])), "{case}");
    }
}

/// M7: capped after the jitter, 99% of the late sleeps are the cap, and the clients come back together.
#[test]
fn m7_hardly_a_sleep_is_the_cap() {
    let mut entropy = crate::Entropy::seeded(7);
    for jitter in [Jitter::Full, Jitter::Decorrelated] {
        let backoff = Backoff {
            jitter,
            base: Duration::from_secs(1),
            cap: Duration::from_secs(10),
            ..Backoff::default()
        };
        for retry in 5..9 {
            let draws =
                (0..10_000).map(|_| backoff.delay(Pace::Transient, retry, backoff.cap, entropy.next()));
            let at_cap = draws.filter(|delay| *delay == backoff.cap).count();
            assert!(at_cap < 100, "{jitter:?}, retry {retry}: {at_cap} of 10000");
        }
    }
}

fn balance(budget: &Budget) -> i64 {
    budget.reading(Mono::START).bucket.unwrap().balance
}

#[test]
fn v1_v2_v4_the_bucket() {
    for case in rows(&vectors("budgets.json"), "bucket") {
        let default = Bucket::default();
        let bucket = Bucket {
            capacity: number(&case["capacity"]).unwrap_or(default.capacity),
            transient_cost: number(&case["transient_cost"]).unwrap_or(default.transient_cost),
            ..default
        };
        let budget = Budget::new(Rules { bucket: Some(bucket), ..Rules::NONE });
        let pace = if case["pace"] == "throttled" { Pace::Throttled } else { Pace::Transient };
        let mut entry = budget.enter(Mono::START);
        for _ in 0..number::<u32>(&case["repeat"]).unwrap_or(0) {
            let mut permit = entry.take(pace, Mono::START).unwrap();
            permit.sent();
        }
        let mut permits = Vec::new();
        for step in rows(case, "steps") {
            match step[0].as_str().unwrap() {
                "take" => {
                    let mut permit = entry.take(pace, Mono::START).unwrap();
                    permit.sent();
                    permits.push(permit);
                }
                "succeed" => entry.succeeded(permits.pop()),
                "spend" => permits.pop().unwrap().spend(),
                "first" => entry.succeeded(None),
                "denied" => assert!(entry.take(pace, Mono::START).is_err(), "{case}"),
                other => panic!("{other}"),
            }
            assert_eq!(balance(&budget), step[1].as_i64().unwrap(), "{case}: {step}");
        }
    }
}

#[test]
fn v5_grpc_throttle() {
    for case in rows(&vectors("budgets.json"), "throttle") {
        let throttle = Throttle {
            tokens_max: number(&case["tokens_max"]).unwrap(),
            ratio_milli: number(&case["ratio_milli"]).unwrap(),
        };
        let budget = Budget::new(Rules { throttle: Some(throttle), ..Rules::NONE });
        let mut entry = budget.enter(Mono::START);
        (0..number::<u32>(&case["fails_first"]).unwrap_or(0)).for_each(|_| entry.failed());
        (0..number::<u32>(&case["succeeds_then"]).unwrap_or(0)).for_each(|_| entry.succeeded(None));
        for step in rows(case, "steps") {
            if step[0] == "fail" {
                entry.failed()
            } else {
                entry.succeeded(None)
            }
            let found = budget.reading(Mono::START).throttle.unwrap();
            assert_eq!(u64::from(found), step[1].as_u64().unwrap(), "{case}");
            assert_eq!(entry.take(Pace::Transient, Mono::START).is_ok(), step[2] == true, "{case}");
        }
    }
}

/// A pushback that says "do not retry" counts as a failure too, and what was never sent does not.
#[test]
fn v5_what_counts_as_a_failure() {
    let count = |seen: &Seen| {
        let budget = Budget::new(Rules { throttle: Some(Throttle::default()), ..Rules::NONE });
        let request = Request::new(Idempotence::Keyed);
        let (mut call, _) =
            Call::open(&RetryPolicy::default(), &budget, request, Deadline::UNSET, Mono::START);
        call.observe(seen, 0, Mono::START);
        budget.reading(Mono::START).throttle.unwrap()
    };
    assert_eq!(count(&Seen::status(503)), 9_000);
    assert_eq!(count(&Seen::answered(Answer { hint: Hint::Never, ..Answer::new(503) })), 9_000);
    assert_eq!(count(&Seen::not_sent(NotSent::RefusedStream)), 10_000, "a transparent retry");
    assert_eq!(count(&Seen::status(404)), 10_000);
    assert_eq!(count(&Seen::status(200)), 10_000);
}

#[test]
fn v7_envoy_counts_calls_under_way() {
    for case in rows(&vectors("budgets.json"), "concurrency") {
        let calls = number::<u32>(&case["calls"]).unwrap();
        let allowed = number::<usize>(&case["allowed"]).unwrap();
        assert_eq!(Concurrency::default().allowed(calls) as usize, allowed, "{case}");
        if calls == 0 {
            continue;
        }
        let budget = Budget::new(Rules { concurrency: Some(Concurrency::default()), ..Rules::NONE });
        let mut entries: Vec<_> = (0..calls).map(|_| budget.enter(Mono::START)).collect();
        let permits: Vec<_> =
            (0..).map_while(|_| entries[0].take(Pace::Transient, Mono::START).ok()).collect();
        assert_eq!(permits.len(), allowed, "{case}");
        // I-31: a retry that ends makes room for one, and a call that sleeps is counted like any other.
        drop(permits);
        assert!(entries[0].take(Pace::Transient, Mono::START).is_ok());
    }
}

/// I-37: a budget is shared by the calls to one target, and by no others.
#[test]
fn i37_another_target_has_its_own_budget() {
    let rules = Rules { bucket: Some(Bucket { capacity: 14, ..Bucket::default() }), ..Rules::NONE };
    let (one, other) = (Budget::new(rules), Budget::new(rules));
    let shared = one.clone();
    one.enter(Mono::START).take(Pace::Transient, Mono::START).unwrap().spend();
    assert!(shared.enter(Mono::START).take(Pace::Transient, Mono::START).is_err());
    assert!(other.enter(Mono::START).take(Pace::Transient, Mono::START).is_ok());
}

#[test]
fn i38_a_refusal_names_the_budget_its_balance_and_how_to_size_it() {
    let denied = |rules: Rules| {
        let budget = Budget::new(rules);
        let mut entry = budget.enter(Mono::START);
        (0..40).for_each(|_| entry.failed());
        std::iter::repeat_with(|| entry.take(Pace::Transient, Mono::START).map(Permit::spend))
            .find_map(Result::err)
            .unwrap()
            .to_string()
    };
    let bucket = Bucket { capacity: 20, ..Bucket::default() };
    assert!(
        denied(Rules { bucket: Some(bucket), ..Rules::NONE })
            .contains("6 of 20 tokens left, a retry costs 14")
    );
    let ratio = denied(Rules { ratio: Some(Ratio { reserve: 1, ..Ratio::default() }), ..Rules::NONE });
    assert!(ratio.contains("0.20 of 1.20 retries left"), "{ratio}");
    let throttle = denied(Rules { throttle: Some(Throttle::default()), ..Rules::NONE });
    assert!(throttle.contains("0.000 of 10.000 tokens"), "{throttle}");
}

/// V15 maps onto the classes of outcomes in the client; V16 judges them.
#[test]
fn v16_the_scenarios_of_gcs_have_the_right_verdict_on_every_row() {
    let file = vectors("gcs-scenarios.json");
    let mut played = 0;
    for scenario in rows(&file, "scenarios") {
        for instructions in rows(scenario, "instructions") {
            let policy = RetryPolicy {
                statuses: rows(&file, "statuses").iter().filter_map(number).collect(),
                ..RetryPolicy::default()
            };
            let request = Request::new(play::idempotence(&scenario["idempotence"]));
            let (mut call, mut step) =
                Call::open(&policy, &Budget::default(), request, Deadline::UNSET, Mono::START);
            let mut sent = 0;
            let mut now = Mono::START;
            let why = loop {
                step = match step {
                    Step::Send { .. } => {
                        let met = instructions.as_array().unwrap().get(sent).map(|one| one.as_str().unwrap());
                        sent += 1;
                        call.observe(&met_by(met), u64::MAX / 3, now)
                    }
                    Step::Sleep(pause) => {
                        now = now.plus(pause.delay);
                        call.woke(now)
                    }
                    Step::Poll { .. } => panic!("nothing to poll"),
                    Step::Finish(why) => break why,
                };
            };
            assert_eq!(why == Why::Done, scenario["succeeds"] == true, "{scenario}, {instructions}: {why}");
            if request.idempotence == Idempotence::Unsafe {
                assert_eq!(sent, 1, "{scenario}");
            }
            played += 1;
        }
    }
    assert_eq!(played, 22);
}

fn met_by(instruction: Option<&str>) -> Seen {
    match instruction {
        None => Seen::status(200),
        Some("reset") => Seen::lost(Lost::Reset, Reach::Whole),
        Some("503-after-256K" | "503-after-8192K") => Seen { reach: Reach::Body, ..Seen::status(503) },
        Some("broken-stream" | "broken-stream-after-256K") => {
            Seen::answered(Answer { cut: true, ..Answer::new(200) })
        }
        Some(status) => Seen::status(status.parse().unwrap()),
    }
}
