//! The report as JUnit XML, for what shows test results: a part is a test, INCONCLUSIVE an error, not run skipped.

use super::{Report, Verdict};

/// One document for several reports.
#[must_use]
pub fn junit(reports: &[Report]) -> String {
    let mut text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n".to_owned();
    for report in reports {
        let count = |verdict| report.parts.iter().filter(|part| part.verdict == verdict).count();
        text += &format!(
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.3}\">\n",
            escaped(&format!("retrysafe gate {}: {}", report.gate, report.target)),
            report.parts.len(),
            count(Some(Verdict::Fail)),
            count(Some(Verdict::Inconclusive)),
            count(None),
            report.seconds
        );
        for part in &report.parts {
            let name = escaped(&format!("{} {}", part.id, part.title));
            let said = escaped(&part.said.join("; "));
            let change = escaped(&part.change.join("; "));
            let curl = part
                .counterexample
                .as_ref()
                .map(|example| escaped(&example.curl.join("\n")))
                .unwrap_or_default();
            text += &format!(
                "    <testcase classname=\"retrysafe.gate.{}\" name=\"{name}\">",
                escaped(&report.gate)
            );
            text += &match part.verdict {
                Some(Verdict::Pass) => String::new(),
                Some(Verdict::Fail) => format!("<failure message=\"{said}\">{curl}</failure>"),
                Some(Verdict::Inconclusive) => format!("<error message=\"{said}\">{change}</error>"),
                None => format!("<skipped message=\"{said}\"/>"),
            };
            text += "</testcase>\n";
        }
        text += "  </testsuite>\n";
    }
    text + "</testsuites>\n"
}

/// For text and attributes alike.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            // XML 1.0 has no other control characters.
            c if c.is_control() && !matches!(c, '\n' | '\t') => {}
            c => out.push(c),
        }
    }
    out
}
