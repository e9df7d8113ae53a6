//! Bodies that must keep moving: a peer that stops in the middle of one holds a connection, not for ever.

use std::error::Error as StdError;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep};

/// A body as a client sends it, streamed with backpressure: nothing is read ahead of whoever consumes it.
pub type Inbound = TimedBody<Incoming>;

/// Why a body ended before its end. For an answer's body this means that the request's outcome is unknown to
/// whoever has not seen the rest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The peer broke off, or its framing was wrong.
    #[error("the peer broke off in the middle of a body")]
    Broken(#[source] Box<dyn StdError + Send + Sync>),
    /// The peer went silent.
    #[error("no part of a body arrived for {} ms", .0.as_millis())]
    Idle(Duration),
}

/// A body with a bound on the pause between two of its frames.
#[derive(Debug)]
pub struct TimedBody<B> {
    inner: B,
    idle: Duration,
    /// Made at the first wait: most bodies arrive with their head and never need a timer.
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

impl<B> TimedBody<B> {
    /// Bounds every pause of `inner` by `idle`.
    pub fn new(inner: B, idle: Duration) -> Self {
        Self { inner, idle, timer: None, waiting: false }
    }

    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<BodyError> {
        let timer = match &mut self.timer {
            Some(timer) => {
                if !self.waiting {
                    timer.as_mut().reset(Instant::now() + self.idle);
                }
                timer
            }
            none => none.insert(Box::pin(sleep(self.idle))),
        };
        self.waiting = true;
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(BodyError::Idle(self.idle))
    }
}

impl<B> Body for TimedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.waiting = false;
                Poll::Ready(frame.map(|frame| frame.map_err(|error| BodyError::Broken(error.into()))))
            }
            Poll::Pending => self.poll_idle(cx).map(|error| Some(Err(error))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;

    use futures_util::stream;
    use http_body_util::{BodyExt, StreamBody};
    use tokio::sync::mpsc;

    use super::*;

    /// A body fed by hand.
    fn fed() -> (mpsc::UnboundedSender<Bytes>, impl Body<Data = Bytes, Error = Infallible> + Unpin) {
        let (feed, mut fed) = mpsc::unbounded_channel();
        let frames = stream::poll_fn(move |cx| {
            fed.poll_recv(cx).map(|bytes: Option<Bytes>| bytes.map(|bytes| Ok(Frame::data(bytes))))
        });
        (feed, StreamBody::new(frames))
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_ends_the_body_and_a_slow_one_does_not() {
        let idle = Duration::from_secs(10);
        let (feed, body) = fed();
        let mut body = TimedBody::new(body, idle);
        for _ in 0..3 {
            let frame = tokio::spawn({
                let feed = feed.clone();
                async move {
                    sleep(idle - Duration::from_millis(1)).await;
                    feed.send(Bytes::from_static(b"x"))
                }
            });
            assert!(body.frame().await.unwrap().is_ok(), "each frame has the whole of the time");
            frame.await.unwrap().unwrap();
        }
        let asked = Instant::now();
        assert!(matches!(body.frame().await, Some(Err(BodyError::Idle(_)))));
        assert_eq!(asked.elapsed().as_secs(), idle.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn time_between_polls_is_not_the_peers_silence() {
        let (feed, body) = fed();
        let mut body = TimedBody::new(body, Duration::from_secs(1));
        assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut body).poll_frame(cx))).await.is_pending());
        feed.send(Bytes::from_static(b"x")).unwrap();
        assert!(body.frame().await.unwrap().is_ok());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut body).poll_frame(cx))).await.is_pending());
    }
}
