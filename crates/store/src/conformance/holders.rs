//! What a holder may do, and what everybody else may not.

use std::time::Duration;

use retrysafe_core::record::{Expect, Record, RemoveIf, State, Uncertainty};

use super::{Place, samples::*};
use crate::Written;

fn renewed(record: &Record, seconds: u64) -> Record {
    Record { state: State::InFlight { lease_until: at(seconds) }, ..record.clone() }
}

pub(super) async fn a_holder_completes_its_claim(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let mine = claim(&*store, &address, 1).await;
    // Whatever fence the caller puts into the record, the one that was issued stays.
    let completed = Record { fence: retrysafe_core::ids::Fence::from_u64(999), ..done(&mine) };
    let stored = apply(&*store, &address, holder(&mine), &completed).await;
    assert_eq!(stored.fence, mine.fence);
    assert_eq!(store.load(&address).await.unwrap(), Some(stored));
}

pub(super) async fn r6_an_own_completion_that_was_sent_again_is_done(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let mine = claim(&*store, &address, 1).await;
    let stored = apply(&*store, &address, holder(&mine), &done(&mine)).await;
    assert_eq!(apply(&*store, &address, holder(&mine), &done(&mine)).await, stored);
    // With another answer it is not the same completion.
    let other = done_with(&mine, answer(b"{\"id\":2}"), None);
    refused(&*store, &address, holder(&mine), &other, Some(&stored)).await;
}

pub(super) async fn r3_a_stale_attempt_is_refused_in_every_state(place: &dyn Place) {
    let store = open(place);
    let stale = held(9);
    let presents: [fn(&Record) -> Record; 3] = [Record::clone, uncertain, done];
    for (n, present) in presents.into_iter().enumerate() {
        let address = address(&format!("k{n}"));
        let mine = claim(&*store, &address, 1 + n as u128).await;
        let present = apply(&*store, &address, holder(&mine), &present(&mine)).await;
        for next in [renewed(&stale, 90), done(&stale), uncertain(&stale)] {
            refused(&*store, &address, holder(&stale), &next, Some(&present)).await;
            refused(&*store, &address, takeover(&stale, at(1_000_000)), &next, Some(&present)).await;
            refused(&*store, &address, expired(&stale, at(1_000_000)), &next, Some(&present)).await;
        }
        for guard in [RemoveIf::Attempt(stale.attempt), reapable(&stale, at(1_000_000))] {
            assert!(!store.remove_if(&address, guard).await.unwrap(), "{guard:?}");
        }
        assert_eq!(store.load(&address).await.unwrap(), Some(present));
    }
}

pub(super) async fn a_completed_record_is_never_overwritten_by_its_holder(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let mine = claim(&*store, &address, 1).await;
    let completed = apply(&*store, &address, holder(&mine), &done(&mine)).await;
    for next in [renewed(&mine, 90), uncertain(&mine), done_with(&mine, answer(b"other"), None), held(2)] {
        refused(&*store, &address, holder(&mine), &next, Some(&completed)).await;
        refused(&*store, &address, takeover(&mine, at(1_000_000)), &next, Some(&completed)).await;
    }
    assert!(!store.remove_if(&address, RemoveIf::Attempt(mine.attempt)).await.unwrap());
    assert_eq!(store.load(&address).await.unwrap(), Some(completed));
}

pub(super) async fn r4_a_renewal_does_not_disturb_the_completion(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let mine = claim(&*store, &address, 1).await;
    let longer = apply(&*store, &address, holder(&mine), &renewed(&mine, 60)).await;
    assert_eq!(longer.fence, mine.fence, "a renewal is not a claim");
    // The holder completes with what it held before the renewal.
    let completed = apply(&*store, &address, holder(&mine), &done(&mine)).await;
    // And a renewal that was on its way finds the answer and leaves it.
    refused(&*store, &address, holder(&mine), &renewed(&mine, 90), Some(&completed)).await;
}

pub(super) async fn protocol_9_an_uncertain_record_is_settled_by_its_attempt(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let mine = claim(&*store, &address, 1).await;
    // Another process marks it, keeping the attempt, so that the holder may still come back.
    let marked = apply(&*store, &address, takeover(&mine, at(31)), &uncertain(&mine)).await;
    assert_eq!(marked.fence, mine.fence, "nobody runs, so no fence");
    refused(&*store, &address, takeover(&marked, at(1_000_000)), &held(2), Some(&marked)).await;
    refused(&*store, &address, expired(&marked, at(1_000_000)), &held(2), Some(&marked)).await;
    refused(&*store, &address, Expect::Absent, &held(2), Some(&marked)).await;
    let settled = apply(&*store, &address, holder(&mine), &done(&mine)).await;
    assert_eq!(store.load(&address).await.unwrap(), Some(settled));
}

