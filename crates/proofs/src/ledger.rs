//! What really happened, counted apart from every claim (spec 10.3): one line for each effect.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One effect, in the shape of the sample shop's `GET /ledger`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) endpoint: String,
    pub(crate) key: Option<String>,
    pub(crate) account: Option<String>,
}

/// Effects in memory, and in a file where they must outlive a killed process.
///
/// The file is appended by one `write` per entry and not synced: a killed process loses nothing that
/// reached the kernel. Power cuts are proven elsewhere, with a file system that forgets.
pub(crate) struct Ledger {
    entries: Mutex<Vec<Entry>>,
    file: Option<File>,
}

impl Ledger {
    pub(crate) fn in_memory() -> Self {
        Self { entries: Mutex::default(), file: None }
    }

    pub(crate) fn open(path: &Path) -> Result<Self> {
        let context = || format!("ledger {}", path.display());
        let file =
            OpenOptions::new().create(true).append(true).read(true).open(path).with_context(context)?;
        let mut entries = Vec::new();
        for line in BufReader::new(&file).lines() {
            entries.push(serde_json::from_str(&line?).with_context(context)?);
        }
        Ok(Self { entries: Mutex::new(entries), file: Some(file) })
    }

    /// Records one effect and gives it its id.
    pub(crate) fn append(&self, endpoint: &str, key: Option<&str>, account: Option<&str>) -> Result<String> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = Entry {
            // Unique over restarts: a reopened ledger goes on counting.
            id: format!("ord_{:08}", entries.len() + 1),
            endpoint: endpoint.to_owned(),
            key: key.map(str::to_owned),
            account: account.map(str::to_owned),
        };
        if let Some(mut file) = self.file.as_ref() {
            let line = serde_json::to_string(&entry)? + "\n";
            file.write_all(line.as_bytes()).context("append to the ledger")?;
        }
        let id = entry.id.clone();
        entries.push(entry);
        Ok(id)
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reopened_ledger_knows_its_entries_and_counts_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ledger");
        let first = Ledger::open(&path).expect("opens").append("/orders", Some("k"), None).expect("writes");
        let ledger = Ledger::open(&path).expect("opens again");
        assert_eq!(ledger.entries().len(), 1);
        let second = ledger.append("/orders", Some("k"), None).expect("writes");
        assert_ne!(first, second);
        assert_eq!(Ledger::open(&path).expect("opens again").entries().len(), 2);
    }
}
