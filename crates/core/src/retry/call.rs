//! One logical call: what to do next, given what happened (design 8).
//!
//! The host sends and sleeps; the call decides. It holds its place in the budget and the permit of its last retry, so that
//! dropping it, for whatever reason, puts both right.

use std::time::Duration;

use super::{
    after::Hint,
    backoff::Pace,
    budget::{Budget, Entry, Permit},
    classify::{Verdict, judge},
    deadline::{Deadline, Mono},
    policy::{Exhausted, RetryPolicy},
    poll::{Polled, judge_poll},
    seen::{NotSent, Outcome, Reach, Request, Seen},
    undecided::Undecided,
    why::{Rule, Stop, Why},
};

/// How often a call waits for an operation in flight, a status URL or a limiter of its own. The deadline ends it long
/// before; this ends a server that says "come back at once" for ever.
pub const WAITS_MAX: u32 = 1_000;

/// What the host does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send the request, the same bytes under the same key, and [`Call::observe`] what came of it.
    Send {
        /// Which attempt this is, from 1.
        attempt: u32,
        /// Give up on it after this long: an outcome of [`super::Lost::Timeout`].
        timeout: Duration,
    },
    /// Sleep, then call [`Call::woke`].
    Sleep(Pause),
    /// Ask this status URL with a GET, and [`Call::observe`] what came of it.
    Poll {
        /// Where. May be relative to the request's own URL.
        url: Box<str>,
        /// Give up on it after this long.
        timeout: Duration,
    },
    /// The end.
    Finish(Why),
}

/// A sleep, with what a log line about it says: attempt, reason, delay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pause {
    /// How long.
    pub delay: Duration,
    /// Attempts sent so far.
    pub attempts: u32,
    /// What for.
    pub cause: Cause,
    /// The wait that the server, or a limiter of our own, asked for.
    pub asked: Option<Duration>,
}

/// What a sleep is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// The next attempt.
    Retry(Pace),
    /// The operation is in flight, or a status URL has to be asked again.
    InFlight,
    /// A limiter of our own is closed.
    Held,
    /// The budget is used up; the call ends after this ([`Exhausted::Pace`]).
    Exhausted,
}

/// One logical call over all its attempts.
///
/// ```
/// use retrysafe_core::retry::*;
/// use std::time::Duration;
///
/// let (policy, budget) = (RetryPolicy::default(), Budget::default());
/// let request = Request::new(Idempotence::Unsafe);
/// let (mut call, step) = Call::open(&policy, &budget, request, Deadline::UNSET, Mono::START);
/// assert_eq!(step, Step::Send { attempt: 1, timeout: Duration::from_secs(30) });
///
/// // The answer to a payment without a key got lost. It is not sent again, and that is no mere timeout.
/// let lost = Seen::lost(Lost::Timeout, Reach::Whole);
/// let Step::Finish(Why::OutcomeUnknown(unknown)) = call.observe(&lost, 7, Mono::START) else { panic!() };
/// assert_eq!(unknown.because, Stop::Rule(Rule::UnsafeToRepeat));
/// ```
#[derive(Debug)]
pub struct Call {
    policy: RetryPolicy,
    request: Request,
    deadline: Deadline,
    /// Before the entry, since fields are dropped in this order: a call that left before its retry would make one retry
    /// more than there are calls, for as long as it takes to be seen.
    permit: Option<Permit>,
    entry: Entry,
    /// Attempts sent, for whatever reason.
    attempts: u32,
    /// Retries paid for: these count against the policy's limit.
    retries: u32,
    waits: u32,
    /// Place in the schedule; a pushback restarts it.
    place: u32,
    last_sleep: Duration,
    undecided: Undecided,
    phase: Phase,
}

#[derive(Clone, Debug)]
enum Phase {
    Sending,
    Polling(Box<str>),
    Sleeping { until: Mono, pause: Pause, then: Then },
    Ended(Why),
}

#[derive(Clone, Debug)]
enum Then {
    Send,
    Poll(Box<str>),
    End(Why),
}

impl Call {
    /// Opens a call and says what to do first. The policy's elapsed time tightens `deadline`; the budget counts the first
    /// attempt and never blocks it.
    pub fn open(
        policy: &RetryPolicy,
        budget: &Budget,
        request: Request,
        deadline: Deadline,
        now: Mono,
    ) -> (Call, Step) {
        let mut call = Call {
            policy: *policy,
            request,
            deadline: deadline.tighten(Deadline::within(now, policy.elapsed)),
            entry: budget.enter(now),
            permit: None,
            attempts: 0,
            retries: 0,
            waits: 0,
            place: 0,
            last_sleep: Duration::ZERO,
            undecided: Undecided::default(),
            phase: Phase::Sending,
        };
        let step = call.send(now);
        (call, step)
    }

