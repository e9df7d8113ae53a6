//! How far a failed request got (protocol 21): proved with upstreams that break off at every point.

#![allow(clippy::unwrap_used, clippy::panic)] // a test's helpers may fail loudly too

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Full};
use retrysafe_gateway::proxy::{BodyError, Proxy, ProxyOptions, Sent, Upstream, UpstreamTimeout};
use support::{OK, call, post, proxy, read_request, text, upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

async fn close_unread(stream: TcpStream) {
    drop(stream);
}

async fn close_after_head(mut stream: TcpStream) {
    let mut byte = [0; 32];
    stream.read_exact(&mut byte).await.unwrap();
}

async fn close_after_request(mut stream: TcpStream) {
    read_request(&mut stream).await;
}

async fn close_inside_answers_head(mut stream: TcpStream) {
    read_request(&mut stream).await;
    stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Le").await.unwrap();
}

async fn answer_with_nonsense(mut stream: TcpStream) {
    read_request(&mut stream).await;
    stream.write_all(b"SMTP ready\r\n\r\n").await.unwrap();
}

async fn reset_after_request(mut stream: TcpStream) {
    read_request(&mut stream).await;
    // Unread bytes or a zero linger make the kernel send a reset instead of an end.
    stream.set_zero_linger().unwrap();
}

async fn switch_protocols(mut stream: TcpStream) {
    read_request(&mut stream).await;
    stream
        .write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
        .await
        .unwrap();
    let _ = stream.read_u8().await;
}

/// Runs one failure and returns what the proxy says of it, and what the upstream was asked.
async fn outcome<F, Fut>(behave: F) -> (StatusCode, Option<Sent>, usize)
where
    F: Fn(TcpStream) -> Fut + Copy + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let address = upstream(move |_, stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        behave(stream)
    })
    .await;
    let mut proxy = proxy(address, ProxyOptions::default());
    let response = call(&mut proxy, post("/orders", "amount=1")).await;
    let sent = response.extensions().get().copied();
    (response.status(), sent, connections.load(Ordering::SeqCst))
}

macro_rules! unknown_when {
    ($($case:ident: $behave:ident;)*) => {$(
        #[tokio::test]
        async fn $case() {
            // One connection: the proxy did not try a second time.
            assert_eq!(outcome($behave).await, (StatusCode::BAD_GATEWAY, Some(Sent::Unknown), 1));
        }
    )*};
}

unknown_when! {
    unknown_when_closed_in_the_middle_of_the_request: close_after_head;
    unknown_when_closed_after_the_request: close_after_request;
    unknown_when_closed_inside_the_answers_head: close_inside_answers_head;
    unknown_when_the_answer_is_no_http: answer_with_nonsense;
    unknown_when_reset_after_the_request: reset_after_request;
    unknown_when_the_upstream_switches_protocols: switch_protocols;
}

#[tokio::test]
async fn accepted_and_closed_at_once_is_never_called_an_answer() {
    // Whether a byte was written first is a race; both verdicts can be true, a third cannot.
    for _ in 0..50 {
        let (status, sent, connections) = outcome(close_unread).await;
        let expected = match sent.unwrap() {
            Sent::Nothing => StatusCode::SERVICE_UNAVAILABLE,
            Sent::Unknown => StatusCode::BAD_GATEWAY,
        };
        assert_eq!((status, connections), (expected, 1));
    }
}

#[tokio::test]
async fn nothing_when_the_port_is_closed_or_the_name_is_unknown() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for url in [format!("http://{closed}"), "http://no-such-host.invalid:80".into()] {
        let upstream: Upstream = url.parse().unwrap();
        let mut proxy: Proxy<Full<Bytes>> = Proxy::new(upstream, ProxyOptions::default()).unwrap();
        let response = call(&mut proxy, post("/orders", "x")).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "{url}");
        assert_eq!(response.extensions().get(), Some(&Sent::Nothing), "{url}");
        assert!(response.headers().contains_key("retry-after"));
        assert!(text(response).await.contains(r#""code":"upstream_unavailable""#));
    }
}

