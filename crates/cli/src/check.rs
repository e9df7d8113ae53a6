//! `retrysafe check`: every fault of a contract file, and every way in which a store and a place cannot keep it.
//!
//! Reading, judging and printing are apart: [`Report`] is made from a text and printed as a page or as JSON.

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use clap::{Args, ValueEnum};
use comfy_table::{Table, presets};
use retrysafe_core::{
    contract::{
        Carrier, Contract, Endpoint, FailurePolicy, Faults, InFlightAnswer, KeyUse, Offered, Scope, Severity,
        Shortfall, show,
    },
    policy::Place,
    record::RecoveryClass,
};
use serde_json::{Value, json};

/// The contract has faults or errors, or cannot be read. 1 is left to failures of the tool itself.
const REFUSED: u8 = 2;

/// Check a contract: every fault of the file, and whether the store and the place can keep it
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The contract
    #[arg(default_value = "retrysafe.toml")]
    file: PathBuf,
    /// The store that will keep the claims
    #[arg(long, value_enum, default_value_t = Store::Sqlite)]
    store: Store,
    /// In front of the API, or inside it
    #[arg(long, value_enum, default_value_t = At::Gateway)]
    place: At,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Store {
    Sqlite,
    Memory,
    Postgres,
    Mariadb,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum At {
    Gateway,
    Library,
}

/// Checks the file and prints what there is to say. Exit code 0: it can be kept (warnings are printed); 2: it cannot.
pub(crate) fn run(args: &CheckArgs) -> ExitCode {
    let file = args.file.display().to_string();
    let text = match std::fs::read_to_string(&args.file) {
        Ok(text) => text,
        Err(error) => {
            anstream::eprintln!(
                "error: {file} cannot be read: {error}; name the contract: retrysafe check FILE"
            );
            return ExitCode::from(REFUSED);
        }
    };
    let report = Report::of(&text, &file, &offered(args.store, args.place), args.strict);
    if args.json {
        anstream::println!("{}", report.json());
    } else {
        anstream::print!("{}", report.page());
    }
    if report.refused { ExitCode::from(REFUSED) } else { ExitCode::SUCCESS }
}

fn offered(store: Store, at: At) -> Offered {
    let place = match at {
        At::Gateway => Place::Gateway,
        At::Library => Place::Library,
    };
    match store {
        Store::Sqlite => Offered::sqlite(place),
        Store::Memory => Offered::memory(place),
        Store::Postgres => Offered::postgres(place),
        Store::Mariadb => Offered::mariadb(place),
    }
}

/// What is known about one contract file.
struct Report {
    file: String,
    /// The contract and its shortfalls, or what keeps the file from being one.
    read: Result<(Contract, Vec<Shortfall>), Faults>,
    refused: bool,
}

impl Report {
    fn of(text: &str, file: &str, offered: &Offered, strict: bool) -> Self {
        let read = Contract::parse(text, file).map(|contract| {
            let shortfalls = contract.check(offered);
            (contract, shortfalls)
        });
        let worst = if strict { Severity::Warning } else { Severity::Error };
        let refused = match &read {
            Ok((_, shortfalls)) => shortfalls.iter().any(|one| one.severity <= worst),
            Err(_) => true,
        };
        Self { file: file.to_owned(), read, refused }
    }

    fn page(&self) -> String {
        let (contract, shortfalls) = match &self.read {
            Ok(read) => read,
            Err(faults) => return format!("{}\n", painted(&faults.to_string())),
        };
        let mut page = String::new();
        for one in shortfalls {
            let place = one.line.map(|line| format!("  --> {}:{line}\n", self.file)).unwrap_or_default();
            let shown = one.to_string();
            let (first, rest) = shown.split_once('\n').unwrap_or((&shown, ""));
            let _ = writeln!(page, "{}\n{place}{rest}\n", painted(first));
        }
        let count = |severity| shortfalls.iter().filter(|one| one.severity == severity).count();
        let _ = writeln!(page, "{}", table(contract));
        let _ = writeln!(
            page,
            "{}: {} ({}, longest retry chain {}; {}, {}, {})",
            self.file,
            if self.refused { "refused" } else { "sound" },
            counted(contract.endpoints.len(), "endpoint"),
            show(contract.longest_retry_chain),
            counted(count(Severity::Error), "error"),
            counted(count(Severity::Warning), "warning"),
            counted(count(Severity::Note), "note"),
        );
        page
    }

    fn json(&self) -> Value {
        let (contract, shortfalls) = match &self.read {
            Ok(read) => read,
            Err(faults) => {
                let fault = |fault: &retrysafe_core::contract::Fault| {
                    json!({
                        "line": fault.line, "column": fault.column, "path": fault.path,
                        "message": fault.message, "help": fault.help,
                    })
                };
                let faults: Vec<Value> = faults.faults.iter().map(fault).collect();
                return json!({ "file": self.file, "ok": false, "faults": faults });
            }
        };
        let shortfall = |one: &Shortfall| {
            let endpoints: Vec<&str> = one.endpoints.iter().map(AsRef::as_ref).collect();
            json!({
                "severity": one.severity.to_string(), "rule": one.rule, "endpoints": endpoints,
                "line": one.line, "message": one.message, "help": one.help,
            })
        };
        let endpoint = |endpoint: &Endpoint| {
            let [name, key, scope, in_flight, failures, window, lost] = row(endpoint);
            json!({
                "endpoint": name, "line": endpoint.line, "key": key, "scope": scope, "in_flight": in_flight,
                "failures": failures, "replay_and_reap": window, "when_lost": lost,
            })
        };
        json!({
            "file": self.file,
            "ok": !self.refused,
            "faults": [],
            "shortfalls": shortfalls.iter().map(shortfall).collect::<Vec<_>>(),
            "endpoints": contract.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        })
    }
}

/// The first word of a message in its colour. `anstream` takes the colours away where nobody sees them.
fn painted(text: &str) -> String {
    use anstyle::AnsiColor::{Blue, Red, Yellow};
    let line = |line: &str| {
        for (word, colour) in [("error", Red), ("warning", Yellow), ("note", Blue)] {
            if let Some(rest) = line.strip_prefix(word) {
                let style = colour.on_default().bold();
                return format!("{style}{word}{style:#}{rest}");
            }
        }
        line.to_owned()
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn table(contract: &Contract) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["endpoint", "key", "scope", "in flight", "failures", "replay / reap", "when lost"]);
    for endpoint in &contract.endpoints {
        table.add_row(row(endpoint));
    }
    table
}

fn row(endpoint: &Endpoint) -> [String; 7] {
    let dash = || "-".to_owned();
    let name = endpoint.name.to_string();
    let carrier = match &endpoint.carrier {
        Carrier::Header(name) => name.clone(),
        Carrier::BodyField(pointer) => format!("body {pointer}"),
    };
    let key = match &endpoint.key {
        KeyUse::Required => format!("required, {carrier}"),
        KeyUse::Optional => format!("optional, {carrier}"),
        KeyUse::Unsafe { reason } => {
            return [name, format!("unsafe: {reason}"), dash(), dash(), dash(), dash(), dash()];
        }
    };
    let windows = &endpoint.windows;
    let bound = if windows.resource.is_some() { ", with the resource" } else { "" };
    let window = format!("{} / {}{bound}", show(windows.replay), show(windows.reap));
    [name, key, scope(endpoint), in_flight(endpoint), failures(endpoint), window, when_lost(endpoint)]
}

fn scope(endpoint: &Endpoint) -> String {
    match &endpoint.scope {
        Scope::Jwt(jwt) => format!("jwt {}", jwt.claims.join("+")),
        Scope::TrustedHeader { header, .. } => format!("header {header}"),
        Scope::ApiKey { header, .. } => format!("api key in {header}"),
        Scope::Application => "application".to_owned(),
        Scope::Anonymous => "none".to_owned(),
    }
}

fn in_flight(endpoint: &Endpoint) -> String {
    match endpoint.in_flight.answer {
        InFlightAnswer::Refuse => "409".to_owned(),
        InFlightAnswer::Wait { at_most } => format!("wait {}", show(at_most)),
        InFlightAnswer::AcceptPreferred => "202 if preferred".to_owned(),
        InFlightAnswer::AcceptAlways => "202".to_owned(),
    }
}

fn failures(endpoint: &Endpoint) -> String {
    match endpoint.failures {
        FailurePolicy::StoreAll => "A: stored".to_owned(),
        FailurePolicy::ByClass(_) => "B: by class".to_owned(),
    }
}

fn when_lost(endpoint: &Endpoint) -> String {
    match endpoint.recovery {
        RecoveryClass::Atomic => "run again".to_owned(),
        RecoveryClass::Phased => "resume".to_owned(),
        RecoveryClass::Deduplicated => "send again".to_owned(),
        RecoveryClass::Outside if endpoint.probe.is_some() => "ask, else uncertain".to_owned(),
        RecoveryClass::Outside => "uncertain".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use retrysafe_store::{
        Store as _,
        memory::{MemoryOptions, MemoryStore},
        sqlite::{SqliteOptions, SqliteStore},
    };

    use super::*;

    const SHOP: &str = include_str!("../assets/shop.toml");

    fn report(text: &str, strict: bool) -> Report {
        Report::of(text, "shop.toml", &Offered::sqlite(Place::Gateway), strict)
    }

    #[test]
    fn the_bundled_contract_is_sound_where_it_is_served() {
        let report = report(SHOP, true);
        assert!(!report.refused, "{}", report.page());
        for endpoint in ["POST /orders", "DELETE /orders/{id}", "POST /payments", "POST /v1/charges"] {
            assert!(report.page().contains(endpoint), "{endpoint}");
        }
    }

    /// What the check believes of a store is what the store says of itself when it is opened.
    #[test]
    fn the_check_and_the_start_judge_by_the_same_capabilities() {
        let folder = tempfile::tempdir().expect("a folder");
        let sqlite = SqliteStore::open(SqliteOptions::new(folder.path().join("check.db"))).expect("a store");
        let stores = [
            (Store::Sqlite, sqlite.capability()),
            (Store::Memory, MemoryStore::new(MemoryOptions::default()).capability()),
            (Store::Postgres, retrysafe_store::postgres::CAPABILITY),
            (Store::Mariadb, retrysafe_store::mariadb::CAPABILITY),
        ];
        for (store, capability) in stores {
            for at in [At::Gateway, At::Library] {
                let said = offered(store, at);
                assert_eq!((said.store, said.shared), (capability.name, capability.shared));
                assert_eq!(said.survives_process, capability.survives_process);
                assert_eq!(said.survives_power_cut, capability.survives_power_cut);
                assert_eq!(said.survives_failover, capability.survives_failover);
                // A proxy joins nobody's transaction.
                let library = matches!(at, At::Library);
                assert_eq!(said.transactions, capability.transactions && library);
            }
        }
    }

    #[test]
    fn warnings_refuse_only_where_strict() {
        let warned = SHOP.replace("reauthorise =", "# reauthorise =");
        assert!(!report(&warned, false).refused);
        assert!(report(&warned, true).refused);
        let page = anstream::adapter::strip_str(&report(&warned, false).page()).to_string();
        assert!(
            page.contains("warning[replays_not_reauthorised]") && page.contains("0 errors, 1 warning"),
            "{page}"
        );
    }

    #[test]
    fn errors_and_faults_refuse_and_are_all_told() {
        let text = SHOP
            .replace("recovery = \"outside\"", "recovery = \"atomic\"")
            .replace("wait_at_most = \"10s\"", "wait_at_most = \"1h\"");
        let json = report(&text, false).json();
        assert_eq!(json["ok"], json!(false));
        let rules: Vec<_> =
            json["shortfalls"].as_array().into_iter().flatten().map(|one| one["rule"].clone()).collect();
        for rule in ["atomic_at_gateway", "waits_longer_than_clients", "accepted_in_one_transaction"] {
            assert!(rules.contains(&json!(rule)), "{rules:?}");
        }
        let json = report("api = 1\nnamespace = \"X\"", false).json();
        assert_eq!(json["ok"], json!(false));
        assert!(json["faults"].as_array().is_some_and(|faults| faults.len() >= 5), "{json}");
    }
}
