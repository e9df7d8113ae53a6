//! The socket end. On hyper rather than `axum::serve`, because a fault must be able to close a connection without
//! a byte of an answer, and only the service's own error does that.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tower_service::Service;

use crate::{Shop, ShopOptions, http};

/// How long requests in progress may go on after a shutdown was asked for.
const DRAIN: Duration = Duration::from_secs(5);
/// How long to wait before accepting again when the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Marks a response that must not be sent: its connection is closed instead.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection was cut on request")]
pub(crate) struct Cut;

impl Cut {
    pub(crate) fn response() -> Response {
        let mut response = ().into_response();
        response.extensions_mut().insert(Self);
        response
    }
}

/// Serves the shop on `listener`, HTTP/1.1 and HTTP/2, until `shutdown` resolves; then finishes what is in
/// progress, for at most five seconds.
///
/// # Errors
/// The listener is broken. Errors of single connections end those connections only.
pub async fn serve(
    listener: TcpListener,
    shop: Shop,
    options: ShopOptions,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let router = http::router(shop, options);
    let server = auto::Builder::new(TokioExecutor::new());
    let graceful = GracefulShutdown::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "the shop could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let router = router.clone();
        let service = service_fn(move |request| answer_or_cut(router.clone(), request));
        let connection = server.serve_connection(TokioIo::new(stream), service).into_owned();
        let watched = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = watched.await {
                tracing::debug!(%error, "a connection to the shop ended early");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
        tracing::warn!("the shop stopped with requests still in progress");
    }
    Ok(())
}

async fn answer_or_cut(mut router: Router, request: Request<Incoming>) -> Result<Response, Cut> {
    let safe = request.method().is_safe();
    let answering = router.call(request.map(Body::new));
    // Most of the world's APIs finish a write whose caller has hung up; hyper alone would drop it half way, and
    // the demos would show a kinder upstream than people have.
    let answered = if safe { answering.await } else { tokio::spawn(answering).await.map_err(|_| Cut)? };
    let response = match answered {
        Ok(response) => response,
        Err(never) => match never as Infallible {},
    };
    match response.extensions().get::<Cut>() {
        Some(cut) => Err(*cut),
        None => Ok(response),
    }
}
