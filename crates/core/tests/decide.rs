//! The decision table of a keyed request, and what upkeep may do, as data.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers fail the test that calls them

mod cases;

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use cases::*;
use proptest::prelude::*;
use retrysafe_core::{
    codes::Code,
    contract::{InFlight, InFlightAnswer},
    decide::{Asked, Decision, Refusal, Rules, Upkeep, decide, upkeep},
    fingerprint::Match,
    ids::{AttemptId, Fence, StatusId},
    record::{Expect, Record, RecoveryClass, State, Uncertainty},
    time::Wall,
};

/// A decision, without what it carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Says {
    ClaimAbsent,
    ClaimExpired,
    TakeOver,
    MarkUncertain,
    Replay,
    Mismatch,
    InFlight,
    Unknown,
    Uncertain,
    Wait,
    Accept,
}

fn says(decision: &Decision) -> Says {
    match decision {
        Decision::Claim(write) => match write.expect {
            Expect::Absent => Says::ClaimAbsent,
            Expect::Expired { .. } => Says::ClaimExpired,
            Expect::Takeover { .. } => Says::TakeOver,
            Expect::Attempt(_) | Expect::Holding(_) => panic!("a claim is never somebody else's own write"),
        },
        Decision::MarkUncertain(write) => {
            assert!(!write.opens_claim(), "marking gives nobody the right to run");
            assert!(matches!(write.next.state, State::Uncertain { .. }));
            Says::MarkUncertain
        }
        Decision::Replay(_) => Says::Replay,
        Decision::Refuse(refusal) => match refusal.code {
            Code::PayloadMismatch => Says::Mismatch,
            Code::KeyInFlight => Says::InFlight,
            Code::OutcomeUnknown => Says::Unknown,
            other => panic!("decide has no business with {other}"),
        },
        Decision::Uncertain(_) => Says::Uncertain,
        Decision::Wait(_) => Says::Wait,
        Decision::Accept { .. } => Says::Accept,
    }
}

static ENDPOINT: LazyLock<Arc<str>> = LazyLock::new(|| "POST /orders".into());
const REFUSE: InFlightAnswer = InFlightAnswer::Refuse;
const WAIT: InFlightAnswer = InFlightAnswer::Wait { at_most: Duration::from_secs(4) };
const PREFERRED: InFlightAnswer = InFlightAnswer::AcceptPreferred;
const ALWAYS: InFlightAnswer = InFlightAnswer::AcceptAlways;

/// Who asks, and under which rules.
#[derive(Clone, Copy)]
struct Asking {
    answer: InFlightAnswer,
    prefers_async: bool,
    matches: Match,
    /// Today's contract; never that of a takeover.
    recovery: RecoveryClass,
}

const PLAIN: Asking =
    Asking { answer: REFUSE, prefers_async: false, matches: Match::Same, recovery: RecoveryClass::Outside };

fn asked_at(seen: Option<&Record>, asking: Asking, now: Wall) -> Decision {
    let verify = |_: &_| asking.matches;
    let asked = Asked { fingerprint: fingerprint(9), verify: &verify, prefers_async: asking.prefers_async };
    let in_flight = InFlight { answer: asking.answer, retry_after: Duration::from_secs(2) };
    let rules = Rules {
        endpoint: &ENDPOINT,
        contract_version: 4,
        recovery: asking.recovery,
        lease: LEASE,
        in_flight: &in_flight,
    };
    decide(seen, &asked, &rules, fresh(2), now)
}

