//! On a real server, which [`retrysafe_testbed::mariadb`] finds or starts: every test has a database of its own.

use std::{sync::Arc, time::Duration};

use mysql_async::{Conn, Opts, OptsBuilder, prelude::Queryable};
use retrysafe_testbed::{
    Certificates,
    mariadb::{Database, Throwaway},
};

use super::{MariaOptions, MariaStore};
use crate::{
    Store, StoreError,
    conformance::{self, Place},
    transactional::{OpenTransaction, Transactional},
};

mod concurrency;
mod cut;
mod doctor;
mod effects;
mod transactions;

/// A database with the tables.
pub(crate) struct TestDatabase(Database);

impl TestDatabase {
    pub(crate) async fn make() -> Self {
        Self::with_tables(Database::create()).await
    }

    async fn with_tables(database: Database) -> Self {
        let database = Self(database);
        MariaStore::migrate(&database.options()).await.unwrap();
        database
    }

    pub(crate) fn options(&self) -> MariaOptions {
        MariaOptions::new(&self.0.url()).unwrap()
    }

    pub(crate) async fn store(&self) -> MariaStore {
        MariaStore::open(self.options()).await.unwrap()
    }

    /// A connection of nobody's, in the database.
    pub(crate) async fn session(&self) -> Conn {
        let opts = OptsBuilder::from_opts(Opts::from_url(&self.0.url()).unwrap()).prefer_socket(Some(false));
        Conn::new(opts).await.unwrap()
    }
}

pub(crate) fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

impl Place for TestDatabase {
    fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(wait_for(MariaStore::open(self.options()))?))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    conformance::run(|| wait_for(TestDatabase::make())).await;
}

#[tokio::test]
async fn a_database_without_tables_says_what_to_do() {
    let database = TestDatabase::make().await;
    database.session().await.query_drop("DROP TABLE retrysafe_migration").await.unwrap();
    let error = MariaStore::open(database.options()).await.unwrap_err().to_string();
    assert!(error.contains("retrysafe migrate"), "{error}");
}

#[tokio::test]
async fn migrating_twice_and_at_once_applies_each_step_once() {
    let database = TestDatabase::make().await;
    database.session().await.query_drop("DROP TABLE retrysafe_migration").await.unwrap();
    // As after an attempt that broke off: the tables are there, the ledger is not.
    let (one, two) = (database.options(), database.options());
    let (one, two) = tokio::join!(MariaStore::migrate(&one), MariaStore::migrate(&two));
    assert_eq!(one.unwrap().len() + two.unwrap().len(), super::MIGRATIONS.len());
}

#[tokio::test]
async fn the_store_is_open_again_after_every_connection_was_killed() {
    let database = TestDatabase::make().await;
    let store = database.store().await;
    let address = conformance::samples::address("k");
    let loads = (0..5).map(|_| store.load(&address));
    for load in futures_util::future::join_all(loads).await {
        load.unwrap();
    }
    let mut session = database.session().await;
    let ours: Vec<u64> = session
        .query(
            "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
        )
        .await
        .unwrap();
    assert!(!ours.is_empty());
    for id in ours {
        let _ = session.query_drop(format!("KILL CONNECTION {id}")).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(store.load(&address).await.unwrap(), None);
}

#[tokio::test]
async fn the_store_and_what_it_said_outlive_a_kill_of_the_server() {
    let mut server = Throwaway::start(&[]);
    let database = TestDatabase::with_tables(Database::on(&server.address())).await;
    let store = database.store().await;
    assert!(store.capability().survives_power_cut);
    let mut kept = Vec::new();
    for n in 1..=20 {
        let address = conformance::samples::address(&format!("k{n}"));
        kept.push((address.clone(), conformance::samples::claim(&store, &address, n).await));
    }
    server.kill();
    let down = store.load(&kept[0].0).await.unwrap_err();
    assert!(down.may_retry(), "{down}");
    server.restart();
    for (address, record) in &kept {
        assert_eq!(store.load(address).await.unwrap().as_ref(), Some(record));
    }
    let next = conformance::samples::claim(&store, &conformance::samples::address("next"), 99).await;
    assert!(kept.iter().all(|(_, record)| record.fence < next.fence), "a fence is never issued twice");
}

#[tokio::test]
async fn a_connection_is_as_safe_as_its_address_says_or_there_is_none() {
    let (certificates, stranger) = (Certificates::make(), Certificates::make());
    let server = Throwaway::start_encrypted(&certificates);
    let database = TestDatabase::with_tables(Database::on(&server.address())).await;
    let (ca, other) = (certificates.authority(), stranger.authority());
    let (ca, other) = (ca.display(), other.display());
    // The certificate is for localhost and for no other name.
    for (host, parameters, wanted) in [
        ("localhost", String::new(), Some(false)),
        ("localhost", format!("?ssl_ca={ca}"), Some(true)),
        ("localhost", format!("?require_ssl=true&ssl_ca={ca}"), Some(true)),
        ("127.0.0.1", format!("?require_ssl=true&ssl_ca={ca}"), None),
        ("localhost", "?require_ssl=true&verify_ca=false".to_owned(), Some(true)),
        ("localhost", "?require_ssl=true".to_owned(), None),
        ("localhost", format!("?ssl_ca={other}"), None),
        ("localhost", "?ssl_ca=/nowhere/ca.pem".to_owned(), None),
    ] {
        let url = database.0.url_at(&format!("mysql://root@{host}:{}", server.port())) + &parameters;
        let opened = MariaStore::open(MariaOptions::new(&url).unwrap()).await;
        let encrypted = match opened {
            Ok(store) => {
                // A handler's connection is as safe as the store's own.
                let mut open = store.open().await.unwrap();
                let cipher: Option<(String, String)> =
                    open.handle().query_first("SHOW SESSION STATUS LIKE 'Ssl_cipher'").await.unwrap();
                Some(!cipher.unwrap().1.is_empty())
            }
            Err(_) => None,
        };
        assert_eq!(encrypted, wanted, "{host} {parameters}");
    }
}

#[tokio::test]
async fn a_server_that_flushes_once_a_second_claims_no_power_cut() {
    let server = Throwaway::start(&[("innodb-flush-log-at-trx-commit", "2")]);
    let database = TestDatabase::with_tables(Database::on(&server.address())).await;
    assert!(!database.store().await.capability().survives_power_cut);
}
