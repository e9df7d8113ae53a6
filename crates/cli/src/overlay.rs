//! `retrysafe overlay`: what the contract adds to a user's own OpenAPI document.
//!
//! [`document`] finds the contract's operations in the document; [`actions`] says what is to be added to them. The overlay is
//! made so that applying it twice changes nothing more: it adds objects, which merge, and one parameter, behind a condition.

mod actions;
mod document;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, ValueEnum};
use retrysafe_core::{contract::Contract, policy::Place};

use self::document::Document;
use crate::failure::{Failure, exit};

/// Something of the contract is not in the document.
const UNMATCHED: u8 = 1;

/// Print an OpenAPI overlay that adds the contract to an OpenAPI document: headers, responses and `x-idempotency`
///
/// Your document stays as it is; tools that know overlays (OpenAPI Overlay 1.0 or 1.1) put the two together. What the
/// document declares itself is not overwritten. Applied again, the overlay adds nothing.
///
/// Operations of the contract that the document does not have are reported.
///
/// Exit codes: 0 done, 1 with --strict: something did not match, 2 wrong usage or a document that cannot be read.
#[derive(Args, Debug)]
#[command(after_help = "\
Try:
  retrysafe overlay openapi.yaml --out idempotency.overlay.yaml
  retrysafe overlay openapi.json --contract retrysafe.toml --spec 1.1 --strict")]
pub(crate) struct OverlayArgs {
    /// The OpenAPI document, 3.0 or later, YAML or JSON
    document: PathBuf,
    /// The contract
    #[arg(long, value_name = "FILE", default_value = "retrysafe.toml")]
    contract: PathBuf,
    /// The version of the overlay
    #[arg(long, value_enum, default_value_t = Spec::V1_0)]
    spec: Spec,
    /// Where the contract is enforced: in front of the API, or inside it
    #[arg(long, value_enum, default_value_t = At::Gateway)]
    place: At,
    /// Write the overlay to this file; JSON where its name ends in .json
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// End with 1 where an operation of the contract is not in the document
    #[arg(long)]
    strict: bool,
}

/// Versions of the Overlay Specification.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Spec {
    /// 1.0.0
    #[value(name = "1.0")]
    V1_0,
    /// 1.1.0
    #[value(name = "1.1")]
    V1_1,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum At {
    Gateway,
    Library,
}

/// Prints or writes the overlay.
pub(crate) fn run(args: &OverlayArgs) -> ExitCode {
    match produce(args) {
        Ok(unmatched) if unmatched && args.strict => ExitCode::from(UNMATCHED),
        Ok(_) => ExitCode::SUCCESS,
        Err(failure) => exit(Err(failure)),
    }
}

/// Whether an operation of the contract was not found.
fn produce(args: &OverlayArgs) -> Result<bool, Failure> {
    let read = |path: &PathBuf, what: &str| {
        std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!("{} cannot be read: {error}; name {what}", path.display()))
        })
    };
    let file = args.contract.display().to_string();
    let contract = Contract::parse(&read(&args.contract, "a contract with --contract")?, &file)
        .map_err(Failure::usage)?;
    let name = args.document.display().to_string();
    let document = Document::parse(&read(&args.document, "an OpenAPI document")?)
        .map_err(|wrong| Failure::usage(format!("{name}: {wrong}")))?;
    let place = match args.place {
        At::Gateway => Place::Gateway,
        At::Library => Place::Library,
    };
    let made = actions::overlay(&contract, &document, args.spec, place);
    for note in &made.notes {
        anstream::eprintln!("{name}: {note}");
    }
    let json = args.out.as_ref().and_then(|path| path.extension()).is_some_and(|end| end == "json");
    let text = if json {
        serde_json::to_string_pretty(&made.overlay).map_err(Failure::runtime)? + "\n"
    } else {
        serde_saphyr::to_string(&made.overlay).map_err(Failure::runtime)?
    };
    match &args.out {
        Some(path) => std::fs::write(path, text)
            .map_err(|error| Failure::runtime(format!("{} cannot be written: {error}", path.display())))?,
        None => print!("{text}"),
    }
    Ok(made.unmatched)
}
