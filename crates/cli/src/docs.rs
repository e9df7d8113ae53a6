//! `retrysafe docs`: what integrators have to know, printed from the contract (SPEC 8).
//!
//! [`facts`] takes from a contract what the page says, as plain values, with the schedule from the engine that retries;
//! [`page`] puts them into the texts and examples of a language. Nothing on the page is written down twice: a window that
//! changes in the contract changes the page, and `--check` says where the published one has fallen behind.

mod facts;
mod page;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use retrysafe_core::{contract::Contract, policy::Place};

pub(crate) use self::facts::{failure, titled};
use self::{
    facts::facts,
    page::{Example, Format, Language, Page, Topic},
};
use crate::failure::{Failure, exit};

/// A page says something else than the contract.
const DRIFTED: u8 = 1;

/// Print the integrator page of a contract: keys, windows, conflicts, failures, and a retry loop with its numbers
///
/// The page is all that people have who call the API by plain HTTP. It is made from the contract alone, in Markdown or as
/// one HTML file that needs nothing else, in English or Japanese, with examples that run.
///
/// Exit codes: 0 done, 1 a page has drifted (--check) or cannot be written, 2 wrong usage or a contract with faults.
#[derive(Args, Debug)]
#[command(after_help = "\
Try:
  retrysafe docs --base-url https://api.example.com             the page, in Markdown
  retrysafe docs --base-url https://api.example.com --out docs/idempotency.html
  retrysafe docs --base-url https://api.example.com --check docs/idempotency.html    in CI
  retrysafe docs --pages docs/idempotency                       this page, and three more beside it
  retrysafe docs --page formulas                                one of them
  retrysafe docs --example python                               one example alone

The guide: docs/guides/integrator-page.md")]
pub(crate) struct DocsArgs {
    /// The contract
    #[arg(default_value = "retrysafe.toml")]
    file: PathBuf,
    /// Where the API is, in the examples
    #[arg(long, value_name = "URL", default_value = "https://api.example.com")]
    base_url: String,
    /// The language of the page
    #[arg(long, value_enum, default_value_t = Language::En)]
    lang: Language,
    /// The form of the page; by default what the name of --out or --check says, else Markdown
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Where the contract is enforced: in front of the API, or inside it
    #[arg(long, value_enum, default_value_t = At::Gateway)]
    place: At,
    /// Which page
    #[arg(long, value_enum, default_value_t = Topic::Retrying)]
    page: Topic,
    /// Write the page to this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["check", "example"])]
    out: Option<PathBuf>,
    /// Write all pages into this folder, which is made if it is not there
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["out", "check", "example", "page"])]
    pages: Option<PathBuf>,
    /// Compare the page with this file, or all pages with those in this folder, and say where they differ
    #[arg(long, value_name = "FILE|FOLDER", conflicts_with = "example")]
    check: Option<PathBuf>,
    /// Print the example in one programming language, and nothing else
    #[arg(long, value_enum)]
    example: Option<Example>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum At {
    Gateway,
    Library,
}

/// Prints, writes or compares the page.
pub(crate) fn run(args: &DocsArgs) -> ExitCode {
    match produce(args) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(drift)) => {
            anstream::eprintln!("{drift}");
            ExitCode::from(DRIFTED)
        }
        Err(failure) => exit(Err(failure)),
    }
}

/// `Some` is how a page has drifted.
fn produce(args: &DocsArgs) -> Result<Option<String>, Failure> {
    let file = args.file.display().to_string();
    let text = std::fs::read_to_string(&args.file).map_err(|error| {
        Failure::usage(format!("{file} cannot be read: {error}; name the contract: retrysafe docs FILE"))
    })?;
    let contract = Contract::parse(&text, &file).map_err(Failure::usage)?;
    let place = match args.place {
        At::Gateway => Place::Gateway,
        At::Library => Place::Library,
    };
    let page =
        Page::new(facts(&contract, place, args.base_url.trim_end_matches('/'))).map_err(Failure::runtime)?;
    if let Some(example) = args.example {
        anstream::print!("{}", page.example(example).map_err(Failure::runtime)?);
        return Ok(None);
    }
    let named = args.out.as_deref().or(args.check.as_deref()).and_then(format_of);
    let made = |topic, format: Option<Format>| {
        page.render(topic, args.lang, format.unwrap_or(Format::Markdown)).map_err(Failure::runtime)
    };
    let format = args.format.or(named);
    match (&args.pages, &args.out, &args.check) {
        (Some(folder), ..) => {
            std::fs::create_dir_all(folder).map_err(|error| unwritten(folder, &error))?;
            for topic in Topic::ALL {
                write(&file_of(folder, topic, format), &made(topic, format)?)?;
            }
            Ok(None)
        }
        (None, Some(path), _) => write(path, &made(args.page, format)?).map(|()| None),
        (None, None, Some(folder)) if folder.is_dir() => {
            let mut drifts = Vec::new();
            for topic in Topic::ALL {
                // Whichever form is there; one that is missing is said so.
                let html = file_of(folder, topic, Some(Format::Html));
                let format = format.or(html.exists().then_some(Format::Html));
                drifts.extend(compare(&file_of(folder, topic, format), &made(topic, format)?)?);
            }
            Ok((!drifts.is_empty()).then(|| drifts.join("\n")))
        }
        (None, None, Some(path)) => compare(path, &made(args.page, format)?),
        (None, None, None) => {
            print!("{}", made(args.page, format)?);
            Ok(None)
        }
    }
}

fn file_of(folder: &Path, topic: Topic, format: Option<Format>) -> PathBuf {
    folder.join(topic.file()).with_extension(format.unwrap_or(Format::Markdown).extension())
}

fn write(path: &Path, made: &str) -> Result<(), Failure> {
    std::fs::write(path, made).map_err(|error| unwritten(path, &error))
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    Failure::runtime(format!("{} cannot be written: {error}", path.display()))
}

/// How a kept page has drifted, if it has.
fn compare(path: &Path, made: &str) -> Result<Option<String>, Failure> {
    let kept = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{} cannot be read: {error}", path.display())))?;
    Ok(drift(&kept, made).map(|drift| format!("{}: {drift}", path.display())))
}

fn format_of(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()? {
        "html" | "htm" => Some(Format::Html),
        "md" | "markdown" => Some(Format::Markdown),
        _ => None,
    }
}

/// Where a kept page differs from the one that the contract makes now. Ends of lines do not count.
fn drift(kept: &str, made: &str) -> Option<String> {
    let (kept, made): (Vec<&str>, Vec<&str>) = (kept.lines().collect(), made.lines().collect());
    let lines = kept.len().max(made.len());
    let differs = |place: &usize| kept.get(*place) != made.get(*place);
    let first = (0..lines).find(differs)?;
    let count = (0..lines).filter(differs).count();
    let line =
        |page: &[&str]| page.get(first).map_or_else(|| "(nothing)".to_owned(), |line| line.trim().to_owned());
    Some(format!(
        "line {}: the page has drifted from the contract ({count} lines); make it anew with --out\n  page:     {}\n  contract: {}",
        first + 1,
        line(&kept),
        line(&made)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_told_at_its_first_line() {
        assert_eq!(drift("a\r\nb\n", "a\nb"), None);
        let told = drift("a\n24h\nc", "a\n48h\nc\nd").unwrap();
        assert!(
            told.starts_with("line 2:")
                && told.contains("24h")
                && told.contains("48h")
                && told.contains("2 lines"),
            "{told}"
        );
    }
}
