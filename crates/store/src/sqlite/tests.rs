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

mod batches;
mod business;
mod clocks;
mod two_processes;

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

/// Damaged records are due for ever, and stand in front of all that come after them.
#[tokio::test]
async fn records_that_cannot_be_read_do_not_keep_upkeep_from_the_others() {
    let folder = Folder::new();
    let clock = ManualClock::at(START);
    let store = folder.store_with(&clock);
    for number in 0..6 {
        claim(&store, &address(&format!("k{number}")), number + 1).await;
        clock.advance(Duration::from_secs(1));
    }
    clock.advance(Duration::from_secs(24 * 3600));
    let damaged = Connection::open(folder.path()).unwrap();
    let rows = damaged
        .execute("UPDATE retrysafe_record SET data = x'01ff' WHERE key IN (x'6b30', x'6b31', x'6b32')", []);
    assert_eq!(rows.unwrap(), 3);

    let due = store.due(Due::LeaseEnded, store.now().unwrap(), 2).await.unwrap();
    let keys: Vec<_> = due.iter().map(|(address, _)| address.key().as_str()).collect();
    assert_eq!(keys, ["k3"], "the first pages hold nothing that can be read, the next one does");
    let error = store.load(&address("k0")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "and nobody guesses what became of it");
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
    Connection::open(folder.path()).unwrap().execute_batch("UPDATE retrysafe_meta SET schema = 7").unwrap();
    let error = folder.refused();
    assert!(matches!(error, OpenError::Schema { found: 7, known: 6, .. }), "{error}");
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
        .execute_batch("UPDATE retrysafe_record SET data = CAST(x'ff' || substr(data, 2) AS BLOB)")
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
