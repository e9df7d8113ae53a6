//! The retry engine, against published vectors, the cases of the trackers, and properties.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper that fails fails its test")]

mod cases;
mod fleet;
mod hedges;
mod limiters;
mod play;
mod properties;
mod shared;

mod smithy;
mod tables;
mod vendors;

/// A file of `vectors/retry/`.
fn vectors(name: &str) -> serde_json::Value {
    let path = format!("{}/../../vectors/retry/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Chance that is the same in every run (SplitMix64).
struct Entropy(u64);

impl Entropy {
    fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
