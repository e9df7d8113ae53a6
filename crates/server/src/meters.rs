//! What the layer counts. Handles are made once: a lookup by name for each request would cost more than the count.

use std::{collections::HashMap, time::Instant};

use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use retrysafe_core::{
    claim::{Settled, Stale},
    codes::Code,
    orphans::Trend,
    record::{Record, State},
    time::Wall,
};
use retrysafe_store::{Census, transactional::Undone};

use crate::{orphans::Tally, transaction::Ended};

/// Every counter of the layer, with its meaning. `docs/reference/metrics.md` has a row for each.
const COUNTERS: &[(&str, &str)] = &[
    ("retrysafe_claims_total", "Keyed requests that won their claim and ran"),
    ("retrysafe_endpoint_claims_total", "The same, by endpoint or consumer"),
    ("retrysafe_endpoint_orphans_total", "Requests that were found abandoned, by endpoint or consumer"),
    ("retrysafe_takeovers_total", "Claims won over a lost holder"),
    ("retrysafe_replays_total", "Answers replayed"),
    (
        "retrysafe_untold_replays_total",
        "Replays of requests of several steps that no timeline tells of: too many operations at once, or the store failed",
    ),
    (
        "retrysafe_late_replays_total",
        "Replays in the last tenth of their window: some retries come too late for it",
    ),
    ("retrysafe_accepted_total", "Answers 202 with a status URL"),
    ("retrysafe_refusals_total", "Own answers, by code"),
    ("retrysafe_marked_uncertain_total", "Abandoned requests that were marked uncertain (orphans)"),
    ("retrysafe_stale_writers_total", "Holders whose result was refused because they were taken over"),
    ("retrysafe_leases_lost_total", "Holders that found at a renewal that they were taken over"),
    ("retrysafe_settled_total", "Claims that ended, by how"),
    ("retrysafe_duplicate_effects_total", "Effects that happened twice, counted from the ledger alone"),
    ("retrysafe_commits_unknown_total", "Transactions whose commit had no answer, settled by looking"),
    ("retrysafe_reaped_total", "Completed records deleted past their reap threshold"),
    ("retrysafe_tombstones_total", "Answers whose body was too large or streamed and is not kept"),
    ("retrysafe_keyless_total", "Requests without a key where the key is optional"),
    ("retrysafe_unlisted_total", "State-changing requests that no endpoint of the contract lists"),
    ("retrysafe_keys_on_unsafe_endpoints_total", "Keys sent to endpoints documented as unsafe to retry"),
    ("retrysafe_handler_panics_total", "Handlers that panicked"),
    (
        "retrysafe_unguarded_by_outage_total",
        "Requests run unguarded because the store was down and the contract says open",
    ),
];

/// Every gauge of the layer.
const GAUGES: &[(&str, &str)] = &[
    ("retrysafe_records", "Records in the store, by state; seconds old"),
    ("retrysafe_running", "Keyed requests that run now"),
    ("retrysafe_orphan_rate", "Orphans for each claim: in the first month, and in the last week"),
];

/// What is counted of one endpoint, or of one consumer.
struct OfEndpoint {
    claims: Counter,
    orphans: Counter,
}

impl OfEndpoint {
    fn new(name: &str) -> Self {
        Self {
            claims: counter!("retrysafe_endpoint_claims_total", "endpoint" => name.to_owned()),
            orphans: counter!("retrysafe_endpoint_orphans_total", "endpoint" => name.to_owned()),
        }
    }
}

/// Every metric of the layer.
pub(crate) struct Meters {
    claims: Counter,
    takeovers: Counter,
    replays: Counter,
    late_replays: Counter,
    untold_replays: Counter,
    accepted: Counter,
    refusals: Vec<Counter>,
    uncertain: Counter,
    stale: Counter,
    leases_lost: Counter,
    stored: Counter,
    released: Counter,
    held: Counter,
    commits_unknown: Counter,
    duplicate_effects: Counter,
    reaped: Counter,
    tombstones: Counter,
    unguarded: Counter,
    unlisted: Counter,
    unsafe_keys: Counter,
    panics: Counter,
    open_failures: Counter,
    in_flight: Gauge,
    uncertain_now: Gauge,
    completed: Gauge,
    running: Gauge,
    run_seconds: Histogram,
    orphan_rates: [Gauge; 2],
    endpoints: HashMap<Box<str>, OfEndpoint>,
    /// What is written down day by day.
    pub(crate) tally: Tally,
}

