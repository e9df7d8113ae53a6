//! The published simulation of optimistic concurrency (V8): clients that all want to write one row.
//!
//! A client reads the row's version and writes with it. The write is taken if the version is still that; otherwise the
//! client backs off, reads again and tries anew, until it has written once. Every hop takes |N(10, 2)| ms. It is the
//! simulation behind "exponential backoff and jitter"; the parameters are those of its published code.

use std::{num::NonZeroU32, time::Duration};

use retrysafe_core::retry::{
    Backoff, Budget, Call, Deadline, Idempotence, Jitter, Mono, Request, RetryPolicy, Seen, Step,
    budget::Rules,
    presets::{Curve, Delays},
};

use super::chance::{Agenda, Chance};

const HOP: Duration = Duration::from_millis(10);
const HOP_DEVIATION: Duration = Duration::from_millis(2);

/// How a client backs off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Strategy {
    /// By a published formula.
    Published(Delays),
    /// As the engine of this project's clients does, driven call by call.
    Engine(RetryPolicy),
}

/// The strategies by name. The engine's first retry is number 0, the published formulas' is 1: for full jitter the engine
/// gets the doubled base, so that both draw from the same ranges.
pub(super) fn strategies(base: Duration, cap: Duration) -> Vec<(&'static str, Strategy)> {
    let curve = Curve { base, cap };
    let engine = |jitter, base| {
        let backoff = Backoff { jitter, base, throttled_base: base, cap };
        let attempts = NonZeroU32::MAX;
        let elapsed = Duration::MAX;
        Strategy::Engine(RetryPolicy { attempts, elapsed, backoff, ..RetryPolicy::default() })
    };
    vec![
        ("none", Strategy::Published(Delays::None)),
        ("exponential", Strategy::Published(Delays::Exponential(curve))),
        ("equal", Strategy::Published(Delays::Equal(curve))),
        ("full", Strategy::Published(Delays::Full(curve))),
        ("decorrelated", Strategy::Published(Delays::Decorrelated(curve))),
        ("engine-full", engine(Jitter::Full, base * 2)),
        ("engine-decorrelated", engine(Jitter::Decorrelated, base)),
    ]
}

/// What one run came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// Until the last client had written.
    pub(super) time: Duration,
    /// Writes of all clients, taken or not.
    pub(super) calls: u64,
}

/// What arrives somewhere after a hop.
enum Hop {
    Read,
    Version(u64),
    Write(u64),
    Verdict { taken: bool },
}

/// Who decides about the next try.
enum Pacer {
    Published { delays: Delays, retry: u32, previous: Duration },
    Engine(Box<Call>),
}

/// Runs it once.
pub(super) fn run(clients: u32, strategy: Strategy, seed: u64) -> Run {
    let (mut net, mut chance) = (Chance::stream(seed, 0), Chance::stream(seed, 1));
    let mut hop = || net.normal(HOP, HOP_DEVIATION);
    let mut agenda = Agenda::new();
    let mut pacers: Vec<Pacer> = (0..clients).map(|_| Pacer::of(strategy)).collect();
    for client in 0..pacers.len() {
        agenda.add(Mono::START.plus(hop()), (client, Hop::Read));
    }
    let (mut version, mut run) = (0, Run { time: Duration::ZERO, calls: 0 });
    while let Some((now, (client, arrived))) = agenda.next() {
        let (at, next) = match arrived {
            Hop::Read => (now, Hop::Version(version)),
            Hop::Version(seen) => (now, Hop::Write(seen)),
            Hop::Write(expected) => {
                run.calls += 1;
                let taken = expected == version;
                version += u64::from(taken);
                (now, Hop::Verdict { taken })
            }
            Hop::Verdict { taken } => match pacers[client].next_try(taken, chance.entropy(), now) {
                Some(at) => (at, Hop::Read),
                None => {
                    run.time = now.since(Mono::START);
                    continue;
                }
            },
        };
        agenda.add(at.plus(hop()), (client, next));
    }
    run
}

