//! Answers that are lost on the wire, at every point of a transaction (protocol 19).

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use mysql_async::prelude::Queryable;
use retrysafe_core::record::Expect;
use retrysafe_testbed::mariadb::{Database, shared};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{super::MariaOptions, TestDatabase};
use crate::{
    Store, Written,
    conformance::samples::{address, claim, done, held, holder, won, write},
    mariadb::MariaStore,
    transactional::{Begun, Committed, OpenTransaction, Transactional, Undone},
};

/// What to do with the message that holds a word.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Cut {
    /// It never arrives.
    Before,
    /// It arrives, and its answer does not.
    After,
}

/// Stands in front of the server and cuts the connection at the first message that holds `word`, once armed.
async fn cutting(word: &'static str, cut: Cut) -> (String, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(false));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (who, server) = shared().trim_start_matches("mysql://").split_once('@').unwrap();
    let told = Arc::clone(&armed);
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(server).await.unwrap();
            tokio::spawn(carry(client, server, word, cut, Arc::clone(&told)));
        }
    });
    (format!("mysql://{who}@{at}"), armed)
}

async fn carry(
    mut client: TcpStream,
    mut server: TcpStream,
    word: &'static str,
    cut: Cut,
    armed: Arc<AtomicBool>,
) {
    let (mut up, mut down) = (vec![0; 256 * 1024], vec![0; 256 * 1024]);
    loop {
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(length @ 1..) = read else { return };
                let found = up[..length].windows(word.len()).any(|window| window == word.as_bytes());
                let now = found && armed.swap(false, Ordering::SeqCst);
                if now && cut == Cut::Before {
                    return;
                }
                if server.write_all(&up[..length]).await.is_err() {
                    return;
                }
                if now {
                    // The answer is waited for and thrown away, so that it is certain to have been done.
                    let _ = server.read(&mut down).await;
                    return;
                }
            }
            read = server.read(&mut down) => {
                let Ok(length @ 1..) = read else { return };
                if client.write_all(&down[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// A store whose connections are cut, and its database.
async fn cut_at(word: &'static str, cut: Cut) -> (TestDatabase, MariaStore, Arc<AtomicBool>) {
    let database = TestDatabase::with_tables(Database::create()).await;
    let mut session = database.session().await;
    session.query_drop("CREATE TABLE orders (id BIGINT PRIMARY KEY) ENGINE = InnoDB").await.unwrap();
    let (address, armed) = cutting(word, cut).await;
    let options = MariaOptions::new(&database.0.url_at(&address)).unwrap();
    let store = MariaStore::open(options).await.unwrap();
    (database, store, armed)
}

async fn orders(database: &TestDatabase) -> i64 {
    database.session().await.query_first("SELECT COUNT(*) FROM orders").await.unwrap().unwrap()
}

#[tokio::test]
async fn protocol_19_a_commit_whose_answer_was_lost_is_found_out() {
    for cut in [Cut::Before, Cut::After] {
        let (database, store, armed) = cut_at("RELEASE SAVEPOINT", cut).await;
        let address = address("k");
        let opening = write(Expect::Absent, &held(1));
        let Begun::Won(mut open) = store.begin(&address, &opening).await.unwrap() else { panic!("won") };
        open.handle().query_drop("INSERT INTO orders VALUES (7)").await.unwrap();
        armed.store(true, Ordering::SeqCst);
        let committed = open.commit(&address, &write(Expect::Absent, &done(&held(1)))).await.unwrap();
        let present = store.load(&address).await.unwrap();
        match cut {
            Cut::Before => {
                assert_eq!(committed, Committed::No(Undone::Lost));
                assert_eq!((orders(&database).await, present), (0, None));
            }
            Cut::After => {
                assert!(matches!(committed, Committed::Yes(_)), "{committed:?}");
                assert_eq!((orders(&database).await, present.is_some()), (1, true));
            }
        }
        assert!(!armed.load(Ordering::SeqCst), "it was cut");
    }
}

#[tokio::test]
async fn protocol_19_claim_first_an_unfinished_completion_is_never_called_undone() {
    let (database, store, armed) = cut_at("RELEASE SAVEPOINT", Cut::Before).await;
    let address = address("k");
    let mine = claim(&store, &address, 1).await;
    let mut open = store.open().await.unwrap();
    open.handle().query_drop("INSERT INTO orders VALUES (7)").await.unwrap();
    armed.store(true, Ordering::SeqCst);
    // Nothing on the server says whether the message is still on its way.
    let unknown = open.commit(&address, &write(holder(&mine), &done(&mine))).await.unwrap_err();
    assert_eq!(unknown.kind(), crate::ErrorKind::Unknown);
    assert_eq!(orders(&database).await, 0);

    let (database, store, armed) = cut_at("RELEASE SAVEPOINT", Cut::After).await;
    let mine = claim(&store, &address, 1).await;
    let mut open = store.open().await.unwrap();
    open.handle().query_drop("INSERT INTO orders VALUES (7)").await.unwrap();
    armed.store(true, Ordering::SeqCst);
    let committed = open.commit(&address, &write(holder(&mine), &done(&mine))).await.unwrap();
    assert_eq!(committed, Committed::Yes(mine.fence));
    assert_eq!(orders(&database).await, 1);
}

#[tokio::test]
async fn r6_a_claim_whose_answer_was_lost_is_won_by_the_one_who_made_it() {
    // The text of a claim is sent once and prepared; what is cut is its execution, found by the endpoint in its record.
    let (_database, store, armed) = cut_at("POST /orders", Cut::After).await;
    claim(&store, &address("before"), 1).await;
    let address = address("k");
    armed.store(true, Ordering::SeqCst);
    let fence = won(store.write_if(&address, &write(Expect::Absent, &held(2))).await.unwrap());
    assert!(!armed.load(Ordering::SeqCst), "it was cut");
    let present = store.load(&address).await.unwrap().unwrap();
    assert_eq!((present.attempt, present.fence), (held(2).attempt, fence));
    let other = store.write_if(&address, &write(Expect::Absent, &held(3))).await.unwrap();
    assert_eq!(other, Written::No(Some(present)));
}

#[tokio::test]
async fn a_beginning_whose_answer_was_lost_holds_nothing_and_is_begun_again() {
    for cut in [Cut::Before, Cut::After] {
        let (database, store, armed) = cut_at("BEGIN NOT ATOMIC", cut).await;
        let address = address("k");
        armed.store(true, Ordering::SeqCst);
        let opening = write(Expect::Absent, &held(1));
        // The server may need a moment to notice that the first connection has gone.
        let begun = loop {
            match store.begin(&address, &opening).await.unwrap() {
                Begun::Locked => tokio::task::yield_now().await,
                begun => break begun,
            }
        };
        let Begun::Won(mut open) = begun else { panic!("{begun:?}") };
        open.handle().query_drop("INSERT INTO orders VALUES (7)").await.unwrap();
        let committed = open.commit(&address, &write(Expect::Absent, &done(&held(1)))).await.unwrap();
        assert!(matches!(committed, Committed::Yes(_)));
        assert_eq!(orders(&database).await, 1);
        assert!(!armed.load(Ordering::SeqCst), "it was cut");
    }
}
