//! Answers that are lost, and servers that die.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use retrysafe_core::record::{Expect, Record, State, Write};
use retrysafe_store::{
    ErrorKind, Filter, Store, Written,
    postgres::{Mode, PostgresOptions, migrate},
    transactional::{Begun, Committed, OpenTransaction, Transactional},
};
use retrysafe_testbed::postgres::{Database, Throwaway};

use crate::{
    cut::{Cut, Cutter},
    samples::{address, completing, done, held},
    support::{PgStore, SchemaPlace, driver},
};

fn opening(n: u128) -> Write {
    Write { expect: Expect::Absent, next: held(n) }
}

/// A store behind the cutter, and one that looks from elsewhere.
async fn behind(cutter: &Cutter, database: &Database) -> (PgStore, PgStore) {
    let place = SchemaPlace::new(&database.url(), Mode::Unnamed);
    // The tables of the days ahead are made here, so that the other has nothing to commit but what the test asks for.
    let witness = place.store();
    witness.tend_responses().await.unwrap();
    let cut = PgStore::open(driver(&database.url_at(&cutter.address), Mode::Unnamed), place.options());
    (cut.await.unwrap(), witness)
}

#[tokio::test(flavor = "multi_thread")]
async fn r6_a_claim_whose_answer_was_lost_is_won() {
    let (cutter, database) = (Cutter::start("WITH won AS", Cut::After).await, Database::create());
    let (store, witness) = behind(&cutter, &database).await;
    cutter.arm();
    let at = address("k");
    let written = store.write_if(&at, &opening(1)).await.unwrap();
    assert_eq!(cutter.cuts(), 1);
    let present = witness.load(&at).await.unwrap().unwrap();
    assert_eq!(written, Written::Yes(present.fence), "not 409 to oneself");
}

