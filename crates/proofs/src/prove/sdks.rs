//! main-job.2: published SDKs, unmodified, with their own keys and retries, against an upstream that fails in
//! every way that loses answers; without the gateway, behind it, and behind it with a status probe.
//!
//! One call, one account: the ledger says how often that call had its effect. The caller's result must be the
//! true one, or say that it is unknown; never a false success, never a false failure.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use serde::Deserialize;

use super::Scale;
use crate::contract::Terms;
use crate::ledger::Entry;
use crate::race::ask;
use crate::report::Progress;
use crate::subjects::{GATEWAY, GatewayStore, ShopTerms, gateway, shop};
use crate::tools;
use crate::wire::Template;

/// How long a client waits for one answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(1);
/// The delays of the faults: past the client's patience, well within the gateway's.
const SLOW_MS: u64 = 1_600;

/// What goes wrong. `times` counts the requests it hits: one, or every attempt of the call.
struct Trouble {
    name: &'static str,
    fault: &'static str,
    times: u32,
    quick: bool,
}

const ALWAYS: u32 = 50;

const TROUBLES: &[Trouble] = &[
    Trouble { name: "nothing", fault: "", times: 0, quick: false },
    Trouble { name: "commits, then cuts", fault: "commit-then-cut", times: 1, quick: true },
    Trouble { name: "commits, then cuts, every time", fault: "commit-then-cut", times: ALWAYS, quick: false },
    Trouble { name: "cuts, nothing done", fault: "cut", times: 1, quick: false },
    Trouble { name: "commits, answers too late", fault: "commit-then-delay=1600", times: 1, quick: true },
    Trouble { name: "too slow, then commits", fault: "delay=1600", times: 1, quick: false },
    Trouble { name: "commits, then 500", fault: "commit-then-status=500", times: 1, quick: true },
    Trouble { name: "commits, then 503", fault: "commit-then-status=503", times: 1, quick: false },
    Trouble {
        name: "commits, then 500, every time",
        fault: "commit-then-status=500",
        times: ALWAYS,
        quick: false,
    },
    Trouble { name: "500, nothing done", fault: "status=500", times: 1, quick: false },
    Trouble { name: "503, nothing done", fault: "status=503", times: 1, quick: true },
];

/// What stands between the SDK and the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Bare,
    Gateway,
    GatewayWithProbe,
}

impl Way {
    const ALL: [Self; 3] = [Self::Bare, Self::Gateway, Self::GatewayWithProbe];

    fn name(self) -> &'static str {
        match self {
            Self::Bare => "without",
            Self::Gateway => "gateway",
            Self::GatewayWithProbe => "gateway, probe",
        }
    }
}

/// What the SDK told its caller.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
struct Told {
    id: Option<String>,
    error: Option<String>,
    status: Option<u16>,
    code: Option<String>,
}

/// What the caller was told, against what happened.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Truth {
    /// The result is the true one: the effect and its id, or a failure and no effect.
    True {
        happened: bool,
    },
    /// The caller was told that nobody knows, and it happened at most once.
    Unknown,
    /// More effects than calls.
    Duplicate(usize),
    FalseSuccess,
    FalseFailure,
}

impl Truth {
    fn allowed(&self, way: Way) -> bool {
        match self {
            Self::True { .. } => true,
            Self::Unknown => way == Way::Gateway,
            Self::Duplicate(_) | Self::FalseSuccess | Self::FalseFailure => false,
        }
    }
}

impl fmt::Display for Truth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::True { happened: true } => f.write_str("success, once"),
            Self::True { happened: false } => f.write_str("failure, nothing done"),
            Self::Unknown => f.write_str("unknown, at most once"),
            Self::Duplicate(count) => write!(f, "DONE {count} TIMES"),
            Self::FalseSuccess => f.write_str("FALSE SUCCESS"),
            Self::FalseFailure => f.write_str("FALSE FAILURE"),
        }
    }
}

