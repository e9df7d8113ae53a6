//! Reaping, the tables of long answers, and roles that may little.

use std::time::Duration;

use retrysafe_core::{
    record::{Expect, Record, RemoveIf, State, Write},
    time::Wall,
};
use retrysafe_store::{
    Due, ErrorKind, Store, Written,
    postgres::{Mode, OpenError, PostgresOptions, PostgresStore, Schema, TokioPostgres, migrate},
};
use retrysafe_testbed::postgres::Database;

use crate::{
    samples::{START, address, done, done_at, held},
    support::{PgStore, SchemaPlace, driver, fresh},
};

async fn complete(store: &PgStore, key: &str, n: u128, next: impl FnOnce(&Record) -> Record) -> Record {
    let claim = Write { expect: Expect::Absent, next: held(n) };
    let Written::Yes(fence) = store.write_if(&address(key), &claim).await.unwrap() else { panic!("claimed") };
    let write = Write { expect: Expect::Attempt(claim.next.attempt), next: next(&claim.next) };
    assert!(matches!(store.write_if(&address(key), &write).await.unwrap(), Written::Yes(_)));
    Record { fence, ..write.next }
}

fn long_after() -> Wall {
    START.plus(Duration::from_secs(1_000_000))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_found_nothing_is_never_a_wrong_answer() {
    let (_database, store) = fresh();
    for round in 0..100_u128 {
        let at = address(&format!("race-{round}"));
        let tasks: Vec<_> = (1..=50)
            .map(|n| {
                let (store, at) = (store.clone(), at.clone());
                let claim = Write { expect: Expect::Absent, next: held(round * 1_000 + n) };
                tokio::spawn(async move { store.write_if(&at, &claim).await.unwrap() })
            })
            .collect();
        let mut winners = 0;
        for task in tasks {
            match task.await.unwrap() {
                Written::Yes(_) => winners += 1,
                Written::No(present) => assert!(present.is_some(), "nothing is there, and yet it lost"),
            }
        }
        assert_eq!(winners, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t5_reaping_leaves_what_somebody_is_changing_and_takes_the_rest() {
    let (database, store) = fresh();
    for n in 0..250 {
        complete(&store, &format!("k{n}"), n + 1, done).await;
    }
    let held_by_others = database.psql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'place_%'");
    // A session that has five of the rows locked and does not go away.
    let (other, connection) = tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    other
        .batch_execute(&format!(
            "BEGIN; SELECT FROM {held_by_others}.key WHERE state = 2 ORDER BY due_ms LIMIT 5 FOR UPDATE"
        ))
        .await
        .unwrap();
    let mut reaped = 0;
    loop {
        // Each batch returns at once: it stands behind nobody.
        let batch = tokio::time::timeout(Duration::from_secs(2), store.reap(long_after(), 100)).await;
        match batch.expect("no waiting").unwrap() {
            0 => break,
            n => reaped += n,
        }
    }
    assert_eq!(reaped, 245);
    drop(other);
    connection.await.unwrap().unwrap();
    let mut rest = 0;
    for _ in 0..100 {
        rest += store.reap(long_after(), 100).await.unwrap();
        if rest == 5 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{rest} of 5");
}

#[tokio::test(flavor = "multi_thread")]
async fn s20_records_that_cannot_be_read_keep_nobody_else_from_being_looked_after() {
    let (database, store) = fresh();
    let schema = database.psql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'place_%'");
    for n in 1..=20 {
        let claim = Write { expect: Expect::Absent, next: held(n) };
        assert!(matches!(store.write_if(&address(&format!("k{n}")), &claim).await.unwrap(), Written::Yes(_)));
    }
    // All but one, and that is the last in line.
    database.psql(&format!(
        "UPDATE {schema}.key SET data = 'ff'::bytea || substr(data, 2) WHERE key <> 'k20';
         UPDATE {schema}.key SET due_ms = due_ms + 1 WHERE key = 'k20'"
    ));
    let due = store.due(Due::LeaseEnded, long_after(), 2).await.unwrap();
    assert_eq!(due.iter().map(|(at, _)| at.key().as_str()).collect::<Vec<_>>(), ["k20"]);
    // Whoever asks for one is told.
    assert_eq!(store.load(&address("k1")).await.unwrap_err().kind(), ErrorKind::UnknownVersion);
}

#[tokio::test(flavor = "multi_thread")]
async fn t4_a_batch_never_reaps_what_is_not_completed() {
    let (_database, store) = fresh();
    let claim = Write { expect: Expect::Absent, next: held(1) };
    store.write_if(&address("in flight"), &claim).await.unwrap();
    let early = complete(&store, "early", 2, done).await;
    let State::Completed { reap_at, .. } = early.state else { panic!("completed") };
    assert_eq!(store.reap(Wall::from_unix_ms(reap_at.unix_ms() - 1), 10).await.unwrap(), 0);
    assert_eq!(store.reap(long_after(), 10).await.unwrap(), 1);
    assert!(store.load(&address("in flight")).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn r10_a_key_that_went_between_claim_and_read_is_claimed() {
    let (_database, store) = fresh();
    let at = address("k");
    // Somebody claims and releases the key all the time; whoever claims gets it or sees who has it, and never an error.
    let other = tokio::spawn({
        let (store, at) = (store.clone(), at.clone());
        async move {
            for n in 0..300_u128 {
                let claim = Write { expect: Expect::Absent, next: held(1_000 + n) };
                if matches!(store.write_if(&at, &claim).await.unwrap(), Written::Yes(_)) {
                    store.remove_if(&at, RemoveIf::Attempt(claim.next.attempt)).await.unwrap();
                }
            }
        }
    });
    let mut won = 0;
    while !other.is_finished() {
        let claim = Write { expect: Expect::Absent, next: held(1) };
        match store.write_if(&at, &claim).await.unwrap() {
            Written::Yes(_) => {
                won += 1;
                store.remove_if(&at, RemoveIf::Attempt(claim.next.attempt)).await.unwrap();
            }
            Written::No(present) => assert!(present.is_some()),
        }
    }
    other.await.unwrap();
    assert!(won > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_answers_are_in_tables_by_day_and_go_with_their_day() {
    let (database, store) = fresh();
    let schema = database.psql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'place_%'");
    let tables = || {
        let list =
            format!("SELECT count(*) FROM pg_inherits WHERE inhparent = '{schema}.response'::regclass");
        database.psql(&list).parse::<usize>().unwrap()
    };
    store.tend_responses().await.unwrap();
    assert_eq!(tables(), 1 + 9, "the days ahead, and the table for all others");
    assert_eq!(store.tend_responses().await.unwrap(), Default::default(), "once");

    // An answer whose day is ten days ago has a table of its own; it goes when nothing refers to it, and not before.
    let now = store.now().unwrap();
    let ten_days_ago = Wall::from_unix_ms(now.unix_ms() - 13 * 86_400_000);
    let day = (now.unix_ms() - 10 * 86_400_000).div_euclid(86_400_000);
    database.psql(&format!(
        "CREATE TABLE {schema}.response_{day} PARTITION OF {schema}.response FOR VALUES IN ({day})"
    ));
    let stored = complete(&store, "old", 1, |record| done_at(record, vec![5; 5_000], ten_days_ago)).await;
    assert_eq!(database.psql(&format!("SELECT count(*) FROM {schema}.response_{day}")), "1");
    assert_eq!(store.tend_responses().await.unwrap().dropped, 0, "a record refers to it");
    assert_eq!(store.load(&address("old")).await.unwrap(), Some(stored));
    assert_eq!(store.reap(now, 10).await.unwrap(), 1);
    assert_eq!(store.tend_responses().await.unwrap().dropped, 1);
    assert_eq!(tables(), 1 + 9);

    // A day without a table is no reason to refuse an answer, and no reason to keep it for ever.
    let stored = complete(&store, "older", 2, |record| done_at(record, vec![6; 5_000], ten_days_ago)).await;
    assert_eq!(store.load(&address("older")).await.unwrap(), Some(stored));
    assert_eq!(database.psql(&format!("SELECT count(*) FROM {schema}.response_other")), "1");
    store.reap(now, 10).await.unwrap();
    store.tend_responses().await.unwrap();
    assert_eq!(database.psql(&format!("SELECT count(*) FROM {schema}.response_other")), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn short_answers_are_in_the_row() {
    let (database, store) = fresh();
    let schema = database.psql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'place_%'");
    complete(&store, "short", 1, |record| done_at(record, vec![5; 700], START)).await;
    complete(&store, "long", 2, |record| done_at(record, vec![5; 1_100], START)).await;
    let apart = database.psql(&format!("SELECT key, body_apart FROM {schema}.readable ORDER BY 1"));
    assert_eq!(apart, "long|t\nshort|f");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_make_no_tables_keeps_long_answers_all_the_same() {
    let database = Database::create();
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    let role = format!("{}_role", database.name());
    let schema = place.schema.as_str();
    database.psql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};
         GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO {role}"
    ));
    let url = database.url().replace("postgres@", &format!("{role}@"));
    let store = PgStore::open(driver(&url, Mode::Prepared), place.options()).await.unwrap();
    let refused = store.tend_responses().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    let stored = complete(&store, "k", 1, |record| done_at(record, vec![5; 5_000], START)).await;
    assert_eq!(store.load(&address("k")).await.unwrap(), Some(stored));
    drop(store);
    database.psql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_path_with_other_tables_of_the_same_names_changes_nothing() {
    let (database, _) = fresh();
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    database.psql(&format!(
        "CREATE TABLE key (x int); CREATE TABLE meta (x int); CREATE TABLE response (x int);
         ALTER DATABASE {} SET search_path = public",
        database.name()
    ));
    let store = place.store();
    let stored = complete(&store, "k", 1, |record| done_at(record, vec![5; 5_000], START)).await;
    assert_eq!(store.load(&address("k")).await.unwrap(), Some(stored));
    assert_eq!(database.psql("SELECT count(*) FROM public.key"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_are_applied_once_by_whoever_comes_first() {
    let database = Database::create();
    let schema = Schema::new("shared").unwrap();
    let all: Vec<_> = (0..6)
        .map(|_| {
            let (driver, schema) = (driver(&database.url(), Mode::Prepared), schema.clone());
            tokio::spawn(async move { migrate(&driver, &schema).await.unwrap().len() })
        })
        .collect();
    let mut applied = 0;
    for one in all {
        applied += one.await.unwrap();
    }
    assert_eq!(applied, usize::try_from(retrysafe_store::postgres::LAYOUT).unwrap());
    // The printed script makes the same.
    let other = Schema::new("printed").unwrap();
    database.psql(&retrysafe_store::postgres::script(&other));
    let driver = driver(&database.url(), Mode::Prepared);
    assert_eq!(migrate(&driver, &other).await.unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_its_tables_says_so() {
    let database = Database::create();
    let opened = |schema: &str| {
        let options = PostgresOptions { schema: Schema::new(schema).unwrap(), ..PostgresOptions::default() };
        PostgresStore::<TokioPostgres>::open(driver(&database.url(), Mode::Prepared), options)
    };
    let error = opened("retrysafe").await.unwrap_err();
    assert!(
        matches!(error, OpenError::NoTables { .. }) && error.to_string().contains("retrysafe migrate"),
        "{error}"
    );
    let driver = driver(&database.url(), Mode::Prepared);
    migrate(&driver, &Schema::default()).await.unwrap();
    database.psql("INSERT INTO retrysafe.migration VALUES (99, 'from the future')");
    assert!(matches!(opened("retrysafe").await.unwrap_err(), OpenError::Later { found: 99, .. }));
    assert!(migrate(&driver, &Schema::default()).await.is_err());
}
