//! What `retrysafe recover` counts: the names that a service uses for the same things.

use metrics::{Counter, Gauge, counter, gauge};
use retrysafe_core::orphans::Trend;
use retrysafe_store::Census;

use super::ask::Became;
use super::round::Round;

pub(super) struct Meters {
    reaped: Counter,
    marked: Counter,
    became: [Option<Counter>; Became::ALL.len()],
    due: Gauge,
    oldest: Gauge,
    records: [Gauge; 3],
    rates: [Gauge; 2],
}

impl Meters {
    pub(super) fn new() -> Self {
        Self {
            reaped: counter!("retrysafe_reaped_total"),
            marked: counter!("retrysafe_marked_uncertain_total"),
            // What the service did it counts itself; who was second did nothing.
            became: Became::ALL.map(|(name, became)| match became {
                Became::Lost | Became::Left => None,
                _ => Some(counter!("retrysafe_orphans_asked_total", "as" => name)),
            }),
            due: gauge!("retrysafe_orphans_due"),
            oldest: gauge!("retrysafe_oldest_orphan_seconds"),
            records: ["in_flight", "uncertain", "completed"]
                .map(|state| gauge!("retrysafe_records", "state" => state)),
            rates: ["first_month", "last_week"].map(|over| gauge!("retrysafe_orphan_rate", "over" => over)),
        }
    }

    #[allow(clippy::cast_precision_loss)] // counts are far below 2^53
    pub(super) fn count(&self, round: &Round) {
        self.reaped.increment(round.reaped as u64);
        self.marked.increment(round.marked as u64);
        for (counter, count) in self.became.iter().zip(round.became) {
            if let Some(counter) = counter {
                counter.increment(count as u64);
            }
        }
        self.due.set(round.due as f64);
        self.oldest.set(round.oldest.as_secs_f64());
    }

    #[allow(clippy::cast_precision_loss)]
    pub(super) fn records(&self, census: Census) {
        let counts = [census.in_flight, census.uncertain, census.completed];
        self.records.iter().zip(counts).for_each(|(gauge, count)| gauge.set(count as f64));
    }

    pub(super) fn orphan_rate(&self, trend: &Trend) {
        let first_month = trend.baseline_is_whole.then(|| trend.baseline.share()).flatten();
        for (gauge, share) in self.rates.iter().zip([first_month, trend.recent.share()]) {
            if let Some(share) = share {
                gauge.set(share);
            }
        }
    }
}
