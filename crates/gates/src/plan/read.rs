//! From the text of `gates.toml` to a [`Plan`], or to everything that is wrong with it.

use std::time::Duration;

use retrysafe_core::contract::{
    Faults,
    walk::{Kind, Section, Sink},
};
use toml::de::DeTable;

use super::answers::{answers, key, stated};
use super::crash::crash;
use super::fields::{ACCOUNT, CONCURRENCY, ROOT, home_of};
use super::observers::{database, observers, stub};
use super::operations::{bases, claim, headers, operation, trust};
use super::slow::slow;
use super::{Claim, Concurrency, CrashPlan, Plan, VerifyPlan};

const REQUESTS: u32 = 20;
/// More connections than a race gains by, and a bound for file descriptors.
const REQUESTS_MAX: i64 = 200;
/// A week of rounds is a typing error.
const ROUNDS_MAX: i64 = 100_000;
const DETECT: f64 = 0.1;
const MISS: f64 = 0.001;
const SETTLE: Duration = Duration::from_millis(10);
const QUIET: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(30);
const GATES: Kind = Kind { what: "plan", home_of };

pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What a file may refer to: reading it is somebody else's business.
#[derive(Clone, Copy)]
pub struct Outside<'a> {
    /// The value of an environment variable.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The text of a file, or why it cannot be read.
    pub file: &'a dyn Fn(&str) -> Result<String, String>,
    /// A file of authorities that goes before the plan's.
    pub ca: Option<&'a str>,
}

impl Outside<'_> {
    /// Neither variables nor files.
    pub const NOTHING: Outside<'static> =
        Outside { env: &|_| None, file: &|_| Err("no file is read here".to_owned()), ca: None };
}

impl std::fmt::Debug for Outside<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outside")
    }
}

impl Plan {
    /// Reads a plan whose values need no environment. `file` is its name, for messages.
    ///
    /// # Errors
    /// [`Faults`]: all of them, each with its place and what to write instead.
    pub fn parse(text: &str, file: &str) -> Result<Plan, Faults> {
        Self::parse_with(text, file, Outside::NOTHING)
    }

    /// As [`Plan::parse`]; `outside` is asked for the values of `{{env.NAME}}` and for the contract.
    ///
    /// # Errors
    /// As [`Plan::parse`].
    pub fn parse_with(text: &str, file: &str, outside: Outside<'_>) -> Result<Plan, Faults> {
        walk(text, file, |root| plan(root, outside))
    }
}

impl VerifyPlan {
    /// Reads what the verify gate needs of a file; see [`Plan::parse_with`].
    ///
    /// # Errors
    /// As [`Plan::parse`].
    pub fn parse_with(text: &str, file: &str, outside: Outside<'_>) -> Result<VerifyPlan, Faults> {
        walk(text, file, |root| verify_plan(root, outside))
    }
}

impl CrashPlan {
    /// Reads what the crash gate needs of a file; see [`Plan::parse_with`].
    ///
    /// # Errors
    /// As [`Plan::parse`].
    pub fn parse_with(text: &str, file: &str, outside: Outside<'_>) -> Result<CrashPlan, Faults> {
        walk(text, file, |root| crash_plan(root, outside))
    }
}

/// Reads a file with its faults.
fn walk<T>(text: &str, file: &str, read: impl FnOnce(&Section<'_>) -> Option<T>) -> Result<T, Faults> {
    let sink = Sink::new(text, GATES);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let help = "mend the TOML syntax first; the rest of the file is read as well as it can be";
        sink.note(error.span().unwrap_or(0..0), "", format!("not TOML: {}", error.message()), help);
    }
    let plan = read(&Section::root(&table, ROOT, &sink));
    match plan {
        Some(plan) if sink.is_clean() => Ok(plan),
        _ => Err(sink.into_faults(file)),
    }
}

