//! Interleaved rounds: every contestant runs in each round, in turns whose order rotates, so that a slow minute of the
//! machine hits all of them alike.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use super::figures::Sample;
use crate::accounting::{spent, usage};
use crate::closed::{Load, run};
use crate::report::Progress;

/// One side of a comparison.
pub(crate) struct Contestant<'a> {
    pub(crate) name: String,
    /// The processes whose time is counted.
    pub(crate) processes: Vec<(String, u32)>,
    /// The load of a round; rounds count from 0, and a warm-up comes before them.
    pub(crate) load: Box<dyn Fn(Phase) -> Load + 'a>,
}

/// Where in the run a load is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not measured: connections, pools and branch predictors find their place.
    WarmUp,
    Round(usize),
}

/// Parts of a round. Contestants take turns within a round as well: a machine that is slow for a second or two is then slow
/// for all of them, and the ratio of the round stays what it is.
const SLICES: u64 = 4;

/// Runs all rounds; the samples of each contestant, in the order they were given.
///
/// # Errors
/// A load fails or is answered by anything but success.
pub(crate) fn interleave(contestants: &[Contestant<'_>], rounds: usize) -> Result<Vec<Vec<Sample>>> {
    let mut samples: Vec<Vec<Sample>> = contestants.iter().map(|_| Vec::with_capacity(rounds)).collect();
    let progress = Progress::new("rounds", rounds * contestants.len());
    for contestant in contestants {
        Sum::default().add(contestant, Phase::WarmUp, &(contestant.load)(Phase::WarmUp))?;
    }
    for round in 0..rounds {
        let phase = Phase::Round(round);
        let loads: Vec<Load> = contestants.iter().map(|contestant| (contestant.load)(phase)).collect();
        let mut sums: Vec<Sum> = contestants.iter().map(|_| Sum::default()).collect();
        for slice in 0..SLICES {
            for turn in 0..contestants.len() {
                let index = (turn + round + slice as usize) % contestants.len();
                let part = loads[index].slice(slice, SLICES);
                sums[index].add(&contestants[index], phase, &part)?;
            }
        }
        for (index, sum) in sums.into_iter().enumerate() {
            samples[index].push(sum.sample(&contestants[index]));
            progress.step();
        }
    }
    Ok(samples)
}

/// What the slices of a round came to.
#[derive(Default)]
struct Sum {
    requests: f64,
    took: Duration,
    cpu: Vec<Duration>,
    latency_us: Option<Histogram<u64>>,
}

impl Sum {
    fn add(&mut self, contestant: &Contestant<'_>, phase: Phase, load: &Load) -> Result<()> {
        let before: Vec<_> = contestant.processes.iter().map(|(_, pid)| usage(*pid)).collect();
        let run = run(load).with_context(|| format!("{} in {phase:?}", contestant.name))?;
        run.all_succeeded().with_context(|| format!("{} in {phase:?}", contestant.name))?;
        self.cpu.resize(before.len(), Duration::ZERO);
        for ((sum, (_, pid)), before) in self.cpu.iter_mut().zip(&contestant.processes).zip(before) {
            *sum += spent(before, usage(*pid));
        }
        self.requests += run.requests() as f64;
        self.took += run.took;
        match &mut self.latency_us {
            Some(sum) => sum.add(&run.latency_us)?,
            None => self.latency_us = Some(run.latency_us),
        }
        Ok(())
    }

    fn sample(&self, contestant: &Contestant<'_>) -> Sample {
        let requests = self.requests.max(1.0);
        let each = |cpu: &Duration| cpu.as_secs_f64() * 1e6 / requests;
        let names = contestant.processes.iter().map(|(name, _)| name.clone());
        let quantile = |at| self.latency_us.as_ref().map_or(0, |latency| latency.value_at_quantile(at));
        Sample {
            per_second: self.requests / self.took.as_secs_f64().max(f64::EPSILON),
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            cpu_us: names.zip(self.cpu.iter().map(each)).collect(),
        }
    }
}
