//! Values as PostgreSQL takes and gives them, in binary and, for the simple protocol, as text.

use std::{error::Error as StdError, fmt::Write as _, pin::pin};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::TryStreamExt;
use tokio_postgres::{
    Client, SimpleQueryMessage, SimpleQueryRow,
    types::{FromSql, IsNull, ToSql, Type, to_sql_checked},
};

use super::driver::failure;
use crate::sql::{Failure, FailureKind, Ran, Rows, Statement, Value};

/// The type that a parameter is declared with. A null is left to the cast in the text.
pub(super) fn type_of(value: &Value) -> Type {
    match value {
        Value::Null => Type::UNKNOWN,
        Value::Int(_) => Type::INT8,
        Value::Bytes(_) => Type::BYTEA,
    }
}

impl ToSql for Value {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match self {
            Value::Null => return Ok(IsNull::Yes),
            Value::Int(number) => out.put_i64(*number),
            Value::Bytes(bytes) => out.put_slice(bytes),
        }
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::INT8 | Type::BYTEA | Type::UNKNOWN)
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        match *ty {
            Type::INT8 => Ok(Value::Int(i64::from_be_bytes(raw.try_into()?))),
            _ => Ok(Value::bytes(raw)),
        }
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Value::Null)
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::INT8 | Type::BYTEA)
    }
}

/// Runs a list as one message of the simple protocol. The server runs it as one and stops at the first failure.
pub(super) async fn simple(client: &Client, statements: &[Statement]) -> Ran {
    let mut text = String::new();
    for statement in statements {
        write_literals(&mut text, statement);
        text.push_str(";\n");
    }
    let mut ran = Ran { done: Vec::new(), failure: None };
    let stream = match client.simple_query_raw(&text).await {
        Ok(stream) => stream,
        Err(error) => return Ran { failure: Some(failure(error)), ..ran },
    };
    let mut stream = pin!(stream);
    let mut rows = Vec::new();
    loop {
        match stream.try_next().await {
            Ok(Some(SimpleQueryMessage::Row(row))) => match values_of(&row) {
                Some(values) => rows.push(values),
                None => {
                    let why = "a column is neither a number nor bytes; bytea_output has to be hex";
                    return Ran { failure: Some(Failure::new(FailureKind::Malformed, why)), ..ran };
                }
            },
            Ok(Some(SimpleQueryMessage::CommandComplete(affected))) => {
                ran.done.push(Rows { rows: std::mem::take(&mut rows), affected });
            }
            Ok(Some(_)) => {}
            Ok(None) => return ran,
            Err(error) => return Ran { failure: Some(failure(error)), ..ran },
        }
    }
}

/// The text with its arguments written in. `decode` means the same whatever `standard_conforming_strings` says.
fn write_literals(out: &mut String, statement: &Statement) {
    let mut rest: &str = &statement.text;
    while let Some(at) = rest.find('$') {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let digits = after[1..].bytes().take_while(u8::is_ascii_digit).count();
        let argument: Option<usize> = after[1..=digits].parse().ok();
        match argument.and_then(|number| statement.values.get(number.checked_sub(1)?)) {
            Some(Value::Null) => out.push_str("NULL"),
            // In parentheses, so that a negative number is one operand.
            Some(Value::Int(number)) => {
                let _ = write!(out, "({number})");
            }
            Some(Value::Bytes(bytes)) => {
                out.push_str("decode('");
                for byte in bytes {
                    let _ = write!(out, "{byte:02x}");
                }
                out.push_str("', 'hex')");
            }
            // Not ours: left as it is, for the server to refuse.
            None => out.push_str(&after[..=digits]),
        }
        rest = &after[1 + digits..];
    }
    out.push_str(rest);
}

fn values_of(row: &SimpleQueryRow) -> Option<Vec<Value>> {
    (0..row.len())
        .map(|at| match row.get(at) {
            None => Some(Value::Null),
            Some(text) => match text.strip_prefix("\\x") {
                Some(digits) => from_hex(digits).map(Value::Bytes),
                None => text.parse().ok().map(Value::Int),
            },
        })
        .collect()
}

fn from_hex(digits: &str) -> Option<Bytes> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_become_literals_that_no_setting_changes() {
        let values = vec![Value::bytes(b"a'\\\x00"), Value::Int(-5), Value::Null];
        let statement =
            Statement::new(&"SELECT $1::bytea, 3 - $2::bigint, $3::bytea, $10, '$'".into(), values);
        let mut text = String::new();
        write_literals(&mut text, &statement);
        assert_eq!(text, "SELECT decode('61275c00', 'hex')::bytea, 3 - (-5)::bigint, NULL::bytea, $10, '$'");
    }

    #[test]
    fn hex_is_read_back() {
        assert_eq!(from_hex("").as_deref(), Some(&b""[..]));
        assert_eq!(from_hex("00fFa1").as_deref(), Some(&b"\x00\xff\xa1"[..]));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("zz"), None);
    }
}