pub(super) async fn r4_a_late_renewal_does_not_wake_what_was_held_or_released(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let mine = claim(&*store, &address, 1).await;
    let longer = apply(&*store, &address, renewing(&mine), &renewed(&mine, 60)).await;
    let held = apply(&*store, &address, holder(&longer), &uncertain(&longer)).await;
    refused(&*store, &address, renewing(&mine), &renewed(&mine, 90), Some(&held)).await;
    assert!(store.remove_if(&address, RemoveIf::Attempt(mine.attempt)).await.unwrap());
    refused(&*store, &address, renewing(&mine), &renewed(&mine, 90), None).await;
}

pub(super) async fn takeover_needs_attempt_state_and_expiry_together(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let mine = claim(&*store, &address, 1).await;
    let lease_until = START.plus(LEASE);
    let just_before = retrysafe_core::time::Wall::from_unix_ms(lease_until.unix_ms() - 1);
    refused(&*store, &address, takeover(&mine, just_before), &held(2), Some(&mine)).await;
    refused(&*store, &address, takeover(&held(3), lease_until), &held(2), Some(&mine)).await;
    // Renewed in between: what was read as expired is alive again.
    let renewed = apply(&*store, &address, holder(&mine), &renewed(&mine, 90)).await;
    refused(&*store, &address, takeover(&mine, lease_until), &held(2), Some(&renewed)).await;
    let theirs = apply(&*store, &address, takeover(&mine, at(90)), &held(2)).await;
    assert!(theirs.fence > mine.fence);
    refused(&*store, &address, holder(&mine), &done(&mine), Some(&theirs)).await;
}

pub(super) async fn protocol_6_the_eight_steps_of_a_double_effect_end_at_the_seventh(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    // 1. A claims. 2. A pauses. 3. Its lease ends.
    let a = claim(&*store, &address, 1).await;
    let now = START.plus(LEASE + Duration::from_secs(1));
    // 4. B reads an expired claim.
    let read = store.load(&address).await.unwrap().unwrap();
    assert_eq!(read, a);
    // 5. A wakes, and completes: it still holds the claim. 6. Its effect is done.
    let completed = apply(&*store, &address, holder(&a), &done(&a)).await;
    assert_eq!(completed.fence, read.fence, "a fence as guard would still match");
    // 7. B takes over what it read. 8. (B would run the effect again.)
    refused(&*store, &address, takeover(&read, now), &held(2), Some(&completed)).await;

    // The other order: B takes over first, then A may neither complete, renew nor release.
    let address = super::samples::address("k2");
    let a = claim(&*store, &address, 3).await;
    let b = apply(&*store, &address, takeover(&a, now), &held(4)).await;
    for next in [done(&a), renewed(&a, 120), uncertain(&a)] {
        refused(&*store, &address, holder(&a), &next, Some(&b)).await;
    }
    assert!(!store.remove_if(&address, RemoveIf::Attempt(a.attempt)).await.unwrap());
    // B finishes, and A's late completion still changes nothing.
    let completed = apply(&*store, &address, holder(&b), &done(&b)).await;
    refused(&*store, &address, holder(&a), &done(&a), Some(&completed)).await;
}

pub(super) async fn r1_of_twenty_takeovers_at_once_exactly_one_wins(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let mine = claim(&*store, &address, 1).await;
    let tasks: Vec<_> = (2..22)
        .map(|n| {
            let (store, address, expect) = (store.clone(), address.clone(), takeover(&mine, at(31)));
            tokio::spawn(async move { store.write_if(&address, &write(expect, &held(n))).await.unwrap() })
        })
        .collect();
    let mut winners = 0;
    for task in tasks {
        winners += usize::from(matches!(task.await.unwrap(), Written::Yes(_)));
    }
    assert_eq!(winners, 1);
}

pub(super) async fn r2_only_the_holder_releases(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let mine = claim(&*store, &address, 1).await;
    assert!(!store.remove_if(&address, RemoveIf::Attempt(held(2).attempt)).await.unwrap());
    assert!(store.load(&address).await.unwrap().is_some());
    assert!(store.remove_if(&address, RemoveIf::Attempt(mine.attempt)).await.unwrap());
    assert_eq!(store.load(&address).await.unwrap(), None);
    assert!(!store.remove_if(&address, RemoveIf::Attempt(mine.attempt)).await.unwrap(), "once");
    // A release that arrives again must not hit the next claim of the same key.
    let next = claim(&*store, &address, 3).await;
    assert!(!store.remove_if(&address, RemoveIf::Attempt(mine.attempt)).await.unwrap());
    // The holder of an uncertain record may withdraw it as well: it knows that nothing happened.
    let why = Uncertainty::Declared;
    let marked = Record { state: State::Uncertain { since: at(1), why }, ..next.clone() };
    apply(&*store, &address, holder(&next), &marked).await;
    assert!(store.remove_if(&address, RemoveIf::Attempt(next.attempt)).await.unwrap());
}
