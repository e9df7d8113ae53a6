//! What is SQLite's own: places, processes, clocks on one file, closing. The common rules are in the conformance suite,
//! what disks do to it in the tests of `retrysafe-sim`.

use std::fs;

use retrysafe_core::ids::Fence;
use rusqlite::Connection;

use super::*;
use crate::{
    clock::ManualClock,
    conformance::{self, Place, samples::*},
};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("keys.db")
    }

    fn options(&self) -> SqliteOptions {
        SqliteOptions::new(self.path())
    }

    fn store(&self) -> SqliteStore {
        SqliteStore::open(self.options()).unwrap()
    }

    fn store_with(&self, clock: &ManualClock) -> SqliteStore {
        SqliteStore::open(SqliteOptions { clock: Arc::new(clock.clone()), ..self.options() }).unwrap()
    }

    fn refused(&self) -> OpenError {
        SqliteStore::open(self.options()).unwrap_err()
    }
}

impl Place for Folder {
    fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(SqliteStore::open(self.options())?))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_passes_the_conformance_suite() {
    conformance::run(Folder::new).await;
}

#[test]
fn opening_says_what_is_wrong_with_the_place_and_leaves_it_alone() {
    let folder = Folder::new();
    let nowhere = folder.0.path().join("no/such/folder/keys.db");
    let error = SqliteStore::open(SqliteOptions::new(nowhere)).unwrap_err();
    assert!(matches!(error, OpenError::NoFolder { .. }), "{error}");
    assert!(error.to_string().contains("no/such/folder does not exist; create it"), "{error}");

    let error = SqliteStore::open(SqliteOptions::new(folder.0.path())).unwrap_err();
    assert!(matches!(error, OpenError::IsFolder { .. }), "{error}");

    fs::write(folder.path(), "not a database, but long enough to be looked at as one by its header").unwrap();
    let error = folder.refused();
    assert!(matches!(error, OpenError::NotADatabase { .. }), "{error}");
    assert!(fs::read(folder.path()).unwrap().starts_with(b"not a database"));
}

#[test]
fn another_programs_database_is_refused_and_not_touched() {
    for prepare in ["CREATE TABLE theirs (a)", "PRAGMA application_id = 7"] {
        let folder = Folder::new();
        Connection::open(folder.path()).unwrap().execute_batch(prepare).unwrap();
        let before = fs::read(folder.path()).unwrap();
        let error = folder.refused();
        assert!(matches!(error, OpenError::NotAStore { .. }), "{error}");
        assert_eq!(fs::read(folder.path()).unwrap(), before);
    }
}

#[test]
fn a_later_layout_is_refused_and_named() {
    let folder = Folder::new();
    drop(folder.store());
    Connection::open(folder.path()).unwrap().execute_batch("UPDATE meta SET schema = 7").unwrap();
    let error = folder.refused();
    assert!(matches!(error, OpenError::Schema { found: 7, known: 1, .. }), "{error}");
    assert_eq!(StoreError::from(error).kind(), ErrorKind::UnknownVersion);
}

#[tokio::test]
async fn s20_a_record_of_an_unknown_version_is_refused_in_every_verb() {
    let folder = Folder::new();
    let store = folder.store();
    let address = address("k");
    let mine = claim(&store, &address, 1).await;
    Connection::open(folder.path())
        .unwrap()
        .execute_batch("UPDATE record SET data = CAST(x'ff' || substr(data, 2) AS BLOB)")
        .unwrap();
    let unknown = |error: StoreError| assert_eq!(error.kind(), ErrorKind::UnknownVersion);
    unknown(store.load(&address).await.unwrap_err());
    unknown(store.write_if(&address, &write(Expect::Absent, &held(2))).await.unwrap_err());
    unknown(store.write_if(&address, &write(holder(&mine), &done(&mine))).await.unwrap_err());
    unknown(store.remove_if(&address, RemoveIf::Attempt(mine.attempt)).await.unwrap_err());
    // One record that cannot be read does not take the others of its batch with it.
    claim(&store, &other_address(), 2).await;
}

