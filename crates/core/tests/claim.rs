//! A claim as a value, and the writes it may make, against every state a record can be in.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers fail the test that calls them

mod cases;

use std::time::Duration;

use cases::*;
use retrysafe_core::{
    claim::{Change, Claim, Settled, Settling, Stale, Times, Unsettled},
    ids::{AttemptId, Fence},
    record::{Expect, Record, RecoveryClass, RemoveIf, ResourceId, State, Uncertainty, Write},
    time::Wall,
};

const TIMES: Times = Times { replay: Duration::from_secs(100), reap: Duration::from_secs(300) };

fn opened(attempt: u128) -> Write {
    let next =
        Record { attempt: AttemptId::new(attempt), ..record(RecoveryClass::Atomic, in_flight(at(30))) };
    Write { expect: Expect::Absent, next }
}

fn won(attempt: u128) -> Claim {
    Claim::won(address(), &opened(attempt), Fence::from_u64(8)).unwrap()
}

fn written(settling: &Settling) -> Write {
    match settling.change() {
        Change::Write(write) => (**write).clone(),
        Change::Remove(_) => panic!("it removes"),
    }
}

/// What the store does with a write: the next record, or what was there.
fn applied(seen: &Record, write: &Write) -> Option<Record> {
    write.expect.allows(Some(seen)).then(|| write.next.clone())
}

#[test]
fn every_expectation_against_every_state() {
    let attempt = AttemptId::new(1);
    let other = AttemptId::new(2);
    let held = record(RecoveryClass::Atomic, in_flight(at(30)));
    let unclear = record(RecoveryClass::Atomic, uncertain());
    let done = record(RecoveryClass::Atomic, completed(at(30), at(60)));
    let takeover = |attempt, by| Expect::Takeover { attempt, expired_by: by };
    let expired = |attempt, by| Expect::Expired { attempt, expired_by: by };
    // Expectation: allowed on nothing, in flight, uncertain, completed.
    let rows = [
        (Expect::Absent, [true, false, false, false]),
        (Expect::Attempt(attempt), [false, true, true, false]),
        (Expect::Attempt(other), [false, false, false, false]),
        (Expect::Holding(attempt), [false, true, false, false]),
        (Expect::Holding(other), [false, false, false, false]),
        (takeover(attempt, at(29)), [false, false, false, false]),
        (takeover(attempt, at(30)), [false, true, false, false]),
        (takeover(other, at(30)), [false, false, false, false]),
        (expired(attempt, at(29)), [false, false, false, false]),
        (expired(attempt, at(30)), [false, false, false, true]),
        (expired(other, at(30)), [false, false, false, false]),
    ];
    for (expect, allowed) in rows {
        let found = [None, Some(&held), Some(&unclear), Some(&done)].map(|seen| expect.allows(seen));
        assert_eq!(found, allowed, "{expect:?}");
    }
    // Removal: allowed on in flight, uncertain, completed.
    let rows = [
        (RemoveIf::Attempt(attempt), [true, true, false]),
        (RemoveIf::Attempt(other), [false, false, false]),
        (RemoveIf::Reapable { attempt, by: at(59) }, [false, false, false]),
        (RemoveIf::Reapable { attempt, by: at(60) }, [false, false, true]),
        (RemoveIf::Reapable { attempt: other, by: at(60) }, [false, false, false]),
    ];
    for (guard, allowed) in rows {
        assert_eq!([&held, &unclear, &done].map(|seen| guard.allows(seen)), allowed, "{guard:?}");
    }
}

#[test]
fn protocol_6_the_eight_steps_of_a_double_effect_end_at_the_seventh() {
    // 1. A claims. 2. A pauses. 3. Its lease ends. 4. B reads the expired claim.
    let a = won(1);
    let read = Record { fence: a.fence(), ..opened(1).next };
    let now = at(31);
    let takeover = Write {
        expect: Expect::Takeover { attempt: read.attempt, expired_by: now },
        next: Record { attempt: AttemptId::new(2), state: in_flight(at(61)), ..read.clone() },
    };
    assert!(takeover.expect.allows(Some(&read)), "what B read may be taken over");
    // 5. A wakes. 6. It completes, under a fence that is still the current one.
    let completion = written(&a.complete(outcome(201), TIMES, None, now));
    let done = applied(&read, &completion).expect("nobody took over yet");
    assert_eq!(done.fence, read.fence, "a guard on the fence alone would still match");
    // 7. B's takeover. 8. (B would run the effect again.)
    assert_eq!(applied(&done, &takeover), None);

    // The other order: once B has taken over, nothing of A applies.
    let a = won(1);
    let taken = applied(&read, &takeover).unwrap();
    assert_eq!(applied(&taken, &a.renewal(now, LEASE)), None);
    for settling in [won(1).complete(outcome(201), TIMES, None, now), won(1).hold(Uncertainty::Declared, now)]
    {
        assert_eq!(applied(&taken, &written(&settling)), None);
    }
    let Change::Remove(guard) = a.release().change().clone() else { panic!() };
    assert!(!guard.allows(&taken), "A must not free B's claim");
}

#[test]
fn protocol_6_a_renewal_leaves_the_completion_valid() {
    let a = won(1);
    let held = opened(1).next;
    let renewed = applied(&held, &a.renewal(at(20), LEASE)).unwrap();
    assert_eq!(renewed.lease_until(), Some(at(50)));
    assert_eq!(renewed.attempt, held.attempt);
    assert!(!a.renewal(at(20), LEASE).opens_claim(), "a renewal gets no new fence");
    assert!(applied(&renewed, &written(&a.complete(outcome(201), TIMES, None, at(21)))).is_some());
}

