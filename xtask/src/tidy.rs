//! `cargo xtask tidy`: the rules of the repository that no compiler checks.
//!
//! Every check is a pure function from what was read to a list of findings, so that each has a test with a
//! fixture that breaks it: a lint that cannot fail guards nothing.

mod codes;
mod floors;
mod length;
mod licences;
mod paths;
mod promise;
mod purity;
mod source;
mod spdx;
mod tree;
mod unsafety;

use anyhow::Result;

use tree::Tree;

/// One broken rule, where, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// Path from the repository root, with `:line` where there is one; or a package name.
    at: String,
    what: String,
}

impl Finding {
    fn line(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { at: format!("{path}:{line}"), what: what.into() }
    }

    fn whole(at: impl Into<String>, what: impl Into<String>) -> Self {
        Self { at: at.into(), what: what.into() }
    }
}

/// Runs every check; `true` if nothing was found.
pub(crate) fn run() -> Result<bool> {
    let tree = Tree::of_repository()?;
    let policy = licences::Policy::parse(tree.text("deny.toml").unwrap_or_default())?;
    let metadata = licences::metadata(&policy)?;
    let checks: [(&str, Vec<Finding>); 9] = [
        ("floors", floors::check(&metadata)),
        ("purity", purity::check(&tree, &metadata)),
        ("promise", promise::check(&tree)),
        ("codes", codes::check(&tree)),
        ("length", length::check(&tree)),
        ("paths", paths::check(&tree)),
        ("unsafe", unsafety::check(&tree)),
        ("licences", licences::check_licences(&metadata, &policy)),
        ("duplicates", licences::check_duplicates(&metadata, &policy)),
    ];
    let mut found = 0;
    for (rule, findings) in checks {
        for finding in &findings {
            println!("{}: {} [{rule}]", finding.at, finding.what);
        }
        found += findings.len();
    }
    println!("tidy: {} files read, {found} findings", tree.len());
    Ok(found == 0)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_repository_is_tidy() {
        assert!(super::run().expect("git and cargo answer"), "findings are printed above");
    }
}
