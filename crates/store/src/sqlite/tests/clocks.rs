//! One time for all processes on a file.

use super::*;
use crate::clock::ManualClock;

#[tokio::test]
async fn r16_a_process_whose_clock_is_ten_minutes_ahead_steals_no_lease() {
    let folder = Folder::new();
    let slow_clock = ManualClock::at(START);
    let fast_clock = slow_clock.skewed(Duration::from_secs(600));
    let slow = folder.store_with(&slow_clock);
    let now = slow.now().unwrap();
    let mine = claim(&slow, &address("k"), 1).await;
    assert_eq!(mine.lease_until(), Some(now.plus(LEASE)));

    // It starts when the lease is ten seconds old.
    for clock in [&slow_clock, &fast_clock] {
        clock.advance(Duration::from_secs(10));
    }
    let fast = folder.store_with(&fast_clock);
    assert_eq!(fast.now().unwrap(), now.plus(Duration::from_secs(10)));
    assert!(fast.due(Due::LeaseEnded, fast.now().unwrap(), 10).await.unwrap().is_empty());
    refused(&fast, &address("k"), takeover(&mine, fast.now().unwrap()), &held(2), Some(&mine)).await;

    // Both stay idle for long, and still agree.
    for clock in [&slow_clock, &fast_clock] {
        clock.advance(Duration::from_secs(3_600));
    }
    assert_eq!(fast.now().unwrap(), slow.now().unwrap());
}

#[tokio::test]
async fn r16_processes_that_opened_a_new_store_agree_before_the_first_write() {
    let folder = Folder::new();
    let slow_clock = ManualClock::at(START);
    let fast_clock = slow_clock.skewed(Duration::from_secs(600));
    let (slow, fast) = (folder.store_with(&slow_clock), folder.store_with(&fast_clock));
    assert_eq!(fast.now().unwrap(), START);
    drop((slow, fast));
    // And after a reboot, where only the wall clocks are left: whoever is first says what time it is.
    for clock in [&slow_clock, &fast_clock] {
        clock.reboot_after(Duration::from_secs(100));
    }
    let (fast, slow) = (folder.store_with(&fast_clock), folder.store_with(&slow_clock));
    assert_eq!(fast.now().unwrap(), START.plus(Duration::from_secs(700)));
    assert_eq!(slow.now().unwrap(), fast.now().unwrap());
}

#[tokio::test]
async fn protocol_10_a_process_that_saw_no_jump_does_not_take_an_acknowledged_one_back() {
    let folder = Folder::new();
    let clock = ManualClock::at(START);
    let other_clock = clock.skewed(Duration::ZERO);
    let (store, other) = (folder.store_with(&clock), folder.store_with(&other_clock));
    let ahead = START.plus(Duration::from_secs(60 * 3600));
    clock.set_wall(ahead);
    store.acknowledge_clock_jump().await.unwrap();
    claim(&other, &address("k"), 1).await;
    assert_eq!(other.now().unwrap(), ahead, "learned with its first write");
    assert_eq!(folder.store_with(&other_clock).now().unwrap(), ahead);
}

#[tokio::test]
async fn protocol_10_the_mark_outlives_the_process_and_a_clock_set_back() {
    let folder = Folder::new();
    let clock = ManualClock::at(START);
    let store = folder.store_with(&clock);
    clock.advance(Duration::from_secs(100));
    claim(&store, &address("k"), 1).await;
    let told = store.now().unwrap();
    drop(store);

    clock.set_wall(at(0));
    clock.reboot_after(Duration::from_secs(5));
    let store = folder.store_with(&clock);
    assert_eq!(store.now().unwrap(), told, "held, not followed");
    drop(store);

    // Off for a weekend, the machine too: nobody knows whether the clock is right.
    clock.set_wall(told);
    clock.reboot_after(Duration::from_secs(60 * 3600));
    let store = folder.store_with(&clock);
    assert_eq!(store.now().unwrap_err().kind(), ErrorKind::ClockJumped);
    let other = folder.store_with(&clock);
    assert_eq!(other.now().unwrap_err().kind(), ErrorKind::ClockJumped);
    store.acknowledge_clock_jump().await.unwrap();
    let expected = told.plus(Duration::from_secs(60 * 3600));
    assert_eq!(store.now().unwrap(), expected);
    assert_eq!(other.now().unwrap(), expected, "acknowledged once, for every process");
}
