//! Hedging: a second attempt before the first one has failed.
//!
//! For reads, and keyed writes, whose slowest hundredth matters. A hedge is a retry that does not wait for the reason, so
//! it passes the same gate (never hedge what may not be retried: it is sent alone then), pays into the same budget, and
//! ends at the same deadline. It follows gRPC's A6 (V5), with one difference: "in flight" from a second attempt is
//! good news, since the first one is running.
//!
//! ```
//! use retrysafe_core::retry::*;
//! use std::time::Duration;
//!
//! let at = |ms| Mono::from_elapsed(Duration::from_millis(ms));
//! let (policy, budget, request) = (RetryPolicy::default(), Budget::default(), Request::new(Idempotence::Keyed));
//! let hedging = HedgePolicy { delay: Duration::from_millis(500) };
//! let (mut hedge, step) = Hedge::open(&policy, hedging, &budget, request, Deadline::UNSET, at(0));
//! assert!(matches!(step, HedgeStep::Send { attempt: 1, .. }));
//! assert_eq!(hedge.next(at(0)), HedgeStep::Wait { until: at(500) });
//! assert!(matches!(hedge.next(at(500)), HedgeStep::Send { attempt: 2, .. }));
//! assert_eq!(hedge.observe(&Seen::status(200), at(620)), HedgeStep::Finish(Why::Done));
//! ```

use std::time::Duration;

use super::{
    after::Hint,
    backoff::Pace,
    budget::{Budget, Denied, Entry, Permit},
    classify::{Doubt, Verdict, judge},
    deadline::{Deadline, Mono},
    policy::RetryPolicy,
    seen::{Body, Reach, Request, Seen},
    undecided::Undecided,
    why::{Rule, Stop, Why},
};

/// When further attempts start. How many there are at most, and how long all may take, is the retry policy's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HedgePolicy {
    /// Time between the starts of two attempts. Good values are near the 95th percentile: lower ones double the load.
    pub delay: Duration,
}

/// What the host does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HedgeStep {
    /// Send another attempt beside those on their way, then ask [`Hedge::next`].
    Send {
        /// Which attempt this is, from 1.
        attempt: u32,
        /// Give up on it after this long.
        timeout: Duration,
    },
    /// Wait for an outcome ([`Hedge::observe`]) or this instant ([`Hedge::next`]), whichever is first.
    Wait {
        /// Until when.
        until: Mono,
    },
    /// The end. Attempts still on their way are to be dropped.
    Finish(Why),
}

/// One logical call with several attempts on their way.
#[derive(Debug)]
pub struct Hedge {
    policy: RetryPolicy,
    delay: Duration,
    request: Request,
    deadline: Deadline,
    /// Before the entry, as in [`Call`](super::Call).
    permits: Vec<Permit>,
    entry: Entry,
    attempts: u32,
    /// Attempts on their way.
    active: u32,
    /// When the next attempt starts; `None`: no more do.
    due: Option<Mono>,
    denied: Option<Denied>,
    undecided: Undecided,
    ended: Option<Why>,
}

impl Hedge {
    /// Opens a call and sends its first attempt.
    pub fn open(
        policy: &RetryPolicy,
        hedging: HedgePolicy,
        budget: &Budget,
        request: Request,
        deadline: Deadline,
        now: Mono,
    ) -> (Hedge, HedgeStep) {
        let mut hedge = Hedge {
            policy: *policy,
            delay: hedging.delay,
            request,
            deadline: deadline.tighten(Deadline::within(now, policy.elapsed)),
            entry: budget.enter(now),
            permits: Vec::new(),
            attempts: 0,
            active: 0,
            due: Some(now),
            denied: None,
            undecided: Undecided::default(),
            ended: None,
        };
        let step = hedge.next(now);
        (hedge, step)
    }

    /// What to do now, when nothing has come back since.
    pub fn next(&mut self, now: Mono) -> HedgeStep {
        if let Some(why) = &self.ended {
            return HedgeStep::Finish(why.clone());
        }
        if self.deadline.left(now).is_zero() {
            return self.stop(Stop::Deadline { wait: Duration::ZERO, left: Duration::ZERO });
        }
        match self.due {
            Some(due) if due <= now => self.send(now),
            due => {
                HedgeStep::Wait { until: due.unwrap_or(self.deadline.instant()).min(self.deadline.instant()) }
            }
        }
    }