impl Pacer {
    fn of(strategy: Strategy) -> Self {
        match strategy {
            Strategy::Published(delays) => Self::Published { delays, retry: 0, previous: Duration::ZERO },
            Strategy::Engine(policy) => {
                let (budget, request) = (Budget::new(Rules::NONE), Request::new(Idempotence::Keyed));
                Self::Engine(Box::new(Call::open(&policy, &budget, request, Deadline::UNSET, Mono::START).0))
            }
        }
    }

    /// When to read again; `None` once the write was taken.
    fn next_try(&mut self, taken: bool, entropy: u64, now: Mono) -> Option<Mono> {
        match self {
            Self::Published { .. } if taken => None,
            Self::Published { delays, retry, previous } => {
                *previous = delays.sleep(*retry, *previous, entropy);
                *retry = retry.saturating_add(1);
                Some(now.plus(*previous))
            }
            Self::Engine(call) => {
                let seen = Seen::status(if taken { 200 } else { 503 });
                let Step::Sleep(pause) = call.observe(&seen, entropy, now) else { return None };
                let at = now.plus(pause.delay);
                matches!(call.woke(at), Step::Send { .. }).then_some(at)
            }
        }
    }
}

/// Means over many runs of one setting.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Mean {
    pub(super) time_ms: f64,
    pub(super) calls: f64,
    /// Standard errors of the two: how far another seed may be off.
    pub(super) time_error_ms: f64,
    pub(super) calls_error: f64,
}

impl Mean {
    pub(super) fn of(runs: &[Run]) -> Self {
        let (time_ms, time_error_ms) = mean(runs.iter().map(|run| run.time.as_secs_f64() * 1_000.0));
        let (calls, calls_error) = mean(runs.iter().map(|run| run.calls as f64));
        Self { time_ms, calls, time_error_ms, calls_error }
    }
}

/// Mean and its standard error.
fn mean(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let count = values.clone().count().max(1) as f64;
    let mean = values.clone().sum::<f64>() / count;
    let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (mean, (variance / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_of(name: &str, clients: u32, runs: u64) -> Mean {
        let all = strategies(Duration::from_millis(5), Duration::from_secs(2));
        let (_, strategy) = all.into_iter().find(|(known, _)| *known == name).unwrap();
        let runs: Vec<Run> = (0..runs).map(|seed| run(clients, strategy, seed)).collect();
        Mean::of(&runs)
    }

    fn within(found: f64, expected: f64, share: f64) {
        assert!((found / expected - 1.0).abs() < share, "{found}, not {expected}");
    }

    /// The proof `client.5` compares the whole table; this is its first row, wide enough for few runs.
    #[test]
    fn v8_ten_clients() {
        for (name, time_ms, calls) in [
            ("none", 383.0, 51.1),
            ("equal", 705.0, 42.2),
            ("full", 461.0, 39.0),
            ("decorrelated", 431.0, 37.4),
        ] {
            let mean = mean_of(name, 10, 150);
            within(mean.time_ms, time_ms, 0.08);
            within(mean.calls, calls, 0.08);
        }
    }

    /// The engine draws from the ranges of the published formulas.
    #[test]
    fn the_engine_does_what_the_formulas_say() {
        for (engine, published) in [("engine-full", "full"), ("engine-decorrelated", "decorrelated")] {
            let (own, other) = (mean_of(engine, 20, 100), mean_of(published, 20, 100));
            within(own.time_ms, other.time_ms, 0.1);
            within(own.calls, other.calls, 0.1);
        }
    }

    #[test]
    fn a_client_alone_writes_once() {
        let only = run(1, Strategy::Published(Delays::None), 3);
        assert_eq!(only.calls, 1);
        assert!(only.time > Duration::from_millis(20) && only.time < Duration::from_millis(70));
    }
}