    /// What an attempt or a poll came to. `entropy` is uniform over its whole range, and fresh each time.
    ///
    /// Observing while the call sleeps is a fault of the host, and ends the call: sending on a guess is worse.
    pub fn observe(&mut self, seen: &Seen, entropy: u64, now: Mono) -> Step {
        match &self.phase {
            Phase::Sending => self.attempted(seen, entropy, now),
            Phase::Polling(url) => {
                let url = url.clone();
                self.polled(url, seen, entropy, now)
            }
            Phase::Sleeping { .. } => {
                self.undecided.raise(seen.reach);
                self.stop(Stop::Rule(Rule::Fault))
            }
            Phase::Ended(why) => Step::Finish(why.clone()),
        }
    }

    /// The sleep is over. What is left until the deadline is computed only now. Waking early gives the rest of the sleep:
    /// no host can shorten what a server asked for.
    pub fn woke(&mut self, now: Mono) -> Step {
        match self.phase.clone() {
            Phase::Sleeping { until, pause, .. } if now < until => {
                Step::Sleep(Pause { delay: until.since(now), ..pause })
            }
            Phase::Sleeping { then: Then::Send, .. } => self.send(now),
            Phase::Sleeping { then: Then::Poll(url), .. } => self.poll(url, now),
            Phase::Sleeping { then: Then::End(why), .. } => self.end(why),
            Phase::Sending | Phase::Polling(_) => {
                // A fault of the host, which has lost sight of an attempt on its way.
                self.undecided.raise(Reach::Whole);
                self.stop(Stop::Rule(Rule::Fault))
            }
            Phase::Ended(why) => Step::Finish(why),
        }
    }

    /// The caller gives up, `reach` of the present attempt being on its way ([`Reach::Nothing`] while the call sleeps). A
    /// cancellation is no outcome and is never retried (I-52), but what was sent may have happened (I-72).
    pub fn abandon(mut self, reach: Reach) -> Why {
        if let Phase::Ended(why) = &self.phase {
            return why.clone();
        }
        if matches!(self.phase, Phase::Sending) {
            self.undecided.raise(reach);
        }
        self.conclude(Stop::Cancelled)
    }

