//! The listening proxy as clients and upstreams meet it.

#![allow(clippy::unwrap_used, clippy::panic)] // a test's helpers may fail loudly too

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use retrysafe_gateway::proxy::{Drained, HostHeader, Inbound, ProxyOptions, ServeOptions, UpstreamProtocol};
use support::{Gateway, OK, echo, proxy, read_request, upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

async fn echoing(options: ProxyOptions) -> Gateway {
    Gateway::start(proxy::<Inbound>(echo().await, options), ServeOptions::default()).await
}

fn request(lines: &str) -> Vec<u8> {
    format!("POST /orders?a=1 HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n{lines}").into_bytes()
}

#[tokio::test]
async fn what_the_upstream_sees_of_a_request() {
    let gateway = echoing(ProxyOptions::default()).await;
    let answer = gateway
        .send(&request(
            "Idempotency-Key: k\r\nAuthorization: Bearer a\r\nConnection: idempotency-key, x-private\r\n\
             X-Private: 1\r\nKeep-Alive: 5\r\nX-Forwarded-For: 6.6.6.6\r\nContent-Length: 2\r\n\r\nhi",
        ))
        .await;
    let (_, seen) = answer.split_once("\r\n\r\n").unwrap();
    let (head, body) = seen.split_once("\n\n").unwrap();
    let mut lines: Vec<_> = head.lines().collect();
    assert_eq!(lines.remove(0), "POST /orders?a=1");
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "authorization: Bearer a",
            "content-length: 2",
            "host: shop.example",
            "idempotency-key: k",
            "via: 1.1 retrysafe",
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-proto: http",
        ]
    );
    assert_eq!(body, "hi");
}

#[tokio::test]
async fn the_host_is_the_clients_or_by_option_the_upstreams() {
    let options = ProxyOptions { host: HostHeader::Upstream, ..ProxyOptions::default() };
    let answer = echoing(options).await.send(&request("\r\n")).await;
    assert!(answer.contains("\nhost: 127.0.0.1:"), "{answer}");
    assert!(answer.contains("\nx-forwarded-host: shop.example\n"), "{answer}");
    let absolute = b"GET http://other.example/x HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n";
    let answer = echoing(ProxyOptions::default()).await.send(absolute).await;
    assert!(answer.contains("GET /x\n") && answer.contains("host: other.example\n"), "{answer}");
    assert!(!answer.contains("shop.example"), "{answer}");
}

#[tokio::test]
async fn refused_requests_are_answered_and_the_connection_closed() {
    let gateway = echoing(ProxyOptions::default()).await;
    let then = "POST /smuggled HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for (text, status) in [
        ("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 400),
        ("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nExpect: x\r\nContent-Length: 0\r\n\r\n", 400),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            400,
        ),
    ] {
        let answer = gateway.send(format!("{text}{then}").as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{text:?}: {answer}");
        assert!(!answer.contains("smuggled"), "{text:?}: {answer}");
    }
}

#[tokio::test]
async fn expect_100_continue_is_answered_here_and_not_forwarded() {
    let gateway = echoing(ProxyOptions::default()).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(&request("Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")).await.unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hi").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("\n\nhi") && !answer.contains("expect"), "{answer}");
}

#[tokio::test]
async fn answers_lose_their_hop_by_hop_fields_and_nothing_else() {
    let address = upstream(|_, mut stream| async move {
        read_request(&mut stream).await;
        stream
            .write_all(
                b"HTTP/1.0 203 Fine\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nConnection: close, X-Hop\r\n\
                  X-Hop: 1\r\nKeep-Alive: 1\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nX-Kept: 1\r\n\r\nbody",
            )
            .await
            .unwrap();
    })
    .await;
    let gateway =
        Gateway::start(proxy::<Inbound>(address, ProxyOptions::default()), ServeOptions::default()).await;
    let answer = gateway.send(&request("\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 203 "), "{answer}");
    let cookies: Vec<_> = answer.lines().filter(|line| line.starts_with("set-cookie")).collect();
    assert_eq!(cookies, ["set-cookie: a=1", "set-cookie: b=2"]);
    assert!(answer.contains("x-kept: 1\r\n") && answer.contains("date: Thu, 01 Jan 1970"), "{answer}");
    assert!(!answer.contains("x-hop") && !answer.contains("keep-alive"), "{answer}");
    assert_eq!(answer.matches("date:").count(), 1);
}

