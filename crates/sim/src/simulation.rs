//! A seeded simulation: many clients, processes whose clocks differ, completers and a reaper, and everything goes wrong.
//!
//! The [model](crate::model) searches all that can happen to one request within few steps. This runs thousands of steps of few
//! of the possible orders: six clients on three keys, three processes that crash, sleep past their leases and have wall clocks
//! that are minutes off, a plan of three steps or of five, a network that loses questions and answers and delivers writes seconds late, a provider that can be asked,
//! de-duplicates, or neither. **What is decided is decided by the real functions**, as in the model.
//!
//! Two phases. In the *safety* phase anything may fail, and no promise may be broken ([`Run::broken`]). Then the *quiet* phase:
//! nothing fails any more, a person decides what is uncertain by what the provider says ([`operate`]), and in the end nothing
//! is in flight or uncertain and every client has been shown the one receipt.
//!
//! All chance comes from the seed, so two runs of one seed are the same run, and a failing seed is a test.
//!
//! ```
//! use retrysafe_sim::simulation::simulate;
//!
//! let run = simulate(7, None);
//! assert_eq!(run.broken, None);
//! assert_eq!(run.digest, simulate(7, None).digest);
//! ```
//!
//! # Limits
//! - Time is the store's (protocol 10), as a process heard it: what two processes tell differs by a second at most, which the
//!   provider's margin has to cover. Their own clocks are up to ten minutes off, and in nobody's way as long as nobody looks at them:
//!   [`simulate_by_own_clocks`] does. A clock of the store that jumps is the store's matter, and clients send no instants.
//! - The pause between the last look at an intent's age and the call is none, as the margin is for that.
//!
//! [`operate`]: retrysafe_core::operate

mod act;
mod chance;
mod hold;
mod people;
mod plan;
mod store;
mod world;

use std::time::Duration;

use crate::model::{Mutant, Provider};
use world::World;

/// Times of the contract, the provider and the network, in milliseconds.
const LEASE: Duration = Duration::from_millis(2_000);
const PATIENCE: Duration = Duration::from_millis(3_000);
const WINDOW: Duration = Duration::from_millis(6_000);
const REAP: Duration = Duration::from_millis(9_000);
const PROVIDER_WINDOW: Duration = Duration::from_millis(12_000);
const PROVIDER_MARGIN: Duration = Duration::from_millis(4_000);
/// How far a process may be off in what it heard of the store's clock, either way.
const SKEW_MS: u64 = 500;
/// How far its own wall clock may be off, either way.
const WALL_SKEW_MS: u64 = 600_000;
/// When the quiet phase begins, when people begin to look, and when it is over.
const QUIET_AT_MS: u64 = 30_000;
const PEOPLE_AT_MS: u64 = QUIET_AT_MS + 8_000;
const END_MS: u64 = QUIET_AT_MS + 70_000;
const KEYS: usize = 3;
const CLIENTS: usize = 6;
const SERVERS: usize = 3;

/// What a run came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Which.
    pub seed: u64,
    /// The first promise that was broken.
    pub broken: Option<&'static str>,
    /// A digest of everything that happened.
    pub digest: u64,
    /// How many things happened.
    pub events: u64,
    /// What happened how often.
    pub counts: Counts,
}

/// How often something happened: a simulation in which nothing happens keeps every promise.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // each is what it is called
pub struct Counts {
    pub claims: u64,
    pub takeovers: u64,
    pub by_completers: u64,
    pub crashes: u64,
    pub pauses: u64,
    pub refused: u64,
    pub charges: u64,
    pub bookings: u64,
    pub replays: u64,
    pub reaped: u64,
    pub freed: u64,
    pub uncertain: u64,
    pub resumed: u64,
    pub resolved: u64,
    pub released: u64,
    pub second_operations: u64,
}

impl Counts {
    /// Each with its name.
    pub fn named(&self) -> [(&'static str, u64); 16] {
        [
            ("claims", self.claims),
            ("takeovers", self.takeovers),
            ("gone on with by completers", self.by_completers),
            ("crashes", self.crashes),
            ("pauses", self.pauses),
            ("writes of holders that were taken over, refused", self.refused),
            ("charges", self.charges),
            ("second calls of the longer plan", self.bookings),
            ("replays", self.replays),
            ("reaped", self.reaped),
            ("freed", self.freed),
            ("became uncertain", self.uncertain),
            ("resumed by people", self.resumed),
            ("resolved by people", self.resolved),
            ("released by people", self.released),
            ("keys used again after their window", self.second_operations),
        ]
    }
}

/// Runs `seed`, with `mutant` in place of the protocol.
pub fn simulate(seed: u64, mutant: Option<Mutant>) -> Run {
    World::new(seed, mutant, Clocks::OfTheStore, false).run().0
}

/// Runs `seed` with processes that look at their own clocks instead of the store's: a mutant of its own, which is here to be
/// caught. Where nothing could break, nothing is shown by what holds.
pub fn simulate_by_own_clocks(seed: u64) -> Run {
    World::new(seed, None, Clocks::OfProcesses, false).run().0
}

/// Whose time a process tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Clocks {
    OfTheStore,
    OfProcesses,
}

/// The same, and what happened, in its order: for people who look for why.
pub fn story(seed: u64, mutant: Option<Mutant>) -> (Run, Vec<String>) {
    World::new(seed, mutant, Clocks::OfTheStore, true).run()
}

/// The provider of a seed: each kind in its turn, or the one that the mutant does harm with.
fn provider(seed: u64, mutant: Option<Mutant>) -> Provider {
    match (mutant, seed % 3) {
        (Some(mutant), _) => mutant.provider(),
        (None, 0) => Provider::Asked,
        (None, 1) => Provider::Deduplicates,
        (None, _) => Provider::Plain,
    }
}
