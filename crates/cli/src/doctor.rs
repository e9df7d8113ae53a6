//! `retrysafe doctor`: what is wrong with a database, and how to mend it.

use std::process::ExitCode;

use clap::Args;
use retrysafe_store::{
    doctor::{Finding, Severity},
    mariadb::MariaStore,
    postgres::{Mode, doctor},
};
use serde_json::json;

use crate::{
    database::{self, Database},
    failure::{self, Failure},
};

/// There are errors, or warnings where they count. 1 is left to failures of the tool itself.
const UNSOUND: u8 = 2;

/// Look at a database that keeps, or is to keep, a store: what is wrong, and how to mend it
///
/// Nothing is changed. Use the address, and so the role and the pooler, that the store itself uses.
///
/// Exit codes: 0 nothing that counts was found, 1 the database cannot be reached, 2 something was found.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// The database: postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE
    #[arg(long, env = "RETRYSAFE_STORE", value_name = "URL", value_parser = database::address)]
    store: Database,
    /// A table that handlers write, to see whether it knows transactions (MariaDB); may be given several times
    #[arg(long = "table", value_name = "NAME")]
    tables: Vec<String>,
    /// Let warnings count as errors
    #[arg(long)]
    strict: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    let findings = match look(args) {
        Ok(findings) => findings,
        Err(failure) => return failure::exit(Err(failure)),
    };
    let worst = if args.strict { Severity::Warning } else { Severity::Error };
    let sound = findings.iter().all(|finding| finding.severity > worst);
    if args.json {
        let one = |finding: &Finding| {
            json!({
                "severity": finding.severity.to_string(), "rule": finding.rule,
                "what": finding.what, "mend": finding.mend,
            })
        };
        let findings: Vec<_> = findings.iter().map(one).collect();
        anstream::println!(
            "{}",
            json!({ "store": args.store.to_string(), "ok": sound, "findings": findings })
        );
    } else {
        anstream::print!("{}", page(&args.store, &findings));
    }
    if sound { ExitCode::SUCCESS } else { ExitCode::from(UNSOUND) }
}

fn look(args: &DoctorArgs) -> Result<Vec<Finding>, Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::runtime(format!("{}: {}", args.store, database::chain(error)))
    };
    database::runtime()?.block_on(async {
        match &args.store {
            Database::Postgres(address) => {
                let driver = database::driver(address)?;
                let named = address.pool.mode == Mode::Prepared;
                doctor(&driver, &address.schema, named).await.map_err(|failure| failed(&failure))
            }
            Database::Mariadb(options) => {
                MariaStore::doctor(options, &args.tables).await.map_err(|error| failed(&error))
            }
        }
    })
}

fn page(address: &Database, findings: &[Finding]) -> String {
    use anstyle::AnsiColor::{Blue, Red, Yellow};
    let mut page = String::new();
    for finding in findings {
        let colour = match finding.severity {
            Severity::Error => Red,
            Severity::Warning => Yellow,
            Severity::Note => Blue,
        };
        let style = colour.on_default().bold();
        page += &format!(
            "{style}{}{style:#}[{}]: {}\n  mend: {}\n\n",
            finding.severity, finding.rule, finding.what, finding.mend
        );
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    page += &format!(
        "{address}: {} errors, {} warnings, {} notes\n",
        count(Severity::Error),
        count(Severity::Warning),
        count(Severity::Note)
    );
    page
}
