//! Disks that fail while a batch is under way (protocol 17, 19).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{path::Path, sync::Arc};

use retrysafe_core::{
    ids::Fence,
    record::{Expect, Write},
};
use retrysafe_sim::FaultyDisk;
use retrysafe_store::{
    ErrorKind, Store, StoreError, Written,
    sqlite::{SqliteOptions, SqliteStore, SqliteTx, Transacted, Verdict},
};
use rusqlite::Connection;

use support::{address_of, apply, claim_of, completion_of};

mod support;

const JOBS: u32 = 16;

fn open(disk: &FaultyDisk, dir: &Path) -> Arc<SqliteStore> {
    let options =
        SqliteOptions { vfs: Some(disk.vfs().to_owned()), ..SqliteOptions::new(dir.join("keys.db")) };
    Arc::new(SqliteStore::open(options).unwrap())
}

/// Claims `JOBS` keys at once, from `first` on.
async fn claim_many(store: &Arc<SqliteStore>, first: u32) -> Vec<(u32, Result<Written, StoreError>)> {
    let claiming: Vec<_> = (first..first + JOBS)
        .map(|n| {
            let store = Arc::clone(store);
            tokio::spawn(async move { (n, store.write_if(&address_of(n), &claim_of(n)).await) })
        })
        .collect();
    let mut answers = Vec::new();
    for claim in claiming {
        answers.push(claim.await.unwrap());
    }
    answers
}

#[tokio::test]
async fn protocol_17_a_disk_that_fills_up_anywhere_in_a_batch_loses_all_of_it_or_nothing() {
    let mut refused = 0;
    for room in 0..24 {
        let dir = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::register();
        let store = open(&disk, dir.path());
        let before = apply(&store, &address_of(0), claim_of(0)).await;
        disk.fill_up_after(room);
        let answers = claim_many(&store, 1).await;
        disk.repair();
        for (n, answer) in answers {
            let present = store.load(&address_of(n)).await.unwrap();
            match answer {
                Ok(Written::Yes(fence)) => {
                    assert_eq!(present.map(|record| record.fence), Some(fence), "room {room}")
                }
                Ok(Written::No(seen)) => panic!("room {room}: nobody else claims, but found {seen:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Full, "room {room}: {error}");
                    assert_eq!(present, None, "room {room}: nothing was changed");
                    refused += 1;
                }
            }
        }
        // Everything works again: the refused keys, and the holder from before.
        let mut fences = vec![before.fence];
        for n in 1..=JOBS {
            match store.write_if(&address_of(n), &claim_of(n)).await.unwrap() {
                Written::Yes(fence) => fences.push(fence),
                Written::No(seen) => panic!("room {room}: an own claim, but found {seen:?}"),
            }
        }
        apply(&store, &address_of(0), completion_of(&before, 0)).await;
        fences.sort_unstable();
        fences.dedup();
        assert_eq!(fences.len(), 1 + JOBS as usize, "room {room}: every claim has a fence of its own");
    }
    assert!(refused > 0, "the disk was full at least once");
}

#[tokio::test]
async fn protocol_19_a_commit_whose_sync_fails_is_of_unknown_result_and_settled_by_asking_again() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::register();
    let store = open(&disk, dir.path());
    let held = apply(&store, &address_of(0), claim_of(0)).await;
    disk.fail_syncs();
    for (_, answer) in claim_many(&store, 1).await {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown);
        assert!(error.may_retry());
    }
    let completion = completion_of(&held, 2);
    let error = store.write_if(&address_of(0), &completion).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    disk.repair();

    // The same writes, sent again: applied, or recognised as one's own.
    let mut largest = held.fence;
    for (n, answer) in claim_many(&store, 1).await {
        let Written::Yes(fence) = answer.unwrap() else { panic!("claim {n} was one's own") };
        largest = largest.max(fence);
    }
    apply(&store, &address_of(0), completion.clone()).await;
    drop(store);

    // And they are there when the file is opened again.
    let store = SqliteStore::open(SqliteOptions::new(dir.path().join("keys.db"))).unwrap();
    for n in 1..=JOBS {
        assert!(store.load(&address_of(n)).await.unwrap().is_some(), "{n}");
    }
    let completed = store.load(&address_of(0)).await.unwrap().unwrap();
    assert_eq!(completed.state, completion.next.state);
    let next = apply(&store, &address_of(100), claim_of(100)).await;
    assert!(next.fence > largest && largest > Fence::from_u64(0));
}

