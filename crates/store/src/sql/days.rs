//! What was counted day by day (SPEC 10.4), as rows.

use retrysafe_core::orphans::Day;

use super::{Rows, Value, row::corrupt};
use crate::StoreError;

pub(crate) const COUNTING: &str = "counting a day";

/// Day, claims, orphans.
pub(crate) fn row(day: Day) -> Vec<Value> {
    let number = |count: u64| Value::Int(i64::try_from(count).unwrap_or(i64::MAX));
    vec![day.day.into(), number(day.claims), number(day.orphans)]
}

/// From the columns `day, claims, orphans`.
pub(crate) fn days(rows: &Rows) -> Result<Vec<Day>, StoreError> {
    let day = |columns: &Vec<Value>| {
        let [day, claims, orphans] = columns.as_slice() else { return None };
        let count = |value: &Value| value.int().map(i64::cast_unsigned);
        Some(Day { day: day.int()?, claims: count(claims)?, orphans: count(orphans)? })
    };
    rows.rows.iter().map(|columns| day(columns).ok_or_else(corrupt)).collect()
}