impl Meters {
    /// Of a layer with these endpoints.
    pub(crate) fn new<'a>(endpoints: impl Iterator<Item = &'a str>) -> Self {
        for (name, help) in COUNTERS {
            describe_counter!(*name, *help);
        }
        for (name, help) in GAUGES {
            describe_gauge!(*name, *help);
        }
        describe_histogram!("retrysafe_run_seconds", "Seconds from a won claim to its settlement");
        Self {
            claims: counter!("retrysafe_claims_total"),
            takeovers: counter!("retrysafe_takeovers_total"),
            replays: counter!("retrysafe_replays_total"),
            late_replays: counter!("retrysafe_late_replays_total"),
            untold_replays: counter!("retrysafe_untold_replays_total"),
            accepted: counter!("retrysafe_accepted_total"),
            refusals: Code::ALL
                .iter()
                .map(|code| counter!("retrysafe_refusals_total", "code" => code.as_str()))
                .collect(),
            uncertain: counter!("retrysafe_marked_uncertain_total"),
            stale: counter!("retrysafe_stale_writers_total"),
            leases_lost: counter!("retrysafe_leases_lost_total"),
            stored: counter!("retrysafe_settled_total", "as" => "stored"),
            released: counter!("retrysafe_settled_total", "as" => "released"),
            held: counter!("retrysafe_settled_total", "as" => "uncertain"),
            duplicate_effects: counter!("retrysafe_duplicate_effects_total"),
            commits_unknown: counter!("retrysafe_commits_unknown_total"),
            reaped: counter!("retrysafe_reaped_total"),
            tombstones: counter!("retrysafe_tombstones_total"),
            unguarded: counter!("retrysafe_keyless_total"),
            unlisted: counter!("retrysafe_unlisted_total"),
            unsafe_keys: counter!("retrysafe_keys_on_unsafe_endpoints_total"),
            panics: counter!("retrysafe_handler_panics_total"),
            open_failures: counter!("retrysafe_unguarded_by_outage_total"),
            in_flight: gauge!("retrysafe_records", "state" => "in_flight"),
            uncertain_now: gauge!("retrysafe_records", "state" => "uncertain"),
            completed: gauge!("retrysafe_records", "state" => "completed"),
            running: gauge!("retrysafe_running"),
            run_seconds: histogram!("retrysafe_run_seconds"),
            orphan_rates: ["first_month", "last_week"]
                .map(|over| gauge!("retrysafe_orphan_rate", "over" => over)),
            endpoints: endpoints.map(|name| (name.into(), OfEndpoint::new(name))).collect(),
            tally: Tally::default(),
        }
    }

    pub(crate) fn claimed(&self, endpoint: &str, taken_over: Option<&Record>) {
        self.claims.increment(1);
        self.tally.claimed();
        self.of(endpoint, |of| of.claims.increment(1));
        if taken_over.is_some_and(|record| record.lease_until().is_some()) {
            self.takeovers.increment(1);
            self.orphaned(endpoint);
        }
    }

    /// A request of this endpoint was found abandoned.
    pub(crate) fn orphaned(&self, endpoint: &str) {
        self.tally.orphaned();
        self.of(endpoint, |of| of.orphans.increment(1));
    }

    fn of(&self, endpoint: &str, count: impl FnOnce(&OfEndpoint)) {
        match self.endpoints.get(endpoint) {
            Some(of) => count(of),
            // A consumer, or an endpoint of a contract before this one: looked up by its name, as nobody knew it.
            None => count(&OfEndpoint::new(endpoint)),
        }
    }

    /// A replay of what `record` holds. One that comes late says that the window is short for somebody's retries.
    pub(crate) fn replaying(&self, record: Option<&Record>, now: Wall) {
        if record.is_some_and(|record| is_late(&record.state, now)) {
            self.late_replays.increment(1);
        }
    }

    pub(crate) fn replay_untold(&self, replays: u64) {
        self.untold_replays.increment(replays);
    }

    /// The rate of orphans against its own beginning (SPEC 10.4). A share that is not known yet is not shown.
    pub(crate) fn orphan_rates(&self, trend: &Trend) {
        let first_month = trend.baseline_is_whole.then(|| trend.baseline.share()).flatten();
        for (gauge, share) in self.orphan_rates.iter().zip([first_month, trend.recent.share()]) {
            if let Some(share) = share {
                gauge.set(share);
            }
        }
    }

    /// Counts a run from here until the returned value is dropped, however it ends.
    pub(crate) fn running(&self) -> Running<'_> {
        self.running.increment(1.0);
        Running { meters: self, since: Instant::now() }
    }

    pub(crate) fn settled(&self, settled: &Result<Settled, Stale>) {
        match settled {
            Ok(Settled::Stored(_)) => self.stored.increment(1),
            Ok(Settled::Released) => self.released.increment(1),
            Ok(Settled::Held) => self.held.increment(1),
            Err(Stale) => self.stale.increment(1),
        }
    }

    /// A transaction with a handler's work in it, counted like a claim that was settled.
    pub(crate) fn ended(&self, ended: &Ended) {
        match ended {
            Ended::Committed { .. } => self.stored.increment(1),
            Ended::Held => self.held.increment(1),
            Ended::Undone(Undone::Stale) | Ended::Overtaken => self.stale.increment(1),
            Ended::Freed(_) | Ended::Failed | Ended::Undone(_) => self.released.increment(1),
            Ended::Unknown(_) => self.commits_unknown.increment(1),
        }
    }

    pub(crate) fn duplicate_effects(&self, found: u64) {
        self.duplicate_effects.increment(found);
    }

    pub(crate) fn refused(&self, code: Code) {
        // `ALL` is the enum in order; a code outside it would only go uncounted.
        if let Some(counter) =
            Code::ALL.iter().position(|known| *known == code).and_then(|at| self.refusals.get(at))
        {
            counter.increment(1);
        }
    }

    /// Counts are far below 2^53, where a double is exact.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn records(&self, census: Census) {
        self.in_flight.set(census.in_flight as f64);
        self.uncertain_now.set(census.uncertain as f64);
        self.completed.set(census.completed as f64);
    }

    pub(crate) fn replayed(&self) {
        self.replays.increment(1);
    }

    pub(crate) fn accepted(&self) {
        self.accepted.increment(1);
    }

    pub(crate) fn marked_uncertain(&self, endpoint: &str) {
        self.uncertain.increment(1);
        self.orphaned(endpoint);
    }

    pub(crate) fn lease_lost(&self) {
        self.leases_lost.increment(1);
    }

    pub(crate) fn reaped(&self, records: usize) {
        self.reaped.increment(u64::try_from(records).unwrap_or(u64::MAX));
    }

    pub(crate) fn tombstone(&self) {
        self.tombstones.increment(1);
    }

    pub(crate) fn keyless(&self) {
        self.unguarded.increment(1);
    }

    pub(crate) fn unlisted(&self) {
        self.unlisted.increment(1);
    }

    pub(crate) fn key_on_unsafe(&self) {
        self.unsafe_keys.increment(1);
    }

    pub(crate) fn panicked(&self) {
        self.panics.increment(1);
    }

    pub(crate) fn ran_open(&self) {
        self.open_failures.increment(1);
    }
}

