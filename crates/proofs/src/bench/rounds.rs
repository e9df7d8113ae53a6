//! Interleaved rounds: every contestant runs once in each round, in an order that rotates, so that a slow
//! minute of the machine hits all of them alike.

use anyhow::{Context, Result};

use super::figures::Sample;
use crate::accounting::{spent, usage};
use crate::closed::{Load, run};
use crate::report::Progress;

/// One side of a comparison.
pub(crate) struct Contestant<'a> {
    pub(crate) name: String,
    /// The processes whose time is counted.
    pub(crate) processes: Vec<(String, u32)>,
    /// The load of a round; rounds count from 0, and a warm-up comes before each.
    pub(crate) load: Box<dyn Fn(Phase) -> Load + 'a>,
}

/// Where in the run a load is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not measured, before the round of this number: what the others pushed out of the caches comes back, and pools and
    /// connections find their place. A server is measured as it runs, not as it wakes up.
    WarmUp(usize),
    Round(usize),
}

/// Runs all rounds; the samples of each contestant, in the order they were given.
///
/// # Errors
/// A load fails or is answered by anything but success.
pub(crate) fn interleave(contestants: &[Contestant<'_>], rounds: usize) -> Result<Vec<Vec<Sample>>> {
    let mut samples: Vec<Vec<Sample>> = contestants.iter().map(|_| Vec::with_capacity(rounds)).collect();
    let progress = Progress::new("rounds", rounds * contestants.len());
    for round in 0..rounds {
        for (all, sample) in samples.iter_mut().zip(one(contestants, round, &progress)?) {
            all.push(sample);
        }
    }
    Ok(samples)
}

/// The round of this number; a sample of each contestant, in the order they were given.
///
/// # Errors
/// As [`interleave`].
pub(crate) fn one(contestants: &[Contestant<'_>], round: usize, progress: &Progress) -> Result<Vec<Sample>> {
    let mut samples = vec![Sample::default(); contestants.len()];
    for turn in 0..contestants.len() {
        let index = (turn + round) % contestants.len();
        sample(&contestants[index], Phase::WarmUp(round))?;
        samples[index] = sample(&contestants[index], Phase::Round(round))?;
        progress.step();
    }
    Ok(samples)
}

fn sample(contestant: &Contestant<'_>, phase: Phase) -> Result<Sample> {
    let load = (contestant.load)(phase);
    let before: Vec<_> = contestant.processes.iter().map(|(_, pid)| usage(*pid)).collect();
    let run = run(&load).with_context(|| format!("{} in {phase:?}", contestant.name))?;
    run.all_succeeded().with_context(|| format!("{} in {phase:?}", contestant.name))?;
    let requests = run.requests().max(1) as f64;
    let cpu_us = contestant
        .processes
        .iter()
        .zip(before)
        .map(|((name, pid), before)| {
            (name.clone(), spent(before, usage(*pid)).as_secs_f64() * 1e6 / requests)
        })
        .collect();
    Ok(Sample {
        per_second: run.per_second(),
        p50_us: run.latency_us.value_at_quantile(0.5),
        p99_us: run.latency_us.value_at_quantile(0.99),
        cpu_us,
    })
}
