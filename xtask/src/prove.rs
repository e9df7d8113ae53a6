//! `prove` and `bench`: the list of claims, and the way to the binary that reproduces them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::root::{cargo, root, target_folder};

/// The claims, one source for this list and for the `proofs` binary.
const ITEMS: &str = include_str!("../../crates/proofs/items.json");

/// One claim that `prove` reproduces.
#[derive(Debug)]
struct Item {
    id: String,
    quick: bool,
    what: String,
}

fn items() -> Result<Vec<Item>> {
    let rows: Value = serde_json::from_str(ITEMS).context("crates/proofs/items.json")?;
    let rows = rows.as_array().context("crates/proofs/items.json is not a list")?;
    rows.iter()
        .map(|row| {
            Ok(Item {
                id: row["id"].as_str().context("an item without an id")?.to_owned(),
                quick: row["quick"].as_bool().context("an item that does not say whether it is quick")?,
                what: row["what"].as_str().context("an item that does not say what it shows")?.to_owned(),
            })
        })
        .collect()
}

/// The items an argument names: one id, or all of a slug. The order is the list's.
fn select<'a>(items: &'a [Item], wanted: &str) -> Vec<&'a Item> {
    items
        .iter()
        .filter(|item| item.id == wanted || item.id.rsplit_once('.').is_some_and(|(slug, _)| slug == wanted))
        .collect()
}

/// Prints every claim; nothing is built.
pub(crate) fn list() -> Result<bool> {
    for item in items()? {
        println!("{:<14} {:<6} {}", item.id, if item.quick { "quick" } else { "" }, item.what);
    }
    println!(
        "\ncargo xtask prove ITEM runs one in full, prove SLUG all of a slug, prove --quick the quick ones."
    );
    Ok(true)
}

/// How the proofs are built: the two binaries in one go, so that their common crates are compiled once.
#[derive(Clone, Copy)]
enum Build {
    /// Optimised: what a full proof and the bench measure.
    Release,
    /// As `cargo test` has built everything already: a newcomer's first run compiles nothing twice.
    Tests,
}

impl Build {
    fn command(self) -> Command {
        match self {
            Self::Release => cargo([
                "build",
                "--release",
                "--locked",
                "--package",
                "retrysafe-proofs",
                "--package",
                "retrysafe-cli",
            ]),
            Self::Tests => cargo(["build", "--locked", "--workspace", "--all-targets", "--quiet"]),
        }
    }

    fn folder(self) -> PathBuf {
        target_folder().join(match self {
            Self::Release => "release",
            Self::Tests => "debug",
        })
    }

    /// The proofs binary, which is told where the gateway is.
    fn proofs(self) -> Command {
        let mut command = Command::new(self.folder().join("proofs"));
        command.current_dir(root()).env("RETRYSAFE_BIN", self.folder().join("retrysafe"));
        command
    }
}

/// Reproduces one item, or every item of a slug, in full or at the reduced scale.
pub(crate) fn one(wanted: &str, quick: bool, rest: &[String]) -> Result<bool> {
    let items = items()?;
    let chosen = select(&items, wanted);
    if chosen.is_empty() {
        bail!("no proof is called {wanted}; `cargo xtask prove` lists them");
    }
    let mut command = Build::Release.proofs();
    command.arg("prove").args(chosen.iter().map(|item| &item.id));
    if quick {
        command.arg("--quick");
    }
    command.args(rest);
    Ok(holds(Build::Release.command())? && holds(command)?)
}

/// Every quick item at a reduced scale.
pub(crate) fn quick(rest: &[String]) -> Result<bool> {
    let [build, mut run] = quick_commands();
    run.args(rest);
    Ok(holds(build)? && holds(run)?)
}

/// The quick tier of the proofs: what builds them, what runs them.
pub(crate) fn quick_commands() -> [Command; 2] {
    let mut run = Build::Tests.proofs();
    run.args(["prove", "--quick"]);
    [Build::Tests.command(), run]
}

/// Runs the bench, all rows or some.
pub(crate) fn bench(json: bool, only: Option<&str>, rest: &[String]) -> Result<bool> {
    let mut command = Build::Release.proofs();
    command.arg("bench");
    if json {
        command.arg("--json");
    }
    if let Some(only) = only {
        command.args(["--only", only]);
    }
    command.args(rest);
    Ok(holds(Build::Release.command())? && holds(command)?)
}

fn holds(mut command: Command) -> Result<bool> {
    Ok(command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_complete_and_names_no_item_twice() {
        let items = items().expect("items.json is well formed");
        let ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
        for number in 1..=6 {
            assert!(ids.contains(&format!("main-job.{number}").as_str()), "main-job.{number} is missing");
        }
        let mut unique = ids.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), ids.len());
        assert!(items.iter().all(|item| !item.what.is_empty()));
    }

    #[test]
    fn an_id_chooses_one_item_and_a_slug_all_of_its_own() {
        let item = |id: &str| Item { id: id.into(), quick: false, what: "w".into() };
        let items = [item("main-job.1"), item("main-job.10"), item("other.1")];
        let ids = |wanted| select(&items, wanted).iter().map(|item| item.id.as_str()).collect::<Vec<_>>();
        assert_eq!(ids("main-job.1"), ["main-job.1"]);
        assert_eq!(ids("main-job"), ["main-job.1", "main-job.10"]);
        assert!(ids("main").is_empty());
        assert!(ids("").is_empty());
    }
}
