//! What an answer says about retries: its status, its machine code, its hint; and its body, which stays the caller's.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, header, response::Parts};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use pin_project_lite::pin_project;
use retrysafe_core::{
    codes::Code,
    contract::AnswerMatch,
    policy::Effect,
    retry::{Answer, after},
    time::Wall,
};
use serde::Deserialize;

/// How much of a failure's body is read for its machine code.
const PROBLEM_MAX: usize = 64 << 10;
/// Headers by which servers advise on retries. Stripe's, and the one that copies it.
const ADVICE_HEADERS: [&str; 2] = ["stripe-should-retry", "x-should-retry"];

pin_project! {
    /// The body of an answer: what was read of it, then what was not.
    #[derive(Debug)]
    pub struct Held<B> {
        read: Option<Bytes>,
        #[pin]
        rest: Rest<B>,
        trailers: Option<HeaderMap>,
    }
}

pin_project! {
    /// What was not read. A body that somebody has begun to read does not move any more, one that nobody has needs no box.
    #[project = RestProjection]
    #[derive(Debug)]
    enum Rest<B> {
        None,
        Untouched { #[pin] body: B },
        Begun { body: Pin<Box<B>> },
    }
}

impl<B> Rest<B> {
    fn get(&self) -> Option<&B> {
        match self {
            Rest::None => None,
            Rest::Untouched { body } => Some(body),
            Rest::Begun { body } => Some(body),
        }
    }
}

impl<B> Held<B> {
    /// As it came.
    pub(crate) fn rest(body: B) -> Self {
        Self { read: None, rest: Rest::Untouched { body }, trailers: None }
    }

    pub(crate) fn whole(bytes: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self { read: Some(bytes), rest: Rest::None, trailers }
    }

    /// What was read of it.
    pub(crate) fn seen(&self) -> Option<&[u8]> {
        self.read.as_deref()
    }

    /// What was read, where that is all of it.
    pub(crate) fn into_whole(self) -> Option<Bytes> {
        matches!(self.rest, Rest::None).then(|| self.read.unwrap_or_default())
    }
}

/// How the reading of a body ended.
pub(crate) enum Read<B> {
    /// All of it.
    Whole(Held<B>),
    /// Longer than allowed; nothing is lost.
    Long(Held<B>),
    /// It ended early.
    Cut(Bytes),
}

/// Reads `body` up to `max` bytes.
pub(crate) async fn read<B: Body<Data = Bytes>>(body: B, max: usize) -> Read<B> {
    let mut body = Box::pin(body);
    let mut read = BytesMut::new();
    let mut trailers = None;
    while let Some(frame) = body.as_mut().frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => {
                read.extend_from_slice(&data);
                if read.len() > max {
                    let rest = Rest::Begun { body };
                    return Read::Long(Held { read: Some(read.freeze()), rest, trailers: None });
                }
            }
            Ok(Err(frame)) => trailers = frame.into_trailers().ok(),
            Err(_) => return Read::Cut(read.freeze()),
        }
    }
    Read::Whole(Held::whole(read.freeze(), trailers))
}

impl<B: Body<Data = Bytes>> Body for Held<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.project();
        if let Some(read) = this.read.take().filter(|read| !read.is_empty()) {
            return Poll::Ready(Some(Ok(Frame::data(read))));
        }
        if let Some(trailers) = this.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        match this.rest.project() {
            RestProjection::None => Poll::Ready(None),
            RestProjection::Untouched { body } => body.poll_frame(cx),
            RestProjection::Begun { body } => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.as_ref().is_none_or(Bytes::is_empty)
            && self.trailers.is_none()
            && self.rest.get().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.as_ref().map_or(0, |read| read.len() as u64);
        let Some(rest) = self.rest.get() else { return SizeHint::with_exact(read) };
        let rest = rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
            hint.set_upper(upper);
        }
        hint
    }
}

