//! One call over a transport: attempts and polls, bounded, limited, and read.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, Uri, response::Parts};
use http_body::Body;
use retrysafe_core::retry::{Failure, Lost, Mono, Outcome, Reach, Seen};

use super::{
    answer::{Held, Read, answer_of, read, to_read},
    body::{Bodies, Outgoing, Progress},
    prepare::Prepared,
};
use crate::{BoxError, drive::Exchange, host::Host};

/// What carries requests.
pub(crate) trait Transport: Sync {
    /// The body of an answer.
    type Body: Body<Data = Bytes> + Send;
    /// The body of a request that is no bytes.
    type Stream: Send;

    /// Sends one request, once.
    fn send(
        &self,
        request: http::Request<Outgoing<Self::Stream>>,
    ) -> impl Future<Output = Sent<Self::Body>> + Send;
}

/// What a transport says of a request: the head of an answer, or what it knows about its failure.
pub(crate) type Sent<B> = Result<Response<B>, (Failure, BoxError)>;
/// What an attempt leaves: an answer, or the transport's error.
pub(crate) type End<B> = Result<Response<Held<B>>, BoxError>;
/// What it came to, and what it leaves; `None` where the time ran out.
pub(crate) type Came<B> = (Seen, Option<End<B>>);

/// What an answer came to, and the answer.
pub(crate) type Judged<B> = (Seen, Response<Held<B>>);

/// How the attempts of one call are made.
pub(crate) struct Attempts<'a, T> {
    pub(crate) transport: &'a T,
    pub(crate) prepared: &'a Prepared,
    pub(crate) host: &'a Host,
    /// Results are read whole, up to this many bytes; `None`: they are handed on as they come.
    pub(crate) whole: Option<usize>,
}

/// One call whose attempts follow each other.
pub(crate) struct HttpExchange<'a, T: Transport> {
    pub(crate) attempts: Attempts<'a, T>,
    /// The body, where it is a stream.
    pub(crate) bodies: Bodies<T::Stream>,
    pub(crate) progress: Progress,
}

impl<T: Transport> Exchange for HttpExchange<'_, T> {
    type End = End<T::Body>;

    async fn send(&mut self, attempt: u32, timeout: Duration) -> Came<T::Body> {
        self.attempts.send(attempt, timeout, &mut self.bodies, &self.progress).await
    }

    async fn poll(&mut self, url: &str, timeout: Duration) -> Came<T::Body> {
        self.attempts.poll(url, timeout).await
    }

    fn reach(&self) -> Reach {
        self.progress.reach()
    }
}

