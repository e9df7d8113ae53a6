//! recovery.1 and recovery.2: the service of `examples/rides` ends at every point of its work, or is stopped there past its
//! lease, taken over and woken.
//!
//! One run is traced; then there is one run for each traced point, in which the process ends there by SIGKILL (and it is
//! asserted that it did), and one more in which the provider kills it when it has charged and not answered. Each point is met
//! twice: the caller's retry goes on, or a completer in another process, with nobody asking. Whatever happened, the ride
//! is there once, the card is charged once and with the same bytes, the mail leaves, and the answer is replayed as it is stored.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use example_rides::POSTGRES_TABLE;
use example_rides::provider::Fake;
use retrysafe_testbed::postgres;
use rusqlite::{Connection, OpenFlags};
use rustix::process::{Pid, Signal, kill_process};

use super::Scale;
use crate::judge::same;
use crate::process::{Server, own};
use crate::race::ask;
use crate::tools::scratch;
use crate::wire::{Answer, Key, Template};

/// How long anything that must happen may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// How many runs go on at once: nearly all of a run is waiting for a lease.
const AT_ONCE: usize = 4;
/// What a process says that finds a SQLite file blocked, and how often a run that met that is made.
const BLOCKED: &str = "is kept busy by another process";
const BLOCKED_MAX: usize = 5;
const BODY: &str = r#"{"to":"harbour","cents":990}"#;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Sqlite,
    Postgres,
}

/// What ends the first process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    /// At this point of its trace.
    At(usize),
    /// By the provider, which has charged and not answered.
    Charged,
}

/// Who goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Retry,
    Completer,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    ends: Ends,
    by: By,
    stopped: bool,
}

/// The database of one run.
enum Place {
    File(PathBuf),
    Server(postgres::Database),
}

impl Place {
    fn make(kind: Kind, scratch: &Path) -> Self {
        match kind {
            Kind::Sqlite => Place::File(scratch.join("rides.db")),
            Kind::Postgres => {
                let database = postgres::Database::create();
                database.psql(POSTGRES_TABLE);
                Place::Server(database)
            }
        }
    }

    fn store(&self) -> String {
        match self {
            Place::File(file) => format!("sqlite:{}", file.display()),
            Place::Server(database) => database.url(),
        }
    }

    /// One number, asked of the database itself.
    fn number(&self, sqlite: &str, postgres: &str) -> Result<i64> {
        match self {
            Place::File(file) => {
                let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
                connection.busy_timeout(Duration::from_secs(5))?;
                Ok(connection.query_row(sqlite, [], |row| row.get(0))?)
            }
            Place::Server(database) => Ok(database.psql(postgres).trim().parse()?),
        }
    }

    /// Requests that are neither done nor shown to a person.
    fn in_flight(&self) -> Result<i64> {
        self.number(
            "SELECT count(*) FROM retrysafe_record WHERE state = 0",
            "SELECT count(*) FROM retrysafe.key WHERE state = 0",
        )
    }

    fn staged(&self) -> Result<i64> {
        self.number(
            "SELECT count(*) FROM retrysafe_staged WHERE state = 0",
            "SELECT count(*) FROM retrysafe.staged WHERE state = 0",
        )
    }

    fn rides(&self) -> Result<(i64, i64)> {
        let all = self.number("SELECT count(*) FROM ride", "SELECT count(*) FROM public.ride")?;
        let confirmed = self.number(
            "SELECT count(*) FROM ride WHERE receipt IS NOT NULL",
            "SELECT count(*) FROM public.ride WHERE receipt IS NOT NULL",
        )?;
        Ok((all, confirmed))
    }

    /// Effects that the ledger has twice.
    fn doubled(&self) -> Result<i64> {
        self.number(
            "SELECT count(*) FROM (SELECT 1 FROM retrysafe_effect GROUP BY key, step HAVING count(*) > 1)",
            "SELECT count(*) FROM (SELECT 1 FROM retrysafe.effect GROUP BY key, step HAVING count(*) > 1) AS twice",
        )
    }
}

/// A provider in this process, which outlives the services that call it.
struct Provider {
    fake: Fake,
    address: SocketAddr,
    _runtime: tokio::runtime::Runtime,
}

impl Provider {
    fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let fake = Fake::new();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let api = fake.router();
        runtime.spawn(async move { axum::serve(listener, api).await });
        Ok(Self { fake, address, _runtime: runtime })
    }
}

/// What the services of one run share.
struct Stage {
    scratch: tempfile::TempDir,
    place: Place,
    provider: Provider,
}

impl Stage {
    fn set(kind: Kind) -> Result<Self> {
        let scratch = scratch()?;
        let place = Place::make(kind, scratch.path());
        Ok(Self { provider: Provider::start()?, scratch, place })
    }

