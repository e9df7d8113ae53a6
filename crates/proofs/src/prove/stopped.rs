//! transactions.3: a holder that is stopped past its lease, taken over and woken.
//!
//! Its row is written and its transaction open when SIGSTOP comes. Another process takes the claim over when the lease
//! ends, sells and answers. Woken, the first goes on where it stood: its rows must be rolled back and its caller must not be
//! told its result. Two ways to that: the database ends a transaction that idles (the lease is the limit that protocol 13
//! asks for), and the completing write finds another attempt in the record. The second must be enough by itself.
//!
//! Where the claim is in the transaction, nobody can take over: the key is free when the database ends the idling
//! transaction, and not before. The same goes for a holder with a row that its successor needs as well: the successor is
//! refused by the lock, whose wait ends before its lease (protocol 15), and comes again.
//!
//! In SQLite there is no takeover: whoever stops inside a transaction blocks every key of the file (protocol 29). That is
//! shown too.

use std::net::SocketAddr;
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::Scale;
use crate::judge::{Verdict, is_honest_refusal, same};
use crate::process::Server;
use crate::race::ask;
use crate::till::{Place, PlaceKind, TillTerms};
use crate::tools::scratch;
use crate::wire::{Answer, Key, Template};

const ROUNDS: usize = 10;
const QUICK_ROUNDS: usize = 1;
const LEASE: Duration = Duration::from_secs(2);
/// The limit of an idling transaction that never comes into play.
const NEVER: Duration = Duration::from_secs(60);
/// How long anything that must happen may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
const BODY: &str = r#"{"amount":4200}"#;

/// A way of being stopped.
#[derive(Clone, Copy)]
struct Case {
    what: &'static str,
    path: &'static str,
    /// How long the database lets the holder's transaction idle.
    idle: Duration,
    then: Then,
}

/// What becomes of the key while its holder is stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Another process has it after the lease, or when the database has ended the transaction.
    Succeeded,
    /// Nobody has it before the holder wakes.
    Waits,
}

const CASES: [Case; 6] = [
    Case { what: "claim first, ended by the database", path: "/first", idle: LEASE, then: Then::Succeeded },
    Case {
        what: "claim first, fenced by the record alone",
        path: "/first",
        idle: NEVER,
        then: Then::Succeeded,
    },
    Case {
        what: "claim first, with a row that its successor needs, ended by the database",
        path: "/stock",
        idle: LEASE,
        then: Then::Succeeded,
    },
    Case {
        what: "claim first, with a row that its successor needs, ended by nobody",
        path: "/stock",
        idle: NEVER,
        then: Then::Waits,
    },
    Case {
        what: "one transaction, ended by the database",
        path: "/orders",
        idle: LEASE,
        then: Then::Succeeded,
    },
    Case { what: "one transaction, ended by nobody", path: "/orders", idle: NEVER, then: Then::Waits },
];

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let rounds = scale.of(ROUNDS, QUICK_ROUNDS);
    // Nearly all of it is waiting for leases, so all of it waits at once.
    thread::scope(|scope| {
        let mut running = vec![scope.spawn(move || file_blocked(rounds, scale.seed))];
        for kind in [PlaceKind::TokioPostgres, PlaceKind::Sqlx, PlaceKind::MariaDb] {
            for case in CASES {
                running.push(scope.spawn(move || stopped(kind, case, rounds, scale.seed)));
            }
        }
        let ended =
            running.into_iter().map(|one| one.join().map_err(|_| anyhow::anyhow!("a part panicked"))?);
        Ok(ended.collect::<Result<Vec<bool>>>()?.into_iter().all(|holds| holds))
    })
}

/// A process that a signal has stopped; it goes on when this goes.
struct Stopped(Pid);

