//! `retrysafe design`: the questions, asked at once; a contract, and the reasons for it.
//!
//! `retrysafe-design` decides. This collects the answers (from a person, a file, or flags), says which were assumed, checks what was
//! written as `retrysafe check` would, and writes it down.

mod ask;

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use retrysafe_audit::{Bundle, Node, Verdict};
use retrysafe_core::{
    contract::{Contract, Offered, Severity},
    policy,
};
use retrysafe_design::{Answers, Place, Plan, QUESTIONS, contract, difference, record};

use crate::failure::{Failure, exit};

/// Answer the design questions and get a contract, with the reasons for it
///
/// Asks everything at once: interface, operations, store, external effects, SDKs, the longest chain of retries, and how far a change
/// may go; then who controls the retry loop. At a terminal it asks; otherwise it reads a file of answers, or flags. What is assumed is
/// said. The ways to claim a key are ranked by value, effort and efficiency; what cannot be reached is removed, with its reason.
///
/// The contract passes `retrysafe check`. Nothing that is there is overwritten without --force.
///
/// Exit codes: 0 done, 1 a file cannot be written, 2 answers are missing or are none.
#[derive(Args, Debug)]
#[command(after_help = "\
Try:
  retrysafe design                                             # asks
  retrysafe design --questions                                 # what will be asked, and what is assumed
  retrysafe design --openapi openapi.yaml --set api=Shop --set callers=third_parties --set identity=api_key
  retrysafe design --answers answers.toml --record docs/decisions/retries.md
  retrysafe design --answers answers.toml --set store=kv       # what would be different")]
pub(crate) struct DesignArgs {
    /// Answers, as TOML
    #[arg(long, value_name = "FILE")]
    answers: Option<PathBuf>,
    /// One answer; with --answers the difference that it makes is printed, and nothing written unless --out is named
    #[arg(long, value_name = "FIELD=VALUE")]
    set: Vec<String>,
    /// Take the operations that are not idempotent from an OpenAPI document
    #[arg(long, value_name = "FILE")]
    openapi: Option<PathBuf>,
    /// Where the contract is written
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Where the decision record is written (Markdown); it is printed otherwise
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Where the answers are written, to be changed later
    #[arg(long, value_name = "FILE")]
    save_answers: Option<PathBuf>,
    /// Overwrite files
    #[arg(long)]
    force: bool,
    /// List the questions
    #[arg(long)]
    questions: bool,
}

/// Where the contract goes if nobody says otherwise.
const CONTRACT: &str = "retrysafe.toml";

/// Asks, decides, writes.
pub(crate) fn run(args: &DesignArgs) -> ExitCode {
    if args.questions {
        ask::list();
        return ExitCode::SUCCESS;
    }
    exit(design(args))
}

fn design(args: &DesignArgs) -> Result<(), Failure> {
    let mut table = match &args.answers {
        Some(file) => answers_file(file)?,
        None => toml::Table::new(),
    };
    let before = table.clone();
    if let Some(document) = &args.openapi {
        table.insert("endpoints".into(), toml::Value::Array(operations(document)?));
    }
    for setting in &args.set {
        let (field, value) = setting_of(setting)?;
        table.insert(field, value);
    }
    let asks = args.answers.is_none() && args.set.is_empty() && std::io::stdin().is_terminal();
    if asks {
        ask::all(&mut table)?;
    }
    let answers = completed(&table, !asks)?;
    let changed = args.answers.is_some() && !args.set.is_empty();
    if changed && let Ok(old) = completed(&before, false) {
        for line in difference(&old, &answers) {
            let style =
                if line.starts_with('+') { anstyle::AnsiColor::Green } else { anstyle::AnsiColor::Red }
                    .on_default();
            anstream::println!("{style}{line}{style:#}");
        }
        if args.out.is_none() {
            return Ok(());
        }
    }
    let plan = Plan::of(&answers);
    let text = contract(&answers, &plan);
    kept(&text, plan.place)?;
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(CONTRACT));
    write(&out, &text, args.force)?;
    let page = record(&answers, &plan);
    match &args.record {
        Some(file) => write(file, &page, args.force)?,
        None => anstream::print!("{page}"),
    }
    if let Some(file) = &args.save_answers {
        let text = toml::to_string(&with_defaults(&table).0).map_err(Failure::runtime)?;
        write(file, &text, args.force)?;
    }
    anstream::eprintln!("{} is written; it passes retrysafe check", out.display());
    Ok(())
}