    /// The instant by which the call has ended: what nested calls inherit.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Attempts sent so far.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    fn attempted(&mut self, seen: &Seen, entropy: u64, now: Mono) -> Step {
        let (verdict, doubt) = judge(&self.policy, self.request, seen);
        self.undecided.hear(doubt, seen.reach);
        let hint = seen.hint();
        // What HTTP/2 promises was not processed is no failure of the target (A6: a transparent retry).
        let transparent = matches!(seen.outcome, Outcome::NotSent(NotSent::RefusedStream | NotSent::GoAway));
        if (matches!(verdict, Verdict::Retry(_)) && !transparent) || hint == Hint::Never {
            self.entry.failed();
        }
        match verdict {
            Verdict::Done => {
                self.entry.succeeded(self.permit.take());
                self.end(Why::Done)
            }
            Verdict::Stop(rule) => {
                self.uncount(seen);
                self.stop(Stop::Rule(rule))
            }
            Verdict::Retry(pace) => self.retry(pace, hint, entropy, now),
            Verdict::Wait => {
                self.uncount(seen);
                let (then, cause) = match &seen.outcome {
                    Outcome::Answered(answer) => match &answer.status_url {
                        Some(url) => (Then::Poll(url.clone()), Cause::InFlight),
                        None => (Then::Send, Cause::InFlight),
                    },
                    _ => (Then::Send, Cause::Held),
                };
                self.wait(then, cause, hint, entropy, now)
            }
        }
    }

    /// What a limiter of our own kept back was no attempt, and cost nothing.
    fn uncount(&mut self, seen: &Seen) {
        if matches!(seen.outcome, Outcome::Held { .. }) {
            self.attempts -= 1;
            if let Some(permit) = &mut self.permit {
                permit.not_sent();
            }
        }
    }

    fn polled(&mut self, url: Box<str>, seen: &Seen, entropy: u64, now: Mono) -> Step {
        let then = match judge_poll(&self.policy, seen) {
            Polled::Done => {
                self.entry.succeeded(self.permit.take());
                return self.end(Why::Done);
            }
            Polled::Settled(rule) => {
                self.undecided.settle();
                return self.stop(Stop::Rule(rule));
            }
            Polled::Stop(rule) => return self.stop(Stop::Rule(rule)),
            Polled::Gone => Then::Send,
            Polled::Again(moved) => Then::Poll(moved.unwrap_or(url)),
        };
        self.wait(then, Cause::InFlight, seen.hint(), entropy, now)
    }

    fn retry(&mut self, pace: Pace, hint: Hint, entropy: u64, now: Mono) -> Step {
        let limit = self.policy.attempts.get();
        if self.retries + 1 >= limit {
            return self.stop(Stop::Attempts { limit });
        }
        let backoff = &self.policy.backoff;
        let own = backoff.delay(pace, self.place, self.last_sleep, entropy);
        let delay = self.policy.obey(hint, own, backoff.bound(pace, self.place), entropy);
        let delay = match self.fit(delay, hint, now) {
            Ok(delay) => delay,
            Err(stop) => return self.stop(stop),
        };
        if let Some(last) = self.permit.take() {
            last.spend();
        }
        match self.entry.take(pace, now) {
            Ok(permit) => self.permit = Some(permit),
            Err(denied) => {
                let stop = Stop::Budget(denied);
                return match self.policy.exhausted {
                    Exhausted::FailFast => self.stop(stop),
                    Exhausted::Pace => {
                        let why = self.conclude(stop);
                        self.sleep(delay, Cause::Exhausted, hint, Then::End(why), now)
                    }
                };
            }
        }
        self.retries += 1;
        if matches!(hint, Hint::Pushback(_)) {
            (self.place, self.last_sleep) = (0, Duration::ZERO);
        } else {
            (self.place, self.last_sleep) = (self.place.saturating_add(1), own);
        }
        self.sleep(delay, Cause::Retry(pace), hint, Then::Send, now)
    }

    /// Waiting is not retrying: the operation runs, and the server said to come back. It costs no budget and no attempt,
    /// and it is never done at once, whatever the jitter says.
    fn wait(&mut self, then: Then, cause: Cause, hint: Hint, entropy: u64, now: Mono) -> Step {
        if self.waits >= WAITS_MAX {
            return self.stop(Stop::Waits { limit: WAITS_MAX });
        }
        let backoff = &self.policy.backoff;
        let own = backoff.delay(Pace::Transient, self.waits, self.last_sleep, entropy);
        let bound = backoff.bound(Pace::Transient, self.waits);
        let delay = self.policy.obey(hint, own, bound, entropy).max(backoff.base);
        let delay = match self.fit(delay, hint, now) {
            Ok(delay) => delay,
            Err(stop) => return self.stop(stop),
        };
        self.waits += 1;
        self.sleep(delay, cause, hint, then, now)
    }

    /// The delay, where an attempt still fits after it. Where only the jitter on top of a hint is too much, less of it.
    fn fit(&self, delay: Duration, hint: Hint, now: Mono) -> Result<Duration, Stop> {
        let useful = self.policy.useful_attempt.max(Duration::from_nanos(1));
        let left = self.deadline.left(now);
        let fits = |delay| self.deadline.fits(now, delay, useful);
        match hint.delay() {
            _ if fits(delay) => Ok(delay),
            Some(asked) if asked <= delay && fits(asked) => Ok(left.saturating_sub(useful)),
            Some(asked) if asked <= delay => Err(Stop::RetryAfter { asked, left }),
            _ => Err(Stop::Deadline { wait: delay, left }),
        }
    }

    fn sleep(&mut self, delay: Duration, cause: Cause, hint: Hint, then: Then, now: Mono) -> Step {
        let pause = Pause { delay, attempts: self.attempts, cause, asked: hint.delay() };
        self.phase = Phase::Sleeping { until: now.plus(delay), pause, then };
        Step::Sleep(pause)
    }

    fn send(&mut self, now: Mono) -> Step {
        let Some(timeout) = self.timeout(now) else { return self.too_late(now) };
        self.attempts += 1;
        if let Some(permit) = &mut self.permit {
            permit.sent();
        }
        self.phase = Phase::Sending;
        Step::Send { attempt: self.attempts, timeout }
    }

    fn poll(&mut self, url: Box<str>, now: Mono) -> Step {
        let Some(timeout) = self.timeout(now) else { return self.too_late(now) };
        self.phase = Phase::Polling(url.clone());
        Step::Poll { url, timeout }
    }

    fn timeout(&self, now: Mono) -> Option<Duration> {
        self.deadline.attempt_timeout(now, self.policy.attempt_timeout, self.policy.useful_attempt)
    }

    fn too_late(&mut self, now: Mono) -> Step {
        self.stop(Stop::Deadline { wait: Duration::ZERO, left: self.deadline.left(now) })
    }

    fn stop(&mut self, stop: Stop) -> Step {
        let why = self.conclude(stop);
        self.end(why)
    }

    fn conclude(&self, because: Stop) -> Why {
        self.undecided.conclude(self.request.idempotence, self.attempts, because)
    }

    fn end(&mut self, why: Why) -> Step {
        self.permit = None;
        self.phase = Phase::Ended(why.clone());
        Step::Finish(why)
    }
}
