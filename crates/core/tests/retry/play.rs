//! Plays a call from `vectors/retry/calls.json` against the engine, on a virtual clock.

use std::{num::NonZeroU32, time::Duration};

use retrysafe_core::{
    codes::Code,
    policy::Effect,
    retry::{
        after::Hint,
        budget::{Bucket, Rules},
        *,
    },
};
use serde_json::Value;

use crate::vectors;

pub(crate) fn ms(value: &Value) -> Duration {
    Duration::from_millis(value.as_u64().unwrap())
}

fn each<T>(value: &Value, set: &mut T, read: impl Fn(&Value) -> T) {
    if !value.is_null() {
        *set = read(value);
    }
}

pub(crate) fn policy(spec: &Value) -> RetryPolicy {
    let mut policy = RetryPolicy::default();
    let number = |value: &Value| NonZeroU32::new(u32::try_from(value.as_u64().unwrap()).unwrap()).unwrap();
    let set =
        |value: &Value| value.as_array().unwrap().iter().map(|one| one.as_u64().unwrap() as u16).collect();
    each(&spec["attempts"], &mut policy.attempts, number);
    each(&spec["elapsed_ms"], &mut policy.elapsed, ms);
    each(&spec["base_ms"], &mut policy.backoff.base, ms);
    each(&spec["cap_ms"], &mut policy.backoff.cap, ms);
    each(&spec["attempt_timeout_ms"], &mut policy.attempt_timeout, |value| Some(ms(value)));
    each(&spec["useful_attempt_ms"], &mut policy.useful_attempt, ms);
    each(&spec["statuses"], &mut policy.statuses, set);
    each(&spec["stored"], &mut policy.stored, set);
    if spec["exhausted"] == "pace" {
        policy.exhausted = Exhausted::Pace;
    }
    if spec["uncertain"] == "ask" {
        policy.uncertain = Uncertain::Ask;
    }
    policy
}

pub(crate) fn idempotence(name: &Value) -> Idempotence {
    match name.as_str().unwrap() {
        "safe" => Idempotence::Safe,
        "keyed" => Idempotence::Keyed,
        "unsafe" => Idempotence::Unsafe,
        other => panic!("{other}"),
    }
}

pub(crate) fn reach(name: &Value) -> Reach {
    match name.as_str().unwrap() {
        "nothing" => Reach::Nothing,
        "head" => Reach::Head,
        "body" => Reach::Body,
        "whole" => Reach::Whole,
        other => panic!("{other}"),
    }
}

pub(crate) fn not_sent(how: &str) -> NotSent {
    match how {
        "refused" => NotSent::Refused,
        "dns" => NotSent::Dns,
        "connect_timeout" => NotSent::ConnectTimeout,
        "connect" => NotSent::Connect,
        "certificate" => NotSent::Certificate,
        "refused_stream" => NotSent::RefusedStream,
        "go_away" => NotSent::GoAway,
        other => panic!("{other}"),
    }
}

pub(crate) fn seen(spec: &Value) -> Seen {
    if let Some(how) = spec["not_sent"].as_str() {
        return Seen::not_sent(not_sent(how));
    }
    if let Some(how) = spec["lost"].as_str() {
        let how = match how {
            "timeout" => Lost::Timeout,
            "reset" => Lost::Reset,
            "closed" => Lost::Closed,
            "other" => Lost::Other,
            other => panic!("{other}"),
        };
        return Seen::lost(how, reach(&spec["reach"]));
    }
    if let Some(held) = spec.get("held_ms") {
        let opens_in = (!held.is_null()).then(|| ms(held));
        return Seen { outcome: Outcome::Held { opens_in }, reach: Reach::Nothing };
    }
    if spec["fault"] == true {
        return Seen { outcome: Outcome::Fault, reach: Reach::Nothing };
    }
    let mut answer = Answer::new(u16::try_from(spec["status"].as_u64().unwrap()).unwrap());
    answer.code = spec["code"].as_str().map(|code| Code::from_wire(code).unwrap());
    answer.advice = spec["advice"].as_bool();
    answer.status_url = spec["status_url"].as_str().map(Into::into);
    answer.cut = spec["cut"] == true;
    if spec["effect"] == "none" {
        answer.effect = Some(Effect::None);
    }
    if !spec["retry_after_ms"].is_null() {
        answer.hint = Hint::Wait(ms(&spec["retry_after_ms"]));
    }
    match spec["pushback_ms"].as_i64() {
        Some(pushback) if pushback < 0 => answer.hint = Hint::Never,
        Some(_) => answer.hint = Hint::Pushback(ms(&spec["pushback_ms"])),
        None => {}
    }
    Seen::answered(answer)
}

fn word(stop: &Stop) -> &'static str {
    match stop {
        Stop::Attempts { .. } => "attempts",
        Stop::Deadline { .. } => "deadline",
        Stop::RetryAfter { .. } => "retry_after",
        Stop::Budget(_) => "budget",
        Stop::Waits { .. } => "waits",
        Stop::Cancelled => "cancelled",
        Stop::Rule(rule) => match rule {
            Rule::NotListed { .. } => "not_listed",
            Rule::UnsafeToRepeat => "unsafe_to_repeat",
            Rule::BodyGone => "body_gone",
            Rule::Mismatch => "mismatch",
            Rule::StoredFailure { .. } => "stored_failure",
            Rule::ServerLooksItUp => "server_looks_it_up",
            Rule::AnswerNotKept => "answer_not_kept",
            Rule::AnswerCut { .. } => "answer_cut",
            Rule::Refused(_) => "refused",
            Rule::ToldNotTo => "told_not_to",
            Rule::Certificate => "certificate",
            Rule::Fault => "fault",
            Rule::Held => "held",
        },
    }
}

