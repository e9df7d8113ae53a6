//! The tower layer over hyper's own client, on the wire.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper_util::{client::legacy, rt::TokioExecutor};
use retrysafe_client::{Api, BodyFactory, OutcomeUnknown, Outgoing, Profile, RetryLayer};
use retrysafe_core::retry::Mono;
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit, service_fn};

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

/// A stream that can be made anew is sent again, the same bytes under the same key.
#[tokio::test]
async fn i59_a_stream_that_is_made_anew_is_sent_again() {
    let server = Server::play([Act::Close]).await;
    let client = legacy::Client::builder(TokioExecutor::new()).build_http();
    let mut service = RetryLayer::new(api()).layer(client);
    let lines = BodyFactory::new(|| {
        let frames = ["one\n", "two\n"].map(|line| Ok::<_, std::io::Error>(Frame::data(Bytes::from(line))));
        StreamBody::new(Box::pin(futures_util::stream::iter(frames)))
    });
    let head = Request::post(server.url()).header("content-length", "8").body(()).unwrap();
    let answer = service.ready().await.unwrap().call(lines.request(head)).await.unwrap();
    assert_eq!(answer.status().as_u16(), 201);
    let seen = server.requests();
    assert_eq!(seen.len(), 2);
    assert_eq!((&seen[0].body[..], &seen[1].body[..]), (&b"one\ntwo\n"[..], &b"one\ntwo\n"[..]));
    assert_eq!(seen[0].header("idempotency-key"), seen[1].header("idempotency-key"));
}

/// What the first attempt sent the second sends too: lines of one name in their order, what stands in the extensions, and
/// nothing of the attempt before but its number.
#[tokio::test]
async fn an_attempt_after_the_first_is_the_same_but_for_its_number() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heads = Arc::clone(&seen);
    let service = service_fn(move |request: Request<Outgoing<Full<Bytes>>>| {
        let first = {
            let mut heads = heads.lock().unwrap();
            heads.push((request.headers().clone(), request.extensions().get::<u8>().copied()));
            heads.len() == 1
        };
        let status = if first { 503 } else { 200 };
        std::future::ready(Ok::<_, std::io::Error>(
            http::Response::builder().status(status).body(Empty::<Bytes>::new()).unwrap(),
        ))
    });
    let mut service = RetryLayer::new(api()).layer(service);
    let request = Request::post("http://shop.example/orders")
        .header("x-a", "1")
        .header("authorization", "Bearer t")
        .header("x-a", "2")
        .extension(7_u8)
        .body(Full::new(Bytes::from("{}")))
        .unwrap();
    let answer = service.ready().await.unwrap().call(request).await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    let mut seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 2);
    for (number, (headers, extension)) in seen.iter_mut().enumerate() {
        let attempt = headers.remove(retrysafe_client::ATTEMPT_HEADER).unwrap();
        assert_eq!((attempt.to_str().unwrap(), *extension), ((number + 1).to_string().as_str(), Some(7)));
    }
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].0.contains_key("idempotency-key"));
}

/// The service that was made ready holds a permit; a clone of it would wait for the same one for ever.
#[tokio::test]
async fn a_service_with_one_place_is_called_by_the_one_who_has_it() {
    let answers = Arc::new(Mutex::new(vec![200, 503]));
    for hedge in [None, Some(std::time::Duration::from_secs(600))] {
        let answers = Arc::clone(&answers);
        answers.lock().unwrap().extend([200, 503]);
        let inner = service_fn(move |_: Request<Outgoing<Full<Bytes>>>| {
            let status = answers.lock().unwrap().pop().unwrap();
            std::future::ready(Ok::<_, std::io::Error>(
                http::Response::builder().status(status).body(Empty::<Bytes>::new()).unwrap(),
            ))
        });
        let layer = hedge.map_or_else(|| RetryLayer::new(api()), |delay| RetryLayer::new(api()).hedge(delay));
        let mut service = layer.layer(ConcurrencyLimit::new(inner, 1));
        let request = Request::post("http://shop.example/orders").body(Full::new(Bytes::from("{}"))).unwrap();
        let call = service.ready().await.unwrap().call(request);
        let answer = tokio::time::timeout(std::time::Duration::from_secs(20), call).await;
        assert_eq!(answer.expect("nobody waits for a place that is held").unwrap().status().as_u16(), 200);
    }
}

/// A call that is dropped in its first attempt gives its place in the budget back.
#[tokio::test]
async fn a_first_attempt_that_is_dropped_leaves_the_budget_as_it_was() {
    let api = api();
    let inner = service_fn(|_: Request<Outgoing<Full<Bytes>>>| {
        std::future::pending::<Result<http::Response<Empty<Bytes>>, std::io::Error>>()
    });
    let mut service = RetryLayer::new(api.clone()).layer(inner);
    let request = Request::post("http://shop.example/orders").body(Full::new(Bytes::from("{}"))).unwrap();
    let budget = api.budget_of(request.uri());
    let mut call = Box::pin(service.ready().await.unwrap().call(request));
    assert!(futures_util::poll!(&mut call).is_pending());
    assert_eq!(budget.reading(Mono::START).calls, 1);
    drop(call);
    assert_eq!(budget.reading(Mono::START).calls, 0);
}

/// What the service calls on its way knows the deadline, and that somebody above retries.
#[tokio::test]
async fn the_first_attempt_hands_down_its_deadline_and_that_it_is_retried() {
    let inner = service_fn(|_: Request<Outgoing<Full<Bytes>>>| {
        let called = (retrysafe_client::is_retried(), retrysafe_client::time_left().is_some());
        async move {
            tokio::task::yield_now().await;
            let running = (retrysafe_client::is_retried(), retrysafe_client::time_left().is_some());
            let told = format!("{called:?} {running:?}");
            Ok::<_, std::io::Error>(http::Response::new(Full::new(Bytes::from(told))))
        }
    });
    let mut service = RetryLayer::new(api()).layer(inner);
    let request = Request::post("http://shop.example/orders").body(Full::new(Bytes::from("{}"))).unwrap();
    let answer = service.ready().await.unwrap().call(request).await.unwrap();
    let told = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(told, "(true, true) (true, true)");
    assert!(!retrysafe_client::is_retried());
}