impl<T: Transport> Attempts<'_, T> {
    /// Makes one attempt: limiters, then the wire, both within `timeout`.
    pub(crate) async fn send(
        &self,
        attempt: u32,
        timeout: Duration,
        bodies: &mut Bodies<T::Stream>,
        progress: &Progress,
    ) -> Came<T::Body> {
        let Prepared { target, body, .. } = self.prepared;
        let ends = self.host.now().plus(timeout);
        let admitted = match target.limiters.admit(self.host, timeout).await {
            Ok(admitted) => admitted,
            Err(held) => return (held, None),
        };
        let body = match body {
            Some(bytes) => Outgoing::kept(bytes.clone(), progress.clone()),
            None => match bodies.next() {
                Some(stream) => Outgoing::stream(stream, progress.clone()),
                // It was lost with an attempt that core takes for one that never touched it.
                None => return (Seen { outcome: Outcome::Fault, reach: Reach::Nothing }, None),
            },
        };
        let left = ends.since(self.host.now());
        let request = http::Request::from_parts(self.prepared.head(attempt, left), body);
        let sent = self.host.within(left, self.transport.send(request)).await;
        let came = self.judge(sent, progress.reach(), ends).await;
        if target.limiters.any() {
            admitted.ended(&came.0, self.host.now());
        }
        came
    }

    /// Asks a status URL. Only the request's own origin is told its credentials.
    pub(crate) async fn poll(&self, url: &str, timeout: Duration) -> Came<T::Body> {
        let Some(url) = same_origin(&self.prepared.uri, url) else {
            return (Seen { outcome: Outcome::Fault, reach: Reach::Nothing }, None);
        };
        let ends = self.host.now().plus(timeout);
        let body = Outgoing::kept(Bytes::new(), Progress::default());
        let request = http::Request::from_parts(self.prepared.poll_head(url, timeout), body);
        let sent = self.host.within(timeout, self.transport.send(request)).await;
        self.judge(sent, Reach::Whole, ends).await
    }

    pub(crate) async fn judge(&self, sent: Option<Sent<T::Body>>, reach: Reach, ends: Mono) -> Came<T::Body> {
        let response = match sent {
            None => return (Seen::lost(Lost::Timeout, reach), None),
            Some(Err((failure, error))) => {
                // "Taken back unsent" is believed where nothing of the body was asked for: hyper says the same when the task
                // of a connection was dropped, and that may have written a request without a body.
                let reach = if reach <= Reach::Head { failure.reach.min(reach) } else { reach };
                return (Failure { reach, ..failure }.seen(), Some(Err(error)));
            }
            Some(Ok(response)) => response,
        };
        let (head, body) = response.into_parts();
        let problem = to_read(&head);
        let result = head.status.as_u16() < 400;
        let limit = match (problem, self.whole) {
            (None, None) => None,
            (problem, whole) => Some(problem.unwrap_or(0).max(whole.unwrap_or(0))),
        };
        let (body, cut) = match limit {
            None => (Held::rest(body), false),
            Some(max) => match self.host.within(ends.since(self.host.now()), read(body, max)).await {
                Some(Read::Whole(body)) => (body, false),
                // It was processed, and asking again would only bring the same length again.
                Some(Read::Long(body)) if result => {
                    let seen = Seen { outcome: Outcome::Fault, reach };
                    return (seen, Some(Ok(Response::from_parts(head, body))));
                }
                Some(Read::Long(body)) => (body, false),
                Some(Read::Cut(bytes)) => (Held::whole(bytes, None), true),
                None => (Held::whole(Bytes::new(), None), true),
            },
        };
        let (seen, answer) = judge_read(self.prepared, reach, self.host, head, body, cut);
        (seen, Some(Ok(answer)))
    }
}

/// What an answer of which enough was read came to.
fn judge_read<B>(
    prepared: &Prepared,
    reach: Reach,
    host: &Host,
    head: Parts,
    body: Held<B>,
    cut: bool,
) -> Judged<B> {
    let mut answer = answer_of(&head, body.seen(), &prepared.rejected, || host.wall());
    answer.cut = cut;
    if answer.status_url.as_deref().is_some_and(|url| same_origin(&prepared.uri, url).is_none()) {
        answer.status_url = None;
    }
    let seen = Seen { outcome: Outcome::Answered(answer), reach };
    (seen, Response::from_parts(head, body))
}

/// What an answer came to whose head is enough to judge it; anything else is given back.
#[cfg(feature = "tower")]
pub(crate) fn judged_at_once<B>(
    prepared: &Prepared,
    reach: Reach,
    host: &Host,
    sent: Option<Sent<B>>,
) -> Result<Judged<B>, Option<Sent<B>>> {
    let Some(Ok(response)) = sent else { return Err(sent) };
    let (head, body) = response.into_parts();
    if to_read(&head).is_some() {
        return Err(Some(Ok(Response::from_parts(head, body))));
    }
    Ok(judge_read(prepared, reach, host, head, Held::rest(body), false))
}

/// The status URL, if it is one of the request's own origin: credentials go nowhere else.
fn same_origin(request: &Uri, url: &str) -> Option<Uri> {
    let url: Uri = Some(url).filter(|url| !url.starts_with("//"))?.parse().ok()?;
    if url.authority().is_some() {
        let same = url.scheme() == request.scheme() && url.authority() == request.authority();
        return same.then_some(url);
    }
    let path = url.path_and_query().filter(|path| path.as_str().starts_with('/'))?;
    let mut parts = request.clone().into_parts();
    parts.path_and_query = Some(path.clone());
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_url_of_another_origin_is_not_asked() {
        let request: Uri = "https://api.example.com/orders?x=1".parse().unwrap();
        let asked = |url: &str| same_origin(&request, url).map(|url| url.to_string());
        assert_eq!(asked("/status/7").as_deref(), Some("https://api.example.com/status/7"));
        assert_eq!(asked("https://api.example.com/s?a=1").as_deref(), Some("https://api.example.com/s?a=1"));
        for other in
            ["https://evil.example/s", "http://api.example.com/s", "//evil.example/s", "status/7", "?x"]
        {
            assert_eq!(asked(other), None, "{other}");
        }
    }
}
