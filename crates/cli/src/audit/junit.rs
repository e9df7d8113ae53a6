//! The report as JUnit XML: one test for each operation that may change state, and one for the document; errors are failures.

use std::fmt::Write as _;

use retrysafe_audit::{Finding, Severity};

use super::view::{View, escaped};

pub(super) fn junit(view: &View<'_>) -> String {
    let mut cases = String::new();
    let (mut tests, mut failures) = (0, 0);
    let mut case = |name: &str, findings: Vec<&Finding>| {
        tests += 1;
        let _ =
            write!(cases, "  <testcase classname=\"{}\" name=\"{}\">", escaped(view.document), escaped(name));
        let (errors, rest): (Vec<_>, Vec<_>) =
            findings.into_iter().partition(|one| one.severity == Severity::Error);
        let told = |one: &Finding| {
            format!("{} {}: {} (do: {})\n", view.at(&one.place), one.rule.id, one.message, one.rule.help)
        };
        if let Some(first) = errors.first() {
            failures += 1;
            let text: String = errors.iter().map(|one| told(one)).collect();
            let _ = write!(
                cases,
                "\n    <failure type=\"{}\" message=\"{}\">{}</failure>\n  ",
                first.rule.id,
                escaped(&first.message),
                escaped(&text)
            );
        }
        if !rest.is_empty() {
            let text: String = rest.iter().map(|one| told(one)).collect();
            let _ = write!(cases, "\n    <system-out>{}</system-out>\n  ", escaped(&text));
        }
        cases.push_str("</testcase>\n");
    };
    let mut of: Vec<Vec<&Finding>> = vec![Vec::new(); view.report.inventory.operations.len()];
    for finding in &view.report.findings {
        finding.operations.iter().for_each(|number| of[*number].push(finding));
    }
    case("the document", view.report.findings.iter().filter(|one| one.operations.is_empty()).collect());
    for ((number, operation), findings) in view.report.inventory.operations.iter().enumerate().zip(of) {
        // A read is a test only where something is wrong with it.
        if operation.may_change() || !findings.is_empty() {
            case(&view.operation(number), findings);
        }
    }
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"retrysafe audit\" tests=\"{tests}\" failures=\"{failures}\">\n{cases}</testsuite>\n</testsuites>\n"
    )
}
