//! The time of a database, for processes on many machines (protocol 10, R16).
//!
//! The database's wall clock is the only one that counts. It is read every second; in between, time goes on as the
//! process's monotonic clock does. The wall clock of the client's machine is never looked at, so a replica whose clock
//! is ten minutes ahead steals no lease.
//!
//! - Time never goes backward in a process. When the database's clock is set back, time stands still until it has caught
//!   up: leases and windows end late, never early.
//! - The latest time told is kept in the database (the **mark**), so that a process which starts later does not go behind
//!   it by more than the interval in which it is written.
//! - A clock that is further ahead of the expected time than [`Limits::max_jump`] closes the store until a person has
//!   looked: a clock 25 h ahead must not expire every key. What is expected is the mark, or what this process has told,
//!   whichever is later. A database that nobody used for longer than the bound looks the same and has to be acknowledged
//!   too; nothing in it tells a long weekend from a clock that ran off.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use retrysafe_core::{clock::Limits, time::Wall};

use crate::{ErrorKind, StoreError};

/// What a process knows of the database's time.
pub(crate) struct DatabaseClock {
    limits: Limits,
    known: Mutex<Known>,
}

struct Known {
    /// What the database's clock said, and when this process heard it.
    sample: Option<(Wall, Instant)>,
    /// The latest time told, or the mark if that is later.
    floor: Option<Wall>,
    jumped: Option<Jumped>,
}

/// A database clock that is too far ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Jumped {
    expected: Wall,
    found: Wall,
}

impl DatabaseClock {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, known: Mutex::new(Known { sample: None, floor: None, jumped: None }) }
    }

    /// Takes a reading of the database's clock and its mark, heard at `at`. Returns the time to keep as the mark; `None`
    /// when the store is closed, so that a clock that ran off is not written down.
    pub(crate) fn observe(&self, found: Wall, mark: Option<Wall>, at: Instant) -> Option<Wall> {
        let mut known = self.lock();
        let expected = known.at(at).max(known.floor).max(mark);
        if let Some(expected) = expected
            && found.since(expected) > self.limits.max_jump
        {
            let jumped = Jumped { expected, found };
            if known.jumped.replace(jumped).is_none() {
                tracing::error!("the database's clock jumped, the store is closed: {jumped}");
            }
            return None;
        }
        if known.jumped.take().is_some() {
            tracing::warn!("the database's clock is within its bound again: the store is open");
        }
        known.floor = known.floor.max(mark);
        known.sample = Some((found, at));
        Some(known.tell(at))
    }

    /// A person has looked: the database's clock is taken as it is.
    pub(crate) fn acknowledge(&self, found: Wall, at: Instant) -> Wall {
        let mut known = self.lock();
        known.jumped = None;
        known.sample = Some((found, at));
        known.tell(at)
    }

    /// The time at `at`.
    pub(crate) fn now(&self, at: Instant) -> Result<Wall, StoreError> {
        const READING: &str = "reading the clock";
        let mut known = self.lock();
        match (known.jumped, known.sample) {
            (Some(jumped), _) => Err(StoreError::with_source(ErrorKind::ClockJumped, READING, jumped)),
            (None, None) => Err(StoreError::new(ErrorKind::Unavailable, READING)),
            (None, Some(_)) => Ok(known.tell(at)),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn at(&self, at: Instant) -> Option<Wall> {
        self.sample.map(|(wall, heard)| wall.plus(at.saturating_duration_since(heard)))
    }

    fn tell(&mut self, at: Instant) -> Wall {
        let told = self.at(at).max(self.floor).unwrap_or(Wall::from_unix_ms(0));
        self.floor = Some(told);
        told
    }
}

impl fmt::Debug for DatabaseClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseClock").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl fmt::Display for Jumped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "it should be about {} ms after 1970, but the database's clock says {}, {} s ahead; set the clock of the \
             database's machine, or acknowledge the jump if it is right or nobody used the store for that long",
            self.expected.unix_ms(),
            self.found.unix_ms(),
            self.found.since(self.expected).as_secs(),
        )
    }
}

