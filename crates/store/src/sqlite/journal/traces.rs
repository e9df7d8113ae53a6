//! What a person wants to know of an operation besides its journal: its effects as they stand, and how often it was replayed.

use retrysafe_core::{ids::StatusId, time::Wall};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{super::fault::failed, DEAD, SENT, STAGING, WAITING};
use crate::{
    ErrorKind, StoreError,
    journal::{COUNTING, EffectState, Replays, StagedEffect},
};

pub(super) fn staged(
    connection: &Connection,
    operation: StatusId,
    limit: usize,
) -> Result<Vec<StagedEffect>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = connection
        .prepare_cached(
            "SELECT name, state, due, tries, staged, ended, failure FROM retrysafe_staged
             WHERE operation = ?1 ORDER BY name LIMIT ?2",
        )
        .and_then(|mut statement| {
            let rows = statement.query_map(params![operation.as_u128().to_be_bytes(), limit], standing)?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        })
        .map_err(failed(STAGING))?;
    rows.into_iter().map(|row| row.ok_or_else(|| StoreError::new(ErrorKind::Corrupt, STAGING))).collect()
}

/// `None`: no row that we wrote.
fn standing(row: &Row<'_>) -> rusqlite::Result<Option<StagedEffect>> {
    let at =
        |column: usize| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(Wall::from_unix_ms));
    let state = match row.get::<_, i64>(1)? {
        WAITING => EffectState::Waiting { due: Wall::from_unix_ms(row.get(2)?) },
        SENT => EffectState::Sent { at: at(5)? },
        DEAD => EffectState::GivenUp { at: at(5)? },
        _ => return Ok(None),
    };
    let Ok(name) = String::from_utf8(row.get(0)?) else { return Ok(None) };
    let failure = row.get::<_, Option<Vec<u8>>>(6)?;
    let failure = failure.map(|bytes| String::from_utf8_lossy(&bytes).into());
    Ok(Some(StagedEffect { name: name.into(), state, staged: at(4)?, tries: row.get(3)?, failure }))
}

pub(super) fn add(connection: &Connection, counted: &[Replays]) -> Result<(), StoreError> {
    let add = || {
        let mut statement = connection.prepare_cached(
            "INSERT INTO retrysafe_replays (operation, times, first_at, last_at)
             SELECT ?1, ?2, ?3, ?4 WHERE EXISTS (SELECT 1 FROM retrysafe_journal WHERE operation = ?1 AND seq = 0)
             ON CONFLICT (operation) DO UPDATE SET times = times + excluded.times,
               first_at = min(first_at, excluded.first_at), last_at = max(last_at, excluded.last_at)",
        )?;
        for one in counted {
            let times = i64::try_from(one.times).unwrap_or(i64::MAX);
            let operation = one.operation.as_u128().to_be_bytes();
            statement.execute(params![operation, times, one.first.unix_ms(), one.last.unix_ms()])?;
        }
        Ok(())
    };
    add().map_err(failed(COUNTING))
}

pub(super) fn replays(connection: &Connection, operation: StatusId) -> Result<Option<Replays>, StoreError> {
    connection
        .prepare_cached("SELECT times, first_at, last_at FROM retrysafe_replays WHERE operation = ?1")
        .and_then(|mut statement| {
            let row = |row: &Row<'_>| {
                Ok(Replays {
                    operation,
                    times: row.get::<_, i64>(0)?.cast_unsigned(),
                    first: Wall::from_unix_ms(row.get(1)?),
                    last: Wall::from_unix_ms(row.get(2)?),
                })
            };
            statement.query_row([operation.as_u128().to_be_bytes()], row).optional()
        })
        .map_err(failed(COUNTING))
}
