//! Reaping, fences, clocks, and what outlives a handle.

use retrysafe_core::record::{Expect, Record, RemoveIf};

use super::{Place, samples::*};
use crate::Written;

pub(super) async fn t4_the_reaper_never_removes_what_is_not_completed(place: &dyn Place) {
    let store = open(place);
    let long_after = at(1_000_000_000);
    let address = address("k");
    let mine = claim(&*store, &address, 1).await;
    assert!(!store.remove_if(&address, reapable(&mine, long_after)).await.unwrap(), "in flight");
    let marked = apply(&*store, &address, holder(&mine), &uncertain(&mine)).await;
    assert!(!store.remove_if(&address, reapable(&marked, long_after)).await.unwrap(), "uncertain");
    assert_eq!(store.load(&address).await.unwrap(), Some(marked));
}

pub(super) async fn reaping_needs_the_attempt_and_the_threshold(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let mine = claim(&*store, &address, 1).await;
    apply(&*store, &address, holder(&mine), &done(&mine)).await;
    let threshold = START.plus(REAP);
    let just_before = retrysafe_core::time::Wall::from_unix_ms(threshold.unix_ms() - 1);
    assert!(!store.remove_if(&address, reapable(&mine, just_before)).await.unwrap(), "too early");
    assert!(!store.remove_if(&address, reapable(&held(2), threshold)).await.unwrap(), "another attempt");
    assert!(store.load(&address).await.unwrap().is_some());
    assert!(store.remove_if(&address, reapable(&mine, threshold)).await.unwrap());
    assert_eq!(store.load(&address).await.unwrap(), None);
}

pub(super) async fn protocol_7_the_fence_grows_across_claims_takeovers_and_removal(place: &dyn Place) {
    let store = open(place);
    let (one, two) = (address("one"), address("two"));
    let first = claim(&*store, &one, 1).await;
    let second = claim(&*store, &two, 2).await;
    let third = apply(&*store, &one, takeover(&first, at(31)), &held(3)).await;
    assert!(store.remove_if(&one, RemoveIf::Attempt(third.attempt)).await.unwrap());
    let fourth = claim(&*store, &one, 4).await;
    let fences = [first.fence, second.fence, third.fence, fourth.fence];
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

pub(super) async fn the_clock_of_every_handle_never_goes_backward(place: &dyn Place) {
    let store = open(place);
    let first = store.now().unwrap();
    claim(&*store, &address("k"), 1).await;
    let second = store.now().unwrap();
    assert!(second >= first);
    if store.capability().shared {
        let other = open(place);
        assert!(other.now().unwrap() >= first, "a mark that was stored is known to every handle");
    }
}

pub(super) async fn reopening_keeps_every_record_and_the_fence(place: &dyn Place) {
    let store = open(place);
    if !store.capability().survives_process {
        return;
    }
    let mut kept = Vec::new();
    for n in 1..=30_u128 {
        let address = address(&format!("k{n}"));
        let mut record = claim(&*store, &address, n).await;
        match n % 3 {
            0 => record = apply(&*store, &address, holder(&record), &done(&record)).await,
            1 => record = apply(&*store, &address, holder(&record), &uncertain(&record)).await,
            _ => {}
        }
        kept.push((address, record));
    }
    let told = store.now().unwrap();
    let last = claim(&*store, &address("gone"), 99).await;
    assert!(store.remove_if(&address("gone"), RemoveIf::Attempt(last.attempt)).await.unwrap());
    drop(store);

    let store = open(place);
    for (address, record) in &kept {
        assert_eq!(store.load(address).await.unwrap().as_ref(), Some(record));
    }
    assert_eq!(store.census().await.unwrap().completed, 10);
    assert!(store.now().unwrap() >= told);
    let next = claim(&*store, &address("next"), 100).await;
    assert!(next.fence > last.fence, "also above the fence of a record that was removed");
}

pub(super) async fn two_handles_share_one_truth(place: &dyn Place) {
    let one = open(place);
    if !one.capability().shared {
        return;
    }
    let two = open(place);
    // What one commits, the other sees at once, in every verb.
    let address = address("k");
    let mine = claim(&*one, &address, 1).await;
    refused(&*two, &address, Expect::Absent, &held(2), Some(&mine)).await;
    let theirs = apply(&*two, &address, takeover(&mine, at(31)), &held(2)).await;
    refused(&*one, &address, holder(&mine), &done(&mine), Some(&theirs)).await;
    assert!(theirs.fence > mine.fence);

    // And when both race, one wins.
    for round in 0..10_u128 {
        let address = super::samples::address(&format!("race-{round}"));
        let tasks: Vec<_> = (1..=20)
            .map(|n: u128| {
                let store = if n.is_multiple_of(2) { one.clone() } else { two.clone() };
                let (address, next) = (address.clone(), held(round * 100 + n + 1_000));
                tokio::spawn(async move {
                    (next.attempt, store.write_if(&address, &write(Expect::Absent, &next)).await)
                })
            })
            .collect();
        let mut winner = None;
        for task in tasks {
            let (attempt, answer) = task.await.unwrap();
            if matches!(answer.unwrap(), Written::Yes(_)) {
                assert_eq!(winner.replace(attempt), None, "two winners");
            }
        }
        let present: Option<Record> = one.load(&address).await.unwrap();
        assert_eq!(present.map(|record| record.attempt), winner);
    }
}