#[tokio::test]
async fn nothing_when_tls_fails() {
    let address = upstream(|_, mut stream| async move {
        let _ = stream.write_all(OK.as_bytes()).await;
    })
    .await;
    let upstream: Upstream = format!("https://{address}").parse().unwrap();
    let mut proxy: Proxy<Full<Bytes>> = Proxy::new(upstream, ProxyOptions::default()).unwrap();
    let response = call(&mut proxy, post("/orders", "x")).await;
    assert_eq!(response.extensions().get(), Some(&Sent::Nothing));
}

#[tokio::test]
async fn nothing_when_the_connection_takes_too_long() {
    // The TLS handshake is part of connecting, and this upstream never says hello.
    let address = upstream(|_, mut stream| async move {
        let mut sink = Vec::new();
        let _ = stream.read_to_end(&mut sink).await;
    })
    .await;
    let upstream: Upstream = format!("https://{address}").parse().unwrap();
    let options = ProxyOptions { connect_timeout: Duration::from_millis(50), ..ProxyOptions::default() };
    let mut proxy: Proxy<Full<Bytes>> = Proxy::new(upstream, options).unwrap();
    let response = call(&mut proxy, post("/orders", "x")).await;
    assert_eq!(response.extensions().get(), Some(&Sent::Nothing));
}

