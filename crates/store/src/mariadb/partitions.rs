//! The partitions of long answers: one for each day on which they may be reaped.
//!
//! They are made ahead of time by splitting the last one, which is empty then, and dropped when no row names their day any
//! more. Both are DDL, which waits for every open transaction that touched the table and lets nobody in while it waits; so it
//! waits for a second and is tried again at the next reaping. For the same reason no handler's transaction reads that table.

use std::sync::Arc;

use retrysafe_core::time::Wall;

use super::{Shared, schema::number};
use crate::sql::{Connection, Driver, Failure, FailureKind, Statement, Value, row::day_of};

/// How long others may be kept from the table.
const DDL_PATIENCE_SECONDS: u32 = 1;

/// Days that a partition is kept beyond its own: a process whose time is a little behind may still write into it.
const DAYS_KEPT: i64 = 1;

const MS_A_DAY: i64 = 24 * 60 * 60 * 1000;

const PARTITIONS: &str = "SELECT partition_name, partition_description FROM information_schema.partitions \
    WHERE table_schema = DATABASE() AND table_name = 'retrysafe_response' ORDER BY partition_ordinal_position";

/// A partition for the days before `end`.
#[derive(PartialEq, Eq, Debug)]
struct Partition {
    name: String,
    end: i64,
}

impl<D: Driver> Shared<D> {
    /// Makes the partitions of the days to come and drops those that are done, once a day in each process. A failure is
    /// logged and made up for later: without partitions answers go to the last one.
    pub(super) async fn look_after_partitions(&self, now: Wall) {
        if !self.is_new_day(day_of(now)) {
            return;
        }
        if let Err(failure) = self.make_and_drop(now).await {
            // The next reaping tries again.
            self.is_new_day(i64::MIN);
            tracing::info!("the partitions of long answers were not looked after this time: {failure}");
        }
    }

    async fn make_and_drop(&self, now: Wall) -> Result<(), Failure> {
        let mut connection = self.own.acquire().await?;
        let done = self.make_and_drop_on(&mut connection, day_of(now)).await;
        // With it go the lock, and whatever else was left.
        connection.discard();
        done
    }

    async fn make_and_drop_on<C: Connection>(&self, connection: &mut C, today: i64) -> Result<(), Failure> {
        let lock = "SELECT CAST(GET_LOCK(CONCAT('retrysafe-days/', DATABASE()), 0) AS SIGNED)";
        if number(connection, lock).await? != Some(1) {
            return Ok(());
        }
        let partitions = partitions(connection).await?;
        if let Some(ddl) = splitting(&partitions, today, self.days_ahead.into()) {
            connection.script(&ddl).await?;
        }
        for partition in partitions.iter().filter(|partition| partition.end <= today - DAYS_KEPT) {
            // Its records have to be reaped first: a replay must find its body.
            let left = format!(
                "SELECT COUNT(*) FROM (SELECT 1 FROM retrysafe_key WHERE state = 2 AND due_ms < {} LIMIT 1) AS l",
                partition.end.saturating_mul(MS_A_DAY)
            );
            if number(connection, &left).await? == Some(0) {
                connection.script(&dropping(partition)).await?;
            }
        }
        Ok(())
    }
}

async fn partitions<C: Connection>(connection: &mut C) -> Result<Vec<Partition>, Failure> {
    let query: Arc<str> = PARTITIONS.into();
    let rows = connection.run(&[Statement::plain(&query)]).await.all()?;
    let text = |value: Option<&Value>| {
        value.and_then(Value::as_bytes).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    let rows =
        rows.into_iter().next().ok_or_else(|| Failure::new(FailureKind::Malformed, "no partitions"))?;
    // The last one has no number; it is not among them.
    let partition =
        |row: &Vec<Value>| Some(Partition { name: text(row.first())?, end: text(row.get(1))?.parse().ok()? });
    Ok(rows.rows.iter().filter_map(partition).collect())
}

/// The DDL for the days up to `ahead` from today; `None` where more than half of them are there.
fn splitting(partitions: &[Partition], today: i64, ahead: i64) -> Option<String> {
    let from = partitions.last().map_or(today, |last| last.end.max(today));
    if ahead == 0 || from > today + ahead / 2 {
        return None;
    }
    let days: Vec<String> = (from..=today + ahead)
        .map(|day| format!("PARTITION day{day} VALUES LESS THAN ({})", day + 1))
        .collect();
    Some(format!(
        "SET STATEMENT lock_wait_timeout = {DDL_PATIENCE_SECONDS} FOR ALTER TABLE retrysafe_response \
         REORGANIZE PARTITION later INTO ({}, PARTITION later VALUES LESS THAN MAXVALUE)",
        days.join(", ")
    ))
}

fn dropping(partition: &Partition) -> String {
    format!(
        "SET STATEMENT lock_wait_timeout = {DDL_PATIENCE_SECONDS} FOR ALTER TABLE retrysafe_response \
         DROP PARTITION {}",
        partition.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up_to(end: i64) -> Vec<Partition> {
        vec![Partition { name: format!("day{}", end - 1), end }]
    }

    #[test]
    fn days_are_split_off_ahead_of_time_and_in_one_go() {
        let first = splitting(&[], 100, 2).unwrap();
        for day in
            ["day100 VALUES LESS THAN (101)", "day101", "day102 VALUES LESS THAN (103), PARTITION later"]
        {
            assert!(first.contains(day), "{first}");
        }
        assert_eq!(splitting(&up_to(103), 100, 2), None, "enough");
        let next = splitting(&up_to(103), 102, 2).unwrap();
        assert!(next.contains("INTO (PARTITION day103 ") && next.contains("day104"), "{next}");
        // After a long pause there are no partitions for days that are over.
        let later = splitting(&up_to(103), 200, 1).unwrap();
        assert!(later.contains("INTO (PARTITION day200 "), "{later}");
        assert_eq!(splitting(&[], 100, 0), None, "switched off");
    }
}
