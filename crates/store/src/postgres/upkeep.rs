//! What the store does by itself: it reads the clock, and looks after the tables of long answers.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, task::JoinHandle};

use super::{
    CLOCK_INTERVAL, OpenError, PARTITION_INTERVAL, Tended,
    fault::{Does, failed},
    inner::{Inner, Shared},
};
use crate::{
    StoreError,
    sql::{Connection, Driver, FailureKind, Statement, Value, row::day_of},
};

const TENDING: &str = "looking after the tables of long answers";

/// A table is made or dropped only if that needs no waiting: both lock the parent, and every long answer would stand
/// behind whoever waits.
const DDL_LOCK_TIMEOUT: Duration = Duration::from_millis(200);

/// A table is dropped this many days after its day: no clock is that far behind.
const DAYS_KEPT: i64 = 2;

/// The task, which ends with the last handle of the store.
pub(super) struct Upkeep(JoinHandle<()>);

impl Upkeep {
    pub(super) fn start<D: Driver>(inner: &Shared<D>) -> Result<Self, OpenError> {
        let runtime = Handle::try_current().map_err(|_| OpenError::NoRuntime)?;
        Ok(Self(runtime.spawn(run(Arc::downgrade(inner)))))
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run<D: Driver>(inner: Weak<Inner<D>>) {
    let mut tended: Option<Instant> = None;
    let mut warned = false;
    loop {
        {
            let Some(inner) = inner.upgrade() else { return };
            if tended.is_none_or(|at| at.elapsed() >= PARTITION_INTERVAL) {
                tended = Some(Instant::now());
                if let Err(error) = inner.tend_responses().await {
                    tracing::warn!(%error, "long answers go to the table for all days, which is reaped row by row");
                }
            }
            match inner.read_clock().await {
                Ok(()) => warned = false,
                Err(error) if !warned => {
                    warned = true;
                    tracing::warn!(%error, "the database's clock cannot be read; time goes on by this machine's counter");
                }
                Err(_) => {}
            }
        }
        tokio::time::sleep(CLOCK_INTERVAL).await;
    }
}

impl<D: Driver> Inner<D> {
    pub(super) async fn tend_responses(&self) -> Result<Tended, StoreError> {
        let Ok(now) = self.clock.now(Instant::now()) else { return Ok(Tended::default()) };
        let today = day_of(now);
        let there = self.response_days().await?;
        let mut tended = Tended::default();
        for day in today..=today + i64::from(self.options.days_ahead) {
            if !there.contains(&day) && self.ddl(&self.make(day)).await? {
                tended.made += 1;
            }
        }
        for day in there.into_iter().filter(|day| *day < today - DAYS_KEPT) {
            if self.ddl(&self.drop_if_unused(day)).await? {
                tended.dropped += 1;
            }
        }
        self.reap_other(today).await?;
        Ok(tended)
    }

    /// The days that have a table.
    async fn response_days(&self) -> Result<Vec<i64>, StoreError> {
        let text: Arc<str> = format!(
            "SELECT substring(child.relname FROM 10)::bigint FROM pg_catalog.pg_inherits \
             JOIN pg_catalog.pg_class AS child ON child.oid = inhrelid \
             WHERE inhparent = '\"{}\".response'::regclass AND child.relname ~ '^response_[0-9]+$'",
            self.options.schema
        )
        .into();
        let rows = self.one(Statement::plain(&text), TENDING, Does::Read).await?;
        Ok(rows.rows.iter().filter_map(|row| row.first().and_then(Value::int)).collect())
    }

    fn make(&self, day: i64) -> String {
        let s = &self.options.schema;
        format!(
            "CREATE TABLE IF NOT EXISTS \"{s}\".response_{day} PARTITION OF \"{s}\".response FOR VALUES IN ({day})"
        )
    }

    /// The row names the day, so a table goes only when no row names it. Under the lock nobody can write one that does.
    fn drop_if_unused(&self, day: i64) -> String {
        let s = &self.options.schema;
        format!(
            "LOCK TABLE \"{s}\".response IN ACCESS EXCLUSIVE MODE; \
             DO $$ BEGIN IF NOT EXISTS (SELECT FROM \"{s}\".key WHERE response_day = {day}) \
             THEN DROP TABLE IF EXISTS \"{s}\".response_{day}; ELSE RAISE lock_not_available; END IF; END $$"
        )
    }

    /// Runs a change of the tables that may be put off. `false`: it was.
    async fn ddl(&self, text: &str) -> Result<bool, StoreError> {
        let mut connection =
            self.driver.acquire().await.map_err(|failure| failed(failure, TENDING, Does::Read))?;
        let text =
            format!("BEGIN; SET LOCAL lock_timeout = {}; {text}; COMMIT", DDL_LOCK_TIMEOUT.as_millis());
        match connection.script(&text).await {
            Ok(()) => Ok(true),
            Err(failure) => {
                connection.abandon();
                match failure.kind {
                    // Somebody is at it; the table for all days holds rows of this one; another process was quicker.
                    FailureKind::Refused(code)
                        if matches!(code.state(), "55P03" | "40P01" | "23514" | "42P07" | "23505") =>
                    {
                        Ok(false)
                    }
                    _ => Err(failed(failure, TENDING, Does::Read)),
                }
            }
        }
    }

    /// Bodies in the table for all days go when their day is over and no row names it.
    async fn reap_other(&self, today: i64) -> Result<(), StoreError> {
        let s = &self.options.schema;
        let text: Arc<str> = format!(
            "DELETE FROM \"{s}\".response_other WHERE (day, attempt) IN (\
               SELECT day, attempt FROM \"{s}\".response_other AS other WHERE day < $1::bigint \
               AND NOT EXISTS (SELECT FROM \"{s}\".key WHERE response_day = other.day) \
               LIMIT 1000 FOR UPDATE SKIP LOCKED)"
        )
        .into();
        let values = vec![(today - DAYS_KEPT).into()];
        self.one(Statement::new(&text, values), TENDING, Does::Write).await.map(drop)
    }
}
