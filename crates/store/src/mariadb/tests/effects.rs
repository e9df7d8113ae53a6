//! The effect ledger (SPEC 10.3), and what serializable transactions keep apart (SPEC 4.2).

use std::time::Duration;

use mysql_async::prelude::Queryable;
use retrysafe_core::{
    address::Address,
    contract::ClaimMethod,
    record::{Expect, RemoveIf, State},
    time::Wall,
};

use super::{super::MariaTransaction, TestDatabase};
use crate::{
    ErrorKind, Store,
    conformance::samples::{address, done, held, write},
    mariadb::{Isolation, MariaStore, MysqlDriver},
    transactional::{Begun, Committed, OpenTransaction, Transactional, Undone},
};

const HOUR: Duration = Duration::from_secs(3600);

async fn won(store: &MariaStore, address: &Address, n: u128) -> MariaTransaction<MysqlDriver> {
    match store.begin(address, &write(Expect::Absent, &held(n))).await.unwrap() {
        Begun::Won(open) => open,
        other => panic!("nothing is there, but {other:?}"),
    }
}

async fn commit(open: MariaTransaction<MysqlDriver>, address: &Address, n: u128) -> Committed {
    open.commit(address, &write(Expect::Absent, &done(&held(n)))).await.unwrap()
}

async fn duplicates(store: &MariaStore, within: Duration) -> Option<u64> {
    let to = store.now().unwrap().plus(HOUR);
    store.duplicate_effects(Wall::from_unix_ms(0), to, within).await.unwrap()
}

/// A run that has its effect in its transaction.
async fn charge(store: &MariaStore, key: &str, n: u128, steps: &[&str]) {
    let at = address(key);
    let mut open = won(store, &at, n).await;
    for step in steps {
        open.effect(&at, held(n).attempt, step).await.unwrap();
    }
    let ended = commit(open, &at, n).await;
    assert!(matches!(ended, Committed::Yes(_)), "{ended:?}");
}

/// The mutant: somebody's hand, or a bug, takes the record away, so the retry runs again.
async fn lose_the_record(store: &MariaStore, key: &str) {
    let record = store.load(&address(key)).await.unwrap().unwrap();
    let State::Completed { reap_at, .. } = record.state else { panic!("completed") };
    let gone = RemoveIf::Reapable { attempt: record.attempt, by: reap_at };
    assert!(store.remove_if(&address(key), gone).await.unwrap());
}

#[tokio::test]
async fn spec_10_3_the_ledger_counts_what_happened_twice_and_forgets_what_is_old() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    charge(&store, "a", 1, &["charge", "receipt"]).await;
    charge(&store, "b", 2, &["charge"]).await;
    assert_eq!(duplicates(&store, HOUR).await, Some(0), "other steps and other keys are no duplicates");
    lose_the_record(&store, "a").await;
    // Not in the same millisecond: it is not counted as one that happened within no time at all.
    tokio::time::sleep(Duration::from_millis(20)).await;
    charge(&store, "a", 3, &["charge", "receipt"]).await;
    assert_eq!(duplicates(&store, HOUR).await, Some(2));
    assert_eq!(duplicates(&store, Duration::from_millis(1)).await, Some(0), "far later is another request");
    // Three of one instant are two too many.
    charge(&store, "c", 4, &["charge", "charge", "charge"]).await;
    assert_eq!(duplicates(&store, HOUR).await, Some(4));
    let later = store.now().unwrap().plus(HOUR);
    assert_eq!(store.forget_effects(Wall::from_unix_ms(0), 100).await.unwrap(), 0);
    assert_eq!(store.forget_effects(later, 5).await.unwrap(), 5, "in batches");
    assert_eq!(store.forget_effects(later, 100).await.unwrap(), 3);
    assert_eq!(duplicates(&store, HOUR).await, Some(0));
}

#[tokio::test]
async fn an_effect_is_undone_and_rolled_back_with_the_rows_of_its_transaction() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    let at = address("k");
    let mut open = won(&store, &at, 1).await;
    open.effect(&at, held(1).attempt, "charge").await.unwrap();
    let too_long = open.effect(&at, held(1).attempt, &"s".repeat(256)).await.unwrap_err();
    assert_eq!(too_long.kind(), ErrorKind::Full, "and the transaction goes on");
    open.undo().await.unwrap();
    assert!(matches!(commit(open, &at, 1).await, Committed::Yes(_)));
    let mut open = won(&store, &address("other"), 2).await;
    open.effect(&address("other"), held(2).attempt, "charge").await.unwrap();
    open.roll_back().await;
    let rows: Option<i64> =
        database.session().await.query_first("SELECT COUNT(*) FROM retrysafe_effect").await.unwrap();
    assert_eq!(rows, Some(0));
}

/// SPEC 4.2: what the handler read is guarded with what it wrote. Either may be overdrawn as long as both together are not.
#[tokio::test]
async fn serializable_lets_one_of_two_requests_pass_that_each_checked_the_same_balance() {
    let database = TestDatabase::make().await;
    let mut session = database.session().await;
    let tables = "CREATE TABLE balance (account VARCHAR(9) PRIMARY KEY, amount BIGINT) ENGINE = InnoDB; \
                  INSERT INTO balance VALUES ('a', 100), ('b', 100)";
    session.query_drop(tables).await.unwrap();
    let mut options = database.options();
    options.isolation = Isolation::Serializable;
    let store = MariaStore::open(options).await.unwrap();
    assert!(store.claims_by().contains(&ClaimMethod::Serializable));
    let (one, two) = (address("one"), address("two"));
    let mut first = won(&store, &one, 1).await;
    let mut second = won(&store, &two, 2).await;
    for open in [&mut first, &mut second] {
        let sum: Option<i64> =
            open.handle().query_first("SELECT CAST(SUM(amount) AS SIGNED) FROM balance").await.unwrap();
        assert_eq!(sum, Some(200), "both see enough");
    }
    // Each waits for what the other has read: one of them is rolled back by the database.
    let take =
        |account: &str| format!("UPDATE balance SET amount = amount - 150 WHERE account = '{account}'");
    let (of_a, of_b) =
        tokio::join!(first.handle().query_drop(take("a")), second.handle().query_drop(take("b")));
    assert_eq!(usize::from(of_a.is_ok()) + usize::from(of_b.is_ok()), 1, "{of_a:?} {of_b:?}");
    // Also where its handler swallows the error and goes on.
    let ended = (commit(first, &one, 1).await, commit(second, &two, 2).await);
    let expected = match of_a.is_ok() {
        true => matches!(ended, (Committed::Yes(_), Committed::No(Undone::Lost))),
        false => matches!(ended, (Committed::No(Undone::Lost), Committed::Yes(_))),
    };
    assert!(expected, "{ended:?}");
    let sum: Option<i64> =
        session.query_first("SELECT CAST(SUM(amount) AS SIGNED) FROM balance").await.unwrap();
    assert_eq!(sum, Some(50));
    let records = (store.load(&one).await.unwrap(), store.load(&two).await.unwrap());
    assert_eq!(
        (records.0.is_some(), records.1.is_some()),
        (of_a.is_ok(), of_b.is_ok()),
        "the other key is free"
    );
}

#[tokio::test]
async fn a_store_that_was_not_opened_for_it_does_not_offer_serializable() {
    let database = TestDatabase::make().await;
    assert_eq!(database.store().await.claims_by(), [ClaimMethod::Unique, ClaimMethod::Conditional]);
}
