//! Something that the API needs, away for a time: its database, or room on its disk.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::delay::Hand;
use crate::plan::DiskPlan;

/// The disk is filled in pieces of this size, and then in smaller ones.
const PIECE: usize = 1 << 20;
/// Names the file that fills a disk, for whoever finds one that was left.
const FILLER: &str = "retrysafe-gate-fills-this-disk";

/// What is taken away, and for how long.
pub(super) enum Needed {
    Database(Hand, Duration),
    Disk(DiskPlan),
}

#[derive(Default)]
enum Phase {
    #[default]
    Before,
    Away,
    /// How much was taken, or why it could not be.
    Over(Result<usize, String>),
}

/// Begun by the call that comes to the stub, and over some time later.
#[derive(Clone, Default)]
pub(super) struct Outage(Arc<(Mutex<Phase>, Condvar)>);

impl Outage {
    /// Takes it away now; it comes back by itself.
    pub(super) fn begin(&self, needed: Needed) {
        self.set(Phase::Away);
        let this = self.clone();
        match needed {
            Needed::Database(hand, away) => {
                let cut = hand.cut();
                std::thread::spawn(move || {
                    std::thread::sleep(away);
                    let felt = cut + hand.refused();
                    hand.mend();
                    this.set(Phase::Over(Ok(felt)));
                });
            }
            Needed::Disk(disk) => match Filler::fill(&disk) {
                Err(why) => self.set(Phase::Over(Err(why))),
                Ok(filler) => {
                    std::thread::spawn(move || {
                        std::thread::sleep(disk.full_for);
                        drop(filler);
                        this.set(Phase::Over(Ok(1)));
                    });
                }
            },
        }
    }

    /// Waits until it is over, if it has begun: how many connections were cut or refused, or 1 for a disk.
    pub(super) fn over(&self, limit: Duration) -> Result<usize, String> {
        let ends = Instant::now() + limit;
        let (phase, changed) = &*self.0;
        let mut phase = phase.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = ends.saturating_duration_since(Instant::now());
            match &*phase {
                Phase::Before => return Ok(0),
                Phase::Over(result) => return result.clone(),
                Phase::Away if left.is_zero() => return Err("it did not end".to_owned()),
                Phase::Away => {
                    phase = changed.wait_timeout(phase, left).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    fn set(&self, to: Phase) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = to;
        self.0.1.notify_all();
    }
}

/// A file that takes all the room there is; gone with this value.
struct Filler(PathBuf);

impl Filler {
    fn fill(disk: &DiskPlan) -> Result<Self, String> {
        let said = |error: std::io::Error| format!("{} cannot be filled: {error}", disk.folder.display());
        let filler = Self(disk.folder.join(FILLER));
        let mut file = File::create(&filler.0).map_err(said)?;
        let zeros = vec![0_u8; PIECE];
        let (mut written, mut piece) = (0_u64, PIECE);
        loop {
            if written >= disk.at_most {
                return Err(format!(
                    "{} still had room after {} MiB",
                    disk.folder.display(),
                    disk.at_most >> 20
                ));
            }
            let allowed = usize::try_from(disk.at_most - written).unwrap_or(usize::MAX).min(piece);
            match file.write(zeros.get(..allowed).unwrap_or_default()) {
                Ok(0) => return Err(said(ErrorKind::WriteZero.into())),
                Ok(count) => written += count as u64,
                // The last bytes go in one by one.
                Err(error) if error.kind() == ErrorKind::StorageFull && piece > 1 => piece /= 2,
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(said(error)),
            }
        }
        // What the system holds back for later is written now, or its room would come back.
        match file.sync_all() {
            Err(error) if error.kind() != ErrorKind::StorageFull => Err(said(error)),
            _ => Ok(filler),
        }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // Not there where it could not be made.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_takes_more_than_it_may_is_left_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk =
            DiskPlan { folder: folder.path().into(), at_most: 3 << 20, full_for: Duration::from_millis(1) };
        let outage = Outage::default();
        outage.begin(Needed::Disk(disk));
        let why = outage.over(Duration::from_secs(5)).expect_err("no such small disk");
        assert!(why.contains("still had room after 3 MiB"), "{why}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn what_never_began_is_over() {
        assert_eq!(Outage::default().over(Duration::ZERO), Ok(0));
    }
}
