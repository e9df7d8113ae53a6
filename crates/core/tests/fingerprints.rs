//! Which requests are the same and which are not: the cases of the trackers and the public JSON vectors.

#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};

use base64::Engine;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::{GzEncoder, ZlibEncoder};
use retrysafe_core::fingerprint::{
    BodyRules, DeploymentKey, Fingerprint, FingerprintInput, FingerprintKeys, KeyIdTaken, MAX_JSON_DEPTH,
    Match, NotCanonical, SecretTooShort, canonical_json, compute, verify,
};

const JSON: Option<&str> = Some("application/json");

fn key(id: u32) -> DeploymentKey {
    DeploymentKey::new(id, &[id as u8; 32]).unwrap()
}

fn rules(exclude: &[&str]) -> BodyRules {
    BodyRules { exclude: exclude.iter().map(|text| text.parse().unwrap()).collect(), ..BodyRules::default() }
}

/// A plain request with this body; the tests change what they are about.
fn post<'a>(content_type: Option<&'a str>, body: &'a [u8], rules: &'a BodyRules) -> FingerprintInput<'a> {
    FingerprintInput {
        method: "POST",
        route: "/orders",
        path: "/orders",
        query: None,
        headers: &[],
        content_type,
        content_encoding: None,
        body,
        rules,
    }
}

fn compare(a: &FingerprintInput<'_>, b: &FingerprintInput<'_>) -> Match {
    let keys = FingerprintKeys::new(key(1));
    verify(&compute(a, keys.current()), b, &keys)
}

fn json(a: impl AsRef<[u8]>, b: impl AsRef<[u8]>) -> Match {
    typed(JSON, a, JSON, b)
}

fn typed(a_type: Option<&str>, a: impl AsRef<[u8]>, b_type: Option<&str>, b: impl AsRef<[u8]>) -> Match {
    let rules = BodyRules::default();
    compare(&post(a_type, a.as_ref(), &rules), &post(b_type, b.as_ref(), &rules))
}

