//! The words of a contract: durations, sizes, statuses, names. Each reader takes the text and says what is wrong.
//!
//! An `Err` is a pair of *what is wrong* and *what to write instead*.

use std::time::Duration;

use ipnet::IpNet;
use jiff::{Span, SpanRelativeTo};

use crate::pointer::{JsonPointer, PointerFault};

/// What is wrong with a value, and what to write instead.
pub type Wrong = (String, String);

/// The longest time a contract can state: a century is a typing error, not a window.
pub(super) const LONGEST: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

fn wrong<T>(message: impl Into<String>, help: impl Into<String>) -> Result<T, Wrong> {
    Err((message.into(), help.into()))
}

/// `24h`, `30s`, `250ms`, `1h 30m`, `3d`. A day is 24 hours. Zero is a time too; where it makes no sense the field says so.
pub(super) fn duration(text: &str) -> Result<Duration, Wrong> {
    let help = "write a number and a unit: \"250ms\", \"30s\", \"15m\", \"24h\", \"3d\"";
    let Ok(span) = text.trim().parse::<Span>() else {
        return wrong(format!("{text:?} is not a time"), help);
    };
    let Ok(signed) = span.to_duration(SpanRelativeTo::days_are_24_hours()) else {
        return wrong(
            format!("{text:?} has no fixed length"),
            "use d, h, m, s or ms: a month is not always as long",
        );
    };
    match Duration::try_from(signed) {
        Ok(time) if time > LONGEST => {
            wrong(format!("{text:?} is too long"), format!("write at most \"{}\"", show(LONGEST)))
        }
        Ok(time) => Ok(time),
        Err(_) => wrong(format!("{text:?} is negative"), help),
    }
}

/// A duration as a contract spells it, for options of commands that mean the same: [`show`] read backwards.
///
/// # Errors
/// What is wrong with it, and what to write instead.
pub fn read_duration(text: &str) -> Result<Duration, String> {
    duration(text).map_err(|(message, help)| format!("{message}; {help}"))
}

