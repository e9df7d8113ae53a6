//! gates.4: retrysafe under its own gates. All stores, in the service and as a gateway, every arm; and requests of several steps
//! under the crash gate.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use retrysafe_gates::report::Verdict;

use super::{gate, plan, print_findings};
use crate::contract::Terms;
use crate::process::Server;
use crate::prove::Scale;
use crate::subjects::{GATEWAY, GatewayStore, ShopTerms, gateway, service, shop};
use crate::till::{Place, PlaceKind, TillTerms};
use crate::tools::scratch;

/// Races of each shape, for each deployment.
const ROUNDS: usize = 500;
const QUICK_ROUNDS: usize = 3;
const HANDLER: Duration = Duration::from_millis(4);

/// What our own answers mean, by their codes.
const ANSWERS: &str = r#"
[key]
required = true
[answers]
in_flight = [{ status = 409, contains = "idempotency_key_in_flight" }]
mismatch = [{ status = 409, contains = "idempotency_key_payload_mismatch" }]
not_now = [{ status = 503, contains = "idempotency_store_unavailable" }]
missing_key = [{ status = 400, contains = "idempotency_key_missing" }]
[second_account]
headers = { Authorization = "Bearer bob" }
"#;

/// A deployment under the gate.
struct Subject<'a> {
    name: String,
    bases: Vec<SocketAddr>,
    path: &'a str,
    /// Another path with keys.
    other: &'a str,
    /// `[[observe]]`, and what else differs.
    more: String,
}

impl Subject<'_> {
    fn text(&self, rounds: usize) -> String {
        let bases: Vec<String> = self.bases.iter().map(|base| format!("\"http://{base}\"")).collect();
        let operation = |table: &str, path: &str| {
            format!(
                "[{table}]\npath = \"{path}\"\nheaders = {{ Authorization = \"Bearer alice\" }}\n\
                 body = '{{\"amount\": 4200, \"currency\": \"eur\", \"note\": \"{{{{nonce}}}}\"}}'\n"
            )
        };
        format!(
            "base = [{}]\n{}{}{ANSWERS}\n{}\n[concurrency]\nrounds = {rounds}\n",
            bases.join(", "),
            operation("request", self.path),
            operation("other_operation", self.other),
            self.more,
        )
    }

    /// Runs every arm that the plan has; `true` where all of them pass.
    fn passes(&self, scale: Scale) -> Result<bool> {
        // Some of them share a database or an upstream: no key of one may be known to another.
        let seed = scale.seed.wrapping_add(
            self.name.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte))),
        );
        let report = gate(&plan(&self.text(scale.of(ROUNDS, QUICK_ROUNDS)))?, seed)?;
        let races = report.part("A1").map_or(0, |part| part.rounds);
        let arms = report.parts.iter().filter(|part| part.verdict == Some(Verdict::Pass)).count();
        println!(
            "{:<44} {}: {arms} arms, {races} races, {} requests",
            self.name,
            report.verdict.word(),
            report.requests
        );
        if report.verdict != Verdict::Pass {
            print_findings(&report)?;
        }
        Ok(report.verdict == Verdict::Pass)
    }
}

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    if !scale.quick() {
        // One at a time: nothing else may widen or narrow a window.
        return Ok(in_the_service(scale)?
            & in_the_transactions(scale)?
            & as_a_gateway(scale)?
            & super::crashed::prove(scale)?);
    }
    std::thread::scope(|scope| {
        let groups: [fn(Scale) -> Result<bool>; 4] =
            [in_the_service, in_the_transactions, as_a_gateway, super::crashed::prove];
        let running = groups.map(|group| scope.spawn(move || group(scale)));
        let mut holds = true;
        for group in running {
            holds &= group.join().map_err(|_| anyhow::anyhow!("a group of deployments panicked"))??;
        }
        Ok(holds)
    })
}

fn in_the_transactions(scale: Scale) -> Result<bool> {
    let mut holds = true;
    for kind in PlaceKind::ALL {
        holds &= in_the_transaction(kind, scale)?;
    }
    Ok(holds)
}

/// By key: what these services write down of a request.
fn ledger(address: &str) -> String {
    format!(
        "[[observe]]\nkind = \"list\"\nurl = \"{address}/ledger?limit=10000\"\njsonpath = \"$[?@.key == '{{{{key}}}}']\"\n"
    )
}

