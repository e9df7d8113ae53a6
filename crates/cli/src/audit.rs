//! `retrysafe audit`: which operations of an API are unsafe to retry, by its OpenAPI document.
//!
//! `retrysafe-audit` judges; this reads the files, and prints what it is told: [`view`] puts lines to places and like to like,
//! and each format is a pure function of it.

mod html;
mod json;
mod junit;
mod markdown;
mod page;
mod rpc;
mod sarif;
mod source;
mod view;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use retrysafe_audit::{
    Bundle, FILES_MAX, Node, RULES, Report, Severity,
    calm::{Baseline, Calmed, Waivers},
};
use retrysafe_core::contract::Contract;

use self::view::View;
use crate::failure::{Failure, exit};

/// At least one error was found.
const FOUND: u8 = 1;
/// A single file of a document: the largest in use have some 80 MB.
const FILE_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// List every operation of an API with its retry safety, and find what is missing or misleading
///
/// Reads an OpenAPI document (2.0, 3.0, 3.1, 3.2; JSON or YAML; split files are followed). For each operation that may change
/// state it says what would make a retry safe (a key, the method's definition, a condition, nothing), how sure that is, and what in
/// the document says so. Names alone never make an error; what was not understood is listed and counted.
///
/// `idempotent-claimed` is what RFC 9110 or the document says; nothing in a document proves it.
///
/// Exit codes: 0 no error, 1 errors (with --strict, warnings too), 2 wrong usage or a document that cannot be read.
#[derive(Args, Debug)]
#[command(after_help = "\
Try:
  retrysafe audit openapi.yaml
  retrysafe audit openapi.json --contract retrysafe.toml
  retrysafe audit openapi.json --write-baseline audit-baseline.json     # once, for an API with a past
  retrysafe audit openapi.json --baseline audit-baseline.json --format sarif --out audit.sarif
  retrysafe audit --code src                       # keys made in retry loops, backoff without jitter, claims that race
  retrysafe audit --rules")]
pub(crate) struct AuditArgs {
    /// The OpenAPI document; or a .proto file, or a set of descriptors (.binpb, .pb, .desc, .protoset)
    #[arg(required_unless_present_any = ["rules", "code"])]
    document: Option<PathBuf>,
    /// For .proto files: folders of their imports
    #[arg(long, value_name = "DIR", short = 'I')]
    proto_path: Vec<PathBuf>,
    /// For protobuf: gRPC service configs, whose retries are judged
    #[arg(long, value_name = "FILE")]
    service_config: Vec<PathBuf>,
    /// Audit source code instead: files, or folders of them (Rust, Python, JavaScript, TypeScript, Go)
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with_all = ["document", "contract", "baseline", "write_baseline", "waivers"])]
    code: Vec<PathBuf>,
    /// The contract to compare with, both ways
    #[arg(long, value_name = "FILE")]
    contract: Option<PathBuf>,
    /// Findings that are known already: only new ones are told
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Write what is found now as the baseline, and end with 0
    #[arg(long, value_name = "FILE", conflicts_with = "baseline")]
    write_baseline: Option<PathBuf>,
    /// Findings that were decided to be left alone: TOML, each with a reason and a last day
    #[arg(long, value_name = "FILE")]
    waivers: Option<PathBuf>,
    /// How to print
    #[arg(long, value_enum, default_value_t = Format::Terminal)]
    format: Format,
    /// The same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// List every operation and every place, however many
    #[arg(long)]
    all: bool,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
    /// List the rules
    #[arg(long)]
    rules: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    /// For people
    Terminal,
    /// One object, for machines
    Json,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// JUnit XML, for CI
    Junit,
    /// A page for a review
    Markdown,
    /// A page that needs nothing else
    Html,
}

/// Audits, prints, and tells by its exit code whether there were errors.
pub(crate) fn run(args: &AuditArgs) -> ExitCode {
    if args.rules {
        return rules();
    }
    let audited = match &args.document {
        Some(path) if rpc::is_proto(path) => services(args, path),
        _ if args.code.is_empty() => audit(args),
        _ => sources(args),
    };
    match audited {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(FOUND),
        Err(failure) => exit(Err(failure)),
    }
}

fn rules() -> ExitCode {
    for rule in RULES {
        let style = view::colour(rule.severity).on_default().bold();
        anstream::println!("{} {style}{:<7}{style:#} {}", rule.id, rule.severity.as_str(), rule.finds);
        anstream::println!("     {}", rule.help);
    }
    ExitCode::SUCCESS
}

/// How many findings count as errors.
fn audit(args: &AuditArgs) -> Result<usize, Failure> {
    let Some(path) = &args.document else {
        return Err(Failure::usage("name an OpenAPI document: retrysafe audit openapi.yaml"));
    };
    let contract = args.contract.as_deref().map(contract).transpose()?;
    let (bundle, texts) = gather(path)?;
    let mut report = retrysafe_audit::audit(&bundle, contract.as_ref())
        .map_err(|why| Failure::usage(format!("{} {why}", path.display())))?;
    if let Some(file) = &args.write_baseline {
        let baseline = Baseline::of(&report);
        write(file, &baseline.text())?;
        anstream::eprintln!("{} holds what is found now; pass it with --baseline", file.display());
        return Ok(0);
    }
    let calmed = calm(args, &mut report)?;
    let view = View::new(&report, &bundle, &texts, calmed);
    let text = match args.format() {
        Format::Terminal => page::page(&view, args.all),
        Format::Json => json::json(&view),
        Format::Sarif => sarif::sarif(&view),
        Format::Junit => junit::junit(&view),
        Format::Markdown => markdown::markdown(&view),
        Format::Html => html::html(&view),
    };
    deliver(args, &text)?;
    Ok(report.count(args.worst()))
}