/// A log that could not be synced may still be on the disk when the process dies: what it says then is whole.
#[tokio::test]
async fn a_process_that_dies_after_a_failed_sync_leaves_each_write_whole_or_absent() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::register();
    let store = open(&disk, dir.path());
    let kept = apply(&store, &address_of(0), claim_of(0)).await;
    disk.fail_syncs();
    for (_, answer) in claim_many(&store, 1).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unknown);
    }
    // A copy of the files is what another process finds after this one was killed.
    let copy = tempfile::tempdir().unwrap();
    for name in ["keys.db", "keys.db-wal"] {
        std::fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
    }
    disk.repair();
    let after = SqliteStore::open(SqliteOptions::new(copy.path().join("keys.db"))).unwrap();
    assert_eq!(after.load(&address_of(0)).await.unwrap().as_ref(), Some(&kept));
    let mut largest = kept.fence;
    for n in 1..=JOBS {
        if let Some(record) = after.load(&address_of(n)).await.unwrap() {
            assert_eq!(record, retrysafe_core::record::Record { fence: record.fence, ..claim_of(n).next });
            largest = largest.max(record.fence);
        }
    }
    let next = apply(&after, &address_of(100), claim_of(100)).await;
    assert!(next.fence > largest);
}

/// Protocol 17 for business rows: a disk that fills up inside a handler's statement rolls the whole transaction back, and
/// a handler that swallows the error must not commit what came after it.
#[tokio::test]
async fn protocol_17_a_disk_that_fills_up_under_a_handler_leaves_rows_and_records_that_agree() {
    let (mut kept, mut lost) = (0, 0);
    for room in [0, 1, 3, 7, 200, 2_500, 12_000, 1_000_000] {
        let dir = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::register();
        let store = open(&disk, dir.path());
        store.define("CREATE TABLE orders (n INTEGER, pad BLOB) STRICT").await.unwrap();
        disk.fill_up_after(room);
        let running: Vec<_> = (1..=JOBS)
            .map(|n| {
                let store = Arc::clone(&store);
                tokio::spawn(async move {
                    let claim = claim_of(n);
                    let order = move |tx: &SqliteTx<'_>| {
                        // Larger than the page cache lets lie, so that the disk is met before the commit.
                        let _ = tx.execute("INSERT INTO orders VALUES (?1, zeroblob(4000000))", [n]);
                        let _ = tx.execute("INSERT INTO orders VALUES (?1, NULL)", [n]);
                        let ending = completion_of(&claim_of(n).next, n);
                        let write = Write { expect: Expect::Absent, ..ending };
                        Verdict::Keep(Box::new(write), ())
                    };
                    (n, store.transact(&address_of(n), claim.expect, claim.next.attempt, order).await)
                })
            })
            .collect();
        let mut answers = Vec::new();
        for one in running {
            answers.push(one.await.unwrap());
        }
        disk.repair();
        for (n, answer) in answers {
            let recorded = store.load(&address_of(n)).await.unwrap().is_some();
            let rows = move |connection: &Connection| {
                connection
                    .query_row("SELECT count(*) FROM orders WHERE n = ?1", [n], |row| row.get::<_, i64>(0))
            };
            let rows = store.run(rows).await.unwrap();
            match answer {
                Ok(Transacted::Committed(..)) => {
                    assert!(recorded && rows >= 1, "room {room}, {n}: {rows} rows");
                    kept += 1;
                }
                Ok(other) => panic!("room {room}: {other:?}"),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Full | ErrorKind::Unavailable), "{error}");
                    assert_eq!((recorded, rows), (false, 0), "room {room}, {n}: {error}");
                    lost += 1;
                }
            }
        }
    }
    assert!(kept > 0 && lost > 0, "{kept} kept, {lost} lost");
}
