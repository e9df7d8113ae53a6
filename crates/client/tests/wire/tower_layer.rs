//! The tower layer over hyper's own client, on the wire.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper_util::{client::legacy, rt::TokioExecutor};
use retrysafe_client::{Api, OutcomeUnknown, Profile, RetryLayer};
use tower::{Layer, Service, ServiceExt};

use crate::server::{Act, Server, answer};

fn api() -> Api {
    let mut profile = Profile::plain("test", "idempotency-key");
    profile.policy.backoff.base = std::time::Duration::from_millis(2);
    Api::profile(profile)
}

#[tokio::test]
async fn a_hyper_client_is_retried_and_its_answer_untouched() {
    let failed =
        answer(503, "content-type: application/json\r\n", "{\"code\":\"idempotency_store_unavailable\"}");
    let server =
        Server::play([Act::Close, Act::Answer(failed), Act::Answer(answer(201, "x-a: 1\r\n", "body"))]).await;
    let client = legacy::Client::builder(TokioExecutor::new()).build_http();
    let mut service = RetryLayer::new(api()).layer(client);
    let request =
        Request::post(format!("{}/orders", server.url())).body(Full::new(Bytes::from("{}"))).unwrap();
    let answer = service.ready().await.unwrap().call(request).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["x-a"].as_bytes()), (201, &b"1"[..]));
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes().as_ref(), b"body");
    let keys: Vec<_> =
        server.requests().iter().map(|seen| seen.header("idempotency-key").unwrap().to_owned()).collect();
    assert_eq!((keys.len(), &keys[0], &keys[1]), (3, &keys[1], &keys[2]));
}

/// The last answer is the caller's, with the body that was read for its code.
#[tokio::test]
async fn a_failure_that_stays_is_handed_on_whole() {
    let refused = answer(422, "content-type: application/json\r\n", "{\"code\":\"amount\"}");
    let server = Server::play([Act::Answer(refused)]).await;
    let client = legacy::Client::builder(TokioExecutor::new()).build_http();
    let mut service = RetryLayer::new(api()).layer(client);
    let request = Request::post(server.url()).body(Empty::<Bytes>::new()).unwrap();
    let answer = service.ready().await.unwrap().call(request).await.unwrap();
    assert_eq!(answer.status().as_u16(), 422);
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes().as_ref(), b"{\"code\":\"amount\"}");
}

/// I-60: a stream is sent, and not sent again.
#[tokio::test]
async fn i60_a_stream_is_sent_once_and_its_loss_is_said() {
    let server = Server::play([Act::Close]).await;
    let client = legacy::Client::builder(TokioExecutor::new()).build_http();
    let mut service = RetryLayer::new(api()).layer(client);
    let frames =
        futures_util::stream::iter([Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from("5\r\n")))]);
    let request = Request::post(server.url()).body(StreamBody::new(Box::pin(frames))).unwrap();
    let error = service.ready().await.unwrap().call(request).await.unwrap_err();
    let unknown = error.downcast_ref::<OutcomeUnknown>().unwrap_or_else(|| panic!("{error}"));
    assert_eq!(unknown.attempts, 1);
    assert!(unknown.key.is_some());
}

#[tokio::test]
async fn a_refused_connection_is_told_from_a_lost_answer() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = legacy::Client::builder(TokioExecutor::new()).build_http();
    let mut service = RetryLayer::new(api()).layer(client);
    let request = Request::post(url).body(Empty::<Bytes>::new()).unwrap();
    let error = service.ready().await.unwrap().call(request).await.unwrap_err();
    assert!(error.downcast_ref::<OutcomeUnknown>().is_none(), "{error}");
    assert!(error.to_string().contains("all 3 attempts used"), "{error}");
}
