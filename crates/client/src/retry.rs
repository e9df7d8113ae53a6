//! Retries for any call: a database, a queue, a library of somebody else's.
//!
//! ```
//! use retrysafe_client::{Retries, retry};
//! use retrysafe_core::retry::Idempotence;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! // One for each target, kept: all calls to it share its budget.
//! let retries = Retries::to("ledger").idempotence(Idempotence::Safe);
//!
//! let mut answers = vec![Ok(7), Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))];
//! let balance = retry(&retries, |_attempt| {
//!     let answer = answers.pop().unwrap();
//!     async move { answer }
//! });
//! let balance = balance.await.unwrap();
//! assert_eq!(balance, 7);
//! # });
//! ```
//!
//! Unless it is said otherwise a call is taken for one that must not be repeated: what was refused is sent again, what may
//! have happened is reported as [`Failed::OutcomeUnknown`].

use std::{fmt, sync::Arc, time::Duration};

use retrysafe_core::retry::{
    Budget, Deadline, Idempotence, Lost, Mono, NotSent, Plan, Reach, Request, RetryPolicy, Seen, Stop,
    Unknown, Why,
};

use crate::{
    drive::{Exchange, Terms, drive},
    history::History,
    host::Host,
    limits::{Limiters, Limits},
};

/// How calls to one target are retried: a policy, and the budget that they share. Cloning shares it too.
#[derive(Clone, Debug)]
pub struct Retries {
    target: Arc<str>,
    policy: RetryPolicy,
    budget: Budget,
    request: Request,
    limiters: Limiters,
    host: Host,
}

/// One attempt, as the operation sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Which, from 1.
    pub number: u32,
    /// It is given up after this long.
    pub timeout: Duration,
}

/// An error that tells what became of the attempt.
pub trait AttemptError {
    /// What happened, as far as this error tells. When in doubt, it may have happened.
    fn seen(&self) -> Seen;
}

/// A call that did not end well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failed<E> {
    /// It is known that the last error is all there is.
    Stopped {
        /// What ended the call.
        because: Stop,
        /// The last error; `None` where the time ran out first.
        error: Option<E>,
        /// What happened.
        history: History,
    },
    /// It may have happened: a result of its own, never a mere timeout.
    OutcomeUnknown {
        /// Attempts, reach, and what ended the call.
        unknown: Unknown,
        /// The last error; `None` where the time ran out first.
        error: Option<E>,
        /// What happened.
        history: History,
    },
}

impl Retries {
    /// The default policy, and a full budget of its own, for calls to this target. The name is for logs.
    pub fn to(target: &str) -> Self {
        Self {
            target: target.into(),
            policy: RetryPolicy::default(),
            budget: Budget::default(),
            request: Request::new(Idempotence::Unsafe),
            limiters: Limiters::default(),
            host: Host::default(),
        }
    }

    /// With another policy.
    #[must_use]
    pub fn policy(self, policy: RetryPolicy) -> Self {
        Self { policy, ..self }
    }

    /// With a budget that somebody else shares.
    #[must_use]
    pub fn budget(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    /// Whether these calls may be repeated after an unknown outcome.
    #[must_use]
    pub fn idempotence(self, idempotence: Idempotence) -> Self {
        Self { request: Request { idempotence, ..self.request }, ..self }
    }

    /// With a circuit breaker, a rate limiter or a bulkhead in front of each attempt.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Self { limiters: Limiters::new(&limits), ..self }
    }

    /// With another clock, sleeper or seed.
    #[must_use]
    pub fn host(self, host: Host) -> Self {
        Self { host, ..self }
    }

    #[cfg(feature = "tonic")]
    pub(crate) fn target(&self) -> &str {
        &self.target
    }

    /// The schedule and the worst case, before anything runs.
    pub fn explain(&self) -> Plan {
        self.policy.explain()
    }
}

/// Runs `op` until it succeeds or nothing more can be done. The operation must not make its key itself: one for each
/// attempt is none.
///
/// # Errors
/// [`Failed`].
pub async fn retry<T, E, Op, Fut>(retries: &Retries, op: Op) -> Result<T, Failed<E>>
where
    E: AttemptError + Send,
    T: Send,
    Op: FnMut(Attempt) -> Fut + Send,
    Fut: Future<Output = Result<T, E>> + Send,
{
    retry_by(retries, op, E::seen).await
}

