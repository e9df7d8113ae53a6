//! transactions.2: a `kill -9` between every two statements, of the service and of the database.
//!
//! A [relay](crate::relay) in front of the database traces one request of a fresh service: which statements it sends. Then, for
//! each statement and each moment of it (not passed on; passed on when its sender is dead; done, and nobody told; told), a
//! fresh service gets a request of a new key, is held at exactly that point and killed there, or the database is. Afterwards
//! the client asks again, at another process on the same database that nobody kills, until it has an answer.
//!
//! What has to hold: the business row and the stored answer are both there or neither, whenever one looks; one row for each
//! key in the end; whoever was told a success is told the same again; and no key is stuck longer than its lease.
//!
//! SQLite has no wire. There the process ends itself at each operation on the disk in turn ([`files`]).

mod files;
mod point;

use std::cell::Cell;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Scale;
use crate::judge::Verdict;
use crate::process::Server;
use crate::relay::{Moment, Relay, Speaks, Step};
use crate::report::Progress;
use crate::till::{Place, PlaceKind, TillTerms};
use crate::tools::scratch;
use crate::wire::Key;
use point::{Asker, Ended};

/// The shortest that a contract allows: the time a proof of a crash waits.
const LEASE: Duration = Duration::from_secs(1);
/// Of all points of a subject, these many in the quick tier.
const QUICK_POINTS: usize = 2;
/// A service that has come up is left alone until it has sent nothing for so long.
const QUIET: Duration = Duration::from_millis(60);
/// How long after its answer a request's point may still come: the clock is read every second, and a traced run may have
/// met that.
const AFTER: Duration = Duration::from_millis(2_500);
/// How often a point that a run passed by is tried again, each time with a new key.
const TRIES: usize = 3;
const SHAPES: [(&str, &str); 2] = [("/orders", "one transaction"), ("/first", "claim first")];

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Service,
    Database,
}

impl Victim {
    /// A statement that arrives when its sender is dead has no meaning where the database is.
    fn moments(self) -> &'static [Moment] {
        match self {
            Self::Service => &[Moment::Before, Moment::Late, Moment::Unanswered, Moment::Answered],
            Self::Database => &[Moment::Before, Moment::Unanswered, Moment::Answered],
        }
    }
}

/// One place, one shape, one victim.
#[derive(Clone, Copy)]
struct Subject {
    kind: PlaceKind,
    path: &'static str,
    shape: &'static str,
    victim: Victim,
    seed: u64,
}

/// What was seen of one subject.
#[derive(Default)]
pub(super) struct Seen {
    points: usize,
    longest: Duration,
    verdict: Verdict,
}

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let quick = scale.quick();
    // Nearly all of it is waiting for leases, so all databases wait at once.
    let seen: Vec<Seen> = thread::scope(|scope| {
        let mut running = Vec::new();
        for kind in [PlaceKind::TokioPostgres, PlaceKind::Sqlx, PlaceKind::MariaDb] {
            for victim in [Victim::Service, Victim::Database] {
                running.push(scope.spawn(move || on_a_server(kind, victim, scale)));
            }
        }
        running.push(scope.spawn(move || files::on_sqlite(scale)));
        running.push(scope.spawn(move || control(scale.seed).map(|seen| vec![seen])));
        running
            .into_iter()
            .map(|one| one.join().map_err(|_| anyhow::anyhow!("a part of the proof panicked"))?)
            .collect::<Result<Vec<_>>>()
            .map(|parts| parts.into_iter().flatten().collect())
    })?;
    let points: usize = seen.iter().map(|one| one.points).sum();
    let violations: u64 = seen.iter().flat_map(|one| one.verdict.violations()).map(|(_, count)| count).sum();
    println!(
        "{points} points, a kill at each{}: {violations} violations",
        if quick { " (a sample)" } else { "" }
    );
    Ok(violations == 0 && points > 0)
}

fn on_a_server(kind: PlaceKind, victim: Victim, scale: Scale) -> Result<Vec<Seen>> {
    // The quick tier kills one database: each that is killed has to be made first.
    if scale.quick() && victim == Victim::Database && kind != PlaceKind::TokioPostgres {
        return Ok(Vec::new());
    }
    let scratch = scratch()?;
    let mut place = match victim {
        Victim::Service => Place::make(kind, scratch.path()),
        Victim::Database => Place::alone(kind),
    };
    let mut all = Vec::new();
    for ((path, shape), nth) in SHAPES.into_iter().zip(0..) {
        let seed = scale.seed.wrapping_mul(31).wrapping_add(nth + 100 * victim as u64);
        let subject = Subject { kind, path, shape, victim, seed };
        all.push(enumerate(subject, &mut place, scale, scratch.path())?);
    }
    Ok(all)
}

