//! `retrysafe recover` as a process: the reaper on every store, and the completer with a service that opens its door.

#![allow(clippy::unwrap_used, clippy::panic)] // a test's helpers may fail loudly too

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::{Json, Router, extract::Path, http::HeaderMap, routing::post};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    claim::Times,
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence, StatusId},
    operate,
    outcome::{Body, Outcome},
    record::{Expect, Record, RecoveryClass, State, Uncertainty, Write},
    time::Wall,
};
use retrysafe_store::{
    Store, Written,
    mariadb::{MariaOptions, MariaStore},
    postgres::{PostgresOptions, PostgresStore, StoreAddress},
    sqlite::{SqliteOptions, SqliteStore},
};
use retrysafe_testbed::{Certificates, mariadb, postgres};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use support::{retrysafe, text};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn address(key: &str) -> Address {
    Address::new(
        Namespace::new("shop").unwrap(),
        Account::new(&["alice"]).unwrap(),
        Key::trusted(key).unwrap(),
    )
}

fn record(number: u128, recovery: RecoveryClass, opened_at: Wall, state: State) -> Record {
    Record {
        attempt: AttemptId::new(number),
        fence: Fence::from_u64(0),
        status_id: StatusId::new(1000 + number),
        fingerprint: Fingerprint::from_parts(1, 1, [0; 32]),
        recovery,
        contract_version: 1,
        endpoint: "POST /rides".into(),
        opened_at,
        state,
    }
}

async fn put(store: &dyn Store, key: &str, next: Record) {
    let write = Write { expect: Expect::Absent, next };
    assert!(matches!(store.write_if(&address(key), &write).await.unwrap(), Written::Yes(_)));
}

/// An answer whose window ended at `now`, or is open, and which is kept for people for as long as `reap` says.
fn done(number: u128, now: Wall, replay: Duration, reap: Duration) -> Record {
    let lost = record(
        number,
        RecoveryClass::Atomic,
        now,
        State::Uncertain { since: now, why: Uncertainty::Declared },
    );
    let outcome = Outcome { status: 201, headers: vec![], body: Body::Kept("{}".into()), trailers: vec![] };
    operate::resolve(&lost, outcome, Times { replay, reap }, now).unwrap().next
}

