//! Business rows in the transaction that holds the claim, and what a handler cannot do to those it shares it with.

use std::sync::mpsc;

use retrysafe_core::{
    claim::Opened,
    ids::StatusId,
    record::{Record, State},
};

use super::{batches::in_one_batch, *};
use crate::journal::{EffectState, Journal, StagedEffect};
use crate::sqlite::{SqliteTx, Transacted, Verdict};

/// A store with a business table, that waits for its turn as long as a test needs.
async fn shop(folder: &Folder) -> Arc<SqliteStore> {
    let patient = SqliteOptions { busy_timeout: Duration::from_secs(60), ..folder.options() };
    let store = Arc::new(SqliteStore::open(patient).unwrap());
    store
        .define("CREATE TABLE orders (id INTEGER PRIMARY KEY, key TEXT, once TEXT UNIQUE) STRICT")
        .await
        .unwrap();
    store
}

fn opening(n: u128) -> Write {
    write(Expect::Absent, &held(n))
}

/// The write that ends the claim `n` with an answer.
fn ending(n: u128) -> Box<Write> {
    let State::Completed { outcome, .. } = done(&held(n)).state else { panic!() };
    let times =
        retrysafe_core::claim::Times { replay: Duration::from_secs(60), reap: Duration::from_secs(60) };
    let opened = Opened::of(opening(n)).unwrap();
    Box::new(opened.complete(Arc::unwrap_or_clone(outcome), times, None, START))
}

