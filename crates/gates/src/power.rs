//! How many rounds are enough, and what a clean run leaves open.
//!
//! A race that shows in one round of five is missed by ten clean rounds in one run of nine. So the number of rounds follows
//! from two numbers that the reader can judge: how rarely a fault may show, and how likely it may be missed.

/// The rounds after which a fault that shows in `share` of the rounds was missed with at most this probability.
///
/// ```
/// use retrysafe_gates::power::rounds;
///
/// assert_eq!(rounds(0.2, 0.001), 31);
/// assert_eq!(rounds(0.01, 0.001), 688);
/// ```
#[must_use]
pub fn rounds(share: f64, miss: f64) -> u32 {
    let share = share.clamp(1e-6, 1.0 - 1e-9);
    let exact = miss.clamp(1e-12, 0.5).ln() / (1.0 - share).ln();
    // More rounds than anybody waits for are cut by the caller's bound.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 28 million")]
    let whole = exact.ceil().max(1.0) as u32;
    whole
}

/// The probability that `rounds` clean rounds miss a fault that shows in `share` of them.
#[must_use]
pub fn missed(share: f64, rounds: u32) -> f64 {
    (1.0 - share.clamp(0.0, 1.0)).powi(i32::try_from(rounds).unwrap_or(i32::MAX))
}

/// The rate of faults that a clean run excludes at 95%: the rule of three.
#[must_use]
pub fn rate_below(rounds: u32) -> f64 {
    3.0 / f64::from(rounds.max(1))
}

/// What a clean run leaves open, for people.
#[must_use]
pub fn left_open(share: f64, rounds: u32) -> String {
    let percent = missed(share, rounds) * 100.0;
    // Nobody reads a row of zeros.
    let missed = if percent < 0.01 { "0.01".to_owned() } else { format!("{:.2}", percent + 0.005) };
    format!(
        "a fault that shows in {:.1}% of the rounds of one arrival was missed with probability below {missed}%; \
         after {rounds} clean rounds of each, at 95% fewer than {:.1}% of them fail",
        share * 100.0,
        (rate_below(rounds) * 100.0).min(100.0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_numbers_of_rounds() {
        for (share, expected) in [(0.01, 688), (0.05, 135), (0.1, 66), (0.2, 31), (0.5, 10), (0.9, 3)] {
            assert_eq!(rounds(share, 0.001), expected, "{share}");
            assert!(missed(share, expected) <= 0.001);
            assert!(missed(share, expected - 1) > 0.001);
        }
    }

    #[test]
    fn a_clean_run_says_what_it_leaves_open() {
        assert!(
            left_open(0.1, 66)
                .contains("10.0% of the rounds of one arrival was missed with probability below 0.10%")
        );
        assert!(left_open(0.1, 10).contains("below 34.87%"), "{}", left_open(0.1, 10));
        assert!(left_open(0.5, 1_000).contains("below 0.01%"));
    }

    #[test]
    fn nonsense_has_a_number_too() {
        assert_eq!(rounds(1.0, 0.001), 1);
        assert!(rounds(0.0, 0.0) > 1_000_000);
        assert!((rate_below(1_000) - 0.003).abs() < 1e-12);
    }
}