/// Where one subject is played.
struct Stage<'a> {
    subject: Subject,
    place: &'a mut Place,
    relay: Relay,
    /// Of the service that is killed, or whose database is.
    terms: TillTerms,
    /// Another process on the same database, with a way of its own to it.
    witness: Server,
    scratch: &'a Path,
    next_key: u64,
}

fn enumerate(subject: Subject, place: &mut Place, scale: Scale, scratch: &Path) -> Result<Seen> {
    let mut stage = Stage::set(subject, place, scratch)?;
    let steps = stage.trace()?;
    ensure!(!steps.is_empty(), "the traced run sent no statement");
    let mut points: Vec<(Step, Moment)> = steps
        .iter()
        .flat_map(|step| subject.victim.moments().iter().map(|moment| (step.clone(), *moment)))
        .collect();
    let all = points.len();
    if scale.quick() {
        // The lost answer to the commit, and others by chance.
        let commit = commit_of(&steps)?;
        points.retain(|(step, moment)| (step, *moment) != (&commit, Moment::Unanswered));
        fastrand::Rng::with_seed(subject.seed).shuffle(&mut points);
        points.truncate(QUICK_POINTS - 1);
        points.push((commit, Moment::Unanswered));
    }
    let mut seen = Seen::default();
    let progress = Progress::new(&subject.name(), points.len());
    for (step, moment) in &points {
        stage.kill_at(step, *moment, &mut seen)?;
        progress.step();
    }
    println!(
        "{}: {} statements of one request, {} of {all} points: killed at each, answered {:.1} s later at most, of a lease of \
         {} s",
        subject.name(),
        steps.len(),
        seen.points,
        seen.longest.as_secs_f64(),
        LEASE.as_secs()
    );
    seen.print();
    Ok(seen)
}

/// The proof's own proof: a service that commits its rows apart from the answer is found out.
fn control(seed: u64) -> Result<Seen> {
    let scratch = scratch()?;
    let mut place = Place::make(PlaceKind::TokioPostgres, scratch.path());
    let (path, shape) = SHAPES[0];
    let subject = Subject { kind: place.kind, path, shape, victim: Victim::Service, seed: !seed };
    let mut stage = Stage::set(subject, &mut place, scratch.path())?;
    stage.terms.apart = true;
    let commit = commit_of(&stage.trace()?)?;
    let mut seen = Seen::default();
    stage.kill_at(&commit, Moment::Before, &mut seen)?;
    let found: Vec<String> = seen.verdict.violations().map(|(text, _)| text.to_owned()).collect();
    let mut verdict = Verdict::default();
    if found.is_empty() {
        verdict.note("rows that are committed apart from the answer were not found out");
    } else {
        println!("control, rows committed apart from the answer: found out ({})", found.join("; "));
    }
    // The mutant's violations are what was wanted.
    let seen = Seen { points: 0, verdict, ..seen };
    seen.print();
    Ok(seen)
}

/// The statement that commits the request: alone, or at the end of the text that is sent with it.
fn commit_of(steps: &[Step]) -> Result<Step> {
    let commit = steps.iter().rev().find(|step| step.statement.contains("COMMIT"));
    commit.cloned().context("a traced run without a commit")
}

impl Subject {
    fn name(self) -> String {
        let victim = if self.victim == Victim::Service { "service" } else { "database" };
        format!("{}, {}, kill -9 of the {victim}", self.kind.name(), self.shape)
    }
}

impl Seen {
    fn print(&self) {
        for (violation, count) in self.verdict.violations() {
            println!("  VIOLATED {count} times: {violation}");
        }
    }
}

impl<'a> Stage<'a> {
    fn set(subject: Subject, place: &'a mut Place, scratch: &'a Path) -> Result<Self> {
        let speaks = if subject.kind == PlaceKind::MariaDb { Speaks::MariaDb } else { Speaks::Postgres };
        let relay = Relay::start(speaks, place.server())?;
        let direct = terms(place)?;
        let terms = TillTerms { store: place.address_through(relay.address()), ..direct.clone() };
        let witness = place.till("witness", &direct, scratch)?;
        Ok(Self { subject, place, relay, terms, witness, scratch, next_key: 0 })
    }

