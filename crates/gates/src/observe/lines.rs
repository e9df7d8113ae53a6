//! Counts out of texts: JSON, metrics, logs, what a program prints.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json_path::JsonPath;

/// How long a program may take to print its count.
const COMMAND_LIMIT: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(2);
/// A count has few digits; a program that prints more prints something else.
const PRINTED_MAX: u64 = 64 * 1024;

/// How many nodes of a JSON document a path finds.
pub(super) fn nodes(body: &[u8], jsonpath: &str) -> Result<u64, String> {
    let path =
        JsonPath::parse(jsonpath).map_err(|error| format!("the JSONPath {jsonpath} is none: {error}"))?;
    let document: serde_json::Value =
        serde_json::from_slice(body).map_err(|error| format!("the list is not JSON: {error}"))?;
    Ok(path.query(&document).len() as u64)
}

/// The sum of the lines of a Prometheus page that are this series: `name`, or `name{label="value"`. Many libraries show a
/// counter only after its first increment, so one that is not there is zero.
pub(super) fn metric(page: &[u8], series: &str) -> u64 {
    let page = String::from_utf8_lossy(page);
    let mut sum = 0.0_f64;
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some(rest) = line.strip_prefix(series) else { continue };
        // A longer name begins alike.
        let whole_name = series.contains('{') || rest.starts_with(['{', ' ', '\t']);
        let value = rest.rsplit('}').next().unwrap_or(rest).split_whitespace().next();
        if let (true, Some(value)) = (whole_name, value.and_then(|value| value.parse::<f64>().ok())) {
            sum += value;
        }
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a counter of effects; a cast saturates"
    )]
    let whole = sum.round() as u64;
    whole
}

/// How many lines of a file have this text. A file that is not there yet has none.
pub(super) fn in_file(path: &Path, contains: &str) -> Result<u64, String> {
    let unreadable = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        opened => opened.map_err(unreadable)?,
    };
    let (mut reader, mut line, mut count) = (BufReader::new(file), Vec::new(), 0);
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(unreadable)? == 0 {
            return Ok(count);
        }
        count += u64::from(String::from_utf8_lossy(&line).contains(contains));
    }
}

/// The whole number that a program prints last.
pub(super) fn printed(argv: &[String]) -> Result<u64, String> {
    let Some((program, arguments)) = argv.split_first() else { return Err("there is no command".to_owned()) };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| {
            format!("{program} cannot be started: {error}; install it or name another command")
        })?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < COMMAND_LIMIT => std::thread::sleep(LOOK),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{program} did not end within {} s", COMMAND_LIMIT.as_secs()));
            }
        }
    };
    let mut text = String::new();
    if let Some(out) = child.stdout.take() {
        out.take(PRINTED_MAX).read_to_string(&mut text).map_err(|error| format!("{program}: {error}"))?;
    }
    if !status.success() {
        return Err(format!("{program} failed ({status}); run it by hand to see why"));
    }
    let last = text.split_whitespace().next_back().unwrap_or_default();
    last.parse().map_err(|_| format!("{program} printed no whole number at the end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_counts_nodes() {
        let body = br#"{"orders": [{"note": "n1"}, {"note": "n2"}, {"note": "n1"}]}"#;
        assert_eq!(nodes(body, "$.orders[?@.note == 'n1']"), Ok(2));
        assert_eq!(nodes(body, "$.orders[?@.note == 'n3']"), Ok(0));
        assert!(nodes(b"<html>", "$").is_err());
    }

    #[test]
    fn a_series_is_added_up_over_its_labels_and_no_longer_name_is_taken_for_it() {
        let page = b"# HELP made x\nmade{a=\"1\"} 2\nmade{a=\"2\"} 3 1700000000\nmade_total 100\nmade 1\n";
        assert_eq!(metric(page, "made"), 6);
        assert_eq!(metric(page, "made{a=\"2\""), 3);
        assert_eq!(metric(page, "other"), 0, "not there before its first increment");
    }

    #[test]
    fn lines_and_programs() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("app.log");
        assert_eq!(in_file(&file, "n1"), Ok(0), "not written yet");
        std::fs::write(&file, "order n1\norder n2\norder n1").expect("written");
        assert_eq!(in_file(&file, "n1"), Ok(2));
        let argv = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(printed(&argv(&["echo", "count 3"])), Ok(3));
        assert!(printed(&argv(&["echo", "three"])).is_err());
        assert!(printed(&argv(&["false"])).is_err());
        assert!(printed(&argv(&["no-such-program-here"])).expect_err("missing").contains("install"));
    }
}