fn in_the_service(scale: Scale) -> Result<bool> {
    let scratch = scratch()?;
    let mut holds = true;
    for (name, store) in [
        ("memory", "memory".to_owned()),
        ("SQLite", format!("sqlite:{}", scratch.path().join("layer.db").display())),
    ] {
        let folder = scratch.path().join(name);
        std::fs::create_dir(&folder)?;
        let server = service(name, &store, HANDLER, Terms::default().lease, None, &folder)?;
        let subject = Subject {
            name: format!("layer on {name}"),
            bases: vec![server.address("listen")?],
            path: "/orders",
            other: "/bench",
            more: ledger(""),
        };
        holds &= subject.passes(scale)?;
        server.stop()?;
    }
    Ok(holds)
}

/// Two processes on one database, whose rows and answers are one commit.
fn in_the_transaction(kind: PlaceKind, scale: Scale) -> Result<bool> {
    let scratch = scratch()?;
    let place = Place::make(kind, scratch.path());
    let terms = TillTerms { work_ms: u64::try_from(HANDLER.as_millis())?, ..TillTerms::on(&place) };
    let servers =
        [place.till("till-one", &terms, scratch.path())?, place.till("till-two", &terms, scratch.path())?];
    let bases: Vec<SocketAddr> =
        servers.iter().map(|server| server.address("listen")).collect::<Result<_>>()?;
    let address = place.address();
    let more = format!(
        "[[observe]]\nkind = \"sql\"\nurl = \"{}\"\nquery = \"SELECT count(*) FROM sale WHERE request = '{{{{key}}}}'\"\n",
        address.trim_start_matches("sqlx+")
    );
    let mut holds = true;
    for (path, what) in
        [("/orders", "one transaction"), ("/first", "claim first"), ("/waiting", "losers wait")]
    {
        // In short: one promise for each database, and both on one of them.
        if scale.quick() && path != "/orders" && (path == "/waiting" || kind != PlaceKind::TokioPostgres) {
            continue;
        }
        let subject = Subject {
            name: format!("{}, {what}", kind.name()),
            bases: bases.clone(),
            path,
            other: if path == "/first" { "/orders" } else { "/first" },
            more: more.clone(),
        };
        holds &= subject.passes(scale)?;
    }
    for server in servers {
        server.stop()?;
    }
    Ok(holds)
}

fn as_a_gateway(scale: Scale) -> Result<bool> {
    let scratch = scratch()?;
    let shop = shop(&ShopTerms::working(HANDLER), scratch.path())?;
    let upstream = shop.address("listen")?;
    let mut holds = true;
    let file = GatewayStore::File(scratch.path().join("retrysafe.db"));
    for (name, store) in [("memory", GatewayStore::Memory), ("SQLite", file)] {
        let server =
            gateway(&format!("gateway-{name}"), upstream, &Terms::default(), &store, None, scratch.path())?;
        holds &= through(name, &server, upstream, scale)?;
        server.stop()?;
    }
    for kind in [PlaceKind::TokioPostgres, PlaceKind::MariaDb] {
        let place = Place::make(kind, scratch.path());
        let store = GatewayStore::Url(place.address());
        migrate(&place.address(), scratch.path())?;
        let name = kind.name();
        let server = gateway("gateway-database", upstream, &Terms::default(), &store, None, scratch.path())?;
        holds &= through(name, &server, upstream, scale)?;
        server.stop()?;
    }
    shop.stop()?;
    Ok(holds)
}

/// The tables of a gateway's database.
fn migrate(address: &str, scratch: &Path) -> Result<()> {
    let mut command = std::process::Command::new(crate::subjects::retrysafe()?);
    command.args(["migrate", "--store", address]).current_dir(scratch).stdout(std::process::Stdio::null());
    anyhow::ensure!(command.status().context("retrysafe migrate")?.success(), "retrysafe migrate failed");
    Ok(())
}

fn through(name: &str, server: &Server, upstream: SocketAddr, scale: Scale) -> Result<bool> {
    let subject = Subject {
        name: format!("gateway on {name}"),
        bases: vec![server.address(GATEWAY)?],
        path: "/orders",
        other: "/v1/charges",
        more: ledger(&format!("http://{upstream}")),
    };
    subject.passes(scale)
}
