//! Business rows and the stored answer in one commit, on a real server.

use std::time::Duration;

use retrysafe_core::{
    address::Address,
    record::{Expect, Record, State, Write},
};
use retrysafe_store::{
    ErrorKind, Store, Written,
    postgres::{Handle, Mode, PostgresTransaction, TokioPostgres},
    transactional::{Begun, Committed, OpenTransaction, Transactional, Undone},
};
use retrysafe_testbed::postgres::Database;

use crate::{
    samples::{LEASE, START, address, completing, done, done_with_body, held, takeover},
    support::{PgStore, SchemaPlace, driver_of, fresh},
};

type Open = PostgresTransaction<TokioPostgres>;

fn opening(n: u128) -> Write {
    Write { expect: Expect::Absent, next: held(n) }
}

async fn won(store: &PgStore, address: &Address, opening: &Write) -> Open {
    match store.begin(address, opening).await.unwrap() {
        Begun::Won(open) => open,
        Begun::Seen(seen) => panic!("seen {seen:?}"),
        Begun::Locked => panic!("locked"),
    }
}

/// As [`won`], where the holder of before is being rolled back.
async fn won_soon(store: &PgStore, address: &Address, opening: &Write) -> Open {
    for _ in 0..1_000 {
        match store.begin(address, opening).await.unwrap() {
            Begun::Won(open) => return open,
            Begun::Seen(seen) => panic!("seen {seen:?}"),
            Begun::Locked => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    panic!("locked for a second");
}

async fn business() -> (Database, PgStore) {
    let (database, store) = fresh();
    database.psql("CREATE TABLE invoice (id bigint PRIMARY KEY, amount bigint CHECK (amount > 0))");
    (database, store)
}

async fn insert(handle: &Handle, id: i64) {
    handle.execute("INSERT INTO public.invoice VALUES ($1, 5)", &[&id]).await.unwrap();
}

fn invoices(database: &Database) -> String {
    database.psql("SELECT count(*) FROM invoice")
}

fn open_transactions(database: &Database) -> String {
    database.psql(&format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND state LIKE 'idle in%'",
        database.name()
    ))
}

/// Whoever did not win rolls back without waiting, and the stores make their tables meanwhile.
async fn no_transaction_is_open_soon(database: &Database) {
    for _ in 0..1_000 {
        if open_transactions(database) == "0" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("a transaction stays open");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_and_the_business_rows_are_committed_together() {
    let (database, store) = business().await;
    let (at, opening) = (address("k"), opening(1));
    let mut open = won(&store, &at, &opening).await;
    insert(open.handle(), 1).await;
    assert_eq!(store.load(&at).await.unwrap(), None, "nobody sees it before the commit");
    assert_eq!(invoices(&database), "0");
    let write = completing(&opening);
    let Committed::Yes(fence) = open.commit(&at, &write).await.unwrap() else { panic!("committed") };
    let stored = store.load(&at).await.unwrap().unwrap();
    assert_eq!(stored, Record { fence, ..write.next });
    assert_eq!(invoices(&database), "1");
    // And the next request sees the answer.
    let Begun::Seen(Some(seen)) = store.begin(&at, &self::opening(2)).await.unwrap() else { panic!("seen") };
    assert_eq!(seen, stored);
    assert_eq!(open_transactions(&database), "0", "who did not win holds nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_committed_with_it_and_comes_back() {
    let (database, store) = business().await;
    let at = address("k");
    let opening = opening(1);
    let mut open = won(&store, &at, &opening).await;
    insert(open.handle(), 1).await;
    let write = Write { next: done_with_body(&opening.next, vec![7; 100_000]), ..opening };
    let Committed::Yes(fence) = open.commit(&at, &write).await.unwrap() else { panic!("committed") };
    let stored = Record { fence, ..write.next.clone() };
    assert_eq!(store.load(&at).await.unwrap(), Some(stored.clone()));
    // Its window is over: the same key again, with another long answer.
    let State::Completed { expires_at, .. } = stored.state else { panic!("completed") };
    let expect = Expect::Expired { attempt: stored.attempt, expired_by: expires_at };
    let again = Write { expect, next: held(2) };
    let open = won(&store, &at, &again).await;
    let write = Write { next: done_with_body(&again.next, vec![8; 100_000]), ..again };
    let Committed::Yes(second) = open.commit(&at, &write).await.unwrap() else { panic!("committed") };
    assert!(second > fence);
    assert_eq!(store.load(&at).await.unwrap(), Some(Record { fence: second, ..write.next }));
    assert_eq!(invoices(&database), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn r1_of_fifty_transactions_at_once_one_writes() {
    let (database, store) = business().await;
    let rounds = 20;
    for round in 0..rounds {
        let at = address(&format!("race-{round}"));
        let tasks: Vec<_> = (1..=50)
            .map(|n| {
                let (store, at, opening) = (store.clone(), at.clone(), opening(round * 100 + n));
                tokio::spawn(async move {
                    match store.begin(&at, &opening).await.unwrap() {
                        Begun::Won(mut open) => {
                            insert(open.handle(), (round * 100 + n) as i64).await;
                            match open.commit(&at, &completing(&opening)).await.unwrap() {
                                Committed::Yes(_) => 1,
                                Committed::No(why) => panic!("{why:?}"),
                            }
                        }
                        // Never "nothing is there": that would be a wrong answer, and this is what it must not be.
                        Begun::Seen(seen) => {
                            assert!(matches!(seen.unwrap().state, State::Completed { .. }));
                            0
                        }
                        Begun::Locked => 0,
                    }
                })
            })
            .collect();
        let mut winners = 0;
        for task in tasks {
            winners += task.await.unwrap();
        }
        assert_eq!(winners, 1);
    }
    assert_eq!(invoices(&database), rounds.to_string());
    assert_eq!(open_transactions(&database), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_in_flight_at_once_and_the_key_is_free_when_it_is_gone() {
    let (database, store) = business().await;
    let at = address("k");
    let mut open = won(&store, &at, &opening(1)).await;
    insert(open.handle(), 1).await;
    assert!(matches!(store.begin(&at, &opening(2)).await.unwrap(), Begun::Locked));
    // Another key is not in the way.
    won(&store, &address("other"), &opening(3)).await.roll_back().await;
    open.roll_back().await;
    won(&store, &at, &opening(4)).await.roll_back().await;
    assert_eq!(invoices(&database), "0");
    assert_eq!(store.load(&at).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_dropped_leaves_nothing_open() {
    let (database, store) = business().await;
    let at = address("k");
    // More often than the pool has connections: each has to come back clean.
    for n in 0..20 {
        // The rollback goes in front of whatever comes next on that connection; another connection may be quicker.
        let mut open = won_soon(&store, &at, &opening(n)).await;
        insert(open.handle(), 1).await;
    }
    won_soon(&store, &at, &opening(20)).await.roll_back().await;
    assert_eq!(invoices(&database), "0");
    assert_eq!(open_transactions(&database), "0");
}

/// R11, R13: what arbitrates is in the database, so another process meets it, and it holds for as long as the handler works
/// and not only while the record is looked for.
#[tokio::test(flavor = "multi_thread")]
async fn r11_r13_another_process_meets_the_holder_until_its_commit() {
    let database = Database::create();
    database.psql("CREATE TABLE invoice (id bigint PRIMARY KEY, amount bigint CHECK (amount > 0))");
    // Two stores on the same tables, each with connections and memory of its own, as two processes have.
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    let (store, replica) = (place.store(), place.store());
    let at = address("k");
    let opening = opening(1);
    let mut open = won(&store, &at, &opening).await;
    for id in 1..=3 {
        assert!(
            matches!(replica.begin(&at, &self::opening(2)).await.unwrap(), Begun::Locked),
            "before row {id}"
        );
        insert(open.handle(), id).await;
    }
    assert!(matches!(replica.begin(&at, &self::opening(3)).await.unwrap(), Begun::Locked));
    let Committed::Yes(_) = open.commit(&at, &completing(&opening)).await.unwrap() else {
        panic!("committed")
    };
    let Begun::Seen(Some(seen)) = replica.begin(&at, &self::opening(4)).await.unwrap() else {
        panic!("seen")
    };
    assert_eq!(seen.attempt, opening.next.attempt);
    assert_eq!(invoices(&database), "3", "of one handler");
    no_transaction_is_open_soon(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r14_a_failed_statement_is_undone_and_the_refusal_is_kept() {
    let (database, store) = business().await;
    let (at, opening) = (address("k"), opening(1));
    let mut open = won(&store, &at, &opening).await;
    insert(open.handle(), 1).await;
    let failed = open.handle().execute("INSERT INTO public.invoice VALUES (1, 5)", &[]).await;
    assert!(failed.is_err());
    // The transaction is aborted (25P02) but for the savepoint, which is older than the handler's first statement.
    open.undo().await.unwrap();
    assert!(
        matches!(store.begin(&at, &self::opening(2)).await.unwrap(), Begun::Locked),
        "the key is still held"
    );
    assert!(matches!(open.commit(&at, &completing(&opening)).await.unwrap(), Committed::Yes(_)));
    assert_eq!(invoices(&database), "0", "the refusal is stored, and nothing else");
    assert!(store.load(&at).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn r14_a_lost_race_leaves_the_transaction_usable() {
    let (database, store) = business().await;
    let (at, opening) = (address("k"), opening(1));
    let mut open = won(&store, &at, &opening).await;
    insert(open.handle(), 1).await;
    // Somebody claims without the lock, as a gateway on the same namespace would.
    let claim = self::opening(2);
    assert!(matches!(store.write_if(&at, &claim).await.unwrap(), Written::Yes(_)));
    assert_eq!(open.commit(&at, &completing(&opening)).await.unwrap(), Committed::No(Undone::Stale));
    assert_eq!(invoices(&database), "0");
    assert_eq!(store.load(&at).await.unwrap().unwrap().attempt, claim.next.attempt);
    // A claim that loses inside somebody's own transaction does not abort it either.
    let lost = self::opening(3);
    assert!(matches!(store.write_if(&at, &lost).await.unwrap(), Written::No(Some(_))));
    assert_eq!(open_transactions(&database), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_17_a_swallowed_error_is_no_commit() {
    let (database, store) = business().await;
    let (at, opening) = (address("k"), opening(1));
    let mut open = won(&store, &at, &opening).await;
    insert(open.handle(), 1).await;
    let _swallowed = open.handle().execute("INSERT INTO public.invoice VALUES (2, -1)", &[]).await;
    assert_eq!(open.commit(&at, &completing(&opening)).await.unwrap(), Committed::No(Undone::Lost));
    assert_eq!((invoices(&database).as_str(), store.load(&at).await.unwrap()), ("0", None));
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_17_a_handler_that_ends_the_transaction_stores_no_answer() {
    for (n, (ending, kept)) in
        [("COMMIT", "1"), ("ROLLBACK", "0"), ("COMMIT; BEGIN", "1"), ("ROLLBACK; BEGIN", "0")]
            .into_iter()
            .enumerate()
    {
        for long in [false, true] {
            let (database, store) = business().await;
            let (at, opening) = (address("k"), opening(n as u128 + 1));
            let mut open = won(&store, &at, &opening).await;
            insert(open.handle(), 1).await;
            open.handle().batch_execute(ending).await.unwrap();
            let body = vec![1; if long { 10_000 } else { 10 }];
            let write = Write { next: done_with_body(&opening.next, body), ..opening };
            assert_eq!(open.commit(&at, &write).await.unwrap(), Committed::No(Undone::Lost), "{ending}");
            assert_eq!(
                store.load(&at).await.unwrap(),
                None,
                "{ending}: no answer for work that is not its own"
            );
            assert_eq!(invoices(&database), kept, "{ending}: what the handler did by itself stays");
            assert_eq!(open_transactions(&database), "0");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_17_a_guarded_completion_outside_its_transaction_changes_nothing() {
    let (_database, store) = business().await;
    let (at, claim) = (address("k"), opening(1));
    assert!(matches!(store.write_if(&at, &claim).await.unwrap(), Written::Yes(_)));
    let mut open = store.open().await.unwrap();
    insert(open.handle(), 1).await;
    open.handle().batch_execute("COMMIT").await.unwrap();
    let write = Write { expect: Expect::Attempt(claim.next.attempt), next: done(&claim.next) };
    assert_eq!(open.commit(&at, &write).await.unwrap(), Committed::No(Undone::Lost));
    let present = store.load(&at).await.unwrap().unwrap();
    assert!(matches!(present.state, State::InFlight { .. }), "still the holder's, and not completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_18_a_deferred_constraint_is_told_before_the_commit() {
    let (database, store) = business().await;
    database.psql(
        "CREATE TABLE line (invoice bigint REFERENCES invoice DEFERRABLE INITIALLY DEFERRED);
         CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;
         CREATE TABLE guarded (id int);
         CREATE CONSTRAINT TRIGGER t AFTER INSERT ON guarded DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION no()",
    );
    for (n, text) in
        ["INSERT INTO public.line VALUES (99)", "INSERT INTO public.guarded VALUES (1)"].iter().enumerate()
    {
        let (at, opening) = (address("k"), opening(n as u128 + 1));
        let mut open = won(&store, &at, &opening).await;
        insert(open.handle(), 1).await;
        open.handle().batch_execute(text).await.unwrap();
        assert_eq!(open.commit(&at, &completing(&opening)).await.unwrap(), Committed::No(Undone::Constraint));
        assert_eq!((invoices(&database).as_str(), store.load(&at).await.unwrap()), ("0", None), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d4_a_connection_that_dies_between_business_and_commit_leaves_neither() {
    let (database, store) = business().await;
    let (at, opening) = (address("k"), opening(1));
    let mut open = won(&store, &at, &opening).await;
    insert(open.handle(), 1).await;
    let pid: i32 = open.handle().query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    database.psql(&format!("SELECT pg_terminate_backend({pid}, 5000)"));
    let error = open.commit(&at, &completing(&opening)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "it is known that nothing was committed");
    assert_eq!((invoices(&database).as_str(), store.load(&at).await.unwrap()), ("0", None));
    // The same key, at once.
    let mut open = won(&store, &at, &self::opening(2)).await;
    insert(open.handle(), 1).await;
    let write = completing(&self::opening(2));
    assert!(matches!(open.commit(&at, &write).await.unwrap(), Committed::Yes(_)));
    assert_eq!(invoices(&database), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_19_a_commit_that_is_polled_once_and_dropped_still_commits() {
    let database = Database::create();
    database.psql("CREATE TABLE invoice (id bigint PRIMARY KEY, amount bigint)");
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    // One connection, on which the statements of the end are prepared: the first poll sends them.
    let store = PgStore::open(driver_of(&database.url(), 1), place.options()).await.unwrap();
    let warm = opening(9);
    won(&store, &address("warm"), &warm).await.commit(&address("warm"), &completing(&warm)).await.unwrap();

    let (at, opening) = (address("k"), opening(1));
    let mut open = won(&store, &at, &opening).await;
    insert(open.handle(), 1).await;
    let write = completing(&opening);
    {
        let mut commit = std::pin::pin!(open.commit(&at, &write));
        assert!(
            commit.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending()
        );
    }
    // Whoever dropped it knows nothing; asking under the lock tells. Taking it for a rollback would be a second run.
    let Begun::Seen(Some(seen)) = store.begin(&at, &self::opening(2)).await.unwrap() else {
        panic!("committed")
    };
    assert_eq!(seen.attempt, opening.next.attempt);
    assert_eq!(invoices(&database), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_was_taken_over_rolls_back() {
    let (database, store) = business().await;
    let (at, claim) = (address("k"), opening(1));
    assert!(matches!(store.write_if(&at, &claim).await.unwrap(), Written::Yes(_)));
    let mut open = store.open().await.unwrap();
    insert(open.handle(), 1).await;
    // It pauses past its lease, and another takes over.
    let successor = Write { expect: takeover(&claim.next, START.plus(LEASE)), next: held(2) };
    assert!(matches!(store.write_if(&at, &successor).await.unwrap(), Written::Yes(_)));
    // It wakes and completes.
    let write = Write { expect: Expect::Attempt(claim.next.attempt), next: done(&claim.next) };
    assert_eq!(open.commit(&at, &write).await.unwrap(), Committed::No(Undone::Stale));
    assert_eq!(invoices(&database), "0", "its business rows are gone with it");
    // The successor's own go through.
    let mut open = store.open().await.unwrap();
    insert(open.handle(), 1).await;
    let write = Write { expect: Expect::Attempt(successor.next.attempt), next: done(&successor.next) };
    assert!(matches!(open.commit(&at, &write).await.unwrap(), Committed::Yes(_)));
    assert_eq!(invoices(&database), "1");
    assert_eq!(store.load(&at).await.unwrap().unwrap().attempt, successor.next.attempt);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_does_not_disturb_the_holders_transaction() {
    let (database, store) = business().await;
    let (at, claim) = (address("k"), opening(1));
    assert!(matches!(store.write_if(&at, &claim).await.unwrap(), Written::Yes(_)));
    let mut open = store.open().await.unwrap();
    insert(open.handle(), 1).await;
    let longer =
        Record { state: State::InFlight { lease_until: START.plus(LEASE * 2) }, ..claim.next.clone() };
    let renewal = Write { expect: Expect::Holding(claim.next.attempt), next: longer };
    assert!(matches!(store.write_if(&at, &renewal).await.unwrap(), Written::Yes(_)));
    let write = Write { expect: Expect::Attempt(claim.next.attempt), next: done(&claim.next) };
    assert!(matches!(open.commit(&at, &write).await.unwrap(), Committed::Yes(_)));
    assert_eq!(invoices(&database), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_15_a_handler_waits_for_no_lock_longer_than_its_limit() {
    let database = Database::create();
    database.psql("CREATE TABLE invoice (id bigint PRIMARY KEY, amount bigint)");
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    let options = retrysafe_store::postgres::PostgresOptions {
        lock_timeout: Duration::from_millis(100),
        ..place.options()
    };
    let store =
        PgStore::open(crate::support::driver(&database.url(), Mode::Prepared), options).await.unwrap();
    let mut zombie = won(&store, &address("k1"), &opening(1)).await;
    insert(zombie.handle(), 1).await;
    let mut other = won(&store, &address("k2"), &opening(2)).await;
    let waited = other.handle().execute("INSERT INTO public.invoice VALUES (1, 5)", &[]).await.unwrap_err();
    assert_eq!(waited.code().map(tokio_postgres::error::SqlState::code), Some("55P03"));
    other.roll_back().await;
    // The limits end with the transaction.
    let after = database.psql("SHOW lock_timeout");
    assert_eq!(after, "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mode_carries_a_transaction() {
    let database = Database::create();
    database.psql("CREATE TABLE invoice (id bigint PRIMARY KEY, amount bigint)");
    for (n, mode) in [Mode::Prepared, Mode::Unnamed, Mode::Simple].into_iter().enumerate() {
        let store = SchemaPlace::new(&database.url(), mode).store();
        let (at, opening) = (address("k"), opening(1));
        let mut open = won(&store, &at, &opening).await;
        insert(open.handle(), n as i64).await;
        assert!(matches!(store.begin(&at, &self::opening(2)).await.unwrap(), Begun::Locked), "{mode:?}");
        assert!(
            matches!(open.commit(&at, &completing(&opening)).await.unwrap(), Committed::Yes(_)),
            "{mode:?}"
        );
        // One that fails in the middle of the list, in each.
        let mut open = won(&store, &address("k2"), &self::opening(3)).await;
        let _swallowed = open.handle().batch_execute("SELECT 1/0").await;
        let write = completing(&self::opening(3));
        assert_eq!(
            open.commit(&address("k2"), &write).await.unwrap(),
            Committed::No(Undone::Lost),
            "{mode:?}"
        );
    }
    assert_eq!(invoices(&database), "3");
}
