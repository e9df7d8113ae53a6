//! What a plan's function goes through.

use std::{fmt, panic::AssertUnwindSafe, sync::Arc};

use bytes::Bytes;
use futures_util::FutureExt;
use http::Response;
use retrysafe_core::{
    ids::Fence,
    recovery::{
        AfterAsk, AfterFailure, CallFailure, DownstreamKey, Event, External, Found as FoundBytes, Intent,
        Kind, Next, StepName, Stopped, asked, failed, next,
    },
};
use retrysafe_store::journal::{ENTRY_MAX_BYTES, Journal};
use serde::{Serialize, de::DeserializeOwned};

use super::{Point, attempt::Attempt, decoded, encoded};
use crate::body::{Body, BoxError};

/// The steps of one attempt. A step borrows it while it runs, so no step can be begun inside another.
pub struct Steps<D> {
    pub(super) attempt: Arc<Attempt<D>>,
    /// The place of the last step that was called: a plan only goes forward.
    at: usize,
}

/// Why a plan's function ends before its answer. Returned with `?`.
pub struct Halt(pub(super) Cause);

pub(super) enum Cause {
    /// A phase answered, and that is committed.
    Answered(Box<Response<Body>>),
    /// This attempt cannot go on, a later one may.
    Later(Box<str>),
    /// Nobody may go on by itself.
    Stopped(Stopped),
    /// Somebody else holds the claim.
    Stale,
    /// Nothing more could be written down; the lease decides.
    Lost(Box<str>),
}

#[allow(non_upper_case_globals, non_snake_case)] // reads as the causes do
impl Halt {
    pub(super) const Stale: Halt = Halt(Cause::Stale);

    pub(super) fn Lost(why: Box<str>) -> Self {
        Self(Cause::Lost(why))
    }
}

impl Halt {
    /// This attempt cannot go on, and a later one may: what is committed stays, and the steps that follow wait for it.
    pub fn later(why: impl fmt::Display) -> Self {
        Self(Cause::Later(why.to_string().into()))
    }

    pub(super) fn astray(what: impl Into<Box<str>>) -> Self {
        Self(Cause::Stopped(Stopped::Astray { what: what.into() }))
    }

    pub(super) fn stopped(why: Stopped) -> Self {
        Self(Cause::Stopped(why))
    }
}

impl fmt::Debug for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Answered(_) => f.write_str("Halt(answered)"),
            Cause::Later(why) => write!(f, "Halt(later: {why})"),
            Cause::Stopped(why) => write!(f, "Halt(stopped: {why})"),
            Cause::Stale => f.write_str("Halt(stale)"),
            Cause::Lost(why) => write!(f, "Halt(lost: {why})"),
        }
    }
}

/// One foreign call, to be made now.
pub struct Call {
    key: DownstreamKey,
    fence: Fence,
    body: Bytes,
}

impl Call {
    /// The idempotency key to send it with: the same at every attempt of this step.
    pub fn key(&self) -> &str {
        self.key.as_str()
    }

    /// For providers that compare it.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The bytes to send, as JSON: those that were written down with the intent, at every attempt (protocol 23).
    pub fn body(&self) -> &[u8] {
        &self.body
    }
}

/// A question about a call that may have been made.
pub struct Asked {
    key: DownstreamKey,
    body: Bytes,
}

impl Asked {
    /// The key that it was sent with, if it was sent.
    pub fn key(&self) -> &str {
        self.key.as_str()
    }

    /// The bytes that it was sent with, if it was sent.
    pub fn body(&self) -> &[u8] {
        &self.body
    }
}

/// What a provider says of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found<T> {
    /// It was made, with this result.
    Done(T),
    /// The provider knows of none.
    Absent,
    /// It was not reached, or does not know yet.
    Silent,
}

/// How a call failed to give a result. An answer that says no (a card was declined) is a result.
#[derive(Debug, thiserror::Error)]
pub enum CallFault {
    /// No byte of it left this process: no connection was made.
    #[error("nothing was sent: {0}")]
    NotSent(BoxError),
    /// It was sent, in part or whole, and what came back does not say what happened: a timeout, a reset, a 5xx.
    #[error("sent, and no answer says what happened: {0}")]
    Unknown(BoxError),
}

impl CallFault {
    fn failure(&self) -> CallFailure {
        match self {
            CallFault::NotSent(_) => CallFailure::NotSent,
            CallFault::Unknown(_) => CallFailure::Unknown,
        }
    }
}

