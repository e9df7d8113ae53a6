//! Who gets a key.

use retrysafe_core::record::{Expect, Record};

use super::{Place, samples::*};
use crate::Written;

pub(super) async fn r1_of_fifty_at_once_exactly_one_wins(place: &dyn Place) {
    let store = open(place);
    for round in 0..5_u128 {
        let address = address(&format!("race-{round}"));
        let tasks: Vec<_> = (1..=50)
            .map(|n| {
                let (store, address) = (store.clone(), address.clone());
                let next = held(round * 1_000 + n);
                tokio::spawn(
                    async move { store.write_if(&address, &write(Expect::Absent, &next)).await.unwrap() },
                )
            })
            .collect();
        let mut answers = Vec::new();
        for task in tasks {
            answers.push(task.await.unwrap());
        }
        let winners = answers.iter().filter(|answer| matches!(answer, Written::Yes(_))).count();
        assert_eq!(winners, 1);
        let present = store.load(&address).await.unwrap();
        assert!(present.is_some());
        for answer in answers {
            if let Written::No(seen) = answer {
                assert_eq!(seen, present, "a loser sees the winner");
            }
        }
    }
}

pub(super) async fn a_loser_gets_the_record_that_is_there(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let winner = claim(&*store, &address, 1).await;
    refused(&*store, &address, Expect::Absent, &held(2), Some(&winner)).await;
    let winner = apply(&*store, &address, holder(&winner), &done(&winner)).await;
    refused(&*store, &address, Expect::Absent, &held(2), Some(&winner)).await;
}

/// What is answered from without a write must not be older than what a write would have met.
pub(super) async fn what_is_at_hand_is_what_a_load_tells(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    assert_eq!(store.at_hand(&address), None, "nothing is there");
    let mine = claim(&*store, &address, 1).await;
    let told = |present: &Record| store.at_hand(&address).is_none_or(|record| record == *present);
    assert!(told(&mine));
    let done = apply(&*store, &address, holder(&mine), &done(&mine)).await;
    assert!(told(&done));
    assert!(store.remove_if(&address, reapable(&done, at(1_000_000))).await.unwrap());
    assert_eq!(store.at_hand(&address), None, "it is gone");
}

pub(super) async fn r6_an_own_claim_that_was_sent_again_is_won_again(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let first = claim(&*store, &address, 1).await;
    let again = claim(&*store, &address, 1).await;
    assert_eq!(first.fence, again.fence, "the fence issued the first time");
    // The same attempt with another content is not what was written.
    let other = Record { contract_version: 4, endpoint: "POST /payments".into(), ..held(1) };
    let other = Record { status_id: held(9).status_id, ..other };
    refused(&*store, &address, Expect::Absent, &other, Some(&first)).await;
    // A claim that arrives again after its request was completed does not become a claim.
    let completed = apply(&*store, &address, holder(&first), &done(&first)).await;
    refused(&*store, &address, Expect::Absent, &held(1), Some(&completed)).await;
}

pub(super) async fn a_claim_on_an_absent_key_under_a_stale_view_is_refused(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let gone = held(1);
    for expect in [holder(&gone), takeover(&gone, at(1_000)), expired(&gone, at(1_000_000))] {
        refused(&*store, &address, expect, &held(2), None).await;
    }
}

pub(super) async fn an_expired_window_allows_one_new_claim(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let first = claim(&*store, &address, 1).await;
    let completed = apply(&*store, &address, holder(&first), &done(&first)).await;
    let ends = START.plus(WINDOW);
    let before = ends.unix_ms() - 1;
    let early = expired(&completed, retrysafe_core::time::Wall::from_unix_ms(before));
    refused(&*store, &address, early, &held(2), Some(&completed)).await;
    // SPEC 3.3: from the end of the window on, the key is a new request.
    let second = apply(&*store, &address, expired(&completed, ends), &held(2)).await;
    assert!(second.fence > completed.fence);
    refused(&*store, &address, expired(&completed, ends), &held(3), Some(&second)).await;
}

pub(super) async fn f16_case_and_trailing_space_make_another_key(place: &dyn Place) {
    let store = open(place);
    let keys = ["abc", "ABC", "abc ", " abc", "abc.", "ab"];
    for (n, key) in (1..).zip(keys) {
        claim(&*store, &address(key), n).await;
    }
    for (n, key) in (1..).zip(keys) {
        let record = store.load(&address(key)).await.unwrap().unwrap();
        assert_eq!(record.attempt, held(n).attempt, "{key:?}");
    }
}

pub(super) async fn k5_namespace_and_account_make_another_key(place: &dyn Place) {
    let store = open(place);
    let places =
        [("shop", "alice"), ("shop", "ALICE"), ("shop", "bob"), ("shop2", "alice"), ("shop", "käthe")];
    for (n, (namespace, account)) in (1..).zip(places) {
        claim(&*store, &address_of(namespace, account, "k"), n).await;
    }
    for (n, (namespace, account)) in (1..).zip(places) {
        let record = store.load(&address_of(namespace, account, "k")).await.unwrap().unwrap();
        assert_eq!(record.attempt, held(n).attempt, "{namespace} {account}");
    }
}
