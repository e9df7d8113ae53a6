//! Every product crate forbids `unsafe` at its root: a lint level can be lifted in a module, `forbid` cannot.

use super::Finding;
use super::tree::Tree;

/// The crates that ship. `sim` is not among them: its VFS shims speak C.
const PRODUCT: &[&str] = &["core", "store", "server", "client", "gateway", "cli", "retrysafe", "shop"];
const FORBID: &str = "#![forbid(unsafe_code)]";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in PRODUCT {
        for root in ["lib.rs", "main.rs"].map(|file| format!("crates/{name}/src/{file}")) {
            if tree.text(&root).is_some_and(|text| !text.lines().any(|line| line.trim() == FORBID)) {
                findings.push(Finding::whole(root, format!("lacks {FORBID}")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_crate_without_forbid_is_found() {
        let tree = Tree::fixture(&[
            ("crates/core/src/lib.rs", "//! a\n"),
            ("crates/cli/src/main.rs", "//! #![forbid(unsafe_code)]\n"),
            ("crates/store/src/lib.rs", "//! a\n#![forbid(unsafe_code)]\n"),
            ("crates/sim/src/lib.rs", ""),
        ]);
        let found: Vec<String> = check(&tree).into_iter().map(|finding| finding.at).collect();
        assert_eq!(found, ["crates/core/src/lib.rs", "crates/cli/src/main.rs"]);
    }
}