impl<D: Journal> Steps<D> {
    pub(super) fn new(attempt: Arc<Attempt<D>>) -> Self {
        Self { attempt, at: 0 }
    }

    /// One foreign mutation. `request` is what is sent; it is written down with the intent before `call` makes the call,
    /// and its result after.
    ///
    /// # Errors
    /// [`Halt`], to be passed on with `?`.
    pub async fn external<T, R, C, F>(&mut self, name: &str, request: &R, call: C) -> Result<T, Halt>
    where
        T: Serialize + DeserializeOwned,
        R: Serialize + ?Sized,
        C: FnOnce(Call) -> F,
        F: Future<Output = Result<T, CallFault>>,
    {
        let step = named(StepName::new(name))?;
        self.foreign(step, request, call, None::<fn(Asked) -> std::future::Ready<Found<T>>>).await
    }

    /// As [`Steps::external`], for a step that declares that its provider can be asked: `ask` finds out what became of a call
    /// whose result nobody wrote down.
    ///
    /// # Errors
    /// As [`Steps::external`].
    pub async fn external_or_ask<T, R, C, F, A, G>(
        &mut self,
        name: &str,
        request: &R,
        call: C,
        ask: A,
    ) -> Result<T, Halt>
    where
        T: Serialize + DeserializeOwned,
        R: Serialize + ?Sized,
        C: FnOnce(Call) -> F,
        F: Future<Output = Result<T, CallFault>>,
        A: FnOnce(Asked) -> G,
        G: Future<Output = Found<T>>,
    {
        let step = named(StepName::new(name))?;
        self.foreign(step, request, call, Some(ask)).await
    }

    /// One member of a list of like mutations, each with a key of its own. `member` names what it is for, so that a list
    /// that has grown meanwhile leaves each member who it is.
    ///
    /// # Errors
    /// As [`Steps::external`].
    pub async fn external_of<T, R, C, F>(
        &mut self,
        list: &str,
        member: &str,
        request: &R,
        call: C,
    ) -> Result<T, Halt>
    where
        T: Serialize + DeserializeOwned,
        R: Serialize + ?Sized,
        C: FnOnce(Call) -> F,
        F: Future<Output = Result<T, CallFault>>,
    {
        let step = named(StepName::of_member(list, member))?;
        self.foreign(step, request, call, None::<fn(Asked) -> std::future::Ready<Found<T>>>).await
    }

    async fn foreign<T, R, C, F, A, G>(
        &mut self,
        step: StepName,
        request: &R,
        call: C,
        ask: Option<A>,
    ) -> Result<T, Halt>
    where
        T: Serialize + DeserializeOwned,
        R: Serialize + ?Sized,
        C: FnOnce(Call) -> F,
        F: Future<Output = Result<T, CallFault>>,
        A: FnOnce(Asked) -> G,
        G: Future<Output = Found<T>>,
    {
        let Kind::External(external) = self.reach(&step)? else {
            return Err(Halt::astray(format!("`{step}` is a phase, and was called as a foreign mutation")));
        };
        match self.next(&step)? {
            Next::Skip(result) => decoded(&result),
            Next::Run => {
                let request = encoded(request)?;
                if request.len() > ENTRY_MAX_BYTES {
                    return Err(Halt::astray(format!(
                        "the request of `{step}` is too long to be written down"
                    )));
                }
                let key =
                    DownstreamKey::derive(self.attempt.operation, self.attempt.plan.shape.name(), &step);
                self.attempt.observe.at(Point::Intending(step.as_str()));
                self.attempt.note(vec![Event::Intent { step: step.clone(), key, request }]).await?;
                self.attempt.observe.at(Point::Intended(step.as_str()));
                self.call(external, &step, call).await
            }
            Next::Ask(intent) => {
                let Some(ask) = ask else {
                    return Err(Halt::astray(format!(
                        "`{step}` declares that its provider can be asked, and nobody asks"
                    )));
                };
                self.attempt.observe.at(Point::Asking(step.as_str()));
                let found = ask(Asked { key: intent.key.clone(), body: intent.request.clone() }).await;
                let found = match found {
                    Found::Done(result) => FoundBytes::Done(encoded(&result)?),
                    Found::Absent => FoundBytes::Absent,
                    Found::Silent => FoundBytes::Silent,
                };
                match asked(external, &step, &intent, found, self.attempt.now()?) {
                    AfterAsk::Record(result) => self.record(step, result).await,
                    AfterAsk::Resend => self.resend(external, step, call).await,
                    AfterAsk::Later => Err(Halt::later("the provider does not say what became of a call")),
                    AfterAsk::Uncertain(why) => Err(Halt::stopped(why)),
                }
            }
            Next::Resend(_) => self.resend(external, step, call).await,
            Next::Uncertain(why) => Err(Halt::stopped(why)),
            Next::TooLate => {
                Err(Halt::later("its caller was told that it failed before the first call was made"))
            }
        }
    }

