//! Raw sockets on both sides of a proxy: what it really writes, and what it does when the other side misbehaves.

#![allow(dead_code, unreachable_pub)] // every test binary uses its own half
#![allow(clippy::unwrap_used, clippy::panic)] // a test's helpers may fail loudly too

pub mod wire;

use std::future::Future;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use retrysafe_gateway::proxy::{
    Drained, Inbound, Proxy, ProxyBody, ProxyOptions, ServeOptions, Upstream, serve,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

/// An upstream that runs `behave` on each connection, numbered from 0.
pub async fn upstream<F, Fut>(behave: F) -> SocketAddr
where
    F: Fn(usize, TcpStream) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(behave(number, stream));
        }
    });
    address
}

/// Reads one request from an upstream connection, head and `Content-Length` body. `None` at its end.
pub async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut seen = Vec::new();
    loop {
        if let Some(message) = wire::Message::parse(&mut &seen[..]).unwrap() {
            return Some(message.text());
        }
        if stream.read_buf(&mut seen).await.ok()? == 0 {
            return None;
        }
    }
}

pub const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// An upstream that answers everything with the request it saw, head and body.
pub async fn echo() -> SocketAddr {
    upstream(|_, mut stream| async move {
        while let Some(request) = read_request(&mut stream).await {
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{request}", request.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await
}

pub fn proxy<B>(upstream: SocketAddr, options: ProxyOptions) -> Proxy<B>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let upstream: Upstream = format!("http://{upstream}").parse().unwrap();
    Proxy::new(upstream, options).unwrap()
}

/// Sends a buffered request through the proxy's service, without a socket in front.
pub async fn call(
    proxy: &mut Proxy<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Response<ProxyBody<Full<Bytes>>> {
    match proxy.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

pub fn post(path: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::post(path).header("host", "shop").body(Full::from(body)).unwrap()
}

pub async fn text(response: Response<ProxyBody<Full<Bytes>>>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A proxy that listens. Dropping it lets it run on; `stop` drains it.
pub struct Gateway {
    pub address: SocketAddr,
    pub shutdown: CancellationToken,
    pub ended: JoinHandle<Drained>,
}

impl Gateway {
    pub async fn start<S, B>(service: S, options: ServeOptions) -> Self
    where
        S: Service<Request<Inbound>, Response = Response<B>> + Clone + Send + 'static,
        S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let ended = tokio::spawn(serve(listener, service, options, shutdown.clone()));
        Self { address, shutdown, ended }
    }

    /// Sends bytes and reads until the proxy closes the connection.
    pub async fn send(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let (mut read, mut write) = stream.split();
        let mut answer = Vec::new();
        // Side by side: the proxy may close before it has read everything.
        let (_, _) = tokio::join!(write.write_all(bytes), read.read_to_end(&mut answer));
        String::from_utf8_lossy(&answer).into_owned()
    }
}