/// Compares one call's result with the ledger's ids for its account.
fn compare(told: &Told, effects: &[String]) -> Truth {
    let unknown = told.code.as_deref() == Some("idempotency_outcome_unknown");
    match (effects, &told.error) {
        ([_, _, ..], _) => Truth::Duplicate(effects.len()),
        (_, Some(_)) if unknown => Truth::Unknown,
        ([], Some(_)) => Truth::True { happened: false },
        ([_], Some(_)) => Truth::FalseFailure,
        (_, None) if told.id.as_ref().is_some_and(|id| effects.contains(id)) => {
            Truth::True { happened: true }
        }
        (_, None) => Truth::FalseSuccess,
    }
}

/// An SDK in its language, as a process that makes one call per line.
struct Sdk {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Sdk {
    fn start(language: Language, target: SocketAddr) -> Result<Self> {
        let mut command = language.command()?;
        command.arg(format!("http://{target}")).arg(CLIENT_TIMEOUT.as_secs_f64().to_string());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start the SDK")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else { bail!("the SDK's process has no pipes") };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn call(&mut self, account: &str) -> Result<Told> {
        writeln!(self.input, "{}", serde_json::json!({ "account": account }))?;
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("the SDK's process ended: {:?}", self.child.wait()?);
        }
        serde_json::from_str(&line).with_context(|| format!("not a result: {line}"))
    }
}

impl Drop for Sdk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Python,
    Node,
}

impl Language {
    fn name(self) -> &'static str {
        match self {
            Self::Python => "stripe-python",
            Self::Node => "stripe-node",
        }
    }

    fn command(self) -> Result<Command> {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk");
        match self {
            Self::Python => {
                let mut command =
                    Command::new(tools::python("python", include_str!("../../sdk/requirements.txt"))?);
                command.arg(scripts.join("stripe_calls.py"));
                Ok(command)
            }
            Self::Node => {
                let (node, folder) = tools::node("node", include_str!("../../sdk/package.json"))?;
                let mut command = Command::new(node);
                command.arg(scripts.join("stripe_calls.mjs")).current_dir(folder);
                Ok(command)
            }
        }
    }
}

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let troubles: Vec<&Trouble> = TROUBLES.iter().filter(|trouble| trouble.quick || !scale.quick()).collect();
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["SDK", "the upstream", Way::ALL[0].name(), Way::ALL[1].name(), Way::ALL[2].name()]);
    let (mut holds, mut calls, mut doubled_without) = (true, 0, 0);
    for language in [Language::Python, Language::Node] {
        let mut columns = Vec::new();
        for way in Way::ALL {
            let column = run(language, way, &troubles)?;
            for truth in &column {
                calls += 1;
                match way {
                    Way::Bare => doubled_without += usize::from(matches!(truth, Truth::Duplicate(_))),
                    _ => holds &= truth.allowed(way),
                }
            }
            columns.push(column);
        }
        for (row, trouble) in troubles.iter().enumerate() {
            let mut cells = vec![language.name().to_owned(), trouble.name.to_owned()];
            cells.extend(columns.iter().map(|column| column[row].to_string()));
            table.add_row(cells);
        }
    }
    println!("{table}");
    println!(
        "{calls} calls; without the gateway {doubled_without} ended in duplicates, with it {}",
        if holds { "none did, and no caller was told anything false" } else { "SOME WENT WRONG" }
    );
    // Without duplicates on the bare way the faults did not bite, and the rest proves nothing.
    Ok(holds && doubled_without > 0)
}

/// One SDK, one way, every trouble.
fn run(language: Language, way: Way, troubles: &[&Trouble]) -> Result<Vec<Truth>> {
    let scratch = tools::scratch()?;
    let terms = ShopTerms { faults: true, ..ShopTerms::working(Duration::ZERO) };
    let shop = shop(&terms, scratch.path())?;
    let upstream = shop.address("listen")?;
    let gateway = match way {
        Way::Bare => None,
        Way::Gateway | Way::GatewayWithProbe => {
            let terms =
                Terms { probe: way == Way::GatewayWithProbe, stripe_envelope: true, ..Terms::default() };
            let store = GatewayStore::File(scratch.path().join("retrysafe.db"));
            Some(gateway("gateway", upstream, &terms, &store, None, scratch.path())?)
        }
    };
    let target = match &gateway {
        Some(gateway) => gateway.address(GATEWAY)?,
        None => upstream,
    };
    let mut sdk = Sdk::start(language, target)?;
    let progress = Progress::new(&format!("{} {}", language.name(), way.name()), troubles.len());
    let mut told = Vec::with_capacity(troubles.len());
    for (number, trouble) in troubles.iter().enumerate() {
        let account = format!("sk_test_{number}");
        set_fault(upstream, trouble)?;
        told.push((account.clone(), sdk.call(&account)?));
        progress.step();
    }
    clear_faults(upstream)?;
    // What was still under way in the upstream has its effect within the longest delay.
    std::thread::sleep(Duration::from_millis(SLOW_MS) + CLIENT_TIMEOUT);
    told.iter().map(|(account, told)| Ok(compare(told, &effects_of(upstream, account)?))).collect()
}