/// The answers, with the defaults where nobody answered; says which were assumed, or which are missing.
fn completed(table: &toml::Table, say: bool) -> Result<Answers, Failure> {
    let (whole, assumed) = with_defaults(table);
    let missing: Vec<&str> =
        QUESTIONS.iter().filter(|one| !whole.contains_key(one.field)).map(|one| one.field).collect();
    if !missing.is_empty() {
        return Err(Failure::usage(format!(
            "only you can answer {}; pass --set FIELD=VALUE, a file with --answers, or run it at a terminal (--questions explains)",
            missing.join(", ")
        )));
    }
    for (field, value, why) in assumed.iter().filter(|_| say) {
        anstream::eprintln!("assumed {field} = {value}: {why}");
    }
    let text = toml::to_string(&whole).map_err(Failure::runtime)?;
    Answers::parse(&text).map_err(Failure::usage)
}

type Assumed = (&'static str, &'static str, &'static str);

fn with_defaults(table: &toml::Table) -> (toml::Table, Vec<Assumed>) {
    let mut whole = table.clone();
    let mut assumed = Vec::new();
    for question in QUESTIONS.iter().filter(|one| !table.contains_key(one.field)) {
        let Some((value, why)) = question.default else { continue };
        whole.insert(question.field.to_owned(), value_of(question.field, value));
        assumed.push((question.field, value, why));
    }
    (whole, assumed)
}

/// A word as the value of its field.
fn value_of(field: &str, word: &str) -> toml::Value {
    match field {
        "endpoints" | "sdk_languages" => {
            let items = word.split(',').map(str::trim).filter(|one| !one.is_empty());
            toml::Value::Array(items.map(toml::Value::from).collect())
        }
        _ => match word {
            "true" | "yes" => true.into(),
            "false" | "no" => false.into(),
            word => word.into(),
        },
    }
}

fn setting_of(setting: &str) -> Result<(String, toml::Value), Failure> {
    let (field, value) = setting
        .split_once('=')
        .ok_or_else(|| Failure::usage(format!("--set {setting}: write FIELD=VALUE, as --set store=kv")))?;
    if !QUESTIONS.iter().any(|one| one.field == field) {
        return Err(Failure::usage(format!("--set {field}: no such question; --questions lists them")));
    }
    Ok((field.to_owned(), value_of(field, value)))
}

fn answers_file(path: &Path) -> Result<toml::Table, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{name} cannot be read: {error}; name a file of answers")))?;
    text.parse().map_err(|error| Failure::usage(format!("{name}: {error}")))
}

/// The operations of a document that change state, as the audit sees them. Those that are idempotent by definition, or look like a
/// login or a read, are listed too, with an optional key: a contract that refuses what it does not list has to list them.
fn operations(path: &Path) -> Result<Vec<toml::Value>, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!("{name} cannot be read: {error}; name an OpenAPI document"))
    })?;
    let node = Node::parse(&text).map_err(|why| Failure::usage(format!("{name} {why}")))?;
    let bundle = Bundle::new(&name.to_string(), node);
    let report =
        retrysafe_audit::audit(&bundle, None).map_err(|why| Failure::usage(format!("{name} {why}")))?;
    let changing = report
        .judged()
        .filter(|(_, operation, judgement)| operation.may_change() && judgement.verdict != Verdict::SafeRead);
    let names: Vec<toml::Value> = changing
        .map(|(_, operation, judgement)| match judgement.verdict {
            Verdict::Undocumented
            | Verdict::SafeWithKey
            | Verdict::KeyRequired
            | Verdict::DocumentedUnsafe => operation.name().into(),
            _ => format!("{} optional", operation.name()).into(),
        })
        .collect();
    if names.is_empty() {
        return Err(Failure::usage(format!(
            "{name} has no operation that needs a key; retrysafe audit says why"
        )));
    }
    Ok(names)
}

/// What is written can be read and kept: the same judgement as `retrysafe check`.
fn kept(text: &str, place: Place) -> Result<(), Failure> {
    let contract = Contract::parse(text, CONTRACT).map_err(Failure::usage)?;
    let offered = match place {
        Place::Library => Offered::postgres(policy::Place::Library),
        Place::Gateway => Offered::sqlite(policy::Place::Gateway),
    };
    let found = contract.check(&offered);
    match found.iter().find(|one| one.severity == Severity::Error) {
        Some(error) => {
            Err(Failure::usage(format!("these answers give a contract that cannot be kept: {error}")))
        }
        None => Ok(()),
    }
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), Failure> {
    if path.exists() && !force {
        return Err(Failure::usage(format!(
            "{} is there already; name another file, or pass --force",
            path.display()
        )));
    }
    std::fs::write(path, text)
        .map_err(|error| Failure::runtime(format!("{} cannot be written: {error}", path.display())))
}
