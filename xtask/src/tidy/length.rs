//! A file that cannot be held in the head gets split.

use super::Finding;
use super::tree::Tree;

const EXTENSIONS: &[&str] = &["rs", "md", "py", "js", "ts", "sh", "html"];
const MAX_LINES: usize = 700;

/// Files that may be longer, up to a number of lines of their own, and why.
const ALLOWED: &[(&str, usize, &str)] = &[];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    check_with(tree, ALLOWED)
}

fn check_with(tree: &Tree, allowed: &[(&str, usize, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.under("", EXTENSIONS) {
        let lines = text.lines().count();
        let limit = allowed.iter().find(|(file, ..)| *file == path).map_or(MAX_LINES, |(_, limit, _)| *limit);
        if lines > limit {
            findings.push(Finding::whole(path, format!("{lines} lines, more than {limit}: split it")));
        }
    }
    for (path, ..) in allowed {
        if tree.text(path).is_none_or(|text| text.lines().count() <= MAX_LINES) {
            findings.push(Finding::whole(*path, "needs no length of its own any more"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_found_unless_allowed() {
        let long = "x\n".repeat(MAX_LINES + 1);
        let tree = Tree::fixture(&[("a.rs", &long), ("data.txt", &long)]);
        assert_eq!(check_with(&tree, &[]).len(), 1);
        assert!(check_with(&tree, &[("a.rs", MAX_LINES + 1, "one table")]).is_empty());
        assert_eq!(check_with(&tree, &[("a.rs", MAX_LINES, "one table")]).len(), 1);
    }

    #[test]
    fn a_stale_allowance_is_found() {
        let tree = Tree::fixture(&[("a.rs", "x\n")]);
        assert_eq!(check_with(&tree, &[("a.rs", 900, "was long"), ("gone.rs", 900, "was here")]).len(), 2);
    }
}
