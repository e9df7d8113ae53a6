//! What other clients do, against their published numbers; and what this engine takes from a transport and a contract.

use std::{num::NonZeroU32, time::Duration};

use retrysafe_core::{
    contract::Contract,
    policy::Place,
    retry::{
        backoff::Jitter,
        presets::{self, Curve, Delays, PollyDecorrelated},
        *,
    },
};

use crate::{Entropy, play, vectors};

#[test]
fn v9_the_sleeps_of_other_clients() {
    let file = vectors("vendor-delays.json");
    for (name, rows) in file["ranges_ms"].as_object().unwrap() {
        let delays = match name.as_str() {
            "stripe" => Delays::Stripe,
            "stripe_go" => Delays::StripeGo,
            "openai" => Delays::OpenAi,
            "speakeasy_python" => Delays::SpeakeasyPython,
            "speakeasy_typescript" => Delays::SpeakeasyTypeScript,
            "twilio_node" => Delays::TwilioNode,
            "envoy" => Delays::Envoy,
            "undici" => Delays::Undici,
            "grpc" => Delays::Grpc,
            "polly_linear" => Delays::PollyLinear,
            other => panic!("{other}"),
        };
        for (retry, range) in (0..).zip(rows.as_array().unwrap()) {
            let (low, high) = delays.range(retry);
            for (found, expected) in [(low, &range[0]), (high, &range[1])] {
                let off = found.abs_diff(play::ms(expected));
                assert!(off <= Duration::from_millis(1), "{name}, retry {}: {low:?} to {high:?}", retry + 1);
            }
        }
        // I-39, Polly #2163: a late retry sleeps long, never briefly again.
        let late = [1_023, 1_024, 1_000_000, u32::MAX].map(|retry| delays.range(retry).1);
        assert!(late.iter().all(|sleep| *sleep >= delays.range(4).1), "{name}: {late:?}");
    }
}

#[test]
fn v10_polly() {
    let file = vectors("vendor-delays.json");
    for case in file["polly_linear_third_ms"].as_array().unwrap() {
        let entropy = (case["draw"].as_f64().unwrap() * u64::MAX as f64) as u64;
        let sleep = Delays::PollyLinear.sleep(2, Duration::ZERO, entropy);
        assert!(sleep.abs_diff(play::ms(&case["sleep"])) < Duration::from_millis(1), "{case}");
    }
    let medians = file["polly_decorrelated_medians_s"].as_array().unwrap();
    let mut entropy = Entropy::seeded(1);
    let mut sleeps = vec![Vec::new(); medians.len()];
    for _ in 0..20_001 {
        let mut polly = PollyDecorrelated::new(Duration::from_secs(1));
        sleeps.iter_mut().for_each(|of_retry| of_retry.push(polly.sleep(entropy.next()).as_secs_f64()));
    }
    for (of_retry, median) in sleeps.iter_mut().zip(medians) {
        of_retry.sort_by(f64::total_cmp);
        let (found, expected) = (of_retry[of_retry.len() / 2], median.as_f64().unwrap());
        assert!((found - expected).abs() < 0.05 * expected, "{found} for {expected}");
    }
    let mut polly = PollyDecorrelated::new(Duration::from_secs(1));
    let late = (0..2_000).map(|_| polly.sleep(7)).last().unwrap();
    assert!(late > Duration::from_secs(3_600), "I-39: {late:?}");
}

/// M7: capped after the draw, the share of sleeps that are the cap grows; capped before, it does not (see tables).
#[test]
fn m7_the_published_decorrelated_jitter_piles_up_on_its_cap() {
    let curve = Curve { base: Duration::from_millis(100), cap: Duration::from_secs(10) };
    let mut entropy = Entropy::seeded(3);
    let last = |entropy: &mut Entropy| {
        let sleep = |last, retry| Delays::Decorrelated(curve).sleep(retry, last, entropy.next());
        (0..12).fold(Duration::ZERO, sleep)
    };
    let at_cap = (0..10_000).filter(|_| last(&mut entropy) == curve.cap).count();
    assert!((1_900..2_900).contains(&at_cap), "{at_cap} of 10000; 24% published");
}