    fn key(&mut self) -> Key {
        self.next_key += 1;
        Key::numbered(self.subject.seed, self.next_key)
    }

    /// A service that has done nothing yet: its connections are new, and nothing is prepared on them.
    fn fresh(&self) -> Result<Server> {
        let service = self.place.till("killed", &self.terms, self.scratch)?;
        self.relay.quiet_for(QUIET);
        Ok(service)
    }

    /// The statements that one request sends: those that two runs have in common, since a service also does things by itself.
    fn trace(&mut self) -> Result<Vec<Step>> {
        let first = self.traced()?;
        let second = self.traced()?;
        Ok(first.into_iter().filter(|step| second.contains(step)).collect())
    }

    fn traced(&mut self) -> Result<Vec<Step>> {
        let (key, service) = (self.key(), self.fresh()?);
        self.relay.count();
        let answer = Asker { target: service.address("listen")?, path: self.subject.path }.ask(&key)?;
        let steps = self.relay.counted()?;
        ensure!(answer.status == 201, "the traced run was answered {}", answer.status);
        service.stop()?;
        Ok(steps)
    }

    fn kill_at(&mut self, step: &Step, moment: Moment, seen: &mut Seen) -> Result<()> {
        for _ in 0..TRIES {
            if self.run(step, moment, seen)? {
                seen.points += 1;
                return Ok(());
            }
        }
        seen.verdict.note(format!("never came to a point that was traced: {moment:?} {}", step.statement));
        Ok(())
    }

    /// One run; `false`: it went past the point.
    fn run(&mut self, step: &Step, moment: Moment, seen: &mut Seen) -> Result<bool> {
        let (key, service) = (self.key(), self.fresh()?);
        let path = self.subject.path;
        let asker = Asker { target: service.address("listen")?, path };
        let witness = Asker { target: self.witness.address("listen")?, path };
        self.relay.stop_at(step, moment);
        thread::scope(|scope| -> Result<bool> {
            let caller = scope.spawn(move || asker.ask(&key));
            let answered = Cell::new(None);
            let over = || {
                if caller.is_finished() && answered.get().is_none() {
                    answered.set(Some(Instant::now()));
                }
                answered.get().is_some_and(|at| at.elapsed() > AFTER)
            };
            if !self.relay.wait(over)? {
                self.relay.go_on(false);
                service.stop()?;
                return Ok(false);
            }
            let mut ended = Ended::new(&key, format!("{moment:?}: {}", step.statement));
            match self.subject.victim {
                Victim::Service => {
                    service.kill()?;
                    if moment == Moment::Late {
                        // It arrives when somebody else has done the work, or cannot, as long as it is held.
                        ended.retry(&[witness], LEASE + point::MARGIN, self.place, &mut seen.verdict)?;
                        self.relay.go_on(true);
                        ended.unsettled();
                    } else {
                        self.relay.go_on(false);
                    }
                    // A caller whose server is gone gets nothing, unless its answer was on its way.
                    ended.was_told(caller.join().ok().and_then(Result::ok), &mut seen.verdict);
                    ended.judge(&[witness], LEASE, self.place, seen)?;
                }
                Victim::Database => {
                    self.place.kill_server();
                    self.relay.go_on(false);
                    self.place.restart_server();
                    // Until here there was nobody to answer.
                    ended.unsettled();
                    let told = caller.join().map_err(|_| anyhow::anyhow!("the caller"))?;
                    let told = told
                        .with_context(|| format!("the service, whose log ends:\n{}", service.log_tail()))?;
                    ended.was_told(Some(told), &mut seen.verdict);
                    ended.judge(&[asker, witness], LEASE, self.place, seen)?;
                    service.stop()?;
                }
            }
            Ok(true)
        })
    }
}

/// Short times, so that a proof need not wait for long ones.
fn terms(place: &Place) -> Result<TillTerms> {
    let ms = u64::try_from(LEASE.as_millis())?;
    Ok(TillTerms { lease_ms: ms, idle_ms: ms, no_upkeep: true, ..TillTerms::on(place) })
}