#[tokio::test(flavor = "multi_thread")]
async fn r6_a_completion_whose_answer_was_lost_is_done() {
    for cut in [Cut::Before, Cut::After] {
        let (cutter, database) = (Cutter::start("WITH written AS", cut).await, Database::create());
        let (store, witness) = behind(&cutter, &database).await;
        let (at, claim) = (address("k"), opening(1));
        assert!(matches!(store.write_if(&at, &claim).await.unwrap(), Written::Yes(_)));
        cutter.arm();
        let write = Write { expect: Expect::Attempt(claim.next.attempt), next: done(&claim.next) };
        let Written::Yes(fence) = store.write_if(&at, &write).await.unwrap() else { panic!("done") };
        assert_eq!(cutter.cuts(), 1);
        assert_eq!(witness.load(&at).await.unwrap(), Some(Record { fence, ..write.next }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_whose_answer_was_lost_is_unknown() {
    let (cutter, database) = (Cutter::start("DELETE FROM", Cut::After).await, Database::create());
    let (store, _) = behind(&cutter, &database).await;
    let (at, claim) = (address("k"), opening(1));
    store.write_if(&at, &claim).await.unwrap();
    cutter.arm();
    let guard = retrysafe_core::record::RemoveIf::Attempt(claim.next.attempt);
    let error = store.remove_if(&at, guard).await.unwrap_err();
    assert_eq!((error.kind(), cutter.cuts()), (ErrorKind::Unknown, 1));
}

/// The commit of a transaction through the cutter: what the store says, how many invoices there are, and the record.
async fn commit_cut(cut: Cut, claim_first: bool) -> (Result<Committed, ErrorKind>, String, Option<Record>) {
    let (cutter, database) = (Cutter::start("COMMIT", cut).await, Database::create());
    database.psql("CREATE TABLE invoice (id bigint)");
    let (store, witness) = behind(&cutter, &database).await;
    let (at, claim) = (address("k"), opening(1));
    let (mut open, write) = if claim_first {
        store.write_if(&at, &claim).await.unwrap();
        let write = Write { expect: Expect::Attempt(claim.next.attempt), next: done(&claim.next) };
        (store.open().await.unwrap(), write)
    } else {
        let Begun::Won(open) = store.begin(&at, &claim).await.unwrap() else { panic!("won") };
        (open, completing(&claim))
    };
    open.handle().execute("INSERT INTO public.invoice VALUES (1)", &[]).await.unwrap();
    cutter.arm();
    let committed = open.commit(&at, &write).await.map_err(|error| error.kind());
    assert_eq!(cutter.cuts(), 1);
    (committed, database.psql("SELECT count(*) FROM invoice"), witness.load(&at).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_19_a_commit_whose_answer_was_lost_is_settled() {
    for claim_first in [false, true] {
        let (committed, invoices, present) = commit_cut(Cut::After, claim_first).await;
        let Some(Record { fence, state: State::Completed { .. }, .. }) = present else {
            panic!("{present:?}")
        };
        assert_eq!((committed, invoices.as_str()), (Ok(Committed::Yes(fence)), "1"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_19_a_commit_that_never_arrived_is_known_to_be_none() {
    for claim_first in [false, true] {
        let (committed, invoices, present) = commit_cut(Cut::Before, claim_first).await;
        assert_eq!((committed, invoices.as_str()), (Err(ErrorKind::Unavailable), "0"));
        let completed = present.is_some_and(|record| matches!(record.state, State::Completed { .. }));
        assert!(!completed, "no answer without its work");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_unavailable() {
    let server = Throwaway::start(&[]);
    let database = Database::on(&server.address());
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    let store = place.store();
    let mut server = server;
    server.kill();
    let error = store.load(&address("k")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = store.write_if(&address("k"), &opening(1)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown), "{error:?}");
    store.now().expect("the time goes on by this machine's counter");
    server.restart();
    // The dead connections of the pool are not the caller's business.
    let written = store.write_if(&address("k"), &opening(1)).await.unwrap();
    assert!(matches!(written, Written::Yes(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_keeps_business_rows_and_answers_together() {
    let mut server = Throwaway::start(&[]);
    let database = Database::on(&server.address());
    database.psql("CREATE TABLE invoice (key text)");
    let schema = retrysafe_store::postgres::Schema::default();
    migrate(&driver(&database.url(), Mode::Prepared), &schema).await.unwrap();
    let store =
        PgStore::open(driver(&database.url(), Mode::Prepared), PostgresOptions::default()).await.unwrap();
    let told = Arc::new(Mutex::new(BTreeSet::new()));
    let work: Vec<_> = (0..8_u128)
        .map(|worker| {
            let (store, told) = (store.clone(), Arc::clone(&told));
            tokio::spawn(async move {
                for n in 0.. {
                    let (key, opening) = (format!("{worker}-{n}"), opening(worker * 1_000_000 + n));
                    let Ok(Begun::Won(mut open)) = store.begin(&address(&key), &opening).await else {
                        return;
                    };
                    let inserted =
                        open.handle().execute("INSERT INTO public.invoice VALUES ($1)", &[&key]).await;
                    if inserted.is_err() {
                        return;
                    }
                    match open.commit(&address(&key), &completing(&opening)).await {
                        Ok(Committed::Yes(_)) => told.lock().unwrap().insert(key),
                        other => panic!("{other:?}", other = other.map_err(|error| error.kind())),
                    };
                }
            })
        })
        .collect();
    while told.lock().unwrap().len() < 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.kill();
    server.restart();
    for task in work {
        // A commit that met the kill is settled, or its kind says that nobody knows or nothing was done.
        if let Err(panicked) = task.await {
            let why = panicked.into_panic();
            let why = why.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(why.contains("Unknown") || why.contains("Unavailable"), "{why}");
        }
    }
    let store =
        PgStore::open(driver(&database.url(), Mode::Prepared), PostgresOptions::default()).await.unwrap();
    let everything = store.list(&Filter::default(), None, 1_000_000).await.unwrap();
    let answers: BTreeSet<String> = everything.iter().map(|(at, _)| at.key().as_str().to_owned()).collect();
    let rows = database.psql("SELECT key FROM invoice");
    let rows: Vec<String> = rows.lines().map(str::to_owned).collect();
    assert_eq!(rows.len(), answers.len(), "one business row for each answer");
    assert_eq!(rows.into_iter().collect::<BTreeSet<_>>(), answers);
    assert!(told.lock().unwrap().is_subset(&answers), "what was acknowledged is there");
}