fn plan(root: &Section<'_>, outside: Outside<'_>) -> Option<Plan> {
    let env = outside.env;
    let trust = trust(root, outside);
    let bases = bases(root, trust.as_ref());
    let request_item = root.require(
        "request",
        "a gate sends one operation of yours",
        "write [request] with method, path and body",
    );
    let request = request_item.as_ref().and_then(|item| operation(item, env));
    let stated = request.as_ref().and_then(|request| stated(root, request, outside));
    let key = key(root, stated.as_ref());
    let second_account = root.get("second_account").and_then(|item| {
        let section = item.section(ACCOUNT)?;
        section.require(
            "headers",
            "it is somebody else by its headers",
            "write headers = { Authorization = \"Bearer bob\" }",
        );
        Some(headers(&section, env))
    });
    let other_operation = root.get("other_operation").and_then(|item| operation(&item, env));
    let failing = root.get("failing").and_then(|item| operation(&item, env));
    let stub = root.get("stub").and_then(|item| stub(&item));
    let observers = observers(root, stub.is_some(), env);
    let database = root.get("database").and_then(|item| database(&item));
    let slow = root.get("slow").and_then(|item| slow(&item));
    let answers = answers(root, stated.as_ref());
    let concurrency = concurrency(root);
    let (trust, request, key) = (trust?, request?, key?);
    if let Some(item) = &request_item {
        if !request.tells_operations_apart() {
            item.fault(
                "two operations of this request are the same",
                "put {{nonce}} (a text) or {{number}} into a field of the body that you can find again, such as a note or a reference",
            );
        }
        if key.header.is_none() && !request.carries_key() {
            item.fault(
                "the key is nowhere",
                "leave [key] header out (Idempotency-Key), name the header, or put {{key}} into the body",
            );
        }
    }
    Some(Plan {
        bases,
        trust,
        request,
        key,
        second_account,
        other_operation,
        failing,
        answers,
        observers,
        stub,
        database,
        slow,
        concurrency,
    })
}

fn verify_plan(root: &Section<'_>, outside: Outside<'_>) -> Option<VerifyPlan> {
    let env = outside.env;
    let trust = trust(root, outside);
    let bases = bases(root, trust.as_ref());
    let why = "the gate verifies operations that are said to be idempotent";
    let claims = root.require("claim", why, "write [[claim]] with method, path, body and read");
    let claims: Vec<Claim> =
        claims.map(|item| item.list().iter().filter_map(|one| claim(one, env)).collect()).unwrap_or_default();
    let stub = root.get("stub").is_some();
    let observers = match root.get("observe") {
        Some(_) => observers(root, stub, env),
        None => Vec::new(),
    };
    let Concurrency { quiet, timeout, .. } = concurrency(root);
    Some(VerifyPlan { bases, trust: trust?, claims, observers, quiet, timeout })
}

fn crash_plan(root: &Section<'_>, outside: Outside<'_>) -> Option<CrashPlan> {
    let plan = plan(root, outside);
    let why = "the gate starts the API, kills it and starts it again";
    let item = root.require("crash", why, "write [crash] with command and ready")?;
    if root.get("stub").is_none() {
        let help = "add [stub] and [[observe]] kind = \"stub\", and point the API's provider at it";
        item.fault("the gate kills the API when it calls somebody else, and there is no stub to call", help);
    }
    let trust = plan.as_ref().map(|plan| &plan.trust);
    let crash = crash(&item, trust);
    let mut plan = plan?;
    if let Some(stub) = &mut plan.stub {
        stub.hold = false;
    }
    Some(crash?.of(plan))
}

fn concurrency(root: &Section<'_>) -> Concurrency {
    let mut read = Concurrency {
        requests: REQUESTS as usize,
        rounds: None,
        detect: DETECT,
        miss: MISS,
        http2: false,
        settle: SETTLE,
        spread: None,
        quiet: QUIET,
        timeout: TIMEOUT,
    };
    let Some(section) = root.get("concurrency").and_then(|item| item.section(CONCURRENCY)) else {
        return read;
    };
    read.requests = section.number("requests", 2..=REQUESTS_MAX, REQUESTS) as usize;
    read.rounds = section
        .get("rounds")
        .and_then(|item| item.number(1..=ROUNDS_MAX))
        .and_then(|rounds| u32::try_from(rounds).ok());
    for (field, share) in [("detect", &mut read.detect), ("miss", &mut read.miss)] {
        if let Some(value) = section.get(field).and_then(|item| item.share()) {
            *share = value;
        }
    }
    read.http2 = section.flag("http2", false);
    read.settle = section.time("settle", SETTLE);
    read.spread = section.get("spread").and_then(|item| item.time());
    read.quiet = section.time("quiet", QUIET);
    read.timeout = section.time("timeout", TIMEOUT);
    read
}
