//! What members of one batch do to each other.

use super::*;

/// Lets `jobs` jobs gather, so that they become one batch: nobody gets a turn until all are in line.
pub(super) async fn in_one_batch(folder: &Folder, store: &SqliteStore, jobs: usize) {
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
