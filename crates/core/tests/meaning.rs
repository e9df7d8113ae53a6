//! The property that fingerprints stand on: spellings of one meaning agree, and no two meanings ever do.
//!
//! A small model of JSON is written down twice in random spellings. What the model says is equal has to be the same
//! request, and nothing else may be.

#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::collections::BTreeMap;
use std::fmt::Write;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use retrysafe_core::fingerprint::{
    BodyRules, DeploymentKey, Fingerprint, FingerprintInput, canonical_json, compute,
};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Json {
    Null,
    Bool(bool),
    Number(Decimal),
    /// A number that is no double's, in its one spelling.
    Kept(&'static str),
    Text(String),
    Array(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

/// `digits * 10^exponent`, with no zero at the end of `digits`, and zero in one form.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: u64,
    exponent: i64,
}

impl Decimal {
    fn new(negative: bool, mut digits: u64, mut exponent: i64) -> Self {
        if digits == 0 {
            return Self { negative: false, digits, exponent: 0 };
        }
        while digits.is_multiple_of(10) {
            digits /= 10;
            exponent += 1;
        }
        Self { negative, digits, exponent }
    }

    fn spell(&self, dice: &mut Dice, out: &mut String) {
        if self.digits == 0 {
            return out.push_str(dice.of(&["0", "-0", "0.0", "0e5", "-0.00E-3", "0e+0"]));
        }
        let zeros = dice.roll(4);
        let digits = format!("{}{}", self.digits, "0".repeat(zeros));
        let point = dice.roll(digits.len() + 1);
        let (whole, fraction) = digits.split_at(point);
        let exponent = self.exponent - zeros as i64 + fraction.len() as i64;
        out.push_str(if self.negative { "-" } else { "" });
        out.push_str(if whole.is_empty() { "0" } else { whole });
        if !fraction.is_empty() {
            write!(out, ".{fraction}").unwrap();
        }
        if exponent != 0 || dice.roll(2) == 0 {
            out.push_str(dice.of(&["e", "E"]));
            out.push_str(if exponent >= 0 { dice.of(&["", "+"]) } else { "" });
            write!(out, "{exponent}").unwrap();
        }
    }
}

/// The choices of one spelling, drawn from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.roll(choices.len())]
    }
}

impl Json {
    fn spell(&self, dice: &mut Dice, out: &mut String) {
        out.push_str(dice.of(BLANKS));
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(value) => write!(out, "{value}").unwrap(),
            Json::Number(number) => number.spell(dice, out),
            Json::Kept(text) => out.push_str(text),
            Json::Text(text) => spell_text(text, dice, out),
            Json::Array(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at == 0 { "" } else { "," });
                    item.spell(dice, out);
                }
                out.push(']');
            }
            Json::Object(members) => {
                let mut members: Vec<_> = members.iter().collect();
                out.push('{');
                let mut comma = "";
                while !members.is_empty() {
                    let (name, value) = members.swap_remove(dice.roll(members.len()));
                    write!(out, "{comma}{}", dice.of(BLANKS)).unwrap();
                    comma = ",";
                    spell_text(name, dice, out);
                    write!(out, "{}:", dice.of(BLANKS)).unwrap();
                    value.spell(dice, out);
                }
                out.push('}');
            }
        }
        out.push_str(dice.of(BLANKS));
    }

    fn spelled(&self, seed: u64) -> String {
        let mut out = String::new();
        self.spell(&mut Dice(seed), &mut out);
        out
    }

    /// The same value with one node replaced, renamed or left out: the near misses.
    fn edited(&self, dice: &mut Dice, other: &Json) -> Json {
        if dice.roll(3) == 0 {
            return other.clone();
        }
        match self {
            Json::Array(items) if !items.is_empty() => {
                let mut items = items.clone();
                let at = dice.roll(items.len());
                match dice.roll(4) {
                    0 => drop(items.remove(at)),
                    1 => items.insert(at, other.clone()),
                    2 => items.rotate_left(1),
                    _ => items[at] = items[at].edited(dice, other),
                }
                Json::Array(items)
            }
            Json::Object(members) if !members.is_empty() => {
                let mut members = members.clone();
                let name = members.keys().nth(dice.roll(members.len())).unwrap().clone();
                let value = members.remove(&name).unwrap();
                match dice.roll(3) {
                    0 => {}
                    1 => drop(members.insert(format!("{name}a"), value)),
                    _ => drop(members.insert(name, value.edited(dice, other))),
                }
                Json::Object(members)
            }
            Json::Text(text) => Json::Text(format!("{text}{}", dice.of(CHARS))),
            Json::Number(Decimal { negative, digits, exponent }) => {
                Json::Number(Decimal::new(*negative, *digits, exponent + 1))
            }
            _ => other.clone(),
        }
    }
}

const BLANKS: &[&str] = &["", "", "", " ", "\n", "\r\n\t "];
const CHARS: &[char] = &[
    'a',
    'A',
    '0',
    ' ',
    '"',
    '\\',
    '/',
    '\n',
    '\u{8}',
    '\u{1}',
    '\u{7f}',
    'é',
    '\u{2028}',
    '\u{fb33}',
    '\u{1f600}',
];
const KEPT: &[&str] = &[
    "9007199254740993",
    "-9007199254740993",
    "18446744073709551617",
    "1e400",
    "1e-400",
    "0.10000000000000001",
];