/// [`retry`], with a function that says what an error means.
///
/// # Errors
/// [`Failed`].
pub async fn retry_by<T, E, Op, Fut, Judge>(retries: &Retries, op: Op, judge: Judge) -> Result<T, Failed<E>>
where
    E: Send,
    T: Send,
    Op: FnMut(Attempt) -> Fut + Send,
    Fut: Future<Output = Result<T, E>> + Send,
    Judge: Fn(&E) -> Seen + Send + Sync,
{
    let terms = Terms {
        target: &retries.target,
        policy: &retries.policy,
        budget: &retries.budget,
        request: retries.request,
        deadline: Deadline::UNSET,
        host: &retries.host,
    };
    let mut plain = Plain { op, judge, retries };
    let ended = drive(&terms, &mut plain).await;
    let history = ended.history;
    match (ended.why, ended.last) {
        (Why::Done, Some(Ok(value))) => Ok(value),
        (Why::OutcomeUnknown(unknown), last) => {
            Err(Failed::OutcomeUnknown { unknown, error: last.and_then(Result::err), history })
        }
        (Why::Stopped(because), last) => {
            Err(Failed::Stopped { because, error: last.and_then(Result::err), history })
        }
        (Why::Done, last) => Err(Failed::Stopped {
            because: Stop::Rule(retrysafe_core::retry::Rule::Fault),
            error: last.and_then(Result::err),
            history,
        }),
    }
}

struct Plain<'a, Op, Judge> {
    op: Op,
    judge: Judge,
    retries: &'a Retries,
}

impl<T, E, Op, Fut, Judge> Exchange for Plain<'_, Op, Judge>
where
    E: Send,
    T: Send,
    Op: FnMut(Attempt) -> Fut + Send,
    Fut: Future<Output = Result<T, E>> + Send,
    Judge: Fn(&E) -> Seen + Send + Sync,
{
    type End = Result<T, E>;

    async fn send(&mut self, number: u32, timeout: Duration) -> (Seen, Option<Self::End>) {
        let Retries { host, limiters, .. } = self.retries;
        let began = if limiters.any() { host.now() } else { Mono::START };
        let admitted = match limiters.admit(host, timeout).await {
            Ok(admitted) => admitted,
            Err(held) => return (held, None),
        };
        // A wait for a place has eaten into the attempt's time.
        let timeout = if limiters.any() { began.plus(timeout).since(host.now()) } else { timeout };
        let work = (self.op)(Attempt { number, timeout });
        let (seen, end) = match host.within(timeout, work).await {
            Some(Ok(value)) => (Seen::status(200), Some(Ok(value))),
            Some(Err(error)) => ((self.judge)(&error), Some(Err(error))),
            None => (Seen::lost(Lost::Timeout, Reach::Whole), None),
        };
        if limiters.any() {
            admitted.ended(&seen, host.now());
        }
        (seen, end)
    }

    async fn poll(&mut self, _: &str, _: Duration) -> (Seen, Option<Self::End>) {
        // Only an answer with a status URL makes a call poll, and a plain operation has none.
        (Seen { outcome: retrysafe_core::retry::Outcome::Fault, reach: Reach::Nothing }, None)
    }

    fn reach(&self) -> Reach {
        Reach::Whole
    }
}

impl AttemptError for std::io::Error {
    fn seen(&self) -> Seen {
        use std::io::ErrorKind as Kind;
        match self.kind() {
            Kind::ConnectionRefused => Seen::not_sent(NotSent::Refused),
            Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::NetworkDown | Kind::AddrNotAvailable => {
                Seen::not_sent(NotSent::Connect)
            }
            Kind::TimedOut => Seen::lost(Lost::Timeout, Reach::Whole),
            Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => {
                Seen::lost(Lost::Reset, Reach::Whole)
            }
            Kind::UnexpectedEof => Seen::lost(Lost::Closed, Reach::Whole),
            Kind::NotFound | Kind::PermissionDenied | Kind::InvalidInput | Kind::Unsupported => {
                Seen { outcome: retrysafe_core::retry::Outcome::Fault, reach: Reach::Nothing }
            }
            _ => Seen::lost(Lost::Other, Reach::Whole),
        }
    }
}

impl<E> Failed<E> {
    /// The last error.
    pub fn error(&self) -> Option<&E> {
        match self {
            Failed::Stopped { error, .. } | Failed::OutcomeUnknown { error, .. } => error.as_ref(),
        }
    }

    /// What happened, attempt by attempt.
    pub fn history(&self) -> &History {
        match self {
            Failed::Stopped { history, .. } | Failed::OutcomeUnknown { history, .. } => history,
        }
    }
}

impl<E: fmt::Display> fmt::Display for Failed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Stopped { because, error, .. } => {
                write!(f, "{because}")?;
                error.as_ref().map_or(Ok(()), |error| write!(f, "; the last error: {error}"))
            }
            Failed::OutcomeUnknown { unknown, error, .. } => {
                write!(f, "{}", Why::OutcomeUnknown(unknown.clone()))?;
                error.as_ref().map_or(Ok(()), |error| write!(f, "; the last error: {error}"))
            }
        }
    }
}

impl<E: fmt::Display + fmt::Debug> std::error::Error for Failed<E> {}
