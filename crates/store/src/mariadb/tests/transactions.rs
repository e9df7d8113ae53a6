//! Claim, business rows and answer in one commit, and every way in which that can go wrong.

use std::time::Duration;

use mysql_async::{Conn, prelude::Queryable};
use retrysafe_core::{
    address::Address,
    outcome::Body,
    record::{Expect, Record, State, Uncertainty, Write},
};

use super::{super::MariaTransaction, TestDatabase, concurrency::wait_for_waiters};
use crate::{
    ErrorKind, Store,
    conformance::samples::{
        WINDOW, address, answer, apply, at, claim, done, done_with, expired, held, holder, takeover, write,
    },
    mariadb::{Isolation, MariaStore, MysqlDriver},
    transactional::{Begun, Committed, OpenTransaction, Transactional, Undone},
};

type Open = MariaTransaction<MysqlDriver>;

const NONE: [i64; 0] = [];

/// A database with business tables.
async fn shop() -> (TestDatabase, MariaStore) {
    let database = TestDatabase::make().await;
    database
        .session()
        .await
        .query_drop(
            "CREATE TABLE orders (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL) ENGINE = InnoDB; \
             INSERT INTO orders VALUES (-1, 0), (-2, 0)",
        )
        .await
        .unwrap();
    let store = database.store().await;
    (database, store)
}

async fn begin(store: &MariaStore, address: &Address, n: u128) -> Begun<Open> {
    store.begin(address, &write(Expect::Absent, &held(n))).await.unwrap()
}

async fn win(store: &MariaStore, address: &Address, n: u128) -> Open {
    match begin(store, address, n).await {
        Begun::Won(open) => open,
        other => panic!("nothing is there, but {other:?}"),
    }
}

/// The write that completes the claim which attempt `n` opened.
fn completing(n: u128) -> Write {
    write(Expect::Absent, &done(&held(n)))
}

async fn order(open: &mut Open, id: i64) {
    open.handle().exec_drop("INSERT INTO orders VALUES (?, 100)", (id,)).await.unwrap();
}

/// The orders that are committed.
async fn orders(database: &TestDatabase) -> Vec<i64> {
    let mut session = database.session().await;
    session.query("SELECT id FROM orders WHERE id > 0 ORDER BY id").await.unwrap()
}

#[tokio::test]
async fn business_rows_and_the_answer_are_committed_together() {
    let (database, store) = shop().await;
    let address = address("k");
    let mut open = win(&store, &address, 1).await;
    order(&mut open, 7).await;
    assert_eq!(orders(&database).await, NONE, "nothing before the commit");
    assert_eq!(store.load(&address).await.unwrap(), None);
    let Committed::Yes(fence) = open.commit(&address, &completing(1)).await.unwrap() else {
        panic!("committed")
    };
    let record = Record { fence, ..done(&held(1)) };
    assert_eq!(store.load(&address).await.unwrap(), Some(record.clone()));
    assert_eq!(orders(&database).await, [7]);
    assert!(fence.as_u64() > 0);
    assert!(matches!(begin(&store, &address, 2).await, Begun::Seen(Some(seen)) if seen == record));
}

#[tokio::test]
async fn in_flight_is_answered_at_once_and_a_crash_leaves_nothing() {
    let (database, store) = shop().await;
    let address = address("k");
    let mut open = win(&store, &address, 1).await;
    order(&mut open, 7).await;
    let started = std::time::Instant::now();
    for n in 2..=20 {
        let begun = begin(&store, &address, n).await;
        assert!(matches!(begun, Begun::Locked), "{n}: {begun:?} after {:?}", started.elapsed());
    }
    assert!(started.elapsed() < Duration::from_secs(5), "nobody waited for a lock: {:?}", started.elapsed());
    drop(open);
    // The connection is reset in the background.
    let open = eventually_won(&store, &address, 50).await;
    assert_eq!(orders(&database).await, NONE);
    open.roll_back().await;
    assert_eq!(store.load(&address).await.unwrap(), None, "no claim is left");
}

