//! `docs/reference/contract.md` and the reader say the same: the same fields, and the defaults that the page prints.
#![allow(clippy::panic)] // helpers fail the test that calls them

use std::collections::BTreeMap;

use retrysafe_core::contract::{Contract, Offered, Severity, TABLES};
use retrysafe_core::policy::Place;

const PAGE: &str = include_str!("../../../docs/reference/contract.md");

/// Field and default of every row, by heading, in the page's order.
fn rows() -> BTreeMap<&'static str, Vec<(&'static str, &'static str)>> {
    let mut by_heading: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    let mut heading = "";
    for line in PAGE.lines() {
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim();
        }
        let Some(row) = line.strip_prefix("| `") else { continue };
        let cells: Vec<&str> = row.split(" | ").collect();
        by_heading.entry(heading).or_default().push((cells[0].trim_end_matches('`'), cells[2].trim()));
    }
    by_heading
}

#[test]
fn every_field_has_a_row_and_every_row_a_field() {
    let rows = rows();
    for (table, fields) in TABLES {
        let on_page: Vec<&str> = rows.get(table).into_iter().flatten().map(|(field, _)| *field).collect();
        assert_eq!(on_page, *fields, "table {table:?}");
    }
    let known: Vec<&str> = TABLES.iter().map(|(table, _)| *table).collect();
    let strange: Vec<&&str> = rows.keys().filter(|heading| !known.contains(heading)).collect();
    assert!(strange.is_empty(), "the reader knows no such table: {strange:?}");
}

/// Every default that the page prints as a value, written out, changes nothing.
#[test]
fn the_defaults_of_the_page_are_the_defaults_of_the_reader() {
    let rows = rows();
    let mut spelled = String::new();
    let mut written = 0;
    for table in
        ["top level", "policies", "carrier", "fingerprint", "in_flight", "windows", "limits", "client"]
    {
        let top = table == "top level" || table == "policies";
        if !top {
            spelled += &format!("[{table}]\n");
        }
        for (field, default) in &rows[table] {
            let Some(value) = default.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) else {
                continue;
            };
            // A name of another field, or what makes no sense beside another default.
            if value == "longest_retry_chain" || *field == "wait_at_most" {
                continue;
            }
            spelled += &format!("{field} = {value}\n");
            written += 1;
        }
    }
    assert!(written > 25, "{spelled}");
    let required = "api = \"Shop\"\nnamespace = \"shop\"\nlongest_retry_chain = \"24h\"\nunlisted = \"pass\"\n\
                    scope = { source = \"api_key\", rotates = false }\nfailures = { policy = \"A\" }\n";
    let endpoint = "[[endpoint]]\nmethod = \"POST\"\npath = \"/orders\"\nkey = \"required\"\n";
    assert_eq!(shown(&format!("{required}{spelled}{endpoint}")), shown(&format!("{required}{endpoint}")));
    // The two that hold a default of another table's time, and the one that needs its own answer.
    let waits = |more: &str| shown(&format!("{required}[in_flight]\nanswer = \"wait\"\n{more}{endpoint}"));
    assert_eq!(waits("wait_at_most = \"10s\"\n"), waits(""));
}

/// The contract in every respect but the line its endpoint stands on.
fn shown(text: &str) -> String {
    let mut contract = Contract::parse(text, "page.toml").unwrap_or_else(|faults| panic!("{faults}"));
    contract.endpoints[0].line = 0;
    format!("{contract:#?}")
}

#[test]
fn the_examples_of_the_documents_load_and_can_be_kept() {
    let readme = include_str!("../../../README.md");
    for (name, page) in [("contract.md", PAGE), ("README.md", readme)] {
        let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
        let contract =
            Contract::parse(example.unwrap_or_default(), name).unwrap_or_else(|faults| panic!("{faults}"));
        let found = contract.check(&Offered::sqlite(Place::Gateway));
        assert!(found.iter().all(|one| one.severity != Severity::Error), "{name}: {found:#?}");
    }
}
