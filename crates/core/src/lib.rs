//! Values and decisions of retrysafe: no I/O, no clock, no randomness.

pub mod address;
pub mod ids;