#[test]
fn every_row_of_the_decision_table() {
    use RecoveryClass::*;
    let held = |recovery| Some(record(recovery, in_flight(at(30))));
    let lost = |recovery| Some(record(recovery, in_flight(at(20))));
    let done = Some(record(Outside, completed(at(100), at(300))));
    let over = Some(record(Outside, completed(at(20), at(300))));
    let unclear = Some(record(Outside, uncertain()));
    let different = Asking { matches: Match::Different, ..PLAIN };
    let unreadable = Asking { matches: Match::Unknown, ..PLAIN };
    let waits = Asking { answer: WAIT, ..PLAIN };
    let always = Asking { answer: ALWAYS, ..PLAIN };
    let preferred = Asking { answer: PREFERRED, ..PLAIN };
    let asks_async = Asking { prefers_async: true, ..preferred };
    // Second 20 of each story.
    let rows = [
        ("never received", None, PLAIN, Says::ClaimAbsent),
        ("never received, whatever it is", None, different, Says::ClaimAbsent),
        ("in flight", held(Outside), PLAIN, Says::InFlight),
        ("in flight, atomic", held(Atomic), PLAIN, Says::InFlight),
        ("in flight, wait", held(Outside), waits, Says::Wait),
        ("in flight, 202 always", held(Outside), always, Says::Accept),
        ("protocol 31: 202 for those who asked", held(Outside), asks_async, Says::Accept),
        ("protocol 31: not for the others", held(Outside), preferred, Says::InFlight),
        (
            "asked for 202 where there is none",
            held(Outside),
            Asking { prefers_async: true, ..PLAIN },
            Says::InFlight,
        ),
        ("F14: mismatch before in-flight", held(Outside), different, Says::Mismatch),
        ("F14: mismatch before wait", held(Outside), Asking { answer: WAIT, ..different }, Says::Mismatch),
        ("F14: mismatch before 202", held(Outside), Asking { answer: ALWAYS, ..different }, Says::Mismatch),
        ("F18: unreadable is not in flight", held(Outside), unreadable, Says::Unknown),
        ("lease over, outside", lost(Outside), PLAIN, Says::MarkUncertain),
        ("lease over, atomic", lost(Atomic), PLAIN, Says::TakeOver),
        ("lease over, phased", lost(Phased), PLAIN, Says::TakeOver),
        ("lease over, de-duplicated", lost(Deduplicated), PLAIN, Says::TakeOver),
        ("lease over, nobody waits for the dead", lost(Outside), waits, Says::MarkUncertain),
        ("lease over, another body", lost(Atomic), different, Says::Mismatch),
        ("lease over, unreadable: never run on a guess", lost(Atomic), unreadable, Says::Unknown),
        ("uncertain", unclear.clone(), PLAIN, Says::Uncertain),
        ("uncertain is not waited for", unclear.clone(), waits, Says::Uncertain),
        ("uncertain is not accepted", unclear.clone(), always, Says::Uncertain),
        ("uncertain, another body", unclear.clone(), different, Says::Mismatch),
        ("uncertain, unreadable", unclear, unreadable, Says::Unknown),
        ("done", done.clone(), PLAIN, Says::Replay),
        ("done, waiting callers get it too", done.clone(), waits, Says::Replay),
        ("done, async callers get the answer", done.clone(), asks_async, Says::Replay),
        ("done, another body", done.clone(), different, Says::Mismatch),
        ("F18: done, unreadable: never replayed on a guess", done, unreadable, Says::Unknown),
        ("window over", over.clone(), PLAIN, Says::ClaimExpired),
        ("SPEC 3.3: window over, another body is a new request", over.clone(), different, Says::ClaimExpired),
        ("window over, unreadable is a new request", over, unreadable, Says::ClaimExpired),
    ];
    for (name, seen, asking, expected) in rows {
        assert_eq!(says(&asked_at(seen.as_ref(), asking, at(20))), expected, "{name}");
    }
}

#[test]
fn the_first_instant_after_a_lease_or_a_window_belongs_to_what_comes_after() {
    let just_before = Wall::from_unix_ms(at(20).unix_ms() - 1);
    let leased = record(RecoveryClass::Atomic, in_flight(at(20)));
    assert_eq!(says(&asked_at(Some(&leased), PLAIN, just_before)), Says::InFlight);
    assert_eq!(says(&asked_at(Some(&leased), PLAIN, at(20))), Says::TakeOver);
    let done = record(RecoveryClass::Outside, completed(at(20), at(300)));
    assert_eq!(says(&asked_at(Some(&done), PLAIN, just_before)), Says::Replay);
    assert_eq!(says(&asked_at(Some(&done), PLAIN, at(20))), Says::ClaimExpired);
}

#[test]
fn a_new_claim_is_made_under_todays_terms() {
    let Decision::Claim(write) = asked_at(None, PLAIN, at(20)) else { panic!() };
    let next = write.next;
    assert!(write.expect == Expect::Absent);
    assert_eq!(next.attempt, AttemptId::new(2));
    assert_eq!(next.status_id, StatusId::new(1_002));
    assert_eq!(next.fingerprint, fingerprint(9));
    assert_eq!((next.recovery, next.contract_version), (RecoveryClass::Outside, 4));
    assert_eq!((next.opened_at, next.state), (at(20), in_flight(at(50))));
}

