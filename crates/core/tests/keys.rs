//! Keys as clients send them: the cases of the trackers and the public structured-field vectors.

#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use proptest::prelude::*;
use retrysafe_core::address::Key;
use retrysafe_core::key::{KeyDefect, KeyFault, KeyRules, KeySyntax, parse_body, parse_field, parse_header};
use serde_json::Value;

const LENIENT: KeyRules = KeyRules { syntax: KeySyntax::Lenient, max_len: 255 };
const STRICT: KeyRules = KeyRules { syntax: KeySyntax::Strict, max_len: 255 };

fn key(text: &str) -> Result<Key, KeyFault> {
    Ok(Key::trusted(text).unwrap())
}

fn one(line: impl AsRef<[u8]>, rules: &KeyRules) -> Result<Key, KeyFault> {
    parse_header([line.as_ref()], rules)
}

fn vectors(name: &str) -> Value {
    let path = format!("{}/../../vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn malformed(defect: KeyDefect) -> Result<Key, KeyFault> {
    Err(KeyFault::Malformed(defect))
}

#[test]
fn k1_bare_and_quoted_are_one_key_when_lenient() {
    for text in ["abc", "8e03978e-40d5-43e8-bc93-6894a57f9324", "f/XTSy6cVv0lYmbE+6JSyKvJ==", "a_b:c.d~e!"] {
        assert_eq!(one(text, &LENIENT), key(text));
        assert_eq!(one(format!("\"{text}\""), &LENIENT), key(text));
        assert_eq!(one(format!("\t \"{text}\" "), &LENIENT), key(text));
    }
    // A backslash escapes only within quotes.
    assert_eq!(one(r"a\b", &LENIENT), one(r#""a\\b""#, &LENIENT));
}

#[test]
fn k1_strict_refuses_a_bare_key() {
    assert_eq!(one("\"abc\"", &STRICT), key("abc"));
    for bare in ["abc", "42", "?1", ":aGk=:", "8e03978e-40d5-43e8-bc93-6894a57f9324"] {
        assert_eq!(one(bare, &STRICT), malformed(KeyDefect::NotQuoted), "{bare}");
    }
}

#[test]
fn k1_bare_keys_are_never_decoded_into_something_else() {
    let texts =
        ["42", "042", "4.20", "-0", "?1", ":aGk=:", "@1659578233", "%22k%22", "k;ttl=60", "*", "a/b=c"];
    for text in texts {
        assert_eq!(one(text, &LENIENT), key(text));
    }
}

#[test]
fn k1_parameters_are_read_and_ignored() {
    for rules in [LENIENT, STRICT] {
        for sent in ["\"k\";ttl=60", "\"k\"; a; b=?0;c=\"x, y\"", "\"k\""] {
            assert_eq!(one(sent, &rules), key("k"), "{sent}");
        }
        for sent in ["\"k\";ttl=", "\"k\";TTL=60", "\"k\" ;ttl=60", "\"k\";"] {
            assert_eq!(one(sent, &rules), malformed(KeyDefect::BadQuoting), "{sent}");
        }
    }
}

#[test]
fn k2_two_key_lines_are_refused() {
    let pairs: &[[&str; 2]] =
        &[["k1", "k2"], ["k1", "k1"], ["\"a\"", "\"b\""], ["", "k"], ["k", ""], ["", ""], ["\"foo", "bar\""]];
    for rules in [LENIENT, STRICT] {
        for pair in pairs {
            let lines = pair.iter().map(|line| line.as_bytes());
            assert_eq!(parse_header(lines, &rules), Err(KeyFault::Ambiguous), "{pair:?}");
        }
    }
}

#[test]
fn k2_a_list_in_one_line_is_refused_as_two_merged_lines_are() {
    for rules in [LENIENT, STRICT] {
        for sent in ["k1,k2", "k1, k2", ",", "k1,", "\"a\", \"b\"", "\"a\",b", "\"a\";p=1 , \"b\"", "\"a\","]
        {
            assert_eq!(one(sent, &rules), Err(KeyFault::Ambiguous), "{sent}");
        }
        assert_eq!(one("\"a, b\"", &rules), key("a, b"));
        assert_eq!(one("\"a, b", &rules), malformed(KeyDefect::BadQuoting));
    }
}

#[test]
fn k3_empty_keys_have_their_own_answer() {
    for rules in [LENIENT, STRICT] {
        for sent in ["", "   ", "\t", "\"\"", "\"   \"", "\"\";a=1"] {
            assert_eq!(one(sent, &rules), Err(KeyFault::Empty), "{sent:?}");
        }
    }
    assert_eq!(parse_field("", &LENIENT), Err(KeyFault::Empty));
    assert_eq!(parse_field("  ", &LENIENT), Err(KeyFault::Empty));
}

#[test]
fn k3_the_limit_is_in_bytes_of_the_key_not_of_its_spelling() {
    let longest = "a".repeat(255);
    assert_eq!(one(&longest, &LENIENT), key(&longest));
    for rules in [LENIENT, STRICT] {
        assert_eq!(one(format!("\"{longest}\""), &rules), key(&longest));
        // Every byte escaped, and parameters behind.
        let quotes = "\"".repeat(255);
        let escaped = format!("\"{}\";p={}", "\\\"".repeat(255), "1".repeat(15));
        assert_eq!(one(escaped, &rules), key(&quotes));
    }
    let too_long = Err(KeyFault::TooLong { max_len: 255 });
    for len in [256, 257, 10_000, 65_536] {
        let text = "a".repeat(len);
        assert_eq!(one(&text, &LENIENT), too_long, "{len}");
        assert_eq!(one(format!("\"{text}\""), &STRICT), too_long, "{len}");
        assert_eq!(parse_field(&text, &LENIENT), too_long, "{len}");
    }
}

#[test]
fn k3_length_is_looked_at_before_the_value() {
    for filler in ["\u{1}", ",", "\"", "\u{e9}"] {
        let sent = filler.repeat(65_536);
        for rules in [LENIENT, STRICT] {
            assert_eq!(one(&sent, &rules), Err(KeyFault::TooLong { max_len: 255 }), "{filler:?}");
        }
        assert_eq!(parse_field(&sent, &LENIENT), Err(KeyFault::TooLong { max_len: 255 }), "{filler:?}");
    }
    let parameters = format!("\"k\";{}", "p;".repeat(100_000));
    assert_eq!(one(parameters, &LENIENT), Err(KeyFault::TooLong { max_len: 255 }));
}

#[test]
fn k3_bytes_outside_printable_ascii_are_refused() {
    for byte in (0x00..0x20).chain(0x7f..=0xff_u8) {
        for rules in [LENIENT, STRICT] {
            let quoted = [b"\"a", &[byte][..], b"b\""].concat();
            assert_eq!(one(quoted, &rules), malformed(KeyDefect::NotAscii), "{byte:#x}");
        }
        let bare = [b"a", &[byte][..], b"b"].concat();
        assert_eq!(one(bare, &LENIENT), malformed(KeyDefect::NotAscii), "{byte:#x}");
    }
    for text in ["na\u{ef}ve", "k\0", "k\r\nX-Injected: 1", "\u{1f600}"] {
        assert_eq!(one(text, &LENIENT), malformed(KeyDefect::NotAscii), "{text:?}");
        assert_eq!(parse_field(text, &LENIENT), malformed(KeyDefect::NotAscii), "{text:?}");
    }
}

#[test]
fn k3_damaged_quoting_is_refused_not_repaired() {
    for sent in
        ["\"", "\"unterminated", "\"a\"x", "\"a\" x", "\"a\\nb\"", "\"a\\", "\"a\"\"b\"", "\"a\\\", b\" x"]
    {
        for rules in [LENIENT, STRICT] {
            assert_eq!(one(sent, &rules), malformed(KeyDefect::BadQuoting), "{sent}");
        }
    }
    for sent in ["a\"", "a\"b\"", "%\"na%c3%afve\"", "a b", "(\"a\" \"b\")"] {
        assert_eq!(one(sent, &LENIENT), malformed(KeyDefect::BareCharacters), "{sent}");
    }
}

#[test]
fn k7_a_missing_key_is_missing_and_nothing_else() {
    for rules in [LENIENT, STRICT] {
        assert_eq!(parse_header(std::iter::empty(), &rules), Err(KeyFault::Missing));
    }
    let malformed = KeyFault::Malformed(KeyDefect::NotAscii);
    let faults = [
        KeyFault::Missing,
        KeyFault::Empty,
        KeyFault::TooLong { max_len: 255 },
        malformed,
        KeyFault::Ambiguous,
    ];
    let suffixes = ["missing", "empty", "too_long", "malformed", "ambiguous"];
    for (fault, suffix) in faults.into_iter().zip(suffixes) {
        assert_eq!(fault.code().as_str(), format!("idempotency_key_{suffix}"));
    }
}

#[test]
fn a_field_of_the_body_is_the_key_as_it_stands() {
    for text in ["abc", "\"abc\"", "a, b", " a ", "k;ttl=60"] {
        assert_eq!(parse_field(text, &LENIENT), key(text));
        assert_eq!(parse_field(text, &STRICT), key(text));
    }
}

#[test]
fn a_key_is_found_in_a_body_wherever_the_pointer_says() {
    for (body, pointer, text) in [
        (r#"{"a": 1, "idempotency_key": "k", "b": [{}]}"#, "/idempotency_key", "k"),
        (r#"{"idempotency\u005fkey": "\u006b"}"#, "/idempotency_key", "k"),
        (r#"{"order": {"ids": [7, {"a/b": "k"}]}}"#, "/order/ids/1/a~1b", "k"),
        (r#""k""#, "", "k"),
        (r#"{"a": {"k": "x", "k": "y"}, "k": "z"}"#, "/k", "z"),
        (r#"{"0": "k"}"#, "/0", "k"),
    ] {
        assert_eq!(parse_body(body.as_bytes(), &pointer.parse().unwrap(), &STRICT), key(text), "{body}");
    }
}

#[test]
fn k2_a_field_that_is_there_twice_is_refused() {
    let pointer = "/meta/key".parse().unwrap();
    for body in [
        r#"{"meta": {"key": "a", "key": "b"}}"#,
        r#"{"meta": {"key": "a", "key": "a"}}"#,
        r#"{"meta": {"key": "a", "k\u0065y": null}}"#,
        r#"{"meta": {"key": "a"}, "meta": {}}"#,
        r#"{"meta": {}, "meta": {"key": "a"}, "meta": 1}"#,
    ] {
        assert_eq!(parse_body(body.as_bytes(), &pointer, &LENIENT), Err(KeyFault::Ambiguous), "{body}");
    }
}

#[test]
fn k7_a_body_without_the_field_has_no_key() {
    let pointer = "/meta/key".parse().unwrap();
    for body in [
        "{}",
        "",
        "[]",
        "null",
        "\"key\"",
        "{\"meta\": null}",
        "{\"meta\": {\"key\": null}}",
        "{\"meta\": [\"key\"]}",
        "{\"meta\": {\"Key\": \"k\"}}",
        "{\"meta\": {\"key\": \"k\"}",
        "{\"meta\": {\"key\": \"k\"}} x",
        "meta[key]=k",
        "{\"meta\": \"key\"}",
        "{\"meta\": 1}",
    ] {
        assert_eq!(parse_body(body.as_bytes(), &pointer, &LENIENT), Err(KeyFault::Missing), "{body}");
    }
    for value in ["1", "true", "{}", "[\"k\"]", "1e3", "-1"] {
        let body = format!("{{\"meta\": {{\"key\": {value}}}}}");
        assert_eq!(parse_body(body.as_bytes(), &pointer, &LENIENT), malformed(KeyDefect::NotText), "{body}");
    }
    let empty = br#"{"meta": {"key": ""}}"#;
    assert_eq!(parse_body(empty, &pointer, &LENIENT), Err(KeyFault::Empty));
}

#[test]
fn faults_never_repeat_the_key() {
    for sent in ["s3cret,k", "\"s3cret", "s3cret\u{1}", "s3cret k", &"s3cret".repeat(100)] {
        let fault = one(sent, &LENIENT).unwrap_err();
        assert!(!format!("{fault} {fault:?}").contains("s3cret"), "{fault}");
    }
}

/// The public structured-field suite: each value gives exactly this key, or is refused.
#[test]
fn sf_all_634_values_give_this_key_or_are_refused() {
    let cases = vectors("sf/idempotency-key-strict.json");
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 634);
    // The suite's long string is above the default limit.
    let [strict, lenient] =
        [KeySyntax::Strict, KeySyntax::Lenient].map(|syntax| KeyRules { syntax, max_len: 1024 });
    let mut keys = 0;
    for case in cases {
        let name = &case["name"];
        let raw: Vec<&str> =
            case["raw"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
        let lines = || raw.iter().map(|line| line.as_bytes());
        let seen = parse_header(lines(), &strict);
        let expected = match case["key"].as_str() {
            _ if raw.len() > 1 => Err(KeyFault::Ambiguous),
            // Well-formed strings, but no keys: nothing tells one operation from the next (K3).
            Some(text) if text.trim().is_empty() => Err(KeyFault::Empty),
            Some(text) => key(text),
            None => {
                assert!(seen.is_err(), "{name}: accepted {raw:?}");
                // Lenient takes bare text literally, never anything it had to repair or decode.
                if let Ok(bare) = parse_header(lines(), &lenient) {
                    assert_eq!(bare.as_str(), raw[0].trim_matches([' ', '\t']), "{name}");
                    assert!(!bare.as_str().contains(['"', ',', ' ']), "{name}");
                }
                continue;
            }
        };
        assert_eq!(seen, expected, "{name}");
        assert_eq!(parse_header(lines(), &lenient), expected, "{name}");
        keys += usize::from(seen.is_ok());
    }
    assert_eq!(keys, 97, "101 strings, without a list, an empty one and two blank ones");
}

/// Strings that RFC 9651 cannot write down could not be handed on under the same name, so they are no keys.
#[test]
fn sf_strings_that_cannot_be_written_are_no_keys() {
    let cases = vectors("sf/serialise-string.json");
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 33);
    for case in cases {
        assert_eq!(case["must_fail"], true, "{}", case["name"]);
        let text = case["expected"][0].as_str().unwrap();
        assert!(Key::trusted(text).is_err(), "{}", case["name"]);
        assert!(parse_field(text, &LENIENT).is_err(), "{}", case["name"]);
    }
}

/// What the draft and the market send, with the decision taken for each: under Lenient, then under Strict.
#[test]
fn key_header_cases_are_decided_one_by_one() {
    const UUID: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";
    const STAINLESS: &str = "stainless-python-retry-6e9871d1-5b0a-422a-9def-f3412d769932";
    const AUTO: &str = "auto_117dd033-18f8-41b0-8def-a1d03ee9b98f";
    let decided: &[(&[&str], Option<&str>, Option<&str>)] = &[
        (&["\"8e03978e-40d5-43e8-bc93-6894a57f9324\""], Some(UUID), Some(UUID)),
        (&[UUID], Some(UUID), None),
        (&[STAINLESS], Some(STAINLESS), None),
        (&["CZS3L90PgsK6g9uPgbDJkHZo"], Some("CZS3L90PgsK6g9uPgbDJkHZo"), None),
        (&["f/XTSy6cVv0lYmbE+6JSyKvJ"], Some("f/XTSy6cVv0lYmbE+6JSyKvJ"), None),
        (&[AUTO], Some(AUTO), None),
        (&["\"k\";ttl=60"], Some("k"), Some("k")),
        (&["\"a\\\"b\""], Some("a\"b"), Some("a\"b")),
        (&["\"a\\\\b\""], Some("a\\b"), Some("a\\b")),
        (&["\"a\\nb\""], None, None),
        (&["\"\""], None, None),
        (&[""], None, None),
        (&["   "], None, None),
        (&["\"a\"", "\"b\""], None, None),
        (&["k1", "k2"], None, None),
        (&["k1", "k1"], None, None),
        (&["\"a\", \"b\""], None, None),
        (&["k1,k2"], None, None),
        (&["\"unterminated"], None, None),
        (&["\"a\"x"], None, None),
        (&["%22k%22"], Some("%22k%22"), None),
        (&["%\"na%c3%afve\""], None, None),
        (&[":aGk=:"], Some(":aGk=:"), None),
        (&["?1"], Some("?1"), None),
        (&["42"], Some("42"), None),
        (&["na\u{ef}ve"], None, None),
        (&["k\0"], None, None),
        (&["k\r\nX-Injected: 1"], None, None),
    ];
    let file = vectors("ietf/key-header-cases.json");
    let cases = file["cases"].as_array().unwrap();
    let (listed, repeated): (Vec<_>, Vec<_>) = cases.iter().partition(|case| case["lines"].is_array());
    assert_eq!(listed.len(), decided.len());
    for (case, (lines, lenient, strict)) in listed.iter().zip(decided) {
        assert_eq!(case["lines"], serde_json::json!(lines), "the file changed: decide anew");
        for (rules, expected) in [(LENIENT, lenient), (STRICT, strict)] {
            let seen = parse_header(lines.iter().map(|line| line.as_bytes()), &rules).ok();
            assert_eq!(seen.as_ref().map(Key::as_str), *expected, "{lines:?} {rules:?}");
        }
    }
    assert_eq!(repeated.len(), 3);
    for case in repeated {
        let (unit, times) = (case["repeat"][0].as_str().unwrap(), case["repeat"][1].as_u64().unwrap());
        let sent = unit.repeat(times as usize);
        let expected = if times <= 255 { key(&sent) } else { Err(KeyFault::TooLong { max_len: 255 }) };
        assert_eq!(one(&sent, &LENIENT), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is accepted, quoted as RFC 9651 says, is the same key under both rules: one key, one operation.
    #[test]
    fn k1_every_accepted_key_has_a_quoted_spelling(line in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..12),
        "[ -~]{0,12}".prop_map(String::into_bytes),
        "\\PC{0,6}".prop_map(String::into_bytes),
        "\"[ -~]{0,8}\"(;[a-c=0-9]{0,4})?".prop_map(String::into_bytes),
    ]) {
        let Ok(seen) = one(&line, &LENIENT) else { return Ok(()) };
        let text = seen.as_str();
        prop_assert!(!text.trim().is_empty() && text.len() <= 255 && text.bytes().all(|b| matches!(b, 0x20..=0x7e)));
        let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        prop_assert_eq!(one(&quoted, &STRICT), Ok(seen.clone()));
        prop_assert_eq!(one(&quoted, &LENIENT), Ok(seen));
    }
}