type Work = Box<dyn FnOnce(&SqliteTx<'_>) -> Verdict<()> + Send>;

fn insert(tx: &SqliteTx<'_>, n: u128) {
    tx.execute("INSERT INTO orders (key) VALUES (?1)", [format!("k{n}")]).unwrap();
}

/// Inserts an order and keeps it.
fn ordering(n: u128) -> Work {
    Box::new(move |tx| {
        insert(tx, n);
        Verdict::Keep(ending(n), ())
    })
}

async fn transact(store: &SqliteStore, n: u128, work: Work) -> Result<Transacted<()>, StoreError> {
    store.transact(&address(&format!("k{n}")), Expect::Absent, held(n).attempt, work).await
}

fn transacting(
    store: &Arc<SqliteStore>,
    n: u128,
    work: Work,
) -> tokio::task::JoinHandle<Result<Transacted<()>, StoreError>> {
    let store = Arc::clone(store);
    tokio::spawn(async move { transact(&store, n, work).await })
}

async fn orders(store: &SqliteStore, n: u128) -> i64 {
    let key = format!("k{n}");
    let count = move |connection: &Connection| {
        connection.query_row("SELECT count(*) FROM orders WHERE key = ?1", [key], |row| row.get(0))
    };
    store.run(count).await.unwrap()
}

async fn record(store: &SqliteStore, n: u128) -> Option<Record> {
    store.load(&address(&format!("k{n}"))).await.unwrap()
}

#[tokio::test]
async fn d4_rows_and_record_are_one_commit_and_a_second_caller_finds_the_answer() {
    let folder = Folder::new();
    let store = shop(&folder).await;
    let Transacted::Committed(fence, ()) = transact(&store, 1, ordering(1)).await.unwrap() else { panic!() };
    let stored = record(&store, 1).await.unwrap();
    assert!(matches!(stored.state, State::Completed { .. }));
    assert_eq!(stored.fence, fence);
    let second = transact(&store, 1, Box::new(|_| panic!("run twice"))).await.unwrap();
    assert!(matches!(second, Transacted::Seen(Some(seen)) if seen == stored));
    assert_eq!(orders(&store, 1).await, 1);
    assert_eq!(store.census().await.unwrap(), Census { completed: 1, ..Census::default() });
}

#[tokio::test]
async fn protocol_16_a_refusal_takes_the_rows_back_and_keeps_the_record_and_a_release_keeps_neither() {
    let folder = Folder::new();
    let store = shop(&folder).await;
    let refusing: Work = Box::new(|tx| {
        insert(tx, 1);
        Verdict::Undo(ending(1), ())
    });
    assert!(matches!(transact(&store, 1, refusing).await.unwrap(), Transacted::Committed(..)));
    assert_eq!((orders(&store, 1).await, record(&store, 1).await.is_some()), (0, true));
    let releasing: Work = Box::new(|tx| {
        insert(tx, 2);
        Verdict::GiveUp(())
    });
    assert!(matches!(transact(&store, 2, releasing).await.unwrap(), Transacted::GivenUp(())));
    assert_eq!((orders(&store, 2).await, record(&store, 2).await), (0, None));
    assert!(matches!(transact(&store, 2, ordering(2)).await.unwrap(), Transacted::Committed(..)));
}

#[tokio::test]
async fn protocol_28_a_member_that_panics_or_gives_up_leaves_nothing_and_its_batch_stays() {
    let folder = Folder::new();
    let store = shop(&folder).await;
    let first = transacting(&store, 1, ordering(1));
    let panicking = transacting(
        &store,
        2,
        Box::new(|tx| {
            insert(tx, 2);
            panic!("in the middle of a batch")
        }),
    );
    let giving_up = transacting(
        &store,
        3,
        Box::new(|tx| {
            insert(tx, 3);
            Verdict::GiveUp(())
        }),
    );
    let last = transacting(&store, 4, ordering(4));
    in_one_batch(&folder, &store, 4).await;
    assert!(matches!(first.await.unwrap().unwrap(), Transacted::Committed(..)));
    assert!(matches!(panicking.await.unwrap().unwrap(), Transacted::Panicked));
    assert!(matches!(giving_up.await.unwrap().unwrap(), Transacted::GivenUp(())));
    assert!(matches!(last.await.unwrap().unwrap(), Transacted::Committed(..)));
    for (n, there) in [(1, true), (2, false), (3, false), (4, true)] {
        assert_eq!(
            (orders(&store, n).await, record(&store, n).await.is_some()),
            (i64::from(there), there),
            "k{n}"
        );
    }
    assert_eq!(store.census().await.unwrap(), Census { completed: 2, ..Census::default() });
}

/// R1: many callers of one key, in one batch and in many.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r1_of_fifty_at_once_one_runs_and_all_others_see_its_record() {
    let folder = Folder::new();
    let store = shop(&folder).await;
    for round in 1..=20 {
        let racing: Vec<_> = (0..50).map(|_| transacting(&store, round, ordering(round))).collect();
        let mut committed = 0;
        for caller in racing {
            match caller.await.unwrap().unwrap() {
                Transacted::Committed(..) => committed += 1,
                Transacted::Seen(Some(seen)) => assert!(matches!(seen.state, State::Completed { .. })),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((committed, orders(&store, round).await), (1, 1), "round {round}");
    }
}

#[tokio::test]
async fn protocol_17_a_handler_is_refused_what_would_end_the_transaction_or_change_the_store() {
    let folder = Folder::new();
    let store = shop(&folder).await;
    let elsewhere = folder.0.path().join("elsewhere.db");
    let statements = [
        "COMMIT".to_owned(),
        "END".to_owned(),
        "ROLLBACK".to_owned(),
        "BEGIN".to_owned(),
        "RELEASE retrysafe_job".to_owned(),
        "ROLLBACK TO RetrySafe_job".to_owned(),
        "SAVEPOINT retrysafe_job".to_owned(),
        "PRAGMA defer_foreign_keys = ON".to_owned(),
        format!("ATTACH '{}' AS elsewhere", elsewhere.display()),
        "DELETE FROM retrysafe_record".to_owned(),
        "UPDATE retrysafe_meta SET fence = 0".to_owned(),
        "INSERT INTO RETRYSAFE_EFFECT SELECT * FROM retrysafe_effect".to_owned(),
        "CREATE TABLE late (a)".to_owned(),
        "DROP TABLE orders".to_owned(),
    ];
    for (n, statement) in (1..).zip(statements) {
        let text = statement.clone();
        let trying: Work = Box::new(move |tx| {
            insert(tx, n);
            let refused = tx.execute_batch(&text).unwrap_err();
            assert_eq!(
                refused.sqlite_error_code(),
                Some(rusqlite::ErrorCode::AuthorizationForStatementDenied)
            );
            Verdict::Keep(ending(n), ())
        });
        let said = transact(&store, n, trying).await.unwrap();
        assert!(matches!(said, Transacted::Committed(..)), "{statement}: {said:?}");
        assert_eq!((orders(&store, n).await, record(&store, n).await.is_some()), (1, true), "{statement}");
    }
    // A savepoint of its own it may have.
    let own: Work = Box::new(|tx| {
        tx.execute_batch("SAVEPOINT mine").unwrap();
        insert(tx, 90);
        tx.execute_batch("ROLLBACK TO mine; RELEASE mine").unwrap();
        Verdict::Keep(ending(90), ())
    });
    assert!(matches!(transact(&store, 90, own).await.unwrap(), Transacted::Committed(..)));
    assert_eq!(orders(&store, 90).await, 0);
}

/// What no authorizer sees: a conflict clause that rolls everything back, and a statement that the store had prepared.
#[tokio::test]
async fn protocol_17_a_member_that_loses_the_transaction_loses_the_batch_and_nothing_of_it_is_kept() {
    let losing: [fn(&SqliteTx<'_>); 3] = [
        |tx| {
            tx.execute("INSERT INTO orders (once) VALUES ('a')", []).unwrap();
            tx.execute("INSERT OR ROLLBACK INTO orders (once) VALUES ('a')", []).unwrap_err();
        },
        |tx| {
            tx.prepare_cached("COMMIT").unwrap().execute([]).unwrap_err();
        },
        |tx| {
            tx.prepare_cached("COMMIT").unwrap().execute([]).unwrap_err();
            tx.prepare_cached("BEGIN IMMEDIATE").unwrap().execute([]).unwrap();
        },
    ];
    for lose in losing {
        let folder = Folder::new();
        let store = shop(&folder).await;
        let before = transacting(&store, 1, ordering(1));
        let vanishing = transacting(
            &store,
            2,
            Box::new(move |tx| {
                insert(tx, 2);
                lose(tx);
                Verdict::Keep(ending(2), ())
            }),
        );
        let after = transacting(&store, 3, ordering(3));
        in_one_batch(&folder, &store, 3).await;
        for lost in [before, vanishing] {
            assert_eq!(lost.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert!(matches!(after.await.unwrap().unwrap(), Transacted::Committed(..)));
        for (n, there) in [(1, false), (2, false), (3, true)] {
            assert_eq!(
                (orders(&store, n).await, record(&store, n).await.is_some()),
                (i64::from(there), there)
            );
        }
    }
}

/// Protocol 29, and what it costs: nobody gets past a closure that does not end, on any key, in any process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protocol_29_a_closure_that_hangs_holds_up_every_key_and_nobody_takes_over() {
    let folder = Folder::new();
    let store = shop(&folder).await;
    let (reached, reaches) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let stuck = transacting(
        &store,
        1,
        Box::new(move |tx| {
            insert(tx, 1);
            reached.send(()).unwrap();
            let _ = goes_on.recv();
            Verdict::Keep(ending(1), ())
        }),
    );
    tokio::task::spawn_blocking(move || reaches.recv().unwrap()).await.unwrap();
    let mut waiting = transacting(&store, 2, ordering(2));
    assert!(
        tokio::time::timeout(Duration::from_millis(200), &mut waiting).await.is_err(),
        "another key waits"
    );
    let impatient =
        SqliteOptions { busy_timeout: Duration::from_millis(50), ..SqliteOptions::new(folder.path()) };
    let neighbour = tokio::task::spawn_blocking(move || SqliteStore::open(impatient)).await.unwrap();
    assert_eq!(
        StoreError::from(neighbour.unwrap_err()).kind(),
        ErrorKind::Busy,
        "another process is told so"
    );
    assert_eq!(record(&store, 1).await, None, "reads go on, and see nothing");
    go_on.send(()).unwrap();
    assert!(matches!(stuck.await.unwrap().unwrap(), Transacted::Committed(..)));
    assert!(matches!(waiting.await.unwrap().unwrap(), Transacted::Committed(..)));
}

/// R3: the completion of a claim that was made first is guarded by its attempt.
#[tokio::test]
async fn r3_a_holder_that_was_taken_over_is_not_run() {
    let folder = Folder::new();
    let store = shop(&folder).await;
    let mine = claim(&*store, &address("k1"), 1).await;
    let theirs = held(2);
    let lease_until = mine.lease_until().unwrap();
    let takeover = Expect::Takeover { attempt: mine.attempt, expired_by: lease_until };
    won(store.write_if(&address("k1"), &write(takeover, &theirs)).await.unwrap());
    let stale = store
        .transact(&address("k1"), Expect::Attempt(mine.attempt), mine.attempt, move |tx| {
            insert(tx, 1);
            Verdict::Keep(Box::new(write(holder(&mine), &done(&mine))), ())
        })
        .await
        .unwrap();
    assert!(matches!(stale, Transacted::Seen(Some(seen)) if seen.attempt == theirs.attempt));
    assert_eq!(orders(&store, 1).await, 0);
}

#[tokio::test]
async fn tables_are_defined_through_the_store_which_keeps_its_own_to_itself() {
    let folder = Folder::new();
    let store = shop(&folder).await;
    store.define("CREATE TABLE IF NOT EXISTS meta (a); CREATE TABLE IF NOT EXISTS record (a)").await.unwrap();
    for refused in [
        "CREATE TABLE retrysafe_mine (a)",
        "DROP TABLE retrysafe_record",
        "CREATE TABLE a (b); COMMIT",
        "CREATE TABLE p (id INTEGER PRIMARY KEY); CREATE TABLE c (p REFERENCES p DEFERRABLE INITIALLY DEFERRED)",
    ] {
        let error = store.define(refused).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{refused}: {error}");
    }
    let tables = store.run(|connection| connection.table_exists(None, "a")).await.unwrap();
    assert!(!tables, "a definition that fails leaves nothing");
    assert!(matches!(transact(&store, 1, ordering(1)).await.unwrap(), Transacted::Committed(..)));
}

#[tokio::test]
async fn spec_10_3_the_ledger_counts_what_happened_twice_within_the_time_of_a_retry() {
    let folder = Folder::new();
    let clock = ManualClock::at(START);
    let store = folder.store_with(&clock);
    let within = Duration::from_secs(3600);
    let effect = |n: u128, key: &'static str, step: &'static str| {
        let store = &store;
        async move {
            store
                .transact(&address(key), Expect::Absent, held(n).attempt, move |tx| {
                    tx.effect(step).unwrap();
                    // The mutant: the effect is kept, and no record says so.
                    let mut write = ending(n);
                    write.next.attempt = held(n).attempt;
                    Verdict::Keep(write, ())
                })
                .await
                .unwrap()
        }
    };
    effect(1, "a", "charge").await;
    effect(2, "b", "charge").await;
    let all = |store: &SqliteStore| {
        let now = store.now().unwrap();
        store
            .readers
            .duplicate_effects(Wall::from_unix_ms(0), now.plus(Duration::from_secs(1)), within)
            .unwrap()
    };
    assert_eq!(all(&store), 0);
    // The record is lost (a bug, a hand in the table), so the retry runs.
    let gone = store.load(&address("a")).await.unwrap().unwrap();
    let State::Completed { reap_at, .. } = gone.state else { panic!() };
    assert!(
        store
            .remove_if(&address("a"), RemoveIf::Reapable { attempt: gone.attempt, by: reap_at })
            .await
            .unwrap()
    );
    effect(3, "a", "charge").await;
    assert_eq!(all(&store), 1);
    // Far later the same key is a new request.
    clock.advance(within * 2);
    let gone = store.load(&address("b")).await.unwrap().unwrap();
    store
        .remove_if(&address("b"), RemoveIf::Reapable { attempt: gone.attempt, by: store.now().unwrap() })
        .await
        .unwrap();
    effect(4, "b", "charge").await;
    assert_eq!(all(&store), 1);
    assert_eq!(store.forget_effects(store.now().unwrap(), 100).await.unwrap(), 3);
    assert_eq!(all(&store), 0);
}

/// A file of layout 1, as version 0.1 before transactions made it.
#[tokio::test]
async fn a_file_of_the_first_layout_is_upgraded_and_keeps_its_records_and_fences() {
    let folder = Folder::new();
    let store = folder.store();
    let before = claim(&store, &address("k1"), 1).await;
    drop(store);
    Connection::open(folder.path())
        .unwrap()
        .execute_batch(
            "DROP TABLE retrysafe_effect; DROP TABLE retrysafe_journal; DROP TABLE retrysafe_staged; DROP TABLE retrysafe_act; DROP TABLE retrysafe_day;
             DROP TABLE retrysafe_replays;
             ALTER TABLE retrysafe_record RENAME TO record;
             ALTER TABLE retrysafe_meta RENAME TO meta; UPDATE meta SET schema = 1",
        )
        .unwrap();
    let store = folder.store();
    assert_eq!(record(&store, 1).await.as_ref(), Some(&before));
    let after = claim(&store, &address("k2"), 2).await;
    assert!(after.fence > before.fence);
    assert_eq!(store.census().await.unwrap(), Census { in_flight: 2, ..Census::default() });
    store.define("CREATE TABLE meta (a); CREATE TABLE record (a)").await.unwrap();
    drop(store);
    // A business table of that name is not taken for the first layout.
    assert_eq!(record(&folder.store(), 2).await, Some(after));
}

/// A file of layout 5, in which no effect says when it was staged.
#[tokio::test]
async fn a_file_without_traces_is_upgraded_and_keeps_its_effects() {
    let folder = Folder::new();
    drop(folder.store());
    Connection::open(folder.path())
        .unwrap()
        .execute_batch(
            "ALTER TABLE retrysafe_staged DROP COLUMN staged; ALTER TABLE retrysafe_staged DROP COLUMN ended;
             DROP TABLE retrysafe_replays; UPDATE retrysafe_meta SET schema = 5;
             INSERT INTO retrysafe_staged VALUES (zeroblob(16), CAST('mail' AS BLOB), x'61', x'', 1, 0, 2, NULL)",
        )
        .unwrap();
    let store = folder.store();
    let effects = store.staged_of(StatusId::new(0), 9).await.unwrap();
    let old = StagedEffect {
        name: "mail".into(),
        state: EffectState::Sent { at: None },
        staged: None,
        tries: 2,
        failure: None,
    };
    assert_eq!(effects, [old]);
    assert_eq!(store.replays(StatusId::new(0)).await.unwrap(), None);
}

/// Not by a mistake of ours, nor by a statement of whoever has the file.
#[tokio::test]
async fn the_log_of_acts_is_only_added_to() {
    let folder = Folder::new();
    drop(folder.store());
    let file = Connection::open(folder.path()).unwrap();
    file.execute_batch(
        "INSERT INTO retrysafe_act VALUES (1, 0, x'', x'61', x'61', x'61', 'release', 'ann', 'why', NULL)",
    )
    .unwrap();
    for sql in ["DELETE FROM retrysafe_act", "UPDATE retrysafe_act SET who = 'bob'"] {
        let error = file.execute_batch(sql).unwrap_err().to_string();
        assert!(error.contains("only added to"), "{sql}: {error}");
    }
}