    /// One of the attempts on their way has come to this.
    pub fn observe(&mut self, seen: &Seen, now: Mono) -> HedgeStep {
        if let Some(why) = &self.ended {
            return HedgeStep::Finish(why.clone());
        }
        self.active = self.active.saturating_sub(1);
        let (verdict, doubt) = judge(&self.policy, self.request, seen);
        self.undecided.hear(doubt, seen.reach);
        let hint = seen.hint();
        match verdict {
            Verdict::Done => {
                self.entry.succeeded(self.permits.pop());
                return self.end(Why::Done);
            }
            // No new attempts, but those on their way may still bring the answer.
            Verdict::Stop(Rule::ToldNotTo) => {
                self.entry.failed();
                self.due = None;
                if self.active == 0 {
                    return self.stop(Stop::Rule(Rule::ToldNotTo));
                }
            }
            Verdict::Stop(rule) => {
                if doubt == Doubt::Settled {
                    self.active = 0;
                }
                return self.stop(Stop::Rule(rule));
            }
            Verdict::Retry(_) => {
                self.entry.failed();
                // Waiting out the hedging delay after a failure helps nobody (I-34).
                self.postpone(hint.delay().unwrap_or_default(), now);
            }
            Verdict::Wait => self.postpone(hint.delay().unwrap_or_default().max(self.delay), now),
        }
        let exhausted = self.attempts >= self.policy.attempts.get();
        if exhausted {
            self.due = None;
        }
        match (self.active, self.due, self.denied) {
            (0, None, Some(denied)) => self.stop(Stop::Budget(denied)),
            (0, None, None) => self.stop(Stop::Attempts { limit: self.policy.attempts.get() }),
            (0, Some(due), _) if !self.deadline.fits(now, due.since(now), self.policy.useful_attempt) => {
                let left = self.deadline.left(now);
                self.stop(match hint {
                    Hint::Wait(asked) | Hint::Pushback(asked) => Stop::RetryAfter { asked, left },
                    Hint::None | Hint::Never => Stop::Deadline { wait: due.since(now), left },
                })
            }
            _ => self.next(now),
        }
    }

    /// The caller gives up, with whatever is on its way.
    pub fn abandon(mut self) -> Why {
        match self.stop(Stop::Cancelled) {
            HedgeStep::Finish(why) => why,
            HedgeStep::Send { .. } | HedgeStep::Wait { .. } => Why::Stopped(Stop::Cancelled),
        }
    }

    fn postpone(&mut self, delay: Duration, now: Mono) {
        // Once the budget said no, or the server "do not", there are no more hedges.
        if self.due.is_some() {
            self.due = Some(now.plus(delay));
        }
    }

    fn send(&mut self, now: Mono) -> HedgeStep {
        let cap = self.policy.attempt_timeout;
        let Some(timeout) = self.deadline.attempt_timeout(now, cap, self.policy.useful_attempt) else {
            self.due = None;
            return self.rest(now);
        };
        if self.attempts > 0 {
            match self.entry.take(Pace::Transient, now) {
                Ok(mut permit) => {
                    permit.sent();
                    self.permits.push(permit);
                }
                Err(denied) => {
                    (self.due, self.denied) = (None, Some(denied));
                    return self.rest(now);
                }
            }
        }
        self.attempts += 1;
        self.active += 1;
        self.due = self.more().then(|| now.plus(self.delay));
        HedgeStep::Send { attempt: self.attempts, timeout }
    }

    /// Nothing more is sent: wait for what is on its way, or end at once (I-33).
    fn rest(&mut self, now: Mono) -> HedgeStep {
        if self.active > 0 {
            return self.next(now);
        }
        let left = self.deadline.left(now);
        self.stop(self.denied.map_or(Stop::Deadline { wait: Duration::ZERO, left }, Stop::Budget))
    }

    /// Whether another attempt may start beside those on their way.
    fn more(&self) -> bool {
        let permitted = self.request.idempotence.may_repeat() && self.request.body == Body::Replayable;
        permitted && self.attempts < self.policy.attempts.get()
    }

    fn stop(&mut self, because: Stop) -> HedgeStep {
        if let Some(why) = &self.ended {
            return HedgeStep::Finish(why.clone());
        }
        if self.active > 0 {
            self.undecided.raise(Reach::Whole);
        }
        self.end(self.undecided.conclude(self.request.idempotence, self.attempts, because))
    }

    fn end(&mut self, why: Why) -> HedgeStep {
        self.permits.clear();
        self.ended = Some(why.clone());
        HedgeStep::Finish(why)
    }
}
