//! The body of one attempt, which knows how far it got.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use retrysafe_core::retry::Reach;

/// How far the bytes of an attempt got, at most: the transport takes a chunk before it writes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<AtomicU8>);

impl Progress {
    /// A new attempt, with a body or without one. Without, the head is all of it.
    pub(crate) fn restart(&self, empty: bool) {
        self.set(if empty { Reach::Whole } else { Reach::Head });
    }

    pub(crate) fn reach(&self) -> Reach {
        match self.0.load(Ordering::Relaxed) {
            0 => Reach::Nothing,
            1 => Reach::Head,
            2 => Reach::Body,
            _ => Reach::Whole,
        }
    }

    fn set(&self, reach: Reach) {
        self.0.store(reach as u8, Ordering::Relaxed);
    }
}

/// The body of one attempt: bytes that are kept for the next one, or a stream that can be sent once.
#[derive(Debug)]
pub struct Outgoing<B = http_body_util::Empty<Bytes>> {
    content: Content<B>,
    progress: Progress,
}

#[derive(Debug)]
enum Content<B> {
    Kept(Option<Bytes>),
    Stream(Pin<Box<B>>),
}

impl<B> Outgoing<B> {
    pub(crate) fn kept(bytes: Bytes, progress: Progress) -> Self {
        progress.restart(bytes.is_empty());
        Self { content: Content::Kept((!bytes.is_empty()).then_some(bytes)), progress }
    }

    pub(crate) fn stream(body: B, progress: Progress) -> Self {
        progress.restart(false);
        Self { content: Content::Stream(Box::pin(body)), progress }
    }
}

impl<B: Body<Data = Bytes>> Body for Outgoing<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        match &mut this.content {
            Content::Kept(bytes) => {
                this.progress.set(Reach::Whole);
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            Content::Stream(body) => {
                let frame = body.as_mut().poll_frame(cx);
                match &frame {
                    Poll::Ready(Some(_)) => this.progress.set(Reach::Body),
                    Poll::Ready(None) => this.progress.set(Reach::Whole),
                    Poll::Pending => {}
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Kept(bytes) => bytes.is_none(),
            Content::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Kept(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Stream(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_body_that_nobody_asked_for_went_no_further_than_its_head() {
        let progress = Progress::default();
        let body =
            Outgoing::<http_body_util::Empty<Bytes>>::kept(Bytes::from_static(b"abc"), progress.clone());
        assert_eq!(progress.reach(), Reach::Head);
        body.collect().await.unwrap();
        assert_eq!(progress.reach(), Reach::Whole);
        let _empty = Outgoing::<http_body_util::Empty<Bytes>>::kept(Bytes::new(), progress.clone());
        assert_eq!(progress.reach(), Reach::Whole);
    }
}
