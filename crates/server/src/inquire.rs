//! Questions the layer asks where the effect happens: may this caller still see the answer (K4), and what became of
//! this key (protocol 22).

use std::{future::Future, pin::Pin};

use bytes::Bytes;
use http::{HeaderMap, Response};

/// Asks the place where the effect happens. The gateway implements it over its upstream; an application can, over its own
/// database.
pub trait Inquire: Send + Sync + 'static {
    /// Sends `GET path` there with the credentials in `headers` (the caller's own request headers; implementations take
    /// what identifies the caller and leave out what describes the original body). The answer is read whole, up to a bound.
    fn get<'a>(&'a self, path: &'a str, headers: &'a HeaderMap) -> InquireFuture<'a>;
}

/// An answer, or the fact that there was none.
pub type InquireFuture<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, NoAnswer>> + Send + 'a>>;

/// The question was not answered in time or at all. Says nothing about the effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the upstream did not answer the question")]
pub struct NoAnswer;
