//! The loop around core's [`Call`]: it sends, sleeps and asks as it is told, and writes down what happened. Every form of
//! the client (plain, tower, reqwest) is an [`Exchange`] of this one loop.

use std::{num::NonZeroU32, pin::pin, time::Duration};

use retrysafe_core::retry::{Budget, Call, Deadline, Mono, Reach, Request, RetryPolicy, Seen, Step, Why};
use tracing::Instrument;

use crate::{
    history::{History, Scribe},
    host::Host,
    nested::{self, Root},
};

/// One transport's way to make attempts.
pub(crate) trait Exchange {
    /// What an attempt leaves for the caller: an answer or an error.
    type End;

    /// Makes an attempt. It bounds itself by `timeout`, since only it knows in which phase the time ran out.
    fn send(
        &mut self,
        attempt: u32,
        timeout: Duration,
    ) -> impl Future<Output = (Seen, Option<Self::End>)> + Send;

    /// Asks a status URL.
    fn poll(
        &mut self,
        url: &str,
        timeout: Duration,
    ) -> impl Future<Output = (Seen, Option<Self::End>)> + Send;

    /// How far the present attempt has got, should the caller give up now.
    fn reach(&self) -> Reach;
}

/// A call's limits, and who it shares them with.
pub(crate) struct Terms<'a> {
    pub(crate) target: &'a str,
    pub(crate) policy: &'a RetryPolicy,
    pub(crate) budget: &'a Budget,
    pub(crate) request: Request,
    pub(crate) deadline: Deadline,
    pub(crate) host: &'a Host,
}

/// How a call ended, and what its last attempt left.
pub(crate) struct Ended<E> {
    pub(crate) why: Why,
    pub(crate) last: Option<E>,
    pub(crate) history: History,
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "answers over HTTP tell it"))]
    pub(crate) attempts: u32,
}

/// Runs a call to its end. Dropping the future abandons it: the budget is put right, and an attempt on its way is
/// reported as one that may have happened.
pub(crate) async fn drive<X: Exchange>(terms: &Terms<'_>, exchange: &mut X) -> Ended<X::End> {
    let began = terms.host.now();
    let (call, step) = open(terms, began);
    run(terms, exchange, call, State { began, step, last: None, root: None, first: None }).await
}

/// Opens a call in what its surroundings hand down.
pub(crate) fn open(terms: &Terms<'_>, began: Mono) -> (Call, Step) {
    let policy = standing_down(terms.policy);
    let deadline = terms.deadline.tighten(nested::inherited_deadline());
    Call::open(&policy, terms.budget, terms.request, deadline, began)
}

/// Where a call stands.
pub(crate) struct State<E> {
    pub(crate) began: Mono,
    /// What is to be done next.
    pub(crate) step: Step,
    /// What the last attempt left.
    pub(crate) last: Option<E>,
    pub(crate) root: Option<Root>,
    /// What a first attempt that somebody else has made came to, and when. It is not written down yet.
    pub(crate) first: Option<(Seen, Mono)>,
}

/// Goes on with a call.
pub(crate) async fn run<X: Exchange>(
    terms: &Terms<'_>,
    exchange: &mut X,
    call: Call,
    state: State<X::End>,
) -> Ended<X::End> {
    let host = terms.host;
    let State { began, mut step, mut last, mut root, first } = state;
    let mut scribe = Scribe::new(terms.target, terms.budget, began);
    if let Some((seen, now)) = first {
        note(&mut scribe, &step, call.attempts(), &seen, now);
    }
    let mut under_way = UnderWay { call: Some(call), exchange, target: terms.target };
    loop {
        let Some(call) = &mut under_way.call else { unreachable!("it is taken on return only") };
        let deadline = call.deadline();
        let seen = match step {
            Step::Send { attempt, timeout } => {
                let ((seen, end), drawn) = if attempt == 1 {
                    let work = pin!(under_way.exchange.send(attempt, timeout));
                    nested::attempt(deadline, root, work).await
                } else {
                    // OpenTelemetry's name; absent on the first attempt, as its rules have it.
                    let span = tracing::info_span!(
                        target: "retrysafe::client", "resend", http.request.resend_count = attempt - 1
                    );
                    let mut work = Box::pin(under_way.exchange.send(attempt, timeout).instrument(span));
                    nested::attempt(deadline, root, work.as_mut()).await
                };
                (root, last) = (drawn.or(root), end);
                seen
            }
            Step::Poll { url, timeout } => {
                // Boxed, as is the way of a retry: a first attempt that succeeds is moved with neither.
                let mut work = Box::pin(under_way.exchange.poll(&url, timeout));
                let (seen, end) = nested::attempt(deadline, root, work.as_mut()).await.0;
                last = end.or(last);
                seen
            }
            Step::Sleep(pause) => {
                host.sleep(pause.delay).await;
                step = call.woke(host.now());
                if let Step::Finish(why) = &step {
                    let attempts = call.attempts();
                    let why = why.clone();
                    under_way.call = None;
                    return Ended { why, last, history: scribe.history, attempts };
                }
                continue;
            }
            Step::Finish(why) => {
                let attempts = call.attempts();
                under_way.call = None;
                return Ended { why, last, history: scribe.history, attempts };
            }
        };
        let now = host.now();
        let attempt = call.attempts();
        step = call.observe(&seen, host.entropy(), now);
        note(&mut scribe, &step, attempt, &seen, now);
    }
}

fn note(scribe: &mut Scribe<'_>, step: &Step, attempt: u32, seen: &Seen, now: Mono) {
    match step {
        Step::Finish(Why::Done) => {}
        Step::Sleep(pause) => scribe.failed(attempt, seen, Some(*pause), now),
        Step::Finish(_) | Step::Send { .. } | Step::Poll { .. } => {
            scribe.failed(attempt, seen, None, now);
        }
    }
}

/// The policy, or a single attempt where somebody above retries: 3 x 3 x 3 is 27 requests for one failure (I-66 to I-68).
pub(crate) fn standing_down(policy: &RetryPolicy) -> RetryPolicy {
    if nested::is_retried() { RetryPolicy { attempts: NonZeroU32::MIN, ..*policy } } else { *policy }
}

/// Abandons the call when the future is dropped.
struct UnderWay<'a, X: Exchange> {
    call: Option<Call>,
    exchange: &'a mut X,
    target: &'a str,
}

impl<X: Exchange> Drop for UnderWay<'_, X> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            abandon(call, self.exchange.reach(), self.target);
        }
    }
}

/// Gives a call up, and says so where it may have happened.
pub(crate) fn abandon(call: Call, reach: Reach, target: &str) {
    let attempts = call.attempts();
    if let Why::OutcomeUnknown(unknown) = call.abandon(reach) {
        tracing::warn!(
            target: "retrysafe::client", api = target, attempts, reach = %unknown.reach,
            "cancelled by its caller; it may have happened"
        );
    }
}