#[test]
fn r4_a_renewal_that_arrives_late_changes_nothing() {
    let late = won(1).renewal(at(29), LEASE);
    let held = opened(1).next;
    let ends =
        [won(1).complete(outcome(201), TIMES, None, at(28)), won(1).hold(Uncertainty::UpstreamLost, at(28))];
    for end in ends {
        let ended = applied(&held, &written(&end)).unwrap();
        assert_eq!(applied(&ended, &late), None, "{:?}", ended.state);
    }
    assert!(!late.expect.allows(None), "nor does it bring a released claim back");
}

#[test]
fn protocol_9_the_window_starts_at_completion() {
    let done = written(&won(1).complete(outcome(201), TIMES, None, at(1_000))).next;
    let State::Completed { at: completed_at, expires_at, reap_at, .. } = done.state else { panic!() };
    assert_eq!((completed_at, expires_at, reap_at), (at(1_000), at(1_100), at(1_300)));
    assert_eq!(done.opened_at, at(0), "not at the claim");
}

#[test]
fn a_record_is_never_reaped_before_its_window_ends() {
    let odd = Times { replay: Duration::from_secs(500), reap: Duration::from_secs(1) };
    let State::Completed { expires_at, reap_at, .. } =
        written(&won(1).complete(outcome(201), odd, None, at(0))).next.state
    else {
        panic!()
    };
    assert_eq!(reap_at, expires_at);
    let absurd = Times { replay: Duration::MAX, reap: Duration::MAX };
    let State::Completed { expires_at, .. } =
        written(&won(1).complete(outcome(201), absurd, None, at(0))).next.state
    else {
        panic!()
    };
    assert!(expires_at > at(0), "an absurd window does not wrap to the past");
}

#[test]
fn protocol_9_the_original_attempt_may_still_settle_an_uncertain_record() {
    let marked = Record { state: uncertain(), ..opened(1).next };
    let completion = won(1).complete(outcome(201), TIMES, Some(ResourceId("o-1".into())), at(90));
    let done = applied(&marked, &written(&completion)).expect("its true result is welcome");
    assert!(matches!(done.state, State::Completed { resource: Some(_), .. }));
    let Change::Remove(guard) = won(1).release().change().clone() else { panic!() };
    assert!(guard.allows(&marked), "nothing happened is a true result too");
    assert_eq!(applied(&marked, &won(1).renewal(at(90), LEASE)), None, "but it is not in flight again");
}

#[test]
fn evidence_settles_what_is_uncertain_and_nothing_else() {
    for state in [in_flight(at(30)), completed(at(30), at(60))] {
        assert!(Unsettled::of(address(), record(RecoveryClass::Outside, state)).is_none());
    }
    let marked = record(RecoveryClass::Outside, uncertain());
    let unsettled = Unsettled::of(address(), marked.clone()).unwrap();
    let by_probe = written(&unsettled.complete(outcome(201), TIMES, at(50)));
    assert!(applied(&marked, &by_probe).is_some());
    assert_eq!(unsettled.fence(), marked.fence);
    // Whoever comes first with a completed answer wins; the second finds it and leaves it.
    let done = applied(&marked, &by_probe).unwrap();
    let own = Write { expect: Expect::Attempt(marked.attempt), next: done.clone() };
    assert_eq!(applied(&done, &own), None);
    let Change::Remove(guard) = unsettled.release().change().clone() else { panic!() };
    assert!(!guard.allows(&done));
}

#[test]
fn nobody_makes_a_claim_out_of_anything_but_an_opening_write() {
    let a = won(1);
    assert!(Claim::won(address(), &a.renewal(at(5), LEASE), Fence::from_u64(8)).is_none());
    let completion = written(&won(1).complete(outcome(201), TIMES, None, at(5)));
    assert!(Claim::won(address(), &completion, Fence::from_u64(8)).is_none());
    let done = Write { expect: Expect::Absent, next: record(RecoveryClass::Atomic, uncertain()) };
    assert!(Claim::won(address(), &done, Fence::from_u64(8)).is_none());
    let takeover =
        Write { expect: Expect::Takeover { attempt: AttemptId::new(9), expired_by: at(1) }, ..opened(1) };
    let claim = Claim::won(address(), &takeover, Fence::from_u64(8)).unwrap();
    assert_eq!((claim.fence(), claim.attempt()), (Fence::from_u64(8), AttemptId::new(1)));
    assert_eq!(claim.recovery(), RecoveryClass::Atomic);
}

/// R3: what the store says is what the caller is told. A stale holder never gets its own result back.
#[test]
fn every_settlement_with_either_answer_of_the_store() {
    let now: Wall = at(20);
    let complete = || won(1).complete(outcome(201), TIMES, None, now);
    let hold = || won(1).hold(Uncertainty::Panicked, now);
    let release = || won(1).release();
    assert!(matches!(complete().settle(true), Ok(Settled::Stored(stored)) if *stored == outcome(201)));
    assert_eq!(hold().settle(true), Ok(Settled::Held));
    assert_eq!(release().settle(true), Ok(Settled::Released));
    for settling in [complete(), hold(), release()] {
        assert_eq!(settling.settle(false), Err(Stale));
    }
}
