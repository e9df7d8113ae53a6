//! `retrysafe audit --code`: anti-patterns of retries in source code.

use std::path::{Path, PathBuf};

use retrysafe_audit::{
    Severity,
    code::{Finding, Language},
};
use serde_json::{Value, json};

use super::{sarif, view::colour};
use crate::failure::Failure;

/// More files than a repository has, and a bound for one that generates them.
const FILES_MAX: usize = 200_000;
/// Folders of others' code, and of what is made.
const SKIPPED: &[&str] =
    &["node_modules", "target", "vendor", "dist", "build", "__pycache__", "venv", "site-packages"];

/// What was found in all files.
#[derive(Default)]
pub(super) struct Sources {
    files: usize,
    found: Vec<(String, Finding)>,
    /// Files of which a part, or all, could not be read.
    unread: Vec<(String, String)>,
}

impl Sources {
    /// Reads the files, or those below the folders.
    pub(super) fn of(paths: &[PathBuf]) -> Result<Self, Failure> {
        let mut sources = Self::default();
        for (path, language) in files(paths)? {
            sources.one(&path, language);
        }
        if sources.files == 0 {
            return Err(Failure::usage("there is no source here; .rs, .py, .js, .ts, .tsx and .go are read"));
        }
        Ok(sources)
    }

    fn one(&mut self, path: &Path, language: Language) {
        self.files += 1;
        let name = path.display().to_string();
        let read = std::fs::read(path).map_err(|error| error.to_string());
        let text = read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        match text.and_then(|text| retrysafe_audit::code::audit(&text, language)) {
            Ok(found) => {
                if found.broken {
                    self.unread.push((
                        name.clone(),
                        "a part of it is not of its language; the rest was read".to_owned(),
                    ));
                }
                self.found.extend(found.findings.into_iter().map(|finding| (name.clone(), finding)));
            }
            Err(why) => self.unread.push((name, why)),
        }
    }

    /// How many findings are at least this bad.
    pub(super) fn count(&self, worst: Severity) -> usize {
        self.found.iter().filter(|(_, finding)| finding.rule.severity <= worst).count()
    }

    pub(super) fn page(&self) -> String {
        let mut page = String::new();
        for (path, Finding { rule, line, quote }) in &self.found {
            let style = colour(rule.severity).on_default().bold();
            page += &format!(
                "{path}:{line}: {style}{} {}{style:#}: {}\n  | {quote}\n  do: {}\n\n",
                rule.severity.as_str(),
                rule.id,
                rule.finds,
                rule.help
            );
        }
        for (path, why) in &self.unread {
            page += &format!("{path}: {why}\n");
        }
        let (errors, warnings) = (self.count(Severity::Error), self.count(Severity::Warning));
        page + &format!(
            "{} files, {errors} errors, {} warnings; {} files not wholly understood\n",
            self.files,
            warnings - errors,
            self.unread.len()
        )
    }

    pub(super) fn json(&self) -> String {
        let row = |(path, finding): &(String, Finding)| {
            json!({
                "path": path, "line": finding.line, "rule": finding.rule.id, "severity": finding.rule.severity.as_str(),
                "message": finding.rule.finds, "help": finding.rule.help, "quote": finding.quote,
            })
        };
        let unread: Vec<Value> =
            self.unread.iter().map(|(path, why)| json!({ "path": path, "why": why })).collect();
        let findings: Vec<Value> = self.found.iter().map(row).collect();
        let all = json!({
            "files": self.files, "errors": self.count(Severity::Error), "findings": findings, "not_understood": unread,
        });
        format!("{all}\n")
    }

    pub(super) fn sarif(&self) -> String {
        let results = self.found.iter().map(|(path, finding)| {
            json!({
                "ruleId": finding.rule.id, "level": sarif::level(finding.rule.severity),
                "message": { "text": format!("{}. {}.", finding.rule.finds, finding.rule.help) },
                "locations": [{ "physicalLocation": {
                    "artifactLocation": { "uri": path }, "region": { "startLine": finding.line },
                } }],
            })
        });
        sarif::log(results.collect())
    }
}

/// The files of known languages, in the order of their names. What is named is read; below folders, hidden ones, links and
/// others' code are left out.
fn files(paths: &[PathBuf]) -> Result<Vec<(PathBuf, Language)>, Failure> {
    let language = |path: &Path| path.extension().and_then(|end| Language::of(end.to_str()?));
    let mut found = Vec::new();
    let mut folders = Vec::new();
    for path in paths {
        if path.is_dir() {
            folders.push(path.clone());
        } else if !path.exists() {
            return Err(Failure::usage(format!("{} does not exist", path.display())));
        } else {
            let known = language(path).ok_or_else(|| {
                Failure::usage(format!(
                    "{} is of no language that is read (.rs, .py, .js, .ts, .tsx, .go)",
                    path.display()
                ))
            })?;
            found.push((path.clone(), known));
        }
    }
    while let Some(folder) = folders.pop() {
        let unreadable = |error| Failure::runtime(format!("{} cannot be read: {error}", folder.display()));
        for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().map_err(unreadable)?;
            let path = entry.path();
            if kind.is_dir() && !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) {
                folders.push(path);
            } else if kind.is_file()
                && let Some(known) = language(&path)
            {
                found.push((path, known));
            }
            if found.len() > FILES_MAX {
                return Err(Failure::usage(format!("more than {FILES_MAX} files; name fewer folders")));
            }
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}
