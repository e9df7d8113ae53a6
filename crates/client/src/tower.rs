//! Retries in front of any HTTP service of tower: hyper's client, a channel, a stack of one's own.
//!
//! ```
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use bytes::Bytes;
//! use retrysafe_client::{Api, Outgoing, Profile, RetryLayer};
//! use tower::{Layer, Service, ServiceExt, service_fn};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let api = Api::profile(Profile::plain("shop", "idempotency-key"));
//! let answers = service_fn(|request: Request<Outgoing<Full<Bytes>>>| async move {
//!     assert!(request.headers().contains_key("idempotency-key"));
//!     Ok::<_, std::io::Error>(Response::new(Full::new(Bytes::from("done"))))
//! });
//! let mut service = RetryLayer::new(api).layer(answers);
//! let order = Request::post("http://shop.example/orders").body(Full::new(Bytes::from("{}"))).unwrap();
//! assert_eq!(service.ready().await.unwrap().call(order).await.unwrap().status(), 200);
//! # });
//! ```
//!
//! The answer is the service's own, its body untouched unless it had to be read for a machine code. What may have
//! happened is an error that holds an [`crate::OutcomeUnknown`], also where the last answer was a 502.
//!
//! A first attempt that succeeds costs no memory beyond its key: it runs in the future itself, by the service that was
//! made ready, and only what comes after it is boxed.
//!
//! **Limits.** A body of up to [`BODY_KEPT_MAX`] bytes is kept; longer ones and those of unknown length are sent once, unless
//! a [`crate::BodyFactory`] makes them anew. The result's own body is not awaited here: that it is cut off its reader
//! finds out.

mod future;

use std::{
    marker::PhantomData,
    sync::{Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use retrysafe_core::retry::Failure;
use tower_layer::Layer;
use tower_service::Service;

pub use future::RetryFuture;
use future::Start;

use crate::{
    BoxError,
    http::{Api, Bodies, BodyFactory, Held, Outgoing, Transport, failure_of},
};

/// Bodies that are not longer are kept for further attempts.
pub const BODY_KEPT_MAX: u64 = 64 << 10;

/// Puts retries in front of a service.
#[derive(Clone, Debug)]
pub struct RetryLayer {
    api: Api,
    hedge: Option<Duration>,
}

impl RetryLayer {
    /// Retries as this API's contract has them.
    pub fn new(api: Api) -> Self {
        Self { api, hedge: None }
    }

    /// Starts another attempt when none has answered for this long, where a retry would be allowed.
    #[must_use]
    pub fn hedge(self, delay: Duration) -> Self {
        Self { hedge: Some(delay), ..self }
    }
}

impl<S> Layer<S> for RetryLayer {
    type Service = RetryService<S>;

    fn layer(&self, inner: S) -> RetryService<S> {
        RetryService { inner, api: self.api.clone(), hedge: self.hedge }
    }
}

/// A service with retries in front of it.
#[derive(Clone, Debug)]
pub struct RetryService<S> {
    inner: S,
    api: Api,
    hedge: Option<Duration>,
}

impl<S, B, R> Service<Request<B>> for RetryService<S>
where
    S: Service<Request<Outgoing<B>>, Response = Response<R>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<Held<R>>;
    type Error = BoxError;
    type Future = RetryFuture<S, B, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was made ready makes the first attempt; its clone is left in its place.
        let next = self.inner.clone();
        let service = std::mem::replace(&mut self.inner, next);
        let (mut parts, body) = request.into_parts();
        let again = parts.extensions.remove::<BodyFactory<B>>();
        let start = Start { service, api: self.api.clone(), hedge: self.hedge, parts };
        if again.is_some() {
            return start.stream(Bodies { once: Some(body), again });
        }
        if body.size_hint().upper().is_none_or(|upper| upper > BODY_KEPT_MAX) {
            return start.stream(Bodies { once: Some(body), again: None });
        }
        start.read(body)
    }
}

struct OfTower<S, B, R> {
    /// The one that was made ready, as long as nobody has called it: it may hold a permit that its clones would wait for.
    ready: Mutex<Option<S>>,
    service: S,
    bodies: PhantomData<fn(B) -> R>,
}

impl<S: Clone, B, R> OfTower<S, B, R> {
    fn ready(service: S) -> Self {
        Self { service: service.clone(), ready: Mutex::new(Some(service)), bodies: PhantomData }
    }

    fn called(service: S) -> Self {
        Self { service, ready: Mutex::new(None), bodies: PhantomData }
    }
}

impl<S, B, R> Transport for OfTower<S, B, R>
where
    S: Service<Request<Outgoing<B>>, Response = Response<R>> + Clone + Send + Sync,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send,
    R: Body<Data = Bytes> + Send,
{
    type Body = R;
    type Stream = B;

    async fn send(&self, request: Request<Outgoing<B>>) -> Result<Response<R>, (Failure, BoxError)> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut service) = ready {
            return service.call(request).await.map_err(told);
        }
        let mut service = self.service.clone();
        std::future::poll_fn(|cx| service.poll_ready(cx)).await.map_err(told)?;
        service.call(request).await.map_err(told)
    }
}

/// What a service says of a request that it failed at.
fn told<E: Into<BoxError>>(error: E) -> (Failure, BoxError) {
    let error: BoxError = error.into();
    (failure_of(&*error), error)
}