fn spell_text(text: &str, dice: &mut Dice, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        let short = match c {
            '"' => Some("\\\""),
            '\\' => Some("\\\\"),
            '/' => Some("\\/"),
            '\n' => Some("\\n"),
            '\u{8}' => Some("\\b"),
            _ => None,
        };
        match (dice.roll(3), short) {
            (0, Some(short)) => out.push_str(short),
            (1, _) if !matches!(c, '"' | '\\' | ..='\u{1f}') => out.push(c),
            (upper, _) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    if upper == 2 {
                        write!(out, "\\u{unit:04X}").unwrap();
                    } else {
                        write!(out, "\\u{unit:04x}").unwrap();
                    }
                }
            }
        }
    }
    out.push('"');
}

fn text() -> impl Strategy<Value = String> {
    vec(prop::sample::select(CHARS), 0..4).prop_map(|chars| chars.into_iter().collect())
}

/// Small alphabets, so that values collide often enough to be told apart.
fn any_json() -> impl Strategy<Value = Json> {
    // Fifteen digits are always a double's, at these exponents.
    let number = (any::<bool>(), 0..1_000_000_000_000_000_u64, -290..290_i64);
    let small = (any::<bool>(), 0..30_u64, -2..3_i64);
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        number
            .prop_map(|(negative, digits, exponent)| Json::Number(Decimal::new(negative, digits, exponent))),
        small.prop_map(|(negative, digits, exponent)| Json::Number(Decimal::new(negative, digits, exponent))),
        prop::sample::select(KEPT).prop_map(Json::Kept),
        text().prop_map(Json::Text),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Json::Array),
            btree_map(text(), inner, 0..4).prop_map(Json::Object),
        ]
    })
}

fn fingerprint(content_type: &str, body: &[u8]) -> Fingerprint {
    let rules = BodyRules::default();
    let input = FingerprintInput {
        method: "POST",
        route: "/",
        path: "/",
        query: None,
        headers: &[],
        content_type: Some(content_type),
        content_encoding: None,
        body,
        rules: &rules,
    };
    compute(&input, &DeploymentKey::new(1, &[1; 32]).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn spellings_of_one_value_are_one(value in any_json(), seeds in any::<[u64; 2]>()) {
        let [a, b] = seeds.map(|seed| value.spelled(seed));
        let canonical = canonical_json(a.as_bytes());
        prop_assert!(canonical.is_ok(), "{a}");
        prop_assert_eq!(&canonical, &canonical_json(b.as_bytes()), "{} {}", a, b);
        // The canonical form is a spelling too, and its own.
        prop_assert_eq!(canonical_json(canonical.as_ref().unwrap()), canonical);
    }

    #[test]
    fn two_values_are_never_one(
        a in any_json(), other in any_json(), seeds in any::<[u64; 3]>(), near in any::<bool>()
    ) {
        let b = if near { a.edited(&mut Dice(seeds[2]), &other) } else { other };
        let texts = [a.spelled(seeds[0]), b.spelled(seeds[1])];
        let [x, y] = texts.each_ref().map(|text| fingerprint("application/json", text.as_bytes()));
        prop_assert_eq!(x == y, a == b, "{:?}", texts);
    }

    /// What is not JSON never gets past, and what has a canonical form means what its text means to another reader.
    #[test]
    fn no_text_panics_or_changes_meaning(
        tokens in vec(prop::sample::select(&[
            "{", "}", "[", "]", ",", ":", "\"", "\\", "\"a\"", "\"b\"", "\\u00", "\\uD800", "61", "\u{e9}", " ", "\n",
            "0", "-", "1", ".5", "e", "+", "E400", "null", "true", "\"a\":1", "\"\\u0061\":2", "\u{1f600}", "\u{0}",
        ][..]), 0..12)
    ) {
        let text = tokens.concat();
        let read = serde_json::from_str::<serde_json::Value>(&text);
        match canonical_json(text.as_bytes()) {
            Ok(canonical) => {
                let again = serde_json::from_slice::<serde_json::Value>(&canonical);
                // A number beyond a double has a canonical form, but serde_json cannot hold it.
                prop_assert_eq!(read.ok().map(doubles), again.ok().map(doubles), "{}", text);
            }
            Err(fault) => prop_assert!(
                read.is_err() || fault == retrysafe_core::fingerprint::NotCanonical::DuplicateMember,
                "{text}: {fault}"
            ),
        }
    }

    /// Contents that look like delimiters included: forms agree exactly where their parts do.
    #[test]
    fn forms_agree_where_their_parts_do(
        a in vec(content(), 0..3), b in vec(content(), 0..3), same in any::<bool>()
    ) {
        let b = if same { a.clone() } else { b };
        let [x, y] = [(&a, "AB"), (&b, "-CD")].map(|(contents, boundary)| {
            fingerprint(&format!("multipart/form-data; boundary={boundary}"), form(contents, boundary).as_bytes())
        });
        // A content that holds a delimiter makes its own form irregular, so that it agrees with none.
        let regular = !a.iter().any(|content| content.contains("--AB"))
            && !b.iter().any(|content| content.contains("---CD"));
        prop_assert_eq!(x == y, regular && a == b);
    }
}

/// The value with every number as another reader holds it, whether it was written `1` or `1.0`.
fn doubles(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Number(number) => Value::from(number.as_f64().unwrap() + 0.0),
        Value::Array(items) => items.into_iter().map(doubles).collect(),
        Value::Object(members) => members.into_iter().map(|(name, value)| (name, doubles(value))).collect(),
        other => other,
    }
}

fn content() -> impl Strategy<Value = String> {
    vec(prop::sample::select(&["\r\n", "--", "-", "AB", "CD", "x", ":", "\n"][..]), 0..6)
        .prop_map(|parts| parts.concat())
}

fn form(contents: &[String], boundary: &str) -> String {
    let mut body = String::new();
    for content in contents {
        write!(body, "--{boundary}\r\nContent-Disposition: form-data\r\n\r\n{content}\r\n").unwrap();
    }
    write!(body, "--{boundary}--\r\n").unwrap();
    body
}
