//! transactions.3: a holder that is stopped past its lease, taken over and woken.
//!
//! Its row is written and its transaction open when SIGSTOP comes. Another process takes the claim over when the lease
//! ends, sells and answers. Woken, the first goes on where it stood: its rows must be rolled back and its caller must not be
//! told its result. Two ways to that: the database ends a transaction that idles (the lease is the limit that protocol 13
//! asks for), and the completing write finds another attempt in the record. The second must be enough by itself.
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
use crate::judge::{Verdict, same};
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
/// How long the holder's handler still takes when it is stopped, and again when it is woken.
const WORK: Duration = Duration::from_millis(300);
/// How long anything that must happen may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);
const BODY: &str = r#"{"amount":4200}"#;

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let rounds = scale.of(ROUNDS, QUICK_ROUNDS);
    let mut holds = true;
    for kind in [PlaceKind::TokioPostgres, PlaceKind::Sqlx, PlaceKind::MariaDb] {
        for (idle, what) in [(LEASE, "ended by the database"), (NEVER, "fenced by the record alone")] {
            holds &= taken_over(kind, idle, what, rounds, scale.seed)?;
        }
    }
    holds &= file_blocked(rounds, scale.seed)?;
    Ok(holds)
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
        let holder = TillTerms { work_ms: ms(WORK)?, mark: Some(mark.clone()), ..other.clone() };
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
        if self.mark.exists() {
            std::fs::remove_file(&self.mark)?;
        }
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

fn taken_over(kind: PlaceKind, idle: Duration, what: &str, rounds: usize, seed: u64) -> Result<bool> {
    let scratch = scratch()?;
    let place = Place::make(kind, scratch.path());
    let scene = Scene::set(&place, idle, "/first", scratch.path())?;
    let mut verdict = Verdict::default();
    let (mut in_flight, mut rows, mut woken, mut waited) = (0, 0, Vec::new(), Duration::ZERO);
    for round in 0..rounds {
        let key = Key::numbered(seed, round as u64);
        let run = thread::scope(|scope| take_over(&scene, scope, key, &mut verdict))?;
        in_flight += run.in_flight;
        waited = waited.max(run.waited);
        woken.push(if is_success(&run.woken) {
            "the successor's answer".to_owned()
        } else {
            told(&run.woken)
        });
        rows += scene.rows(&key)?.len();
    }
    woken.sort();
    woken.dedup();
    println!(
        "{}, {what}: {rounds} times stopped past a lease of {} s: taken over after {:.1} s at most ({in_flight} told in \
         flight before), {rows} business rows, the woken told {}",
        kind.name(),
        LEASE.as_secs(),
        waited.as_secs_f64(),
        woken.join(" or ")
    );
    Ok(report(&verdict))
}

struct Taken {
    in_flight: usize,
    waited: Duration,
    woken: Answer,
}

fn take_over<'s>(
    scene: &Scene<'_>,
    scope: &'s thread::Scope<'s, '_>,
    key: Key,
    verdict: &mut Verdict,
) -> Result<Taken> {
    let (caller, stopped) = scene.stop_inside(scope, key)?;
    let (started, mut in_flight) = (Instant::now(), 0);
    let successor = loop {
        let answer = scene.other(&key)?;
        if is_success(&answer) {
            break answer;
        }
        if answer.code().as_deref() != Some("idempotency_key_in_flight") {
            verdict.note(format!("before the takeover somebody was told {}", told(&answer)));
        }
        in_flight += 1;
        if started.elapsed() > LEASE + LIMIT {
            bail!("nobody took the claim over: {}\n{}", told(&answer), scene.other.log_tail());
        }
        thread::sleep(POLL);
    };
    let waited = started.elapsed();
    if in_flight == 0 {
        verdict.note("the claim was free although its holder had it");
    }
    let rows = scene.rows(&key)?;
    if rows.len() != 1 {
        verdict.note(format!("{} rows after the takeover", rows.len()));
    }
    drop(stopped);
    let woken = scene.holder_told(caller)?;
    // What is told last is told of the one row that is there, or says nothing of a result.
    if is_success(&woken) && !same(&woken, &successor) {
        verdict.note(format!(
            "the woken holder answered with its own result: {}",
            String::from_utf8_lossy(&woken.body)
        ));
    }
    let after = scene.rows(&key)?;
    if after != rows {
        verdict.note(format!("{} rows after the holder woke, {} before", after.len(), rows.len()));
    }
    // And the holder, asked again, tells what the successor did.
    let replay = send(scene.holder.address("listen")?, scene.path, &key)?;
    if !same(&replay, &successor) {
        verdict.note(format!("the holder replays another answer: {}", told(&replay)));
    }
    Ok(Taken { in_flight, waited, woken })
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
            drop(stopped);
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

/// The other process's answer once the file is free again.
fn when_free(scene: &Scene<'_>, key: &Key) -> Result<Answer> {
    let started = Instant::now();
    loop {
        let answer = scene.other(key)?;
        if is_success(&answer) {
            return Ok(answer);
        }
        if started.elapsed() > LIMIT {
            bail!("the file stays blocked: {}\n{}", told(&answer), scene.other.log_tail());
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
