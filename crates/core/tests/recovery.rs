//! Requests of several steps: what resuming and the completer decide (SPEC 5.3, 5.4, protocol 8, 22-25).

#![allow(clippy::unwrap_used)] // helpers fail the test that calls them

use std::time::Duration;

use bytes::Bytes;
use retrysafe_core::{
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence, StatusId},
    record::{Record, RecoveryClass, State, Uncertainty},
    recovery::*,
    time::Wall,
};

const HOUR: Duration = Duration::from_secs(3600);
const WINDOW: Duration = Duration::from_secs(24 * 3600);

fn at(seconds: i64) -> Wall {
    Wall::from_unix_ms(seconds * 1000)
}

fn step(name: &str) -> StepName {
    StepName::from_stored(name).unwrap()
}

fn shape(charge: External) -> Shape {
    let shape = Shape::new("rides").unwrap().phase("create").unwrap();
    shape.external("charge", charge).unwrap().phase("finish").unwrap()
}

fn opened() -> Event {
    let request = Snapshot { principal: "rider".into(), fields: Bytes::from_static(b"{}") };
    Event::Opened { plan: shape(External::NEVER_AGAIN).text(), request, deadline: at(60) }
}

fn done(name: &str) -> Event {
    Event::Done { step: step(name), result: Bytes::from_static(b"done") }
}

fn intent() -> Event {
    let key = DownstreamKey::derive(StatusId::new(1), "rides", &step("charge"));
    Event::Intent { step: step("charge"), key, request: Bytes::from_static(b"charge") }
}

fn result() -> Event {
    Event::Result { step: step("charge"), result: Bytes::from_static(b"charged") }
}

fn journal(plan: &Shape, events: Vec<Event>) -> Vec<Entry> {
    let events = events.into_iter().map(|event| match event {
        Event::Opened { request, deadline, .. } => Event::Opened { plan: plan.text(), request, deadline },
        other => other,
    });
    let entry = |(seq, event)| Entry { seq, attempt: AttemptId::new(1), at: at(i64::from(seq)), event };
    (0..).zip(events).map(entry).collect()
}

fn progress(plan: &Shape, events: Vec<Event>) -> Progress {
    Progress::of(&journal(plan, events)).unwrap()
}

#[test]
fn spec_5_3_a_done_step_is_skipped_with_its_result_and_a_new_one_runs() {
    let plan = shape(External::ASK);
    let progress = progress(&plan, vec![opened(), done("create"), intent(), result()]);
    let of = |name: &str| next(&progress, &plan, &step(name), Attended::Retry, at(9)).unwrap();
    assert_eq!(of("create"), Next::Skip(Bytes::from_static(b"done")));
    assert_eq!(of("charge"), Next::Skip(Bytes::from_static(b"charged")));
    assert_eq!(of("finish"), Next::Run);
}

#[test]
fn an_intent_without_a_result_goes_the_way_its_step_declares() {
    let resend = External::resend(WINDOW, HOUR);
    let last_moment = 2 + 23 * 3600 - 1; // the intent was the entry of second 2
    let cases: [(&str, External, i64, &str); 6] = [
        ("nothing declared", External::NEVER_AGAIN, 10, "uncertain"),
        ("asks", External::ASK, 10, "ask"),
        ("asks even where it may send again", resend.asking(), 10, "ask"),
        ("young", resend, last_moment, "resend"),
        ("protocol_23: in the margin", resend, last_moment + 1, "uncertain"),
        ("protocol_23: on Monday", resend, 3 * 86_400, "uncertain"),
    ];
    for (case, external, now, expected) in cases {
        let plan = shape(external);
        let progress = progress(&plan, vec![opened(), done("create"), intent()]);
        let next = next(&progress, &plan, &step("charge"), Attended::Completer, at(now)).unwrap();
        let got = match &next {
            Next::Skip(_) | Next::Run | Next::TooLate => "run",
            Next::Ask(_) => "ask",
            Next::Resend(intent) => {
                assert_eq!(intent.request, Bytes::from_static(b"charge"), "the stored bytes");
                "resend"
            }
            Next::Uncertain(why) => {
                assert_eq!(*why, Stopped::Unresolved { step: step("charge") });
                "uncertain"
            }
        };
        assert_eq!(got, expected, "{case}");
    }
}

