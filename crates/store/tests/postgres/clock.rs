//! Whose time it is.

use std::time::Duration;

use retrysafe_store::{ErrorKind, Store, postgres::Mode};
use retrysafe_testbed::postgres::Database;

use crate::{
    samples::{address, held},
    support::{PgStore, SchemaPlace, driver},
};
use retrysafe_core::record::{Expect, Write};

/// Milliseconds since 1970 by the database.
fn database_ms(database: &Database) -> i64 {
    database.psql("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn r16_every_process_tells_the_databases_time() {
    let database = Database::create();
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    let stores = [place.store(), place.store()];
    for store in &stores {
        let before = database_ms(&database);
        let told = store.now().unwrap().unix_ms();
        let after = database_ms(&database);
        // Late by the way of the answer at most; never early.
        assert!(told <= after && told >= before - 500, "{before} {told} {after}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_10_a_jump_closes_every_process_until_one_acknowledges() {
    let database = Database::create();
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    let schema = place.schema.as_str();
    // The mark is 25 h old by the database's clock: to the store the same as a clock that ran 25 h ahead.
    let behind = database_ms(&database) - 25 * 3_600_000;
    drop(place.store());
    database.psql(&format!("UPDATE {schema}.meta SET clock_ms = {behind}"));
    let stores = [place.store(), place.store()];
    for store in &stores {
        assert_eq!(store.now().unwrap_err().kind(), ErrorKind::ClockJumped);
    }
    assert_eq!(
        database.psql(&format!("SELECT clock_ms FROM {schema}.meta")),
        behind.to_string(),
        "a clock that ran off is not written down"
    );
    stores[0].acknowledge_clock_jump().await.unwrap();
    stores[0].now().unwrap();
    // The other learns it with its next reading.
    for _ in 0..50 {
        if stores[1].now().is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("still closed after five seconds");
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_10_nobody_goes_behind_the_mark() {
    let database = Database::create();
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    let ahead = database_ms(&database) + 3_600_000;
    // Another process has told a time that the database's clock, set back since, has not reached.
    database.psql(&format!("UPDATE {}.meta SET clock_ms = {ahead}", place.schema));
    let store = place.store();
    assert_eq!(store.now().unwrap().unix_ms(), ahead);
}

#[tokio::test(flavor = "multi_thread")]
async fn f18_a_process_with_another_secret_is_recognised() {
    use retrysafe_core::fingerprint::DeploymentKey;
    let database = Database::create();
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    let key = |number, byte| DeploymentKey::new(number, &[byte; 32]).unwrap();
    let (first, second) = (place.store(), place.store());
    assert!(first.has_secret(&key(1, 7)).await.unwrap());
    assert!(second.has_secret(&key(1, 7)).await.unwrap());
    assert!(!second.has_secret(&key(1, 8)).await.unwrap(), "the same number, another secret");
    assert!(second.has_secret(&key(2, 8)).await.unwrap(), "a rotation has a number of its own");
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_7_a_bumped_epoch_is_above_every_fence_before_it() {
    let database = Database::create();
    let place = SchemaPlace::new(&database.url(), Mode::Prepared);
    let store = place.store();
    let claim = async |store: &PgStore, key: &str, n| {
        let write = Write { expect: Expect::Absent, next: held(n) };
        match store.write_if(&address(key), &write).await.unwrap() {
            retrysafe_store::Written::Yes(fence) => fence,
            retrysafe_store::Written::No(present) => panic!("{present:?}"),
        }
    };
    let before = claim(&store, "a", 1).await;
    assert_eq!(store.bump_epoch().await.unwrap(), 1);
    assert_eq!(store.bump_epoch().await.unwrap(), 2);
    let after = claim(&store, "b", 2).await;
    assert!(after > before && after.epoch() == 2, "{before} {after}");
    // Known to every process: it is in the database's sequence.
    let other = PgStore::open(driver(&database.url(), Mode::Unnamed), place.options()).await.unwrap();
    assert!(claim(&other, "c", 3).await > after);
}
