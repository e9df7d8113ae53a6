//! The promise that is never made: delivery that happens once and only once. The honest one is
//! at-least-once delivery plus de-duplication, within a key scope and a replay window.
//!
//! A sentence that says we do not claim it carries the marker `tidy: allow(promise)` on its own line or on
//! the line before (in Markdown as an HTML comment).

use super::Finding;
use super::tree::{Tree, numbered};

const EXTENSIONS: &[&str] =
    &["rs", "md", "toml", "json", "html", "txt", "yaml", "yml", "py", "js", "ts", "sh"];
const MARKER: &str = "tidy: allow(promise)";

/// The two words in a row, whatever stands between them: a blank, a hyphen, an underscore, a line break with
/// its comment signs.
const FIRST: &str = "exactly";
const SECOND: &str = "once";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.under("", EXTENSIONS).flat_map(|(path, text)| in_file(path, text)).collect()
}

fn in_file(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut first_at: Option<(usize, bool)> = None;
    let mut allowed_before = false;
    for (number, line) in numbered(text) {
        let allowed = line.contains(MARKER);
        for word in line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
            if word.eq_ignore_ascii_case(SECOND)
                && let Some((at, excused)) = first_at
                && !excused
                && !allowed
            {
                findings.push(Finding::line(
                    path,
                    at,
                    format!("promises \"{FIRST}\" + \"{SECOND}\"; say: safe to retry within the key scope and replay window"),
                ));
            }
            first_at = word.eq_ignore_ascii_case(FIRST).then_some((number, allowed || allowed_before));
        }
        allowed_before = allowed;
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> usize {
        check(&Tree::fixture(&[("docs/a.md", text)])).len()
    }

    #[test]
    fn the_promise_is_found_in_every_spelling() {
        for between in [" ", "-", "_", "\n", "\n/// ", "** **"] {
            let text = format!("We run it {}{between}{}.", FIRST, SECOND);
            assert_eq!(found(&text), 1, "{text:?}");
            assert_eq!(found(&text.to_uppercase()), 1, "{text:?}");
        }
    }

    #[test]
    fn the_words_apart_are_fine() {
        assert_eq!(found(&format!("{FIRST} one write, {SECOND} it commits")), 0);
        assert_eq!(found(&format!("{SECOND} {FIRST}")), 0);
    }

    #[test]
    fn a_marked_sentence_is_allowed_and_only_that_one() {
        let claim = format!("{FIRST} {SECOND}");
        assert_eq!(found(&format!("<!-- {MARKER} -->\nWe never claim {claim}.")), 0);
        assert_eq!(found(&format!("never {claim} // {MARKER}")), 0);
        assert_eq!(found(&format!("<!-- {MARKER} -->\nnever {claim}\n\nbut {claim}")), 1);
    }
}