    fn service(&self, name: &str, more: &[&str]) -> Result<Server> {
        let mut command = own(&["ride", "--store", &self.place.store()])?;
        command.args(["--provider", &self.provider.address.to_string()]);
        command.arg("--trace").arg(self.trace(name)).args(more);
        Server::start(name, command, self.scratch.path())
    }

    fn trace(&self, name: &str) -> PathBuf {
        self.scratch.path().join(format!("{name}.trace"))
    }

    /// The points that the service `name` came to.
    fn points(&self, name: &str) -> Result<Vec<String>> {
        let text = std::fs::read_to_string(self.trace(name)).context("a trace")?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn until(&self, what: &str, mut done: impl FnMut(&Self) -> Result<bool>) -> Result<()> {
        let start = Instant::now();
        while !done(self)? {
            if start.elapsed() > LIMIT {
                bail!("{what} did not come within {} s", LIMIT.as_secs());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}

fn request(target: SocketAddr, key: &Key) -> Vec<u8> {
    Template::keyed_post(target, "/rides", &[("authorization", "Bearer rider")], BODY).keyed(key).to_vec()
}

/// Sends the request until it is decided, as a client does.
fn until_decided(server: &Server, key: &Key) -> Result<Answer> {
    let target = server.address("listen")?;
    let start = Instant::now();
    loop {
        let answer = ask(target, &request(target, key))?;
        let waits = answer.code().is_some_and(|code| code == "idempotency_key_in_flight");
        if !waits && answer.status != 503 {
            return Ok(answer);
        }
        if start.elapsed() > LIMIT {
            bail!("the request is not decided: {} {:?}", answer.status, answer.code());
        }
        thread::sleep(POLL);
    }
}

/// The points of one undisturbed run, its mail included.
fn traced(kind: Kind, seed: u64) -> Result<Vec<String>> {
    let stage = Stage::set(kind)?;
    let server = stage.service("traced", &[])?;
    let answer = until_decided(&server, &Key::numbered(seed, 0))?;
    if answer.status != 201 {
        bail!("an undisturbed request is answered {}", answer.status);
    }
    stage.until("the mail", |stage| Ok(stage.place.staged()? == 0))?;
    let points = stage.points("traced")?;
    server.stop()?;
    Ok(points)
}

/// Runs one case. The number of times that the provider saw the charge's key, and the body of the answer.
fn run(case: Case, seed: u64) -> Result<(u32, Vec<u8>)> {
    let stage = Stage::set(case.kind)?;
    let key = Key::numbered(seed, 1);
    let end_at = match case.ends {
        Ends::At(point) => point,
        Ends::Charged => 0,
    };
    let end_by = if case.stopped { "stop" } else { "kill" };
    let first = stage.service("first", &["--end-at", &end_at.to_string(), "--end-by", end_by])?;
    let pid = Pid::from_raw(i32::try_from(first.pid())?).context("a process id")?;
    if case.ends == Ends::Charged {
        stage.provider.fake.on_charge(move || {
            let _ = kill_process(pid, Signal::KILL);
        });
    }
    let target = first.address("listen")?;
    let bytes = request(target, &key);
    // Its answer is lost with it, unless the end came after it.
    let asking = thread::spawn(move || ask(target, &bytes).ok());
    if case.stopped {
        stage.until("the stop", |_| is_stopped(pid))?;
    } else {
        first.killed_within(LIMIT).context("the crash did not happen")?;
        let early = asking.join().ok().flatten();
        stage.provider.fake.on_charge(|| {});
        let (sent, body) = judged(&stage, case, &key, early)?;
        return Ok((sent, body));
    }
    let (_, body) = judged(&stage, case, &key, None)?;
    // Woken, it goes on where it stood.
    kill_process(pid, Signal::CONT)?;
    let told = asking.join().ok().flatten();
    if let Some(told) = told
        && told.status == 201
        && told.body != body
    {
        bail!("the woken holder answered {:?}, and {:?} is stored", text(&told.body), text(&body));
    }
    let (sent, after) = judged(&stage, case, &key, None)?;
    if after != body {
        bail!("the answer changed when the holder woke");
    }
    first.stop()?;
    Ok((sent, body))
}

/// Another process goes on. Then everything must be there once.
fn judged(stage: &Stage, case: Case, key: &Key, early: Option<Answer>) -> Result<(u32, Vec<u8>)> {
    let name = if case.by == By::Completer { "completer" } else { "retry" };
    let more: &[&str] = if case.by == By::Completer { &["--completer"] } else { &[] };
    let second = stage.service(name, more)?;
    if case.by == By::Completer {
        stage.until("the completer's end", |stage| Ok(stage.place.in_flight()? == 0))?;
    }
    // By now it is done, or it had not begun and is free.
    let answer = until_decided(&second, key)?;
    if answer.status != 201 {
        bail!("answered {} {}", answer.status, text(&answer.body));
    }
    if let Some(early) = early.filter(|early| early.status == 201)
        && early.body != answer.body
    {
        bail!("its caller had been answered {}, and the retry {}", text(&early.body), text(&answer.body));
    }
    let again = until_decided(&second, key)?;
    if !same(&answer, &again) {
        bail!("two replays differ");
    }
    stage.until("the mail", |stage| Ok(stage.place.staged()? == 0))?;
    second.stop()?;
    let (rides, confirmed) = stage.place.rides()?;
    let (charges, mails) = (stage.provider.fake.charges(), stage.provider.fake.mails());
    let doubled = stage.place.doubled()?;
    if (rides, confirmed, charges.len(), mails.len(), doubled) != (1, 1, 1, 1, 0) {
        bail!(
            "{rides} rides, {confirmed} confirmed, {} keys charged, {} keys mailed, {doubled} effects twice",
            charges.len(),
            mails.len()
        );
    }
    if stage.provider.fake.changed_bodies() > 0 {
        bail!("a key came with other bytes");
    }
    Ok((charges.values().copied().sum(), answer.body))
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}

fn is_stopped(pid: Pid) -> Result<bool> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    Ok(stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
}

/// Runs all cases, some at once; prints what failed. How many there were, how many held, and how often a key was sent again.
fn all(cases: Vec<(Case, String)>, seed: u64) -> Result<(usize, usize, u32)> {
    let cases = Arc::new(cases);
    let next = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let workers: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let (cases, next) = (Arc::clone(&cases), Arc::clone(&next));
            thread::spawn(move || {
                let (mut held, mut again) = (0, 0);
                while let Some((case, point)) =
                    cases.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    let mut ended = run(*case, seed);
                    for _ in 1..BLOCKED_MAX {
                        match &ended {
                            Err(error) if case.stopped && format!("{error:#}").contains(BLOCKED) => {
                                ended = run(*case, seed);
                            }
                            _ => break,
                        }
                    }
                    match ended {
                        Ok((sent, _)) => {
                            held += 1;
                            again += sent.saturating_sub(1);
                        }
                        Err(error) => println!("  {:?}, {point}, by {:?}: {error:#}", case.kind, case.by),
                    }
                }
                (held, again)
            })
        })
        .collect();
    let (mut held, mut again) = (0, 0);
    for worker in workers {
        let (one, more) = worker.join().map_err(|_| anyhow::anyhow!("a run panicked"))?;
        held += one;
        again += more;
    }
    Ok((cases.len(), held, again))
}

pub(crate) fn prove_crashes(scale: Scale) -> Result<bool> {
    let mut cases = Vec::new();
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let points = traced(kind, scale.seed)?;
        println!("  {kind:?}: {} points in one run", points.len());
        for by in [By::Retry, By::Completer] {
            for (number, point) in (1..).zip(&points) {
                // The quick form takes every fourth, another for each way of going on.
                if scale.quick() && (number + usize::from(by == By::Completer)) % 4 != 1 {
                    continue;
                }
                cases.push((Case { kind, ends: Ends::At(number), by, stopped: false }, point.clone()));
            }
            let charged = "after the charge and before its answer".to_owned();
            cases.push((Case { kind, ends: Ends::Charged, by, stopped: false }, charged));
        }
    }
    let (all, held, again) = all(cases, scale.seed)?;
    println!(
        "{all} crashes by SIGKILL, each at its point; {held} ended with one ride, one charge and its answer; a key was sent again \
         {again} times, with the same bytes"
    );
    Ok(held == all)
}

