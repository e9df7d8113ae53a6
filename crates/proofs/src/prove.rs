//! `prove`: each item of the list, its figure last.

mod audited;
mod bench;
mod business;
mod cases;
mod client;
mod code;
mod crashes;
mod designed;
mod fleet;
mod gates;
mod kills;
mod labelled;
mod model;
mod once;
mod page;
mod power;
mod sdks;
mod seeds;
mod simulated;
mod steps;
mod stopped;
mod vectors;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;

/// The claims, one source for this binary and for `cargo xtask prove`.
const ITEMS: &str = include_str!("../items.json");

/// What the command line chooses.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// The items, as `main-job.1`
    items: Vec<String>,
    /// At a reduced scale; without items: every quick one
    #[arg(long)]
    quick: bool,
    /// How many rounds, races, kills: what the item counts. Default: the full number
    #[arg(long)]
    rounds: Option<usize>,
    /// What chance is drawn from; a failed run prints it
    #[arg(long)]
    seed: Option<u64>,
}

/// How much of a proof to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    rounds: Option<usize>,
    quick: bool,
    pub(crate) seed: u64,
}

impl Scale {
    /// The number asked for, else the full or the quick one.
    pub(crate) fn of(self, full: usize, quick: usize) -> usize {
        self.rounds.unwrap_or(if self.quick { quick } else { full })
    }

    /// Whether this is the quick tier.
    pub(crate) fn quick(self) -> bool {
        self.quick
    }
}

#[derive(Deserialize)]
struct Item {
    id: String,
    quick: bool,
    what: String,
}

/// Runs the chosen items; `true` if every one holds.
///
/// # Errors
/// No such item. An item that cannot be run counts as one that does not hold.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let items: Vec<Item> = serde_json::from_str(ITEMS).context("items.json")?;
    let chosen: Vec<&Item> = if options.quick && options.items.is_empty() {
        items.iter().filter(|item| item.quick).collect()
    } else {
        let find = |wanted: &String| {
            items
                .iter()
                .find(|item| item.id == *wanted)
                .with_context(|| format!("no proof is called {wanted}"))
        };
        options.items.iter().map(find).collect::<Result<_>>()?
    };
    if chosen.is_empty() {
        bail!("name an item, or --quick");
    }
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(1..));
    let scale = Scale { rounds: options.rounds, quick: options.quick, seed };
    let (mut passed, mut failed) = (0, 0);
    for item in chosen {
        println!("{}: {}", item.id, item.what);
        let holds = match prove(&item.id, scale) {
            Ok(holds) => holds,
            Err(error) => {
                println!("could not be run: {error:#}");
                false
            }
        };
        if holds {
            passed += 1;
        } else {
            failed += 1;
        }
        println!("{} {} (seed {seed})", item.id, if holds { "holds" } else { "DOES NOT HOLD" });
    }
    println!("proofs: {passed} passed, {failed} failed");
    Ok(failed == 0)
}

fn prove(id: &str, scale: Scale) -> Result<bool> {
    match id {
        "client.1" => vectors::prove_client(scale),
        "client.2" => client::scenarios::prove(scale),
        "client.3" => client::balance::prove(scale),
        "client.4" => client::offsets::prove(scale),
        "client.6" => client::peers::prove(scale),
        "gates.1" => gates::mutants::prove(scale),
        "gates.2" => gates::natural::prove(scale),
        "gates.3" => gates::peers::prove(scale),
        "gates.4" => gates::ours::prove(scale),
        "contract-tools.1" => audited::prove_facts(scale),
        "contract-tools.3" => audited::prove_size(scale),
        "contract-tools.2" => labelled::prove(scale),
        "contract-tools.4" => code::prove(scale),
        "contract-tools.5" => designed::prove(scale),
        "contract-tools.6" => page::prove(scale),
        "main-job.1" => once::prove(scale),
        "main-job.2" => sdks::prove(scale),
        "main-job.3" => crashes::prove(scale),
        "main-job.4" => vectors::prove(scale),
        "main-job.5" => cases::prove(scale),
        "main-job.6" => bench::prove(scale),
        "recovery.1" => steps::prove_crashes(scale),
        "recovery.2" => steps::prove_stops(scale),
        "recovery.3" => model::prove(scale),
        "recovery.4" => seeds::prove(scale),
        "recovery.5" => fleet::prove(scale),
        "transactions.1" => business::prove(scale),
        "transactions.2" => kills::prove(scale),
        "transactions.3" => stopped::prove(scale),
        "transactions.4" => bench::prove_transactions(scale),
        "transactions.5" => cases::prove_transactions(scale),
        "client.5" => simulated::prove(scale),
        _ => bail!("{id} is listed and has no proof"),
    }
}
