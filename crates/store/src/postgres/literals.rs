//! Values as text, for the simple protocol: written into a statement, and read from its answer.

use std::fmt::Write as _;

use bytes::Bytes;

use crate::sql::{Statement, Value};

/// The text with its arguments written in. `decode` means the same whatever `standard_conforming_strings` says.
pub(super) fn write_literals(out: &mut String, statement: &Statement) {
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

/// The value of a column that came as text; `None` where it is neither a number nor bytes.
pub(super) fn value_of(text: Option<&str>) -> Option<Value> {
    match text {
        None => Some(Value::Null),
        Some(text) => match text.strip_prefix("\\x") {
            Some(digits) => from_hex(digits).map(Value::Bytes),
            None => text.parse().ok().map(Value::Int),
        },
    }
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