fn set_fault(shop: SocketAddr, trouble: &Trouble) -> Result<()> {
    clear_faults(shop)?;
    if trouble.times == 0 { Ok(()) } else { queue_fault(shop, trouble.fault, trouble.times) }
}

/// Has the next `times` state-changing requests meet this fault.
pub(super) fn queue_fault(shop: SocketAddr, fault: &str, times: u32) -> Result<()> {
    let body = serde_json::json!({ "fault": fault, "times": times }).to_string();
    let answer = ask(shop, Template::plain("POST", shop, "/faults", &[], &body).bytes())?;
    if answer.status >= 300 {
        bail!("the shop does not know the fault {fault}: {}", answer.status);
    }
    Ok(())
}

pub(super) fn clear_faults(shop: SocketAddr) -> Result<()> {
    let answer = ask(shop, Template::plain("DELETE", shop, "/faults", &[], "").bytes())?;
    if answer.status >= 300 {
        bail!("the shop has no queue of faults: {}", answer.status);
    }
    Ok(())
}

pub(super) fn effects_of(shop: SocketAddr, account: &str) -> Result<Vec<String>> {
    let path = format!("/ledger?account={account}&limit=1000");
    let answer = ask(shop, Template::plain("GET", shop, &path, &[], "").bytes())?;
    let entries: Vec<Entry> = serde_json::from_slice(&answer.body).context("a ledger")?;
    Ok(entries.into_iter().map(|entry| entry.id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn success(id: &str) -> Told {
        Told { id: Some(id.into()), ..Told::default() }
    }

    fn failure(code: &str) -> Told {
        Told { error: Some("APIError".into()), code: Some(code.into()), ..Told::default() }
    }

    fn truth(told: &Told, effects: &[&str]) -> Truth {
        compare(told, &effects.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn only_the_true_result_or_an_honest_unknown_pass() {
        assert_eq!(truth(&success("pi_1"), &["pi_1"]), Truth::True { happened: true });
        assert_eq!(truth(&failure("x"), &[]), Truth::True { happened: false });
        assert_eq!(truth(&failure("idempotency_outcome_unknown"), &["pi_1"]), Truth::Unknown);
        assert_eq!(truth(&failure("idempotency_outcome_unknown"), &[]), Truth::Unknown);
    }

    #[test]
    fn every_lie_is_found() {
        assert_eq!(truth(&success("pi_1"), &["pi_1", "pi_2"]), Truth::Duplicate(2));
        assert_eq!(truth(&failure("idempotency_outcome_unknown"), &["a", "b"]), Truth::Duplicate(2));
        assert_eq!(truth(&success("pi_9"), &["pi_1"]), Truth::FalseSuccess);
        assert_eq!(truth(&success("pi_9"), &[]), Truth::FalseSuccess);
        // stripe-node takes a JSON body without an error member for a success: an object without an id.
        assert_eq!(truth(&Told::default(), &["pi_1"]), Truth::FalseSuccess);
        assert_eq!(truth(&failure("x"), &["pi_1"]), Truth::FalseFailure);
    }

    #[test]
    fn unknown_is_not_enough_where_a_probe_can_tell() {
        assert!(Truth::Unknown.allowed(Way::Gateway));
        assert!(!Truth::Unknown.allowed(Way::GatewayWithProbe));
        assert!(!Truth::FalseFailure.allowed(Way::Gateway));
    }
}
