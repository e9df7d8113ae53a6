//! What time it is, from a clock that may be wrong (protocol 10).
//!
//! Windows and leases are wall time, and a wall clock can jump: a machine whose clock is set 25 hours ahead would
//! expire every key and run every late retry again. So a store keeps a [`Mark`], the latest instant it has told, next
//! to its records, and every reading of the machine's clock is judged against it by [`judge`]:
//!
//! - time never goes backward, in any process that shares the mark;
//! - **within one boot** the machine also counts the seconds since it started, and nobody can set that counter. The
//!   wall clock is followed only as far as that counter agrees: where the two disagree, time runs at half or at
//!   double pace until they meet. Two processes with clocks ten minutes apart therefore cannot end each other's
//!   leases (R16), and a process that was switched off for a weekend is no jump at all;
//! - **across boots** nothing but the wall clock is left, and it is taken as it is, within the bound;
//! - a jump beyond the bound is followed by nobody: the store is closed until a person has looked
//!   ([`Verdict::Jumped`]), or until the clock is put right.
//!
//! ```
//! use retrysafe_core::{clock::*, time::Wall};
//! use std::time::Duration;
//!
//! let boot = BootId(1);
//! let reading = |wall, since_boot| Reading { wall: Wall::from_unix_ms(wall), boot, since_boot: Duration::from_millis(since_boot) };
//! let limits = Limits::default();
//!
//! let Verdict::Now(mark) = judge(None, &reading(1_000, 50), &limits) else { panic!() };
//! // The wall clock was set one minute ahead, but only one second has passed.
//! let Verdict::Now(mark) = judge(Some(&mark), &reading(62_000, 1_050), &limits) else { panic!() };
//! assert_eq!(mark.now, Wall::from_unix_ms(3_000));
//! ```

use std::{fmt, time::Duration};

use crate::time::Wall;

/// How fast time may run, compared with the seconds since boot, while it catches up with the wall clock.
pub const FASTEST_PACE: u32 = 2;

/// By what the seconds since boot are divided while the wall clock is behind the time already told. Not zero pace: a
/// clock put back by a day must not freeze the lease of a holder that is dead.
pub const SLOWEST_PACE_DIVISOR: u32 = 2;

/// Names one start of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootId(pub u128);

/// What the machine's clocks say, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The wall clock. May be anything.
    pub wall: Wall,
    /// Which start of the machine `since_boot` counts from.
    pub boot: BootId,
    /// Time since then, suspension included. Only grows.
    pub since_boot: Duration,
}

/// The latest time told, and when in the machine's life that was. Kept with the records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The high-water mark: no earlier time is ever told again.
    pub now: Wall,
    /// The boot in which it was told.
    pub boot: BootId,
    /// Time since boot when it was told.
    pub since_boot: Duration,
}

/// How far a clock may be off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// A wall clock further ahead than this closes the store. Within one boot it bounds how far the clock is ahead of
    /// the time that should have passed; across boots, the whole time between, so a machine that is switched off for
    /// longer has to be acknowledged.
    pub max_jump: Duration,
}

impl Default for Limits {
    /// One day: with the default replay window of 24 h no jump that is let through can expire a key that was just
    /// completed.
    fn default() -> Self {
        Self { max_jump: Duration::from_secs(24 * 60 * 60) }
    }
}

/// What to make of a reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is [`Mark::now`]; the mark replaces the previous one.
    Now(Mark),
    /// The clock ran off. Nothing that depends on time may be decided.
    Jumped(Jump),
}

/// A jump beyond the bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Jump {
    /// The time it should be, as far as anybody can tell.
    pub expected: Wall,
    /// The time the clock says.
    pub found: Wall,
    /// Whether the machine was started anew in between, so that `expected` is only the last time that was told.
    pub rebooted: bool,
}

