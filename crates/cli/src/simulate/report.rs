//! What a simulation has to say, as a table, JSON, CSV and a figure: each made from the same numbers.

mod failures;
mod occ;
mod outage;

use std::{fmt::Write as _, path::Path};

use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value;

pub(super) use self::{failures::failures, occ::occ, outage::outage};
use crate::failure::Failure;

/// The results of one command.
pub(super) struct Report {
    /// What was simulated, in one line for people.
    pub(super) headline: String,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
    /// What the numbers mean, below the table.
    pub(super) notes: Vec<String>,
    pub(super) json: Value,
    pub(super) csv: Csv,
    pub(super) figure: Figure,
}

impl Report {
    /// The table with its headline and notes.
    pub(super) fn page(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(&self.columns);
        for row in &self.rows {
            table.add_row(row);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut page = format!("{}\n\n{table}\n", self.headline);
        for note in &self.notes {
            let _ = write!(page, "\n{note}");
        }
        page.push('\n');
        page
    }
}

/// A table for other programs.
pub(super) struct Csv {
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Csv {
    fn new(columns: &[&'static str]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// The text of the file. Names may hold commas and quotes; numbers do not.
    pub(super) fn text(&self) -> String {
        let mut text = self.columns.join(",");
        text.push('\n');
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(|cell| quoted(cell)).collect();
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// Panels that share their legend: line `n` of every panel is the same case.
pub(super) struct Figure {
    pub(super) title: String,
    pub(super) columns: usize,
    pub(super) panels: Vec<Panel>,
}

impl Figure {
    /// Without panels that have nothing to show.
    fn of(title: impl Into<String>, columns: usize, panels: Vec<Panel>) -> Self {
        let says =
            |panel: &Panel| panel.lines.iter().flat_map(|line| &line.points).any(|(_, height)| *height > 0.0);
        Self { title: title.into(), columns, panels: panels.into_iter().filter(says).collect() }
    }
}

/// One diagram.
#[derive(Default)]
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    pub(super) log_y: bool,
    pub(super) lines: Vec<Line>,
    /// The part of the x axis that is shaded: an outage.
    pub(super) shaded: Option<(f64, f64)>,
    /// A height to compare with, and what it is.
    pub(super) mark: Option<(f64, &'static str)>,
}

/// One case in one panel.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Writes a file, or says what the caller can do.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(|error| {
        Failure::runtime(format!("{} cannot be written: {error}; name another file", path.display()))
    })
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_comma_is_one_cell() {
        let csv = Csv {
            columns: vec!["case", "calls"],
            rows: vec![vec!["key=a,budget=\"b\"".to_owned(), "3".to_owned()]],
        };
        assert_eq!(csv.text(), "case,calls\n\"key=a,budget=\"\"b\"\"\",3\n");
    }
}