#[test]
fn a_window_that_is_over_starts_anew_and_keeps_nothing_of_the_old_request() {
    let over = record(RecoveryClass::Atomic, completed(at(20), at(300)));
    let Decision::Claim(write) = asked_at(Some(&over), PLAIN, at(25)) else { panic!() };
    assert_eq!(write.expect, Expect::Expired { attempt: over.attempt, expired_by: at(25) });
    assert!(write.opens_claim(), "the store must issue a new fence");
    assert_eq!(write.next.recovery, RecoveryClass::Outside);
    assert_eq!(write.next.fingerprint, fingerprint(9));
    assert_ne!(write.next.status_id, over.status_id, "an old status URL must not show the new operation");
}

#[test]
fn protocol_8_a_takeover_obeys_the_stored_class_and_version() {
    // Today's contract says the opposite of what the claim was made under.
    for (stored, today, expected) in [
        (RecoveryClass::Outside, RecoveryClass::Atomic, Says::MarkUncertain),
        (RecoveryClass::Outside, RecoveryClass::Deduplicated, Says::MarkUncertain),
        (RecoveryClass::Atomic, RecoveryClass::Outside, Says::TakeOver),
        (RecoveryClass::Deduplicated, RecoveryClass::Outside, Says::TakeOver),
    ] {
        let lost = record(stored, in_flight(at(20)));
        let decision = asked_at(Some(&lost), Asking { recovery: today, ..PLAIN }, at(25));
        assert_eq!(says(&decision), expected, "{stored:?} under {today:?}");
        let (Decision::Claim(write) | Decision::MarkUncertain(write)) = decision else { panic!() };
        assert_eq!(write.expect, Expect::Takeover { attempt: lost.attempt, expired_by: at(25) });
        let next = write.next;
        assert_eq!((next.recovery, next.contract_version), (stored, 3));
        assert_eq!((next.fingerprint, next.opened_at), (lost.fingerprint, lost.opened_at));
        assert_eq!(next.status_id, lost.status_id, "callers may be polling it");
    }
}

#[test]
fn protocol_6_a_takeover_has_an_attempt_of_its_own_and_a_mark_keeps_the_holders() {
    let taken = record(RecoveryClass::Atomic, in_flight(at(20)));
    let Decision::Claim(write) = asked_at(Some(&taken), PLAIN, at(25)) else { panic!() };
    assert_eq!(write.next.attempt, AttemptId::new(2));
    assert!(write.opens_claim());
    // Protocol 9: the original attempt may still settle what was marked.
    let marked = record(RecoveryClass::Outside, in_flight(at(20)));
    let Decision::MarkUncertain(write) = asked_at(Some(&marked), PLAIN, at(25)) else { panic!() };
    assert_eq!(write.next.attempt, marked.attempt);
    assert_eq!(write.next.state, State::Uncertain { since: at(25), why: Uncertainty::HolderLost });
}

#[test]
fn protocol_9_what_is_in_flight_or_uncertain_never_expires() {
    let for_ever = at(0).plus(Duration::from_secs(100 * 365 * 24 * 3600));
    let unclear = record(RecoveryClass::Outside, uncertain());
    assert_eq!(says(&asked_at(Some(&unclear), PLAIN, for_ever)), Says::Uncertain);
    assert_eq!(upkeep(&unclear, for_ever), Upkeep::Leave);
    let held = record(RecoveryClass::Outside, in_flight(at(30)));
    assert_eq!(says(&asked_at(Some(&held), PLAIN, for_ever)), Says::MarkUncertain, "marked, never freed");
}

#[test]
fn refusals_say_when_to_come_back_where_coming_back_helps() {
    let held = record(RecoveryClass::Outside, in_flight(at(30)));
    let decision = asked_at(Some(&held), PLAIN, at(20));
    assert_eq!(decision, Decision::Refuse(Refusal::after(Code::KeyInFlight, Duration::from_secs(2))));
    let decision = asked_at(Some(&held), Asking { answer: ALWAYS, ..PLAIN }, at(20));
    assert_eq!(decision, Decision::Accept { status_id: held.status_id, retry_after: Duration::from_secs(2) });
    let decision = asked_at(Some(&held), Asking { matches: Match::Different, ..PLAIN }, at(20));
    assert_eq!(decision, Decision::Refuse(Refusal::of(Code::PayloadMismatch)), "no time heals a mismatch");
}

