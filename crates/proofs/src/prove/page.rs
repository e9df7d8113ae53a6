//! contract-tools.6: a client that somebody wrote who had the printed page and nothing else, against the sample shop behind
//! the gateway: in every trouble of the shop, twice at once, and over a gateway that is killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use comfy_table::{Table, presets};
use serde::Deserialize;

use super::{
    Scale,
    sdks::{clear_faults, effects_of, queue_fault},
};
use crate::{
    process::Server,
    subjects::{GATEWAY, ShopTerms, retrysafe, shop},
    tools,
};

/// What the client was written for.
const SAMPLE: &str = include_str!("../../../cli/assets/shop.toml");
/// The client's patience for one answer; the delays below are past it.
const READ_TIMEOUT_S: &str = "1";
const ORDERS: usize = 200;
const QUICK_ORDERS: usize = 20;
const KILLS: usize = 10;
const QUICK_KILLS: usize = 1;
/// Orders of each run of the client that meets a kill.
const ORDERS_A_KILL: usize = 20;
/// An order that is not settled after this many runs of the client is stuck.
const RUNS_MAX: usize = 40;
/// Between two runs: leases end, probes are asked.
const BETWEEN_RUNS: Duration = Duration::from_millis(500);

/// Troubles of the shop, how many requests each hits, and whether the quick form has it. The gateway can ask the shop what
/// became of an order, so none has to end as unknown.
const TROUBLES: [(&str, &str, u32, bool); 10] = [
    ("nothing", "", 0, false),
    ("commits, then cuts", "commit-then-cut", 1, true),
    ("commits, then cuts, three times", "commit-then-cut", 3, false),
    ("cuts, nothing done", "cut", 1, false),
    ("commits, answers too late", "commit-then-delay=1600", 1, true),
    ("too slow, then commits", "delay=1600", 1, false),
    ("commits, then 500", "commit-then-status=500", 1, true),
    ("500, nothing done", "status=500", 1, false),
    ("503, nothing done", "status=503", 1, true),
    ("429, nothing done", "status=429", 1, false),
];

/// A line of the client's.
#[derive(Clone, Debug, Deserialize)]
struct Line {
    order: String,
    result: String,
    id: Option<String>,
    attempts: u32,
}

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let troubles = in_trouble(scale.quick())?;
    let twice = at_once(scale.of(ORDERS, QUICK_ORDERS))?;
    let killed = over_kills(scale.of(KILLS, QUICK_KILLS), scale.seed)?;
    println!(
        "a client from the page alone: {} of {} troubles end in one order and a true answer; {} of {} orders that two of it \
         sent at once exist once; {} of {} orders over {} kills of the gateway exist once and were told so",
        troubles.right, troubles.all, twice.right, twice.all, killed.right, killed.all, killed.kills
    );
    Ok([troubles, twice, killed].iter().all(|count| count.all > 0 && count.right == count.all))
}

#[derive(Clone, Copy, Default)]
struct Count {
    right: usize,
    all: usize,
    kills: usize,
}

/// The sample as `retrysafe serve` starts it, with a shop that fails on request.
struct Sample {
    shop: Server,
    gateway: Option<Server>,
    listen: SocketAddr,
    upstream: SocketAddr,
    scratch: tempfile::TempDir,
}

impl Sample {
    fn start() -> Result<Self> {
        let scratch = tools::scratch()?;
        let shop = shop(&ShopTerms { faults: true, ..ShopTerms::working(Duration::ZERO) }, scratch.path())?;
        let upstream = shop.address("listen")?;
        let mut sample =
            Self { shop, gateway: None, listen: SocketAddr::from(([127, 0, 0, 1], 0)), upstream, scratch };
        sample.open()?;
        Ok(sample)
    }

    /// Starts the gateway, at the address that it had.
    fn open(&mut self) -> Result<()> {
        let contract = self.scratch.path().join("shop.toml");
        // A lease of the sample's length would have a proof wait for half a minute after each kill.
        std::fs::write(&contract, SAMPLE.replace("lease = \"30s\"", "lease = \"2s\""))?;
        let mut command = Command::new(retrysafe()?);
        command.arg("serve").arg("--upstream").arg(format!("http://{}", self.upstream));
        command.arg("--contract").arg(contract).arg("--listen").arg(self.listen.to_string());
        command.args(["--admin", "127.0.0.1:0", "--store"]).arg(self.scratch.path().join("retrysafe.db"));
        command.current_dir(self.scratch.path());
        let gateway = Server::start("gateway", command, self.scratch.path())?;
        self.listen = gateway.address(GATEWAY)?;
        self.gateway = Some(gateway);
        Ok(())
    }

    fn client(&self, account: &str, orders: &[String]) -> Result<Client> {
        Client::start(self.listen, account, orders)
    }

    /// Runs the client until every order is settled, by its own exit code. The last word on each order.
    fn settle(&self, account: &str, orders: &[String]) -> Result<BTreeMap<String, Line>> {
        for _ in 0..RUNS_MAX {
            let (lines, settled) = self.client(account, orders)?.end()?;
            if settled {
                return Ok(lines);
            }
            std::thread::sleep(BETWEEN_RUNS);
        }
        bail!("an order is not settled after {RUNS_MAX} runs; the shop: {}", self.shop.log_tail())
    }

    fn effects(&self, account: &str) -> Result<Vec<String>> {
        effects_of(self.upstream, account)
    }

