//! The body type on both sides of the layer.
//!
//! A keyed request is read whole before the claim, so its handler gets bytes; everything else streams through untouched.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};

/// An error of a streamed body or of the wrapped service.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request or response body: bytes at hand, a stream, or bytes at hand followed by the rest of a stream.
#[derive(Debug)]
pub struct Body {
    head: Option<Bytes>,
    rest: Option<UnsyncBoxBody<Bytes, BoxError>>,
    trailers: Option<http::HeaderMap>,
}

impl Body {
    /// No bytes.
    pub fn empty() -> Self {
        Self { head: None, rest: None, trailers: None }
    }

    /// These bytes.
    pub fn full(bytes: Bytes) -> Self {
        Self { head: (!bytes.is_empty()).then_some(bytes), rest: None, trailers: None }
    }

    /// These bytes, then these trailers.
    pub(crate) fn full_with_trailers(bytes: Bytes, trailers: Option<http::HeaderMap>) -> Self {
        Self { trailers, ..Self::full(bytes) }
    }

    /// A stream.
    pub fn stream<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self { head: None, rest: Some(body.map_err(Into::into).boxed_unsync()), trailers: None }
    }

    /// Bytes that were read from `rest` already, then the rest.
    pub(crate) fn resumed<B>(head: Bytes, rest: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self { head: (!head.is_empty()).then_some(head), ..Self::stream(rest) }
    }

    /// All of it, when it is at hand and not a stream.
    pub fn as_bytes(&self) -> Option<Bytes> {
        self.rest.is_none().then(|| self.head.clone().unwrap_or_default())
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(head) = self.head.take() {
            return Poll::Ready(Some(Ok(Frame::data(head))));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx),
            None => Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.head.is_none()
            && self.trailers.is_none()
            && self.rest.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let head = self.head.as_ref().map_or(0, |head| head.len() as u64);
        let Some(rest) = &self.rest else {
            // With trailers to come no exact size is told: HTTP/1.1 would send a Content-Length, and then has no place
            // for them (S17).
            return match self.trailers {
                None => SizeHint::with_exact(head),
                Some(_) => SizeHint::default(),
            };
        };
        let hint = rest.size_hint();
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower().saturating_add(head));
        if let Some(upper) = hint.upper().and_then(|upper| upper.checked_add(head)) {
            whole.set_upper(upper);
        }
        whole
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::full(bytes)
    }
}

/// What reading a body within a limit gave.
pub(crate) enum Collected<B> {
    /// All of it.
    Whole {
        /// The bytes.
        bytes: Bytes,
        /// The trailers after them.
        trailers: Option<http::HeaderMap>,
    },
    /// More than the limit: what was read so far, and the rest unread.
    TooLong {
        /// Read so far; longer than the limit by less than one frame.
        head: Bytes,
        /// Not read.
        rest: B,
    },
}

/// Reads `body` up to `limit` bytes. A body that declares more is not read at all.
pub(crate) async fn collect<B>(mut body: B, limit: usize) -> Result<Collected<B>, B::Error>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > limit as u64 {
        return Ok(Collected::TooLong { head: Bytes::new(), rest: body });
    }
    let mut first = Bytes::new();
    let mut buffer: Option<Vec<u8>> = None;
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) => {
                // Most bodies are one frame: keep it as it came instead of copying it.
                match &mut buffer {
                    None if first.is_empty() => first = data,
                    None => {
                        let mut joined = Vec::with_capacity(first.len() + data.len());
                        joined.extend_from_slice(&first);
                        joined.extend_from_slice(&data);
                        buffer = Some(joined);
                    }
                    Some(joined) => joined.extend_from_slice(&data),
                }
                if buffer.as_ref().map_or(first.len(), Vec::len) > limit {
                    return Ok(Collected::TooLong { head: buffer.map_or(first, Bytes::from), rest: body });
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Ok(Collected::Whole { bytes: buffer.map_or(first, Bytes::from), trailers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::StreamBody;

    fn frames(parts: &[&'static str]) -> impl HttpBody<Data = Bytes, Error = BoxError> + Unpin + use<> {
        let frames: Vec<Result<Frame<Bytes>, BoxError>> =
            parts.iter().map(|part| Ok(Frame::data(Bytes::from_static(part.as_bytes())))).collect();
        StreamBody::new(futures_util::stream::iter(frames))
    }

    #[tokio::test]
    async fn a_body_of_exactly_the_limit_is_whole() {
        let Ok(Collected::Whole { bytes, .. }) = collect(frames(&["ab", "", "cd"]), 4).await else {
            panic!()
        };
        assert_eq!(bytes, "abcd");
    }

    #[tokio::test]
    async fn one_byte_more_is_too_long_and_nothing_is_lost() {
        let Ok(Collected::TooLong { head, rest }) = collect(frames(&["ab", "cde", "f"]), 4).await else {
            panic!()
        };
        let whole = Body::resumed(head, rest).collect().await.unwrap().to_bytes();
        assert_eq!(whole, "abcdef");
    }
}
