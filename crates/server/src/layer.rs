//! The tower form: guards every listed endpoint of a service without changing its handlers.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    admit::{Admitted, Sorted},
    body::{Body, BoxError},
    guard::Guard,
    retrysafe::Retrysafe,
};

impl<S> Layer<S> for Retrysafe {
    type Service = RetrysafeService<S>;

    fn layer(&self, inner: S) -> RetrysafeService<S> {
        RetrysafeService { guard: Arc::clone(&self.guard), inner }
    }
}

/// A service behind the layer.
#[derive(Clone)]
pub struct RetrysafeService<S> {
    guard: Arc<Guard>,
    inner: S,
}

impl<S, B, RB> Service<Request<B>> for RetrysafeService<S>
where
    S: Service<Request<Body>, Response = Response<RB>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    RB: HttpBody<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready is the one that is called; its clone waits for the next poll.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let guard = Arc::clone(&self.guard);
        let request = with_peer(request);
        let uri = original_uri(&request);
        let admitted = match guard.sort(request, uri) {
            Sorted::Unread(unread) => {
                return Box::pin(async move {
                    match guard.read(unread).await {
                        Ok(job) => Ok(guard.run(job, move |request| inner.call(request)).await),
                        Err(admitted) => Box::pin(settle(guard, inner, *admitted)).await,
                    }
                });
            }
            Sorted::Admitted(admitted) => admitted,
        };
        Box::pin(settle(guard, inner, admitted))
    }
}

/// Does with a request what it was admitted to.
async fn settle<S, RB>(
    guard: Arc<Guard>,
    mut inner: S,
    admitted: Admitted,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<RB>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    RB: HttpBody<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    match admitted {
        Admitted::Pass { request, ends: None } => {
            inner.call(request).await.map(|response| response.map(Body::stream))
        }
        Admitted::Pass { request, ends: Some((plan, address, resource)) } => {
            let response = inner.call(request).await?;
            if response.status().is_success() {
                guard.end_resource(&plan.endpoint, &address, &resource).await;
            }
            Ok(response.map(Body::stream))
        }
        Admitted::Answer(response) => Ok(response),
        Admitted::Poll { parts, id } => Ok(guard.poll(&parts, &id).await),
    }
}

/// The request's URI as the client sent it: a nested router strips its prefix, and two nests would then share a
/// fingerprint (protocol 3).
pub(crate) fn original_uri<B>(request: &Request<B>) -> http::Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = request.extensions().get::<axum::extract::OriginalUri>() {
        return original.0.clone();
    }
    request.uri().clone()
}

/// Where axum knows the peer, a trusted-header scope may know it too.
pub(crate) fn with_peer<B>(request: Request<B>) -> Request<B> {
    #[cfg(feature = "axum")]
    let request = peer_from_axum(request);
    request
}

#[cfg(feature = "axum")]
fn peer_from_axum<B>(mut request: Request<B>) -> Request<B> {
    use axum::extract::ConnectInfo;
    if request.extensions().get::<crate::Peer>().is_none() {
        let peer = request.extensions().get::<ConnectInfo<std::net::SocketAddr>>().map(|info| info.0.ip());
        if let Some(peer) = peer {
            request.extensions_mut().insert(crate::Peer(peer));
        }
    }
    request
}