#[tokio::test]
async fn unknown_when_the_answer_is_late_and_the_request_names_its_own_limit() {
    let address = upstream(|_, mut stream| async move {
        read_request(&mut stream).await;
        let _ = stream.read_u8().await;
    })
    .await;
    let mut proxy = proxy(address, ProxyOptions::default());
    let mut request = post("/orders", "x");
    request.extensions_mut().insert(UpstreamTimeout(Duration::from_millis(50)));
    let response = call(&mut proxy, request).await;
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(response.extensions().get(), Some(&Sent::Unknown));
    assert!(text(response).await.contains(r#""code":"upstream_timeout""#));
}

#[tokio::test]
async fn an_answer_cut_in_its_body_is_an_error_not_a_short_answer() {
    for head in ["Content-Length: 100\r\n\r\nbegun", "Transfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n"] {
        let address = upstream(move |_, mut stream| async move {
            read_request(&mut stream).await;
            stream.write_all(format!("HTTP/1.1 201 Created\r\n{head}").as_bytes()).await.unwrap();
        })
        .await;
        let mut proxy = proxy(address, ProxyOptions::default());
        let response = call(&mut proxy, post("/orders", "x")).await;
        assert_eq!(response.extensions().get::<Sent>(), None, "the head is the upstream's own");
        assert!(matches!(response.into_body().collect().await, Err(BodyError::Broken(_))), "{head}");
    }
}

#[tokio::test]
async fn an_answer_that_stops_in_its_body_is_an_error_in_time() {
    let address = upstream(|_, mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\nbegun").await.unwrap();
        let _ = stream.read_u8().await;
    })
    .await;
    let options = ProxyOptions { body_idle_timeout: Duration::from_millis(50), ..ProxyOptions::default() };
    let mut proxy = proxy(address, options);
    let response = call(&mut proxy, post("/orders", "x")).await;
    assert!(matches!(response.into_body().collect().await, Err(BodyError::Idle(_))));
}

#[tokio::test]
async fn a_true_answer_carries_no_verdict() {
    let address = upstream(|_, mut stream| async move {
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    })
    .await;
    let mut proxy = proxy(address, ProxyOptions::default());
    let response = call(&mut proxy, post("/orders", "x")).await;
    assert_eq!((response.status().as_u16(), response.extensions().get::<Sent>()), (503, None));
}

/// An upstream that answers once on each connection, then waits to be told, closes, and tells.
async fn closing_upstream(
    close: Arc<Notify>,
    closed: Arc<Notify>,
    reads: Arc<AtomicUsize>,
) -> std::net::SocketAddr {
    upstream(move |_, mut stream| {
        let (close, closed, reads) = (Arc::clone(&close), Arc::clone(&closed), Arc::clone(&reads));
        async move {
            if read_request(&mut stream).await.is_some() {
                reads.fetch_add(1, Ordering::SeqCst);
                stream.write_all(OK.as_bytes()).await.unwrap();
            }
            close.notified().await;
            drop(stream);
            closed.notify_one();
        }
    })
    .await
}

#[tokio::test]
async fn a_stale_pooled_connection_is_not_used_once_its_end_was_seen() {
    let (close, closed, reads) = (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::default());
    let address = closing_upstream(Arc::clone(&close), Arc::clone(&closed), Arc::clone(&reads)).await;
    let mut proxy = proxy(address, ProxyOptions::default());
    assert_eq!(text(call(&mut proxy, post("/", "1")).await).await, "ok");
    close.notify_one();
    closed.notified().await;
    // Lets the pool's connection task see the end; everything here runs on one thread.
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    let second = call(&mut proxy, post("/", "2")).await;
    assert_eq!(second.status(), StatusCode::OK, "a fresh connection");
    assert_eq!(reads.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_pooled_connection_closed_with_our_bytes_unread_is_unknown() {
    let address = upstream(|number, mut stream| async move {
        assert_eq!(number, 0, "the second request must not be tried on another connection");
        read_request(&mut stream).await;
        stream.write_all(OK.as_bytes()).await.unwrap();
        // The second request has begun to arrive. Nobody reads it; nobody at the other end can know that.
        stream.peek(&mut [0]).await.unwrap();
    })
    .await;
    let mut proxy = proxy(address, ProxyOptions::default());
    assert_eq!(text(call(&mut proxy, post("/", "1")).await).await, "ok");
    let second = call(&mut proxy, post("/", "2")).await;
    assert_eq!(second.extensions().get(), Some(&Sent::Unknown));
}

/// The important one. The upstream closes a pooled connection just as we write to it. Nobody can tell from here
/// whether it read the request, so the verdict may be `Nothing` only where the request was handed back unwritten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooled_connection_that_closes_as_we_write_is_unknown_unless_nothing_was_written() {
    let (mut answered, mut nothing, mut unknown) = (0, 0, 0);
    for round in 0..300 {
        let seen = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&seen);
        let address = upstream(move |_, mut stream| {
            let seen = Arc::clone(&count);
            async move {
                if read_request(&mut stream).await.is_some() {
                    seen.fetch_add(1, Ordering::SeqCst);
                    stream.write_all(OK.as_bytes()).await.unwrap();
                }
                // Closes in a race with the second request, a little later each round; what it still reads
                // counts as seen.
                for _ in 0..round % 50 {
                    tokio::task::yield_now().await;
                }
                stream.shutdown().await.ok();
                if read_request(&mut stream).await.is_some() {
                    seen.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
        .await;
        let mut proxy = proxy(address, ProxyOptions::default());
        assert_eq!(text(call(&mut proxy, post("/", "1")).await).await, "ok");
        let second = call(&mut proxy, post("/", "2")).await;
        let verdict = second.extensions().get().copied();
        drop(second);
        match verdict {
            None => {
                answered += 1;
                assert_eq!(seen.load(Ordering::SeqCst), 2, "two requests were sent as three");
            }
            Some(Sent::Nothing) => {
                nothing += 1;
                assert_eq!(seen.load(Ordering::SeqCst), 1, "the upstream read what was called unsent");
            }
            Some(Sent::Unknown) => unknown += 1,
        }
    }
    assert_eq!(answered + nothing + unknown, 300);
    println!("answered on a fresh connection {answered}, nothing sent {nothing}, unknown {unknown}");
}
