//! `retrysafe lint` as a process: what it finds, what it says instead, and how it ends.

#![allow(clippy::unwrap_used)] // a test's helpers may fail loudly too

mod support;

use std::path::Path;

use support::{retrysafe, text};

/// The words in a row, which no file of this repository may hold.
const ONCE: &str = concat!("exact", "ly once");

fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content.replace("ONCE", ONCE)).unwrap();
    }
    folder
}

fn found(folder: &Path, args: &[&str]) -> serde_json::Value {
    let output = retrysafe(folder, &[&["lint", "--json"], args].concat());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn findings_have_a_place_and_a_sentence_to_say_instead() {
    let folder = project(&[
        ("docs/a.md", "# Orders\n\nFine.\n\nEvents arrive\nONCE.\n"),
        ("docs/deep/b.html", "<p>We do not deliver ONCE.</p>\n<p>We deliver ONCE.</p>"),
        ("docs/code.rs", "ONCE"),
        ("docs/.hidden/c.md", "It runs ONCE."),
    ]);
    let output = retrysafe(folder.path(), &["lint", "docs"]);
    assert_eq!(output.status.code(), Some(1));
    let page = text(&output.stdout);
    for said in [
        "docs/a.md:5: error D701",
        "docs/deep/b.html:2: error D701",
        "say: A retry with the same key",
        "2 documents, 2 findings, 2 errors",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
    let json = found(folder.path(), &["docs"]);
    assert_eq!((json["errors"].as_u64(), json["findings"][0]["line"].as_u64()), (Some(2), Some(5)));
}

#[test]
fn numbers_are_compared_with_the_contract() {
    let folder = project(&[
        ("retrysafe.toml", include_str!("../assets/shop.toml")),
        ("page.md", "Keys expire after 48 hours. The replay window is 24 hours."),
    ]);
    assert_eq!(found(folder.path(), &["page.md"])["errors"], 0);
    let json = found(folder.path(), &["page.md", "--contract", "retrysafe.toml"]);
    assert_eq!((json["errors"].as_u64(), json["findings"][0]["rule"].as_str()), (Some(1), Some("D704")));
    assert!(json["findings"][0]["instead"].as_str().unwrap().contains("24h"));
}

#[test]
fn warnings_are_errors_only_when_asked() {
    let folder = project(&[("a.md", "All our calls are safe to retry.")]);
    assert_eq!(retrysafe(folder.path(), &["lint", "a.md"]).status.code(), Some(0));
    assert_eq!(retrysafe(folder.path(), &["lint", "--strict", "a.md"]).status.code(), Some(1));
}

/// The pages that `retrysafe docs` prints are clean in both languages, against their own contract.
#[test]
fn the_generated_pages_are_clean() {
    let folder = project(&[("retrysafe.toml", include_str!("../assets/shop.toml"))]);
    for (lang, file) in [("en", "en.md"), ("ja", "ja.md"), ("en", "en.html"), ("ja", "ja.html")] {
        assert!(retrysafe(folder.path(), &["docs", "--lang", lang, "--out", file]).status.success());
        let output = retrysafe(folder.path(), &["lint", "--strict", "--contract", "retrysafe.toml", file]);
        assert!(output.status.success(), "{file}: {}", text(&output.stdout));
    }
}

/// The project's own book promises nothing of the kind.
#[test]
fn the_book_is_clean() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = retrysafe(&root, &["lint", "docs", "README.md"]);
    assert!(output.status.success(), "{}", text(&output.stdout));
}

#[test]
fn what_is_not_there_is_told() {
    let folder = project(&[("code.rs", "")]);
    for (args, word) in [(["lint", "gone.md"], "gone.md"), (["lint", "."], "no document")] {
        let output = retrysafe(folder.path(), &args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(word), "{}", text(&output.stderr));
    }
}