#[test]
fn v15_what_a_transport_reports_is_sorted_in_the_one_right_order() {
    for case in vectors("failures.json")["cases"].as_array().unwrap() {
        let is = |name: &str| case[name] == true;
        let named = |name: &str| case[name].as_str().map(play::not_sent);
        let reach = if case["reach"].is_null() { Reach::Whole } else { play::reach(&case["reach"]) };
        let failure = Failure {
            answered: case["answered"].as_u64().map(|status| Answer::new(status as u16)),
            refused: named("refused"),
            connecting: is("connecting"),
            connect: named("connect"),
            timeout: is("timeout"),
            reset: is("reset"),
            closed: is("closed"),
            reach,
        };
        let (found, expected) = (failure.seen(), play::seen(&case["seen"]));
        assert_eq!(found.outcome, expected.outcome, "{case}");
    }
}

/// M5: "jitter" that a shadowed variable turned off.
#[test]
fn m5_sleeps_vary() {
    let mut entropy = Entropy::seeded(5);
    let sleeps =
        (0..100).map(|_| Backoff::default().delay(Pace::Transient, 6, Duration::ZERO, entropy.next()));
    let distinct: std::collections::BTreeSet<_> = sleeps.collect();
    assert_eq!(distinct.len(), 100);
}

fn contract(name: &str) -> Contract {
    let path = format!("{}/tests/contract/{name}", env!("CARGO_MANIFEST_DIR"));
    Contract::parse(&std::fs::read_to_string(path).unwrap(), name).unwrap()
}

#[test]
fn a_contract_gives_every_number() {
    let mut client = contract("small.toml").client;
    client.attempts = 7;
    client.elapsed = Duration::from_secs(11);
    client.base = Duration::from_millis(12);
    client.throttled_base = Duration::from_millis(13);
    client.cap = Duration::from_secs(14);
    client.retry_statuses = vec![500, 429];
    let policy = RetryPolicy::from(&client);
    assert_eq!((policy.attempts.get(), policy.elapsed), (7, Duration::from_secs(11)));
    let Backoff { jitter, base, throttled_base, cap } = policy.backoff;
    assert_eq!(
        (jitter, base, throttled_base, cap),
        (Jitter::Full, client.base, client.throttled_base, client.cap)
    );
    assert_eq!(policy.statuses.iter().collect::<Vec<_>>(), [429, 500]);
    client.attempts = 0;
    assert_eq!(RetryPolicy::from(&client).attempts.get(), 1, "the first attempt is never forbidden");
}

/// The defaults of the contract and of the engine are one set of numbers.
#[test]
fn a_contract_that_says_nothing_gives_the_defaults() {
    let text =
        std::fs::read_to_string(format!("{}/tests/contract/small.toml", env!("CARGO_MANIFEST_DIR"))).unwrap();
    assert!(!text.contains("attempts ="), "{text}");
    assert_eq!(RetryPolicy::from(&contract("small.toml").client), RetryPolicy::default());
}

/// SPEC 6.4: what the server stores and replays is not worth the same key, where the contract says that clients know.
#[test]
fn stored_failures_leave_the_list_where_the_contract_says_so() {
    for drops in [true, false] {
        let mut contract = contract("small.toml");
        contract.client.drop_stored_statuses = drops;
        let endpoint = &contract.endpoints[0];
        assert!(endpoint.stores(503, Place::Library), "policy A");
        let policy = RetryPolicy::for_endpoint(&contract, endpoint, Place::Library);
        assert_eq!(policy.stored.contains(503), drops);
        assert!(policy.stored.contains(422), "never retried anyway, and the reason is better");
        let at_gateway = RetryPolicy::for_endpoint(&contract, endpoint, Place::Gateway);
        assert!(!at_gateway.stored.contains(503), "a gateway does not store it");
    }
}

