//! The lock of a budget, in a form that a model checker can see into: built with `--cfg retrysafe_loom`, loom runs the
//! threads of `tests/threads.rs` in every order. The cfg is our own, since other packages do things of theirs under `loom`.
#![expect(unexpected_cfgs, reason = "set by whoever runs the model checker")]

#[cfg(retrysafe_loom)]
pub(super) use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(retrysafe_loom))]
pub(super) use std::sync::{Arc, Mutex, MutexGuard};
