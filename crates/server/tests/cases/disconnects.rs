//! Clients that go away: nothing from the claim on is cancelled (D1, D2). Real sockets, and events instead of pauses.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::Request};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tower::ServiceExt;

use crate::support::{
    api::{Api, created, order},
    faulty::{Call, settle_down},
};

/// A retry meets the first run's answer, or waits for it.
const WAIT: &str = "in_flight = { answer = \"wait\", wait_at_most = \"10s\" }";

/// The API on a socket, and an event for every response future that the server dropped, finished or not.
struct Served {
    api: Api,
    address: SocketAddr,
    dropped: Arc<Semaphore>,
}

struct Tells(Arc<Semaphore>);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

async fn serve() -> Served {
    let api = Api::new(WAIT);
    let dropped = Arc::new(Semaphore::new(0));
    let (inner, tell) = (api.router.clone(), Arc::clone(&dropped));
    let outer = Router::new().fallback(move |request: Request| {
        let (inner, tells) = (inner.clone(), Tells(Arc::clone(&tell)));
        async move {
            let response = inner.oneshot(request).await;
            drop(tells);
            response
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, outer).await });
    Served { api, address, dropped }
}

impl Served {
    /// Waits until the server has given one response future up.
    async fn gave_up(&self) {
        self.dropped.acquire().await.unwrap().forget();
    }

    async fn http_1(&self, key: &str) -> TcpStream {
        let body = r#"{"amount": 5}"#;
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "POST /orders HTTP/1.1\r\nhost: shop\r\nauthorization: Bearer alice\r\nidempotency-key: {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    }

    async fn retry(&self, key: &str) -> String {
        let mut answer = String::new();
        self.http_1(key).await.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_http_1_a_closed_connection_does_not_stop_the_handler() {
    let served = serve().await;
    let gate = served.api.gate();
    let stream = served.http_1("k").await;
    gate.reached(1).await;
    drop(stream);
    served.gave_up().await;
    assert_eq!(served.api.effects(), 0, "it went away before the effect");
    gate.release();
    let retry = served.retry("k").await;
    assert!(retry.starts_with("HTTP/1.1 201") && retry.contains("\"o-1\""), "{retry}");
    assert_eq!(served.api.effects(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_http_2_a_reset_stream_does_not_stop_the_handler() {
    let served = serve().await;
    let gate = served.api.gate();
    let stream = TcpStream::connect(served.address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(
        TokioExecutor::new(),
        TokioIo::new(stream),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let request = || {
        let request = order("k");
        let uri = format!("http://{}/orders", served.address);
        let (mut parts, _) = request.into_parts();
        parts.uri = uri.parse().unwrap();
        http::Request::from_parts(parts, Full::from(r#"{"amount": 5}"#))
    };
    let reset = sender.send_request(request());
    tokio::select! {
        _ = reset => panic!("the handler is at its gate"),
        () = gate.reached(1) => {}
    }
    // Dropping the response future resets the stream; the connection stays.
    served.gave_up().await;
    gate.release();
    let retry = sender.send_request(request()).await.unwrap();
    assert_eq!(retry.status(), 201);
    let body = retry.into_body().collect().await.unwrap().to_bytes();
    assert!(body.starts_with(b"{\"amount\":5,\"id\":\"o-1\""), "{body:?}");
    assert_eq!(served.api.effects(), 1);
}

#[tokio::test(start_paused = true)]
async fn d1_a_timeout_layer_outside_does_not_stop_the_handler() {
    let api = Api::new("");
    let gate = api.gate();
    let timed = tower::timeout::Timeout::new(api.router.clone(), Duration::from_secs(2));
    let Err(timeout) = timed.oneshot(order("k")).await else { panic!("the handler is at its gate") };
    assert!(timeout.is::<tower::timeout::error::Elapsed>());
    gate.release();
    settle_down().await;
    assert_eq!(api.store.state().await, "completed");
    assert_eq!(api.order("k").await.json()["id"], "o-1");
    assert_eq!(api.effects(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d2_a_disconnect_between_the_effect_and_its_record_does_not_stop_the_record() {
    let served = serve().await;
    let completion = served.api.store.block(Call::Complete);
    let stream = served.http_1("k").await;
    completion.reached(1).await;
    assert_eq!(served.api.effects(), 1);
    drop(stream);
    served.gave_up().await;
    completion.release();
    let retry = served.retry("k").await;
    assert!(retry.starts_with("HTTP/1.1 201") && retry.contains("\"o-1\""), "{retry}");
    assert_eq!((served.api.effects(), served.api.store.count(Call::Remove)), (1, 0));
}

/// A client that goes away while its claim is under way: the claim is run or was never made, not left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_a_disconnect_during_the_claim_leaves_no_orphan() {
    let served = serve().await;
    let claim = served.api.store.block(Call::Claim);
    let stream = served.http_1("k").await;
    claim.reached(1).await;
    drop(stream);
    served.gave_up().await;
    claim.release();
    let retry = served.retry("k").await;
    assert!(retry.starts_with("HTTP/1.1 201") && retry.contains("\"o-1\""), "{retry}");
    assert_eq!(served.api.effects(), 1);
}

/// Nothing is claimed for a request whose body never came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_a_disconnect_in_the_middle_of_the_body_claims_nothing() {
    let served = serve().await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let head = "POST /orders HTTP/1.1\r\nhost: shop\r\nauthorization: Bearer alice\r\nidempotency-key: k\r\n\
                content-length: 100\r\n\r\n{\"amount\":";
    stream.write_all(head.as_bytes()).await.unwrap();
    drop(stream);
    served.gave_up().await;
    assert_eq!((served.api.store.count(Call::Claim), served.api.effects()), (0, 0));
}

/// Protocol 18 on the wire: not one byte arrives before the result is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protocol_18_no_byte_is_sent_before_the_commit() {
    let served = serve().await;
    let completion = served.api.store.block(Call::Complete);
    let mut stream = served.http_1("k").await;
    completion.reached(1).await;
    let mut byte = [0];
    let early = tokio::time::timeout(Duration::from_millis(100), stream.read(&mut byte)).await;
    assert!(early.is_err(), "{early:?}");
    completion.release();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
}

/// S18: what has no body gets none on the wire, and no Content-Length is made up, neither first nor on replay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s18_a_204_has_no_body_and_no_length_on_the_wire() {
    for status in [204, 304, 201] {
        let served = serve().await;
        served.api.replies(move |n| match status {
            201 => created(n),
            status => axum::response::Response::builder().status(status).body(Body::empty()).unwrap(),
        });
        for _ in 0..2 {
            let answer = served.retry("k").await.to_ascii_lowercase();
            assert!(answer.starts_with(&format!("http/1.1 {status}")), "{answer}");
            assert_eq!(answer.contains("content-length"), status == 201, "{answer}");
            assert_eq!(answer.ends_with("\r\n\r\n"), status != 201, "{answer}");
        }
        assert_eq!(served.api.effects(), 1);
    }
}
