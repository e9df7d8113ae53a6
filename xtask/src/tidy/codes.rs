//! Every wire code has a page that explains it, and every page a code: a client that meets
//! `idempotency_outcome_unknown` at three in the morning finds what to do.

use std::collections::BTreeSet;

use super::Finding;
use super::source::literals;
use super::tree::Tree;

const TABLE: &str = "crates/core/src/codes.rs";
const PAGES: &str = "docs/errors/";
/// The page that lists the others.
const INDEX: &str = "README";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let pages: BTreeSet<&str> = tree
        .under(PAGES, &["md"])
        .filter_map(|(path, _)| path.strip_prefix(PAGES)?.strip_suffix(".md"))
        .filter(|page| *page != INDEX)
        .collect();
    let Some(table) = tree.text(TABLE) else {
        return vec![Finding::whole(TABLE, "the table of wire codes is missing")];
    };
    let codes = codes(table);
    let mut findings = Vec::new();
    if codes.is_empty() {
        findings.push(Finding::whole(TABLE, "no wire code found: has the table changed its shape?"));
    }
    for code in codes.difference(&pages) {
        findings.push(Finding::whole(TABLE, format!("{code} has no page {PAGES}{code}.md")));
    }
    for page in pages.difference(&codes) {
        findings.push(Finding::whole(
            format!("{PAGES}{page}.md"),
            "explains a code that the table does not have",
        ));
    }
    findings
}

/// The string literals of the table that look like a code, its tests left out.
fn codes(table: &str) -> BTreeSet<&str> {
    let product = table.split("#[cfg(test)]").next().unwrap_or_default();
    product.lines().flat_map(literals).filter(|literal| is_code(literal)).collect()
}

/// Lower-case words joined by underscores, at least two.
fn is_code(literal: &str) -> bool {
    literal.contains('_')
        && literal
            .split('_')
            .all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES: &str = "match self { Missing => \"key_missing\", Big => \"request_too_large\" }\n\
                         // \"not_a_code\"\n#[cfg(test)]\nmod tests { \"in_test\" }";

    #[test]
    fn a_code_without_a_page_is_found() {
        let tree = Tree::fixture(&[(TABLE, CODES), ("docs/errors/key_missing.md", "")]);
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("request_too_large"));
    }

    #[test]
    fn a_page_without_a_code_is_found() {
        let tree = Tree::fixture(&[
            (TABLE, CODES),
            ("docs/errors/key_missing.md", ""),
            ("docs/errors/request_too_large.md", ""),
            ("docs/errors/gone.md", ""),
            ("docs/errors/README.md", ""),
        ]);
        let found = check(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].at, "docs/errors/gone.md");
    }

    #[test]
    fn a_missing_or_unreadable_table_is_found() {
        assert_eq!(check(&Tree::fixture(&[])).len(), 1);
        assert_eq!(check(&Tree::fixture(&[(TABLE, "fn nothing() {}")])).len(), 1);
    }
}
