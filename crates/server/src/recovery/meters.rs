//! What recovery counts.

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use retrysafe_core::recovery::Attended;
use retrysafe_store::journal::{Sent, StagedCensus};

use super::{Pass, http::Ended};

/// Every counter of recovery, with its meaning. `docs/reference/metrics.md` has a row for each.
const COUNTERS: &[(&str, &str)] = &[
    ("retrysafe_attempts_total", "Attempts at requests of several steps, by who went on and how it ended"),
    ("retrysafe_orphans_total", "Abandoned requests that a completer took on, by what became of them"),
    ("retrysafe_staged_sent_total", "Sendings of staged effects, by how they ended"),
];

/// Every gauge of recovery.
const GAUGES: &[(&str, &str)] = &[
    ("retrysafe_orphans_due", "Abandoned requests of several steps that a completer found; seconds old"),
    (
        "retrysafe_orphans_waiting",
        "Abandoned requests that wait for their caller, or for a plan that is elsewhere",
    ),
    ("retrysafe_oldest_orphan_seconds", "How long the oldest of them has been abandoned"),
    ("retrysafe_staged", "Staged effects, by state; seconds old"),
];

pub(super) struct Meters {
    attempts: [[Counter; 5]; 2],
    orphans: [Counter; 4],
    staged_sent: [Counter; 3],
    due: Gauge,
    caller: Gauge,
    oldest: Gauge,
    waiting: Gauge,
    dead: Gauge,
}

const ENDS: [&str; 5] = ["answered", "later", "uncertain", "stale", "lost"];

impl Meters {
    pub(super) fn new() -> Self {
        for (name, help) in COUNTERS {
            describe_counter!(*name, *help);
        }
        for (name, help) in GAUGES {
            describe_gauge!(*name, *help);
        }
        Self {
            attempts: ["retry", "completer"]
                .map(|by| ENDS.map(|end| counter!("retrysafe_attempts_total", "by" => by, "as" => end))),
            orphans: ["completed", "later", "closed", "uncertain"]
                .map(|end| counter!("retrysafe_orphans_total", "as" => end)),
            staged_sent: ["sent", "later", "given_up"]
                .map(|end| counter!("retrysafe_staged_sent_total", "as" => end)),
            due: gauge!("retrysafe_orphans_due"),
            caller: gauge!("retrysafe_orphans_waiting"),
            oldest: gauge!("retrysafe_oldest_orphan_seconds"),
            waiting: gauge!("retrysafe_staged", "state" => "waiting"),
            dead: gauge!("retrysafe_staged", "state" => "given_up"),
        }
    }

    pub(super) fn attempted(&self, by: Attended, ended: &Ended) {
        let by = match by {
            Attended::Retry => 0,
            Attended::Completer => 1,
        };
        let end = match ended {
            Ended::Answered(_) => 0,
            Ended::Later => 1,
            Ended::Stopped => 2,
            Ended::Stale => 3,
            Ended::Lost(_) => 4,
        };
        self.attempts[by][end].increment(1);
    }

    #[allow(clippy::cast_precision_loss)] // counts are far below 2^53
    pub(super) fn passed(&self, pass: &Pass) {
        for (counter, count) in
            self.orphans.iter().zip([pass.completed, pass.later, pass.closed, pass.stopped])
        {
            counter.increment(count as u64);
        }
        self.due.set(pass.looked_at as f64);
        self.caller.set(pass.waiting as f64);
        self.oldest.set(pass.oldest.as_secs_f64());
    }

    pub(super) fn drained(&self, sent: &Sent) {
        let end = match sent {
            Sent::Yes => 0,
            Sent::Later(..) => 1,
            Sent::Never(_) => 2,
        };
        self.staged_sent[end].increment(1);
    }

    #[allow(clippy::cast_precision_loss)]
    pub(super) fn staged(&self, census: StagedCensus) {
        self.waiting.set(census.waiting as f64);
        self.dead.set(census.dead as f64);
    }
}
