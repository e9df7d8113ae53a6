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
use example_rides::provider::Fake;
use example_rides::{MARIADB_TABLE, POSTGRES_TABLE};
use retrysafe_testbed::{mariadb, postgres};
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
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
/// What a process says that finds a SQLite file blocked.
const BLOCKED: &str = "is kept busy by another process";
/// The files by which processes take turns on a SQLite file.
const TURNS: [&str; 2] = ["-next", "-turn"];
const BODY: &str = r#"{"to":"harbour","cents":990}"#;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Sqlite,
    Postgres,
    Mariadb,
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
    Mariadb(mariadb::Database),
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
            Kind::Mariadb => {
                let database = mariadb::Database::create();
                database.run(MARIADB_TABLE);
                Place::Mariadb(database)
            }
        }
    }

    fn store(&self) -> String {
        match self {
            Place::File(file) => format!("sqlite:{}", file.display()),
            Place::Server(database) => database.url(),
            Place::Mariadb(database) => database.url(),
        }
    }

    /// One number, asked of the database itself.
    fn number(&self, sqlite: &str, postgres: &str, mariadb: &str) -> Result<i64> {
        match self {
            Place::File(file) => {
                let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
                connection.busy_timeout(Duration::from_secs(5))?;
                Ok(connection.query_row(sqlite, [], |row| row.get(0))?)
            }
            Place::Server(database) => Ok(database.psql(postgres).trim().parse()?),
            Place::Mariadb(database) => Ok(database.run(mariadb).trim().parse()?),
        }
    }

    /// Requests that are neither done nor shown to a person.
    fn in_flight(&self) -> Result<i64> {
        self.number(
            "SELECT count(*) FROM retrysafe_record WHERE state = 0",
            "SELECT count(*) FROM retrysafe.key WHERE state = 0",
            "SELECT COUNT(*) FROM retrysafe_key WHERE state = 0",
        )
    }

    fn staged(&self) -> Result<i64> {
        self.number(
            "SELECT count(*) FROM retrysafe_staged WHERE state = 0",
            "SELECT count(*) FROM retrysafe.staged WHERE state = 0",
            "SELECT COUNT(*) FROM retrysafe_staged WHERE state = 0",
        )
    }

    fn rides(&self) -> Result<(i64, i64)> {
        let ride = "SELECT count(*) FROM ride";
        let all = self.number(ride, "SELECT count(*) FROM public.ride", ride)?;
        let confirmed = self.number(
            "SELECT count(*) FROM ride WHERE receipt IS NOT NULL",
            "SELECT count(*) FROM public.ride WHERE receipt IS NOT NULL",
            "SELECT COUNT(*) FROM ride WHERE receipt IS NOT NULL",
        )?;
        Ok((all, confirmed))
    }

    /// Whether a process that is stopped has the turn of the file: a renewal of its lease, or whatever else it was writing when
    /// the stop came, was inside a transaction. Then nobody can write to the file before it wakes (protocol 29).
    fn is_blocked(&self) -> Result<bool> {
        let Place::File(file) = self else { return Ok(false) };
        for suffix in TURNS {
            let mut path = file.as_os_str().to_owned();
            path.push(suffix);
            let turn =
                std::fs::File::open(&path).with_context(|| format!("{}", PathBuf::from(&path).display()))?;
            match flock(&turn, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => flock(&turn, FlockOperation::Unlock)?,
                Err(Errno::WOULDBLOCK) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    /// Effects that the ledger has twice.
    fn doubled(&self) -> Result<i64> {
        self.number(
            "SELECT count(*) FROM (SELECT 1 FROM retrysafe_effect GROUP BY key, step HAVING count(*) > 1)",
            "SELECT count(*) FROM (SELECT 1 FROM retrysafe.effect GROUP BY key, step HAVING count(*) > 1) AS twice",
            "SELECT COUNT(*) FROM (SELECT 1 FROM retrysafe_effect GROUP BY `key`, step HAVING COUNT(*) > 1) AS twice",
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

/// Sends the request to a process that meets its end on the way, as a client does: again where it is told to come again.
fn until_it_ends(target: SocketAddr, request: &[u8]) -> Option<Answer> {
    let start = Instant::now();
    loop {
        let answer = ask(target, request).ok()?;
        if !(answer.status == 409 || answer.status == 503) || start.elapsed() > LIMIT {
            return Some(answer);
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

/// How one case ended.
struct Ended {
    /// How often the provider saw the charge's key.
    sent: u32,
    /// The stopped holder had the turn of the file: nobody could take over.
    blocked: bool,
}

/// Runs one case.
fn run(case: Case, seed: u64) -> Result<Ended> {
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
    let asking = thread::spawn(move || until_it_ends(target, &bytes));
    if case.stopped {
        stage.until("the stop", |_| is_stopped(pid))?;
    } else {
        first.killed_within(LIMIT).context("the crash did not happen")?;
        let early = asking.join().ok().flatten();
        stage.provider.fake.on_charge(|| {});
        let (sent, _) = judged(&stage, case, &key, early)?;
        return Ok(Ended { sent, blocked: false });
    }
    let blocked = stage.place.is_blocked()?;
    if blocked {
        // Nobody comes in. What the holder began is its own to go on with.
        match stage.service("shut-out", &[]) {
            Ok(_) => bail!("a process opened a file whose turn another has"),
            Err(error) if format!("{error:#}").contains(BLOCKED) => {}
            Err(error) => return Err(error.context("another word for a blocked file was expected")),
        }
        kill_process(pid, Signal::CONT)?;
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
    Ok(Ended { sent, blocked })
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

/// What came of all cases.
#[derive(Default)]
struct Tally {
    all: usize,
    held: usize,
    /// How often a key was sent again.
    again: u32,
    blocked: usize,
}

/// Runs all cases, some at once; prints what failed.
fn all(cases: Vec<(Case, String)>, seed: u64) -> Result<Tally> {
    let cases = Arc::new(cases);
    let next = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let workers: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let (cases, next) = (Arc::clone(&cases), Arc::clone(&next));
            thread::spawn(move || {
                let mut tally = Tally::default();
                while let Some((case, point)) =
                    cases.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    match run(*case, seed) {
                        Ok(ended) => {
                            tally.held += 1;
                            tally.again += ended.sent.saturating_sub(1);
                            if ended.blocked {
                                tally.blocked += 1;
                                println!("  {:?}, {point}: stopped with the turn of the file", case.kind);
                            }
                        }
                        Err(error) => println!("  {:?}, {point}, by {:?}: {error:#}", case.kind, case.by),
                    }
                }
                tally
            })
        })
        .collect();
    let mut sum = Tally { all: cases.len(), ..Tally::default() };
    for worker in workers {
        let one = worker.join().map_err(|_| anyhow::anyhow!("a run panicked"))?;
        sum.held += one.held;
        sum.again += one.again;
        sum.blocked += one.blocked;
    }
    Ok(sum)
}

pub(crate) fn prove_crashes(scale: Scale) -> Result<bool> {
    let mut cases = Vec::new();
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::Mariadb] {
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
    let Tally { all, held, again, .. } = all(cases, scale.seed)?;
    println!(
        "{all} crashes by SIGKILL, each at its point; {held} ended with one ride, one charge and its answer; a key was sent again \
         {again} times, with the same bytes"
    );
    Ok(held == all)
}

pub(crate) fn prove_stops(scale: Scale) -> Result<bool> {
    let mut cases = Vec::new();
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::Mariadb] {
        let points = traced(kind, scale.seed)?;
        for (number, point) in (1..).zip(&points) {
            // After the answer there is nothing to take over.
            let over = point.contains("sending") || point.contains("was stored");
            if over || (scale.quick() && number % 3 != 1) {
                continue;
            }
            let case = Case { kind, ends: Ends::At(number), by: By::Retry, stopped: true };
            cases.push((case, point.clone()));
        }
    }
    let Tally { all, held, again, blocked } = all(cases, scale.seed)?;
    println!(
        "{all} holders stopped past their lease; {} were taken over and changed nothing when they woke, {blocked} had the turn of their \
         file, so that nobody could take over, and went on when they woke; after {held} of all everything was there once; a key \
         was sent again {again} times, with the same bytes",
        all - blocked
    );
    // That is possible at any moment, and rare; were it the rule, nothing would be shown of takeovers.
    Ok(held == all && blocked * 2 < all)
}
