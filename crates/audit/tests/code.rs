//! The code audit on a corpus: what is found, what is not, and how often it is right.
//!
//! `data/code/*.txt` hold snippets of one language each. A line `#### P101 P106 | what it is` begins one; `-` stands for none.

#![allow(clippy::unwrap_used)] // a test's helpers may fail loudly too

use std::collections::BTreeSet;

use retrysafe_audit::code::{Language, audit};

const CORPUS: &[(&str, Language, &str)] = &[
    ("python", Language::Python, include_str!("data/code/python.txt")),
    ("javascript", Language::JavaScript, include_str!("data/code/javascript.txt")),
    ("rust", Language::Rust, include_str!("data/code/rust.txt")),
    ("go", Language::Go, include_str!("data/code/go.txt")),
];

struct Snippet {
    name: String,
    expected: BTreeSet<String>,
    code: String,
}

fn snippets(text: &str) -> Vec<Snippet> {
    let mut found = Vec::new();
    for part in text.split("#### ").skip(1) {
        let (head, code) = part.split_once('\n').unwrap();
        let (rules, name) = head.split_once(" | ").unwrap();
        let expected = rules.split(' ').filter(|rule| *rule != "-").map(str::to_owned).collect();
        found.push(Snippet { name: name.to_owned(), expected, code: code.to_owned() });
    }
    found
}

fn found(code: &str, language: Language) -> BTreeSet<String> {
    let found = audit(code, language).unwrap();
    assert!(!found.broken, "not of its language: {code}");
    found.findings.iter().map(|one| one.rule.id.to_owned()).collect()
}

#[test]
fn the_corpus_is_judged_as_it_says() {
    let mut wrong = Vec::new();
    for (file, language, text) in CORPUS {
        for snippet in snippets(text) {
            let found = found(&snippet.code, *language);
            if found != snippet.expected {
                wrong.push(format!(
                    "{file}: {}: expected {:?}, found {found:?}",
                    snippet.name, snippet.expected
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// JavaScript is TypeScript, and its tree has the same names.
#[test]
fn typescript_is_judged_as_javascript_is() {
    for language in [Language::TypeScript, Language::Tsx] {
        for snippet in snippets(CORPUS[1].2) {
            assert_eq!(found(&snippet.code, language), snippet.expected, "{}", snippet.name);
        }
    }
}

#[test]
fn half_of_the_corpus_is_innocent() {
    let all: Vec<Snippet> = CORPUS.iter().flat_map(|(_, _, text)| snippets(text)).collect();
    let innocent = all.iter().filter(|one| one.expected.is_empty()).count();
    assert!(all.len() >= 200, "{}", all.len());
    assert!(innocent * 2 >= all.len() - 8 && innocent * 2 <= all.len() + 8, "{innocent} of {}", all.len());
}

/// A decision stands in the code, with its reason.
#[test]
fn a_finding_is_allowed_with_a_reason_only() {
    let code = |comment: &str| {
        format!(
            "for attempt in range(3):\n    try:\n        return post()\n    except OSError:\n        # {comment}\n        sleep(2 ** attempt)\n"
        )
    };
    assert_eq!(found(&code("wait"), Language::Python).len(), 1);
    assert_eq!(found(&code("retrysafe: allow(P106)"), Language::Python).len(), 1);
    assert_eq!(found(&code("retrysafe: allow(P106): one process"), Language::Python).len(), 0);
    assert_eq!(found(&code("retrysafe: allow(P105): one process"), Language::Python).len(), 1);
}

/// Anything may stand in a file.
#[test]
fn broken_files_do_not_panic() {
    for (_, language, text) in CORPUS {
        for cut in (0..text.len()).step_by(1_499).filter(|cut| text.is_char_boundary(*cut)) {
            assert!(audit(&text[cut..], *language).is_ok());
        }
    }
    let deep = "(".repeat(5_000);
    assert!(audit(&deep, Language::JavaScript).unwrap().broken);
}
