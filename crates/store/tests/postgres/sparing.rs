//! What is not sent, since nothing asks for it.

use retrysafe_core::{
    address::Address,
    record::{Expect, Write},
};
use retrysafe_store::{
    Store, Written,
    postgres::{Mode, PoolOptions, PostgresTransaction, TokioPostgres},
    transactional::{Begun, Committed, OpenTransaction, Transactional},
};
use retrysafe_testbed::postgres::Database;

use crate::{
    cut::{Cut, Cutter},
    samples::{address, completing, done, held},
    support::{PgStore, SchemaPlace},
};

fn opening(n: u128) -> Write {
    Write { expect: Expect::Absent, next: held(n) }
}

/// A store with one connection behind the cutter, whose statements go with their texts, and another beside it.
async fn behind(cutter: &Cutter, database: &Database) -> (PgStore, PgStore) {
    let (store, beside, _) = placed(cutter, database).await;
    (store, beside)
}

async fn placed(cutter: &Cutter, database: &Database) -> (PgStore, PgStore, String) {
    let place = SchemaPlace::new(&database.url(), Mode::Unnamed);
    let beside = place.store();
    beside.tend_responses().await.unwrap();
    let pool = PoolOptions { mode: Mode::Unnamed, size: 1, ..PoolOptions::default() };
    let driver = TokioPostgres::new(database.url_at(&cutter.address).parse().unwrap(), pool).unwrap();
    (PgStore::open(driver, place.options()).await.unwrap(), beside, place.schema.to_string())
}

async fn won(store: &PgStore, at: &Address, n: u128) -> PostgresTransaction<TokioPostgres> {
    match store.begin(at, &opening(n)).await.unwrap() {
        Begun::Won(open) => open,
        other => panic!("{other:?}"),
    }
}

async fn keep(store: &PgStore, at: &Address, n: u128) {
    let open = won(store, at, n).await;
    assert!(matches!(open.commit(at, &completing(&opening(n))).await.unwrap(), Committed::Yes(_)));
}

async fn is_seen(store: &PgStore, at: &Address) -> bool {
    matches!(store.begin(at, &opening(99)).await.unwrap(), Begun::Seen(Some(record)) if record == stored(store, at).await)
}

async fn stored(store: &PgStore, at: &Address) -> retrysafe_core::record::Record {
    store.load(at).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_rolled_back_after_a_commit() {
    let (cutter, database) = (Cutter::start("ROLLBACK", Cut::Before).await, Database::create());
    let (store, beside) = behind(&cutter, &database).await;
    cutter.arm();
    keep(&store, &address("k"), 1).await;
    // Behind whatever the transaction left to be sent, on the only connection.
    assert!(store.load(&address("k")).await.unwrap().is_some());
    assert_eq!(cutter.cuts(), 0);
    // One that is dropped is another matter, whatever was committed on the connection before.
    drop(won(&store, &address("other"), 2).await);
    assert_eq!(store.load(&address("other")).await.unwrap(), None);
    assert_eq!(cutter.cuts(), 1);
    assert!(beside.load(&address("k")).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_of_what_was_seen_finished_begins_no_transaction() {
    let (cutter, database) =
        (Cutter::start("pg_try_advisory_xact_lock", Cut::Before).await, Database::create());
    let (store, beside) = behind(&cutter, &database).await;
    let (mine, theirs) = (address("mine"), address("theirs"));
    keep(&store, &mine, 1).await;
    keep(&beside, &theirs, 2).await;
    assert!(is_seen(&store, &theirs).await, "by the opening");
    cutter.arm();
    assert!(is_seen(&store, &mine).await && is_seen(&store, &theirs).await, "by a plain read");
    assert!(matches!(store.write_if(&mine, &opening(3)).await.unwrap(), Written::No(Some(_))));
    assert_eq!(cutter.cuts(), 0);
    drop(won(&store, &address("new"), 4).await);
    assert_eq!(cutter.cuts(), 1, "and what can be won is held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guess_decides_nothing() {
    let (cutter, database) = (Cutter::start("never", Cut::Before).await, Database::create());
    let (store, _, schema) = placed(&cutter, &database).await;
    let at = address("k");
    for n in 1..4 {
        keep(&store, &at, n).await;
        assert!(is_seen(&store, &at).await);
        // Reaped by somebody else, and this store is not told.
        database.psql(&format!("DELETE FROM {schema}.key"));
    }
    assert!(matches!(store.write_if(&at, &opening(4)).await.unwrap(), Written::Yes(_)));
    // In flight again: the write that was lost on the way is recognised, as ever.
    let Written::Yes(_) = store.write_if(&at, &opening(4)).await.unwrap() else { panic!("its own") };
    assert!(matches!(store.begin(&at, &opening(5)).await.unwrap(), Begun::Seen(Some(_))));
    let ended = Write { expect: Expect::Attempt(held(4).attempt), next: done(&held(4)) };
    assert!(matches!(store.write_if(&at, &ended).await.unwrap(), Written::Yes(_)));
    assert!(is_seen(&store, &at).await);
}
