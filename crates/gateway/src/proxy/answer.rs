//! The body of an answer: the upstream's, streamed, or a short one of the proxy's own.

use std::error::Error as StdError;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;

use super::body::{BodyError, TimedBody};
use super::pool::Lease;

/// The body of a proxy's answer. While it streams it holds the upstream's connection, which it gives back at its end; if
/// it is dropped before, the connection is closed, since what is left on it belongs to nobody.
#[derive(Debug)]
pub struct ProxyBody<B> {
    source: Source,
    lease: Option<Lease<B>>,
}

#[derive(Debug)]
enum Source {
    Upstream(TimedBody<Incoming>),
    Own(Full<Bytes>),
}

impl<B> ProxyBody<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    pub(super) fn upstream(body: TimedBody<Incoming>, lease: Option<Lease<B>>) -> Self {
        let mut this = Self { source: Source::Upstream(body), lease };
        this.give_back_at_end();
        this
    }

    fn give_back_at_end(&mut self) {
        let ended = match &self.source {
            Source::Upstream(body) => body.is_end_stream(),
            Source::Own(_) => false,
        };
        if ended && let Some(lease) = self.lease.take() {
            lease.give_back();
        }
    }
}

impl<B> From<Bytes> for ProxyBody<B> {
    fn from(bytes: Bytes) -> Self {
        Self { source: Source::Own(Full::new(bytes)), lease: None }
    }
}

impl<B> Body for ProxyBody<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let body = match &mut this.source {
            Source::Upstream(body) => body,
            Source::Own(body) => return Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
        };
        let frame = Pin::new(body).poll_frame(cx);
        match &frame {
            Poll::Ready(None) => {
                if let Some(lease) = this.lease.take() {
                    lease.give_back();
                }
            }
            Poll::Ready(Some(Ok(_))) => this.give_back_at_end(),
            Poll::Ready(Some(Err(_))) => this.lease = None,
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Upstream(body) => body.is_end_stream(),
            Source::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Upstream(body) => body.size_hint(),
            Source::Own(body) => body.size_hint(),
        }
    }
}
