//! main-job.6 and transactions.4: the bench, every bound kept.

use anyhow::Result;

use super::Scale;
use crate::bench::{self, Options};

const ROUNDS: usize = 9;
const QUICK_ROUNDS: usize = 3;
const QUICK_SHRINK: u64 = 20;

const MAIN_JOB: [&str; 4] = ["layer", "gateway", "sqlite", "memory"];
const TRANSACTIONS: [&str; 2] = ["transactions", "stored-keys"];

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    groups(scale, &MAIN_JOB)
}

pub(crate) fn prove_transactions(scale: Scale) -> Result<bool> {
    groups(scale, &TRANSACTIONS)
}

fn groups(scale: Scale, names: &[&str]) -> Result<bool> {
    let mut holds = true;
    for name in names {
        holds &= bench::run(&Options {
            json: false,
            only: Some((*name).to_owned()),
            rounds: scale.of(ROUNDS, QUICK_ROUNDS),
            shrink: if scale.quick() { QUICK_SHRINK } else { 1 },
        })?;
    }
    Ok(holds)
}
