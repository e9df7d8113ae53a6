//! What time it is, from a clock that may be wrong (protocol 10).
//!
//! Windows and leases are wall time, and a wall clock can jump: a machine whose clock is set 25 hours ahead would
//! expire every key and run every late retry again. So a store keeps a [`Mark`], the latest instant it has told, next
//! to its records, and every reading of the machine's clock is judged against it by [`judge`]:
//!
//! - time never goes backward, in any process that shares the mark;
//! - **within one boot** the machine counts the seconds since it started, and nobody can set that counter. It is the
//!   clock: from the mark on, time runs as it does, whatever the wall clock says. So all processes that share a mark
//!   agree to the millisecond, even with wall clocks ten minutes apart, and none ends another's lease (R16); and a
//!   process that was switched off for a weekend is no jump at all;
//! - **across boots** nothing but the wall clock is left. It is taken as it is, within the bound, and never backward;
//! - a wall clock that is further ahead than the bound is followed by nobody: the store is closed until a person has
//!   looked ([`Verdict::Jumped`]), or until the clock is put right.
//!
//! The price: a wall clock that is corrected while the machine runs moves the store's time only at the next boot.
//! Windows and leases are lengths of time, and those stay true.
//!
//! ```
//! use retrysafe_core::{clock::*, time::Wall};
//! use std::time::Duration;
//!
//! let boot = BootId(1);
//! let reading = |wall, since_boot| {
//!     Reading { wall: Wall::from_unix_ms(wall), boot, since_boot: Duration::from_millis(since_boot) }
//! };
//! let limits = Limits::default();
//!
//! let Verdict::Now(mark) = judge(None, &reading(1_000, 50), &limits) else { panic!() };
//! // The wall clock was set one minute ahead, but only one second has passed.
//! let Verdict::Now(mark) = judge(Some(&mark), &reading(62_000, 1_050), &limits) else { panic!() };
//! assert_eq!(mark.now, Wall::from_unix_ms(2_000));
//! ```

use std::{fmt, time::Duration};

use crate::time::Wall;

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
/// The order of calls does not matter: a reading from before the mark was made (another process was quicker) gives the
/// mark's time again.
pub fn judge(previous: Option<&Mark>, reading: &Reading, limits: &Limits) -> Verdict {
    let Some(mark) = previous else { return Verdict::Now(Mark::at(reading.wall, reading)) };
    let rebooted = mark.boot != reading.boot;
    let expected =
        if rebooted { *mark } else { mark.after(reading.since_boot.saturating_sub(mark.since_boot)) };
    if reading.wall.since(expected.now) > limits.max_jump {
        return Verdict::Jumped(Jump { expected: expected.now, found: reading.wall, rebooted });
    }
    Verdict::Now(if rebooted { Mark::at(mark.now.max(reading.wall), reading) } else { expected })
}

impl Mark {
    /// A person has looked at a jump and takes the clock as it is.
    pub fn acknowledged(previous: Option<&Mark>, reading: &Reading) -> Mark {
        Mark::at(previous.map_or(reading.wall, |mark| mark.now.max(reading.wall)), reading)
    }

    /// The later of two marks of one store; `self` is the reader's own.
    #[must_use]
    pub fn latest(self, other: Mark) -> Mark {
        if self.boot == other.boot {
            // Two points of the same course, unless a jump was acknowledged in between: the one that is further ahead
            // of the counter tells the later time, whenever it was made.
            if other.ahead_of_counter() > self.ahead_of_counter() { other } else { self }
        } else {
            Mark { now: self.now.max(other.now), ..self }
        }
    }

    /// By whole milliseconds on both sides, so that nothing is lost however often it is called.
    fn after(self, elapsed: Duration) -> Self {
        let whole = Duration::from_millis(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        Self { now: self.now.plus(whole), since_boot: self.since_boot.saturating_add(whole), ..self }
    }

    fn ahead_of_counter(&self) -> i128 {
        i128::from(self.now.unix_ms()) * 1_000_000
            - i128::try_from(self.since_boot.as_nanos()).unwrap_or(i128::MAX)
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
                "by the seconds since boot it should be {expected}, but the clock says {found}, {ahead} s ahead; \
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
                name: "23 h ahead is not followed",
                wall: 23 * HOUR,
                boot: 1,
                since_boot: 1_000,
                now: Ok(1_000),
            },
            Case { name: "R16: 10 min ahead", wall: 600_000, boot: 1, since_boot: 0, now: Ok(0) },
            Case {
                name: "R16: 10 min ahead, 5 s later",
                wall: 605_000,
                boot: 1,
                since_boot: 5_000,
                now: Ok(5_000),
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
                name: "backward, and time goes on",
                wall: -HOUR,
                boot: 1,
                since_boot: 2_000,
                now: Ok(2_000),
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
    fn r16_processes_with_other_wall_clocks_agree_however_seldom_they_meet() {
        let limits = Limits::default();
        let reading = |us: u64, skew: i64| Reading {
            wall: Wall::from_unix_ms((us / 1_000) as i64 + skew),
            boot: BootId(7),
            since_boot: Duration::from_micros(us + 321),
        };
        let told = |mark: Mark, reading: Reading| match judge(Some(&mark), &reading, &limits) {
            Verdict::Now(mark) => mark,
            Verdict::Jumped(jump) => panic!("{jump}"),
        };
        let Verdict::Now(first) = judge(None, &reading(0, 600_000), &limits) else { panic!("first") };
        // One reads its clock all the time, the other, ten minutes behind, was idle for ten seconds.
        let busy = (0..=10_000_000).step_by(40).fold(first, |mark, us| {
            let next = told(mark, reading(us, 600_000));
            assert!(next.now >= mark.now, "never backward");
            next
        });
        let idle = told(first, reading(10_000_000, 0));
        assert_eq!(idle.now, busy.now);
        assert_eq!(idle.now.since(first.now), Duration::from_secs(10), "a 30 s lease lives 30 s");
    }

    #[test]
    fn the_later_of_two_marks_is_the_one_that_tells_the_later_time() {
        let mark = |now, boot, since_boot| Mark {
            now: Wall::from_unix_ms(now),
            boot: BootId(boot),
            since_boot: Duration::from_millis(since_boot),
        };
        let (early, late) = (mark(1_000, 1, 10), mark(6_000, 1, 5_010));
        assert_eq!(early.latest(late), early, "the same course");
        assert_eq!(late.latest(early), late);
        // Acknowledged by another process: made earlier, but on a course that is an hour ahead.
        let ahead = mark(3_600_000, 1, 100);
        assert_eq!(late.latest(ahead), ahead);
        assert_eq!(ahead.latest(late), ahead);
        // From another boot only the time counts.
        assert_eq!(early.latest(mark(9_000, 2, 0)), mark(9_000, 1, 10));
        assert_eq!(late.latest(mark(5_000, 2, 0)), late);
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
