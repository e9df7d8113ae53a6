//! The body of one attempt, which knows how far it got.

use std::{
    cell::RefCell,
    fmt,
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

use super::kept::SPARE_MAX;

/// How far the bytes of an attempt got, at most: the transport takes a chunk before it writes it.
///
/// Each call needs one, for a moment; so those that nobody holds any more are kept for the next calls of their thread.
#[derive(Clone, Debug)]
pub(crate) struct Progress(Option<Arc<AtomicU8>>);

thread_local! {
    static SPARE: RefCell<Vec<Arc<AtomicU8>>> = const { RefCell::new(Vec::new()) };
}

impl Default for Progress {
    fn default() -> Self {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
        let progress = Self(Some(spare.unwrap_or_default()));
        progress.set(Reach::Nothing);
        progress
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let Some(mut shared) = self.0.take() else { return };
        if Arc::get_mut(&mut shared).is_some() {
            // A thread that ends has no place for it any more.
            let _kept = SPARE.try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < SPARE_MAX {
                    spare.push(shared);
                }
            });
        }
    }
}

impl Progress {
    /// A new attempt, with a body or without one. Without, the head is all of it.
    pub(crate) fn restart(&self, empty: bool) {
        self.set(if empty { Reach::Whole } else { Reach::Head });
    }

    pub(crate) fn reach(&self) -> Reach {
        let Some(shared) = &self.0 else { return Reach::Whole };
        match shared.load(Ordering::Relaxed) {
            0 => Reach::Nothing,
            1 => Reach::Head,
            2 => Reach::Body,
            _ => Reach::Whole,
        }
    }

    fn set(&self, reach: Reach) {
        if let Some(shared) = &self.0 {
            shared.store(reach as u8, Ordering::Relaxed);
        }
    }
}

/// Makes the body of a request anew for each attempt, so that a stream can be sent again: the same content each time, under
/// the same key. It is asked once for each attempt, the first too.
///
/// In a request for [`crate::RetryLayer`] it stands among the extensions; [`BodyFactory::request`] puts it there.
pub struct BodyFactory<B>(Arc<dyn Fn() -> B + Send + Sync>);

impl<B: 'static> BodyFactory<B> {
    /// A factory.
    pub fn new(make: impl Fn() -> B + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// A request with this head whose body is made anew for each attempt.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http_body_util::Full;
    /// use retrysafe_client::BodyFactory;
    ///
    /// let lines = BodyFactory::new(|| Full::new(Bytes::from("one\ntwo\n")));
    /// let request = lines.request(http::Request::post("http://shop.example/lines").body(()).unwrap());
    /// assert!(request.extensions().get::<BodyFactory<Full<Bytes>>>().is_some());
    /// ```
    pub fn request(self, head: http::Request<()>) -> http::Request<B> {
        let (mut parts, ()) = head.into_parts();
        let first = self.make();
        parts.extensions.insert(self);
        http::Request::from_parts(parts, first)
    }
}

impl<B> BodyFactory<B> {
    pub(crate) fn make(&self) -> B {
        (self.0)()
    }
}

impl<B> Clone for BodyFactory<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> fmt::Debug for BodyFactory<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyFactory")
    }
}

/// The bodies of a call whose body is no bytes: one that is there, and those that can be made.
#[derive(Debug)]
pub(crate) struct Bodies<B> {
    pub(crate) once: Option<B>,
    pub(crate) again: Option<BodyFactory<B>>,
}

impl<B> Bodies<B> {
    pub(crate) const fn none() -> Self {
        Self { once: None, again: None }
    }

    pub(crate) fn next(&mut self) -> Option<B> {
        self.once.take().or_else(|| self.again.as_ref().map(BodyFactory::make))
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
