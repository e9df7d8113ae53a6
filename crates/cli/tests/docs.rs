//! `retrysafe docs` as a process: what the page says, that its examples run, and that `--check` finds drift.

#![allow(clippy::unwrap_used, clippy::panic)] // a test's helpers may fail loudly too

mod support;

use std::path::Path;
use std::process::Command;

use retrysafe_core::codes::Code;
use support::{
    retrysafe,
    serving::{Serving, exchange},
    text,
};

const SHOP: &str = include_str!("../assets/shop.toml");
const FULL: &str = include_str!("../../core/tests/contract/full.toml");

/// Runs `retrysafe docs` on a contract and gives what it printed.
fn page(contract: &str, args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("retrysafe.toml"), contract).unwrap();
    let output = retrysafe(folder.path(), &[&["docs"], args].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// How each example is started, and the file it has to be in. Go is printed like the others and was not run here unless it is
/// installed.
const EXAMPLES: [(&str, &str, &[&str]); 6] = [
    ("curl", "example.sh", &["sh", "example.sh"]),
    ("python", "example.py", &["python3", "example.py"]),
    ("node", "example.mjs", &["node", "example.mjs"]),
    ("go", "example.go", &["go", "run", "example.go"]),
    ("java", "Retry.java", &["java", "Retry.java"]),
    ("rust", "example.rs", &["./example"]),
];

fn installed(program: &str) -> bool {
    let version = if program == "go" { "version" } else { "--version" };
    Command::new(program).arg(version).output().is_ok_and(|output| output.status.success())
}

/// Every example of an installed language makes one order, although the answer of its first attempt gets lost after the
/// order was made; and started again it gets the same answer.
#[test]
fn the_examples_make_one_order_though_its_answer_gets_lost() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("shop.toml"), SHOP).unwrap();
    let serving = Serving::start(folder.path(), &["--sample-faults", "--sample-ms", "0"]);
    let base = format!("http://{}", serving.address("gateway"));
    let mut ran = Vec::new();
    for (language, file, start) in EXAMPLES {
        let program = if language == "rust" {
            "rustc"
        } else if language == "curl" {
            "curl"
        } else {
            start[0]
        };
        if !installed(program) {
            println!("{language}: not installed, its example was not run");
            continue;
        }
        let code =
            retrysafe(folder.path(), &["docs", "shop.toml", "--base-url", &base, "--example", language]);
        assert!(code.status.success(), "{language}: {}", text(&code.stderr));
        std::fs::write(folder.path().join(file), code.stdout).unwrap();
        if language == "rust" {
            let built = Command::new("rustc")
                .current_dir(folder.path())
                .args(["--edition", "2024", file])
                .output()
                .unwrap();
            assert!(built.status.success(), "{}", text(&built.stderr));
        }
        let key = format!("order-{language}");
        lose_the_next_answer(&serving, &key);
        let (first, second) = (order(folder.path(), start, &key), order(folder.path(), start, &key));
        assert!(first.contains("\"id\""), "{language}: {first}");
        assert_eq!(first, second, "{language}");
        assert_eq!(effects(&serving, &key), 1, "{language}");
        ran.push(language);
    }
    println!("ran: {ran:?}");
    assert!(ran.contains(&"rust"), "this test was built by it");
}

