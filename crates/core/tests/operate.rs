//! What a person may do about a key, against every state a record can be in.
#![allow(clippy::unwrap_used)] // helpers fail the test that calls them

mod cases;

use std::time::Duration;

use cases::*;
use retrysafe_core::{
    claim::Times,
    ids::AttemptId,
    operate::{Refused, Standing, release, resolve, resume, standing},
    record::{Expect, Record, RecoveryClass, RemoveIf, State, Uncertainty, Write},
};

const TIMES: Times = Times { replay: Duration::from_secs(100), reap: Duration::from_secs(50) };
const NEW: AttemptId = AttemptId::new(77);

fn states() -> [(State, Standing); 5] {
    [
        (in_flight(at(30)), Standing::Held { until: at(30) }),
        (in_flight(at(10)), Standing::Abandoned),
        (State::Uncertain { since: at(5), why: Uncertainty::Stopped }, Standing::Uncertain),
        (completed(at(100), at(200)), Standing::Completed),
        (completed(at(20), at(200)), Standing::Expired),
    ]
}

#[test]
fn a_person_decides_only_what_nobody_holds_and_nobody_has_decided() {
    let now = at(20);
    for (state, expected) in states() {
        let record = record(RecoveryClass::Phased, state);
        assert_eq!(standing(&record, now), expected);
        let refused = match expected {
            Standing::Held { until } => Some(Refused::Held { until }),
            Standing::Completed | Standing::Expired => Some(Refused::Completed),
            Standing::Abandoned | Standing::Uncertain => None,
        };
        assert_eq!(resume(&record, NEW, now).err(), refused, "{expected:?}");
        assert_eq!(resolve(&record, outcome(201), TIMES, now).err(), refused, "{expected:?}");
        assert_eq!(release(&record, NEW, now).err(), refused, "{expected:?}");
    }
}

#[test]
fn only_steps_are_resumed() {
    for class in [RecoveryClass::Atomic, RecoveryClass::Outside, RecoveryClass::Deduplicated] {
        let record = record(class, in_flight(at(10)));
        assert_eq!(resume(&record, NEW, at(20)), Err(Refused::NotOfSteps), "{class:?}");
    }
}

/// Between the look and the act its holder may have come back.
#[test]
fn protocol_6_an_act_replaces_the_state_that_was_read_and_no_other() {
    let now = at(20);
    let abandoned = record(RecoveryClass::Phased, in_flight(at(10)));
    let renewed = Record { state: in_flight(at(40)), ..abandoned.clone() };
    let done = Record { state: completed(at(100), at(200)), ..abandoned.clone() };
    let uncertain = Record {
        state: State::Uncertain { since: at(5), why: Uncertainty::HolderLost },
        ..abandoned.clone()
    };
    let taken = Record { attempt: AttemptId::new(5), ..abandoned.clone() };
    let acts = |seen: &Record| -> [Write; 3] {
        [
            resume(seen, NEW, now).unwrap(),
            resolve(seen, outcome(201), TIMES, now).unwrap(),
            release(seen, NEW, now).unwrap().0,
        ]
    };
    for write in acts(&abandoned) {
        assert!(write.expect.allows(Some(&abandoned)));
        for other in [&renewed, &done, &taken] {
            assert!(!write.expect.allows(Some(other)), "{write:?} over {other:?}");
        }
    }
    for write in acts(&uncertain) {
        assert_eq!(write.expect, Expect::Attempt(uncertain.attempt));
        assert!(write.expect.allows(Some(&uncertain)));
        for other in [&done, &taken] {
            assert!(!write.expect.allows(Some(other)), "{write:?} over {other:?}");
        }
    }
}

#[test]
fn resuming_and_releasing_shut_out_the_holder_that_was_lost() {
    let now = at(20);
    let lost = record(RecoveryClass::Phased, State::Uncertain { since: at(5), why: Uncertainty::Stopped });
    let resumed = resume(&lost, NEW, now).unwrap().next;
    assert_eq!(resumed.state, in_flight(now), "due at once, to a completer and to a retry");
    let (own, removal) = release(&lost, NEW, now).unwrap();
    assert_eq!((own.next.state.clone(), removal), (lost.state.clone(), RemoveIf::Attempt(NEW)));
    for next in [&resumed, &own.next] {
        assert!(!Expect::Attempt(lost.attempt).allows(Some(next)), "its late answer changes nothing");
        assert_eq!((next.status_id, next.recovery), (lost.status_id, lost.recovery), "protocol 8");
    }
    assert!(removal.allows(&own.next) && !removal.allows(&lost));
}

#[test]
fn protocol_9_the_window_of_a_resolved_key_begins_when_it_is_resolved() {
    let lost =
        record(RecoveryClass::Outside, State::Uncertain { since: at(5), why: Uncertainty::UpstreamLost });
    let write = resolve(&lost, outcome(201), TIMES, at(20)).unwrap();
    let State::Completed { at: done, expires_at, reap_at, .. } = write.next.state else { unreachable!() };
    assert_eq!(
        (done, expires_at, reap_at),
        (at(20), at(120), at(120)),
        "never reaped before the window ends"
    );
    assert_eq!(write.next.attempt, lost.attempt);
}

#[test]
fn a_call_is_resolved_only_where_one_is_open() {
    use bytes::Bytes;
    use retrysafe_core::{
        operate::resolve_call,
        recovery::{DownstreamKey, Entry, Event, Progress, Shape, Snapshot, StepName},
    };
    let step = |name: &str| StepName::from_stored(name).unwrap();
    let plan = Shape::new("rides").unwrap().phase("create").unwrap().text();
    let lost = record(RecoveryClass::Phased, State::Uncertain { since: at(5), why: Uncertainty::Stopped });
    let request = Snapshot { principal: "alice".into(), fields: Bytes::new() };
    let opened = Event::Opened { plan, request, deadline: at(9) };
    let key = DownstreamKey::derive(lost.status_id, "rides", &step("charge"));
    let meant = Event::Intent { step: step("charge"), key, request: Bytes::new() };
    let known = Event::Result { step: step("charge"), result: Bytes::new() };
    let progress = |events: Vec<Event>| {
        let entry = |(seq, event)| Entry { seq, attempt: lost.attempt, at: at(1), event };
        Progress::of(&(0..).zip(events).map(entry).collect::<Vec<_>>()).unwrap()
    };
    let open = progress(vec![opened.clone(), meant.clone()]);
    let resolved = resolve_call(&lost, &open, &step("charge"), NEW, at(20)).unwrap();
    assert_eq!(resolved, resume(&lost, NEW, at(20)).unwrap());
    assert_eq!(resolve_call(&lost, &open, &step("create"), NEW, at(20)), Err(Refused::NoSuchCall));
    let done = progress(vec![opened, meant, known]);
    assert_eq!(resolve_call(&lost, &done, &step("charge"), NEW, at(20)), Err(Refused::NoSuchCall));
    let held = Record { state: in_flight(at(30)), ..lost.clone() };
    let refused = resolve_call(&held, &open, &step("charge"), NEW, at(20));
    assert_eq!(refused, Err(Refused::Held { until: at(30) }));
}