fn vector(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/../../vectors/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn f1_member_order_does_not_matter() {
    assert_eq!(json(r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#), Match::Same);
    assert_eq!(json(r#"{"a":1,"b":2}"#, r#"{"a":2,"b":1}"#), Match::Different);
    // The order of an array does.
    assert_eq!(json("[1,2]", "[2,1]"), Match::Different);
}

#[test]
fn f2_members_are_ordered_by_utf16_code_units() {
    assert_eq!(json(r#"{"a":1,"A":2}"#, r#"{"A":2,"a":1}"#), Match::Same);
    assert_eq!(json(r#"{"a":1,"A":2}"#, r#"{"a":2,"A":1}"#), Match::Different);
    // U+1F600 is D83D DE00 in UTF-16, so it comes before U+FB33 although its code point is higher.
    let canonical = canonical_json("{\"\u{fb33}\":1,\"\u{1f600}\":2}".as_bytes()).unwrap();
    assert_eq!(String::from_utf8(canonical).unwrap(), "{\"\u{1f600}\":2,\"\u{fb33}\":1}");
}

#[test]
fn f3_a_number_is_not_its_text() {
    for (a, b) in
        [("1", "\"1\""), ("null", "\"null\""), ("true", "1"), ("[]", "{}"), ("0", "null"), ("\"\"", "null")]
    {
        assert_eq!(json(format!("{{\"n\":{a}}}"), format!("{{\"n\":{b}}}")), Match::Different, "{a} {b}");
    }
    // An absent member is not a null one.
    assert_eq!(json(r#"{"n":null}"#, "{}"), Match::Different);
}

#[test]
fn f4_number_spelling_does_not_matter_and_number_value_does() {
    for (a, b) in
        [("1.0", "1"), ("1e0", "1"), ("-0", "0"), ("0.10", "1e-1"), ("1e20", "100000000000000000000")]
    {
        assert_eq!(json(a, b), Match::Same, "{a} {b}");
    }
    for (a, b) in [
        ("9007199254740993", "9007199254740992"),
        ("18446744073709551617", "18446744073709551616"),
        ("0.1000000000000000055511151231257827", "0.1"),
        ("1e400", "1e401"),
        ("1e400", "-1e400"),
        ("1e-400", "0"),
        ("1", "-1"),
        ("4.35", "4.3500000000000001"),
    ] {
        assert_eq!(json(a, b), Match::Different, "{a} {b}");
        assert_eq!(json(a, a), Match::Same, "{a}");
    }
}

#[test]
fn f5_duplicate_members_are_compared_by_their_bytes() {
    for text in [r#"{"a":1,"a":2}"#, r#"{"a":1,"\u0061":2}"#, r#"[{"b":{"a":1,"x":0,"a":1}}]"#] {
        assert_eq!(canonical_json(text.as_bytes()), Err(NotCanonical::DuplicateMember), "{text}");
        assert_eq!(json(text, text), Match::Same);
        assert_eq!(json(text, format!("{text} ")), Match::Different);
    }
    for other in [r#"{"a":2,"a":1}"#, r#"{"a":1}"#, r#"{"a":2}"#] {
        assert_eq!(json(r#"{"a":1,"a":2}"#, other), Match::Different, "{other}");
    }
}

#[test]
fn f7_the_query_counts() {
    let rules = BodyRules::default();
    let plain = post(JSON, b"{}", &rules);
    let queries = [None, Some(""), Some("dry=1"), Some("dry=0"), Some("dry=1&"), Some("dry=%31")];
    for (i, a) in queries.into_iter().enumerate() {
        for (j, b) in queries.into_iter().enumerate() {
            let (a, b) = (FingerprintInput { query: a, ..plain }, FingerprintInput { query: b, ..plain });
            assert_eq!(compare(&a, &b) == Match::Same, i == j, "{:?} {:?}", a.query, b.query);
        }
    }
}

#[test]
fn f8_another_path_route_or_method_is_another_request() {
    let rules = BodyRules::default();
    let original = post(JSON, b"{}", &rules);
    for other in [
        FingerprintInput { path: "/orders/", ..original },
        FingerprintInput { path: "/refunds", ..original },
        FingerprintInput { route: "/{any}", ..original },
        FingerprintInput { method: "PUT", ..original },
        FingerprintInput { method: "post", ..original },
    ] {
        assert_eq!(compare(&original, &other), Match::Different, "{} {}", other.method, other.path);
    }
    assert_eq!(compare(&original, &original), Match::Same);
}

#[test]
fn named_headers_count_and_no_others_are_seen() {
    let rules = BodyRules::default();
    let plain = post(JSON, b"{}", &rules);
    let with = |headers| FingerprintInput { headers, ..plain };
    let v1: &[(&str, &[u8])] = &[("Api-Version", b"1"), ("X-Mode", b"a")];
    // Case of names and order of lines with different names are the carrier's business.
    assert_eq!(compare(&with(v1), &with(&[("x-mode", b"a"), ("api-version", b"1")])), Match::Same);
    assert_eq!(compare(&with(v1), &with(&[("Api-Version", b"2"), ("X-Mode", b"a")])), Match::Different);
    assert_eq!(compare(&with(v1), &with(&[("Api-Version", b"1")])), Match::Different);
    assert_eq!(compare(&with(&[("X-Mode", b"")]), &plain), Match::Different);
    let two: &[(&str, &[u8])] = &[("X-Mode", b"a"), ("X-Mode", b"b")];
    assert_eq!(compare(&with(two), &with(&[("X-Mode", b"b"), ("X-Mode", b"a")])), Match::Different);
}

/// A form as a browser sends it.
fn form(boundary: &str, parts: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (head, content) in parts {
        write!(body, "--{boundary}\r\n{head}\r\n\r\n{content}\r\n").unwrap();
    }
    write!(body, "--{boundary}--\r\n").unwrap();
    body
}

const NAME: &str = "Content-Disposition: form-data; name=\"n\"";
const FILE: &str =
    "content-disposition: form-data; name=\"f\"; filename=\"a.png\"\r\nContent-Type: image/png";

#[test]
fn f10_multipart_boundary_is_ignored() {
    let sent = |boundary: &str, parts: &[(&str, &str)]| {
        (format!("multipart/form-data; boundary={boundary}"), form(boundary, parts))
    };
    let same = |(a_type, a): &(String, Vec<u8>), (b_type, b): &(String, Vec<u8>)| {
        typed(Some(a_type), a, Some(b_type), b)
    };
    let original = sent("----one", &[(NAME, "1"), (FILE, "\u{0}binary\r\n\r\n--two")]);
    assert_eq!(
        same(&original, &sent("----2", &[(NAME, "1"), (FILE, "\u{0}binary\r\n\r\n--two")])),
        Match::Same
    );
    // A quoted boundary is the same boundary; a part header's name has no case.
    let mut quoted = sent("b", &[(NAME, "1"), (FILE, "\u{0}binary\r\n\r\n--two")]);
    quoted.0 = "Multipart/Form-Data; boundary=\"b\"".into();
    assert_eq!(same(&original, &quoted), Match::Same);
    let lower = NAME.replace("Content-Disposition", "content-disposition");
    let part: &[(&str, &str)] = &[(NAME, "1")];
    assert_eq!(same(&sent("a", part), &sent("b", &[(&lower, "1")])), Match::Same);

    let file = NAME.replace("\"n\"", "\"n\"; filename=\"x\"");
    for other in [
        &[(NAME, "2")][..],
        &[(NAME, "1"), (NAME, "1")],
        &[(NAME, "1\r\n")],
        &[(&NAME.replace("\"n\"", "\"m\""), "1")],
        &[(&file, "1")],
        &[(&format!("{NAME}\r\nContent-Type: text/plain"), "1")],
        &[],
    ] {
        assert_eq!(same(&sent("a", part), &sent("b", other)), Match::Different, "{other:?}");
    }
    // The order of the parts counts.
    let ordered: &[(&str, &str)] = &[(NAME, "1"), (FILE, "2")];
    assert_eq!(same(&sent("a", ordered), &sent("b", &[(FILE, "2"), (NAME, "1")])), Match::Different);
}

#[test]
fn f10_irregular_multipart_is_compared_by_its_bytes() {
    let regular = String::from_utf8(form("AAA", &[(NAME, "1")])).unwrap();
    for irregular in [
        format!("preamble\r\n{regular}"),
        format!("{regular}epilogue"),
        regular.replace("\r\n", "\n"),
        regular.replace("--AAA--\r\n", ""),
        regular.replace("--AAA--", "--AAAB--"),
        regular.replace("1\r\n", "1\n"),
        regular.replace("1\r\n", "1 --AAA\r\n"),
        regular.replace("--AAA\r\n", "--AAA \r\n"),
        regular.replace(": form-data", " form-data"),
        regular.replace("form-data;", "form-data;\r\n folded"),
        regular.replace("\r\n\r\n", "\r\n"),
        format!("{regular}{regular}"),
    ] {
        let renamed = irregular.replace("AAA", "BBB");
        let types = ["AAA", "BBB"].map(|boundary| format!("multipart/form-data; boundary={boundary}"));
        let [a_type, b_type] = types.each_ref().map(|text| Some(text.as_str()));
        assert_eq!(typed(a_type, &irregular, a_type, &irregular), Match::Same);
        assert_eq!(typed(a_type, &irregular, b_type, &renamed), Match::Different, "{irregular:?}");
        assert_eq!(typed(a_type, &irregular, a_type, &regular), Match::Different, "{irregular:?}");
        // One text, read by two boundaries, is two forms.
        assert_eq!(typed(a_type, &irregular, b_type, &irregular), Match::Different, "{irregular:?}");
    }
}

#[test]
fn f15_fields_do_not_run_together() {
    let rules = BodyRules::default();
    let plain = post(None, b"", &rules);
    let requests = [
        FingerprintInput { path: "/a", query: Some("bc"), ..plain },
        FingerprintInput { path: "/ab", query: Some("c"), ..plain },
        FingerprintInput { path: "/abc", ..plain },
        FingerprintInput { path: "/a", body: b"bc", ..plain },
        FingerprintInput { path: "/a", query: Some("b"), body: b"c", ..plain },
        FingerprintInput { path: "/a", query: Some(""), body: b"bc", ..plain },
        FingerprintInput { path: "/a", content_type: Some("bc"), ..plain },
        FingerprintInput { path: "/a", content_encoding: Some("bc"), ..plain },
        FingerprintInput { path: "/a", headers: &[("b", b"c")], ..plain },
        FingerprintInput { path: "/a", headers: &[("bc", b"")], ..plain },
        FingerprintInput { path: "/a", headers: &[("", b"bc")], ..plain },
        FingerprintInput { path: "/a", headers: &[("b", b""), ("c", b"")], ..plain },
    ];
    for (i, a) in requests.iter().enumerate() {
        for (j, b) in requests.iter().enumerate() {
            assert_eq!(compare(a, b) == Match::Same, i == j, "{i} {j}");
        }
    }
}

fn gzip(body: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn zlib(body: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn f17_whitespace_charset_and_encoding_do_not_matter() {
    let rules = BodyRules::default();
    let text = br#"{"amount":500,"note":"caf\u00e9"}"#;
    let original = post(JSON, text, &rules);
    let spaced = "\r\n{ \"note\" : \"caf\u{e9}\" ,\t\"amount\" : 500 }\n".as_bytes();
    let (packed, repacked, deflated) = (gzip(text, 9), gzip(spaced, 1), zlib(text));
    let with = |content_type, content_encoding, body| FingerprintInput {
        content_type: Some(content_type),
        content_encoding,
        body,
        ..original
    };
    for same in [
        with("application/json", None, spaced),
        with("application/json; charset=utf-8", None, text),
        with("Application/JSON;charset=\"UTF-8\" ", None, text),
        with("application/json", Some("identity"), text),
        with("application/json", Some("gzip"), &packed),
        with("application/json", Some("GZIP"), &repacked),
        with("application/json", Some("x-gzip"), &packed),
        with("application/json", Some("deflate"), &deflated),
    ] {
        assert_eq!(compare(&original, &same), Match::Same, "{:?}", same.content_type);
    }
    for different in [
        with("application/json; charset=latin1", None, text),
        with("application/json; charset=utf-8; charset=utf-8", None, text),
        with("application/merge-patch+json", None, text),
        with("application/json; profile=x", None, text),
        with("text/plain", None, text),
        with("application/json", Some("br"), text),
        with("application/json", Some("gzip"), text),
        with("application/json", None, &packed),
        with("application/json", Some("gzip, gzip"), &packed),
    ] {
        let (content_type, encoding) = (different.content_type, different.content_encoding);
        assert_eq!(compare(&original, &different), Match::Different, "{content_type:?} {encoding:?}");
        assert_eq!(compare(&different, &different), Match::Same);
    }
}

#[test]
fn f17_other_json_types_are_json_too() {
    for content_type in ["application/vnd.api+json", "application/merge-patch+json; charset=utf-8"] {
        let content_type = Some(content_type);
        assert_eq!(typed(content_type, r#"{"a":1,"b":2}"#, content_type, r#"{"b":2, "a":1}"#), Match::Same);
    }
    for content_type in [None, Some("text/plain"), Some("application/json-seq"), Some("json")] {
        assert_eq!(
            typed(content_type, r#"{"a":1,"b":2}"#, content_type, r#"{"b":2, "a":1}"#),
            Match::Different
        );
    }
}

#[test]
fn f17_a_body_that_grows_beyond_the_bound_is_compared_packed() {
    let rules = BodyRules { decoded_max: 1000, ..BodyRules::default() };
    let packed = |body: &[u8], level| gzip(body, level);
    let request = |body| FingerprintInput { content_encoding: Some("gzip"), ..post(None, body, &rules) };
    let (fits, over) = (vec![b'x'; 1000], vec![b'x'; 1001]);
    let [a, b] = [0, 9].map(|level| packed(&fits, level));
    assert_ne!(a, b);
    assert_eq!(compare(&request(&a), &request(&b)), Match::Same);
    let [a, b] = [0, 9].map(|level| packed(&over, level));
    assert_eq!(compare(&request(&a), &request(&b)), Match::Different);
    assert_eq!(compare(&request(&a), &request(&a)), Match::Same);
    // 100 MB of zeros in 100 kB are read for a thousand bytes only.
    let bomb = gzip(&vec![0; 100 << 20], 9);
    assert_eq!(compare(&request(&bomb), &request(&bomb)), Match::Same);
}

#[test]
fn f17_a_damaged_encoding_is_compared_by_its_bytes() {
    let rules = BodyRules::default();
    let text = br#"{"a":1}"#;
    let plain = post(JSON, text, &rules);
    for (encoding, whole) in [("gzip", gzip(text, 9)), ("deflate", zlib(text))] {
        let request =
            |body| FingerprintInput { content_encoding: Some(encoding), ..post(JSON, body, &rules) };
        assert_eq!(compare(&plain, &request(&whole)), Match::Same, "{encoding}");
        let trailing = [&whole[..], b"x"].concat();
        let twice = [&whole[..], &whole].concat();
        for damaged in [&whole[..whole.len() - 1], &whole[1..], &trailing, &twice, b""] {
            assert_eq!(compare(&plain, &request(damaged)), Match::Different, "{encoding}");
            assert_eq!(compare(&request(&whole), &request(damaged)), Match::Different, "{encoding}");
        }
    }
}

#[test]
fn f18_a_stored_fingerprint_is_verified_with_the_key_of_its_time() {
    let rules = BodyRules::default();
    let (request, other) = (post(JSON, b"{}", &rules), post(JSON, b"[]", &rules));
    let before = compute(&request, &key(1));
    let rotated = FingerprintKeys::new(key(2)).with_older(key(1)).unwrap();
    assert_eq!(verify(&before, &request, &rotated), Match::Same);
    assert_eq!(verify(&before, &other, &rotated), Match::Different);
    let after = compute(&request, rotated.current());
    assert_eq!(after.parts().1, 2);
    assert_ne!(before, after);
    // Forgotten keys and unknown algorithms are neither "same" nor "different".
    assert_eq!(verify(&before, &request, &FingerprintKeys::new(key(2))), Match::Unknown);
    let (algorithm, id, digest) = before.parts();
    for unknown in [0, algorithm + 1, 255] {
        let stored = Fingerprint::from_parts(unknown, id, digest);
        assert_eq!(verify(&stored, &request, &rotated), Match::Unknown);
    }
    // The right digest under another key's number is not the same.
    assert_eq!(verify(&Fingerprint::from_parts(algorithm, 2, digest), &request, &rotated), Match::Different);
}

#[test]
fn f18_algorithm_1_never_changes() {
    let rules = rules(&["/ts", "/a~1b"]);
    let request = FingerprintInput {
        path: "/orders/7",
        route: "/orders/{id}",
        query: Some("dry=1"),
        headers: &[("Api-Version", b"2026-11")],
        ..post(Some("application/json; charset=utf-8"), br#"{"b":1.50,"ts":3,"a":"\u00e9"}"#, &rules)
    };
    let digest = compute(&request, &key(7)).parts().2;
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex, "9be7d912804c46d766d84bf79ad7f8aaab333025d87ff8ad48710e79517377c9",
        "records in stores were made by this algorithm: a change is a new one"
    );
}

#[test]
fn f18_keys_are_numbered_once_and_long_enough() {
    assert_eq!(FingerprintKeys::new(key(1)).with_older(key(1)).unwrap_err(), KeyIdTaken(1));
    assert_eq!(DeploymentKey::new(1, &[1; 31]).unwrap_err(), SecretTooShort);
}

#[test]
fn f19_excluded_places_are_not_compared() {
    let rules = rules(&["/ts", "/meta/trace~1id", "/items/0/seen", "/absent/deep"]);
    let same =
        |a: &str, b: &str| compare(&post(JSON, a.as_bytes(), &rules), &post(JSON, b.as_bytes(), &rules));
    let original =
        r#"{"amount":1,"ts":100,"meta":{"trace/id":"x","user":7},"items":[{"seen":1,"n":1},{"seen":1}]}"#;
    for (from, to) in [
        ("\"ts\":100,", "\"ts\":{\"at\":[1]},"),
        ("\"ts\":100,", ""),
        ("\"trace/id\":\"x\"", "\"trace/id\":null"),
        ("{\"seen\":1,\"n\"", "{\"seen\":2,\"n\""),
    ] {
        assert!(original.contains(from));
        assert_eq!(same(original, &original.replacen(from, to, 1)), Match::Same, "{to}");
    }
    for (from, to) in [
        ("\"amount\":1", "\"amount\":2"),
        ("\"user\":7", "\"user\":8"),
        ("{\"seen\":1}", "{\"seen\":2}"),
        ("\"ts\":100,", "\"ts2\":100,"),
        ("\"meta\":{", "\"meta\":{\"ts\":1,"),
    ] {
        assert!(original.contains(from));
        assert_eq!(same(original, &original.replacen(from, to, 1)), Match::Different, "{to}");
    }
    // A name in an object that looks like an index, and an index, are both what the pointer says.
    assert_eq!(same(r#"{"items":{"0":{"seen":1}}}"#, r#"{"items":{"0":{"seen":2}}}"#), Match::Same);
    // What is excluded must still be readable in one way.
    assert_eq!(same(r#"{"ts":1,"ts":2}"#, r#"{"ts":1,"ts":3}"#), Match::Different);
    assert_eq!(same(r#"{"ts":{"a":1,"a":2}}"#, r#"{"ts":{"a":1,"a":3}}"#), Match::Different);
}

#[test]
fn f19_the_exclusions_are_part_of_what_is_compared() {
    let (all, none) = (rules(&[]), rules(&["/ts"]));
    let (two, swapped) = (rules(&["/ts", "/x"]), rules(&["/x", "/ts", "/x"]));
    let body = br#"{"a":1}"#;
    assert_eq!(compare(&post(JSON, body, &all), &post(JSON, body, &none)), Match::Different);
    assert_eq!(compare(&post(JSON, body, &none), &post(JSON, body, &two)), Match::Different);
    assert_eq!(compare(&post(JSON, body, &two), &post(JSON, body, &swapped)), Match::Same);
}

#[test]
fn f21_a_body_is_ignored_only_by_rule() {
    let compared = BodyRules::default();
    assert!(!compared.ignore_body);
    let ignored = BodyRules { ignore_body: true, ..BodyRules::default() };
    let (a, b) = (post(JSON, b"{}", &ignored), post(Some("text/plain"), b"other", &ignored));
    assert_eq!(compare(&a, &b), Match::Same);
    assert_eq!(compare(&a, &FingerprintInput { path: "/refunds", ..a }), Match::Different);
    assert_eq!(compare(&a, &post(JSON, b"{}", &compared)), Match::Different);
    // Nor is an ignored body an empty one.
    assert_eq!(compare(&post(None, b"", &ignored), &post(None, b"", &compared)), Match::Different);
}

#[test]
fn raw_bodies_are_compared_by_type_and_bytes() {
    let octets = Some("application/octet-stream");
    assert_eq!(typed(octets, b"\x00\xff", octets, b"\x00\xff"), Match::Same);
    assert_eq!(typed(octets, b"\x00\xff", octets, b"\x00\xfe"), Match::Different);
    assert_eq!(typed(octets, b"a", None, b"a"), Match::Different);
    assert_eq!(typed(Some("text/csv"), b"a", Some("text/plain"), b"a"), Match::Different);
    assert_eq!(typed(Some("Text/CSV ; A=1"), b"a", Some("text/csv;a=1"), b"a"), Match::Same);
    let rules = BodyRules::default();
    let plain = post(octets, b"a", &rules);
    for encoding in ["br", "gzip", "gzip, gzip"] {
        let packed = FingerprintInput { content_encoding: Some(encoding), ..plain };
        assert_eq!(compare(&plain, &packed), Match::Different, "{encoding}");
        let zstd = FingerprintInput { content_encoding: Some("zstd"), ..plain };
        assert_eq!(compare(&packed, &zstd), Match::Different, "{encoding}");
    }
    assert_eq!(typed(Some("no type"), b"a", Some("no-type"), b"a"), Match::Different);
    assert_eq!(typed(Some("text/csv; a=1 b=2"), b"a", Some("text/csv; a=1; b=2"), b"a"), Match::Different);
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(canonical_json(nested(MAX_JSON_DEPTH).as_bytes()).is_ok());
    assert_eq!(canonical_json(nested(MAX_JSON_DEPTH + 1).as_bytes()), Err(NotCanonical::TooDeep));
    assert_eq!(canonical_json(nested(1_000_000).as_bytes()), Err(NotCanonical::TooDeep));
    let deep = nested(1000);
    assert_eq!(json(&deep, &deep), Match::Same);
    assert_eq!(json(&deep, nested(1001)), Match::Different);
}

#[test]
fn debug_shows_neither_digest_nor_secret() {
    let rules = BodyRules::default();
    let keys = FingerprintKeys::new(DeploymentKey::new(3, &[b'Z'; 32]).unwrap());
    let fingerprint = compute(&post(JSON, b"{}", &rules), keys.current());
    assert_eq!(
        format!("{fingerprint:?} {keys:?}"),
        "Fingerprint(v1, key 3) FingerprintKeys { current: DeploymentKey(3), older: [] }"
    );
}

#[test]
fn a_fingerprint_reads_back_as_it_was_stored() {
    let rules = BodyRules::default();
    let fingerprint = compute(&post(JSON, b"{}", &rules), &key(0x0102_0304));
    let bytes = fingerprint.to_bytes();
    assert_eq!(bytes[..5], [1, 1, 2, 3, 4]);
    assert_eq!(Fingerprint::from_bytes(&bytes), Some(fingerprint));
    assert_eq!(Fingerprint::from_bytes(&bytes[1..]), None);
    assert_eq!(Fingerprint::from_bytes(&[]), None);
}

/// The public RFC 8785 files, byte for byte. One number in them shows our exception: no double is exactly 333333333.33333329
/// and the form that RFC 8785 prints for the nearest one is another decimal value, so we keep the text that was sent.
#[test]
fn jcs_files_come_out_byte_exact() {
    const SENT: &str = "333333333.33333329";
    const RFC_8785: &str = "333333333.3333333";
    for name in ["arrays", "french", "structures", "unicode", "values", "weird"] {
        let input = vector(&format!("jcs/input/{name}.json"));
        let output = String::from_utf8(vector(&format!("jcs/output/{name}.json"))).unwrap();
        let mut canonical = String::from_utf8(canonical_json(&input).unwrap()).unwrap();
        if name == "values" {
            assert_eq!(canonical.matches(SENT).count(), 1);
            canonical = canonical.replace(SENT, RFC_8785);
        }
        assert_eq!(canonical, output, "{name}");
        let hex: String = String::from_utf8(vector(&format!("jcs/outhex/{name}.txt"))).unwrap();
        let hex = hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap());
        assert!(canonical.bytes().eq(hex), "{name}");
    }
}

/// Another text of the same decimal value: all digits before the point, and a zero behind them.
fn respell(number: &str) -> String {
    let (sign, number) = number.strip_prefix('-').map_or(("", number), |rest| ("-", rest));
    let (mantissa, exponent) = number.split_once('e').unwrap_or((number, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return "-0.0e5".to_owned();
    }
    let exponent = exponent.parse::<i64>().unwrap() - fraction.len() as i64 - 1;
    format!("{sign}{digits}0E{exponent:+}")
}

#[test]
fn es6_numbers_are_formatted_as_published() {
    let mut lines = String::new();
    GzDecoder::new(&vector("jcs/es6numbers-10k.txt.gz")[..]).read_to_string(&mut lines).unwrap();
    let mut seen = 0;
    for line in lines.lines() {
        let (bits, expected) = line.split_once(',').unwrap();
        assert_eq!(f64::from_bits(u64::from_str_radix(bits, 16).unwrap()), expected.parse::<f64>().unwrap());
        for spelling in [expected.to_owned(), respell(expected)] {
            let canonical = canonical_json(spelling.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(canonical).unwrap(), expected, "{bits} {spelling}");
        }
        seen += 1;
    }
    assert_eq!(seen, 10_000);
}

/// The hostile bodies: what is JSON is read, what is not is compared by its bytes, and no two meanings agree.
#[test]
fn hostile_json_never_panics_and_never_merges_meanings() {
    let cases: serde_json::Value = serde_json::from_slice(&vector("json/jsontestsuite-subset.json")).unwrap();
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 144);
    let (rules, key) = (BodyRules::default(), key(1));
    let mut by_digest = BTreeMap::<[u8; 32], BTreeSet<Vec<u8>>>::new();
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let body = base64::engine::general_purpose::STANDARD.decode(case["b64"].as_str().unwrap()).unwrap();
        let canonical = canonical_json(&body);
        match case["rfc8259"].as_str().unwrap() {
            "reject" => assert_eq!(canonical, Err(NotCanonical::NotJson), "{name}"),
            "accept" if name.contains("duplicated_key") => {
                assert_eq!(canonical, Err(NotCanonical::DuplicateMember), "{name}");
            }
            "accept" => assert!(canonical.is_ok(), "{name}: {canonical:?}"),
            // Numbers beyond a double are read, by their text. Bad UTF-8, byte order marks, halves of surrogate
            // pairs and 500 levels are not.
            "implementation-defined" => assert_eq!(canonical.is_ok(), name.contains("_number_"), "{name}"),
            other => unreachable!("{other}"),
        }
        let digest = compute(&post(JSON, &body, &rules), &key).parts().2;
        by_digest.entry(digest).or_default().insert(body);
    }
    let mut merged: Vec<Vec<&str>> = Vec::new();
    for bodies in by_digest.values().filter(|bodies| bodies.len() > 1) {
        merged.push(bodies.iter().map(|body| str::from_utf8(body).unwrap()).collect());
    }
    merged.sort();
    // All others differ from each other. These are spellings of one value each.
    let expected = [
        vec!["[\"\\uDBFF\\uDFFF\"]", "[\"\u{10ffff}\"]"],
        vec!["[\"\\uFFFF\"]", "[\"\u{ffff}\"]"],
        vec!["[-0]", "[0e+1]", "[0e1]"],
        vec!["[1E+2]", "[1e+2]"],
        vec!["[1E-2]", "[1e-2]"],
    ];
    assert_eq!(merged, expected);
}
