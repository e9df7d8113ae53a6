//! main-job.3: servers killed at random moments under load, restarted, their clients retrying.
//!
//! Afterwards: no second effect, no key in flight beyond its lease, every success replayed as it was, uncertain
//! keys no more than the requests that were in flight at the kills (none where the upstream de-duplicates).
//! Killing a process says nothing about what reached the disk: power cuts are the second half.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Scale, power};
use crate::book::effects;
use crate::contract::Terms;
use crate::judge::{Verdict, same};
use crate::persist::{Clients, Fate, Record, Work};
use crate::process::Server;
use crate::race::receive;
use crate::report::Progress;
use crate::subjects::{GATEWAY, GatewayStore, ShopTerms, gateway, service, shop};
use crate::tools::scratch;
use crate::wire::{Key, Template};

const KILLS: usize = 200;
const QUICK_KILLS: usize = 4;
const CLIENTS: usize = 16;
const HANDLER: Duration = Duration::from_millis(20);
const LEASE: Duration = Duration::from_secs(5);
/// Upkeep finds an ended lease within a pause of its own, and a busy machine takes its time.
const LEASE_MARGIN: Duration = Duration::from_secs(4);
/// How long everything may take to settle after the last kill.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);
/// How long a server lives before it is killed, in milliseconds.
const LIFE_MS: std::ops::Range<u64> = 20..250;
const BODY: &str = r#"{"amount":4200,"currency":"eur"}"#;

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let kills = scale.of(KILLS, QUICK_KILLS);
    let mut holds = behind_the_gateway(kills, scale.seed, false)?;
    holds &= behind_the_gateway(kills, scale.seed, true)?;
    holds &= the_service(kills, scale.seed)?;
    holds &= power::prove(scale)?;
    Ok(holds)
}

/// A server that can be killed and started again, on the same address and files.
struct Mortal<'a> {
    start: Box<dyn Fn() -> Result<Server> + 'a>,
    alive: Option<Server>,
}

impl<'a> Mortal<'a> {
    fn new(start: impl Fn() -> Result<Server> + 'a) -> Result<Self> {
        let alive = Some(start()?);
        Ok(Self { start: Box::new(start), alive })
    }

    fn kill(&mut self) -> Result<()> {
        self.alive.take().context("it was alive")?.kill()
    }

    fn restart(&mut self) -> Result<()> {
        self.alive = Some((self.start)()?);
        Ok(())
    }
}

/// A port that stays the same over restarts.
fn port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn behind_the_gateway(kills: usize, seed: u64, deduplicates: bool) -> Result<bool> {
    let scratch = scratch()?;
    let (upstream, front) = (port()?, port()?);
    let shop_terms =
        ShopTerms { deduplicate: deduplicates, listen: Some(upstream), ..ShopTerms::working(HANDLER) };
    let terms = Terms { lease: LEASE, upstream_deduplicates: deduplicates, ..Terms::default() };
    let store = GatewayStore::File(scratch.path().join("retrysafe.db"));
    let path: &Path = scratch.path();
    let mut servers = [
        Mortal::new(|| shop(&shop_terms, path))?,
        Mortal::new(|| gateway("gateway", upstream, &terms, &store, Some(front), path))?,
    ];
    if let Some(server) = &servers[1].alive {
        server.address(GATEWAY)?;
    }
    let name = if deduplicates { "gateway, upstream de-duplicates" } else { "gateway" };
    let allow_unknown = !deduplicates;
    kill_under_load(&Run { name, front, ledger: upstream, kills, seed, allow_unknown }, &mut servers)
}

fn the_service(kills: usize, seed: u64) -> Result<bool> {
    let scratch = scratch()?;
    let front = port()?;
    let store = format!("sqlite:{}", scratch.path().join("layer.db").display());
    let path: &Path = scratch.path();
    let mut servers = [Mortal::new(|| service("service", &store, HANDLER, LEASE, Some(front), path))?];
    let run =
        Run { name: "service behind the layer", front, ledger: front, kills, seed, allow_unknown: true };
    kill_under_load(&run, &mut servers)
}

struct Run {
    name: &'static str,
    /// Where clients send.
    front: SocketAddr,
    /// Who keeps the ledger.
    ledger: SocketAddr,
    kills: usize,
    seed: u64,
    allow_unknown: bool,
}

