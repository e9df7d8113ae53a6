//! Finding records other than by address.

use std::collections::BTreeSet;

use retrysafe_core::{
    address::{Account, Address, Namespace},
    record::{Record, RemoveIf, ResourceId, State},
    time::Wall,
};

use super::{Place, samples::*};
use crate::{Due, Filter, StateName, Store};

const MANY: usize = 1_000;

fn keys(found: &[(Address, Record)]) -> Vec<&str> {
    found.iter().map(|(address, _)| address.key().as_str()).collect()
}

pub(super) async fn due_is_oldest_first_and_limited(place: &dyn Place) {
    let store = open(place);
    for (n, key, lease_ends) in [(1, "c", 30), (2, "a", 10), (3, "d", 40), (4, "b", 20), (5, "e", 99)] {
        let address = address(key);
        let mine = claim(&*store, &address, n).await;
        let lease_until = at(lease_ends);
        apply(
            &*store,
            &address,
            holder(&mine),
            &Record { state: State::InFlight { lease_until }, ..mine.clone() },
        )
        .await;
    }
    let due = |now, limit| store.due(Due::LeaseEnded, now, limit);
    assert_eq!(keys(&due(at(9), MANY).await.unwrap()), [""; 0]);
    assert_eq!(keys(&due(at(10), MANY).await.unwrap()), ["a"], "a lease that ends now has ended");
    assert_eq!(keys(&due(at(40), MANY).await.unwrap()), ["a", "b", "c", "d"]);
    assert_eq!(keys(&due(at(40), 2).await.unwrap()), ["a", "b"]);
    assert_eq!(keys(&due(at(40), 0).await.unwrap()), [""; 0]);
    // What was dealt with makes room for the next.
    let (address, first) = due(at(40), 1).await.unwrap().remove(0);
    apply(&*store, &address, takeover(&first, at(40)), &uncertain(&first)).await;
    assert_eq!(keys(&due(at(40), 2).await.unwrap()), ["b", "c"]);
    assert_eq!(keys(&store.due(Due::Reapable, at(1_000_000), MANY).await.unwrap()), [""; 0]);
}

pub(super) async fn due_follows_every_change_of_state(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let mine = claim(&*store, &address, 1).await;
    let (lease_ended, reapable_at) = (START.plus(LEASE), START.plus(REAP));
    assert_eq!(count(&*store, Due::LeaseEnded, lease_ended).await, 1);
    apply(&*store, &address, holder(&mine), &uncertain(&mine)).await;
    assert_eq!(count(&*store, Due::LeaseEnded, at(1_000_000)).await, 0, "uncertain is not upkeep's to end");
    assert_eq!(count(&*store, Due::Reapable, at(1_000_000)).await, 0, "t4");
    let completed = apply(&*store, &address, holder(&mine), &done(&mine)).await;
    assert_eq!(count(&*store, Due::LeaseEnded, at(1_000_000)).await, 0);
    assert_eq!(count(&*store, Due::Reapable, at(0)).await, 0);
    assert_eq!(count(&*store, Due::Reapable, reapable_at).await, 1);
    let (found, record) = store.due(Due::Reapable, reapable_at, 1).await.unwrap().remove(0);
    assert_eq!((&found, &record), (&address, &completed));
    assert!(store.remove_if(&address, reapable(&completed, reapable_at)).await.unwrap());
    assert_eq!(count(&*store, Due::Reapable, at(1_000_000)).await, 0);
}

async fn count(store: &dyn Store, due: Due, now: Wall) -> usize {
    store.due(due, now, MANY).await.unwrap().len()
}

pub(super) async fn protocol_31_a_status_id_finds_its_address_in_its_namespace_only(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let (shop, other) = (Namespace::new("shop").unwrap(), Namespace::new("other").unwrap());
    let mine = claim(&*store, &address, 1).await;
    assert_eq!(store.locate(&shop, mine.status_id).await.unwrap().as_ref(), Some(&address));
    assert_eq!(store.locate(&other, mine.status_id).await.unwrap(), None);
    assert_eq!(store.locate(&shop, held(2).status_id).await.unwrap(), None);
    // A takeover keeps the operation's name: the caller polls the same page.
    let next = Record { status_id: mine.status_id, ..held(2) };
    let theirs = apply(&*store, &address, takeover(&mine, at(31)), &next).await;
    assert_eq!(store.locate(&shop, mine.status_id).await.unwrap().as_ref(), Some(&address));
    assert!(store.remove_if(&address, RemoveIf::Attempt(theirs.attempt)).await.unwrap());
    assert_eq!(store.locate(&shop, mine.status_id).await.unwrap(), None);
}

