//! The future of a [`super::RetryService`]: the first attempt within itself, whatever follows in a box.
//!
//! Nearly every call ends with its first attempt. The general loop ([`crate::drive`]) is an async function, which has no name
//! and so would have to be boxed for each of them. What happens to a first attempt is decided by the same core, here;
//! unless that says "done", the loop goes on from there.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{Request, Response, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use retrysafe_core::retry::{Call, Deadline, Mono, Reach, Step, Why};
use tower_service::Service;

use super::{OfTower, told};
use crate::{
    BoxError,
    drive::{State, abandon, open, run},
    host::Within,
    http::{
        Api, Asked, Attempts, Bodies, End, Error, Held, HttpExchange, Outgoing, Prepared, Progress, Sent,
        call::{Finished, Manner, call, conclude, terms},
        judged_at_once,
    },
    key::Key,
    nested::{self, Root, Surroundings},
};

type Answered<R> = Result<Response<Held<R>>, BoxError>;
type Boxed<R> = Pin<Box<dyn Future<Output = Answered<R>> + Send>>;

/// A body that may be anywhere.
pub(super) trait Piece: Body<Data = Bytes> + Send + 'static {}

impl<B: Body<Data = Bytes> + Send + 'static> Piece for B {}

/// The service below the layer, with a name for all that has to be true of it.
pub(super) trait Below<B, R>:
    Service<Request<Outgoing<B>>, Response = Response<R>, Future: Send, Error: Into<BoxError>>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S, B, R> Below<B, R> for S
where
    S: Service<Request<Outgoing<B>>, Response = Response<R>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
{
}

