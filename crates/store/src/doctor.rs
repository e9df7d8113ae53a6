//! What is wrong with a database that a store is to live in, and how to mend it.

use std::fmt;

/// One thing that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// A stable name, for scripts.
    pub rule: &'static str,
    /// What was found, with the values.
    pub what: String,
    /// What to do about it.
    pub mend: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// The store does not work here, or does not keep what it promises.
    Error,
    /// It works, and something will hurt in a bad hour.
    Warning,
    /// Worth knowing.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

/// Findings as they are made.
#[derive(Default)]
#[cfg_attr(not(feature = "sql"), allow(dead_code))]
pub(crate) struct Findings(Vec<Finding>);

#[cfg_attr(not(feature = "sql"), allow(dead_code))]
impl Findings {
    pub(crate) fn error(&mut self, rule: &'static str, what: impl Into<String>, mend: impl Into<String>) {
        self.add(Severity::Error, rule, what.into(), mend.into());
    }

    pub(crate) fn warning(&mut self, rule: &'static str, what: impl Into<String>, mend: impl Into<String>) {
        self.add(Severity::Warning, rule, what.into(), mend.into());
    }

    pub(crate) fn note(&mut self, rule: &'static str, what: impl Into<String>, mend: impl Into<String>) {
        self.add(Severity::Note, rule, what.into(), mend.into());
    }

    fn add(&mut self, severity: Severity, rule: &'static str, what: String, mend: String) {
        self.0.push(Finding { severity, rule, what, mend });
    }

    /// The worst first.
    pub(crate) fn done(mut self) -> Vec<Finding> {
        self.0.sort_by_key(|finding| finding.severity);
        self.0
    }
}
