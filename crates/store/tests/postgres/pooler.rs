//! Behind PgBouncer in transaction mode: every transaction may be on another server connection.

use retrysafe_core::record::{Expect, Write};
use retrysafe_store::{
    conformance,
    postgres::Mode,
    transactional::{Begun, Committed, OpenTransaction, Transactional},
};
use retrysafe_testbed::{
    pgbouncer::PgBouncer,
    postgres::{Database, host_and_port, shared},
};

use crate::{
    samples::{address, completing, held},
    support::SchemaPlace,
};

fn pooler() -> PgBouncer {
    let (host, port) = host_and_port(shared());
    // Fewer than the store's own, so that they are really shared.
    PgBouncer::start(&host, port, 3)
}

async fn passes(mode: Mode) {
    let (database, pooler) = (Database::create(), pooler());
    let url = database.url_at(&pooler.address());
    conformance::run(|| SchemaPlace::new(&url, mode)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_behind_a_pooler_with_statements_without_names() {
    passes(Mode::Unnamed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_behind_a_pooler_with_the_simple_protocol() {
    passes(Mode::Simple).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r12_a_lock_behind_a_pooler_ends_with_its_transaction() {
    let (database, pooler) = (Database::create(), pooler());
    database.psql("CREATE TABLE invoice (id bigint)");
    let store = SchemaPlace::new(&database.url_at(&pooler.address()), Mode::Unnamed).store();
    let at = address("k");
    // Many rounds over three server connections: a lock that belonged to a session would be left behind on one of them.
    for n in 0..30 {
        let opening = Write { expect: Expect::Absent, next: held(n) };
        let Begun::Won(mut open) = store.begin(&at, &opening).await.unwrap() else { panic!("round {n}") };
        open.handle().execute_typed("INSERT INTO public.invoice VALUES (1)", &[]).await.unwrap();
        assert!(matches!(store.begin(&at, &opening).await.unwrap(), Begun::Locked), "round {n}");
        open.roll_back().await;
    }
    let locks = "SELECT count(*) FROM pg_locks JOIN pg_database ON oid = database \
                 WHERE locktype = 'advisory' AND datname = current_database()";
    assert_eq!(database.psql(locks), "0");
    let opening = Write { expect: Expect::Absent, next: held(99) };
    let Begun::Won(mut open) = store.begin(&at, &opening).await.unwrap() else { panic!("won") };
    open.handle().execute_typed("INSERT INTO public.invoice VALUES (1)", &[]).await.unwrap();
    assert!(matches!(open.commit(&at, &completing(&opening)).await.unwrap(), Committed::Yes(_)));
    assert_eq!(database.psql("SELECT count(*) FROM invoice"), "1");
}
