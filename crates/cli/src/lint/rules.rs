//! What is wrong with one sentence.
//!
//! | rule | finds |
//! |---|---|
//! | D701 | delivery or execution that is promised once and only once, or never twice, without a bound |
//! | D704 | a number that disagrees with the contract |
//! | D706 | advice to make a key for each attempt |
//! | D707 | "safe to retry" in a paragraph that names neither scope nor window |
//!
//! A claim is none where the sentence denies it, where it is quoted and nobody vouches for it, or where a closed system is
//! meant. Negation reaches over its clause and not further.

use anstyle::AnsiColor;
use retrysafe_core::contract::Contract;

use super::{numbers, prose::Sentence};

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Severity {
    Error,
    Warning,
}

impl Severity {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }

    pub(super) fn colour(self) -> AnsiColor {
        match self {
            Self::Error => AnsiColor::Red,
            Self::Warning => AnsiColor::Yellow,
        }
    }
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Finding {
    pub(super) rule: &'static str,
    pub(super) severity: Severity,
    pub(super) line: usize,
    pub(super) sentence: String,
    pub(super) message: String,
    /// A sentence to put in its place.
    pub(super) instead: String,
}

const HONEST: &str = "A retry with the same key, by the same account, within the replay window does not carry the operation out again.";
const HONEST_JA: &str =
    "同じアカウントが同じキーで、リプレイ期間内に再送する限り、操作がもう一度実行されることはありません。";

/// Claims, as words in a row. A star stands for one word of any kind.
const CLAIMS: &[&[&str]] = &[
    &["exactly", "once"], // tidy: allow(promise)
    &["guaranteed", "once"],
    &["guaranteed", "to", "run", "once"],
    &["guaranteed", "to", "execute", "once"],
    &["guaranteed", "to", "be", "processed", "once"],
    &["never", "duplicated"],
    &["never", "charged", "twice"],
    &["never", "*", "charged", "twice"],
    &["never", "charge", "twice"],
    &["never", "charge", "*", "twice"],
    &["never", "*", "processed", "twice"],
    &["never", "*", "executed", "twice"],
    &["never", "*", "delivered", "twice"],
    &["never", "be", "duplicated"],
    &["never", "creates", "duplicates"],
    &["never", "create", "duplicates"],
    &["zero", "duplicates"],
];
/// The same in Japanese.
const CLAIMS_JA: &[&str] = &[
    "厳密に1回",
    "厳密に一回",
    "厳密に一度",
    "必ず1回だけ",
    "必ず一回だけ",
    "必ず一度だけ",
    "ちょうど1回",
    "ちょうど一回",
    "ちょうど一度",
    "正確に1回",
    "正確に一度",
    "二重に請求されることはありません",
    "二重に実行されることはありません",
    "重複は絶対に",
];
/// Words that turn a clause around, where they come before the claim in it.
const NEGATIONS: &[&str] = &[
    "not",
    "no",
    "never",
    "cannot",
    "nobody",
    "none",
    "nothing",
    "neither",
    "nor",
    "without",
    "can't",
    "don't",
    "doesn't",
    "isn't",
    "won't",
    "didn't",
    "aren't",
    "wouldn't",
    "couldn't",
    "impossible",
    "hardly",
    "avoid",
    "instead",
    "myth",
    "fails",
    "unlike",
    "beware",
];
/// And where they come behind it.
const DENIALS: &[&str] = &[
    "not",
    "cannot",
    "can't",
    "impossible",
    "myth",
    "unattainable",
    "isn't",
    "doesn't",
    "never",
    "lie",
    "illusion",
    "nobody",
    "no",
];
const DENIALS_JA: &[&str] = &[
    "ではありません",
    "ではない",
    "できません",
    "できない",
    "しません",
    "しない",
    "不可能",
    "限りません",
    "限らない",
    "神話",
    "幻想",
    "誰にも",
];
/// Who uses one of these vouches for what is quoted.
const VOUCHING: &[&str] = &[
    "guarantee",
    "guarantees",
    "guaranteed",
    "ensure",
    "ensures",
    "provide",
    "provides",
    "deliver",
    "delivers",
    "promise",
    "promises",
    "offer",
    "offers",
];
/// Systems that can keep it among themselves.
const CLOSED: &[&[&str]] =
    &[&["kafka", "transactions"], &["kafka", "transactional"], &["flink", "checkpoints"]];