/// What time it is, given the `previous` mark (`None`: a new store) and what the clocks say.
///
/// The order of calls does not matter to correctness: a reading from before the mark was made (another process was
/// quicker) gives the mark's time again.
pub fn judge(previous: Option<&Mark>, reading: &Reading, limits: &Limits) -> Verdict {
    let Some(mark) = previous else { return Verdict::Now(Mark::at(reading.wall, reading)) };
    let rebooted = mark.boot != reading.boot;
    let elapsed = if rebooted { Duration::ZERO } else { reading.since_boot.saturating_sub(mark.since_boot) };
    let expected = mark.now.plus(elapsed);
    if reading.wall.since(expected) > limits.max_jump {
        return Verdict::Jumped(Jump { expected, found: reading.wall, rebooted });
    }
    if rebooted {
        return Verdict::Now(Mark::at(mark.now.max(reading.wall), reading));
    }
    let earliest = mark.now.plus(elapsed / SLOWEST_PACE_DIVISOR);
    let latest = mark.now.plus(elapsed.saturating_mul(FASTEST_PACE));
    let now = reading.wall.clamp(earliest, latest);
    if now == mark.now {
        // Within a millisecond: keep the older mark, or the fractions that `Wall` cannot hold would be lost each time.
        return Verdict::Now(*mark);
    }
    Verdict::Now(Mark::at(now, reading))
}

impl Mark {
    /// A person has looked at a jump and takes the clock as it is.
    pub fn acknowledged(previous: Option<&Mark>, reading: &Reading) -> Mark {
        Mark::at(previous.map_or(reading.wall, |mark| mark.now.max(reading.wall)), reading)
    }

    /// The later of two marks of one store.
    #[must_use]
    pub fn latest(self, other: Mark) -> Mark {
        if other.now > self.now { other } else { self }
    }

    fn at(now: Wall, reading: &Reading) -> Self {
        Self { now, boot: reading.boot, since_boot: reading.since_boot }
    }
}

impl fmt::Display for Jump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (expected, found) = (instant(self.expected), instant(self.found));
        let ahead = self.found.since(self.expected).as_secs();
        if self.rebooted {
            write!(
                f,
                "the last time told before this machine was started is {expected}, and its clock now says {found}, \
                 {ahead} s later; if it was switched off that long, acknowledge the jump, else set the clock"
            )
        } else {
            write!(
                f,
                "by the time since boot it should be {expected}, but the clock says {found}, {ahead} s ahead; \
                 set the clock, or acknowledge the jump if the clock is right"
            )
        }
    }
}

