//! Values as PostgreSQL takes and gives them, in binary and, for the simple protocol, as text.

use std::{error::Error as StdError, pin::pin};

use bytes::{BufMut, BytesMut};
use futures_util::TryStreamExt;
use tokio_postgres::{
    Client, SimpleQueryMessage, SimpleQueryRow,
    types::{FromSql, IsNull, ToSql, Type, to_sql_checked},
};

use super::{
    driver::failure,
    literals::{value_of, write_literals},
};
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

fn values_of(row: &SimpleQueryRow) -> Option<Vec<Value>> {
    (0..row.len()).map(|at| value_of(row.get(at))).collect()
}
