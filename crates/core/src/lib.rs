//! Values and decisions of retrysafe: no I/O, no clock, no randomness.

#![forbid(unsafe_code)]

pub mod address;
pub mod answers;
pub mod claim;
pub mod clock;
pub mod codes;
pub mod contract;
pub mod decide;
pub mod fingerprint;
pub mod ids;
pub mod key;
pub mod operate;
pub mod orphans;
pub mod outcome;
pub mod pointer;
pub mod policy;
pub mod profile;
pub mod record;
pub mod recovery;
pub mod retry;
pub mod time;
