//! The crash gate against requests of several steps: the service of `examples/rides` on each database, with a second process, its
//! database cut, and its disk full.

use std::path::Path;

use anyhow::{Context, Result};
use example_rides::{CONTRACT, MARIADB_TABLE, POSTGRES_TABLE};
use retrysafe_gates::crash;
use retrysafe_gates::plan::{CrashPlan, Outside};
use retrysafe_gates::report::{Report, Verdict};
use retrysafe_testbed::{SmallDisk, address, mariadb, postgres};

use super::{ALLOWANCE, print_findings};
use crate::prove::Scale;
use crate::tools::scratch;

const RUNS: usize = 5;
const QUICK_RUNS: usize = 1;
/// Points of the sweep over system calls, in full.
const SWEEP: usize = 5;
const LEASE_MS: u64 = 1_000;
/// How long a completer may take to finish what was left: its lease, and a machine that is busy.
const COMPLETES_MS: u64 = 6_000;
/// A process that is stopped while it writes to a file keeps everybody out (protocol 29), and a kill may come too late: a run
/// that could not judge is repeated.
const TRIES: usize = 3;

enum Database {
    /// On a disk that can be filled.
    File(SmallDisk),
    Postgres(postgres::Database),
    Maria(mariadb::Database),
}

/// Makes an empty one.
type Make = fn() -> Database;

impl Database {
    fn all() -> [(&'static str, Make); 3] {
        [
            ("rides on SQLite", || Self::File(SmallDisk::mount())),
            ("rides on PostgreSQL", || {
                let database = postgres::Database::create();
                database.psql(POSTGRES_TABLE);
                Self::Postgres(database)
            }),
            ("rides on MariaDB", || {
                let database = mariadb::Database::create();
                database.run(MARIADB_TABLE);
                Self::Maria(database)
            }),
        ]
    }

    fn url(&self) -> String {
        match self {
            Self::File(disk) => format!("sqlite:{}", disk.folder().join("rides.db").display()),
            Self::Postgres(database) => database.url(),
            Self::Maria(database) => database.url(),
        }
    }

    /// What observers ask: rides that were paid.
    fn query(&self) -> &'static str {
        match self {
            Self::File(_) => r#"SELECT count(*) FROM ride WHERE "to" = '{{nonce}}' AND receipt IS NOT NULL"#,
            Self::Postgres(_) => {
                "SELECT count(*) FROM public.ride WHERE destination = '{{nonce}}' AND receipt IS NOT NULL"
            }
            Self::Maria(_) => {
                "SELECT COUNT(*) FROM ride WHERE destination = '{{nonce}}' AND receipt IS NOT NULL"
            }
        }
    }
}

pub(super) fn prove(scale: Scale) -> Result<bool> {
    let mut holds = true;
    for (name, make) in Database::all() {
        let (runs, mut passed) = (scale.of(RUNS, QUICK_RUNS), 0);
        for number in 0..runs {
            let seed = scale.seed.wrapping_add(number as u64);
            let mut report = run(&make(), scale, seed)?;
            for again in 1..TRIES as u64 {
                if report.verdict != Verdict::Inconclusive {
                    break;
                }
                report = run(&make(), scale, seed.wrapping_add(again << 16))?;
            }
            passed += usize::from(report.verdict == Verdict::Pass);
            if number == 0 || report.verdict != Verdict::Pass {
                let arms: Vec<&str> = report
                    .parts
                    .iter()
                    .filter(|part| part.verdict == Some(Verdict::Pass))
                    .map(|part| part.id.as_str())
                    .collect();
                println!("{name:<44} {}: {}", report.verdict.word(), arms.join(" "));
                print_findings(&report)?;
            }
        }
        println!("{name:<44} {passed} of {runs} runs of the crash gate");
        holds &= passed == runs;
    }
    Ok(holds)
}

fn run(database: &Database, scale: Scale, seed: u64) -> Result<Report> {
    let scratch = scratch()?;
    let text = text(database, scale, scratch.path())?;
    let outside = Outside { file: &|_| Ok(CONTRACT.to_owned()), ..Outside::NOTHING };
    let plan =
        CrashPlan::parse_with(&text, "gates.toml", outside).map_err(|faults| anyhow::anyhow!("{faults}"))?;
    crash::run(&plan, &ALLOWANCE, seed & 0xff_ffff, &mut |_| ()).map_err(|not_run| anyhow::anyhow!(not_run.0))
}

fn text(database: &Database, scale: Scale, scratch: &Path) -> Result<String> {
    let (own, other, stub, relay) = (address(), address(), address(), address());
    let url = database.url();
    let server = url.split('@').nth(1).and_then(|rest| rest.split('/').next());
    let (store, more) = match (database, server) {
        (Database::File(disk), _) => {
            (url.clone(), format!("[crash.disk]\nfolder = {:?}\nfull_for = \"500ms\"\n", disk.folder()))
        }
        (_, Some(server)) => {
            let plain = if matches!(database, Database::Postgres(_)) { "?sslmode=disable" } else { "" };
            let through = url.replacen(server, &relay.to_string(), 1) + plain;
            (through, format!("[database]\nlisten = \"{relay}\"\nto = \"{server}\"\naway = \"500ms\"\n"))
        }
        (_, None) => anyhow::bail!("{url} names no server"),
    };
    let this = std::env::current_exe().context("the path of this binary")?;
    let command = |listen: &dyn std::fmt::Display, name: &str| {
        vec![
            this.display().to_string(),
            "ride".to_owned(),
            format!("--listen={listen}"),
            format!("--store={store}"),
            format!("--provider={stub}"),
            format!("--lease-ms={LEASE_MS}"),
            format!("--trace={}", scratch.join(name).display()),
            "--completer".to_owned(),
        ]
    };
    let (sweep, alone) = if scale.quick() {
        (0, String::new())
    } else {
        (SWEEP, format!("completes_within = \"{COMPLETES_MS}ms\"\n"))
    };
    Ok(format!(
        r#"
base = "http://{own}"
contract = "retrysafe.toml"
[request]
path = "/rides"
headers = {{ Authorization = "Bearer rider" }}
body = '{{"to": "{{{{nonce}}}}", "cents": {{{{number}}}}}}'
[[observe]]
kind = "stub"
contains = "\"cents\":{{{{number}}}}"
[[observe]]
kind = "sql"
url = "{url}"
query = """{query}"""
[stub]
listen = "{stub}"
body = '{{"paid": {{"receipt": "receipt-1"}}}}'
[crash]
command = {first:?}
ready = "/ready"
settled_within = "20s"
lease = "{LEASE_MS}ms"
sweep = {sweep}
{alone}
[crash.second]
command = {second:?}
base = "http://{other}"
{more}
"#,
        query = database.query(),
        first = command(&own, "one.trace"),
        second = command(&other, "two.trace"),
    ))
}