#[tokio::test]
async fn answers_without_a_body_keep_their_length_and_send_none() {
    let address = upstream(|_, mut stream| async move {
        while let Some(request) = read_request(&mut stream).await {
            let answer: &[u8] = if request.starts_with("HEAD") {
                b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"
            } else if request.contains("204") {
                b"HTTP/1.1 204 No Content\r\n\r\n"
            } else {
                b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n"
            };
            stream.write_all(answer).await.unwrap();
        }
    })
    .await;
    let gateway =
        Gateway::start(proxy::<Inbound>(address, ProxyOptions::default()), ServeOptions::default()).await;
    let head = gateway.send(b"HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(head.contains("content-length: 1234\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    for status in ["204", "304"] {
        let text = format!("GET /{status} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = gateway.send(text.as_bytes()).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.ends_with("\r\n\r\n"),
            "{answer}"
        );
        assert!(!answer.contains("content-length") && !answer.contains("transfer-encoding"), "{answer}");
    }
}

#[tokio::test]
async fn a_get_with_chunks_keeps_its_body() {
    let gateway = echoing(ProxyOptions::default()).await;
    // The echo reads lengths and chunks alike: a body dropped on the way would be missing here.
    let answer = gateway
        .send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")
        .await;
    assert!(answer.ends_with("\n\nhi"), "{answer}");
}

#[tokio::test]
async fn bodies_are_streamed_both_ways_before_either_has_ended() {
    let address = upstream(|_, mut stream| async move {
        // Answers each chunk as it comes, in chunks of its own.
        let mut seen = Vec::new();
        let head = loop {
            stream.read_buf(&mut seen).await.unwrap();
            if let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
        };
        seen.drain(..head);
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await.unwrap();
        while !seen.starts_with(b"0") {
            if seen.len() < 6 {
                assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
                continue;
            }
            stream.write_all(&seen[..6]).await.unwrap();
            seen.drain(..6);
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    })
    .await;
    let gateway =
        Gateway::start(proxy::<Inbound>(address, ProxyOptions::default()), ServeOptions::default()).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(&request("Transfer-Encoding: chunked\r\n\r\n")).await.unwrap();
    let mut answer = Vec::new();
    for chunk in [b"1\r\na\r\n", b"1\r\nb\r\n"] {
        stream.write_all(chunk).await.unwrap();
        while !answer.ends_with(chunk) {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
        }
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.ends_with(b"0\r\n\r\n"));
}

#[tokio::test]
async fn a_slow_upstream_slows_its_client_and_not_the_proxys_memory() {
    let (release, released) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let hold = Arc::clone(&release);
    let address = upstream(move |_, mut stream| {
        let hold = Arc::clone(&hold);
        async move {
            hold.notified().await;
            while read_request(&mut stream).await.is_some() {
                stream.write_all(OK.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let gateway =
        Gateway::start(proxy::<Inbound>(address, ProxyOptions::default()), ServeOptions::default()).await;
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let total = 64 * 1024 * 1024;
    stream.writable().await.unwrap();
    let head = request(&format!("Content-Length: {total}\r\n\r\n"));
    assert_eq!(stream.try_write(&head).unwrap(), head.len());
    // Writes until nobody takes more: buffers of three sockets and the proxy, far from the whole.
    let block = vec![b'x'; 64 * 1024];
    let mut written = 0;
    while let Ok(Ok(())) = tokio::time::timeout(Duration::from_millis(300), stream.writable()).await {
        written += stream.try_write(&block).unwrap_or_default();
        assert!(written < total / 2, "the proxy swallowed {written} bytes for an upstream that reads none");
    }
    drop((release, released));
}

#[tokio::test]
async fn http2_in_front_and_http2_behind() {
    // An HTTP/2 upstream that answers with what it saw.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| async move {
                let seen = format!("{:?} {} {:?}", request.version(), request.uri(), request.headers());
                let body = request.into_body().collect().await?.to_bytes();
                let seen = format!("{seen} {}", String::from_utf8_lossy(&body));
                Ok::<_, hyper::Error>(http::Response::new(Full::new(Bytes::from(seen))))
            });
            tokio::spawn(async move {
                auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await
            });
        }
    });
    let options = ProxyOptions { protocol: UpstreamProtocol::Http2, ..ProxyOptions::default() };
    let gateway = Gateway::start(proxy::<Inbound>(address, options), ServeOptions::default()).await;
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<Full<Bytes>>();
    let request = Request::post(format!("http://{}/orders", gateway.address))
        .version(Version::HTTP_2)
        .header("idempotency-key", "k")
        .header("te", "trailers")
        .body(Full::from("hi"))
        .unwrap();
    let response = client.request(request).await.unwrap();
    assert_eq!((response.status(), response.version()), (StatusCode::OK, Version::HTTP_2));
    let seen = response.into_body().collect().await.unwrap().to_bytes();
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.starts_with(&format!("HTTP/2.0 http://{address}/orders")), "{seen}");
    for part in [
        r#""idempotency-key": "k""#,
        r#""te": "trailers""#,
        r#""via": "2 retrysafe""#,
        r#""x-forwarded-host""#,
        "hi",
    ] {
        assert!(seen.contains(part), "{part} in {seen}");
    }
}

#[tokio::test]
async fn http2_in_front_of_http1_joins_cookies_and_names_the_host() {
    let gateway = echoing(ProxyOptions::default()).await;
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<Full<Bytes>>();
    let request = Request::post(format!("http://{}/orders", gateway.address))
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(Full::from("hi"))
        .unwrap();
    let seen = client.request(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.contains("cookie: a=1; b=2\n"), "{seen}");
    assert!(seen.contains(&format!("host: {}\n", gateway.address)), "{seen}");
}

#[tokio::test]
async fn limits_on_a_requests_head() {
    let options = ServeOptions { head_bytes_max: 8192, header_lines_max: 10, ..ServeOptions::default() };
    let gateway = Gateway::start(proxy::<Inbound>(echo().await, ProxyOptions::default()), options).await;
    let long = gateway.send(&request(&format!("X: {}\r\n\r\n", "x".repeat(10_000)))).await;
    assert!(long.starts_with("HTTP/1.1 431 "), "{long}");
    let many = gateway.send(&request(&format!("{}\r\n", "X: 1\r\n".repeat(20)))).await;
    assert!(many.starts_with("HTTP/1.1 431 "), "{many}");
}

#[tokio::test]
async fn connections_that_send_no_request_are_closed() {
    let patience = Duration::from_millis(50);
    let options =
        ServeOptions { header_read_timeout: patience, idle_timeout: patience, ..ServeOptions::default() };
    let gateway = Gateway::start(proxy::<Inbound>(echo().await, ProxyOptions::default()), options).await;
    // Silent, half a first line, half an HTTP/2 preface, half a head: each ends by the proxy closing.
    for begun in [&b""[..], b"PO", b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\nHost:"] {
        let answer = gateway.send(begun).await;
        assert!(!answer.contains("200 OK"), "{begun:?}");
    }
    let answer = gateway.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "kept alive, then closed: {answer}");
}