#[test]
fn explain_says_what_a_call_may_cost() {
    let policy = RetryPolicy {
        attempts: NonZeroU32::new(14).unwrap(),
        attempt_timeout: Some(Duration::from_secs(2)),
        ..RetryPolicy::default()
    };
    let plan = policy.explain();
    assert_eq!((plan.requests_max, plan.time_max), (14, Duration::from_secs(30)));
    assert_eq!(plan.sleeps[..2], [Duration::from_millis(50), Duration::from_millis(100)]);
    assert_eq!(plan.sleeps.last(), Some(&Duration::from_secs(20)));
    let text = plan.to_string();
    for part in
        ["attempt 1: at once, at most 2s", "... 3 more", "{429, 502, 503, 504}", "at most 14 requests in 30s"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let decorrelated = Backoff { jitter: Jitter::Decorrelated, ..Backoff::default() };
    let text = RetryPolicy { backoff: decorrelated, ..RetryPolicy::default() }.explain().to_string();
    assert!(text.contains("attempt 3: after a sleep of 50ms to 450ms"), "{text}");
    let one = RetryPolicy { attempts: NonZeroU32::MIN, ..policy }.explain();
    assert_eq!((one.sleeps.len(), one.time_max), (0, Duration::from_secs(2)));
}

#[test]
fn advice_says_when_the_attempts_do_not_fit() {
    let advice = RetryPolicy::default().advise(Duration::from_secs(8));
    assert_eq!(advice.timeouts, Duration::from_secs(16)..=Duration::from_secs(24));
    assert_eq!(advice.needed, Duration::from_millis(3 * 16_000 + 150));
    assert!(!advice.all_attempts_fit && advice.to_string().contains("fewer attempts, or more time"));
}

/// V1, row 9; the rest of the block is the published file.
#[test]
fn v1_dynamodb() {
    let (policy, budget) = (
        presets::dynamodb(),
        Budget::new(budget::Rules { bucket: Some(budget::Bucket::default()), ..budget::Rules::NONE }),
    );
    let (mut call, mut step) =
        Call::open(&policy, &budget, Request::new(Idempotence::Keyed), Deadline::UNSET, Mono::START);
    let (mut now, mut sleeps, mut balances) = (Mono::START, Vec::new(), Vec::new());
    let why = loop {
        step = match step {
            Step::Send { .. } => call.observe(&Seen::status(500), u64::MAX, now),
            Step::Sleep(pause) => {
                sleeps.push(pause.delay.as_millis());
                balances.push(budget.reading(now).bucket.unwrap().balance);
                now = now.plus(pause.delay);
                call.woke(now)
            }
            Step::Poll { .. } => panic!("nothing to poll"),
            Step::Finish(why) => break why,
        };
    };
    assert_eq!((sleeps, balances), (vec![25, 50, 100], vec![486, 472, 458]));
    assert_eq!(why, Why::Stopped(Stop::Attempts { limit: 4 }));
}

/// V2: the old mode cuts a hint to its cap. That is why it is a preset and not a choice.
#[test]
fn v2_the_old_mode_cuts_a_hint() {
    let observe = |policy: &RetryPolicy| {
        let request = Request::new(Idempotence::Keyed);
        let (mut call, _) = Call::open(policy, &Budget::default(), request, Deadline::UNSET, Mono::START);
        let hint = after::Hint::Wait(Duration::from_secs(30));
        call.observe(&Seen::answered(Answer { hint, ..Answer::new(503) }), u64::MAX, Mono::START)
    };
    let Step::Sleep(pause) = observe(&presets::aws_2_0()) else { panic!("sleeps") };
    assert_eq!(pause.delay, Duration::from_secs(20));
    assert!(matches!(observe(&RetryPolicy::default()), Step::Finish(_)));
}
