//! What is wrong with a contract file, shown the way a compiler shows it.
//!
//! Reading goes on after a fault, so that one run shows all of them: a person who has to run a tool nine times to see
//! nine mistakes turns the tool off.

use std::fmt;
use std::ops::Range;

/// One thing that keeps a contract file from being a contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line in the file, from 1.
    pub line: usize,
    /// Column in that line, from 1, in characters.
    pub column: usize,
    /// The field: `endpoint[2].windows.replay`, counted from 1. Empty where the file as a whole is meant.
    pub path: String,
    /// What is wrong, with the values that show it.
    pub message: String,
    /// What to write instead.
    pub help: String,
    /// The line of the file, for the caret.
    source_line: String,
    /// Characters under the caret, at least 1.
    width: usize,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        let indent = " ".repeat(self.column - 1);
        let caret = "^".repeat(self.width);
        writeln!(f, "{gutter} |")?;
        writeln!(f, "{number} | {}", self.source_line)?;
        writeln!(f, "{gutter} | {indent}{caret}")?;
        if !self.path.is_empty() {
            writeln!(f, "{gutter} = field: {}", self.path)?;
        }
        writeln!(f, "{gutter} = help: {}", self.help)
    }
}

/// Every fault of one file, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The file's name, for people.
    pub file: String,
    /// At least one.
    pub faults: Vec<Fault>,
    what: &'static str,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.faults {
            writeln!(f, "error: {}", fault.message)?;
            let gutter = " ".repeat(fault.line.to_string().len());
            writeln!(f, "{gutter}--> {}:{}:{}", self.file, fault.line, fault.column)?;
            writeln!(f, "{fault}")?;
        }
        let s = if self.faults.len() == 1 { "" } else { "s" };
        write!(f, "{}: {} fault{s}; the {} is not loaded", self.file, self.faults.len(), self.what)
    }
}

impl std::error::Error for Faults {}

/// What kind of file is read: the words of its faults.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// `contract`
    pub what: &'static str,
    /// The table that has a field of this name, where only one has.
    pub home_of: fn(&str) -> Option<&'static str>,
}

/// Collects faults while a file is read, and knows where bytes are in it.
#[derive(Debug)]
pub struct Sink<'a> {
    text: &'a str,
    pub(super) file: Kind,
    found: std::cell::RefCell<Vec<(usize, Fault)>>,
}

impl<'a> Sink<'a> {
    /// For the text of one file.
    pub fn new(text: &'a str, file: Kind) -> Self {
        Self { text, file, found: std::cell::RefCell::default() }
    }

    /// Notes a fault at `span`. A span over several lines is underlined on its first.
    pub fn note(
        &self,
        span: Range<usize>,
        path: impl Into<String>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let (line, column) = self.position(span.start);
        let source_line = self.text.lines().nth(line - 1).unwrap_or_default();
        let room = source_line.chars().count().saturating_sub(column - 1).max(1);
        let covered = self.text.get(span.clone()).map_or(1, |covered| covered.chars().count());
        let fault = Fault {
            line,
            column,
            path: path.into(),
            message: message.into(),
            help: help.into(),
            // A tab would push the caret away from what it points at.
            source_line: source_line.replace('\t', " "),
            width: covered.clamp(1, room),
        };
        self.found.borrow_mut().push((span.start, fault));
    }

    /// Whether a fault is noted at this place already.
    pub fn has(&self, span: &Range<usize>) -> bool {
        self.found.borrow().iter().any(|(at, _)| *at == span.start)
    }

    /// Line and column of a byte, both from 1.
    pub fn position(&self, byte: usize) -> (usize, usize) {
        let mut at = byte.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let before = &self.text[..at];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// Whether nothing is noted.
    pub fn is_clean(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// The faults in the file's order.
    pub fn into_faults(self, file: &str) -> Faults {
        let mut found = self.found.into_inner();
        found.sort_by_key(|(at, _)| *at);
        Faults {
            file: file.to_owned(),
            faults: found.into_iter().map(|(_, fault)| fault).collect(),
            what: self.file.what,
        }
    }
}
