//! A table of the contract file, read field by field.
//!
//! A [`Section`] knows which fields it may have. A field that is asked for and has the wrong type or value is noted
//! and comes back as `None`, so that reading goes on; what nobody could ask for is unknown, and refused with the
//! nearest name that exists: a misspelt `replay` must not mean "the default".

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{
    fault::Sink,
    values::{self, Wrong},
};

/// A table, its place in the file and the fields it may have.
pub struct Section<'a> {
    path: String,
    span: Range<usize>,
    table: &'a DeTable<'a>,
    fields: &'static [&'static str],
    sink: &'a Sink<'a>,
}

/// A value, with its place.
#[derive(Clone)]
pub struct Item<'a> {
    /// `endpoint[2].windows.replay`, counted from 1.
    pub path: String,
    /// Its bytes in the file.
    pub span: Range<usize>,
    value: &'a DeValue<'a>,
    sink: &'a Sink<'a>,
}

impl<'a> Section<'a> {
    /// The document itself.
    pub fn root(
        table: &'a Spanned<DeTable<'a>>,
        fields: &'static [&'static str],
        sink: &'a Sink<'a>,
    ) -> Self {
        Self::new(String::new(), 0..0, table.get_ref(), fields, sink)
    }

    /// A document that stands beneath another one: a table of a file of its own.
    pub(super) fn beneath(
        table: &'a DeTable<'a>,
        fields: &'static [&'static str],
        sink: &'a Sink<'a>,
    ) -> Self {
        Self::new(String::new(), 0..0, table, fields, sink)
    }

    fn new(
        path: String,
        span: Range<usize>,
        table: &'a DeTable<'a>,
        fields: &'static [&'static str],
        sink: &'a Sink<'a>,
    ) -> Self {
        let section = Self { path, span, table, fields, sink };
        section.refuse_unknown();
        section
    }

    fn refuse_unknown(&self) {
        for (key, _) in self.table {
            let name: &str = key.get_ref();
            if self.fields.contains(&name) {
                continue;
            }
            let place = if self.path.is_empty() {
                format!("the {}", self.sink.file.what)
            } else {
                format!("`{}`", self.path)
            };
            let help = match (nearest(name, self.fields), (self.sink.file.home_of)(name)) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, Some("top level")) => {
                    format!("`{name}` belongs to the top of the file, above the first table")
                }
                (None, Some("policies")) => {
                    format!("`{name}` belongs to the top of the file or to an endpoint")
                }
                (None, Some(table)) => format!("`{name}` belongs to `{table}`"),
                (None, None) => format!("known here: {}", self.fields.join(", ")),
            };
            self.sink.note(key.span(), self.path_of(name), format!("{place} has no field `{name}`"), help);
        }
    }

    fn path_of(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// The field, if it is there.
    pub fn get(&self, field: &'static str) -> Option<Item<'a>> {
        debug_assert!(self.fields.contains(&field), "{field} is read but not declared");
        let (_, value) = self.table.iter().find(|(key, _)| key.get_ref() == field)?;
        Some(Item { path: self.path_of(field), span: value.span(), value: value.get_ref(), sink: self.sink })
    }

    /// Every entry of a table whose names are the user's (statuses, codes): the name, where it is, its value.
    pub fn entries(item: &Item<'a>) -> Vec<(&'a str, Range<usize>, Item<'a>)> {
        let DeValue::Table(table) = item.value else {
            item.wrong_type("a table");
            return Vec::new();
        };
        let entry = |(key, value): (&'a Spanned<std::borrow::Cow<'a, str>>, &'a Spanned<DeValue<'a>>)| {
            let name: &str = key.get_ref();
            let path = format!("{}.{name}", item.path);
            (name, key.span(), Item { path, span: value.span(), value: value.get_ref(), sink: item.sink })
        };
        table.iter().map(entry).collect()
    }

    /// The field; its absence is noted as a missing decision.
    pub fn require(&self, field: &'static str, why: &str, help: &str) -> Option<Item<'a>> {
        let found = self.get(field);
        if found.is_none() {
            self.missing(field, why, help);
        }
        found
    }

    /// Notes that a decision is missing.
    pub fn missing(&self, field: &str, why: &str, help: &str) {
        let place = if self.path.is_empty() { String::new() } else { format!("`{}`: ", self.path) };
        let message = format!("{place}`{field}` is not decided: {why}");
        self.sink.note(self.span.clone(), self.path_of(field), message, help);
    }

    /// The text of a field, read by `read`.
    pub fn text<T>(&self, field: &'static str, read: impl FnOnce(&str) -> Result<T, Wrong>) -> Option<T> {
        self.get(field)?.text(read)
    }

    /// A time above zero, or `default`.
    pub fn time(&self, field: &'static str, default: Duration) -> Duration {
        self.get(field).and_then(|item| item.time()).unwrap_or(default)
    }

    /// A size within `bounds` in bytes, or `default`.
    pub fn size(&self, field: &'static str, bounds: RangeInclusive<usize>, default: usize) -> usize {
        self.get(field).and_then(|item| item.size(bounds)).unwrap_or(default)
    }

    /// A number within `bounds`, or `default`.
    pub fn number(&self, field: &'static str, bounds: RangeInclusive<i64>, default: u32) -> u32 {
        let read = self.get(field).and_then(|item| item.number(bounds));
        read.and_then(|number| u32::try_from(number).ok()).unwrap_or(default)
    }

    /// A yes or no, or `default`.
    pub fn flag(&self, field: &'static str, default: bool) -> bool {
        self.get(field).and_then(|item| item.flag()).unwrap_or(default)
    }

    /// A list of texts read by `read`, or `default`.
    pub fn list<T>(
        &self,
        field: &'static str,
        read: impl Fn(&str) -> Result<T, Wrong>,
        default: Vec<T>,
    ) -> Vec<T> {
        match self.get(field) {
            Some(item) => item.list().into_iter().filter_map(|one| one.text(&read)).collect(),
            None => default,
        }
    }

    /// A list of statuses, or `default`.
    pub fn statuses(&self, field: &'static str, default: Vec<u16>) -> Vec<u16> {
        match self.get(field) {
            Some(item) => item.list().into_iter().filter_map(|one| one.status()).collect(),
            None => default,
        }
    }

    /// Notes a fault on a field (or, where it is absent, on the section).
    pub fn fault(&self, field: &'static str, message: impl Into<String>, help: impl Into<String>) {
        let span = self.get(field).map_or_else(|| self.span.clone(), |item| item.span);
        self.sink.note(span, self.path_of(field), message, help);
    }
}

impl<'a> Item<'a> {
    /// Notes that this value is wrong.
    pub fn fault(&self, message: impl Into<String>, help: impl Into<String>) {
        self.sink.note(self.span.clone(), self.path.clone(), message, help);
    }

    /// Notes that something beside this value is wrong: its name.
    pub fn fault_at(&self, at: Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        self.sink.note(at, self.path.clone(), message, help);
    }

    /// Notes a fault that several endpoints have by one line: the first that has it says so.
    pub fn fault_once(&self, message: String, help: impl Into<String>) {
        if !self.sink.has(&self.span) {
            self.fault(message, help);
        }
    }

    /// Whether this is `false`, which takes an inherited setting away.
    pub fn is_off(&self) -> bool {
        matches!(self.value, DeValue::Boolean(false))
    }

    /// Whether this is a table, where a plain value would do too.
    pub fn is_table(&self) -> bool {
        matches!(self.value, DeValue::Table(_))
    }

    /// Whether this is a list, where a single value would do too.
    pub fn is_list(&self) -> bool {
        matches!(self.value, DeValue::Array(_))
    }

    fn wrong_type(&self, wanted: &str) {
        let found = match self.value {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "a number",
            DeValue::Float(_) => "a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        let field = self.path.rsplit('.').next().unwrap_or_default();
        self.fault(format!("`{field}` is {wanted}, not {found}"), format!("write {wanted}"));
    }

    fn keep<T>(&self, read: Result<T, Wrong>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err((message, help)) => {
                self.fault(message, help);
                None
            }
        }
    }

    /// The text, read by `read`.
    pub fn text<T>(&self, read: impl FnOnce(&str) -> Result<T, Wrong>) -> Option<T> {
        match self.value {
            DeValue::String(text) => self.keep(read(text)),
            _ => {
                self.wrong_type("a text in quotes");
                None
            }
        }
    }

    /// One of the words, each standing for a value.
    pub fn word<T: Clone>(&self, words: &[(&str, T)]) -> Option<T> {
        let list = || words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(", ");
        let DeValue::String(text) = self.value else {
            self.wrong_type(&format!("one of {}", list()));
            return None;
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text.as_ref()) {
            return Some(value.clone());
        }
        self.fault(format!("{text:?} is not a choice here"), format!("write one of {}", list()));
        None
    }

    /// A time above zero.
    pub fn time(&self) -> Option<Duration> {
        let time = self.any_time()?;
        if time.is_zero() {
            self.fault("a time of zero means nothing here", "write the time, with its unit: \"30s\"");
            return None;
        }
        Some(time)
    }

    /// A time; zero is one.
    pub fn any_time(&self) -> Option<Duration> {
        match self.value {
            DeValue::String(text) => self.keep(values::duration(text)),
            DeValue::Integer(number) => {
                let number = number.as_str();
                self.fault(
                    format!("{number} has no unit"),
                    format!("write the unit, in quotes: \"{number}s\", \"{number}m\", \"{number}h\""),
                );
                None
            }
            _ => {
                self.wrong_type("a time in quotes, such as \"24h\"");
                None
            }
        }
    }

    /// A size within `bounds`, in bytes.
    pub fn size(&self, bounds: RangeInclusive<usize>) -> Option<usize> {
        let bytes = match self.value {
            DeValue::String(text) => self.keep(values::size(text))?,
            DeValue::Integer(number) => {
                let number = number.as_str();
                self.fault(
                    format!("{number} has no unit"),
                    format!("write the unit, in quotes: \"{number}B\", \"{number}KiB\", \"{number}MiB\""),
                );
                return None;
            }
            _ => {
                self.wrong_type("a size in quotes, such as \"1MiB\"");
                return None;
            }
        };
        if !bounds.contains(&bytes) {
            let (low, high) = (bounds.start(), bounds.end());
            self.fault(format!("{bytes} bytes is out of bounds"), format!("write {low} to {high} bytes"));
            return None;
        }
        Some(bytes)
    }

    /// A whole number within `bounds`.
    pub fn number(&self, bounds: RangeInclusive<i64>) -> Option<i64> {
        let DeValue::Integer(number) = self.value else {
            self.wrong_type("a whole number");
            return None;
        };
        match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(value) if bounds.contains(&value) => Some(value),
            _ => {
                let (low, high) = (bounds.start(), bounds.end());
                self.fault(
                    format!("{number} is out of bounds"),
                    format!("write a number from {low} to {high}"),
                );
                None
            }
        }
    }

    /// A share above 0 and below 1.
    pub fn share(&self) -> Option<f64> {
        let DeValue::Float(number) = self.value else {
            self.wrong_type("a share, such as 0.1");
            return None;
        };
        match number.as_str().parse::<f64>() {
            Ok(share) if share > 0.0 && share < 1.0 => Some(share),
            _ => {
                self.fault(
                    format!("{} is no share", number.as_str()),
                    "write a number above 0 and below 1: 0.1",
                );
                None
            }
        }
    }

    /// A status, as a number.
    pub fn status(&self) -> Option<u16> {
        let number = self.number(i64::MIN..=i64::MAX)?;
        self.keep(values::status(number))
    }

    /// A yes or no.
    pub fn flag(&self) -> Option<bool> {
        match self.value {
            DeValue::Boolean(flag) => Some(*flag),
            _ => {
                self.wrong_type("true or false");
                None
            }
        }
    }

    /// The members of a list, counted from 1 in their paths.
    pub fn list(&self) -> Vec<Item<'a>> {
        let DeValue::Array(members) = self.value else {
            self.wrong_type("a list in square brackets");
            return Vec::new();
        };
        let member = |(at, value): (usize, &'a Spanned<DeValue<'a>>)| Item {
            path: format!("{}[{}]", self.path, at + 1),
            span: value.span(),
            value: value.get_ref(),
            sink: self.sink,
        };
        members.iter().enumerate().map(member).collect()
    }

    /// The table, with the fields it may have.
    pub fn section(&self, fields: &'static [&'static str]) -> Option<Section<'a>> {
        match self.value {
            DeValue::Table(table) => {
                Some(Section::new(self.path.clone(), self.span.clone(), table, fields, self.sink))
            }
            _ => {
                self.wrong_type("a table");
                None
            }
        }
    }

    /// The table, whose fields depend on the word in its `by` field: `source = "jwt"`.
    pub fn section_by(
        &self,
        by: &'static str,
        kinds: &[(&'static str, &'static [&'static str])],
        why: &str,
    ) -> Option<(&'static str, Section<'a>)> {
        let DeValue::Table(table) = self.value else {
            self.wrong_type("a table");
            return None;
        };
        let words: Vec<_> = kinds.iter().map(|(word, fields)| (*word, (*word, *fields))).collect();
        let list = words.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(", ");
        let Some((_, value)) = table.iter().find(|(key, _)| key.get_ref() == by) else {
            self.fault(
                format!("`{}.{by}` is not decided: {why}", self.path),
                format!("write {by} = one of {list}"),
            );
            return None;
        };
        let path = format!("{}.{by}", self.path);
        let item = Item { path, span: value.span(), value: value.get_ref(), sink: self.sink };
        let (word, fields) = item.word(&words)?;
        Some((word, Section::new(self.path.clone(), self.span.clone(), table, fields, self.sink)))
    }
}

/// The field that `name` most likely was meant to be: at most a third of it is different.
pub(super) fn nearest(name: &str, fields: &[&'static str]) -> Option<&'static str> {
    let close = |field: &&str| strsim::damerau_levenshtein(name, field);
    let best = fields.iter().copied().min_by_key(close)?;
    (close(&best) <= name.len().max(3) / 3).then_some(best)
}