impl AuditArgs {
    fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }

    /// What counts as an error.
    fn worst(&self) -> Severity {
        if self.strict { Severity::Warning } else { Severity::Error }
    }
}

/// How many findings in services of protobuf count as errors.
fn services(args: &AuditArgs, path: &Path) -> Result<usize, Failure> {
    if args.contract.is_some()
        || args.baseline.is_some()
        || args.write_baseline.is_some()
        || args.waivers.is_some()
    {
        return Err(Failure::usage("contracts, baselines and waivers are for OpenAPI documents"));
    }
    let report = rpc::audited(path, &args.proto_path, &args.service_config)?;
    let text = match args.format() {
        Format::Terminal => rpc::page(&report),
        Format::Json => rpc::json(&report),
        Format::Sarif => rpc::sarif(&report),
        Format::Junit | Format::Markdown | Format::Html => {
            return Err(Failure::usage(
                "protobuf is told as terminal, json or sarif; choose one with --format",
            ));
        }
    };
    deliver(args, &text)?;
    Ok(report.count(args.worst()))
}

/// How many findings in source code count as errors.
fn sources(args: &AuditArgs) -> Result<usize, Failure> {
    let sources = source::Sources::of(&args.code)?;
    let text = match args.format() {
        Format::Terminal => sources.page(),
        Format::Json => sources.json(),
        Format::Sarif => sources.sarif(),
        Format::Junit | Format::Markdown | Format::Html => {
            return Err(Failure::usage("code is told as terminal, json or sarif; choose one with --format"));
        }
    };
    deliver(args, &text)?;
    Ok(sources.count(args.worst()))
}

fn deliver(args: &AuditArgs, text: &str) -> Result<(), Failure> {
    match &args.out {
        // A file has no colours.
        Some(file) => write(file, &anstream::adapter::strip_str(text).to_string())?,
        None => anstream::print!("{text}"),
    }
    Ok(())
}

fn calm(args: &AuditArgs, report: &mut Report<'_>) -> Result<Calmed, Failure> {
    let mut calmed = Calmed::default();
    if let Some(file) = &args.baseline {
        let baseline = Baseline::parse(&text(file, "a baseline")?)
            .map_err(|why| Failure::usage(format!("{} {why}", file.display())))?;
        calmed = baseline.calm(report);
    }
    if let Some(file) = &args.waivers {
        let waivers = Waivers::parse(&text(file, "a file of waivers")?)
            .map_err(|why| Failure::usage(format!("{} {why}", file.display())))?;
        calmed.waived = waivers.calm(report, today()).waived;
    }
    Ok(calmed)
}

/// The document, and every file that it refers to.
fn gather(path: &Path) -> Result<(Bundle, HashMap<String, String>), Failure> {
    let name = path
        .file_name()
        .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    let document = text(path, "an OpenAPI document")?;
    let root = Node::parse(&document).map_err(|why| Failure::usage(format!("{} {why}", path.display())))?;
    let mut bundle = Bundle::new(&name, root);
    let mut texts = HashMap::from([(name, document)]);
    for _ in 0..FILES_MAX {
        let wanted = bundle.wanted();
        if wanted.is_empty() {
            break;
        }
        for file in wanted {
            let read = if file.contains("://") {
                Err("it is in the network; put it beside the document".to_owned())
            } else if Path::new(&file).is_absolute() {
                Err("its path is absolute".to_owned())
            } else {
                text(&folder.join(&file), "a file").map_err(|failure| failure.to_string())
            };
            let parsed = read.and_then(|read| {
                let node = Node::parse(&read)?;
                texts.insert(file.clone(), read);
                Ok(node)
            });
            bundle.add(&file, parsed);
        }
    }
    Ok((bundle, texts))
}

fn text(path: &Path, what: &str) -> Result<String, Failure> {
    let name = path.display();
    let unreadable = |error| Failure::usage(format!("{name} cannot be read: {error}; name {what}"));
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > FILE_BYTES_MAX {
        return Err(Failure::usage(format!("{name} has {size} bytes; at most {FILE_BYTES_MAX} are read")));
    }
    let bytes = std::fs::read(path).map_err(unreadable)?;
    String::from_utf8(bytes).map_err(|_| Failure::usage(format!("{name} is not UTF-8")))
}

fn contract(path: &Path) -> Result<Contract, Failure> {
    Contract::parse(&text(path, "a contract with --contract")?, &path.display().to_string())
        .map_err(Failure::usage)
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text)
        .map_err(|error| Failure::runtime(format!("{} cannot be written: {error}", path.display())))
}

/// Days end at midnight in Greenwich, so that a waiver ends everywhere at once.
fn today() -> jiff::civil::Date {
    jiff::tz::Offset::UTC.to_datetime(jiff::Timestamp::now()).date()
}