#[test]
fn protocol_22_an_absent_call_is_sent_again_only_where_that_is_safe() {
    let resend = External::resend(WINDOW, HOUR).asking();
    let fencing = External { fences: true, ..External::ASK };
    let unresolved = || AfterAsk::Uncertain(Stopped::Unresolved { step: step("charge") });
    let found = Bytes::from_static(b"charged");
    let cases = [
        (External::ASK, Found::Done(found.clone()), 10, AfterAsk::Record(found)),
        (External::ASK, Found::Silent, 10, AfterAsk::Later),
        (External::ASK, Found::Absent, 10, unresolved()),
        (fencing, Found::Absent, 10, AfterAsk::Resend),
        (resend, Found::Absent, 10, AfterAsk::Resend),
        (resend, Found::Absent, 3 * 86_400, unresolved()),
    ];
    for (external, found, now, expected) in cases {
        let plan = shape(external);
        let progress = progress(&plan, vec![opened(), intent()]);
        let step = step("charge");
        let intent = progress.intent(&step).unwrap();
        let case = format!("{external:?} {found:?}");
        assert_eq!(asked(external, &step, intent, found, at(now)), expected, "{case}");
    }
}

#[test]
fn an_intent_is_void_only_if_no_sending_of_it_can_be_under_way() {
    let step = step("charge");
    let resend = External::resend(WINDOW, HOUR);
    let resent = Event::Resent { step: step.clone() };
    let stopped = AfterFailure::Uncertain(Stopped::Unresolved { step: step.clone() });
    let cases = [
        (External::NEVER_AGAIN, false, CallFailure::NotSent, AfterFailure::Void),
        (External::NEVER_AGAIN, false, CallFailure::Unknown, stopped.clone()),
        (resend, false, CallFailure::Unknown, AfterFailure::Later),
        (resend, true, CallFailure::NotSent, AfterFailure::Later),
        (External::ASK, true, CallFailure::NotSent, AfterFailure::Later),
        (External::NEVER_AGAIN, true, CallFailure::NotSent, stopped),
    ];
    for (external, again, failure, expected) in cases {
        let plan = shape(external);
        let mut events = vec![opened(), intent()];
        events.extend(again.then(|| resent.clone()));
        let progress = progress(&plan, events);
        let intent = progress.intent(&step).unwrap();
        assert_eq!(
            failed(external, &step, intent, failure, at(10)),
            expected,
            "{external:?} {again} {failure:?}"
        );
    }
    // And a journal that says otherwise is no journal.
    let not_sent = Event::NotSent { step };
    let void = progress(&shape(resend), vec![opened(), intent(), not_sent.clone()]);
    assert!(!void.has_started() && !void.is_past_foreign());
    let entries = journal(&shape(resend), vec![opened(), intent(), resent, not_sent]);
    assert_eq!(Progress::of(&entries), Err(Broken { seq: 3 }));
}

#[test]
fn a_journal_with_gaps_or_doubles_is_refused() {
    let plan = shape(External::ASK);
    let cases = [
        vec![],
        vec![done("create")],
        vec![opened(), opened()],
        vec![opened(), done("create"), done("create")],
        vec![opened(), result()],
        vec![opened(), intent(), intent()],
        vec![opened(), intent(), result(), result()],
        vec![opened(), Event::Resent { step: step("charge") }],
    ];
    for events in cases {
        let last = u32::try_from(events.len()).unwrap().saturating_sub(1);
        assert_eq!(Progress::of(&journal(&plan, events)), Err(Broken { seq: last }));
    }
    let mut gap = journal(&plan, vec![opened(), done("create"), done("finish")]);
    gap.remove(1);
    assert_eq!(Progress::of(&gap), Err(Broken { seq: 2 }));
    let mut whole = progress(&plan, vec![opened()]);
    assert_eq!(whole.add(&gap[1]), Err(Broken { seq: 2 }));
    assert_eq!(whole, progress(&plan, vec![opened()]), "a refused entry changes nothing");
}

#[test]
fn a_changed_plan_is_refused_and_never_guessed() {
    let (old, new) = (shape(External::ASK), shape(External::NEVER_AGAIN));
    let progress = progress(&old, vec![opened(), done("create")]);
    let refused = next(&progress, &new, &step("create"), Attended::Retry, at(9));
    assert_eq!(refused, Err(Refused::PlanChanged { stored: old.text() }));
    let unknown = next(&progress, &old, &step("refund"), Attended::Retry, at(9));
    assert_eq!(unknown, Err(Refused::NoSuchStep(step("refund"))));
}