pub(crate) fn prove_stops(scale: Scale) -> Result<bool> {
    let mut cases = Vec::new();
    // A process that is stopped while it has the turn of a SQLite file blocks everybody (protocol 29): left to the full form,
    // where such a run is made anew.
    let kinds: &[Kind] = if scale.quick() { &[Kind::Postgres] } else { &[Kind::Sqlite, Kind::Postgres] };
    for kind in kinds.iter().copied() {
        let points = traced(kind, scale.seed)?;
        for (number, point) in (1..).zip(&points) {
            // Whoever stops inside a write of a SQLite file blocks every key of it, and nobody can take over (protocol 29).
            let blocks = kind == Kind::Sqlite && point.starts_with("before the commit");
            // After the answer there is nothing to take over.
            let over = point.contains("sending") || point.contains("was stored");
            if blocks || over || (scale.quick() && number % 3 != 1) {
                continue;
            }
            let case = Case { kind, ends: Ends::At(number), by: By::Retry, stopped: true };
            cases.push((case, point.clone()));
        }
    }
    let (all, held, again) = all(cases, scale.seed)?;
    println!(
        "{all} holders stopped past their lease, taken over and woken; after {held} of them everything was as the successor left \
         it; a key was sent again {again} times, with the same bytes"
    );
    Ok(held == all)
}
