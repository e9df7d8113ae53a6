//! Client-side limiters of other SDKs, against their published numbers (V3, V7).

use std::time::Duration;

use retrysafe_core::retry::{
    Mono,
    presets::{Adaptive, Cubic, GaxBreaker, SreThrottle},
};
use serde_json::Value;

use crate::{play::ms, vectors};

fn close(found: f64, expected: &Value, at: &str) {
    let expected = expected.as_f64().unwrap();
    assert!((found - expected).abs() <= 1e-6 * expected.max(1.0), "{at}: {found}, not {expected}");
}

#[test]
fn v3_the_published_curve() {
    let file = vectors("smithy-retry-cases.json");
    let cases = file["adaptiveRetryCubicTestCases"].as_object().unwrap();
    assert_eq!(cases.len(), 2);
    for (name, case) in cases {
        let number = |value: &Value| value.as_f64().unwrap();
        let given = &case["given"];
        let mut cubic = Cubic::new(number(&given["last_max_rate"]), number(&given["last_throttle_time"]));
        let mut rate = 0.0;
        for step in case["cases"].as_array().unwrap() {
            let at = number(&step["timestamp"]);
            rate =
                if step["response"] == "throttle" { cubic.throttled(rate, at) } else { cubic.succeeded(at) };
            close(rate, &step["calculated_rate"], &format!("{name}, {at}"));
        }
    }
}

#[test]
fn v3_mixed_throttles_and_successes() {
    let file = vectors("adaptive.json");
    let mixed = &file["mixed"];
    let number = |value: &Value| value.as_f64().unwrap();
    let mut cubic = Cubic::new(number(&mixed["last_max"]), number(&mixed["throttled_at"]));
    let mut rate = 0.0;
    for step in mixed["steps"].as_array().unwrap() {
        let at = number(&step["t"]);
        if step["throttled"] == true {
            rate = cubic.throttled(rate, at);
            cubic = Cubic::new(rate, at);
        } else {
            rate = cubic.succeeded(at);
        }
        close(rate, &step["rate"], &format!("{at}"));
    }
}

#[test]
fn v3_the_sending_rate() {
    let file = vectors("smithy-retry-cases.json");
    let cases = file["adaptiveRetryE2eTestCases"].as_object().unwrap();
    let mut adaptive = Adaptive::default();
    let steps = cases.values().next().unwrap()["cases"].as_array().unwrap();
    assert_eq!(steps.len(), 17);
    for step in steps {
        let at = step["timestamp"].as_f64().unwrap();
        // Whole milliseconds: 0.2 s is not a sum of binary fractions.
        let now = Mono::from_elapsed(Duration::from_millis((at * 1_000.0).round() as u64));
        adaptive.observe(step["response"] == "throttle", now);
        close(adaptive.measured(), &step["measured_tx_rate"], &format!("measured at {at}"));
        close(adaptive.fill(), &step["new_token_bucket_rate"], &format!("fill at {at}"));
    }
}

#[test]
fn v3_all_who_ask_at_once_hear_the_same_wait_and_nothing_goes_below_zero() {
    let file = vectors("adaptive.json");
    let case = &file["all_at_once"];
    let mut adaptive = Adaptive::default();
    adaptive.enable(Mono::START);
    let now = Mono::from_elapsed(ms(&case["at_ms"]));
    for _ in 0..case["asked"].as_u64().unwrap() {
        let wait = adaptive.acquire(now).unwrap_err();
        assert!(wait.abs_diff(ms(&case["wait_ms"])) < Duration::from_micros(1), "{wait:?}");
    }
    // A shortfall of less than a billionth is none: a wait of nothing would spin.
    let almost = Mono::from_nanos(2_000_000_000 - 1);
    assert_eq!(adaptive.acquire(almost), Ok(()));
}

#[test]
fn v7_the_sre_throttle_and_the_gax_breaker() {
    let file = vectors("adaptive.json");
    for row in file["sre"]["rows"].as_array().unwrap() {
        let count = |name: &str| row[name].as_u64().unwrap();
        let throttle = SreThrottle { factor: 2.0, requests: count("requests"), accepts: count("accepts") };
        close(throttle.rejects(), &row["rejects"], &row.to_string());
    }
    // M4b: without a window, a million successes hide as many failures.
    let blind = SreThrottle { factor: 2.0, requests: 1_900_000, accepts: 1_000_000 };
    assert_eq!(blind.rejects(), 0.0);
    let spec = &file["gax_breaker"];
    let count = |name: &str| spec[name].as_u64().unwrap();
    let mut breaker = GaxBreaker::new(count("tokens"), count("min"), count("cost"));
    for row in spec["failures"].as_array().unwrap() {
        breaker.failed();
        assert_eq!((breaker.tokens, breaker.allows()), (row[0].as_u64().unwrap(), row[1] == true), "{row}");
    }
    breaker.succeeded();
    let row = &spec["then_success"];
    assert_eq!((breaker.tokens, breaker.allows()), (row[0].as_u64().unwrap(), row[1] == true));
}
