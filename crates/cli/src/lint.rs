//! `retrysafe lint`: sentences in documents that promise what nobody can keep, or other numbers than the contract.
//!
//! [`prose`] takes a document apart into sentences, without code; [`rules`] judges one sentence at a time, with its negations
//! and quotations, in English and Japanese. Both are pure; this file finds the documents and prints.

mod numbers;
mod prose;
mod rules;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use retrysafe_core::contract::Contract;
use serde_json::json;

use self::rules::{Finding, Severity};
use crate::failure::{Failure, exit};

/// At least one error was found.
const FOUND: u8 = 1;
/// More documents than any project has, and a bound for a link that leads in circles.
const DOCUMENTS_MAX: usize = 100_000;
const EXTENSIONS: &[&str] = &["md", "markdown", "txt", "html", "htm"];

/// Find false promises in documents, and numbers that disagree with the contract
///
/// Delivery that happens once and only once is promised in many documents and kept by nobody. This finds the claim, and
/// leaves sentences alone that deny it, quote it or mean a closed system. With a contract, windows, attempts and key lengths
/// that the documents state are compared with it. Each finding prints what to say instead.
///
/// Exit codes: 0 no error, 1 errors (with --strict, warnings too), 2 wrong usage or a contract with faults.
#[derive(Args, Debug)]
pub(crate) struct LintArgs {
    /// Documents, or folders of them: .md, .txt, .html
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// The contract that the documents' numbers are compared with
    #[arg(long, value_name = "FILE")]
    contract: Option<PathBuf>,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads the documents, prints what was found.
pub(crate) fn run(args: &LintArgs) -> ExitCode {
    match lint(args) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(FOUND),
        Err(failure) => exit(Err(failure)),
    }
}

/// How many findings count as errors.
fn lint(args: &LintArgs) -> Result<usize, Failure> {
    let contract = args.contract.as_deref().map(contract).transpose()?;
    let documents = documents(&args.paths)?;
    if documents.is_empty() {
        return Err(Failure::usage(format!(
            "there is no document here; lint reads .{}",
            EXTENSIONS.join(", .")
        )));
    }
    let mut found: Vec<(String, Finding)> = Vec::new();
    for path in &documents {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|error| {
            Failure::runtime(format!("{name} cannot be read: {error}; name documents that can"))
        })?;
        let text = String::from_utf8_lossy(&bytes);
        let html = matches!(extension(path), Some("html" | "htm"));
        for sentence in prose::sentences(&text, html) {
            let findings = rules::judge(&sentence, contract.as_ref());
            found.extend(findings.into_iter().map(|finding| (name.clone(), finding)));
        }
    }
    let counts = |finding: &Finding| args.strict || finding.severity == Severity::Error;
    let errors = found.iter().filter(|(_, finding)| counts(finding)).count();
    if args.json {
        let row = |(path, finding): &(String, Finding)| {
            json!({
                "path": path, "line": finding.line, "rule": finding.rule, "severity": finding.severity.as_str(),
                "sentence": finding.sentence, "message": finding.message, "instead": finding.instead,
            })
        };
        let findings: Vec<_> = found.iter().map(row).collect();
        anstream::println!(
            "{}",
            json!({ "documents": documents.len(), "errors": errors, "findings": findings })
        );
    } else {
        for (path, Finding { line, rule, severity, sentence, message, instead }) in &found {
            let style = severity.colour().on_default().bold();
            anstream::println!(
                "{path}:{line}: {style}{}{style:#} {rule}: {message}\n  | {sentence}\n  say: {instead}\n",
                severity.as_str()
            );
        }
        anstream::println!("{} documents, {} findings, {errors} errors", documents.len(), found.len());
    }
    Ok(errors)
}

fn contract(path: &Path) -> Result<Contract, Failure> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("{file} cannot be read: {error}; name a contract with --contract"))
    })?;
    Contract::parse(&text, &file).map_err(Failure::usage)
}

/// The documents below these paths, in the order of their names. What is named is read whatever its ending.
fn documents(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for path in paths {
        if !path.exists() {
            return Err(Failure::usage(format!("{} does not exist", path.display())));
        }
        if path.is_file() {
            found.push(path.clone());
            continue;
        }
        let mut folders = vec![path.clone()];
        while let Some(folder) = folders.pop() {
            let unreadable =
                |error| Failure::runtime(format!("{} cannot be read: {error}", folder.display()));
            for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
                let entry = entry.map_err(unreadable)?;
                let hidden = entry.file_name().to_string_lossy().starts_with('.');
                // Links are not followed: they may lead back here.
                let kind = entry.file_type().map_err(unreadable)?;
                if kind.is_dir() && !hidden {
                    folders.push(entry.path());
                } else if kind.is_file()
                    && extension(&entry.path()).is_some_and(|end| EXTENSIONS.contains(&end))
                {
                    found.push(entry.path());
                }
                if found.len() > DOCUMENTS_MAX {
                    return Err(Failure::usage(format!(
                        "more than {DOCUMENTS_MAX} documents; name fewer folders"
                    )));
                }
            }
        }
    }
    found.sort();
    Ok(found)
}

fn extension(path: &Path) -> Option<&str> {
    path.extension()?.to_str()
}
