//! gates.2: a check before the insert, on SQLite, with no pause but the database's, is found in nearly every run.
//!
//! Threads that start together catch it in one round of a hundred. The gate holds the last bytes back and chooses its rounds
//! by power, so a run misses it as rarely as it says.

use anyhow::{Context, Result, bail};
use retrysafe_gates::report::Verdict;
use retrysafe_mutants::find;

use super::gate;
use super::mutants::subject;
use crate::prove::Scale;
use crate::report::Progress;

const RUNS: usize = 200;
const QUICK_RUNS: usize = 3;
/// Of all runs, in percent.
const FOUND_MIN: usize = 99;

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let mutant = find("check-then-insert-sqlite").context("the table has it")?;
    let runs = scale.of(RUNS, QUICK_RUNS);
    let progress = Progress::new("natural race on SQLite", runs);
    let (mut found, mut raced, mut broken) = (0, 0, 0);
    for run in 0..runs as u64 {
        // A fresh file each time: what is found must not depend on what was there before.
        let (running, plan) = subject(mutant, false)?;
        let report = gate(&plan, scale.seed.wrapping_add(run))?;
        drop(running);
        let part = report.part("A1").context("the races ran")?;
        found += usize::from(part.verdict == Some(Verdict::Fail));
        raced += part.rounds;
        broken += part.failed_rounds;
        if part.rounds == 0 {
            bail!("a run without a race: {:?}", part.said);
        }
        progress.step();
    }
    drop(progress);
    println!("{broken} of {raced} races showed it; a run ends after three");
    println!("found in {found} of {runs} runs (at least {FOUND_MIN}% wanted)");
    Ok(found * 100 >= runs * FOUND_MIN)
}
