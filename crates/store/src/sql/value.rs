//! Statements and rows.

use std::{fmt, sync::Arc};

use bytes::Bytes;

/// An argument or a column: a number, bytes, or nothing.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// SQL's `NULL`. Texts cast the parameters that may be null, since a driver cannot know their type.
    Null,
    /// A 64-bit integer (`bigint`). Every number column of a result has this type.
    Int(i64),
    /// Bytes (`bytea`, `varbinary`). Every other column of a result has this type.
    Bytes(Bytes),
}

impl Value {
    /// Bytes that are copied.
    #[must_use]
    pub fn bytes(bytes: &[u8]) -> Self {
        Self::Bytes(Bytes::copy_from_slice(bytes))
    }

    /// The number; `None` for anything else.
    #[must_use]
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Null | Self::Bytes(_) => None,
        }
    }

    /// The bytes; `None` for anything else.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Null | Self::Int(_) => None,
        }
    }

    /// Whether it is `NULL`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<Bytes> for Value {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Bytes are keys, accounts and answers: only their length is shown.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
        }
    }
}

/// One statement, ready to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// The text, with the placeholders of its database (`$1`, `?`). The same text always comes as the same bytes, so that
    /// a driver can keep it prepared.
    pub text: Arc<str>,
    /// One for each placeholder.
    pub values: Vec<Value>,
}

impl Statement {
    /// A statement with arguments.
    #[must_use]
    pub fn new(text: &Arc<str>, values: Vec<Value>) -> Self {
        Self { text: Arc::clone(text), values }
    }

    /// A statement without arguments.
    #[must_use]
    pub fn plain(text: &Arc<str>) -> Self {
        Self { text: Arc::clone(text), values: Vec::new() }
    }

    /// Whether a store ends a transaction with it. (`ROLLBACK TO` does not.)
    #[must_use]
    pub(crate) fn ends_transaction(&self) -> bool {
        matches!(&*self.text, "COMMIT" | "ROLLBACK")
    }
}

/// What one statement gave.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Rows {
    /// The rows of its result, if it has one.
    pub rows: Vec<Vec<Value>>,
    /// How many rows it changed or returned, as the server counts them.
    pub affected: u64,
}

impl Rows {
    /// Column `at` of the only row; `None` where there is not exactly one row, or no such column.
    #[must_use]
    pub fn only(&self, at: usize) -> Option<&Value> {
        match self.rows.as_slice() {
            [row] => row.get(at),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_bytes() {
        let statement = Statement::new(&"SELECT $1".into(), vec![Value::bytes(b"secret-key"), Value::Int(7)]);
        let shown = format!("{statement:?}");
        assert!(shown.contains("10 bytes") && shown.contains('7') && !shown.contains("secret"), "{shown}");
        assert!(!shown.contains("115"), "not as numbers either: {shown}");
    }

    #[test]
    fn only_is_for_exactly_one_row() {
        let row = vec![Value::Int(1)];
        let rows = |rows| Rows { rows, affected: 0 };
        assert_eq!(rows(vec![row.clone()]).only(0), Some(&Value::Int(1)));
        assert_eq!(rows(vec![row.clone()]).only(1), None);
        assert_eq!(rows(vec![]).only(0), None);
        assert_eq!(rows(vec![row.clone(), row]).only(0), None);
    }
}