fn record(recovery: RecoveryClass, state: State) -> Record {
    Record {
        attempt: AttemptId::new(1),
        fence: Fence::from_u64(1),
        status_id: StatusId::new(1),
        fingerprint: Fingerprint::from_parts(1, 1, [0; 32]),
        recovery,
        contract_version: 1,
        endpoint: "POST /rides".into(),
        opened_at: at(0),
        state,
    }
}

#[test]
fn protocol_24_the_completer_goes_on_only_past_the_first_foreign_mutation_or_within_the_deadline() {
    let terms = Terms::default();
    let plan = shape(External::ASK);
    let other = shape(External::NEVER_AGAIN);
    let lost = record(RecoveryClass::Phased, State::InFlight { lease_until: at(30) });
    let failure = Event::Failed { why: "the provider is down".into() };
    let resumed = || Event::Resumed { by: Attended::Completer };
    let worn_out = |rest: Vec<Event>| {
        let mut events = vec![opened(), done("create"), intent()];
        events.extend((0..terms.tries_max).map(|_| resumed()));
        events.extend(rest);
        events
    };
    let operator = Event::Operator { who: "ann".into(), act: Act::Resume, why: "it is up again".into() };
    let gave_up = |why: &str| Judgement::Stop(Stopped::GaveUp { why: why.into() });
    let changed = Judgement::Stop(Stopped::PlanChanged { current: other.text() });
    let day = 86_400;
    type Case<'a> = (&'a str, Option<Vec<Event>>, Option<&'a Shape>, i64, Judgement);
    let cases: Vec<Case<'_>> = vec![
        ("the lease lasts", Some(vec![opened(), intent()]), Some(&plan), 29, Judgement::Leave),
        ("nothing written, caller waits", None, None, 59, Judgement::Wait(at(60))),
        ("nothing written, caller gone", None, None, 60, Judgement::Close),
        ("in time", Some(vec![opened()]), Some(&plan), 59, Judgement::GoOn),
        ("never started, late", Some(vec![opened()]), Some(&plan), 60, Judgement::Close),
        ("local work, in time", Some(vec![opened(), done("create")]), Some(&plan), 59, Judgement::GoOn),
        (
            "local work, late",
            Some(vec![opened(), done("create")]),
            Some(&plan),
            60,
            Judgement::Wait(at(24 * 3600)),
        ),
        (
            "local work, a day later",
            Some(vec![opened(), done("create")]),
            Some(&plan),
            day,
            Judgement::Stop(Stopped::Abandoned),
        ),
        ("past foreign, late", Some(vec![opened(), intent()]), Some(&plan), 3 * day, Judgement::GoOn),
        ("called, late", Some(vec![opened(), intent(), result()]), Some(&plan), 3 * day, Judgement::GoOn),
        ("the plan runs elsewhere", Some(vec![opened(), intent()]), None, day, Judgement::Leave),
        ("the plan changed", Some(vec![opened(), intent()]), Some(&other), 40, changed),
        (
            "worn out by crashes",
            Some(worn_out(vec![])),
            Some(&plan),
            day,
            gave_up("its process ended each time"),
        ),
        ("worn out", Some(worn_out(vec![failure])), Some(&plan), day, gave_up("the provider is down")),
        ("and it moved", Some(worn_out(vec![result()])), Some(&plan), day, Judgement::GoOn),
        ("and a person resumed it", Some(worn_out(vec![operator])), Some(&plan), day, Judgement::GoOn),
    ];
    for (case, events, shape, now, expected) in cases {
        let progress = events.map(|events| progress(&plan, events));
        let standing =
            progress.as_ref().map_or(Standing::Unopened, |progress| Standing::Known(progress, shape));
        assert_eq!(judge(&lost, standing, &terms, at(now)), expected, "{case}");
    }
}

#[test]
fn protocol_24_a_completer_that_comes_too_late_to_the_first_call_does_not_make_it() {
    let plan = shape(External::ASK).external("refund", External::ASK).unwrap();
    let begun = progress(&plan, vec![opened(), done("create")]);
    let charged = progress(&plan, vec![opened(), done("create"), intent(), result()]);
    let cases = [
        (&begun, "charge", Attended::Completer, 59, Next::Run),
        (&begun, "charge", Attended::Completer, 60, Next::TooLate),
        (&begun, "charge", Attended::Retry, 60, Next::Run),
        (&begun, "finish", Attended::Completer, 60, Next::Run),
        (&charged, "refund", Attended::Completer, 60, Next::Run),
    ];
    for (progress, name, by, now, expected) in cases {
        assert_eq!(next(progress, &plan, &step(name), by, at(now)), Ok(expected), "{name} {by:?} {now}");
    }
}

