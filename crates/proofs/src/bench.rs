//! `bench`: what the machinery costs, as ratios to a baseline measured in the same run.

mod figures;
mod floors;
mod rounds;
mod rows;

use anyhow::{Result, bail};
use clap::Args;
use comfy_table::{Table, presets};

pub(crate) use figures::Row;

/// What the command line chooses.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// One JSON object a line: name, ratio, baseline, spread
    #[arg(long)]
    pub(crate) json: bool,
    /// Only the rows whose group starts with this
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Interleaved rounds; the figure is the median
    #[arg(long, default_value_t = 9)]
    pub(crate) rounds: usize,
    /// Divides the number of requests and keys, for a quick look
    #[arg(long, default_value_t = 1)]
    pub(crate) shrink: u64,
}

/// Runs the chosen groups and prints their rows; `true` if every bound holds.
///
/// # Errors
/// A server cannot be started, or answers with anything but success.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let chosen: Vec<_> = rows::GROUPS
        .iter()
        .filter(|group| options.only.as_ref().is_none_or(|only| group.name.starts_with(only.as_str())))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = rows::GROUPS.iter().map(|group| group.name).collect();
        bail!("no such rows; there are {}", names.join(", "));
    }
    let mut all = Vec::new();
    for group in chosen {
        if !options.json {
            println!("{}: {}", group.name, group.what);
        }
        let rows = (group.run)(options)?;
        if options.json {
            for row in &rows {
                println!("{}", row.json());
            }
        }
        all.extend(rows);
    }
    if !options.json {
        for row in &all {
            println!("{}\n    {}\n    to {}", row.name, row.detail, row.baseline);
        }
        println!("{}", table(&all));
    }
    Ok(all.iter().all(Row::holds))
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["row", "ratio", "spread", "bound", ""]);
    for row in rows {
        table.add_row([
            row.name.clone(),
            format!("{:.3}", row.ratio),
            format!("{:.3}-{:.3}", row.spread.0, row.spread.1),
            row.bound.map(|bound| bound.to_string()).unwrap_or_default(),
            if row.holds() { "ok" } else { "FAILS" }.to_owned(),
        ]);
    }
    table
}