/// All findings of a sentence.
pub(super) fn judge(sentence: &Sentence, contract: Option<&Contract>) -> Vec<Finding> {
    let finding = |rule, severity, message: String, instead: String| Finding {
        rule,
        severity,
        line: sentence.line,
        sentence: sentence.text.clone(),
        message,
        instead,
    };
    let mut found = Vec::new();
    if let Some(claim) = claim(sentence) {
        let instead = if claim.is_ascii() { HONEST } else { HONEST_JA };
        let message = format!("\"{claim}\" is a promise that nobody can keep");
        found.push(finding("D701", Severity::Error, message, instead.to_owned()));
    }
    if key_for_each_attempt(&sentence.text) {
        let message = "a key that is made for each attempt protects nothing".to_owned();
        let instead =
            "Make the key once for the operation, before the first attempt, and send it on every attempt.";
        found.push(finding("D706", Severity::Warning, message, instead.to_owned()));
    }
    if unbounded(sentence) {
        let message = "\"safe to retry\" says neither whose key nor for how long".to_owned();
        found.push(finding("D707", Severity::Warning, message, HONEST.to_owned()));
    }
    if let Some(contract) = contract {
        let disagreeing = numbers::disagreeing(&sentence.text, contract);
        found.extend(
            disagreeing
                .into_iter()
                .map(|(message, instead)| finding("D704", Severity::Error, message, instead)),
        );
    }
    found
}

/// Lower-case words, and the places of the clauses' ends between them.
struct Words {
    words: Vec<String>,
    /// Words before which a clause begins.
    clauses: Vec<usize>,
    /// Words inside quotation marks.
    quoted: Vec<bool>,
}

impl Words {
    fn of(text: &str) -> Self {
        let mut found = Self { words: Vec::new(), clauses: vec![0], quoted: Vec::new() };
        let mut word = String::new();
        let mut quoting = false;
        for one in text.chars().chain([' ']) {
            let one = if one == '’' { '\'' } else { one };
            if one.is_alphanumeric() || (one == '\'' && !word.is_empty()) {
                word.extend(one.to_lowercase());
                continue;
            }
            if !word.is_empty() {
                if word == "but" {
                    found.clauses.push(found.words.len());
                }
                found.words.push(std::mem::take(&mut word));
                found.quoted.push(quoting);
            }
            match one {
                ';' | ':' | '—' | '(' | ')' => found.clauses.push(found.words.len()),
                '"' => quoting = !quoting,
                '“' | '«' => quoting = true,
                '”' | '»' => quoting = false,
                _ => {}
            }
        }
        found
    }

    /// Where these words stand in a row.
    fn find(&self, phrase: &[&str]) -> Option<usize> {
        let fits = |window: &[String]| {
            window.iter().zip(phrase).all(|(word, wanted)| *wanted == "*" || word == wanted)
        };
        self.words.windows(phrase.len()).position(fits)
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|known| known == word)
    }

    /// The clause around a place: its words before, and those from `end` on.
    fn around(&self, start: usize, end: usize) -> (&[String], &[String]) {
        let from = self.clauses.iter().copied().filter(|clause| *clause <= start).max().unwrap_or(0);
        let to =
            self.clauses.iter().copied().filter(|clause| *clause >= end).min().unwrap_or(self.words.len());
        (&self.words[from..start], &self.words[end..to])
    }
}

/// The claim that a sentence makes, if it makes one.
fn claim(sentence: &Sentence) -> Option<String> {
    if sentence.quoted {
        return None;
    }
    let words = Words::of(&sentence.text);
    if CLOSED.iter().any(|system| system.iter().all(|word| words.has(word))) {
        return None;
    }
    for phrase in CLAIMS {
        let Some(start) = words.find(phrase) else { continue };
        let end = start + phrase.len();
        let (before, behind) = words.around(start, end);
        // "Not only X but Y" denies nothing.
        let negated = before.iter().enumerate().any(|(place, word)| {
            NEGATIONS.contains(&word.as_str()) && before.get(place + 1).is_none_or(|next| next != "only")
        });
        let denied = behind.iter().any(|word| DENIALS.contains(&word.as_str()));
        let quoted = words.quoted[start] && !words.words.iter().any(|word| VOUCHING.contains(&word.as_str()));
        if !negated && !denied && !quoted {
            return Some(words.words[start..end].join(" "));
        }
    }
    CLAIMS_JA.iter().find(|claim| claims_in_japanese(&sentence.text, claim)).map(|claim| (*claim).to_owned())
}

fn claims_in_japanese(text: &str, claim: &str) -> bool {
    let Some(at) = text.find(claim) else { return false };
    let (before, behind) = (&text[..at], &text[at + claim.len()..]);
    let quoted = before.rfind('「') > before.rfind('」') && behind.contains('」');
    let vouched =
        behind.contains("保証します") || behind.contains("保証する") || behind.contains("保証しています");
    let denied = DENIALS_JA.iter().any(|denial| behind.contains(denial));
    !denied && (!quoted || vouched)
}

