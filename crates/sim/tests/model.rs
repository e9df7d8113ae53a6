//! The model keeps every promise, and each mutant breaks one (recovery.3; the full search is `cargo xtask prove recovery.3`).

use retrysafe_sim::model::{Bounds, Mutant, Provider, search};

/// Small enough for every test run.
const QUICK: Bounds = Bounds { depth: 12, worlds: 2_000_000, clients: 3, workers: 2, sends: 2, faults: 1 };

#[test]
fn no_promise_is_broken_whatever_happens() {
    for provider in [Provider::Asked, Provider::Deduplicates, Provider::Plain] {
        let found = search(provider, None, QUICK);
        println!("{provider:?}: {} worlds, depth {}, {:?}", found.worlds, found.depth, found.took);
        assert!(found.violation.is_none(), "{provider:?}\n{}", found.violation.unwrap());
    }
}

#[test]
fn every_mutant_is_caught_with_a_story() {
    for mutant in Mutant::ALL {
        let found = search(mutant.provider(), Some(mutant), mutant.bounds());
        println!("{}: {} worlds, depth {}, {:?}", mutant.name(), found.worlds, found.depth, found.took);
        println!("{}", found.violation.unwrap_or_else(|| panic!("{} was not caught", mutant.name())));
    }
}
