//! gates.3: published middlewares, whose faults are known, under the gate.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use retrysafe_gates::report::{Report, Verdict};

use super::{gate, plan, print_findings};
use crate::prove::Scale;
use crate::report::Progress;
use crate::tools;

const RUNS: usize = 20;
/// An interpreter on a busy machine takes its time.
const READY_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// A published middleware, and the fault that it has.
struct Peer {
    name: &'static str,
    /// A race shows its fault in this share of the rounds at least.
    detect: f64,
    start: fn(u16, u16) -> Result<Command>,
}

const PEERS: [Peer; 2] = [
    Peer { name: "express-idempotency 1.0.6, Redis adapter 1.0.8", detect: 0.5, start: express },
    // Its window is the time between two round trips to Redis: one race in twenty, or fewer.
    Peer { name: "fastidempotent 0.1.0, Redis", detect: 0.02, start: fastapi },
];

fn express(port: u16, redis: u16) -> Result<Command> {
    let (node, folder) = tools::node("gates-node", include_str!("../../../peers/gates/package.json"))?;
    std::fs::write(folder.join("orders.js"), include_str!("../../../peers/gates/orders.js"))?;
    let mut command = Command::new(node);
    command.current_dir(folder).args(["orders.js", &port.to_string(), &format!("redis://127.0.0.1:{redis}")]);
    Ok(command)
}

fn fastapi(port: u16, redis: u16) -> Result<Command> {
    let python = tools::python("gates-python", include_str!("../../../peers/gates/requirements.txt"))?;
    let script = tools::target("tools/gates-python")?.join("orders.py");
    std::fs::write(&script, include_str!("../../../peers/gates/orders.py"))?;
    let mut command = Command::new(python);
    command.arg(script).args([&port.to_string(), &format!("redis://127.0.0.1:{redis}/0")]);
    Ok(command)
}

/// A process that ends with this value.
struct Running(Child);

impl Running {
    /// Starts it and waits until it listens.
    fn start(mut command: Command, port: u16) -> Result<Self> {
        let name = format!("{:?}", command.get_program());
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut running = Self(spawned.with_context(|| format!("start {name}"))?);
        let start = Instant::now();
        while TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_err() {
            if let Some(status) = running.0.try_wait()? {
                bail!("{name} ended at once with {status}");
            }
            if start.elapsed() > READY_LIMIT {
                bail!("{name} does not listen after {} s", READY_LIMIT.as_secs());
            }
            std::thread::sleep(POLL);
        }
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn redis() -> Result<(Running, u16)> {
    let port = free_port()?;
    let mut command = Command::new(tools::system("redis-server", "redis-server")?);
    command.args(["--port", &port.to_string(), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]);
    Ok((Running::start(command, port)?, port))
}

fn text(port: u16, detect: f64) -> String {
    format!(
        r#"
        base = "http://127.0.0.1:{port}"
        [request]
        path = "/orders"
        body = '{{"amount": 4200, "note": "{{{{nonce}}}}"}}'
        [answers]
        in_flight = [409]
        mismatch = [417, 422]
        [[observe]]
        kind = "list"
        url = "/orders?note={{{{nonce}}}}"
        jsonpath = "$[?@.note == '{{{{nonce}}}}']"
        [concurrency]
        detect = {detect}
        "#
    )
}

/// At which arrival a second effect was found, if one was.
fn found(report: &Report) -> Option<&str> {
    let race = report.part("A1").filter(|race| race.verdict == Some(Verdict::Fail))?;
    let example = race.counterexample.as_ref()?;
    example.effects.iter().any(|(_, count)| *count > 1).then_some(example.shape.as_str())
}

/// The evidence: what the races showed, and the whole report as a file.
fn keep(peer: &Peer, report: &Report) -> Result<()> {
    let name = peer.name.split(' ').next().unwrap_or(peer.name);
    let file = tools::target("proofs")?.join(format!("gates.3-{name}.json"));
    std::fs::write(&file, serde_json::to_string_pretty(report)?)?;
    let race = report.part("A1").context("the races ran")?;
    if let Some(example) = &race.counterexample {
        println!("{}: round {}, {}: {:?}", peer.name, example.round, example.shape, example.effects);
    }
    println!("  {}; the report: {}", race.said.join("; "), file.display());
    Ok(())
}

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let runs = scale.of(RUNS, 1);
    let mut holds = true;
    for peer in &PEERS {
        let (_redis, redis_port) = redis()?;
        let port = free_port()?;
        let _server = Running::start((peer.start)(port, redis_port)?, port)?;
        let plan = plan(&text(port, peer.detect))?;
        let progress = Progress::new(peer.name, runs);
        let (mut right, mut races, mut arrivals) = (0, 0, BTreeMap::<String, usize>::new());
        for run in 0..runs as u64 {
            let report = gate(&plan, scale.seed.wrapping_add(run))?;
            races += report.part("A1").map_or(0, |part| part.rounds);
            if let Some(arrival) = found(&report) {
                right += 1;
                *arrivals.entry(arrival.to_owned()).or_default() += 1;
                if run == 0 {
                    keep(peer, &report)?;
                }
            } else {
                println!("  WRONG in run {run}: {}", report.verdict.word());
                print_findings(&report)?;
            }
            progress.step();
        }
        drop(progress);
        println!("{}: found in {right} of {runs} runs, {races} races; first seen {arrivals:?}", peer.name);
        holds &= right == runs;
    }
    Ok(holds)
}
