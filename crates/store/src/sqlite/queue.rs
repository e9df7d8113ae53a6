//! The line of jobs in front of the writer, and how long it gathers company before a commit.
//!
//! One sync costs the same for one job as for sixty, so the writer wants all who are about to come. A lone client must
//! not wait for anybody, though. So the writer waits only while recent batches had company, until as many have come as
//! there were lately, and never longer than [`Pace::window`].

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Semaphore;

use super::jobs::Job;
use crate::{ErrorKind, StoreError};

/// The most jobs that wait. Who comes later waits for a place here, without a job.
const QUEUE_MAX: usize = 1024;

/// The shortest time worth waiting for company: below it, the wake-up itself costs more than it saves.
const WINDOW_MIN: Duration = Duration::from_micros(500);

/// The longest. On a disk whose sync takes longer, those who come late wait for the next batch.
const WINDOW_MAX: Duration = Duration::from_millis(5);

pub(super) struct Queue {
    line: Mutex<Line>,
    /// Told when [`Line::wake_at`] is reached, and when the queue closes.
    ready: Condvar,
    places: Semaphore,
}

struct Line {
    jobs: VecDeque<Box<dyn Job>>,
    /// At which length the writer wants to be woken: one wake-up for a batch, not one for each job.
    wake_at: usize,
    closed: bool,
}

impl Queue {
    pub(super) fn new() -> Self {
        let line = Line { jobs: VecDeque::new(), wake_at: usize::MAX, closed: false };
        Self { line: Mutex::new(line), ready: Condvar::new(), places: Semaphore::new(QUEUE_MAX) }
    }

    /// Puts `job` at the end of the line, waiting for a place there first.
    pub(super) async fn push(&self, job: Box<dyn Job>) -> Result<(), StoreError> {
        let closed = || StoreError::new(ErrorKind::Unavailable, "handing a write to a store that is closed");
        let place = self.places.acquire().await.map_err(|_| closed())?;
        let mut line = self.line();
        if line.closed {
            return Err(closed());
        }
        // Given back when the writer takes the job.
        place.forget();
        line.jobs.push_back(job);
        let wake = line.jobs.len() >= line.wake_at;
        drop(line);
        if wake {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// Waits for jobs as `pace` says. `false`: the queue is closed, and empty.
    pub(super) fn gather(&self, pace: &Pace) -> bool {
        let mut line = self.line();
        line.wake_at = 1;
        while line.jobs.is_empty() && !line.closed {
            line = self.ready.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        let until = Instant::now() + pace.window();
        line.wake_at = pace.expected;
        while line.jobs.len() < line.wake_at && !line.closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            line = self.ready.wait_timeout(line, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        line.wake_at = usize::MAX;
        !line.jobs.is_empty()
    }

    /// The next job, without waiting.
    pub(super) fn pop(&self) -> Option<Box<dyn Job>> {
        let job = self.line().jobs.pop_front();
        if job.is_some() {
            self.places.add_permits(1);
        }
        job
    }

    /// Those in line now, for a batch that fails before it begins: they have waited as long as the first.
    pub(super) fn pop_into(&self, jobs: &mut Vec<Box<dyn Job>>, max: usize) {
        while jobs.len() < max
            && let Some(job) = self.pop()
        {
            jobs.push(job);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.line().jobs.len()
    }

    /// No more jobs are taken; those in line still are done.
    pub(super) fn close(&self) {
        self.line().closed = true;
        self.places.close();
        self.ready.notify_all();
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much company to expect, from what was seen lately.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// So many jobs were under way at the last commit: in its batch, or in line behind it.
    expected: usize,
    commit_cost: Duration,
}

impl Pace {
    /// Nothing seen yet: nobody is waited for.
    pub(super) fn unknown() -> Self {
        Self { expected: 1, commit_cost: Duration::ZERO }
    }

    /// After a batch of `done` jobs, whose commit took `commit_cost`, while `waiting` came behind it.
    pub(super) fn observe(&mut self, done: usize, waiting: usize, commit_cost: Duration, batch_max: usize) {
        self.expected = (done + waiting).clamp(1, batch_max);
        self.commit_cost = commit_cost;
    }

    /// Waiting as long as a commit takes at most doubles what a job waits for its answer.
    fn window(&self) -> Duration {
        self.commit_cost.clamp(WINDOW_MIN, WINDOW_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_client_waits_for_nobody() {
        let mut pace = Pace::unknown();
        assert_eq!(pace.expected, 1);
        pace.observe(1, 0, Duration::from_millis(4), 256);
        assert_eq!(pace.expected, 1, "the first job reaches it");
    }

    #[test]
    fn company_is_waited_for_as_long_as_a_commit_takes_and_not_longer_than_the_bound() {
        let mut pace = Pace::unknown();
        pace.observe(40, 24, Duration::from_millis(4), 256);
        assert_eq!((pace.expected, pace.window()), (64, Duration::from_millis(4)));
        pace.observe(250, 100, Duration::from_secs(1), 256);
        assert_eq!((pace.expected, pace.window()), (256, WINDOW_MAX));
        // Company that has gone is forgotten after one batch.
        pace.observe(1, 0, Duration::from_micros(20), 256);
        assert_eq!((pace.expected, pace.window()), (1, WINDOW_MIN));
    }
}
