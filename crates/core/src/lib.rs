//! Values and decisions of retrysafe: no I/O, no clock, no randomness.
