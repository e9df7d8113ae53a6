//! Two handles on one file, as two processes have them (protocol 29), and a log that stays short under both.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use retrysafe_core::record::Record;
use retrysafe_sim::SyncCounter;
use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};

use support::{address_of, apply, claim_of, completion_of};

mod support;

fn options(dir: &Path) -> SqliteOptions {
    SqliteOptions { busy_timeout: Duration::from_secs(60), ..SqliteOptions::new(dir.join("keys.db")) }
}

async fn request(store: &SqliteStore, n: u32) -> Record {
    let claimed = apply(store, &address_of(n), claim_of(n)).await;
    apply(store, &address_of(n), completion_of(&claimed, n)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protocol_29_a_busy_process_does_not_starve_another() {
    let dir = tempfile::tempdir().unwrap();
    let greedy = Arc::new(SqliteStore::open(options(dir.path())).unwrap());
    let patient = SqliteStore::open(options(dir.path())).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU32::new(0));
    // The greedy one always has work in line.
    let load: Vec<_> = (0..16)
        .map(|task: u32| {
            let (greedy, stop, done) = (greedy.clone(), stop.clone(), done.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    request(&greedy, task * 1_000_000 + n + 1_000).await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for n in 0..20 {
        let before = done.load(Ordering::Relaxed);
        request(&patient, n).await;
        // Each of its two commits waits for a turn of the other, of at most two writes a task, and perhaps for one more
        // that began just then.
        let passed_by = done.load(Ordering::Relaxed) - before;
        assert!(passed_by <= 16 * 6, "{passed_by} requests went ahead of one");
    }
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.unwrap();
    }
    assert!(done.load(Ordering::Relaxed) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_starts_over_under_constant_writing() {
    let dir = tempfile::tempdir().unwrap();
    // Without syncs, so that many pages are written in little time.
    let disk = SyncCounter::register();
    let unsynced = |vfs: &str| SqliteOptions {
        synchronous: retrysafe_store::sqlite::Synchronous::Off,
        vfs: Some(vfs.to_owned()),
        ..options(dir.path())
    };
    let store = Arc::new(SqliteStore::open(unsynced(disk.vfs())).unwrap());
    let log = dir.path().join("keys.db-wal");
    let load: Vec<_> = (0..8)
        .map(|task: u32| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..800 {
                    request(&store, task * 10_000 + n).await;
                }
            })
        })
        .collect();
    for task in load {
        task.await.unwrap();
    }
    let (log, file) =
        (std::fs::metadata(log).unwrap().len(), std::fs::metadata(dir.path().join("keys.db")).unwrap().len());
    // 64 MiB, and one batch that began below it.
    assert!(log <= (64 + 16) << 20, "{log} bytes of log");
    assert!(file > 0);
}
