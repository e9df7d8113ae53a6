//! Durable intents: what is written down before the first byte, and what becomes of it after a crash.

use std::{sync::Arc, time::Duration};

use retrysafe_client::{
    Client, Error, Key, StillOpen,
    intents::{
        FileIntents, IntentFuture, Intents, PgIntents, Reconcile, Reconciled, SqliteIntents, Undecided,
    },
};

use retrysafe_testbed::postgres::Database;

use crate::{
    keyed,
    server::{Act, Server},
};

async fn saved_sent_and_settled(intents: impl Intents + Clone + 'static) {
    let server = Server::play([Act::Close, Act::Close, Act::Close]).await;
    let client = keyed(&server.url()).intents(intents.clone()).build().unwrap();
    let order = || {
        let request = client.post("/orders?x=1").header("authorization", "Bearer s").header("x-tenant", "t");
        request.body("{\"amount\":5}").event("order-confirm", 991).unwrap().durable()
    };
    let error = order().send().await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
    let open = intents.open(10).await.unwrap();
    assert_eq!((open.len(), open[0].key().as_str()), (1, "order-confirm-991"));

    // The process is gone; another one takes it up.
    drop(client);
    let client = keyed(&server.url()).intents(intents.clone()).build().unwrap();
    let resumed = client.resume().await.unwrap();
    assert_eq!((resumed.answered.len(), resumed.open.len()), (1, 0));
    assert!(intents.open(10).await.unwrap().is_empty());
    let requests = server.requests();
    assert_eq!(requests.len(), 4);
    for seen in &requests {
        assert_eq!(seen.header("idempotency-key"), Some("order-confirm-991"));
        assert_eq!((seen.header("x-tenant"), seen.body.as_slice()), (Some("t"), &b"{\"amount\":5}"[..]));
        assert!(seen.head.starts_with("POST /orders?x=1 "), "{}", seen.head);
    }
    assert_eq!(requests[3].header("authorization"), None, "credentials are not written down");
    assert!(client.resume().await.unwrap().answered.is_empty());
}

#[tokio::test]
async fn i61_intents_in_files_survive_and_keep_their_key() {
    let folder = tempfile::tempdir().unwrap();
    saved_sent_and_settled(FileIntents::in_folder(folder.path().join("intents")).unwrap()).await;
}

#[tokio::test]
async fn i61_intents_in_sqlite_survive_and_keep_their_key() {
    let folder = tempfile::tempdir().unwrap();
    saved_sent_and_settled(SqliteIntents::open(folder.path().join("app.db")).unwrap()).await;
}

#[tokio::test]
async fn i61_intents_in_postgres_survive_and_keep_their_key() {
    let (_database, pool) = pool().await;
    saved_sent_and_settled(PgIntents::open(pool).await.unwrap()).await;
}

async fn pool() -> (Database, sqlx::PgPool) {
    let database = tokio::task::spawn_blocking(Database::create).await.unwrap();
    let pool = sqlx::PgPool::connect(&database.url()).await.unwrap();
    (database, pool)
}

/// The outbox: the intent is there if the caller's rows are, and only then.
#[tokio::test]
async fn an_intent_in_the_callers_transaction_shares_its_fate() {
    let server = Server::play([]).await;
    let (_database, pool) = pool().await;
    let intents = PgIntents::open(pool.clone()).await.unwrap();
    let client = keyed(&server.url()).intents(intents.clone()).build().unwrap();
    let intent = |id: u32| client.post("/orders").body("{}").event("order", id).unwrap().intent().unwrap();

    let mut rolled_back = pool.begin().await.unwrap();
    PgIntents::save_in(&mut rolled_back, &intent(1)).await.unwrap();
    rolled_back.rollback().await.unwrap();
    assert!(intents.open(10).await.unwrap().is_empty());

    let mut committed = pool.begin().await.unwrap();
    let kept = intent(2);
    PgIntents::save_in(&mut committed, &kept).await.unwrap();
    PgIntents::save_in(&mut committed, &kept).await.unwrap();
    committed.commit().await.unwrap();
    assert_eq!(client.carry_out(&kept).await.unwrap().status().as_u16(), 201);
    assert!(intents.open(10).await.unwrap().is_empty());
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn nothing_is_sent_when_the_intent_cannot_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::play([]).await;
    let intents = FileIntents::in_folder(folder.path().join("gone")).unwrap();
    std::fs::remove_dir(folder.path().join("gone")).unwrap();
    let client = keyed(&server.url()).intents(intents).build().unwrap();
    let error = client.post("/orders").body("{}").durable().send().await.unwrap_err();
    assert!(matches!(error, Error::Refused(_)), "{error}");
    assert!(server.requests().is_empty());
}

/// Over processes too: what is written down under a key does not become another call.
#[tokio::test]
async fn another_body_under_a_key_that_is_written_down_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::play([Act::Close, Act::Close, Act::Close]).await;
    let client = || -> Client {
        let intents = FileIntents::in_folder(folder.path()).unwrap();
        keyed(&server.url()).intents(intents).build().unwrap()
    };
    let send = |client: Client, body: &'static str| async move {
        client.post("/orders").body(body).event("order", 7).unwrap().durable().send().await
    };
    assert!(matches!(send(client(), "a").await, Err(Error::OutcomeUnknown(_))));
    let error = send(client(), "b").await.unwrap_err();
    assert!(matches!(error, Error::Refused(retrysafe_client::Refused::BodyChanged)), "{error}");
}

#[derive(Clone, Debug, Default)]
struct LooksItUp(Arc<std::sync::Mutex<Vec<String>>>);

impl Reconcile for LooksItUp {
    fn reconcile<'a>(&'a self, undecided: Undecided<'a>) -> IntentFuture<'a, Reconciled> {
        let Undecided::Intent(intent) = undecided else { panic!("an intent") };
        self.0.lock().unwrap().push(intent.key().as_str().to_owned());
        Box::pin(async { Reconciled::Done(None) })
    }
}

/// Protocol 23: past the window the key means nothing any more; it is looked up, never sent.
#[tokio::test]
async fn past_the_window_an_intent_is_reconciled_and_not_sent() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::play([]).await;
    let intents = FileIntents::in_folder(folder.path()).unwrap();
    let client = keyed(&server.url()).intents(intents.clone()).build().unwrap();
    let request = client.post("/orders").body("{}").key(Key::from_event("order", 5).unwrap());
    let intent = request.within(Duration::from_millis(1)).intent().unwrap();
    intents.save(&intent).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let resumed = client.resume().await.unwrap();
    assert!(matches!(resumed.open[..], [(_, StillOpen::TooLate)]), "nobody is there to say: {resumed:?}");

    let hook = LooksItUp::default();
    let client = keyed(&server.url()).intents(intents.clone()).reconcile(hook.clone()).build().unwrap();
    let resumed = client.resume().await.unwrap();
    assert!(matches!(resumed.reconciled[..], [(_, Reconciled::Done(None))]), "{resumed:?}");
    assert_eq!(*hook.0.lock().unwrap(), ["order-5"]);
    assert!(server.requests().is_empty() && intents.open(9).await.unwrap().is_empty());
}