    async fn resend<T, C, F>(&self, external: External, step: StepName, call: C) -> Result<T, Halt>
    where
        T: Serialize + DeserializeOwned,
        C: FnOnce(Call) -> F,
        F: Future<Output = Result<T, CallFault>>,
    {
        self.attempt.note(vec![Event::Resent { step: step.clone() }]).await?;
        self.call(external, &step, call).await
    }

    /// Makes the call whose intent is written.
    async fn call<T, C, F>(&self, external: External, step: &StepName, call: C) -> Result<T, Halt>
    where
        T: Serialize + DeserializeOwned,
        C: FnOnce(Call) -> F,
        F: Future<Output = Result<T, CallFault>>,
    {
        let intent = self.intent(step)?;
        self.attempt.observe.at(Point::Calling(step.as_str()));
        // Its holder may have slept since the intent was written, for longer than the provider remembers.
        let now = self.attempt.now()?;
        let too_old = external.resend.is_some_and(|resend| !resend.permits(now.since(intent.at)));
        if too_old || self.attempt.is_lost() {
            return Err(Halt::Lost("its holder was away for too long to make a call".into()));
        }
        let sending =
            Call { key: intent.key.clone(), fence: self.attempt.claim.fence(), body: intent.request.clone() };
        let answered = AssertUnwindSafe(async { call(sending).await }).catch_unwind().await;
        self.attempt.observe.at(Point::Answered(step.as_str()));
        let fault = match answered {
            Ok(Ok(result)) => return self.record(step.clone(), encoded(&result)?).await,
            Ok(Err(fault)) => fault,
            Err(_) => CallFault::Unknown("the call panicked".into()),
        };
        match failed(external, step, &intent, fault.failure(), self.attempt.now()?) {
            AfterFailure::Void => {
                self.attempt.note(vec![Event::NotSent { step: step.clone() }]).await?;
                Err(Halt::later(fault))
            }
            AfterFailure::Later => Err(Halt::later(fault)),
            AfterFailure::Uncertain(why) => Err(Halt::stopped(why)),
        }
    }

    async fn record<T: DeserializeOwned>(&self, step: StepName, result: Bytes) -> Result<T, Halt> {
        let name = step.clone();
        self.attempt.note(vec![Event::Result { step, result: result.clone() }]).await?;
        self.attempt.observe.at(Point::Recorded(name.as_str()));
        decoded(&result)
    }

    fn intent(&self, step: &StepName) -> Result<Intent, Halt> {
        let intent = self.attempt.progress().intent(step).cloned();
        intent.ok_or_else(|| Halt::astray(format!("the intent of `{step}` is not there")))
    }

    /// Goes on to `step`, which must be in the plan and not behind.
    pub(super) fn reach(&mut self, step: &StepName) -> Result<Kind, Halt> {
        let shape = &self.attempt.plan.shape;
        let Some((at, found)) = shape.find(step) else {
            return Err(Halt::astray(format!("`{step}` is not in the shape of the plan")));
        };
        if at < self.at {
            return Err(Halt::astray(format!("`{step}` was called after a later step")));
        }
        self.at = at;
        Ok(found.kind)
    }

    pub(super) fn next(&self, step: &StepName) -> Result<Next, Halt> {
        let now = self.attempt.now()?;
        let next = next(&self.attempt.progress(), &self.attempt.plan.shape, step, self.attempt.by, now);
        next.map_err(|refused| match refused {
            retrysafe_core::recovery::Refused::PlanChanged { .. } => {
                Halt::stopped(Stopped::PlanChanged { current: self.attempt.plan.shape.text() })
            }
            refused @ retrysafe_core::recovery::Refused::NoSuchStep(_) => Halt::astray(refused.to_string()),
        })
    }
}

impl<D> fmt::Debug for Steps<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").field("at", &self.at).finish_non_exhaustive()
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("fence", &self.fence).finish_non_exhaustive()
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asked(..)")
    }
}

pub(super) fn named(name: Result<StepName, retrysafe_core::recovery::BadName>) -> Result<StepName, Halt> {
    name.map_err(|fault| Halt::astray(fault.to_string()))
}