impl std::error::Error for Jumped {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOUR: u64 = 3_600;

    fn wall(seconds: u64) -> Wall {
        Wall::from_unix_ms(1_800_000_000_000).plus(Duration::from_secs(seconds))
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn between_readings_time_goes_on_as_the_monotonic_clock_does() {
        let (clock, start) = (DatabaseClock::new(Limits::default()), Instant::now());
        assert_eq!(clock.now(start).unwrap_err().kind(), ErrorKind::Unavailable, "nothing is known yet");
        assert_eq!(clock.observe(wall(0), None, start), Some(wall(0)));
        assert_eq!(clock.now(start + seconds(7)).unwrap(), wall(7));
        // The database's word counts again as soon as it is heard: this machine counts too slowly.
        clock.observe(wall(10), None, start + seconds(9));
        assert_eq!(clock.now(start + seconds(9)).unwrap(), wall(10));
    }

    #[test]
    fn protocol_10_time_stands_still_when_the_clock_is_set_back() {
        let (clock, start) = (DatabaseClock::new(Limits::default()), Instant::now());
        clock.observe(wall(HOUR), None, start);
        assert_eq!(clock.observe(wall(0), None, start), Some(wall(HOUR)));
        assert_eq!(clock.now(start + seconds(60)).unwrap(), wall(HOUR));
        assert_eq!(clock.now(start + seconds(HOUR + 5)).unwrap(), wall(HOUR + 5), "and goes on from there");
        // Another process knows the mark and stands still as well.
        let other = DatabaseClock::new(Limits::default());
        assert_eq!(other.observe(wall(60), Some(wall(HOUR)), start), Some(wall(HOUR)));
    }

    #[test]
    fn protocol_10_a_jump_beyond_the_bound_closes_until_acknowledged() {
        let (clock, start) = (DatabaseClock::new(Limits::default()), Instant::now());
        clock.observe(wall(0), None, start);
        assert_eq!(clock.observe(wall(25 * HOUR), Some(wall(0)), start + seconds(1)), None);
        let closed = clock.now(start + seconds(1)).unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::ClockJumped);
        let why = std::error::Error::source(&closed).map(ToString::to_string).unwrap_or_default();
        assert!(why.contains("89999 s ahead") && why.contains("acknowledge"), "{why}");
        // Put right: open again, and nothing of the jump is left.
        assert_eq!(clock.observe(wall(2), Some(wall(0)), start + seconds(2)), Some(wall(2)));
        assert_eq!(clock.now(start + seconds(3)).unwrap(), wall(3));
        // Acknowledged by another process: the mark is there already.
        assert_eq!(clock.observe(wall(25 * HOUR), None, start + seconds(4)), None);
        assert_eq!(
            clock.observe(wall(25 * HOUR + 1), Some(wall(25 * HOUR)), start + seconds(5)),
            Some(wall(25 * HOUR + 1))
        );
    }

    #[test]
    fn protocol_10_a_process_that_starts_judges_by_the_mark() {
        let start = Instant::now();
        let clock = DatabaseClock::new(Limits::default());
        assert_eq!(clock.observe(wall(25 * HOUR), Some(wall(0)), start), None);
        assert_eq!(clock.acknowledge(wall(25 * HOUR), start), wall(25 * HOUR));
        assert_eq!(clock.now(start + seconds(1)).unwrap(), wall(25 * HOUR + 1));
        // The bound itself is let through.
        let clock = DatabaseClock::new(Limits::default());
        assert_eq!(clock.observe(wall(24 * HOUR), Some(wall(0)), start), Some(wall(24 * HOUR)));
    }

    #[test]
    fn a_database_that_cannot_be_read_for_days_is_no_jump() {
        let (clock, start) = (DatabaseClock::new(Limits::default()), Instant::now());
        clock.observe(wall(0), None, start);
        let later = start + seconds(70 * HOUR);
        assert_eq!(clock.observe(wall(70 * HOUR), Some(wall(0)), later), Some(wall(70 * HOUR)));
    }
}
