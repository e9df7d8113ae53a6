//! The host of core's [`Hedge`]: attempts beside each other, the first result wins, the others are dropped.

use std::{pin::pin, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use retrysafe_core::retry::{Hedge, HedgePolicy, HedgeStep};

use crate::{
    drive::{Ended, Terms, standing_down},
    history::Scribe,
    http::{Attempts, Bodies, End, Progress, Transport},
    nested,
};

/// Runs a call with several attempts on their way. What may not be repeated is sent alone: core sees to that.
pub(crate) async fn hedge<T: Transport>(
    terms: &Terms<'_>,
    delay: Duration,
    attempts: &Attempts<'_, T>,
    mut bodies: Bodies<T::Stream>,
) -> Ended<End<T::Body>> {
    let host = terms.host;
    let began = host.now();
    let policy = standing_down(terms.policy);
    let deadline = terms.deadline.tighten(nested::inherited_deadline());
    let (mut call, mut step) =
        Hedge::open(&policy, HedgePolicy { delay }, terms.budget, terms.request, deadline, began);
    let mut scribe = Scribe::new(terms.target, terms.budget, began);
    let mut under_way = FuturesUnordered::new();
    let (mut sent, mut last) = (0, None);
    loop {
        step = match step {
            HedgeStep::Send { attempt, timeout } => {
                sent = attempt;
                let ends = retrysafe_core::retry::Deadline::within(host.now(), timeout);
                let mut bodies = Bodies { once: bodies.next(), again: None };
                under_way.push(async move {
                    let progress = Progress::default();
                    let work = pin!(attempts.send(attempt, timeout, &mut bodies, &progress));
                    (attempt, nested::attempt(ends, None, work).await.0)
                });
                call.next(host.now())
            }
            HedgeStep::Wait { until } => {
                let wait = until.since(host.now());
                let came = if under_way.is_empty() {
                    host.sleep(wait).await;
                    None
                } else {
                    host.within(wait, under_way.next()).await.flatten()
                };
                let now = host.now();
                match came {
                    None => call.next(now),
                    Some((attempt, (seen, end))) => {
                        last = end.or(last);
                        let next = call.observe(&seen, now);
                        if !matches!(next, HedgeStep::Finish(retrysafe_core::retry::Why::Done)) {
                            scribe.failed(attempt, &seen, None, now);
                        }
                        next
                    }
                }
            }
            HedgeStep::Finish(why) => {
                return Ended { why, last, history: scribe.history, attempts: sent };
            }
        };
    }
}
