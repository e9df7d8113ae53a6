//! main-job.6: the bench, every bound kept.

use anyhow::Result;

use super::Scale;
use crate::bench::{self, Options};

const ROUNDS: usize = 9;
const QUICK_ROUNDS: usize = 3;
const QUICK_SHRINK: u64 = 20;

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    bench::run(&Options {
        json: false,
        only: None,
        rounds: scale.of(ROUNDS, QUICK_ROUNDS),
        shrink: if scale.quick() { QUICK_SHRINK } else { 1 },
    })
}
