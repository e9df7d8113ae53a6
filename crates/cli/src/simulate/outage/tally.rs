//! What is counted, second by second and in all.

use std::time::Duration;

use retrysafe_core::retry::{Mono, Stop, Why};

use super::server::Told;

/// One second.
pub(in crate::simulate) const BIN: Duration = Duration::from_secs(1);

/// What happened in one second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::simulate) struct Bin {
    /// Calls that began: each has one first attempt, however many layers there are.
    pub(in crate::simulate) calls: u64,
    /// Of those that began in it, the ones that succeeded in the end.
    pub(in crate::simulate) succeeded: u64,
    /// Requests that were sent.
    pub(in crate::simulate) attempts: u64,
    /// Pieces of work done for a client that still waited.
    pub(in crate::simulate) useful: u64,
    /// Pieces of work done for one that had given up.
    pub(in crate::simulate) wasted: u64,
    /// Effects beyond an operation's first.
    pub(in crate::simulate) duplicates: u64,
    /// Answers "in flight".
    pub(in crate::simulate) conflicts: u64,
    /// Stored answers given again.
    pub(in crate::simulate) replays: u64,
    /// Requests that found the queue full.
    pub(in crate::simulate) rejected: u64,
    /// The longest queue.
    pub(in crate::simulate) queue: u64,
}

/// How calls ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::simulate) struct Ends {
    pub(in crate::simulate) done: u64,
    /// All attempts used.
    pub(in crate::simulate) attempts: u64,
    /// The budget said no.
    pub(in crate::simulate) budget: u64,
    /// The deadline, or a wait beyond it.
    pub(in crate::simulate) deadline: u64,
    /// A rule.
    pub(in crate::simulate) rule: u64,
    /// Of all that did not succeed: it may have happened.
    pub(in crate::simulate) unknown: u64,
}

/// All of a run.
#[derive(Clone, PartialEq, Debug, Default)]
pub(in crate::simulate) struct Tally {
    pub(in crate::simulate) bins: Vec<Bin>,
    pub(in crate::simulate) ends: Ends,
    /// How long calls took that succeeded.
    latencies: Vec<Duration>,
}

impl Tally {
    pub(super) fn bin(&mut self, at: Mono) -> &mut Bin {
        let place = usize::try_from(at.since(Mono::START).as_secs()).unwrap_or(usize::MAX);
        if self.bins.len() <= place {
            self.bins.resize(place + 1, Bin::default());
        }
        &mut self.bins[place]
    }

    pub(super) fn told(&mut self, at: Mono, told: Told) {
        let bin = self.bin(at);
        match told {
            Told::Failed => {}
            Told::Rejected => bin.rejected += 1,
            Told::Conflict => bin.conflicts += 1,
            Told::Replay => bin.replays += 1,
        }
    }

    pub(super) fn ended(&mut self, began: Mono, at: Mono, why: &Why) {
        let stop = match why {
            Why::Done => {
                self.ends.done += 1;
                self.bin(began).succeeded += 1;
                self.latencies.push(at.since(began));
                return;
            }
            Why::Stopped(stop) => stop,
            Why::OutcomeUnknown(unknown) => {
                self.ends.unknown += 1;
                &unknown.because
            }
        };
        let ends = &mut self.ends;
        match stop {
            Stop::Attempts { .. } | Stop::Waits { .. } => ends.attempts += 1,
            Stop::Budget(_) => ends.budget += 1,
            Stop::Deadline { .. } | Stop::RetryAfter { .. } | Stop::Cancelled => ends.deadline += 1,
            Stop::Rule(_) => ends.rule += 1,
        }
    }

    /// Puts what was measured in an order that can be asked for quantiles.
    pub(super) fn close(&mut self) {
        self.latencies.sort_unstable();
    }

    /// The sum of one column.
    pub(in crate::simulate) fn sum(&self, column: impl Fn(&Bin) -> u64) -> u64 {
        self.bins.iter().map(column).sum()
    }

    /// The latency below which this part of the calls lies that succeeded; zero where none did.
    pub(in crate::simulate) fn latency(&self, part: f64) -> Duration {
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get((last as f64 * part).round() as usize).copied().unwrap_or_default()
    }

    /// The highest load over `seconds` in a row, as requests for each call that began, over the seconds in which calls begin.
    pub(in crate::simulate) fn load_max(&self, seconds: usize) -> f64 {
        let offered =
            &self.bins[..self.bins.iter().rposition(|bin| bin.calls > 0).map_or(0, |last| last + 1)];
        let ratio = |window: &[Bin]| {
            let calls: u64 = window.iter().map(|bin| bin.calls).sum();
            let attempts: u64 = window.iter().map(|bin| bin.attempts).sum();
            attempts as f64 / calls.max(1) as f64
        };
        offered.windows(seconds.max(1)).map(ratio).fold(0.0, f64::max)
    }

    /// When, counted from `after`, calls began to succeed for good: nine in ten of every second's. `None`: they never did.
    pub(in crate::simulate) fn recovered(&self, after: Duration) -> Option<Duration> {
        let start = usize::try_from(after.as_secs()).unwrap_or(usize::MAX);
        let late = self.bins.get(start..)?;
        let well = |bin: &Bin| bin.succeeded * 10 >= bin.calls * 9;
        let last = late.iter().rposition(|bin| bin.calls > 0)?;
        let bad = late[..=last].iter().rposition(|bin| bin.calls > 0 && !well(bin));
        match bad {
            Some(bad) if bad == last => None,
            Some(bad) => Some(BIN * u32::try_from(bad + 1).unwrap_or(u32::MAX)),
            None => Some(Duration::ZERO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(rows: &[(u64, u64, u64)]) -> Tally {
        let bins = rows.iter().map(|(calls, succeeded, attempts)| Bin {
            calls: *calls,
            succeeded: *succeeded,
            attempts: *attempts,
            ..Bin::default()
        });
        Tally { bins: bins.collect(), ..Tally::default() }
    }

    #[test]
    fn the_load_is_that_of_the_worst_window() {
        let tally = tally(&[(10, 10, 10), (10, 0, 40), (10, 0, 20), (0, 0, 50)]);
        assert!((tally.load_max(1) - 4.0).abs() < 1e-9);
        assert!((tally.load_max(2) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn recovery_is_for_good() {
        let rows = [(10, 10, 0), (10, 0, 0), (10, 10, 0), (10, 2, 0), (10, 10, 0), (10, 9, 0)];
        assert_eq!(tally(&rows).recovered(Duration::from_secs(1)), Some(Duration::from_secs(3)));
        assert_eq!(tally(&rows[..2]).recovered(Duration::from_secs(1)), None);
        assert_eq!(tally(&rows[4..]).recovered(Duration::ZERO), Some(Duration::ZERO));
    }
}
