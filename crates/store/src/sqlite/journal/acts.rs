//! The log of acts.

use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    ids::StatusId,
    recovery::Act,
    time::Wall,
};
use rusqlite::{Connection, Row, ToSql, params};

use super::super::{fault::failed, transaction::key_of};
use crate::{
    ErrorKind, StoreError,
    journal::{LoggedAct, NewAct},
};

const LOGGING: &str = "logging an act";
const READING: &str = "reading the log of acts";

pub(super) fn insert(
    connection: &Connection,
    address: &Address,
    operation: StatusId,
    act: &NewAct,
) -> Result<(), StoreError> {
    act.fits()?;
    let [namespace, account, key] = key_of(address);
    let operation = operation.as_u128().to_be_bytes();
    connection
        .prepare_cached(
            "INSERT INTO retrysafe_act (at, operation, namespace, account, key, act, who, why, evidence)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )
        .and_then(|mut statement| {
            let (at, name) = (act.at.unix_ms(), act.act.name());
            statement.execute(params![
                at,
                operation,
                namespace,
                account,
                key,
                name,
                act.who,
                act.why,
                act.evidence
            ])
        })
        .map(drop)
        .map_err(failed(LOGGING))
}

const COLUMNS: &str = "number, at, operation, namespace, account, key, act, who, why, evidence";

pub(super) fn read(
    connection: &Connection,
    of: Option<&Address>,
    after: u64,
    limit: usize,
) -> Result<Vec<LoggedAct>, StoreError> {
    let (after, limit) = (i64::try_from(after).unwrap_or(i64::MAX), i64::try_from(limit).unwrap_or(i64::MAX));
    let select = |condition: &str, arguments: &[&dyn ToSql]| {
        let sql = format!(
            "SELECT {COLUMNS} FROM retrysafe_act WHERE {condition} number > ?1 ORDER BY number LIMIT ?2"
        );
        let mut statement = connection.prepare_cached(&sql)?;
        statement.query_map(arguments, columns)?.collect::<rusqlite::Result<Vec<_>>>()
    };
    let rows = match of.map(key_of) {
        None => select("", params![after, limit]),
        Some([namespace, account, key]) => select(
            "namespace = ?3 AND account = ?4 AND key = ?5 AND",
            params![after, limit, namespace, account, key],
        ),
    };
    let corrupt = || StoreError::new(ErrorKind::Corrupt, READING);
    rows.map_err(failed(READING))?.into_iter().map(|row| row.ok_or_else(corrupt)).collect()
}

/// `None`: no line that we wrote.
fn columns(row: &Row<'_>) -> rusqlite::Result<Option<LoggedAct>> {
    let text = |at: usize| Ok::<_, rusqlite::Error>(String::from_utf8(row.get(at)?).ok());
    let (namespace, account, key) = (text(3)?, text(4)?, text(5)?);
    let address = || {
        Some(Address::new(
            Namespace::new(&namespace?).ok()?,
            Account::from_stored(&account?).ok()?,
            Key::trusted(&key?).ok()?,
        ))
    };
    let (number, act): (i64, String) = (row.get(0)?, row.get(6)?);
    let (Some(address), Some(act)) = (address(), Act::named(&act)) else { return Ok(None) };
    Ok(Some(LoggedAct {
        number: number.cast_unsigned(),
        address,
        operation: StatusId::new(u128::from_be_bytes(row.get(2)?)),
        act: NewAct {
            who: row.get(7)?,
            act,
            why: row.get(8)?,
            evidence: row.get(9)?,
            at: Wall::from_unix_ms(row.get(1)?),
        },
    }))
}