pub(super) async fn spec_3_2_ending_a_resource_shortens_its_windows_and_no_others(place: &dyn Place) {
    let store = open(place);
    let (shop, alice) = (Namespace::new("shop").unwrap(), Account::new(&["alice"]).unwrap());
    let rows = [
        ("shop", "alice", "one", Some("order/1"), true),
        ("shop", "alice", "two", Some("order/1"), true),
        ("shop", "alice", "other resource", Some("order/11"), false),
        ("shop", "alice", "unbound", None, false),
        ("shop", "bob", "one", Some("order/1"), false),
        ("shop2", "alice", "one", Some("order/1"), false),
    ];
    for (n, (namespace, account, key, resource, _)) in (1..).zip(rows) {
        let address = address_of(namespace, account, key);
        let mine = claim(&*store, &address, n).await;
        apply(&*store, &address, holder(&mine), &done_with(&mine, answer(b"x"), resource)).await;
    }
    let resource = ResourceId("order/1".into());
    assert_eq!(store.end_resource(&shop, &alice, &resource, at(3_600)).await.unwrap(), 2);
    for (namespace, account, key, _, ended) in rows {
        let record = store.load(&address_of(namespace, account, key)).await.unwrap().unwrap();
        let State::Completed { expires_at, reap_at, .. } = record.state else { panic!("completed") };
        assert_eq!(
            expires_at,
            if ended { at(3_600) } else { START.plus(WINDOW) },
            "{namespace} {account} {key}"
        );
        assert_eq!(reap_at, START.plus(REAP), "kept for people as long as before");
    }
    // Only ever shorter.
    assert_eq!(store.end_resource(&shop, &alice, &resource, at(7_200)).await.unwrap(), 0);
    // And the shorter window is the one that a new claim is judged by.
    let one = address("one");
    let ended = store.load(&one).await.unwrap().unwrap();
    let anew = apply(&*store, &one, expired(&ended, at(3_600)), &held(90)).await;
    // In flight, it is bound to nothing yet.
    assert_eq!(store.end_resource(&shop, &alice, &resource, at(60)).await.unwrap(), 1);
    assert_eq!(store.load(&one).await.unwrap(), Some(anew));
}

pub(super) async fn listing_pages_through_everything_once(place: &dyn Place) {
    let store = open(place);
    let mut all = BTreeSet::new();
    for n in 0..25_u128 {
        let account = if n % 2 == 0 { "alice" } else { "bob" };
        let address = address_of("shop", account, &format!("k{n}"));
        claim(&*store, &address, n + 1).await;
        all.insert(address);
    }
    for limit in [1, 7, 25, 100] {
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let page = store.list(&Filter::default(), cursor.as_ref(), limit).await.unwrap();
            assert!(page.len() <= limit);
            let Some((last, _)) = page.last() else { break };
            cursor = Some(last.clone());
            seen.extend(page.into_iter().map(|(address, _)| address));
        }
        assert!(seen.iter().eq(&all), "each once, by address, in pages of {limit}");
    }
}

pub(super) async fn listing_filters(place: &dyn Place) {
    let store = open(place);
    let rows =
        [("shop", "alice", "a"), ("shop", "bob", "b"), ("shop2", "alice", "c"), ("shop", "alice", "d")];
    for (n, (namespace, account, key)) in (1..).zip(rows) {
        let address = address_of(namespace, account, key);
        let mine = claim(&*store, &address, n).await;
        if key == "d" {
            apply(
                &*store,
                &address,
                holder(&mine),
                &Record { endpoint: "POST /payments".into(), ..done(&mine) },
            )
            .await;
        }
    }
    let none = Filter::default;
    let (shop, alice) = (Namespace::new("shop").unwrap(), Account::new(&["alice"]).unwrap());
    let filters = [
        (none(), vec!["a", "b", "c", "d"]),
        (Filter { namespace: Some(shop.clone()), ..none() }, vec!["a", "b", "d"]),
        (Filter { account: Some(alice.clone()), ..none() }, vec!["a", "c", "d"]),
        (Filter { namespace: Some(shop), account: Some(alice), ..none() }, vec!["a", "d"]),
        (Filter { state: Some(StateName::Completed), ..none() }, vec!["d"]),
        (Filter { state: Some(StateName::InFlight), ..none() }, vec!["a", "b", "c"]),
        (Filter { state: Some(StateName::Uncertain), ..none() }, vec![]),
        (Filter { endpoint: Some("POST /payments".into()), ..none() }, vec!["d"]),
    ];
    for (filter, expected) in filters {
        let mut found = Vec::new();
        let mut cursor = None;
        loop {
            // Pages of one: a filter must not end the list early.
            let page = store.list(&filter, cursor.as_ref(), 1).await.unwrap();
            let Some((address, _)) = page.into_iter().next() else { break };
            found.push(address.key().as_str().to_owned());
            cursor = Some(address);
        }
        found.sort();
        assert_eq!(found, expected, "{filter:?}");
    }
}

pub(super) async fn the_census_counts_states(place: &dyn Place) {
    let store = open(place);
    for n in 0..6_u128 {
        let address = address(&format!("k{n}"));
        let mine = claim(&*store, &address, n + 1).await;
        match n {
            0 => drop(apply(&*store, &address, holder(&mine), &uncertain(&mine)).await),
            1 | 2 => drop(apply(&*store, &address, holder(&mine), &done(&mine)).await),
            3 => assert!(store.remove_if(&address, RemoveIf::Attempt(mine.attempt)).await.unwrap()),
            _ => {}
        }
    }
    let census = store.census().await.unwrap();
    assert_eq!((census.in_flight, census.uncertain, census.completed), (2, 1, 2));
}

pub(super) async fn spec_10_4_a_day_is_the_sum_of_what_processes_counted(place: &dyn Place) {
    let store = open(place);
    let day = |day, claims, orphans| retrysafe_core::orphans::Day { day, claims, orphans };
    for counted in [day(20_000, 5, 1), day(20_001, 7, 0), day(20_000, 3, 2)] {
        store.count_day(counted).await.unwrap();
    }
    let mut days = store.days().await.unwrap();
    days.sort_by_key(|day| day.day);
    // A store that outlives no process has no month to compare with.
    let expected: &[_] =
        if store.capability().survives_process { &[day(20_000, 8, 3), day(20_001, 7, 0)] } else { &[] };
    assert_eq!(days, expected);
}