impl Stopped {
    fn stop(server: &Server) -> Result<Self> {
        let pid = Pid::from_raw(i32::try_from(server.pid())?).context("a process id")?;
        kill_process(pid, Signal::STOP)?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have been killed meanwhile; then there is nothing to wake.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// A holder that is stopped inside of its transaction, and another process beside it.
struct Scene<'a> {
    place: &'a Place,
    holder: Server,
    other: Server,
    mark: std::path::PathBuf,
    path: &'static str,
}

impl<'a> Scene<'a> {
    fn set(place: &'a Place, idle: Duration, path: &'static str, scratch: &Path) -> Result<Self> {
        let mark = scratch.join("inside");
        let ms = |time: Duration| u64::try_from(time.as_millis());
        let other = TillTerms { lease_ms: ms(LEASE)?, idle_ms: ms(idle)?, ..TillTerms::on(place) };
        let holder = TillTerms { mark: Some(mark.clone()), ..other.clone() };
        Ok(Self {
            place,
            holder: place.till("holder", &holder, scratch)?,
            other: place.till("other", &other, scratch)?,
            mark,
            path,
        })
    }

    /// Sends a request to the holder and stops it once its row is written.
    fn stop_inside<'s>(
        &self,
        scope: &'s thread::Scope<'s, '_>,
        key: Key,
    ) -> Result<(ScopedJoinHandle<'s, Result<Answer>>, Stopped)> {
        let (target, path) = (self.holder.address("listen")?, self.path);
        let caller = scope.spawn(move || send(target, path, &key));
        let started = Instant::now();
        while !self.mark.exists() {
            if started.elapsed() > LIMIT {
                bail!("the holder did not come to its row:\n{}", self.holder.log_tail());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok((caller, Stopped::stop(&self.holder)?))
    }

    fn other(&self, key: &Key) -> Result<Answer> {
        let answer = send(self.other.address("listen")?, self.path, key);
        answer.with_context(|| format!("the other process, whose log ends:\n{}", self.other.log_tail()))
    }

    /// What the caller of the holder was told.
    fn holder_told(&self, caller: ScopedJoinHandle<'_, Result<Answer>>) -> Result<Answer> {
        let answer = caller.join().map_err(|_| anyhow::anyhow!("the holder's caller"))?;
        answer.with_context(|| format!("the holder, whose log ends:\n{}", self.holder.log_tail()))
    }

    /// Whether somebody who did not get the key was told so as the contract says. The row that all need may be held, too,
    /// and then nobody knows more than that the database does not come to it.
    fn judge_refusal(&self, answer: &Answer, verdict: &mut Verdict) {
        let in_flight = answer.code().as_deref() == Some("idempotency_key_in_flight");
        if !is_honest_refusal(answer) || (!in_flight && self.path != "/stock") {
            verdict.note(format!("while the holder was stopped somebody was told {}", told(answer)));
        }
    }

    /// Whether the woken holder sent its caller to where the result is: a key that goes on by itself is never uncertain.
    fn judge_woken(&self, answer: &Answer, verdict: &mut Verdict) {
        if !is_success(answer) && !is_honest_refusal(answer) {
            verdict.note(format!("the woken holder told {}", told(answer)));
        }
    }

    /// Lets the holder go on.
    fn wake(&self, stopped: Stopped) -> Result<()> {
        std::fs::remove_file(&self.mark)?;
        drop(stopped);
        Ok(())
    }

    fn rows(&self, key: &Key) -> Result<Vec<String>> {
        Ok(self.place.sales()?.remove(key.as_str()).unwrap_or_default())
    }
}

fn send(target: SocketAddr, path: &str, key: &Key) -> Result<Answer> {
    let headers = [("authorization", "Bearer racer")];
    ask(target, Template::keyed_post(target, path, &headers, BODY).keyed(key))
}

fn is_success(answer: &Answer) -> bool {
    (200..300).contains(&answer.status)
}

/// For a message: what somebody was told.
fn told(answer: &Answer) -> String {
    format!("{} {}", answer.status, answer.code().unwrap_or_default())
}

fn stopped(kind: PlaceKind, case: Case, rounds: usize, seed: u64) -> Result<bool> {
    let scratch = scratch()?;
    let place = Place::make(kind, scratch.path());
    let scene = Scene::set(&place, case.idle, case.path, scratch.path())?;
    let mut verdict = Verdict::default();
    let (mut refused, mut rows, mut woken, mut waited) = (0, 0, Vec::new(), Duration::ZERO);
    for round in 0..rounds {
        let key = Key::numbered(seed, round as u64);
        let run = thread::scope(|scope| match case.then {
            Then::Succeeded => take_over(&scene, scope, key, &mut verdict),
            Then::Waits => wait_for_it(&scene, scope, key, &mut verdict),
        })?;
        refused += run.refused;
        waited = waited.max(run.waited);
        woken.push(run.woken);
        rows += scene.rows(&key)?.len();
    }
    // One for each sale, and none for a sale that was rolled back.
    let taken = place.taken()?;
    let wanted = if case.path == "/stock" { rows } else { 0 };
    if taken != wanted {
        verdict.note(format!("{taken} taken from the stock by {rows} sales"));
    }
    woken.sort();
    woken.dedup();
    println!(
        "{}, {}: {rounds} times stopped past a lease of {} s: answered by another process after {:.1} s at most ({refused} \
         refused before), {rows} business rows, the woken told {}",
        kind.name(),
        case.what,
        LEASE.as_secs(),
        waited.as_secs_f64(),
        woken.join(" or ")
    );
    Ok(report(&verdict))
}

struct Run {
    /// How many were told to come again.
    refused: usize,
    /// Until another process had the answer.
    waited: Duration,
    /// What the woken holder told.
    woken: String,
}

/// While the holder is stopped, another process takes its key over.
fn take_over<'s>(
    scene: &Scene<'_>,
    scope: &'s thread::Scope<'s, '_>,
    key: Key,
    verdict: &mut Verdict,
) -> Result<Run> {
    let (caller, stopped) = scene.stop_inside(scope, key)?;
    let (started, mut refused) = (Instant::now(), 0);
    let successor = loop {
        let answer = scene.other(&key)?;
        if is_success(&answer) {
            break answer;
        }
        scene.judge_refusal(&answer, verdict);
        refused += 1;
        if started.elapsed() > LEASE + LIMIT {
            bail!("nobody took the claim over: {}\n{}", told(&answer), scene.other.log_tail());
        }
        thread::sleep(POLL);
    };
    let waited = started.elapsed();
    if refused == 0 {
        verdict.note("the claim was free although its holder had it");
    }
    let rows = scene.rows(&key)?;
    if rows.len() != 1 {
        verdict.note(format!("{} rows after the takeover", rows.len()));
    }
    scene.wake(stopped)?;
    let woken = scene.holder_told(caller)?;
    // What is told last is told of the one row that is there, or says nothing of a result.
    if is_success(&woken) && !same(&woken, &successor) {
        verdict.note(format!(
            "the woken holder answered with its own result: {}",
            String::from_utf8_lossy(&woken.body)
        ));
    }
    scene.judge_woken(&woken, verdict);
    let after = scene.rows(&key)?;
    if after != rows {
        verdict.note(format!("{} rows after the holder woke, {} before", after.len(), rows.len()));
    }
    // And the holder, asked again, tells what the successor did.
    let replay = send(scene.holder.address("listen")?, scene.path, &key)?;
    if !same(&replay, &successor) {
        verdict.note(format!("the holder replays another answer: {}", told(&replay)));
    }
    let woken = if is_success(&woken) { "the successor's answer".to_owned() } else { told(&woken) };
    Ok(Run { refused, waited, woken })
}

/// While the holder is stopped, nobody can do its work: what the others need is held by its open transaction. They are told
/// to come again, well past its lease, and nothing is there twice when it wakes.
fn wait_for_it<'s>(
    scene: &Scene<'_>,
    scope: &'s thread::Scope<'s, '_>,
    key: Key,
    verdict: &mut Verdict,
) -> Result<Run> {
    let (caller, stopped) = scene.stop_inside(scope, key)?;
    let (started, mut refused) = (Instant::now(), 0);
    while started.elapsed() < LEASE * 2 {
        let answer = scene.other(&key)?;
        if is_success(&answer) {
            verdict.note("somebody did the work although the holder's transaction was open");
        } else {
            scene.judge_refusal(&answer, verdict);
        }
        refused += 1;
        thread::sleep(POLL);
    }
    let early = scene.rows(&key)?.len();
    if early != 0 {
        verdict.note(format!("{early} rows while the holder was stopped"));
    }
    scene.wake(stopped)?;
    let woken = scene.holder_told(caller)?;
    // In one transaction nobody else can have been at it.
    if scene.path == "/orders" && !is_success(&woken) {
        verdict.note(format!("the woken holder told {}", told(&woken)));
    }
    scene.judge_woken(&woken, verdict);
    let answer = when_free(scene, &key)?;
    let waited = started.elapsed();
    if is_success(&woken) && !same(&woken, &answer) {
        verdict.note(format!("another answer than the woken holder's: {}", told(&answer)));
    }
    let rows = scene.rows(&key)?.len();
    if rows != 1 {
        verdict.note(format!("{rows} rows of one key"));
    }
    let woken = if is_success(&woken) { "its own answer, which is the one".to_owned() } else { told(&woken) };
    Ok(Run { refused, waited, woken })
}

