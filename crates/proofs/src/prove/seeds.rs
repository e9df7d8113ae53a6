//! recovery.4: thousands of seeded simulations of clients, processes with clocks of their own, completers, a reaper and people
//! keep every promise; and each mutant of the protocol breaks one.

use std::time::{Duration, Instant};

use anyhow::Result;
use retrysafe_sim::{
    model::Mutant,
    simulation::{Run, simulate, simulate_by_own_clocks, story},
};

use super::Scale;

/// How many seeds, and how long they may take in continuous integration.
const SEEDS: usize = 100_000;
const QUICK_SEEDS: usize = 10_000;
const QUICK_WITHIN: Duration = Duration::from_secs(180);
/// How many seeds a mutant may survive.
const CAUGHT_WITHIN: u64 = 2_000;
/// Every so many seeds one is run twice.
const TWICE_EVERY: u64 = 100;

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let seeds = u64::try_from(scale.of(SEEDS, QUICK_SEEDS))?;
    // Other seeds at every run; a failing one is printed and belongs into crates/sim/tests/simulation.rs.
    let first = scale.seed;
    let began = Instant::now();
    let mut holds = true;
    let mut events = 0;
    let mut sums: Vec<(&str, u64)> = Vec::new();
    for offset in 0..seeds {
        let seed = first.wrapping_add(offset);
        let run = simulate(seed, None);
        events += run.events;
        add(&mut sums, &run);
        if let Some(broken) = run.broken {
            holds = false;
            println!("  seed {seed}: {broken}");
            story(seed, None).1.iter().for_each(|line| println!("    {line}"));
            break;
        }
        if offset.is_multiple_of(TWICE_EVERY) && simulate(seed, None) != run {
            holds = false;
            println!("  seed {seed}: two runs differ");
        }
    }
    let took = began.elapsed();
    for (name, sum) in &sums {
        println!("  {name}: {sum}");
        holds &= *sum > 0;
    }
    let mut caught = 0;
    for mutant in Mutant::ALL {
        let found = (0..CAUGHT_WITHIN).find_map(|offset| {
            let seed = first.wrapping_add(offset);
            simulate(seed, Some(mutant)).broken.map(|broken| (seed, broken))
        });
        match found {
            Some((seed, broken)) => {
                caught += 1;
                println!("  mutant: {}: caught by seed {seed}: {broken}", mutant.name());
            }
            None => {
                holds = false;
                println!("  mutant: {}: NOT CAUGHT by {CAUGHT_WITHIN} seeds", mutant.name());
            }
        }
    }
    let by_own_clocks = (0..CAUGHT_WITHIN).find_map(|offset| {
        let seed = first.wrapping_add(offset);
        simulate_by_own_clocks(seed).broken.map(|broken| (seed, broken))
    });
    match by_own_clocks {
        Some((seed, broken)) => {
            println!("  mutant: time by the process's own clock: caught by seed {seed}: {broken}")
        }
        None => {
            holds = false;
            println!("  mutant: time by the process's own clock: NOT CAUGHT by {CAUGHT_WITHIN} seeds");
        }
    }
    caught += usize::from(by_own_clocks.is_some());
    holds &= !scale.quick() || took <= QUICK_WITHIN;
    println!(
        "{seeds} simulations from seed {first} on, {events} events in {:.1} s, no promise broken: {holds}; {caught} of {} mutants \
         caught",
        took.as_secs_f64(),
        Mutant::ALL.len() + 1
    );
    Ok(holds)
}

fn add(sums: &mut Vec<(&'static str, u64)>, run: &Run) {
    for (at, (name, count)) in run.counts.named().into_iter().enumerate() {
        match sums.get_mut(at) {
            Some((_, sum)) => *sum += count,
            None => sums.push((name, count)),
        }
    }
}
