//! The rate of orphans, held against its own beginning (SPEC 10.4).
//!
//! An orphan is a request that was claimed and whose holder was lost. Nobody has published how many are too many, so a
//! deployment is compared with itself: the first month is the baseline, and from then on the trend counts.
//!
//! ```
//! use retrysafe_core::orphans::{Day, Verdict, trend};
//!
//! let mut days: Vec<Day> = (0..30).map(|day| Day { day, claims: 10_000, orphans: 2 }).collect();
//! days.extend((60..67).map(|day| Day { day, claims: 10_000, orphans: 20 }));
//! let trend = trend(&days, 66).expect("days were counted");
//! assert_eq!(trend.verdict(), Verdict::Rising);
//! ```
//!
//! # Limits
//! - Counts are written down once a minute by each process; what a process counted since then dies with it.
//! - A request that is abandoned twice, and gone on with by its caller each time, counts twice.

/// How many days make the baseline, from the first that was counted on.
pub const BASELINE_DAYS: i64 = 30;
/// How many days make the present.
pub const RECENT_DAYS: i64 = 7;
/// The rate is rising where it is this many times the baseline...
const RISING_TIMES: f64 = 2.0;
/// ...and there are this many orphans more than the baseline would have made: few of few say nothing.
const RISING_EXCESS: f64 = 5.0;

/// What was counted on one day.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Day {
    /// Days since 1970, on the store's clock.
    pub day: i64,
    /// Claims that were won.
    pub claims: u64,
    /// Requests that were found abandoned.
    pub orphans: u64,
}

/// Orphans among claims.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Claims that were won.
    pub claims: u64,
    /// Requests that were found abandoned.
    pub orphans: u64,
}

/// The beginning and the present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trend {
    /// The first [`BASELINE_DAYS`].
    pub baseline: Rate,
    /// Whether they are over.
    pub baseline_is_whole: bool,
    /// The last [`RECENT_DAYS`], today included.
    pub recent: Rate,
}

/// What the comparison says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The first month is not over.
    NoBaseline,
    /// No more than in the first month, as far as so few can tell.
    AsBefore,
    /// Twice as many as in the first month, or more.
    Rising,
}

impl Rate {
    fn of<'a>(days: impl Iterator<Item = &'a Day>) -> Self {
        days.fold(Self::default(), |rate, day| Self {
            claims: rate.claims.saturating_add(day.claims),
            orphans: rate.orphans.saturating_add(day.orphans),
        })
    }

    /// Orphans for each claim. `None` without a claim.
    #[allow(clippy::cast_precision_loss)] // counts are far below 2^53
    pub fn share(self) -> Option<f64> {
        (self.claims > 0).then(|| self.orphans as f64 / self.claims as f64)
    }
}

impl Trend {
    /// What it says.
    #[allow(clippy::cast_precision_loss)] // counts are far below 2^53
    pub fn verdict(&self) -> Verdict {
        let (Some(baseline), Some(recent)) = (self.baseline.share(), self.recent.share()) else {
            return Verdict::NoBaseline;
        };
        if !self.baseline_is_whole {
            return Verdict::NoBaseline;
        }
        let expected = baseline * self.recent.claims as f64;
        let excess = self.recent.orphans as f64 - expected;
        match recent >= baseline * RISING_TIMES && excess >= RISING_EXCESS {
            true => Verdict::Rising,
            false => Verdict::AsBefore,
        }
    }
}

/// Compares `days`, in any order, as of `today`. `None`: nothing was counted yet.
pub fn trend(days: &[Day], today: i64) -> Option<Trend> {
    let first = days.iter().map(|day| day.day).min()?;
    let whole = first.saturating_add(BASELINE_DAYS);
    Some(Trend {
        baseline: Rate::of(days.iter().filter(|day| day.day < whole)),
        baseline_is_whole: today >= whole,
        recent: Rate::of(
            days.iter().filter(|day| day.day > today.saturating_sub(RECENT_DAYS) && day.day <= today),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(from: i64, to: i64, claims: u64, orphans: u64) -> Vec<Day> {
        (from..to).map(|day| Day { day, claims, orphans }).collect()
    }

    #[test]
    fn spec_10_4_the_first_month_is_the_baseline_and_then_the_trend_counts() {
        let month = days(100, 130, 1_000, 1);
        let week = |orphans| [month.clone(), days(200, 207, 1_000, orphans)].concat();
        let cases = [
            (month.clone(), 129, Verdict::NoBaseline),
            (month.clone(), 130, Verdict::AsBefore),
            (week(1), 206, Verdict::AsBefore),
            (week(2), 206, Verdict::Rising),
            (week(0), 206, Verdict::AsBefore),
            // One orphan of nine claims is a high rate, and says nothing.
            ([month.clone(), days(200, 201, 9, 1)].concat(), 200, Verdict::AsBefore),
            // Nothing was claimed lately.
            (month.clone(), 300, Verdict::NoBaseline),
            // A baseline without any orphan: the sixth one is a rise, the first is not.
            ([days(0, 30, 1_000, 0), days(90, 91, 1_000, 6)].concat(), 90, Verdict::Rising),
            ([days(0, 30, 1_000, 0), days(90, 91, 1_000, 1)].concat(), 90, Verdict::AsBefore),
        ];
        for (number, (days, today, expected)) in cases.into_iter().enumerate() {
            assert_eq!(trend(&days, today).unwrap().verdict(), expected, "case {number}");
        }
        assert_eq!(trend(&[], 5), None);
    }

    #[test]
    fn the_present_is_a_week_and_the_baseline_stays_where_it_is() {
        let all = days(0, 400, 10, 1);
        let trend = trend(&all, 399).unwrap();
        assert_eq!((trend.baseline.claims, trend.recent.claims), (300, 70));
    }
}