#[tokio::test]
async fn a_long_answer_is_not_idleness() {
    let patience = Duration::from_millis(20);
    let address = upstream(move |_, mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n").await.unwrap();
        for _ in 0..10 {
            tokio::time::sleep(patience).await;
            stream.write_all(b"x").await.unwrap();
        }
    })
    .await;
    let options =
        ServeOptions { header_read_timeout: patience, idle_timeout: patience, ..ServeOptions::default() };
    let gateway = Gateway::start(proxy::<Inbound>(address, ProxyOptions::default()), options).await;
    let answer = gateway.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(answer.ends_with("\r\n\r\nxxxxxxxxxx"), "{answer}");
}

#[tokio::test]
async fn past_the_limit_a_connection_waits_for_a_place() {
    let options = ServeOptions { connections_max: 1, ..ServeOptions::default() };
    let gateway = Gateway::start(proxy::<Inbound>(echo().await, ProxyOptions::default()), options).await;
    let mut first = TcpStream::connect(gateway.address).await.unwrap();
    first.write_all(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(6).any(|window| window == b"/first") {
        first.read_buf(&mut answer).await.unwrap();
    }
    let second = gateway.send(b"GET /second HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut second = std::pin::pin!(second);
    let early = tokio::time::timeout(Duration::from_millis(100), &mut second).await;
    assert!(early.is_err(), "answered beside the one connection allowed");
    drop(first);
    assert!(second.await.contains("/second"));
}

/// An upstream that answers when told, and tells when it was asked.
async fn held(asked: Arc<Notify>, answer: Arc<Notify>) -> std::net::SocketAddr {
    upstream(move |_, mut stream| {
        let (asked, answer) = (Arc::clone(&asked), Arc::clone(&answer));
        async move {
            read_request(&mut stream).await;
            asked.notify_one();
            answer.notified().await;
            let _ = stream.write_all(OK.as_bytes()).await;
        }
    })
    .await
}

#[tokio::test]
async fn d10_a_shutdown_waits_for_what_is_in_progress_and_takes_nothing_new() {
    let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let address = held(Arc::clone(&asked), Arc::clone(&answer)).await;
    let gateway =
        Gateway::start(proxy::<Inbound>(address, ProxyOptions::default()), ServeOptions::default()).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    asked.notified().await;
    gateway.shutdown.cancel();
    while TcpStream::connect(gateway.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!gateway.ended.is_finished());
    answer.notify_one();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK") && text.ends_with("ok"), "{text}");
    assert_eq!(gateway.ended.await.unwrap(), Drained::Whole);
}

#[tokio::test]
async fn a_shutdown_waits_no_longer_than_it_may() {
    let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let address = held(Arc::clone(&asked), Arc::clone(&answer)).await;
    let options = ServeOptions { drain_timeout: Duration::from_millis(50), ..ServeOptions::default() };
    let gateway = Gateway::start(proxy::<Inbound>(address, ProxyOptions::default()), options).await;
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    asked.notified().await;
    gateway.shutdown.cancel();
    assert_eq!(gateway.ended.await.unwrap(), Drained::Cut(1));
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text).await;
    assert_eq!(text, "", "cut, not answered");
}
