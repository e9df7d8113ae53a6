//! Nothing in the repository knows the machine it was written on: no absolute working folders, no package
//! index other than the ecosystem's own.

use super::Finding;
use super::tree::{Tree, numbered};

/// Folders of one machine. Spelled in halves, so that this file does not find itself.
const FOLDERS: &[&str] = &[concat!("/wo", "rk/"), concat!("/tm", "p/"), concat!("/ro", "ot/")];

/// Settings that point a package manager at an index of one's own.
const INDEX_SETTINGS: &[&str] = &[
    concat!("index", "-url"),
    concat!("PIP_", "INDEX"),
    concat!("npm_config", "_registry"),
    concat!("replace", "-with"),
    concat!("CARGO_", "REGISTRIES"),
];

/// Where the lock files may say a package comes from.
const HOME_OF: &[(&str, &str, &str)] = &[
    ("Cargo.lock", "source = \"", "source = \"registry+https://github.com/rust-lang/crates.io-index\""),
    ("package-lock.json", "\"resolved\":", "\"resolved\": \"https://registry.npmjs.org/"),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.under("", &[]) {
        let home = HOME_OF.iter().find(|(file, ..)| path.rsplit('/').next() == Some(file));
        for (number, line) in numbered(text) {
            for folder in FOLDERS.iter().filter(|folder| names_folder(line, folder)) {
                findings.push(Finding::line(
                    path,
                    number,
                    format!("names a folder of one machine: {folder}"),
                ));
            }
            for setting in INDEX_SETTINGS.iter().filter(|setting| line.contains(**setting)) {
                findings.push(Finding::line(path, number, format!("sets a package index: {setting}")));
            }
            if let Some((_, field, allowed)) = home {
                let line = line.trim_start();
                if line.starts_with(field) && !line.starts_with(allowed) {
                    findings.push(Finding::line(path, number, "a package from a foreign index"));
                }
            }
        }
    }
    findings
}

/// The folder at the start of a path; `/a/work/b` inside a URL or a longer path is another thing.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '/' | '.' | '}' | '_' | '-' | ')'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&Tree::fixture(&[(path, text)])).len()
    }

    #[test]
    fn a_machine_path_is_found() {
        for folder in FOLDERS {
            assert_eq!(found("a.rs", &format!("open(\"{folder}x\")")), 1);
            assert_eq!(found("a.md", &format!("see {folder}x")), 1);
            assert_eq!(found("a.md", &format!("https://example.com{folder}x")), 0);
        }
    }

    #[test]
    fn a_foreign_index_is_found() {
        for setting in INDEX_SETTINGS {
            assert_eq!(found("setup.sh", &format!("{setting} = x")), 1);
        }
        assert_eq!(found("Cargo.lock", "source = \"registry+https://index.example\""), 1);
        assert_eq!(found("Cargo.lock", HOME_OF[0].2), 0);
        assert_eq!(found("a/package-lock.json", "  \"resolved\": \"https://npm.example/a.tgz\""), 1);
        assert_eq!(found("a/package-lock.json", "  \"resolved\": \"https://registry.npmjs.org/a.tgz\""), 0);
    }
}
