//! What was counted day by day (SPEC 10.4).

use retrysafe_core::orphans::Day;
use rusqlite::{Connection, Row, params};

use super::fault::failed;
use crate::{DAYS_READ, StoreError};

const COUNTING: &str = "counting a day";

pub(super) fn add(connection: &Connection, day: Day) -> Result<(), StoreError> {
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    connection
        .prepare_cached(
            "INSERT INTO retrysafe_day (day, claims, orphans) VALUES (?1, ?2, ?3)
             ON CONFLICT (day) DO UPDATE SET claims = claims + excluded.claims, orphans = orphans + excluded.orphans",
        )
        .and_then(|mut statement| statement.execute(params![day.day, number(day.claims), number(day.orphans)]))
        .map(drop)
        .map_err(failed(COUNTING))
}

pub(super) fn read(connection: &Connection) -> Result<Vec<Day>, StoreError> {
    connection
        .prepare_cached(
            "SELECT day, claims, orphans FROM (SELECT * FROM retrysafe_day ORDER BY day LIMIT ?1)
             UNION SELECT day, claims, orphans FROM (SELECT * FROM retrysafe_day ORDER BY day DESC LIMIT ?1)",
        )
        .and_then(|mut statement| {
            let row = |row: &Row<'_>| {
                Ok(Day {
                    day: row.get(0)?,
                    claims: row.get::<_, i64>(1)?.cast_unsigned(),
                    orphans: row.get::<_, i64>(2)?.cast_unsigned(),
                })
            };
            statement.query_map([DAYS_READ], row)?.collect()
        })
        .map_err(failed(COUNTING))
}
