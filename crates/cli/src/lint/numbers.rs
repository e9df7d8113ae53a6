//! Numbers in a sentence that the contract states too: replay windows, attempts, lengths of keys.
//!
//! Only where the sentence says what the number is about: a page is full of hours and bytes that no contract knows.

use std::time::Duration;

use retrysafe_core::contract::{Contract, show};

const MINUTE: u64 = 60;
const HOUR: u64 = 3_600;
const DAY: u64 = 86_400;
/// What a sentence about a window speaks of,
const WINDOW: &[&str] = &[
    "replay window",
    "idempotency window",
    "keys expire",
    "key expires",
    "keys are kept",
    "keys are stored",
    "keys are valid",
    "key is valid",
    "keys last",
    "リプレイ期間",
    "キーの有効期間",
    "キーは",
];
/// about attempts,
const ATTEMPTS: &[&str] = &["attempts in all", "attempts in total", "at most", "up to", "maximum of", "最大"];
/// and about a key's length.
const LENGTH: &[&str] = &["key", "キー"];

/// What disagrees, and what to say instead.
pub(super) fn disagreeing(text: &str, contract: &Contract) -> Vec<(String, String)> {
    let lower = text.to_lowercase();
    let speaks_of = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let numbers = numbers(&lower);
    let mut found = Vec::new();
    if speaks_of(WINDOW) {
        let known: Vec<Duration> = contract
            .endpoints
            .iter()
            .flat_map(|endpoint| {
                let windows = &endpoint.windows;
                let bound = windows.resource.as_ref();
                [
                    Some(windows.replay),
                    Some(windows.reap),
                    bound.map(|one| one.grace),
                    bound.map(|one| one.at_most),
                ]
            })
            .flatten()
            .chain([contract.longest_retry_chain])
            .collect();
        for (number, unit) in &numbers {
            let Some(seconds) = seconds(unit) else { continue };
            let stated = Duration::from_secs(number.saturating_mul(seconds));
            if !known.contains(&stated) {
                let windows = windows(contract);
                found.push((
                    format!("{number} {unit} is no window of the contract"),
                    format!("Answers are replayed for {windows}."),
                ));
            }
        }
    }
    let attempts = u64::from(contract.client.attempts);
    if speaks_of(ATTEMPTS) {
        for (number, unit) in &numbers {
            let wrong = match unit.as_str() {
                "attempts" | "attempt" => *number != attempts,
                "retries" | "retry" => *number + 1 != attempts,
                _ => false,
            };
            if wrong {
                found.push((
                    format!("{number} {unit} disagrees with the contract"),
                    format!("A call makes at most {attempts} attempts."),
                ));
            }
        }
    }
    if speaks_of(LENGTH) {
        let known: Vec<u64> =
            contract.endpoints.iter().map(|endpoint| endpoint.key_rules.max_len as u64).collect();
        for (number, unit) in &numbers {
            let about = ["bytes", "characters", "chars", "バイト", "文字"]
                .iter()
                .any(|known| unit.starts_with(known));
            if about && *number > 1 && !known.contains(number) {
                let most = known.iter().max().copied().unwrap_or_default();
                found.push((
                    format!("{number} {unit} is not the length of a key in the contract"),
                    format!("A key is at most {most} bytes long."),
                ));
            }
        }
    }
    found
}

/// The replay windows, each once.
fn windows(contract: &Contract) -> String {
    let mut windows: Vec<String> = Vec::new();
    for endpoint in &contract.endpoints {
        let window = show(endpoint.windows.replay);
        if !windows.contains(&window) {
            windows.push(window);
        }
    }
    windows.join(" or ")
}

fn seconds(unit: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 12] = [
        ("minutes", MINUTE),
        ("minute", MINUTE),
        ("hours", HOUR),
        ("hour", HOUR),
        ("h", HOUR),
        ("days", DAY),
        ("day", DAY),
        ("d", DAY),
        ("時間", HOUR),
        ("日間", DAY),
        ("日", DAY),
        ("分間", MINUTE),
    ];
    UNITS
        .iter()
        .find(|(name, _)| *name == unit || (!name.is_ascii() && unit.starts_with(name)))
        .map(|(_, seconds)| *seconds)
}

/// Whole numbers and the word behind each: `24 hours`, `24h`, `24-hour`, `255 バイト`.
fn numbers(text: &str) -> Vec<(u64, String)> {
    let letters: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut place = 0;
    while place < letters.len() {
        if !letters[place].is_ascii_digit() {
            place += 1;
            continue;
        }
        let start = place;
        while place < letters.len() && (letters[place].is_ascii_digit() || letters[place] == ',') {
            place += 1;
        }
        // Part of a word, a date or a version is no count.
        let inside = start > 0
            && (letters[start - 1].is_ascii_alphanumeric()
                || matches!(letters[start - 1], '.' | '-' | '/' | '#'));
        let digits: String = letters[start..place].iter().filter(|one| one.is_ascii_digit()).collect();
        let blanks = letters[place..].iter().take(1).take_while(|one| matches!(one, ' ' | '-')).count();
        let unit: String = letters[place + blanks..].iter().take_while(|one| one.is_alphabetic()).collect();
        if let (false, Ok(number), false) = (inside, digits.parse(), unit.is_empty()) {
            found.push((number, unit));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOP: &str = include_str!("../../assets/shop.toml");

    fn wrong(text: &str) -> Vec<String> {
        let contract = Contract::parse(SHOP, "shop.toml").unwrap();
        disagreeing(text, &contract).into_iter().map(|(message, _)| message).collect()
    }

    #[test]
    fn d704_numbers_that_disagree() {
        for (text, word) in [
            ("The replay window is 48 hours.", "48 hours"),
            ("Keys expire after 7 days.", "7 days"),
            ("We make up to 5 attempts.", "5 attempts"),
            ("It tries at most 4 retries.", "4 retries"),
            ("A key has at most 64 characters.", "64 characters"),
            ("リプレイ期間は48時間です。", "48 時間"),
        ] {
            assert!(wrong(text).iter().any(|message| message.contains(word)), "{text}: {:?}", wrong(text));
        }
    }

    #[test]
    fn d704_numbers_that_agree_or_are_about_something_else() {
        for text in [
            "The replay window is 24 hours, records are kept for 72h.",
            "The 24-hour replay window begins at completion.",
            "Keys expire after 1 day.",
            "We make up to 3 attempts, that is at most 2 retries.",
            "A key has at most 255 bytes.",
            "The outage took 48 hours.",
            "Version 2.48 hours of work.",
            "リプレイ期間は24時間です。",
        ] {
            assert_eq!(wrong(text), [""; 0], "{text}");
        }
    }
}
