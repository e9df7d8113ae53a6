//! The pages of `docs/errors` say what the table of codes says.

use std::{fs, path::Path};

use retrysafe_core::codes::Code;

fn page(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    fs::read_to_string(folder.join(name)).unwrap_or_default()
}

#[test]
fn every_code_has_a_page_with_its_status_and_title() {
    for code in Code::ALL {
        let text = page(&format!("{code}.md"));
        assert!(text.starts_with(&format!("# `{code}`\n\n{}. ", code.title())), "{code}: {text}");
        assert!(text.contains(&format!("Status {} unless", code.status())), "{code}");
        let retryable =
            text.lines().nth(2).is_some_and(|line| line.ends_with(" retryable with the same key."));
        assert_eq!(retryable, code.retryable(), "{code}");
        for part in ["**What happened.**", "**What the caller does.**", "**What the operator looks at.**"] {
            assert!(text.contains(part), "{code}: {part}");
        }
    }
}

#[test]
fn the_list_of_codes_is_the_table() {
    let list = page("README.md");
    let rows: Vec<&str> = list.lines().filter(|line| line.starts_with("| [")).collect();
    let expected: Vec<String> = Code::ALL
        .iter()
        .map(|code| {
            let again = if code.retryable() { "yes" } else { "no" };
            format!("| [`{code}`]({code}.md) | {} | {again} | {} |", code.status(), code.title())
        })
        .collect();
    assert_eq!(rows, expected);
}