/// Whether less than a tenth of the window is left: a retry that is a little later finds it over, and runs again.
fn is_late(state: &State, now: Wall) -> bool {
    const SHARE: u32 = 10;
    matches!(state, State::Completed { at, expires_at, .. }
        if expires_at.from_now(now) < expires_at.since(*at) / SHARE)
}

/// A run that is being counted.
pub(crate) struct Running<'a> {
    meters: &'a Meters,
    since: Instant,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.meters.running.decrement(1.0);
        self.meters.run_seconds.record(self.since.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_is_late_in_the_last_tenth_of_its_window() {
        use retrysafe_core::outcome::{Body, Outcome};
        let second = |second: i64| Wall::from_unix_ms(1000 * second);
        let outcome = Outcome { status: 200, headers: vec![], body: Body::Kept("".into()), trailers: vec![] };
        let outcome = std::sync::Arc::new(outcome);
        let (at, expires_at, reap_at) = (second(0), second(100), second(300));
        let done = State::Completed { outcome, at, expires_at, reap_at, resource: None };
        let late: Vec<bool> = [0, 50, 90, 91, 99].map(|now| is_late(&done, second(now))).into();
        assert_eq!(late, [false, false, false, true, true]);
        assert!(!is_late(&State::InFlight { lease_until: second(5) }, second(99)));
    }

    #[test]
    fn the_reference_page_explains_every_metric() {
        let page = include_str!("../../../docs/reference/metrics.md");
        for (name, _) in COUNTERS.iter().chain(GAUGES) {
            assert!(page.contains(&format!("`{name}")), "docs/reference/metrics.md does not explain {name}");
        }
    }
}
