//! The retry specification of the AWS SDKs, as published for their own implementations (V1, V2).

use std::{num::NonZeroU32, time::Duration};

use retrysafe_core::retry::{
    budget::{Bucket, Rules},
    *,
};
use serde_json::Value;

use crate::vectors;

const KEYED: Request = Request::new(Idempotence::Keyed);

struct Setting {
    policy: RetryPolicy,
    budget: Budget,
}

impl Setting {
    fn of(given: &Value, policy: RetryPolicy, bucket: Bucket) -> Self {
        let mut setting = Self { policy, budget: Budget::default() };
        if let Some(attempts) = given["max_attempts"].as_u64() {
            setting.policy.attempts = NonZeroU32::new(attempts as u32).unwrap();
        }
        if let Some(cap) = given["max_backoff_time"].as_f64() {
            setting.policy.backoff.cap = Duration::from_secs_f64(cap);
        }
        if given["long_polling"] == true {
            setting.policy.exhausted = Exhausted::Pace;
        }
        let capacity = given["initial_retry_tokens"].as_u64().map_or(bucket.capacity, |tokens| tokens as u32);
        setting.budget = Budget::new(Rules { bucket: Some(Bucket { capacity, ..bucket }), ..Rules::NONE });
        setting
    }

    fn open(&self) -> Call {
        let (call, step) = Call::open(&self.policy, &self.budget, KEYED, Deadline::UNSET, Mono::START);
        assert!(matches!(step, Step::Send { attempt: 1, .. }));
        call
    }

    fn quota(&self) -> i64 {
        self.budget.reading(Mono::START).bucket.unwrap().balance
    }
}

/// Their throttling error codes come with a 400; ours is the status 429.
fn seen(response: &Value) -> Seen {
    let mut answer = Answer::new(response["status_code"].as_u64().unwrap() as u16);
    if response["error_code"] == "Throttling" {
        answer.status = 429;
    }
    if let Some(headers) = response["headers"].as_object() {
        let fields = headers.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap().as_bytes()));
        let now = retrysafe_core::time::Wall::from_unix_ms(0);
        answer.hint = after::read(answer.status, fields, || now);
    }
    Seen::answered(answer)
}

/// One answer, and what has to follow. `None`: the call is over.
fn respond(setting: &Setting, mut call: Call, case: &Value, at: &str) -> Option<Call> {
    let expected = &case["expected"];
    let mut step = call.observe(&seen(&case["response"]), u64::MAX, Mono::START);
    let mut slept = None;
    if let Step::Sleep(pause) = step {
        slept = Some(pause.delay.as_secs_f64());
        let later = Mono::START.plus(pause.delay);
        step = call.woke(later);
    }
    assert_eq!(slept, expected["delay"].as_f64().or(slept.filter(|_| retried(expected))), "{at}");
    let outcome = expected["outcome"].as_str().unwrap();
    match (&step, outcome) {
        (Step::Send { .. }, "retry_request") => {}
        (Step::Finish(Why::Done), "success")
        | (Step::Finish(Why::Stopped(Stop::Attempts { .. })), "max_attempts_exceeded")
        | (Step::Finish(Why::Stopped(Stop::Budget(_))), "retry_quota_exceeded")
        | (Step::Finish(Why::Stopped(Stop::Rule(Rule::NotListed { .. }))), "fail_request") => {}
        // Theirs calls a 502 answered; to us a gateway's 502 leaves the outcome open, and the call stops the same way.
        (Step::Finish(Why::OutcomeUnknown(unknown)), _) => match (&unknown.because, outcome) {
            (Stop::Attempts { .. }, "max_attempts_exceeded") | (Stop::Budget(_), "retry_quota_exceeded") => {}
            (because, outcome) => panic!("{at}: {because:?}, not {outcome}"),
        },
        (step, outcome) => panic!("{at}: {step:?}, not {outcome}"),
    }
    let over = matches!(step, Step::Finish(_));
    if let Some(quota) = expected["retry_quota"].as_i64() {
        assert_eq!(setting.quota(), quota, "{at}");
    }
    (!over).then_some(call)
}

fn retried(expected: &Value) -> bool {
    expected["outcome"] == "retry_request"
}

fn group(name: &str, policy: RetryPolicy, bucket: Bucket) -> usize {
    let file = vectors("smithy-retry-cases.json");
    let cases = file[name].as_object().unwrap();
    for (title, case) in cases {
        let setting = Setting::of(&case["given"], policy, bucket);
        let mut call = None;
        for (number, response) in case["responses"].as_array().unwrap().iter().enumerate() {
            let at = format!("{name}: {title}, response {number}");
            let present = call.take().unwrap_or_else(|| setting.open());
            call = respond(&setting, present, response, &at);
        }
        assert!(call.is_none(), "{title}: still open");
    }
    cases.len()
}

#[test]
fn v1_standard_mode_2_1() {
    let bucket = Bucket::default();
    assert_eq!(group("newStandardRetryIntegrationTestCases", presets::aws_2_1(), bucket), 12);
    assert_eq!(group("newStandardRetryLongPollingTestCases", presets::aws_2_1(), bucket), 5);
    assert_eq!(group("newStandardRetryMultiInvocationTestCases", presets::aws_2_1(), bucket), 1);
}

#[test]
fn v2_standard_mode_2_0() {
    let cases = group("standardRetryIntegrationTestCases", presets::aws_2_0(), presets::aws_2_0_bucket());
    assert_eq!(cases, 6);
}

/// The file gives the expected quotas of both threads in the order of a run one after the other's failure.
#[test]
fn v1_calls_at_once_share_a_quota_and_give_it_back() {
    let file = vectors("smithy-retry-cases.json");
    let case = &file["newStandardRetryMultiThreadedTestCases"]["Shared multi-threaded scenarios"];
    let setting = Setting::of(&case["given"], presets::aws_2_1(), Bucket::default());
    let threads = case["threads"].as_array().unwrap();
    let response = |thread: usize, number: usize| &threads[thread][number];
    let [one, two] = [setting.open(), setting.open()];
    let one = respond(&setting, one, response(0, 0), "first").unwrap();
    let one = respond(&setting, one, response(0, 1), "first").unwrap();
    let two = respond(&setting, two, response(1, 0), "second").unwrap();
    assert!(respond(&setting, two, response(1, 1), "second").is_none());
    assert!(respond(&setting, one, response(0, 2), "first").is_none());
    assert_eq!(setting.quota(), case["expected_final_quota"].as_i64().unwrap());
}

/// M1a: a client that keeps one permit for all its calls loses (n - 1) * (cost - 1) tokens; 39 such calls empty it.
#[test]
fn m1a_calls_at_once_that_all_succeed_leave_the_bucket_full() {
    for count in [1, 2, 10, 30, 35] {
        let setting = Setting::of(&Value::Null, presets::aws_2_1(), Bucket::default());
        let failed = Seen::status(500);
        let mut calls: Vec<Call> = (0..count).map(|_| setting.open()).collect();
        for call in &mut calls {
            assert!(matches!(call.observe(&failed, u64::MAX, Mono::START), Step::Sleep(_)));
        }
        for call in &mut calls {
            let now = Mono::from_elapsed(Duration::from_millis(50));
            assert!(matches!(call.woke(now), Step::Send { .. }));
            assert_eq!(call.observe(&Seen::status(200), 0, now), Step::Finish(Why::Done));
        }
        assert_eq!(setting.quota(), 500, "{count} at once");
    }
}