async fn eventually_won(store: &MariaStore, address: &Address, n: u128) -> Open {
    for _ in 0..200 {
        match begin(store, address, n).await {
            Begun::Won(open) => return open,
            Begun::Locked => tokio::time::sleep(Duration::from_millis(10)).await,
            Begun::Seen(record) => panic!("{record:?}"),
        }
    }
    panic!("the address never came free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_of_fifty_transactions_at_once_one_has_an_effect() {
    let (database, store) = shop().await;
    for round in 1..=10_i64 {
        let address = address(&format!("race-{round}"));
        let transactions = (0..50_u128).map(|n| {
            let (store, address) = (&store, &address);
            let attempt = round as u128 * 1_000 + n;
            async move {
                let Begun::Won(mut open) = begin(store, address, attempt).await else { return false };
                order(&mut open, round).await;
                matches!(open.commit(address, &completing(attempt)).await, Ok(Committed::Yes(_)))
            }
        });
        let won = futures_util::future::join_all(transactions).await;
        assert_eq!(won.into_iter().filter(|won| *won).count(), 1);
        assert!(matches!(begin(&store, &address, 9).await, Begun::Seen(Some(_))));
    }
    assert_eq!(orders(&database).await, (1..=10).collect::<Vec<_>>());
}

#[tokio::test]
async fn r14_a_unique_violation_of_the_handler_leaves_its_transaction_usable() {
    let (database, store) = shop().await;
    let address = address("k");
    let mut open = win(&store, &address, 1).await;
    order(&mut open, 7).await;
    let twice = open.handle().query_drop("INSERT INTO orders VALUES (7, 1)").await;
    assert!(twice.is_err());
    order(&mut open, 8).await;
    assert!(matches!(open.commit(&address, &completing(1)).await, Ok(Committed::Yes(_))));
    assert_eq!(orders(&database).await, [7, 8]);
}

#[tokio::test]
async fn a_refusal_that_is_stored_takes_the_business_rows_back() {
    let (database, store) = shop().await;
    let address = address("k");
    let mut open = win(&store, &address, 1).await;
    order(&mut open, 7).await;
    open.undo().await.unwrap();
    order(&mut open, 8).await;
    open.undo().await.unwrap();
    assert!(matches!(begin(&store, &address, 2).await, Begun::Locked), "undo keeps the address");
    assert!(matches!(open.commit(&address, &completing(1)).await, Ok(Committed::Yes(_))));
    assert_eq!(orders(&database).await, NONE);
    assert!(store.load(&address).await.unwrap().is_some());
}

#[tokio::test]
async fn protocol_17_a_deadlock_that_a_handler_swallows_commits_nothing() {
    let (database, _) = shop().await;
    // Long enough that only the deadlock ends anything, however slow the machine.
    let mut options = database.options();
    options.lock_timeout = Duration::from_secs(60);
    options.statement_timeout = Duration::from_secs(60);
    options.idle_timeout = Duration::from_secs(60);
    let store = MariaStore::open(options).await.unwrap();
    let address = address("k");
    let mut open = win(&store, &address, 1).await;
    order(&mut open, 7).await;
    let mut other = database.session().await;
    // The heavier transaction survives.
    let weight = "INSERT INTO orders SELECT seq + 1000, 0 FROM seq_1_to_500; ";
    other
        .query_drop(format!("START TRANSACTION; {weight} UPDATE orders SET amount = 1 WHERE id = -2"))
        .await
        .unwrap();
    open.handle().query_drop("UPDATE orders SET amount = 1 WHERE id = -1").await.unwrap();
    let blocked = async {
        other.query_drop("UPDATE orders SET amount = 1 WHERE id = -1").await.unwrap();
        other.query_drop("ROLLBACK").await.unwrap();
    };
    let victim = async {
        wait_for_waiters(&database, 1).await;
        // The error is thrown away, as handlers do.
        let error = open.handle().query_drop("UPDATE orders SET amount = 1 WHERE id = -2").await;
        assert!(error.unwrap_err().to_string().contains("1213"));
        order(&mut open, 8).await;
    };
    tokio::join!(blocked, victim);
    let committed = open.commit(&address, &completing(1)).await.unwrap();
    assert_eq!(committed, Committed::No(Undone::Lost));
    assert_eq!(orders(&database).await, NONE, "neither what was before the deadlock nor what came after");
    assert_eq!(store.load(&address).await.unwrap(), None);
}

#[tokio::test]
async fn protocol_17_ddl_and_commits_of_a_handler_leave_an_uncertain_record_and_no_answer() {
    let enders = [
        "CREATE TABLE surprise (id INT) ENGINE = InnoDB",
        "COMMIT",
        "START TRANSACTION",
        "SET autocommit = 1",
    ];
    for ender in enders {
        let (database, store) = shop().await;
        let address = address("k");
        let mut open = win(&store, &address, 1).await;
        order(&mut open, 7).await;
        open.handle().query_drop(ender).await.unwrap();
        order(&mut open, 8).await;
        let committed = open.commit(&address, &completing(1)).await.unwrap();
        assert_eq!(committed, Committed::No(Undone::Lost), "{ender}");
        // What was committed half way cannot be taken back; that it is never run again can be seen to.
        assert!(orders(&database).await.contains(&7), "{ender}");
        let state = store.load(&address).await.unwrap().map(|record| record.state);
        let uncertain = matches!(state, Some(State::Uncertain { why: Uncertainty::ResultNotStored, .. }));
        assert!(uncertain, "{ender}: {state:?}");
        assert!(matches!(begin(&store, &address, 2).await, Begun::Seen(Some(_))), "{ender}");
    }
}

#[tokio::test]
async fn protocol_17_a_transaction_that_was_rolled_back_cannot_be_undone_and_gone_on_with() {
    let (database, store) = shop().await;
    let address = address("k");
    let mut open = win(&store, &address, 1).await;
    open.handle().query_drop("ROLLBACK").await.unwrap();
    order(&mut open, 7).await;
    assert_eq!(open.undo().await.unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(open.commit(&address, &completing(1)).await.unwrap(), Committed::No(Undone::Lost));
    assert_eq!(orders(&database).await, NONE);
}

#[tokio::test]
async fn an_expired_record_is_begun_over_and_comes_back_if_that_fails() {
    let (_database, store) = shop().await;
    let address = address("k");
    let mine = claim(&store, &address, 1).await;
    let old = apply(&store, &address, holder(&mine), &done(&mine)).await;
    let ends = at(WINDOW.as_secs());
    let over = write(expired(&old, ends), &held(2));
    let early = write(expired(&old, at(1)), &held(2));
    assert!(matches!(store.begin(&address, &early).await.unwrap(), Begun::Seen(Some(seen)) if seen == old));
    let Begun::Won(open) = store.begin(&address, &over).await.unwrap() else { panic!("expired") };
    // Two at once: the second sees the record as it was, and the lock when it tries.
    assert!(matches!(begin(&store, &address, 3).await, Begun::Seen(Some(seen)) if seen == old));
    let second = write(expired(&old, ends), &held(3));
    assert!(matches!(store.begin(&address, &second).await.unwrap(), Begun::Locked));
    open.roll_back().await;
    assert_eq!(store.load(&address).await.unwrap(), Some(old.clone()));
    let Begun::Won(open) = store.begin(&address, &second).await.unwrap() else { panic!("free again") };
    let complete = write(expired(&old, ends), &done(&held(3)));
    let Committed::Yes(fence) = open.commit(&address, &complete).await.unwrap() else { panic!("committed") };
    assert!(fence > old.fence);
    assert_eq!(store.load(&address).await.unwrap().map(|record| record.attempt), Some(held(3).attempt));
}

#[tokio::test]
async fn r3_a_holder_that_was_taken_over_rolls_its_business_rows_back() {
    let (database, store) = shop().await;
    let address = address("k");
    let mine = claim(&store, &address, 1).await;
    let mut open = store.open().await.unwrap();
    order(&mut open, 7).await;
    // It was stopped for longer than its lease; another one ran and completed.
    let theirs = apply(&store, &address, takeover(&mine, at(31)), &held(2)).await;
    let mut successor = store.open().await.unwrap();
    order(&mut successor, 8).await;
    let theirs = write(holder(&theirs), &done(&theirs));
    assert!(matches!(successor.commit(&address, &theirs).await, Ok(Committed::Yes(_))));
    let woken = open.commit(&address, &write(holder(&mine), &done(&mine))).await.unwrap();
    assert_eq!(woken, Committed::No(Undone::Stale));
    assert_eq!(orders(&database).await, [8]);
}

#[tokio::test]
async fn claim_first_a_holder_completes_in_its_business_transaction() {
    let (database, store) = shop().await;
    let address = address("k");
    let mine = claim(&store, &address, 1).await;
    let mut open = store.open().await.unwrap();
    order(&mut open, 7).await;
    // A renewal on the way does not disturb it (R4).
    let renewed = Record { state: State::InFlight { lease_until: at(90) }, ..mine.clone() };
    apply(&store, &address, crate::conformance::samples::renewing(&mine), &renewed).await;
    let committed = open.commit(&address, &write(holder(&mine), &done(&mine))).await.unwrap();
    assert_eq!(committed, Committed::Yes(mine.fence));
    assert_eq!(orders(&database).await, [7]);
    assert_eq!(store.load(&address).await.unwrap(), Some(done(&mine)));
}

#[tokio::test]
async fn nothing_of_one_handlers_session_is_met_by_the_next() {
    let database = TestDatabase::make().await;
    let mut options = database.options();
    options.handlers.max = 1;
    let store = MariaStore::open(options).await.unwrap();
    let mut open = win(&store, &address("one"), 1).await;
    open.handle()
        .query_drop("SET sql_mode = '', @mine = 'secret', time_zone = '+05:00'; DO GET_LOCK('theirs', 0)")
        .await
        .unwrap();
    open.roll_back().await;
    let mut open = win(&store, &address("two"), 2).await;
    let (mode, mine, autocommit): (String, Option<String>, i64) =
        open.handle().query_first("SELECT @@sql_mode, @mine, @@autocommit").await.unwrap().unwrap();
    assert!(mode.contains("STRICT") && mine.is_none(), "{mode} {mine:?}");
    assert_eq!(autocommit, 0);
    let free: i64 = open.handle().query_first("SELECT IS_FREE_LOCK('theirs')").await.unwrap().unwrap();
    assert_eq!(free, 1);
}

#[tokio::test]
async fn a_long_answer_is_committed_with_its_body_apart() {
    let (database, store) = shop().await;
    let address = address("k");
    // Too long for the text of a statement, so that it is sent another way.
    let mut outcome = answer(b"");
    outcome.body = Body::Kept((0..200_000_u32).map(|n| n as u8).collect::<Vec<_>>().into());
    let mut open = win(&store, &address, 1).await;
    order(&mut open, 7).await;
    let complete = write(Expect::Absent, &done_with(&held(1), outcome, None));
    let Committed::Yes(fence) = open.commit(&address, &complete).await.unwrap() else { panic!("committed") };
    let stored = Record { fence, ..complete.next };
    assert_eq!(store.load(&address).await.unwrap(), Some(stored.clone()));
    assert!(matches!(begin(&store, &address, 2).await, Begun::Seen(Some(seen)) if seen == stored));
    assert_eq!(orders(&database).await, [7]);
}

#[tokio::test]
async fn a_handlers_snapshot_begins_after_its_claim_under_every_isolation() {
    let (database, _) = shop().await;
    for (n, isolation) in
        (1..).zip([Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable])
    {
        let mut options = database.options();
        options.isolation = isolation;
        let store = MariaStore::open(options).await.unwrap();
        let address = address(&format!("{isolation:?}"));
        let mut open = win(&store, &address, n).await;
        // Committed by another after the claim, before the handler's first read.
        let amount = 100 + n as i64;
        let mut other = database.session().await;
        other.query_drop(format!("UPDATE orders SET amount = {amount} WHERE id = -1")).await.unwrap();
        let seen: Option<i64> =
            open.handle().query_first("SELECT amount FROM orders WHERE id = -1").await.unwrap();
        assert_eq!(seen, Some(amount), "{isolation:?}");
        let told: String = open.handle().query_first("SELECT @@tx_isolation").await.unwrap().unwrap();
        assert_eq!(told.replace('-', "").to_lowercase(), format!("{isolation:?}").to_lowercase());
        assert!(
            matches!(open.commit(&address, &completing(n)).await, Ok(Committed::Yes(_))),
            "{isolation:?}"
        );
    }
}

#[tokio::test]
async fn a_handler_waits_for_a_lock_no_longer_than_it_may() {
    let (database, _) = shop().await;
    let mut options = database.options();
    options.lock_timeout = Duration::from_secs(1);
    let store = MariaStore::open(options).await.unwrap();
    let mut zombie = database.session().await;
    zombie.query_drop("START TRANSACTION; UPDATE orders SET amount = 9 WHERE id = -1").await.unwrap();
    let address = address("k");
    let mut open = win(&store, &address, 1).await;
    let refused = open.handle().query_drop("UPDATE orders SET amount = 8 WHERE id = -1").await;
    assert!(refused.unwrap_err().to_string().contains("1205"));
    // Only that statement was taken back: the handler may go on.
    order(&mut open, 7).await;
    assert!(matches!(open.commit(&address, &completing(1)).await, Ok(Committed::Yes(_))));
    assert_eq!(orders(&database).await, [7]);
}

#[tokio::test]
async fn the_server_ends_a_transaction_that_is_left_idle() {
    let (database, _) = shop().await;
    let mut options = database.options();
    options.idle_timeout = Duration::from_secs(1);
    let store = MariaStore::open(options).await.unwrap();
    let address = address("k");
    let mut open = win(&store, &address, 1).await;
    order(&mut open, 7).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let committed = open.commit(&address, &completing(1)).await.unwrap();
    assert_eq!(committed, Committed::No(Undone::Lost));
    assert_eq!(orders(&database).await, NONE);
    eventually_won(&store, &address, 2).await.roll_back().await;
}

#[tokio::test]
async fn d4_a_killed_connection_leaves_neither_rows_nor_record() {
    let (database, store) = shop().await;
    let address = address("k");
    let mut open = win(&store, &address, 1).await;
    order(&mut open, 7).await;
    let id = open.handle().id();
    let mut session: Conn = database.session().await;
    session.query_drop(format!("KILL CONNECTION {id}")).await.unwrap();
    let committed = open.commit(&address, &completing(1)).await.unwrap();
    assert_eq!(committed, Committed::No(Undone::Lost));
    assert_eq!(orders(&database).await, NONE);
    assert_eq!(store.load(&address).await.unwrap(), None);
}