fn other_address() -> Address {
    address("another")
}

#[tokio::test]
async fn closing_commits_what_is_in_line_and_refuses_what_comes_after() {
    let folder = Folder::new();
    let store = Arc::new(folder.store());
    let keys: Vec<_> = (0..200_u128).map(|n| (n, address(&format!("k{n}")))).collect();
    let tasks: Vec<_> = keys
        .iter()
        .cloned()
        .map(|(n, address)| {
            let store = store.clone();
            tokio::spawn(async move { store.write_if(&address, &write(Expect::Absent, &held(n + 1))).await })
        })
        .collect();
    // The tasks run up to their place in line; nobody has waited for an answer yet.
    tokio::task::yield_now().await;
    store.close();
    let mut committed = 0;
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    let reopened = folder.store();
    for ((_, address), answer) in keys.iter().zip(answers) {
        let there = reopened.load(address).await.unwrap().is_some();
        match answer {
            Ok(written) => {
                won(written);
                assert!(there, "an answer that was given is kept");
                committed += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable);
                assert!(!there, "nothing was changed");
            }
        }
    }
    assert!(committed > 0, "what was in line was committed");
    let late = store.write_if(&address("late"), &write(Expect::Absent, &held(1_000))).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Unavailable);
    assert!(late.may_retry());
}

#[tokio::test]
async fn a_replay_is_answered_while_the_file_cannot_be_written() {
    let folder = Folder::new();
    let store =
        SqliteStore::open(SqliteOptions { busy_timeout: Duration::from_millis(50), ..folder.options() })
            .unwrap();
    let address = address("k");
    let mine = claim(&store, &address, 1).await;
    let completed = apply(&store, &address, holder(&mine), &done(&mine)).await;

    // Another program holds SQLite's write lock, outside of any turn.
    let other = Connection::open(folder.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    refused(&store, &address, Expect::Absent, &held(2), Some(&completed)).await;
    let busy = store.write_if(&other_address(), &write(Expect::Absent, &held(3))).await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(busy.may_retry());
    other.execute_batch("ROLLBACK").unwrap();
    claim(&store, &other_address(), 3).await;
}

#[tokio::test]
async fn protocol_29_a_process_that_gets_no_turn_is_busy_and_changes_nothing() {
    let folder = Folder::new();
    let store =
        SqliteStore::open(SqliteOptions { busy_timeout: Duration::from_millis(50), ..folder.options() })
            .unwrap();
    let other = turns::Turns::open(&folder.path()).unwrap();
    let turn = other.take(Duration::from_secs(30)).unwrap();
    let busy = store.write_if(&address("k"), &write(Expect::Absent, &held(1))).await.unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert_eq!(store.load(&address("k")).await.unwrap(), None);
    drop(turn);
    claim(&store, &address("k"), 1).await;
}

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

#[tokio::test]
async fn protocol_7_a_new_epoch_is_above_every_fence_that_a_backup_forgot() {
    let folder = Folder::new();
    let store = folder.store();
    let before = claim(&store, &address("k"), 1).await;
    drop(store);
    let backup = fs::read(folder.path()).unwrap();
    let store = folder.store();
    let forgotten = claim(&store, &address("k2"), 2).await;
    drop(store);
    fs::write(folder.path(), backup).unwrap();
    let store = folder.store();
    assert_eq!(store.bump_epoch().await.unwrap(), 1);
    let after = claim(&store, &address("k3"), 3).await;
    assert!(after.fence > forgotten.fence && forgotten.fence > before.fence);
    assert_eq!(after.fence, Fence::new(1, 1).unwrap());
}

#[tokio::test]
async fn a_reply_that_nobody_waits_for_any_longer_is_still_committed() {
    let folder = Folder::new();
    let store = folder.store();
    let address = address("k");
    {
        let claim = write(Expect::Absent, &held(1));
        let mut claiming = store.write_if(&address, &claim);
        // Polled once, so that it is in line, then dropped: protocol 19.
        let waiting = std::task::Waker::noop();
        let _ = claiming.as_mut().poll(&mut std::task::Context::from_waker(waiting));
    }
    store.close();
    assert_eq!(
        folder.store().load(&address).await.unwrap().map(|record| record.attempt),
        Some(held(1).attempt)
    );
}

/// Lets `jobs` jobs gather, so that they become one batch: nobody gets a turn until all are in line.
async fn in_one_batch(folder: &Folder, store: &SqliteStore, jobs: usize) {
    let others = turns::Turns::open(&folder.path()).unwrap();
    let turn = others.take(Duration::from_secs(30)).unwrap();
    while store.queue.len() < jobs {
        tokio::task::yield_now().await;
    }
    drop(turn);
}

fn claiming(store: &Arc<SqliteStore>, n: u128) -> tokio::task::JoinHandle<Result<Written, StoreError>> {
    let store = store.clone();
    tokio::spawn(
        async move { store.write_if(&address(&format!("k{n}")), &write(Expect::Absent, &held(n))).await },
    )
}

#[tokio::test]
async fn protocol_17_a_transaction_that_vanishes_takes_the_whole_batch_with_it() {
    let folder = Folder::new();
    let patient = SqliteOptions { busy_timeout: Duration::from_secs(60), ..folder.options() };
    let store = Arc::new(SqliteStore::open(patient).unwrap());
    let before = claiming(&store, 1);
    let vanishing = {
        let store = store.clone();
        tokio::spawn(async move {
            // What a full disk does inside of a statement, and says nothing.
            let lose = |transaction: &mut Transaction<'_>| {
                transaction.lose();
                Ok(())
            };
            store.submit(Changes::One, lose).await
        })
    };
    let after = claiming(&store, 2);
    in_one_batch(&folder, &store, 3).await;
    let errors = [before.await.unwrap().unwrap_err(), vanishing.await.unwrap().unwrap_err()];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    assert_eq!(store.load(&address("k1")).await.unwrap(), None);
    // It came later, and is not in a batch without a transaction, where each statement would commit by itself.
    won(after.await.unwrap().unwrap());
    assert_eq!(store.census().await.unwrap(), Census { in_flight: 1, ..Census::default() });
}

