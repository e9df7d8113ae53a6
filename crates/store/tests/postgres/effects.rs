//! The effect ledger (SPEC 10.3), and what serializable transactions keep apart (SPEC 4.2).

use std::time::Duration;

use retrysafe_core::{
    address::Address,
    contract::ClaimMethod,
    record::{Expect, RemoveIf, State, Write},
    time::Wall,
};
use retrysafe_store::{
    ErrorKind, Store,
    postgres::{Isolation, Mode, PostgresOptions, PostgresStore},
    transactional::{Begun, Committed, OpenTransaction, Transactional, Undone},
};
use retrysafe_testbed::postgres::Database;

use crate::{
    samples::{address, completing, held},
    support::{PgStore, SchemaPlace, driver, fresh},
};

const HOUR: Duration = Duration::from_secs(3600);

fn opening(n: u128) -> Write {
    Write { expect: Expect::Absent, next: held(n) }
}

async fn won(store: &PgStore, address: &Address, opening: &Write) -> <PgStore as Transactional>::Open {
    match store.begin(address, opening).await.unwrap() {
        Begun::Won(open) => open,
        Begun::Seen(_) | Begun::Locked => panic!("not won"),
    }
}

async fn duplicates(store: &PgStore, within: Duration) -> Option<u64> {
    let to = store.now().unwrap().plus(HOUR);
    store.duplicate_effects(Wall::from_unix_ms(0), to, within).await.unwrap()
}

/// A run that has its effect in its transaction.
async fn charge(store: &PgStore, key: &str, n: u128, steps: &[&str]) {
    let (at, opening) = (address(key), opening(n));
    let mut open = won(store, &at, &opening).await;
    for step in steps {
        open.effect(&at, opening.next.attempt, step).await.unwrap();
    }
    let ended = open.commit(&at, &completing(&opening)).await.unwrap();
    assert!(matches!(ended, Committed::Yes(_)), "{ended:?}");
}

/// The mutant: somebody's hand, or a bug, takes the record away, so the retry runs again.
async fn lose_the_record(store: &PgStore, key: &str) {
    let record = store.load(&address(key)).await.unwrap().unwrap();
    let State::Completed { reap_at, .. } = record.state else { panic!("completed") };
    let gone = RemoveIf::Reapable { attempt: record.attempt, by: reap_at };
    assert!(store.remove_if(&address(key), gone).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn spec_10_3_the_ledger_counts_what_happened_twice_and_forgets_what_is_old() {
    let (_database, store) = fresh();
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

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_is_undone_and_rolled_back_with_the_rows_of_its_transaction() {
    let (database, store) = fresh();
    let (at, opening) = (address("k"), opening(1));
    let mut open = won(&store, &at, &opening).await;
    open.effect(&at, opening.next.attempt, "charge").await.unwrap();
    let too_long = open.effect(&at, opening.next.attempt, &"s".repeat(256)).await.unwrap_err();
    assert_eq!(too_long.kind(), ErrorKind::Full, "and the transaction goes on");
    open.undo().await.unwrap();
    assert!(matches!(open.commit(&at, &completing(&opening)).await, Ok(Committed::Yes(_))));
    let other = self::opening(2);
    let mut open = won(&store, &address("other"), &other).await;
    open.effect(&address("other"), other.next.attempt, "charge").await.unwrap();
    open.roll_back().await;
    let schema = database.psql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'place_%'");
    assert_eq!(database.psql(&format!("SELECT count(*) FROM {schema}.effect")), "0");
}

/// A store whose handlers' transactions are serializable, with two accounts of 100 each.
fn serializable() -> (Database, PgStore) {
    let database = Database::create();
    database.psql("CREATE TABLE balance (account text PRIMARY KEY, amount bigint); INSERT INTO balance VALUES ('a', 100), ('b', 100)");
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    let options = PostgresOptions { isolation: Isolation::Serializable, ..place.options() };
    let open = PostgresStore::open(driver(&place.url, place.mode), options);
    let store = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(open)).unwrap();
    (database, store)
}

/// SPEC 4.2: what the handler read is guarded with what it wrote. Either may be overdrawn as long as both together are not.
#[tokio::test(flavor = "multi_thread")]
async fn serializable_lets_one_of_two_requests_pass_that_each_checked_the_same_balance() {
    let (database, store) = serializable();
    assert!(store.claims_by().contains(&ClaimMethod::Serializable));
    let (one, two) = (address("one"), address("two"));
    let (of_one, of_two) = (opening(1), opening(2));
    let mut first = won(&store, &one, &of_one).await;
    let mut second = won(&store, &two, &of_two).await;
    for (open, account) in [(&mut first, "a"), (&mut second, "b")] {
        let sum: i64 = open
            .handle()
            .query_one("SELECT sum(amount)::bigint FROM public.balance", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(sum, 200, "both see enough");
        let take = "UPDATE public.balance SET amount = amount - 150 WHERE account = $1";
        open.handle().execute(take, &[&account]).await.unwrap();
    }
    assert!(matches!(first.commit(&one, &completing(&of_one)).await, Ok(Committed::Yes(_))));
    let refused = second.commit(&two, &completing(&of_two)).await.unwrap();
    assert_eq!(refused, Committed::No(Undone::Conflict));
    assert_eq!(database.psql("SELECT sum(amount) FROM balance"), "50");
    assert_eq!(store.load(&two).await.unwrap(), None, "its key is free for the retry");
}

/// The snapshot may be older than a commit that the lock does not know: then the completing write finds out.
#[tokio::test(flavor = "multi_thread")]
async fn serializable_keeps_nothing_of_a_handler_whose_opening_saw_an_old_snapshot() {
    let (database, store) = serializable();
    let (at, opening) = (address("k"), opening(1));
    let mut open = won(&store, &at, &opening).await;
    let take = "UPDATE public.balance SET amount = amount - 150 WHERE account = 'a'";
    open.handle().execute(take, &[]).await.unwrap();
    store.write_if(&at, &self::opening(2)).await.unwrap();
    let ended = open.commit(&at, &completing(&opening)).await.unwrap();
    assert!(matches!(ended, Committed::No(Undone::Conflict | Undone::Stale)), "{ended:?}");
    assert_eq!(database.psql("SELECT sum(amount) FROM balance"), "200");
    assert_eq!(store.load(&at).await.unwrap().unwrap().attempt, held(2).attempt);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_was_not_opened_for_it_does_not_offer_serializable() {
    let (_database, store) = fresh();
    assert_eq!(store.claims_by(), [ClaimMethod::Unique, ClaimMethod::Conditional]);
}
