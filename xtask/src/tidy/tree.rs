//! The text files of the repository, read once.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::root::root;

/// Text files by their path from the root, in order. Binary files are left out.
pub(super) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// What git tracks, and what it would track: a new file is judged before it is added.
    pub(super) fn of_repository() -> Result<Self> {
        let output = Command::new("git")
            .current_dir(root())
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .context("tidy needs git to know which files belong to the repository")?;
        if !output.status.success() {
            bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
        let files = names.split('\0').filter(|name| !name.is_empty()).filter_map(|name| {
            let bytes = std::fs::read(root().join(name)).ok()?;
            Some((name.to_owned(), String::from_utf8(bytes).ok()?))
        });
        Ok(Self { files: files.collect() })
    }

    /// A tree from literal files.
    #[cfg(test)]
    pub(super) fn fixture(files: &[(&str, &str)]) -> Self {
        Self { files: files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Files below a folder (`""`: all) whose name has one of the extensions (none given: all).
    pub(super) fn under<'a>(
        &'a self,
        folder: &'a str,
        extensions: &'a [&'a str],
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str())).filter(move |(path, _)| {
            let extension = Path::new(path).extension().and_then(|extension| extension.to_str());
            path.starts_with(folder)
                && (extensions.is_empty() || extension.is_some_and(|it| extensions.contains(&it)))
        })
    }
}

/// Lines with their numbers from 1.
pub(super) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}