    /// How many of the orders exist once, with the id that the client was told. None if there are more than were asked for.
    fn once(&self, account: &str, told: &BTreeMap<String, Line>) -> Result<usize> {
        let ids = self.effects(account)?;
        let distinct: BTreeSet<_> = told.values().filter_map(|line| line.id.as_ref()).collect();
        if ids.len() != told.len() || distinct.len() != told.len() {
            println!("  {} orders, {} ids told, {} effects", told.len(), distinct.len(), ids.len());
            return Ok(0);
        }
        let once = |line: &&Line| {
            let own = |id: &&String| line.id.as_ref() == Some(*id);
            line.result == "created" && ids.iter().filter(own).count() == 1
        };
        Ok(told.values().filter(once).count())
    }
}

/// The program, at work on some orders.
struct Client {
    child: Child,
    output: BufReader<ChildStdout>,
    told: BTreeMap<String, Line>,
}

impl Client {
    fn start(gateway: SocketAddr, account: &str, orders: &[String]) -> Result<Self> {
        let mut child = Command::new(tools::system("python3", "python3")?)
            .arg(program())
            .arg(format!("http://{gateway}"))
            .arg(account)
            .env("READ_TIMEOUT_S", READ_TIMEOUT_S)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("start the client")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(mut input), Some(output)) = (input, output) else { bail!("the client has no pipes") };
        for order in orders {
            writeln!(input, "{}", serde_json::json!({ "order": order, "amount": 5 }))?;
        }
        Ok(Self { child, output: BufReader::new(output), told: BTreeMap::new() })
    }

    /// Waits for what it says of the next order. `false`: it has said all.
    fn next(&mut self) -> Result<bool> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Ok(false);
        }
        let line: Line = serde_json::from_str(&line).with_context(|| format!("not a result: {line}"))?;
        self.told.insert(line.order.clone(), line);
        Ok(true)
    }

    /// What it told of each order, and whether it counts them all as settled.
    fn end(mut self) -> Result<(BTreeMap<String, Line>, bool)> {
        while self.next()? {}
        let status = self.child.wait().context("the client")?;
        Ok((self.told, status.success()))
    }
}

fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/from_the_page.py")
}

fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number}")).collect()
}

/// One order in each trouble. What the first run tells must be true, and further runs must settle it as one order.
fn in_trouble(quick: bool) -> Result<Count> {
    let sample = Sample::start()?;
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["the shop", "the client says", "attempts", "in the end", "orders"]);
    let mut count = Count::default();
    for (number, (name, fault, times, _)) in TROUBLES.iter().filter(|row| row.3 || !quick).enumerate() {
        let account = format!("sk_trouble_{number}");
        let order = ["1042".to_owned()];
        if *times > 0 {
            queue_fault(sample.upstream, fault, *times)?;
        }
        let (first, _) = sample.client(&account, &order)?.end()?;
        clear_faults(sample.upstream)?;
        let first = first.get(&order[0]).cloned().context("the client said nothing")?;
        // A false answer: created without an order, or refused with one.
        let then = sample.effects(&account)?.len();
        let lied = (first.result == "created" && then != 1) || (first.result == "refused" && then > 0);
        let end = sample.settle(&account, &order)?;
        let right = !lied && sample.once(&account, &end)? == 1;
        let last = end.get(&order[0]).map_or("nothing", |line| line.result.as_str());
        let effects = sample.effects(&account)?.len().to_string();
        let attempts = first.attempts.to_string();
        table.add_row([*name, &first.result, &attempts, last, &effects]);
        count.all += 1;
        count.right += usize::from(right);
    }
    println!("{table}");
    Ok(count)
}

/// Two programs with the same orders at the same time.
fn at_once(orders: usize) -> Result<Count> {
    const ACCOUNT: &str = "sk_twice";
    let sample = Sample::start()?;
    let orders = numbered("twice", orders);
    let (one, other) = (sample.client(ACCOUNT, &orders)?, sample.client(ACCOUNT, &orders)?);
    let (first, second) = (one.end()?.0, other.end()?.0);
    let told = sample.settle(ACCOUNT, &orders)?;
    let agree = |line: &&Line| {
        let others = [first.get(&line.order), second.get(&line.order)];
        others.into_iter().flatten().all(|other| other.result != "created" || other.id == line.id)
    };
    let once = sample.once(ACCOUNT, &told)?;
    let right = if told.values().filter(agree).count() == told.len() { once } else { 0 };
    Ok(Count { right, all: orders.len(), kills: 0 })
}

/// A gateway that is killed while the client works, and started again.
fn over_kills(kills: usize, seed: u64) -> Result<Count> {
    const ACCOUNT: &str = "sk_killed";
    let mut sample = Sample::start()?;
    let mut chance = fastrand::Rng::with_seed(seed);
    let orders = numbered("killed", kills * ORDERS_A_KILL);
    let mut met = 0;
    for some in orders.chunks(ORDERS_A_KILL) {
        // Slow enough that a kill meets a request.
        queue_fault(sample.upstream, "delay=50", ORDERS_A_KILL as u32)?;
        let mut client = sample.client(ACCOUNT, some)?;
        for _ in 0..chance.usize(1..ORDERS_A_KILL / 2) {
            client.next()?;
        }
        std::thread::sleep(Duration::from_millis(chance.u64(0..50)));
        sample.gateway.take().context("the gateway is gone")?.kill()?;
        sample.open()?;
        let (lines, _) = client.end()?;
        met += usize::from(lines.values().any(|line| line.result != "created" || line.attempts > 1));
    }
    clear_faults(sample.upstream)?;
    let told = sample.settle(ACCOUNT, &orders)?;
    println!("  {met} of {kills} kills met a request");
    let right = if met > 0 { sample.once(ACCOUNT, &told)? } else { 0 };
    Ok(Count { right, all: orders.len(), kills })
}