pin_project! {
    /// A call on its way.
    pub struct RetryFuture<S, B, R>
    where
        S: Service<Request<Outgoing<B>>>,
    {
        #[pin]
        stage: Stage<S, B, R>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S, B, R>
    where
        S: Service<Request<Outgoing<B>>>,
    {
        /// The body is read, so that it can be sent again.
        Reading { #[pin] body: B, read: Gathered, start: Option<Start<S>> },
        /// The first attempt.
        First { #[pin] attempt: Within<S::Future>, surroundings: Surroundings, flight: Option<Flight<S>> },
        /// What came after it.
        Rest { rest: Boxed<R> },
        Over,
    }
}

/// A call that has not begun.
pub(super) struct Start<S> {
    pub(super) service: S,
    pub(super) api: Api,
    pub(super) hedge: Option<Duration>,
    pub(super) parts: Parts,
}

/// The first attempt on its way.
struct Flight<S> {
    service: S,
    api: Api,
    prepared: Prepared,
    began: Mono,
    ends: Mono,
    watched: Watched,
}

/// Abandons the call when it is dropped.
struct Watched {
    call: Option<Call>,
    progress: Progress,
    target: Arc<str>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            abandon(call, self.progress.reach(), &self.target);
        }
    }
}

/// What was read of a body. One chunk, as nearly all short bodies are, stays where it is.
#[derive(Default)]
pub(super) struct Gathered {
    one: Option<Bytes>,
    more: Option<BytesMut>,
}

impl Gathered {
    fn push(&mut self, data: Bytes) {
        match (self.one.take(), &mut self.more) {
            (None, None) => self.one = Some(data),
            (Some(one), _) => {
                let mut more = BytesMut::with_capacity(one.len() + data.len());
                more.extend_from_slice(&one);
                more.extend_from_slice(&data);
                self.more = Some(more);
            }
            (None, Some(more)) => more.extend_from_slice(&data),
        }
    }

    fn take(&mut self) -> Bytes {
        let more = self.more.take().map(BytesMut::freeze);
        self.one.take().or(more).unwrap_or_default()
    }
}

impl<S> Start<S> {
    /// Reads the body first.
    pub(super) fn read<B, R>(self, body: B) -> RetryFuture<S, B, R>
    where
        S: Service<Request<Outgoing<B>>>,
    {
        RetryFuture { stage: Stage::Reading { body, read: Gathered::default(), start: Some(self) } }
    }

    /// With a body that is not read.
    pub(super) fn stream<B, R>(self, bodies: Bodies<B>) -> RetryFuture<S, B, R>
    where
        S: Below<B, R>,
        B: Piece,
        R: Piece,
    {
        RetryFuture { stage: Stage::Rest { rest: Box::pin(self.whole(None, bodies)) } }
    }

    /// The call from its beginning, by the general loop.
    async fn whole<B, R>(self, body: Option<Bytes>, bodies: Bodies<B>) -> Answered<R>
    where
        S: Below<B, R>,
        B: Piece,
        R: Piece,
    {
        let Self { service, api, hedge, parts } = self;
        let prepared = Prepared::new(&api, asked(parts, body, bodies.again.is_some()))?;
        let manner = Manner { hedge, ..Manner::default() };
        let transport = OfTower::ready(service);
        ended(call(&transport, &api, &prepared, bodies, manner).await)
    }

    /// Begins the call: with a first attempt of its own where the time is the machine's, nobody above retries, nothing
    /// else has to let it through and no second attempt goes beside it.
    ///
    /// It puts the next stage where it will be: to hand it back would be to move it.
    fn begin<B, R>(self, body: Bytes, mut stage: Pin<&mut Stage<S, B, R>>) -> Result<(), BoxError>
    where
        S: Below<B, R>,
        B: Piece,
        R: Piece,
    {
        let host = &self.api.inner().host;
        if self.hedge.is_some() || self.api.limited() || !host.is_real() || nested::is_retried() {
            stage.set(Stage::Rest { rest: Box::pin(self.whole(Some(body), Bodies::none())) });
            return Ok(());
        }
        let Self { mut service, api, hedge: _, parts } = self;
        let mut prepared = Prepared::new(&api, asked(parts, Some(body), false))?;
        let began = api.inner().host.now();
        let (call, step) = open(&terms(&api, &prepared), began);
        let Step::Send { timeout, .. } = step else {
            // It ends before it has begun: its deadline has passed.
            let transport = OfTower::called(service);
            let state = State { began, step, last: None, root: None, first: None };
            stage.set(Stage::Rest { rest: Box::pin(rest(transport, api, prepared, call, state)) });
            return Ok(());
        };
        let progress = Progress::default();
        let body = prepared.body.clone().unwrap_or_default();
        let head = prepared.first_head(timeout);
        let request = Request::from_parts(head, Outgoing::kept(body, progress.clone()));
        let deadline = call.deadline();
        let target = Arc::clone(&prepared.target.name);
        let watched = Watched { call: Some(call), progress, target };
        let mut surroundings = Surroundings::new(deadline);
        let attempt = Within::new(timeout, surroundings.enter(|| service.call(request)));
        let flight = Flight { service, api, prepared, began, ends: began.plus(timeout), watched };
        stage.set(Stage::First { attempt, surroundings, flight: Some(flight) });
        Ok(())
    }
}

fn asked(parts: Parts, body: Option<Bytes>, again: bool) -> Asked {
    let Parts { method, uri, version, headers, extensions, .. } = parts;
    let key = extensions.get::<Key>().cloned();
    Asked { method, uri, headers, version, extensions, body, again, key }
}

fn ended<R>(ended: Result<Finished<R>, Error<Held<R>>>) -> Answered<R> {
    match ended {
        Ok(finished) => Ok(finished.answer),
        Err(Error::Stopped(mut stopped)) => match stopped.answer.take() {
            Some(answer) => Ok(answer),
            None => Err(stopped.without_answer()),
        },
        Err(Error::OutcomeUnknown(unknown)) => Err(unknown as BoxError),
        Err(Error::Refused(refused)) => Err(refused.into()),
    }
}

/// Goes on with a call by the general loop.
async fn rest<S, B, R>(
    transport: OfTower<S, B, R>,
    api: Api,
    prepared: Prepared,
    call: Call,
    state: State<End<R>>,
) -> Answered<R>
where
    S: Below<B, R>,
    B: Piece,
    R: Piece,
{
    let host = &api.inner().host;
    let began = state.began;
    let attempts = Attempts { transport: &transport, prepared: &prepared, host, whole: None };
    let mut exchange = HttpExchange { attempts, bodies: Bodies::none(), progress: Progress::default() };
    let end = run(&terms(&api, &prepared), &mut exchange, call, state).await;
    ended(conclude(end, &prepared, || host.wall_at(began)))
}

/// What came of a first attempt: the end of the call, or what has to be seen to.
enum Landed<R> {
    Done(Response<Held<R>>),
    /// It has been observed. Boxed, as is all that follows a first attempt.
    Open(Box<(Call, State<End<R>>)>),
    /// Its head does not tell.
    Unread(Option<Sent<R>>, Reach),
}

impl<S> Flight<S> {
    fn land<R>(&mut self, sent: Option<Sent<R>>, root: Option<Root>) -> Landed<R> {
        let host = &self.api.inner().host;
        let reach = self.watched.progress.reach();
        let (seen, answer) = match judged_at_once(&self.prepared, reach, host, sent) {
            Ok(judged) => judged,
            Err(sent) => return Landed::Unread(sent, reach),
        };
        let Some(call) = &mut self.watched.call else { unreachable!("it is taken once") };
        let now = host.now();
        let step = call.observe(&seen, host.entropy(), now);
        if let Step::Finish(Why::Done) = step {
            // Nothing is left to be abandoned.
            self.watched.call = None;
            return Landed::Done(answer);
        }
        let Some(call) = self.watched.call.take() else { unreachable!("it is taken once") };
        let first = Some((seen, now));
        let state = State { began: self.began, step, last: Some(Ok(answer)), root, first };
        Landed::Open(Box::new((call, state)))
    }

    /// What is left to do, as the general loop does it.
    fn go_on<B, R>(self, landed: Landed<R>, root: Option<Root>) -> Boxed<R>
    where
        S: Below<B, R>,
        B: Piece,
        R: Piece,
    {
        match landed {
            Landed::Done(answer) => Box::pin(std::future::ready(Ok(answer))),
            Landed::Open(open) => {
                let (call, state) = *open;
                let Self { service, api, prepared, .. } = self;
                Box::pin(rest(OfTower::called(service), api, prepared, call, state))
            }
            Landed::Unread(sent, reach) => Box::pin(self.read(sent, reach, root)),
        }
    }

    /// Reads what the answer's head does not tell, and goes on.
    async fn read<B, R>(mut self, sent: Option<Sent<R>>, reach: Reach, root: Option<Root>) -> Answered<R>
    where
        S: Below<B, R>,
        B: Piece,
        R: Piece,
    {
        let transport = OfTower::<S, B, R>::called(self.service.clone());
        let host = self.api.inner().host.clone();
        let attempts = Attempts { transport: &transport, prepared: &self.prepared, host: &host, whole: None };
        let deadline = self.watched.call.as_ref().map_or(Deadline::UNSET, Call::deadline);
        let ((seen, last), drawn) = {
            let judging = std::pin::pin!(attempts.judge(sent, reach, self.ends));
            nested::attempt(deadline, root, judging).await
        };
        let Some(mut call) = self.watched.call.take() else { unreachable!("it is taken here only") };
        let now = host.now();
        let step = call.observe(&seen, host.entropy(), now);
        let Self { api, prepared, began, .. } = self;
        let state = State { began, step, last, root: drawn.or(root), first: Some((seen, now)) };
        rest(transport, api, prepared, call, state).await
    }
}

impl<S, B, R> Future for RetryFuture<S, B, R>
where
    S: Service<Request<Outgoing<B>>, Response = Response<R>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
{
    type Output = Answered<R>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProjection::Reading { mut body, read, start } => {
                    while !body.is_end_stream() {
                        match ready!(body.as_mut().poll_frame(cx)) {
                            Some(Ok(frame)) => {
                                if let Ok(data) = frame.into_data() {
                                    read.push(data);
                                }
                            }
                            Some(Err(error)) => {
                                stage.set(Stage::Over);
                                return Poll::Ready(Err(error.into()));
                            }
                            None => break,
                        }
                    }
                    let bytes = read.take();
                    let Some(start) = start.take() else { unreachable!("it is taken once") };
                    if let Err(error) = start.begin(bytes, stage.as_mut()) {
                        stage.set(Stage::Over);
                        return Poll::Ready(Err(error));
                    }
                }
                StageProjection::First { attempt, surroundings, flight } => {
                    let came = ready!(surroundings.enter(|| attempt.poll(cx)));
                    let sent = came.map(|came| came.map_err(told));
                    let root = surroundings.root();
                    let Some(under_way) = flight else { unreachable!("it is taken once") };
                    let landed = under_way.land(sent, root);
                    if let Landed::Done(answer) = landed {
                        stage.set(Stage::Over);
                        return Poll::Ready(Ok(answer));
                    }
                    let Some(flight) = flight.take() else { unreachable!("it is taken once") };
                    let rest = flight.go_on::<B, R>(landed, root);
                    stage.set(Stage::Rest { rest });
                }
                StageProjection::Rest { rest } => {
                    let answered = ready!(rest.as_mut().poll(cx));
                    stage.set(Stage::Over);
                    return Poll::Ready(answered);
                }
                StageProjection::Over => unreachable!("a future that has ended is not polled"),
            }
        }
    }
}

impl<S, B, R> std::fmt::Debug for RetryFuture<S, B, R>
where
    S: Service<Request<Outgoing<B>>>,
{
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RetryFuture")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_come_together_in_their_order() {
        let mut gathered = Gathered::default();
        assert_eq!(gathered.take(), Bytes::new());
        for data in [&b"one "[..], b"two ", b"three"] {
            gathered.push(Bytes::from_static(data));
        }
        assert_eq!(gathered.take(), Bytes::from_static(b"one two three"));
    }
}