fn kill_under_load(run: &Run, servers: &mut [Mortal<'_>]) -> Result<bool> {
    let mut chance = fastrand::Rng::with_seed(run.seed);
    let clients = Clients::start(Work { target: run.front, clients: CLIENTS, seed: run.seed, body: BODY });
    let progress = Progress::new(run.name, run.kills);
    let mut in_flight_at_kills = 0;
    for _ in 0..run.kills {
        std::thread::sleep(Duration::from_millis(chance.u64(LIFE_MS)));
        let victim = chance.usize(..servers.len());
        let before = clients.in_flight();
        servers[victim].kill()?;
        // A request may have gone out between the look and the blow.
        in_flight_at_kills += before.max(clients.in_flight());
        servers[victim].restart()?;
        progress.step();
    }
    clients.begin_nothing_new();
    let settling = Instant::now();
    while clients.record().open() > 0 && settling.elapsed() < SETTLE_LIMIT {
        std::thread::sleep(Duration::from_millis(20));
    }
    let record = clients.finish()?;
    let mut verdict = Verdict::default();
    check(run, &record, in_flight_at_kills, &mut verdict)?;
    println!(
        "{}: {} kills, {} operations: {} successes replayed as they were, {} uncertain of {in_flight_at_kills} in \
         flight at the kills, {} ledger entries, longest in flight {:.1} s of a lease of {} s",
        run.name,
        run.kills,
        record.fates.len(),
        verdict.kinds.success,
        record.unknown(),
        verdict.effects,
        record.longest_in_flight.as_secs_f64(),
        LEASE.as_secs(),
    );
    for (violation, count) in verdict.violations() {
        println!("  VIOLATED {count} times: {violation}");
    }
    Ok(verdict.holds())
}

/// Compares what clients were told with the ledger, and with what they are told now.
fn check(run: &Run, record: &Record, in_flight_at_kills: usize, verdict: &mut Verdict) -> Result<()> {
    for (violation, count) in &record.violations {
        for _ in 0..*count {
            verdict.note(violation.clone());
        }
    }
    if record.longest_in_flight > LEASE + LEASE_MARGIN {
        verdict.note(format!("a key in flight for {} s", record.longest_in_flight.as_secs()));
    }
    let unknown = record.unknown();
    if unknown > in_flight_at_kills {
        verdict.note(format!(
            "{unknown} uncertain keys, and only {in_flight_at_kills} requests in flight at the kills"
        ));
    }
    if unknown > 0 && !run.allow_unknown {
        verdict.note(format!("{unknown} uncertain keys although the upstream de-duplicates"));
    }
    let ledger = effects(run.ledger)?;
    let mut replays = Replays::connect(run.front)?;
    for (number, fate) in &record.fates {
        let key = Key::numbered(run.seed, *number);
        let ids = ledger.get(key.as_str()).map(Vec::as_slice).unwrap_or_default();
        verdict.effects += ids.len();
        if ids.len() > 1 {
            verdict.note(format!("{} effects of one key", ids.len()));
        }
        match fate {
            Fate::Success(answer) => {
                let body = String::from_utf8_lossy(&answer.body);
                if !ids.iter().any(|id| body.contains(id.as_str())) {
                    verdict.note("a success that the ledger does not know");
                }
                if same(&replays.ask(&key)?, answer) {
                    verdict.kinds.success += 1;
                } else {
                    verdict.note("a committed answer that is not replayed as it was");
                }
            }
            Fate::Unknown => {}
            Fate::Open { .. } | Fate::Trying => {
                verdict.note("a key without a result after everything settled")
            }
        }
    }
    Ok(())
}

/// One kept-alive connection that asks for keys again.
struct Replays {
    stream: TcpStream,
    template: Template,
}

impl Replays {
    fn connect(target: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(target)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SETTLE_LIMIT))?;
        let headers = [("authorization", "Bearer persistent")];
        Ok(Self { stream, template: Template::keyed_post(target, "/orders", &headers, BODY) })
    }

    fn ask(&mut self, key: &Key) -> Result<crate::wire::Answer> {
        std::io::Write::write_all(&mut self.stream, self.template.keyed(key))?;
        receive(&mut self.stream)
    }
}
