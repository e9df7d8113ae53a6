//! One call over HTTP from its request to its end, for tower and reqwest alike.

use http::Response;
use retrysafe_core::{
    retry::{Body, Deadline, Rule, Stop, Why},
    time::Wall,
};

use super::{
    Attempts, Bodies, End, Held, HttpExchange, Prepared, Progress, Transport,
    api::Api,
    result::{Error, OutcomeUnknown, Stopped},
};
use crate::{
    drive::{Ended, Terms, drive},
    hedging::hedge,
    history::History,
};

/// How a call is made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// Results are read whole, up to this many bytes.
    pub(crate) whole: Option<usize>,
    /// A deadline of the caller's own.
    pub(crate) within: Option<std::time::Duration>,
    /// Time between the starts of two attempts.
    pub(crate) hedge: Option<std::time::Duration>,
}

/// A call's end, with what the caller may want to know of its way.
#[derive(Debug)]
pub(crate) struct Finished<B> {
    pub(crate) answer: Response<Held<B>>,
    pub(crate) attempts: u32,
    pub(crate) history: History,
}

pub(crate) async fn call<T: Transport>(
    transport: &T,
    api: &Api,
    prepared: &Prepared,
    bodies: Bodies<T::Stream>,
    manner: Manner,
) -> Result<Finished<T::Body>, Error<Held<T::Body>>> {
    let host = &api.inner().host;
    let began = host.now();
    let deadline = manner.within.map_or(Deadline::UNSET, |limit| Deadline::within(began, limit));
    let attempts = Attempts { transport, prepared, host, whole: manner.whole };
    let terms = Terms { deadline, ..terms(api, prepared) };
    let ended = match manner.hedge {
        // Boxed: a call is moved at every hand, and most are not hedged.
        Some(delay) if prepared.request.body == Body::Replayable => {
            Box::pin(hedge(&terms, delay, &attempts, bodies)).await
        }
        _ => {
            let mut exchange = HttpExchange { attempts, bodies, progress: Progress::default() };
            drive(&terms, &mut exchange).await
        }
    };
    conclude(ended, prepared, || host.wall_at(began))
}

/// The terms of a call without a deadline of its caller's own.
pub(crate) fn terms<'a>(api: &'a Api, prepared: &'a Prepared) -> Terms<'a> {
    Terms {
        target: &prepared.target.name,
        policy: &prepared.policy,
        budget: &prepared.target.budget,
        request: prepared.request,
        deadline: Deadline::UNSET,
        host: &api.inner().host,
    }
}

pub(crate) fn conclude<B>(
    ended: Ended<End<B>>,
    prepared: &Prepared,
    sent_first: impl FnOnce() -> Wall,
) -> Result<Finished<B>, Error<Held<B>>> {
    let Ended { why, last, history, attempts } = ended;
    let (answer, error) = match last {
        Some(Ok(answer)) => (Some(answer), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let key = prepared.key.clone();
    let because = match why {
        Why::OutcomeUnknown(unknown) => {
            let unknown = OutcomeUnknown::new(unknown, key, sent_first(), prepared.replay, history);
            return Err(Error::OutcomeUnknown(Box::new(unknown)));
        }
        Why::Done => Stop::Rule(Rule::Fault),
        // The operation has answered: a refusal is an answer, as it is without retries. A 500 is none.
        Why::Stopped(
            because @ Stop::Rule(Rule::NotListed { status: ..500 } | Rule::StoredFailure { .. }),
        ) => because,
        Why::Stopped(because) => {
            return Err(Error::Stopped(Box::new(Stopped { because, answer, error, key, history })));
        }
    };
    match answer {
        Some(answer) => Ok(Finished { answer, attempts, history }),
        None => Err(Error::Stopped(Box::new(Stopped { because, answer: None, error, key, history }))),
    }
}
