//! The checkout against the service, over a wire that loses answers.

#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{Router, http::StatusCode, routing::post};
use retrysafe::{Contract, MemoryStore, Retrysafe};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

/// The service, behind the layer, with a count of what really happened.
async fn service() -> (SocketAddr, Arc<AtomicU32>) {
    let contract = Contract::parse(include_str!("../retrysafe.toml"), "retrysafe.toml").unwrap();
    let store = Arc::new(MemoryStore::new(Default::default()));
    let layer = Retrysafe::builder(contract, store).build().unwrap();
    let orders = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&orders);
    let create = move || async move {
        let id = count.fetch_add(1, Ordering::Relaxed) + 1;
        (StatusCode::CREATED, format!("{{\"id\": {id}}}"))
    };
    let app = Router::new().route("/orders", post(create)).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, orders)
}

/// A wire that lets the first `lost` requests through and resets the connection instead of their answers.
async fn lossy(upstream: SocketAddr, lost: u32) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let left = Arc::new(AtomicU32::new(lost));
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(carry(client, upstream, Arc::clone(&left)));
        }
    });
    address
}

async fn carry(mut client: TcpStream, upstream: SocketAddr, left: Arc<AtomicU32>) -> std::io::Result<()> {
    let mut server = TcpStream::connect(upstream).await?;
    if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        let (mut from, _) = client.split();
        let (mut answer, mut to) = server.split();
        let request = tokio::io::copy(&mut from, &mut to);
        let mut byte = [0; 1];
        tokio::select! {
            _ = request => {}
            _ = tokio::io::AsyncReadExt::read(&mut answer, &mut byte) => {}
        }
        return SockRef::from(&client).set_linger(Some(Duration::ZERO));
    }
    tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
}

#[tokio::test]
async fn a_lost_answer_is_fetched_and_the_order_is_placed_once() {
    let (service, orders) = service().await;
    let folder = tempfile::tempdir().unwrap();
    let wire = lossy(service, 2).await;
    let client = example_checkout::client(&format!("http://{wire}"), &folder.path().join("app.db")).unwrap();
    let answer = example_checkout::place(&client, "cart-17", 4_200).await.unwrap();
    assert_eq!((answer.status(), answer.body().as_ref()), (StatusCode::CREATED, &b"{\"id\": 1}"[..]));
    let again = example_checkout::place(&client, "cart-17", 4_200).await.unwrap();
    assert_eq!((again.body(), orders.load(Ordering::Relaxed)), (answer.body(), 1));
}

#[tokio::test]
async fn what_an_earlier_life_left_open_is_settled_at_the_next_start() {
    let (service, orders) = service().await;
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("app.db");
    let wire = lossy(service, 3).await;
    let client = example_checkout::client(&format!("http://{wire}"), &database).unwrap();
    let error = example_checkout::place(&client, "cart-18", 4_200).await.unwrap_err();
    assert!(error.to_string().starts_with("it may have been ordered"), "{error}");
    drop(client);

    let client = example_checkout::client(&format!("http://{wire}"), &database).unwrap();
    assert_eq!(example_checkout::take_up(&client).await.unwrap(), (1, 0));
    assert_eq!(example_checkout::take_up(&client).await.unwrap(), (0, 0));
    assert_eq!(orders.load(Ordering::Relaxed), 1);
}