#[tokio::test]
async fn protocol_28_a_job_of_several_changes_that_fails_leaves_nothing_and_its_batch_stays() {
    let folder = Folder::new();
    let patient = SqliteOptions { busy_timeout: Duration::from_secs(60), ..folder.options() };
    let store = Arc::new(SqliteStore::open(patient).unwrap());
    let before = claiming(&store, 1);
    let failing = {
        let store = store.clone();
        tokio::spawn(async move {
            let change_and_fail = |transaction: &mut Transaction<'_>| {
                for n in [2, 3] {
                    won(transaction.write_if(&address(&format!("k{n}")), &write(Expect::Absent, &held(n)))?);
                }
                Err::<(), _>(StoreError::new(ErrorKind::Corrupt, "changing several rows"))
            };
            store.submit(Changes::Several, change_and_fail).await
        })
    };
    let after = claiming(&store, 4);
    in_one_batch(&folder, &store, 3).await;
    assert_eq!(failing.await.unwrap().unwrap_err().kind(), ErrorKind::Corrupt);
    let fences = [won(before.await.unwrap().unwrap()), won(after.await.unwrap().unwrap())];
    assert!(fences[0] < fences[1]);
    for (n, there) in [(1, true), (2, false), (3, false), (4, true)] {
        assert_eq!(store.load(&address(&format!("k{n}"))).await.unwrap().is_some(), there, "k{n}");
    }
    assert_eq!(store.census().await.unwrap(), Census { in_flight: 2, ..Census::default() });
}