/// How much of this answer's body has to be read before it can be judged; `None`: its head is enough.
pub(crate) fn to_read(head: &Parts) -> Option<usize> {
    let failure = head.status.as_u16() >= 400 || head.status == StatusCode::ACCEPTED;
    let media =
        head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    (failure && media.to_ascii_lowercase().contains("json")).then_some(PROBLEM_MAX)
}

/// What the answer says. `body` is what was read of it.
pub(crate) fn answer_of(
    head: &Parts,
    body: Option<&[u8]>,
    rejected: &[AnswerMatch],
    now: impl Fn() -> Wall,
) -> Answer {
    let status = head.status.as_u16();
    let mut answer = Answer::new(status);
    let fields = head.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    answer.hint = after::read(status, fields, now);
    let failure = status >= 400 || status == 202;
    let problem = body.filter(|_| failure).and_then(|body| serde_json::from_slice::<Problem<'_>>(body).ok());
    if let Some(problem) = &problem {
        answer.code = problem.code();
        answer.advice = problem.retryable;
        answer.hint = finer(answer.hint, answer.code.and(problem.retry_after_ms));
    }
    let advised = ADVICE_HEADERS.iter().find_map(|name| head.headers.get(*name));
    match advised.map(http::HeaderValue::as_bytes) {
        Some(b"true") => answer.advice = Some(true),
        Some(b"false") => answer.advice = Some(false),
        _ => {}
    }
    // An ordinary 202 with a Location is a result: only the code says that the operation itself is still in flight.
    if answer.code == Some(Code::KeyInFlight) {
        answer.status_url =
            head.headers.get(header::LOCATION).and_then(|url| url.to_str().ok()).map(Into::into);
    }
    if rejected.iter().any(|entry| entry.matches(status, body)) {
        answer.effect = Some(Effect::None);
    }
    answer
}

/// `Retry-After` has whole seconds and is rounded up; beside it our own answers say the number that was meant.
fn finer(hint: after::Hint, ms: Option<u64>) -> after::Hint {
    match (hint, ms) {
        (after::Hint::Wait(rounded), Some(ms)) if rounded.as_secs() == ms.div_ceil(1_000) => {
            after::Hint::Wait(Duration::from_millis(ms))
        }
        _ => hint,
    }
}

/// A failure's body, in the shapes that are known: RFC 9457 with our members, and `{"error": {...}}` around them.
#[derive(Deserialize)]
struct Problem<'a> {
    #[serde(borrow, default)]
    code: Option<Text<'a>>,
    #[serde(borrow, default)]
    name: Option<Text<'a>>,
    #[serde(default)]
    retryable: Option<bool>,
    #[serde(default)]
    retry_after_ms: Option<u64>,
    #[serde(borrow, default)]
    error: Option<Inner<'a>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Inner<'a> {
    Table {
        #[serde(borrow, default)]
        code: Option<Text<'a>>,
        #[serde(borrow, default, rename = "type")]
        kind: Option<Text<'a>>,
    },
    Other(serde::de::IgnoredAny),
}

/// A text, or whatever else stands there.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text<'a> {
    Text(#[serde(borrow)] std::borrow::Cow<'a, str>),
    Other(serde::de::IgnoredAny),
}

impl Problem<'_> {
    fn code(&self) -> Option<Code> {
        let (inner, kind) = match &self.error {
            Some(Inner::Table { code, kind }) => (code.as_ref(), kind.as_ref()),
            Some(Inner::Other(_)) | None => (None, None),
        };
        [self.code.as_ref(), inner, self.name.as_ref(), kind].into_iter().flatten().find_map(
            |text| match text {
                Text::Text(text) => known(text),
                Text::Other(_) => None,
            },
        )
    }
}

/// Our codes, and what Stripe and Resend call the same thing.
fn known(code: &str) -> Option<Code> {
    match code {
        "idempotency_key_in_use" | "concurrent_idempotent_requests" => Some(Code::KeyInFlight),
        "idempotency_error" | "invalid_idempotent_request" => Some(Code::PayloadMismatch),
        own => Code::from_wire(own),
    }
}