/// Advice that makes a key anew for each attempt.
fn key_for_each_attempt(text: &str) -> bool {
    const EACH: [&[&str]; 6] = [
        &["for", "each", "attempt"],
        &["for", "every", "attempt"],
        &["on", "each", "retry"],
        &["for", "each", "retry"],
        &["for", "every", "retry"],
        &["on", "every", "retry"],
    ];
    // Who names it in order to say what it does is no adviser.
    const AGAINST: [&str; 6] = ["protects", "defeats", "breaks", "wrong", "pattern", "same"];
    let words = Words::of(text);
    let made = ["new", "fresh", "unique", "different"].iter().any(|word| words.has(word)) && words.has("key");
    let denied =
        words.words.iter().any(|word| NEGATIONS.contains(&word.as_str()) || AGAINST.contains(&word.as_str()));
    made && !denied && EACH.iter().any(|each| words.find(each).is_some())
}

/// "Safe to retry" with neither scope nor window near it.
fn unbounded(sentence: &Sentence) -> bool {
    const BOUNDS: [&str; 13] = [
        "window",
        "within",
        "hours",
        "days",
        "scope",
        "account",
        "key",
        "keys",
        "idempotent",
        "get",
        "unsafe",
        "until",
        "nothing",
    ];
    const REPORTING: [&[&str]; 5] = [&["call", "it"], &["calls", "it"], &["called"], &["claims"], &["says"]];
    let words = Words::of(&sentence.text);
    let Some(start) = words.find(&["safe", "to", "retry"]) else { return false };
    let (before, _) = words.around(start, start);
    let denied = before.iter().any(|word| NEGATIONS.contains(&word.as_str()))
        || REPORTING.iter().any(|verb| words.find(verb).is_some_and(|place| place < start));
    let near = Words::of(&sentence.paragraph);
    !denied && !BOUNDS.iter().any(|bound| near.has(bound))
}

#[cfg(test)]
mod tests {
    use super::super::prose;
    use super::*;

    /// The two words in a row, which no file of this repository may hold.
    const ONCE: &str = concat!("exact", "ly once");

    fn rules(text: &str) -> Vec<&'static str> {
        let sentences = prose::sentences(&text.replace("ONCE", ONCE), false);
        sentences.iter().flat_map(|one| judge(one, None)).map(|finding| finding.rule).collect()
    }

    #[test]
    fn c40_claims_are_found() {
        for text in [
            "We deliver every event ONCE.",
            "Messages are processed ONCE, even in a crash.",
            "Our queue offers \"ONCE\" semantics.",
            "Your customers are never charged twice.",
            "A card will never be charged twice.",
            "It is guaranteed to run once.",
            "Not only at least once but ONCE.",
            "No worries: events arrive ONCE.",
            "注文は必ず一度だけ処理されます。",
            "「厳密に1回」の配信を保証します。",
        ] {
            assert_eq!(rules(text), ["D701"], "{text}");
        }
    }

    #[test]
    fn every_spelling_between_the_words_is_found() {
        for between in [" ", "-", "_", " **", "\n"] {
            let text = format!("It runs {}{between}{}.", "exact".to_owned() + "ly", "once");
            assert_eq!(rules(&text.replace("**once", "**once**")), ["D701"], "{text}");
        }
    }

    #[test]
    fn d702_denials_quotations_and_closed_systems_are_left_alone() {
        for text in [
            "We do not promise ONCE delivery.",
            "Nobody can deliver a message ONCE.",
            "ONCE delivery is impossible.",
            "ONCE is a myth that vendors sell.",
            "There is no ONCE; there is at least once and de-duplication.",
            "The vendor calls it \"ONCE\".",
            "> Delivered ONCE.",
            "With Kafka transactions a consume-produce loop runs ONCE.",
            "Set `processing.guarantee=ONCE`.",
            "```\nONCE\n```",
            "We cannot say that a card is never charged twice.",
            "厳密に1回の配信を保証することはできません。",
            "「厳密に1回」と呼ばれています。",
            "必ず一度だけとは限りません。",
            "Run it once, and be exact.",
        ] {
            assert_eq!(rules(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn d706_a_key_for_each_attempt() {
        assert_eq!(rules("Generate a new key for each attempt."), ["D706"]);
        assert_eq!(rules("Never generate a new key for each attempt."), [""; 0]);
        assert_eq!(rules("A new key for each attempt defeats everything."), [""; 0]);
        assert_eq!(rules("Use the same key for each attempt, a new one for a new order."), [""; 0]);
    }

    #[test]
    fn d707_safe_without_a_bound() {
        assert_eq!(rules("All our calls are safe to retry."), ["D707"]);
        assert_eq!(rules("It is safe to retry. Keys count for 24 hours."), [""; 0]);
        assert_eq!(rules("It is not safe to retry."), [""; 0]);
        assert_eq!(rules("Some libraries call it safe to retry."), [""; 0]);
    }
}
