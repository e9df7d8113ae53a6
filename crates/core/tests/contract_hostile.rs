//! Files that nobody meant: whatever is in them, the answer is a contract or faults with places, and never a panic.

use proptest::prelude::*;
use retrysafe_core::{
    contract::{Contract, Offered},
    policy::Place,
};

const FULL: &str = include_str!("contract/full.toml");
const BAD: &str = include_str!("contract/bad.toml");

/// What people and editors do to a file.
#[derive(Clone, Debug)]
enum Edit {
    Drop(usize),
    Twice(usize),
    Swap(usize, usize),
    Take(usize),
    Put(usize, usize, String),
}

fn edit() -> impl Strategy<Value = Edit> {
    let line = 0..200_usize;
    prop_oneof![
        line.clone().prop_map(Edit::Drop),
        line.clone().prop_map(Edit::Twice),
        (line.clone(), line.clone()).prop_map(|(a, b)| Edit::Swap(a, b)),
        line.clone().prop_map(Edit::Take),
        (line, 0..60_usize, "[\\[\\]{}=\"'.,0-9a-z\\n\\t%é\u{0}\u{202e}]{1,4}")
            .prop_map(|(l, c, t)| Edit::Put(l, c, t)),
    ]
}

fn edited(text: &str, edits: &[Edit]) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for edit in edits {
        let len = lines.len().max(1);
        if lines.is_empty() {
            break;
        }
        match edit {
            Edit::Drop(at) => drop(lines.remove(at % len)),
            Edit::Twice(at) => lines.insert(at % len, lines[at % len].clone()),
            Edit::Swap(a, b) => lines.swap(a % len, b % len),
            // Half a line, as when somebody stops typing.
            Edit::Take(at) => {
                let line = &mut lines[at % len];
                *line = line.chars().take(line.chars().count() / 2).collect();
            }
            Edit::Put(at, column, text) => {
                let line = &mut lines[at % len];
                let at = line.char_indices().map(|(at, _)| at).nth(*column).unwrap_or(line.len());
                line.insert_str(at, text);
            }
        }
    }
    lines.join("\n")
}

fn holds(text: &str) -> Result<(), TestCaseError> {
    match Contract::parse(text, "hostile.toml") {
        Ok(contract) => {
            for place in [Place::Gateway, Place::Library] {
                for offered in [Offered::memory(place), Offered::sqlite(place)] {
                    prop_assert!(contract.check(&offered).iter().all(|one| !one.help.is_empty()));
                }
            }
            for endpoint in &contract.endpoints {
                // What the reader let through is complete and in bounds.
                prop_assert!(endpoint.windows.replay >= contract.longest_retry_chain);
                prop_assert!(endpoint.windows.reap >= endpoint.windows.replay);
                prop_assert!(endpoint.path.starts_with('/') && endpoint.line >= 1);
            }
        }
        Err(faults) => {
            let lines = text.lines().count().max(1);
            prop_assert!(!faults.faults.is_empty());
            for fault in &faults.faults {
                // One past the end: what is missing at the end of the file.
                prop_assert!((1..=lines + 1).contains(&fault.line) && fault.column >= 1, "{fault:?}");
                prop_assert!(!fault.message.is_empty() && !fault.help.is_empty(), "{fault:?}");
            }
            prop_assert!(faults.to_string().ends_with("the contract is not loaded"));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_edited_contract_is_read_or_refused(edits in prop::collection::vec(edit(), 1..6), bad in any::<bool>()) {
        holds(&edited(if bad { BAD } else { FULL }, &edits))?;
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        holds(&text)?;
    }
}
