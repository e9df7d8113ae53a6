//! Anti-patterns of retries in source code (SPEC 9), by syntax trees: Rust, Python, JavaScript, TypeScript and Go.
//!
//! A retry loop is recognised by what it does (it goes on after a failure) and by its names; a loop over items is none. What is
//! found is a pattern, not a proof: every finding says what it saw and what would have to be true instead.
//!
//! ```
//! use retrysafe_audit::code::{Language, audit};
//!
//! let code = "
//! for attempt in range(3):
//!     try:
//!         return post(url, headers={'Idempotency-Key': str(uuid4())})
//!     except ConnectionError:
//!         sleep(random() * 2 ** attempt)
//! ";
//! let found = audit(code, Language::Python)?;
//! assert_eq!(found.findings[0].rule.id, "P101");
//! # Ok::<(), String>(())
//! ```
//!
//! Limits: one file at a time, and no types. A key that is passed without a name, or made in another function, is not seen.

mod claims;
mod keys;
mod language;
mod retries;
mod scopes;
mod view;

pub use language::Language;

use crate::finding::Rule;
use view::Code;

/// Longer files are machine-made.
pub const FILE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// One place in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Which rule.
    pub rule: &'static Rule,
    /// From 1.
    pub line: usize,
    /// What stands there, at most 120 characters.
    pub quote: String,
}

/// What was found in a file.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Found {
    /// In the order of the file.
    pub findings: Vec<Finding>,
    /// A part of the file is not of this language; the rest was read.
    pub broken: bool,
}

/// Audits one file.
///
/// # Errors
/// It is too long, or cannot be parsed at all.
pub fn audit(text: &str, language: Language) -> Result<Found, String> {
    if text.len() > FILE_BYTES_MAX {
        return Err(format!("has {} bytes; at most {FILE_BYTES_MAX} are read", text.len()));
    }
    let mut parser = tree_sitter::Parser::new();
    parser.set_language(&language.grammar()).map_err(|error| format!("cannot be parsed: {error}"))?;
    let tree = parser.parse(text, None).ok_or("cannot be parsed")?;
    let code = Code { text, language };
    let root = tree.root_node();
    let scopes = scopes::retries(code, root);
    let mut findings = keys::find(code, root, &scopes);
    findings.extend(claims::find(code, root));
    findings.extend(retries::find(code, root, &scopes));
    findings.sort_by_key(|finding| (finding.line, finding.rule.id));
    findings.dedup_by_key(|finding| (finding.line, finding.rule.id));
    let lines: Vec<&str> = text.lines().collect();
    findings.retain(|finding| !allowed(&lines, finding));
    Ok(Found { findings, broken: root.has_error() })
}

/// `retrysafe: allow(P106) one process, nothing to synchronise with`, in a comment on the line or the one above. The reason is
/// part of it.
fn allowed(lines: &[&str], finding: &Finding) -> bool {
    let mark = format!("retrysafe: allow({})", finding.rule.id);
    let here = finding.line.saturating_sub(1);
    let near = [Some(here), here.checked_sub(1)].into_iter().flatten().filter_map(|line| lines.get(line));
    near.filter_map(|line| line.split_once(&mark))
        .any(|(_, reason)| !reason.trim_matches([' ', ':', '*', '/']).is_empty())
}