/// T4, and the two horizons: what is past its window and not past its threshold is kept for people.
async fn the_reaper_takes_what_is_past_its_threshold_and_nothing_else(
    store: Arc<dyn Store>,
    url: &str,
    folder: &std::path::Path,
) {
    let now = store.now().unwrap();
    for number in 0..30 {
        put(&*store, &format!("old-{number}"), done(number, now, Duration::ZERO, Duration::ZERO)).await;
    }
    put(&*store, "kept", done(50, now, Duration::ZERO, Duration::from_secs(3600))).await;
    put(&*store, "replayed", done(51, now, Duration::from_secs(60), Duration::from_secs(3600))).await;
    let ended = || State::InFlight { lease_until: now };
    put(&*store, "outside", record(52, RecoveryClass::Outside, now, ended())).await;
    put(&*store, "phased", record(53, RecoveryClass::Phased, now, ended())).await;
    put(&*store, "atomic", record(54, RecoveryClass::Atomic, now, ended())).await;
    let unclear = State::Uncertain { since: now, why: Uncertainty::UpstreamLost };
    put(&*store, "uncertain", record(55, RecoveryClass::Outside, now, unclear)).await;

    let output =
        retrysafe(folder, &["recover", "--store", url, "--once", "--json", "--batch", "7", "--log", "warn"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&told["reaped"], &told["marked_uncertain"], &told["needs_people"]),
        (&json!(30), &json!(1), &json!(2))
    );
    let shown = text(&output.stderr);
    assert!(shown.contains("could not be completed") && !shown.contains("alice"), "{shown}");
    let state = async |key: &str| store.load(&address(key)).await.unwrap().map(|record| record.state);
    assert_eq!(state("old-0").await, None);
    assert!(matches!(state("kept").await, Some(State::Completed { .. })));
    assert!(matches!(state("replayed").await, Some(State::Completed { .. })));
    assert!(matches!(state("outside").await, Some(State::Uncertain { why: Uncertainty::HolderLost, .. })));
    assert_eq!(state("phased").await, Some(ended()));
    assert_eq!(state("atomic").await, Some(ended()));
    assert!(matches!(
        state("uncertain").await,
        Some(State::Uncertain { why: Uncertainty::UpstreamLost, .. })
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn t4_the_reaper_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(SqliteOptions::new(folder.path().join("keys.db"))).unwrap();
    the_reaper_takes_what_is_past_its_threshold_and_nothing_else(Arc::new(store), "keys.db", folder.path())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t4_the_reaper_on_postgres() {
    let (database, folder) = (postgres::Database::create(), tempfile::tempdir().unwrap());
    let url = database.url();
    assert!(retrysafe(folder.path(), &["migrate", "--store", &url]).status.success());
    let address: StoreAddress = url.parse().unwrap();
    let store = PostgresStore::open(address.driver().unwrap(), PostgresOptions::default()).await.unwrap();
    the_reaper_takes_what_is_past_its_threshold_and_nothing_else(Arc::new(store), &url, folder.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t4_the_reaper_on_mariadb() {
    let (database, folder) = (mariadb::Database::create(), tempfile::tempdir().unwrap());
    let url = database.url();
    assert!(retrysafe(folder.path(), &["migrate", "--store", &url]).status.success());
    let store = MariaStore::open(MariaOptions::new(&url).unwrap()).await.unwrap();
    the_reaper_takes_what_is_past_its_threshold_and_nothing_else(Arc::new(store), &url, folder.path()).await;
}

/// What is behind a door that writes down who knocked, and for what.
fn rooms(asked: Arc<Mutex<Vec<String>>>) -> Router {
    let knock = move |Path(what): Path<String>, headers: HeaderMap| {
        let asked = Arc::clone(&asked);
        async move {
            let secret = headers["authorization"].to_str().unwrap() == format!("Bearer {SECRET}");
            asked.lock().unwrap().push(format!("{what} {secret}"));
            match what.as_str() {
                "effects" => Json(json!({ "tried": 0 })),
                _ => Json(json!({ "became": "left" })),
            }
        }
    };
    Router::new().nest("/door", Router::new().route("/{what}", post(knock)))
}

async fn door(asked: Arc<Mutex<Vec<String>>>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/door", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, rooms(asked)).await });
    url
}

/// The same behind TLS, for `localhost`.
async fn encrypted_door(asked: Arc<Mutex<Vec<String>>>, certificates: &Certificates) -> String {
    let key = PrivateKeyDer::from_pem_file(certificates.key()).unwrap();
    let chain = vec![CertificateDer::from_pem_file(certificates.server()).unwrap()];
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}/door", listener.local_addr().unwrap().port());
    let router = rooms(asked);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let service = TowerToHyperService::new(router.clone());
            let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::spawn(async move { serving.await.ok() });
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_is_asked_about_what_is_abandoned_and_about_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(SqliteOptions::new(folder.path().join("keys.db"))).unwrap();
    let now = store.now().unwrap();
    let live = State::InFlight { lease_until: now.plus(Duration::from_secs(3600)) };
    put(&store, "live", record(1, RecoveryClass::Phased, now, live)).await;
    put(&store, "abandoned", record(2, RecoveryClass::Phased, now, State::InFlight { lease_until: now }))
        .await;
    put(&store, "atomic", record(3, RecoveryClass::Atomic, now, State::InFlight { lease_until: now })).await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let url = door(Arc::clone(&asked)).await;
    std::fs::write(folder.path().join("secret"), format!("{SECRET}\n")).unwrap();
    let run = |service: &str| {
        let args =
            ["recover", "--store", "keys.db", "--once", "--service", service, "--secret-file", "secret"];
        let folder = folder.path().to_owned();
        tokio::task::block_in_place(|| retrysafe(&folder, &args))
    };
    let output = run(&url);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("waiting 1"), "{}", text(&output.stdout));
    let knocked = asked.lock().unwrap().clone();
    assert_eq!(knocked, [format!("{} true", StatusId::new(1002)), "effects true".to_owned()]);
    // Nobody is there: that is said, and is no success.
    let output = run("http://127.0.0.1:1/door");
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("could not be asked") && !said.contains(SECRET), "{said}");
}

/// A service of one's own seldom has a certificate that browsers would trust.
#[tokio::test(flavor = "multi_thread")]
async fn a_door_behind_tls_is_asked_where_its_authority_is_named() {
    let (certificates, stranger) = (Certificates::make(), Certificates::make());
    let folder = tempfile::tempdir().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let url = encrypted_door(Arc::clone(&asked), &certificates).await;
    drop(SqliteStore::open(SqliteOptions::new(folder.path().join("keys.db"))).unwrap());
    std::fs::write(folder.path().join("secret"), SECRET).unwrap();
    std::fs::write(folder.path().join("none.pem"), "nothing\n").unwrap();
    let run = |service: &str, ca: Option<&str>| {
        let ca = ca.map_or(Vec::new(), |file| vec!["--ca", file]);
        let args =
            ["recover", "--store", "keys.db", "--once", "--service", service, "--secret-file", "secret"];
        tokio::task::block_in_place(|| retrysafe(folder.path(), &[&args[..], &ca].concat()))
    };
    let authority = |of: &Certificates| of.authority().display().to_string();
    for ca in [None, Some(authority(&stranger))] {
        let output = run(&url, ca.as_deref());
        assert_eq!(output.status.code(), Some(1), "{ca:?}: {}", text(&output.stdout));
        assert!(text(&output.stderr).contains("could not be asked"), "{}", text(&output.stderr));
    }
    assert_eq!(*asked.lock().unwrap(), Vec::<String>::new(), "and was told no secret");
    let output = run(&url, Some(&authority(&certificates)));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(*asked.lock().unwrap(), ["effects true"]);
    for (service, ca, said) in [
        (&*url, "none.pem", "none.pem cannot be used: it holds no certificate"),
        (&url, "nowhere.pem", "nowhere.pem cannot be used"),
        ("http://localhost:1/door", &authority(&certificates), "--ca is about https"),
    ] {
        let output = run(service, Some(ca));
        assert_eq!(output.status.code(), Some(2), "{ca}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
    }
}