fn order(folder: &Path, start: &[&str], key: &str) -> String {
    let mut command = Command::new(start[0]);
    command.current_dir(folder).args(&start[1..]).env("TOKEN", "ada").env("KEY", key);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{start:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn lose_the_next_answer(serving: &Serving, key: &str) {
    let body = format!(r#"{{"fault":"commit-then-cut","times":1,"key":"{key}"}}"#);
    let head = format!(
        "POST /faults HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = exchange(serving.address("upstream").trim_start_matches("http://"), &head);
    assert!(answer.starts_with("HTTP/1.1 2"), "{answer}");
}

fn effects(serving: &Serving, key: &str) -> usize {
    let answer = exchange(
        serving.address("upstream").trim_start_matches("http://"),
        "GET /ledger HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n",
    );
    answer.matches(&format!("\"{key}\"")).count()
}

/// Both languages, both forms, contracts with everything in them: nothing is missing, and no gap is left.
#[test]
fn every_contract_renders_in_every_language_and_form() {
    for contract in [SHOP, FULL] {
        for lang in ["en", "ja"] {
            let markdown = page(contract, &["--lang", lang]);
            for code in Code::ALL {
                assert!(markdown.contains(code.as_str()), "{lang}: {code}");
            }
            for gap in ["{{", "{%", "undefined", "none"] {
                let told = markdown.split("```").step_by(2).any(|prose| prose.contains(gap));
                assert!(!told, "{lang}: {gap}");
            }
            let html = page(contract, &["--lang", lang, "--format", "html"]);
            assert!(
                html.starts_with("<!doctype html>") && html.contains(&format!("lang=\"{lang}\"")),
                "{html}"
            );
            for outside in ["<script", "<link", "src=", "@import", "url("] {
                assert!(!html.contains(outside), "the page needs another file: {outside}");
            }
        }
    }
}

/// SPEC 8: the life of a key, the formulas and the vendors as pages of their own, in both languages and forms.
#[test]
fn the_other_pages_have_the_contracts_numbers_and_no_gaps() {
    for contract in [SHOP, FULL] {
        for (topic, said) in [
            ("life", ["idempotency_outcome_unknown", "30s", "24h"]),
            ("formulas", ["random(0, min(cap, base * 2^n))", "50ms", "500"]),
            ("vendors", ["17534", "IDEMPOTENCY_KEY_REUSED", "AWS SDKs"]),
        ] {
            for lang in ["en", "ja"] {
                let markdown = page(contract, &["--lang", lang, "--page", topic]);
                let ours = contract == SHOP;
                said.iter()
                    .for_each(|said| assert!(!ours || markdown.contains(said), "{topic} {lang}: {said}"));
                for gap in ["{{", "{%", "undefined", "none"] {
                    assert!(!markdown.contains(gap), "{topic} {lang}: {gap}");
                }
                assert!(!markdown.to_lowercase().contains("exactly"));
                let html = page(contract, &["--lang", lang, "--page", topic, "--format", "html"]);
                assert!(html.starts_with("<!doctype html>") && html.contains("<table>"), "{topic} {lang}");
            }
        }
    }
}

#[test]
fn a_folder_of_pages_is_written_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let contract = folder.path().join("retrysafe.toml");
    for form in ["markdown", "html"] {
        std::fs::write(&contract, SHOP).unwrap();
        assert!(retrysafe(folder.path(), &["docs", "--pages", form, "--format", form]).status.success());
        assert_eq!(std::fs::read_dir(folder.path().join(form)).unwrap().count(), 4);
        let life = folder.path().join(form).join("life-of-a-key");
        let life = ["md", "html"].map(|ending| std::fs::read_to_string(life.with_extension(ending)));
        let life = life.into_iter().find_map(Result::ok).unwrap();
        assert!(life.contains(if form == "html" { "retrying.html" } else { "retrying.md" }));
        assert_eq!(retrysafe(folder.path(), &["docs", "--check", form]).status.code(), Some(0), "{form}");
        std::fs::write(&contract, SHOP.replace("replay = \"24h\"", "replay = \"36h\"")).unwrap();
        let output = retrysafe(folder.path(), &["docs", "--check", form]);
        assert_eq!(output.status.code(), Some(1), "{form}");
        let told = text(&output.stderr);
        assert!(
            told.contains("retrying.") && told.contains("life-of-a-key.") && !told.contains("formulas."),
            "{told}"
        );
    }
}

/// What SPEC 8 lists is on the page, in the contract's own numbers.
#[test]
fn the_page_says_what_an_integrator_has_to_know() {
    let markdown = page(SHOP, &["--base-url", "https://shop.example/"]);
    for said in [
        "`POST /orders` | required | `Idempotency-Key` | 255 bytes | 24h",
        "order-confirm-1042",
        "After it, the same key is a new request",
        "idempotency_key_in_flight",
        "idempotency_key_payload_mismatch",
        "stored 24h",
        "count against your quota",
        "| 2 | random, 0 to 50ms | random, 0 to 1s |",
        "| 3 | random, 0 to 100ms | random, 0 to 2s |",
        "expired in April 2026",
        // What a reader who had nothing else could not find (contract-tools.6).
        "| 429, 502, 503, 504 | retry with the same key |",
        "An attempt without an answer stays open",
        "the code rules; else its status does",
        "Keep the time of the first attempt beside the key",
        "`upstream_timeout` | 504 | yes, with a key |",
        "`idempotency_outcome_unknown` | 409 | later |",
        "tenacity",
        "Resilience4j",
        "recovery point",
        "completer",
        "reaper",
        "random(0, min(cap, base * 2^n))",
        "AWS SDKs",
        "Stripe",
        "Google Cloud",
        "Twilio",
        "Resend",
        "https://shop.example/orders",
    ] {
        assert!(markdown.contains(said), "{said}");
    }
    let library = markdown.find("tenacity").unwrap();
    assert!(library < markdown.find("2^n").unwrap(), "the reader's library comes before any formula");
    assert!(!markdown.to_lowercase().contains("exactly"));
}

/// Numbers of the contract are numbers of the page, in prose and code.
#[test]
fn a_change_of_the_contract_changes_the_page() {
    let changed = format!(
        "{SHOP}\n[client]\nattempts = 5\nelapsed = \"40s\"\nbase = \"200ms\"\nquota = \"operations\"\n"
    )
    .replace("replay = \"24h\"", "replay = \"36h\"");
    let markdown = page(&changed, &[]);
    for said in [
        "5 attempts and 40s in all",
        "| 5 | random, 0 to 1.6s |",
        "| 36h |",
        "counts once against your quota",
        "ATTEMPTS, ELAPSED = 5, 40",
    ] {
        assert!(markdown.contains(said), "{said}");
    }
    assert!(!markdown.contains("| 24h |\n"), "the old window is still there");
}

/// The page of the sample shop that the book shows is the one that its contract makes.
#[test]
fn the_sample_page_of_the_book_is_current() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("retrysafe.toml"), SHOP).unwrap();
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/integrator-page-sample.md");
    let output = retrysafe(folder.path(), &["docs", "--base-url", "http://127.0.0.1:8787", "--check", kept]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// An example is made for an operation that has its key in a header; where there is none, the page goes without.
#[test]
fn a_key_in_the_body_gets_no_wrong_example() {
    let contract = "api = \"A\"\nnamespace = \"a\"\nlongest_retry_chain = \"24h\"\nunlisted = \"pass\"\n\
                    scope = { source = \"anonymous\" }\nfailures = { policy = \"A\" }\nclient = { drop_stored_statuses = true }\n\
                    carrier = { body_field = \"/request_id\" }\n[[endpoint]]\nmethod = \"POST\"\npath = \"/a\"\nkey = \"required\"\n";
    let markdown = page(contract, &[]);
    assert!(markdown.contains("the body, at `/request_id`") && !markdown.contains("import json"));
}

#[test]
fn drift_is_found_and_a_page_that_is_current_passes() {
    let folder = tempfile::tempdir().unwrap();
    let contract = folder.path().join("retrysafe.toml");
    std::fs::write(&contract, SHOP).unwrap();
    for file in ["page.md", "page.html"] {
        assert!(retrysafe(folder.path(), &["docs", "--out", file]).status.success());
        assert_eq!(retrysafe(folder.path(), &["docs", "--check", file]).status.code(), Some(0), "{file}");
    }
    std::fs::write(&contract, SHOP.replace("replay = \"24h\"", "replay = \"36h\"")).unwrap();
    for file in ["page.md", "page.html"] {
        let output = retrysafe(folder.path(), &["docs", "--check", file]);
        assert_eq!(output.status.code(), Some(1), "{file}");
        let told = text(&output.stderr);
        assert!(told.contains(file) && told.contains("36h") && told.contains("24h"), "{told}");
    }
}

#[test]
fn what_cannot_be_read_is_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.toml"), "api = 3\n").unwrap();
    std::fs::write(folder.path().join("retrysafe.toml"), SHOP).unwrap();
    for (args, word) in [
        (["docs", "absent.toml"], "absent.toml"),
        (["docs", "bad.toml"], "api"),
        (["docs", "--check=gone.md"], "gone.md"),
    ] {
        let output = retrysafe(folder.path(), &args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(word), "{args:?}: {}", text(&output.stderr));
    }
}