fn cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Retry(_) => "retry",
        Cause::InFlight => "in_flight",
        Cause::Held => "held",
        Cause::Exhausted => "exhausted",
    }
}

fn finished(why: &Why, attempts: u32, expect: &Value, at: &str) {
    let (stop, unknown) = match why {
        Why::Done => return assert_eq!(expect["finish"], "done", "{at}"),
        Why::Stopped(stop) => (stop, None),
        Why::OutcomeUnknown(unknown) => (&unknown.because, Some(unknown)),
    };
    assert_eq!(expect["finish"], word(stop), "{at}: {why}");
    if let Some(expected) = expect["unknown"].as_bool() {
        assert_eq!(unknown.is_some(), expected, "{at}: {why}");
    }
    if let (Some(unknown), false) = (unknown, expect["reach"].is_null()) {
        assert_eq!(unknown.reach, reach(&expect["reach"]), "{at}");
    }
    if let Some(expected) = expect["attempts"].as_u64() {
        assert_eq!(u64::from(unknown.map_or(attempts, |unknown| unknown.attempts)), expected, "{at}");
    }
    if let Some(part) = expect["says"].as_str() {
        assert!(why.to_string().contains(part), "{at}: {why}");
    }
    let numbers = match stop {
        Stop::Deadline { wait, left } => vec![("wait_ms", wait), ("left_ms", left)],
        Stop::RetryAfter { asked, left } => vec![("asked_ms", asked), ("left_ms", left)],
        _ => Vec::new(),
    };
    for (name, found) in numbers {
        if !expect[name].is_null() {
            assert_eq!(*found, ms(&expect[name]), "{at}: {name}");
        }
        let text = why.to_string();
        assert!(text.contains(&format!("{found:?}")), "{at}: both numbers belong in {text:?}");
    }
}

fn follows(step: &Step, attempts: u32, expect: &Value, at: &str) {
    match step {
        Step::Send { attempt, timeout } => {
            assert!(expect.get("send_ms").or(expect.get("attempt")).is_some(), "{at}: sent");
            if !expect["send_ms"].is_null() {
                assert_eq!(*timeout, ms(&expect["send_ms"]), "{at}");
            }
            if let Some(expected) = expect["attempt"].as_u64() {
                assert_eq!(u64::from(*attempt), expected, "{at}");
            }
        }
        Step::Sleep(pause) => {
            match &expect["sleep_ms"] {
                Value::Array(range) => {
                    assert!((ms(&range[0])..=ms(&range[1])).contains(&pause.delay), "{at}: {pause:?}");
                }
                Value::Null => panic!("{at}: slept {pause:?}"),
                exact => assert_eq!(pause.delay, ms(exact), "{at}"),
            }
            if let Some(expected) = expect["cause"].as_str() {
                assert_eq!(cause(pause.cause), expected, "{at}");
            }
        }
        Step::Poll { url, .. } => assert_eq!(expect["poll"], **url, "{at}"),
        Step::Finish(why) => finished(why, attempts, expect, at),
    }
}

pub(crate) fn play(case: &Value) {
    let name = case["name"].as_str().unwrap();
    let bucket = match case["budget"]["capacity"].as_u64() {
        Some(capacity) => Bucket { capacity: u32::try_from(capacity).unwrap(), ..Bucket::default() },
        None => Bucket::default(),
    };
    let budget = Budget::new(Rules { bucket: Some(bucket), ..Rules::NONE });
    let body = if case["body"] == "one_shot" { Body::OneShot } else { Body::Replayable };
    let request = Request { idempotence: idempotence(&case["idempotence"]), body };
    let deadline = match &case["deadline_ms"] {
        Value::Null => Deadline::UNSET,
        limit => Deadline::within(Mono::START, ms(limit)),
    };
    let entropy = if case["entropy"] == "min" { 0 } else { u64::MAX };
    let mut call = None;
    for (number, event) in case["play"].as_array().unwrap().iter().enumerate() {
        let at = format!("{name}, event {number}");
        let now = Mono::from_elapsed(ms(&event["at_ms"]));
        let step = if event["open"] == true {
            let (opened, step) = Call::open(&policy(&case["policy"]), &budget, request, deadline, now);
            call = Some(opened);
            step
        } else if event["wake"] == true {
            call.as_mut().unwrap().woke(now)
        } else if event["abandon"].is_null() {
            call.as_mut().unwrap().observe(&seen(&event["see"]), entropy, now)
        } else {
            Step::Finish(call.take().unwrap().abandon(reach(&event["abandon"])))
        };
        let attempts = call.as_ref().map_or(0, Call::attempts);
        follows(&step, attempts, &event["expect"], &at);
    }
    drop(call);
    let reading = budget.reading(Mono::START);
    let account = reading.bucket.unwrap();
    assert_eq!((reading.calls, reading.retries, account.held), (0, 0, 0), "{name}: nothing is held any more");
    if let Some(spent) = case["budget"]["spent"].as_u64() {
        assert_eq!(account.spent, spent, "{name}");
    }
}

pub(crate) fn play_named(name: &str) {
    let file = vectors("calls.json");
    let cases = file["cases"].as_array().unwrap();
    play(cases.iter().find(|case| case["name"] == name).unwrap_or_else(|| panic!("no case {name}")));
}
