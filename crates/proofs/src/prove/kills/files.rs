//! SQLite: the process ends itself at each operation on the disk.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use retrysafe_sim::Tripwire;

use super::{Asker, Ended, LEASE, SHAPES, Scale, Seen, TRIES, terms};
use crate::process::Server;
use crate::report::Progress;
use crate::till::{Place, PlaceKind, TillTerms};
use crate::tools::scratch;
use crate::wire::Key;

const QUICK_POINTS: usize = 3;
/// How long a process that was ended by itself may take to be gone.
const END_LIMIT: Duration = Duration::from_secs(10);

pub(super) fn on_sqlite(scale: Scale) -> Result<Vec<Seen>> {
    let mut all = Vec::new();
    for ((path, shape), nth) in SHAPES.into_iter().zip(0_u64..) {
        let scratch = scratch()?;
        let place = Place::make(PlaceKind::Sqlite, scratch.path());
        let mut disk = Disk::set(&place, path, scale.seed.wrapping_add(nth), scratch.path())?;
        let operations = disk.trace()?;
        ensure!(operations > 0, "the traced run did not touch the disk");
        let mut points: Vec<usize> = (1..=operations).collect();
        if scale.quick() {
            fastrand::Rng::with_seed(scale.seed).shuffle(&mut points);
            points.truncate(QUICK_POINTS);
        }
        let mut seen = Seen::default();
        let name = format!("SQLite, {shape}");
        let progress = Progress::new(&name, points.len());
        for at in &points {
            disk.kill_at(*at, &mut seen)?;
            progress.step();
        }
        println!(
            "{name}: {operations} operations on the disk for one request, killed before {} of them, answered {:.1} s later at \
             most",
            seen.points,
            seen.longest.as_secs_f64()
        );
        seen.print();
        all.push(seen);
    }
    Ok(all)
}

struct Disk<'a> {
    place: &'a Place,
    path: &'static str,
    terms: TillTerms,
    armed_by: std::path::PathBuf,
    witness: Server,
    scratch: &'a Path,
    seed: u64,
    next_key: u64,
}

impl<'a> Disk<'a> {
    fn set(place: &'a Place, path: &'static str, seed: u64, scratch: &'a Path) -> Result<Self> {
        let armed_by = scratch.join("trip");
        let direct = terms(place)?;
        let witness = place.till("witness", &direct, scratch)?;
        let terms = TillTerms { tripwire: Some(armed_by.clone()), ..direct };
        Ok(Self { place, path, terms, armed_by, witness, scratch, seed, next_key: 0 })
    }

    /// A fresh service, armed to end at this operation, and a key of its own.
    fn armed(&mut self, at: usize) -> Result<(Key, Server, Asker)> {
        for file in [&self.armed_by, &Tripwire::log(&self.armed_by)] {
            if file.exists() {
                fs::remove_file(file)?;
            }
        }
        let service = self.place.till("killed", &self.terms, self.scratch)?;
        fs::write(&self.armed_by, at.to_string())?;
        self.next_key += 1;
        let asker = Asker { target: service.address("listen")?, path: self.path };
        Ok((Key::numbered(self.seed, self.next_key), service, asker))
    }

    /// How many operations a request takes.
    fn trace(&mut self) -> Result<usize> {
        let (key, service, asker) = self.armed(0)?;
        let answer = asker.ask(&key)?;
        let log = fs::read_to_string(Tripwire::log(&self.armed_by)).context("the operations")?;
        ensure!(answer.status == 201, "the traced run was answered {}", answer.status);
        service.stop()?;
        Ok(log.lines().count())
    }

    fn kill_at(&mut self, at: usize, seen: &mut Seen) -> Result<()> {
        for _ in 0..TRIES {
            if self.run(at, seen)? {
                seen.points += 1;
                return Ok(());
            }
        }
        seen.verdict.note(format!("never came to operation {at}, which was traced"));
        Ok(())
    }

    fn run(&mut self, at: usize, seen: &mut Seen) -> Result<bool> {
        let (key, mut service, asker) = self.armed(at)?;
        let caller = thread::spawn(move || asker.ask(&key));
        while !caller.is_finished() && !service.has_ended()? {
            thread::sleep(Duration::from_millis(1));
        }
        let told = caller.join().map_err(|_| anyhow::anyhow!("the caller"))?;
        if told.is_ok() && !service.has_ended()? {
            service.stop()?;
            return Ok(false);
        }
        service.killed_within(END_LIMIT)?;
        let mut ended = Ended::new(&key, format!("before operation {at} on the disk"));
        ended.was_told(told.ok(), &mut seen.verdict);
        let witness = Asker { target: self.witness.address("listen")?, path: self.path };
        ended.judge(&[witness], LEASE, self.place, seen)?;
        Ok(true)
    }
}