/// A duration as a contract writes it: the largest unit that keeps it whole.
pub fn show(time: Duration) -> String {
    const UNITS: [(u128, &str); 5] =
        [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let ms = time.as_millis();
    // Whole days read worse than hours while they are few: 24h, 72h, but 30d.
    let unit = UNITS.iter().find(|(size, name)| ms.is_multiple_of(*size) && (*name != "d" || ms / size > 3));
    unit.map_or_else(
        || format!("{ms}ms"),
        |(size, name)| if ms == 0 { "0s".to_owned() } else { format!("{}{name}", ms / size) },
    )
}

/// `1MiB`, `64 KiB`, `2MB`, `512B`.
pub(super) fn size(text: &str) -> Result<usize, Wrong> {
    let help = "write a number and a unit: \"512B\", \"64KiB\", \"1MiB\"";
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let factor: usize = match unit.trim().to_ascii_lowercase().as_str() {
        "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return wrong(format!("{text:?} is not a size"), help),
    };
    match digits.parse::<usize>().ok().and_then(|n| n.checked_mul(factor)) {
        Some(bytes) => Ok(bytes),
        None => wrong(format!("{text:?} is not a size"), help),
    }
}

/// A status: 100 to 599 as a number.
pub(super) fn status(number: i64) -> Result<u16, Wrong> {
    match u16::try_from(number) {
        Ok(status) if (200..=599).contains(&status) => Ok(status),
        _ => wrong(format!("{number} is not a final HTTP status"), "write a status from 200 to 599"),
    }
}

/// `503`, `502-504` or `5xx`, inclusive.
pub(super) fn status_range(text: &str) -> Result<(u16, u16), Wrong> {
    let help = "write one status (\"503\"), a range (\"502-504\") or a class (\"5xx\")";
    let one = |text: &str| text.parse::<u16>().ok().filter(|s| (200..=599).contains(s));
    let range = if let Some(class) = text.strip_suffix("xx") {
        class.parse::<u16>().ok().filter(|c| (2..=5).contains(c)).map(|c| (c * 100, c * 100 + 99))
    } else if let Some((from, to)) = text.split_once('-') {
        one(from).zip(one(to)).filter(|(from, to)| from <= to)
    } else {
        one(text).map(|s| (s, s))
    };
    range.ok_or_else(|| (format!("{text:?} is not a status"), help.to_owned()))
}

/// Methods whose requests change nothing (RFC 9110): they are never guarded.
pub(super) const SAFE_METHODS: [&str; 4] = ["GET", "HEAD", "OPTIONS", "TRACE"];

/// A method, in upper case as HTTP has it.
pub(super) fn method(text: &str) -> Result<String, Wrong> {
    let upper = text.to_ascii_uppercase();
    if text.is_empty() || !text.bytes().all(is_token) {
        return wrong(format!("{text:?} is not an HTTP method"), "write POST, PUT, PATCH or DELETE");
    }
    if upper != text {
        return wrong(
            format!("{text:?}: HTTP methods are compared with their case"),
            format!("write {upper:?}"),
        );
    }
    if SAFE_METHODS.contains(&text) {
        return wrong(
            format!("{text} changes nothing, so it needs no key"),
            "list only operations that change state; safe methods pass unguarded",
        );
    }
    Ok(upper)
}

/// A path template: `/orders/{id}`, `/files/{*rest}`.
pub(super) fn path_template(text: &str) -> Result<String, Wrong> {
    let named = |segment: &str| match segment.strip_prefix(':') {
        Some(name) => format!("{{{name}}}"),
        None if segment.starts_with('<') && segment.ends_with('>') => {
            format!("{{{}}}", segment.trim_matches(['<', '>']))
        }
        None => segment.to_owned(),
    };
    let corrected = text.trim_matches('/').split('/').map(named).collect::<Vec<_>>().join("/");
    if !text.starts_with('/') {
        return wrong(
            format!("{text:?} is not a path: it begins with no slash"),
            format!("write \"/{corrected}\""),
        );
    }
    if corrected != text.trim_matches('/') {
        return wrong(
            format!("{text:?} has a parameter of another notation"),
            format!("write \"/{corrected}\": parameters stand in braces"),
        );
    }
    if text.contains(['?', '#']) {
        return wrong(
            format!("{text:?} has a query"),
            "leave out what follows the path: the query is part of the fingerprint anyway",
        );
    }
    if text.len() > 1 && (text.ends_with('/') || text.contains("//")) {
        return wrong(
            format!("{text:?} has an empty segment"),
            "leave it out: lookups ignore a trailing slash and doubled slashes",
        );
    }
    if !text.bytes().all(|b| matches!(b, 0x21..=0x7e)) || text.contains('%') {
        return wrong(
            format!("{text:?} has characters that are not written plainly in a path"),
            "write visible ASCII without %: lookups decode what clients encode without need",
        );
    }
    match matchit::Router::new().insert(text, ()) {
        Ok(()) => Ok(text.to_owned()),
        Err(error) => wrong(
            format!("{text:?} is not a path template: {error}"),
            "write \"/orders/{id}\": a parameter is a name in braces, {*name} for the rest of the path",
        ),
    }
}

/// A JSON pointer (RFC 6901) to a member: `/payment/id`. The whole document is none.
pub(super) fn json_pointer(text: &str) -> Result<JsonPointer, Wrong> {
    if !text.starts_with('/') {
        let guess = text.trim_start_matches("$.").replace('.', "/");
        return wrong(format!("{text:?} is not a JSON pointer"), format!("write \"/{guess}\""));
    }
    text.parse().map_err(|fault: PointerFault| {
        let help = "write ~0 for ~ and ~1 for / inside a name".to_owned();
        (format!("{text:?} is not a JSON pointer: {fault}"), help)
    })
}

/// As [`json_pointer`], kept as its text.
pub(super) fn pointer(text: &str) -> Result<String, Wrong> {
    json_pointer(text).map(|_| text.to_owned())
}

/// A header name, lower-cased: names are compared without case.
pub fn header(text: &str) -> Result<String, Wrong> {
    if text.is_empty() || !text.bytes().all(is_token) {
        return wrong(
            format!("{text:?} is not a header name"),
            "write a name of letters, digits and hyphens: \"Idempotency-Key\"",
        );
    }
    Ok(text.to_ascii_lowercase())
}

/// A header value: visible ASCII and spaces.
pub fn header_value(text: &str) -> Result<String, Wrong> {
    if !text.bytes().all(|b| matches!(b, 0x20..=0x7e)) {
        return wrong("a header value has characters that headers cannot carry", "write plain visible ASCII");
    }
    Ok(text.to_owned())
}

/// A network: `10.0.0.0/8`, or one address.
pub(super) fn network(text: &str) -> Result<IpNet, Wrong> {
    if let Ok(net) = text.parse::<IpNet>() {
        return Ok(net);
    }
    // One address is the network of its whole length.
    let whole = if text.contains(':') { 128 } else { 32 };
    if let Ok(net) = format!("{text}/{whole}").parse::<IpNet>() {
        return Ok(net);
    }
    wrong(
        format!("{text:?} is not a network"),
        "write an address or a network: \"10.0.0.7\", \"10.0.0.0/8\", \"::1\"",
    )
}

/// A path on this hop or the upstream: begins with a slash.
pub fn local_path(text: &str) -> Result<String, Wrong> {
    if !text.starts_with('/') || !text.bytes().all(|b| matches!(b, 0x21..=0x7e)) {
        return wrong(
            format!("{text:?} is not a path"),
            "write the path alone, from its slash: it is asked of the upstream",
        );
    }
    Ok(text.to_owned())
}

/// Text that says something.
pub fn said(text: &str) -> Result<String, Wrong> {
    match text.trim() {
        "" => wrong("the text is empty", "write what a person should read here"),
        text => Ok(text.to_owned()),
    }
}

fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_a_fixed_length() {
        let h = 3_600;
        for (text, seconds) in [("24h", 24 * h), ("3d", 72 * h), ("1h 30m", h + 1800), ("90s", 90), ("0s", 0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for text in ["", "24", "h", "-1h", "1 month", "1y", "999999d", "soon"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn shown_durations_read_as_they_are_written() {
        for text in ["24h", "72h", "30d", "90s", "50ms", "30m", "0s"] {
            assert_eq!(duration(text).map(show), Ok(text.to_owned()));
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("64 KiB"), Ok(64 << 10));
        assert_eq!(size("2MB"), Ok(2_000_000));
        for text in ["", "1", "MiB", "1 TiB", "-1B", "99999999999GiB", "1.5MiB"] {
            assert!(size(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn statuses_are_single_ranges_or_classes() {
        assert_eq!(status_range("503"), Ok((503, 503)));
        assert_eq!(status_range("502-504"), Ok((502, 504)));
        assert_eq!(status_range("5xx"), Ok((500, 599)));
        for text in ["", "99", "600", "504-502", "1xx", "6xx", "5x", "abc"] {
            assert!(status_range(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn templates_say_how_parameters_are_written() {
        for text in ["/", "/orders/{id}/lines/{*rest}", "/v1/orders/{id}:cancel"] {
            assert!(path_template(text).is_ok(), "{text:?}");
        }
        for text in
            ["orders", "/orders/", "/a//b", "/orders?x=1", "/orders/:id", "/orders/<id>", "/a{", "/%6f"]
        {
            assert!(path_template(text).is_err(), "{text:?}");
        }
        assert!(path_template("/orders/:id").unwrap_err().1.contains("{id}"));
    }

    #[test]
    fn pointers_names_and_networks() {
        assert!(pointer("/a/b~1c").is_ok() && pointer("a.b").is_err() && pointer("/a~2").is_err());
        assert_eq!(header("Idempotency-Key"), Ok("idempotency-key".to_owned()));
        assert!(header("Bad Name").is_err() && header("").is_err());
        for (text, net) in [("10.0.0.0/8", "10.0.0.0/8"), ("10.0.0.7", "10.0.0.7/32"), ("::1", "::1/128")] {
            assert_eq!(network(text).map(|net| net.to_string()), Ok(net.to_owned()));
        }
        assert!(network("localhost").is_err() && network("10.0.0.0/33").is_err() && network("").is_err());
        assert!(method("POST").is_ok() && method("post").is_err() && method("GET").is_err());
    }
}
