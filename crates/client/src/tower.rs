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
//! **Limits.** A body of up to [`BODY_KEPT_MAX`] bytes is kept, longer ones and those of unknown length are sent once. The
//! result's own body is not awaited here: that it is cut off its reader finds out.

use std::{
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use retrysafe_core::retry::Failure;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    BoxError,
    http::{
        Api, Asked, Error, Held, Outgoing, Prepared, Transport,
        call::{Manner, call},
        failure_of,
    },
    key::Key,
};

/// Bodies that are not longer are kept for further attempts.
pub const BODY_KEPT_MAX: u64 = 64 << 10;

/// Puts retries in front of a service.
#[derive(Clone, Debug)]
pub struct RetryLayer {
    api: Api,
    hedge: Option<std::time::Duration>,
}

impl RetryLayer {
    /// Retries as this API's contract has them.
    pub fn new(api: Api) -> Self {
        Self { api, hedge: None }
    }

    /// Starts another attempt when none has answered for this long, where a retry would be allowed.
    #[must_use]
    pub fn hedge(self, delay: std::time::Duration) -> Self {
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
    hedge: Option<std::time::Duration>,
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
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was made ready makes the attempts; its clone is left in its place.
        let next = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, next);
        let (api, hedge) = (self.api.clone(), self.hedge);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let key = parts.extensions.get::<Key>().cloned();
            let (body, stream) = keep(body).await?;
            let asked = Asked { method: parts.method, uri: parts.uri, headers: parts.headers, body, key };
            let prepared = Prepared::new(&api, asked)?;
            let manner = Manner { hedge, ..Manner::default() };
            let transport = OfTower { service: ready, bodies: PhantomData };
            match call(&transport, &api, &prepared, stream, manner).await {
                Ok(finished) => Ok(finished.answer),
                Err(Error::Stopped(mut stopped)) => match stopped.answer.take() {
                    Some(answer) => Ok(answer),
                    None => Err(stopped.without_answer()),
                },
                Err(Error::OutcomeUnknown(unknown)) => Err(unknown as BoxError),
                Err(Error::Refused(refused)) => Err(refused.into()),
            }
        })
    }
}

/// The body as bytes, where it is short and says so.
async fn keep<B>(body: B) -> Result<(Option<Bytes>, Option<B>), BoxError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if body.size_hint().upper().is_none_or(|upper| upper > BODY_KEPT_MAX) {
        return Ok((None, Some(body)));
    }
    let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
    Ok((Some(bytes), None))
}

struct OfTower<S, B, R> {
    service: S,
    bodies: PhantomData<fn(B) -> R>,
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
        let mut service = self.service.clone();
        let told = |error: S::Error| {
            let error: BoxError = error.into();
            (failure_of(&*error), error)
        };
        std::future::poll_fn(|cx| service.poll_ready(cx)).await.map_err(told)?;
        service.call(request).await.map_err(told)
    }
}