#[test]
fn every_row_of_upkeep() {
    use RecoveryClass::*;
    let rows = [
        ("held", record(Outside, in_flight(at(21))), "leave"),
        ("abandoned", record(Outside, in_flight(at(20))), "mark"),
        ("abandoned, safe to run again", record(Atomic, in_flight(at(20))), "leave"),
        ("abandoned, phased", record(Phased, in_flight(at(20))), "leave"),
        ("abandoned, de-duplicated", record(Deduplicated, in_flight(at(20))), "leave"),
        ("T4: uncertain", record(Outside, uncertain()), "leave"),
        ("replayed", record(Outside, completed(at(30), at(40))), "leave"),
        ("kept for people", record(Outside, completed(at(15), at(21))), "leave"),
        ("past its reap threshold", record(Outside, completed(at(15), at(20))), "reap"),
    ];
    for (name, record, expected) in rows {
        let said = match upkeep(&record, at(20)) {
            Upkeep::Leave => "leave",
            Upkeep::Mark(write) => {
                let expect = Expect::Takeover { attempt: record.attempt, expired_by: at(20) };
                assert_eq!(write.expect, expect, "{name}: a holder that renewed in between is left alone");
                assert_eq!(write.next.attempt, record.attempt, "{name}: the holder may still settle it");
                "mark"
            }
            Upkeep::Reap(attempt) => {
                assert_eq!(attempt, record.attempt);
                "reap"
            }
        };
        assert_eq!(said, expected, "{name}");
    }
}

fn any_state() -> impl Strategy<Value = State> {
    prop_oneof![
        (0u64..60).prop_map(|lease| in_flight(at(lease))),
        Just(uncertain()),
        (0u64..60, 0u64..60).prop_map(|(window, keep)| completed(at(window), at(window + keep))),
    ]
}

fn any_recovery() -> impl Strategy<Value = RecoveryClass> {
    proptest::sample::select(RECOVERIES.to_vec())
}

proptest! {
    /// Whatever is seen, whoever asks: nobody gets a right to run beside a live lease, an uncertain record or an answer
    /// within its window, and every claim is a write that the record itself allows.
    #[test]
    fn nobody_runs_where_somebody_may_have(
        state in any_state(),
        stored in any_recovery(),
        today in any_recovery(),
        now in 0u64..60,
        prefers_async: bool,
        matches in proptest::sample::select(vec![Match::Same, Match::Different, Match::Unknown]),
        answer in proptest::sample::select(vec![REFUSE, WAIT, PREFERRED, ALWAYS]),
    ) {
        let seen = record(stored, state);
        let now = at(now);
        let decision = asked_at(Some(&seen), Asking { answer, prefers_async, matches, recovery: today }, now);
        if let Decision::Claim(write) = &decision {
            let free = match &seen.state {
                State::InFlight { lease_until } => *lease_until <= now && stored != RecoveryClass::Outside,
                State::Uncertain { .. } => false,
                State::Completed { expires_at, .. } => *expires_at <= now,
            };
            prop_assert!(free, "{seen:?} at {now:?}");
            prop_assert!(write.expect.allows(Some(&seen)));
            prop_assert!(!write.expect.allows(None), "a guard on what was read");
            prop_assert!(write.opens_claim());
            prop_assert_ne!(write.next.attempt, seen.attempt);
            prop_assert!(write.next.lease_until().is_some_and(|until| until > now));
        }
        if matches!(decision, Decision::Replay(_)) {
            prop_assert_eq!(matches, Match::Same, "nobody sees an answer that may be another request's");
        }
        // What the layer would store over the record is never a guess about another attempt's state.
        if let Decision::MarkUncertain(write) = &decision {
            prop_assert!(write.expect.allows(Some(&seen)));
            prop_assert_eq!(write.next.fence, seen.fence);
            prop_assert_ne!(write.next.fence, Fence::from_u64(0));
        }
    }

    /// Upkeep never deletes what could still be replayed, waited for or settled.
    #[test]
    fn t4_upkeep_deletes_only_what_is_past_both_times(state in any_state(), recovery in any_recovery(), now in 0u64..200) {
        let seen = record(recovery, state);
        if let Upkeep::Reap(_) = upkeep(&seen, at(now)) {
            let State::Completed { expires_at, reap_at, .. } = seen.state else { panic!("{seen:?}") };
            prop_assert!(reap_at <= at(now) && expires_at <= at(now));
        }
    }
}
