//! client.6: what retries cost a call that succeeds at once, beside other packages in one run; and their measured defects.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use serde::Deserialize;

use crate::{
    prove::Scale,
    tools::{self, root},
};

/// A first try that succeeds may cost this much more than the bare call.
const OVER_NS_MAX: i64 = 1_000;
/// The contestants that the bounds are about, and the allocations that they may make: none, and the key.
const BOUNDED: [(&str, i64); 2] = [("call, retrysafe", 0), ("call, retrysafe with a key", 1)];

#[derive(Deserialize)]
#[serde(untagged)]
enum Row {
    Cost {
        name: String,
        bare: String,
        ns: u64,
        over_ns: i64,
        over_allocations: i64,
    },
    Defect {
        defect: String,
        package: String,
        input: String,
        theirs: String,
        ours: String,
        right: String,
        holds: bool,
    },
}

pub(crate) fn prove(_: Scale) -> Result<bool> {
    let output = Command::new(build()?).output().context("the peers")?;
    if !output.status.success() {
        bail!("the peers end with an error: {}", String::from_utf8_lossy(&output.stderr));
    }
    let rows: Vec<Row> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("a row of the peers: {line}")))
        .collect::<Result<_>>()?;
    let (mut costs, mut defects) = (table(), table());
    costs.set_header(["first try that succeeds", "ns", "over bare, ns", "allocations over bare"]);
    defects.set_header(["defect", "package", "input", "theirs", "ours", "right"]);
    let (mut kept, mut cured) = (0, 0);
    let (mut bounds, mut all) = (Vec::new(), 0);
    for row in &rows {
        match row {
            Row::Cost { name, bare, ns, over_ns, over_allocations } => {
                let over = if name == bare { String::new() } else { over_ns.to_string() };
                let allocations = if name == bare { String::new() } else { over_allocations.to_string() };
                costs.add_row([name.clone(), ns.to_string(), over, allocations]);
                if let Some((_, max)) = BOUNDED.iter().find(|(bounded, _)| bounded == name) {
                    kept += usize::from(*over_ns <= OVER_NS_MAX && over_allocations <= max);
                    bounds.push(format!("{name}: {over_ns} ns, {over_allocations} allocations"));
                }
            }
            Row::Defect { defect, package, input, theirs, ours, right, holds } => {
                all += 1;
                cured += usize::from(*holds);
                defects.add_row([defect, package, input, theirs, ours, right]);
            }
        }
    }
    println!("{costs}\n{defects}");
    println!(
        "{cured} of {all} defects are none of ours; {} (at most {OVER_NS_MAX} ns, 0 and 1 allocations)",
        bounds.join("; ")
    );
    Ok(kept == BOUNDED.len() && all > 0 && cured == all)
}

fn build() -> Result<PathBuf> {
    let manifest =
        include_str!("../../../peers/retries.toml.in").replace("@ROOT@", &root().display().to_string());
    let files = [
        ("Cargo.toml", manifest.as_str()),
        ("src/main.rs", include_str!("../../../peers/retries.rs")),
        ("src/defects.rs", include_str!("../../../peers/retries_defects.rs")),
    ];
    tools::peer("retries", "retries", &files)
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table
}
