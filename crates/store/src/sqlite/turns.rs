//! Whose turn it is, among the processes that share one file.
//!
//! SQLite lets whoever asks first have the write lock, and a writer that never pauses asks first every time: the other
//! process waited 4.5 s in a measurement (protocol 29). Two lock files make it fair. Who wants a turn takes `next`, then
//! waits for `turn`, then gives `next` back; who has had a turn needs `next` again, which the one who waits holds.
//!
//! The locks are `flock`s: the kernel takes them back from a process that dies. A process that is stopped inside its
//! turn blocks all others, as it would with SQLite's own lock.

use std::{
    fs::{File, OpenOptions},
    io,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

/// Between two looks at a lock that another process holds.
const POLL: Duration = Duration::from_micros(200);

pub(super) struct Turns {
    next: File,
    turn: File,
}

/// Having the turn; it ends when this is dropped.
pub(super) struct Turn<'a>(&'a File);

/// Why there is no turn.
#[derive(Debug)]
pub(super) enum NoTurn {
    /// Others had theirs all the time.
    Timeout,
    /// The lock files cannot be locked.
    Io(io::Error),
}

impl Turns {
    /// Makes the lock files beside the database, where they are not there yet.
    pub(super) fn open(database: &Path) -> io::Result<Self> {
        let open = |suffix: &str| {
            let mut path = database.as_os_str().to_owned();
            path.push(suffix);
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
        };
        Ok(Self { next: open("-next")?, turn: open("-turn")? })
    }

    /// Waits for a turn, at most `at_most`. Alone, this is three system calls of less than a microsecond each.
    pub(super) fn take(&self, at_most: Duration) -> Result<Turn<'_>, NoTurn> {
        let until = Instant::now() + at_most;
        lock(&self.next, until)?;
        let turn = lock(&self.turn, until);
        unlock(&self.next);
        turn.map(|()| Turn(&self.turn))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        unlock(self.0);
    }
}

fn lock(file: &File, until: Instant) -> Result<(), NoTurn> {
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => return Err(NoTurn::Io(error.into())),
        }
        if Instant::now() >= until {
            return Err(NoTurn::Timeout);
        }
        sleep(POLL);
    }
}

/// Unlocking a file that is open cannot fail for a reason that anybody could do something about.
fn unlock(file: &File) {
    let _ = flock(file, FlockOperation::Unlock);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn protocol_29_who_has_had_a_turn_lets_those_who_wait_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let (greedy, patient) = (Turns::open(&path).unwrap(), Turns::open(&path).unwrap());
        let now = || Instant::now() + PATIENCE;
        let turn = greedy.take(PATIENCE).unwrap();
        // The patient one comes, and waits: the first half of `take`.
        lock(&patient.next, now()).unwrap();
        // The greedy one has had its turn, and wants the next at once.
        drop(turn);
        assert!(matches!(greedy.take(Duration::ZERO), Err(NoTurn::Timeout)), "one is waiting");
        // The patient one looks again: the second half.
        lock(&patient.turn, now()).unwrap();
        unlock(&patient.next);
        assert!(matches!(greedy.take(Duration::ZERO), Err(NoTurn::Timeout)), "it is another's turn");
        unlock(&patient.turn);
        drop(greedy.take(PATIENCE).unwrap());
    }

    #[test]
    fn a_turn_that_does_not_come_is_given_up_without_blocking_those_who_come_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let (one, two, three) =
            (Turns::open(&path).unwrap(), Turns::open(&path).unwrap(), Turns::open(&path).unwrap());
        let turn = one.take(PATIENCE).unwrap();
        assert!(matches!(two.take(Duration::from_millis(1)), Err(NoTurn::Timeout)));
        drop(turn);
        drop(three.take(PATIENCE).unwrap());
        drop(two.take(PATIENCE).unwrap());
    }

    #[test]
    fn a_handle_that_is_gone_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let one = Arc::new(Turns::open(&path).unwrap());
        std::mem::forget(one.take(PATIENCE).unwrap());
        drop(one);
        drop(Turns::open(&path).unwrap().take(PATIENCE).unwrap());
    }
}