#[test]
fn protocol_8_the_completer_obeys_the_stored_class_and_touches_nothing_that_is_not_in_flight() {
    let plan = shape(External::ASK);
    let progress = progress(&plan, vec![opened(), intent()]);
    let in_flight = State::InFlight { lease_until: at(30) };
    let uncertain = State::Uncertain { since: at(30), why: Uncertainty::Stopped };
    let others = [
        record(RecoveryClass::Atomic, in_flight.clone()),
        record(RecoveryClass::Outside, in_flight.clone()),
        record(RecoveryClass::Deduplicated, in_flight),
        record(RecoveryClass::Phased, uncertain),
    ];
    for record in &others {
        let standing = Standing::Known(&progress, Some(&plan));
        let judged = judge(record, standing, &Terms::default(), at(90));
        assert_eq!(judged, Judgement::Leave, "{record:?}");
    }
}

#[test]
fn pauses_double_up_to_their_bound_and_never_are_nothing() {
    let terms = Terms::default();
    for tries in [1, 2, 5, 40, u32::MAX] {
        let (least, most) = (pause(&terms, tries, 0), pause(&terms, tries, u64::MAX));
        assert!(least >= terms.pause_first / 2 && most <= terms.pause_longest, "{tries}: {least:?} {most:?}");
        assert!(most > least);
    }
    assert!(pause(&terms, 3, 0) >= 2 * pause(&terms, 2, 0) - Duration::from_millis(1));
}

#[test]
fn protocol_25_what_is_kept_of_a_request_stays_out_of_debug() {
    let request = Snapshot { principal: "rider-0451".into(), fields: Bytes::from_static(b"amount 99") };
    let shown = format!("{:?}", Event::Opened { plan: "p".into(), request, deadline: at(0) });
    assert!(!shown.contains("0451") && !shown.contains("99"), "{shown}");
}

/// The one way past protocol 24: somebody looked, and says so.
#[test]
fn a_person_who_resumes_lets_it_go_on_past_its_callers_deadline() {
    let plan = shape(External::ASK);
    let operator = |act| Event::Operator { who: "ann".into(), act, why: "its rider was phoned".into() };
    let local = |more: Vec<Event>| progress(&plan, [vec![opened(), done("create")], more].concat());
    let long_ago = at(30 * 24 * 3600);
    let record = abandoned_record();
    let judged = |progress: &Progress| {
        judge(&record, Standing::Known(progress, Some(&plan)), &Terms::default(), long_ago)
    };
    let charge =
        |progress: &Progress| next(progress, &plan, &step("charge"), Attended::Completer, long_ago).unwrap();
    let left = local(vec![]);
    assert_eq!((judged(&left), charge(&left)), (Judgement::Stop(Stopped::Abandoned), Next::TooLate));
    let resumed = local(vec![operator(Act::Resume)]);
    assert_eq!((judged(&resumed), charge(&resumed)), (Judgement::GoOn, Next::Run));
    let released = local(vec![operator(Act::Release)]);
    assert_eq!((judged(&released), charge(&released)), (Judgement::Stop(Stopped::Abandoned), Next::TooLate));
}

fn abandoned_record() -> Record {
    Record {
        attempt: AttemptId::new(1),
        fence: Fence::from_u64(1),
        status_id: StatusId::new(1),
        fingerprint: Fingerprint::from_parts(1, 1, [0; 32]),
        recovery: RecoveryClass::Phased,
        contract_version: 1,
        endpoint: "POST /rides".into(),
        opened_at: at(0),
        state: State::InFlight { lease_until: at(5) },
    }
}

#[test]
fn a_key_is_freed_only_where_the_journal_tells_of_no_work() {
    let plan = shape(External::ASK);
    let of = |events: Vec<Event>| is_untouched(&journal(&plan, events));
    assert!(is_untouched(&[]));
    assert!(of(vec![opened()]) && of(vec![opened(), Event::Resumed { by: Attended::Retry }]));
    assert!(!of(vec![opened(), done("create")]) && !of(vec![opened(), intent()]));
    // One that cannot be read tells nothing.
    assert!(!of(vec![done("create")]));
}