/// A writer stopped inside of a transaction: nobody takes over, everybody is told when to come back, nothing is lost.
fn file_blocked(rounds: usize, seed: u64) -> Result<bool> {
    let scratch = scratch()?;
    let place = Place::make(PlaceKind::Sqlite, scratch.path());
    let scene = Scene::set(&place, NEVER, "/orders", scratch.path())?;
    let mut verdict = Verdict::default();
    let (mut busy, mut rows) = (0, 0);
    for round in 0..rounds {
        let key = |number| Key::numbered(seed, 2 * round as u64 + number);
        thread::scope(|scope| -> Result<()> {
            let (caller, stopped) = scene.stop_inside(scope, key(0))?;
            let started = Instant::now();
            // Past the lease, the same key and another: both meet the file, not the claim.
            while started.elapsed() < LEASE + LEASE / 2 {
                for number in 0..2 {
                    let answer = scene.other(&key(number))?;
                    match (answer.status, answer.header("retry-after")) {
                        (503, Some(_)) => busy += 1,
                        _ => verdict.note(format!("on a blocked file somebody was told {}", told(&answer))),
                    }
                }
            }
            scene.wake(stopped)?;
            let woken = scene.holder_told(caller)?;
            if !is_success(&woken) {
                verdict.note(format!("the woken holder told {}", told(&woken)));
            }
            let replay = when_free(&scene, &key(0))?;
            if !same(&replay, &woken) {
                verdict.note(format!("another answer than the woken holder's: {}", told(&replay)));
            }
            when_free(&scene, &key(1))?;
            Ok(())
        })?;
        for number in 0..2 {
            let found = scene.rows(&key(number))?.len();
            rows += found;
            if found != 1 {
                verdict.note(format!("{found} rows of one key"));
            }
        }
    }
    println!(
        "SQLite: {rounds} times stopped inside a transaction past the lease: every key of the file blocked, {busy} told 503 \
         and when to come back; after SIGCONT all went on, {rows} business rows for {} keys",
        2 * rounds
    );
    Ok(report(&verdict))
}

/// The other process's answer once the holder lets the key go.
fn when_free(scene: &Scene<'_>, key: &Key) -> Result<Answer> {
    let started = Instant::now();
    loop {
        let answer = scene.other(key)?;
        if is_success(&answer) {
            return Ok(answer);
        }
        if started.elapsed() > LIMIT {
            bail!("the key stays blocked: {}\n{}", told(&answer), scene.other.log_tail());
        }
        thread::sleep(POLL);
    }
}

fn report(verdict: &Verdict) -> bool {
    for (violation, count) in verdict.violations() {
        println!("  VIOLATED {count} times: {violation}");
    }
    verdict.holds()
}