/// RFC 3339 where the calendar reaches, milliseconds where it does not.
fn instant(at: Wall) -> String {
    match jiff::Timestamp::from_millisecond(at.unix_ms()) {
        Ok(timestamp) => timestamp.to_string(),
        Err(_) => format!("{} ms after 1970", at.unix_ms()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;
    const DAY: i64 = 24 * HOUR;

    /// A store whose last mark was made at wall 100 d, 10 h after boot 1; then the clocks say this.
    struct Case {
        name: &'static str,
        wall: i64,
        boot: u128,
        since_boot: i64,
        now: Result<i64, i64>,
    }

    #[test]
    fn protocol_10_a_reading_is_judged_against_the_mark() {
        let start = 100 * DAY;
        let cases = [
            Case { name: "a minute passes", wall: 60_000, boot: 1, since_boot: 60_000, now: Ok(60_000) },
            Case { name: "no time passes", wall: 0, boot: 1, since_boot: 0, now: Ok(0) },
            Case {
                name: "25 h ahead, same boot",
                wall: 25 * HOUR,
                boot: 1,
                since_boot: 1_000,
                now: Err(1_000),
            },
            Case { name: "25 h ahead after a reboot", wall: 25 * HOUR, boot: 2, since_boot: 0, now: Err(0) },
            Case {
                name: "23 h ahead is caught up slowly",
                wall: 23 * HOUR,
                boot: 1,
                since_boot: 1_000,
                now: Ok(2_000),
            },
            Case { name: "R16: 10 min ahead", wall: 600_000, boot: 1, since_boot: 0, now: Ok(0) },
            Case {
                name: "R16: 10 min ahead, 5 s later",
                wall: 605_000,
                boot: 1,
                since_boot: 5_000,
                now: Ok(10_000),
            },
            Case {
                name: "weekend off, machine on",
                wall: 60 * HOUR,
                boot: 1,
                since_boot: 60 * HOUR,
                now: Ok(60 * HOUR),
            },
            Case {
                name: "night off, machine off",
                wall: 14 * HOUR,
                boot: 2,
                since_boot: 0,
                now: Ok(14 * HOUR),
            },
            Case { name: "weekend off, machine off", wall: 60 * HOUR, boot: 2, since_boot: 0, now: Err(0) },
            Case { name: "backward holds", wall: -HOUR, boot: 1, since_boot: 0, now: Ok(0) },
            Case {
                name: "backward, then half pace",
                wall: -HOUR,
                boot: 1,
                since_boot: 2_000,
                now: Ok(1_000),
            },
            Case {
                name: "backward after a reboot holds",
                wall: -DAY,
                boot: 2,
                since_boot: 5_000,
                now: Ok(0),
            },
            Case { name: "1970 after a reboot holds", wall: -start, boot: 2, since_boot: 5_000, now: Ok(0) },
            Case { name: "read before the mark was made", wall: -5, boot: 1, since_boot: -5, now: Ok(0) },
            Case { name: "24 h ahead is the bound", wall: DAY, boot: 2, since_boot: 0, now: Ok(DAY) },
            Case { name: "a millisecond more is not", wall: DAY + 1, boot: 2, since_boot: 0, now: Err(0) },
        ];
        let up = 10 * HOUR;
        let since_boot = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap());
        let mark = Mark { now: Wall::from_unix_ms(start), boot: BootId(1), since_boot: since_boot(up) };
        for case in cases {
            let base = if case.boot == 1 { up } else { 0 };
            let reading = Reading {
                wall: Wall::from_unix_ms(start + case.wall),
                boot: BootId(case.boot),
                since_boot: since_boot(base + case.since_boot),
            };
            let told = match judge(Some(&mark), &reading, &Limits::default()) {
                Verdict::Now(mark) => Ok(mark.now.unix_ms() - start),
                Verdict::Jumped(jump) => {
                    assert_eq!(jump.found, reading.wall, "{}", case.name);
                    Err(jump.expected.unix_ms() - start)
                }
            };
            assert_eq!(told, case.now, "{}", case.name);
        }
    }

    #[test]
    fn r16_two_skewed_clocks_never_tell_a_time_that_outruns_the_counter() {
        // One clock ten minutes ahead, read in turn every 10 ms, on one shared mark. A 30 s lease taken by the slow
        // process lives at least 15 s of real time.
        let limits = Limits::default();
        let reading = |at: u64, skew: i64| Reading {
            wall: Wall::from_unix_ms(at as i64 + skew),
            boot: BootId(7),
            since_boot: Duration::from_millis(at),
        };
        let Verdict::Now(mut mark) = judge(None, &reading(0, 0), &limits) else { panic!("first") };
        let lease_until = mark.now.plus(Duration::from_secs(30));
        for at in (10..15_000).step_by(10) {
            let skew = if at % 20 == 0 { 600_000 } else { 0 };
            let Verdict::Now(next) = judge(Some(&mark), &reading(at, skew), &limits) else { panic!("{at}") };
            assert!(next.now >= mark.now, "never backward");
            assert!(next.now < lease_until, "ended {at} ms after it was taken");
            mark = next;
        }
    }

    #[test]
    fn time_does_not_lag_when_it_is_read_more_often_than_it_can_be_told_apart() {
        let limits = Limits::default();
        let reading = |us: u64| Reading {
            wall: Wall::from_unix_ms((us / 1_000) as i64),
            boot: BootId(7),
            since_boot: Duration::from_micros(us + 321),
        };
        let Verdict::Now(mut mark) = judge(None, &reading(0), &limits) else { panic!("first") };
        for us in (0..1_000_000).step_by(7) {
            let Verdict::Now(next) = judge(Some(&mark), &reading(us), &limits) else { panic!("{us}") };
            mark = next;
        }
        assert!(mark.now >= Wall::from_unix_ms(998), "{mark:?}");
    }

    #[test]
    fn an_acknowledged_jump_is_the_new_mark_and_still_never_backward() {
        let reading =
            |wall| Reading { wall: Wall::from_unix_ms(wall), boot: BootId(1), since_boot: Duration::ZERO };
        let mark = Mark::acknowledged(None, &reading(10));
        let ahead = Mark::acknowledged(Some(&mark), &reading(100 * DAY));
        assert_eq!(ahead.now, Wall::from_unix_ms(100 * DAY));
        assert_eq!(Mark::acknowledged(Some(&ahead), &reading(20)).now, ahead.now);
        assert!(matches!(judge(Some(&ahead), &reading(100 * DAY), &Limits::default()), Verdict::Now(_)));
    }

    #[test]
    fn a_jump_names_both_instants_and_what_to_do() {
        let jump =
            Jump { expected: Wall::from_unix_ms(0), found: Wall::from_unix_ms(25 * HOUR), rebooted: false };
        let text = jump.to_string();
        for part in ["1970-01-01T00:00:00Z", "1970-01-02T01:00:00Z", "90000 s", "acknowledge"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
