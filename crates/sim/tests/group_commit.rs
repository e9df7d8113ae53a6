//! What a request costs in syncs, counted (main-job 6). The times are in `examples/group_commit.rs`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{path::Path, sync::Arc};

use retrysafe_core::record::Record;
use retrysafe_sim::{SyncCounter, delayed_vfs};
use retrysafe_store::{
    Store, Written,
    sqlite::{SqliteOptions, SqliteStore},
};

use support::{address_of, apply, claim_of, completion_of};

mod support;

const TASKS: u32 = 64;
const REQUESTS_PER_TASK: u32 = 30;

fn open(disk: &SyncCounter, dir: &Path) -> Arc<SqliteStore> {
    let options =
        SqliteOptions { vfs: Some(disk.vfs().to_owned()), ..SqliteOptions::new(dir.join("keys.db")) };
    Arc::new(SqliteStore::open(options).unwrap())
}

async fn request(store: &SqliteStore, n: u32) -> Record {
    let claimed = apply(store, &address_of(n), claim_of(n)).await;
    apply(store, &address_of(n), completion_of(&claimed, n)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn main_job_6_sixty_four_at_once_share_their_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let disk = delayed_vfs(4);
    let store = open(&disk, dir.path());
    let before = disk.count();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..REQUESTS_PER_TASK {
                    request(&store, task * REQUESTS_PER_TASK + n).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let syncs = (disk.count() - before) as f64 / f64::from(TASKS * REQUESTS_PER_TASK);
    assert!(syncs <= 0.06, "{syncs} syncs a request");
    assert!(
        syncs >= 2.0 / f64::from(TASKS),
        "two commits of all tasks at best: {syncs} is too good to be durable"
    );
}

#[tokio::test]
async fn one_alone_pays_for_its_own_two_commits_and_a_replay_for_none() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SyncCounter::register();
    let store = open(&disk, dir.path());
    let before = disk.count();
    let mut completed = Vec::new();
    for n in 0..10 {
        completed.push(request(&store, n).await);
    }
    assert_eq!(disk.count() - before, 20);

    let before = disk.count();
    for (n, record) in (0..10).zip(&completed) {
        // Another's claim on the key, and an own completion that is sent again: answered, and nothing is written.
        let replay = store.write_if(&address_of(n), &claim_of(n + 1_000)).await.unwrap();
        assert_eq!(replay, Written::No(Some(record.clone())));
        let again = completion_of(record, n);
        assert_eq!(store.write_if(&address_of(n), &again).await.unwrap(), Written::Yes(record.fence));
        let late = completion_of(record, n + 1);
        assert_eq!(store.write_if(&address_of(n), &late).await.unwrap(), Written::No(Some(record.clone())));
    }
    assert_eq!(disk.count() - before, 0, "a replay that syncs is fifty times as slow");
}
