//! The arbiter verb and its companions.

use bytes::Bytes;
use retrysafe_core::{
    address::Address,
    ids::Fence,
    record::{Expect, Record, RemoveIf, State, Write},
};

use super::{
    calls::{TRIES, pause},
    fault::Does,
    inner::Inner,
};
use crate::{
    ErrorKind, StoreError, Written, is_own_write,
    sql::{
        Driver, Rows, Statement, Value,
        row::{Columns, Guard, Row, address_values, corrupt, with_body},
    },
};

const WRITING: &str = "writing a record";
const LOADING: &str = "loading a record";
const REMOVING: &str = "removing a record";

impl<D: Driver> Inner<D> {
    pub(super) async fn load(&self, address: &Address) -> Result<Option<Record>, StoreError> {
        let statement = Statement::new(&self.texts.load, address_values(address).into());
        let rows = self.one(statement, LOADING, Does::Read).await?;
        match rows.rows.first() {
            None => Ok(None),
            Some(columns) => self.whole(Row::of(columns).ok_or_else(corrupt)?).await.map(Some),
        }
    }

    /// The record of a row, with the body that is kept apart. A body outlives its row, so it is there even where the row
    /// was replaced in between.
    pub(super) async fn whole(&self, row: Row) -> Result<Record, StoreError> {
        let record = row.record()?;
        match row.response_day {
            None => Ok(record),
            Some(day) => self.body(day, &record).await.and_then(|body| with_body(record, body)),
        }
    }

    async fn body(&self, day: i64, record: &Record) -> Result<Bytes, StoreError> {
        let attempt = Value::bytes(&record.attempt.as_u128().to_be_bytes());
        let statement = Statement::new(&self.texts.body, vec![day.into(), attempt]);
        let rows = self.one(statement, LOADING, Does::Read).await?;
        rows.only(0).and_then(Value::as_bytes).cloned().ok_or_else(corrupt)
    }

    /// The record at `address`, where it is likely that a finished one is there ([`Finished`](super::finished::Finished)) and
    /// `write` could not apply beside any. `None`: nothing is known, and the write has to be tried.
    pub(super) async fn likely_present(
        &self,
        address: &Address,
        lock: i64,
        write: &Write,
    ) -> Result<Option<Record>, StoreError> {
        if write.expect != Expect::Absent || !self.finished.is_likely(lock) {
            return Ok(None);
        }
        let present = self.load(address).await?;
        if present.is_none() {
            self.finished.forget(lock);
        }
        Ok(present)
    }

    /// What was seen, for the next claim of it.
    pub(super) fn note(&self, lock: i64, record: &Record) {
        if matches!(record.state, State::Completed { .. }) {
            self.finished.note(lock);
        }
    }

    pub(super) async fn write_if(&self, address: &Address, write: &Write) -> Result<Written, StoreError> {
        let lock = self.lock_of(address);
        if let Some(present) = self.likely_present(address, lock, write).await? {
            return Ok(match is_own_write(write, &present) {
                Some(fence) => Written::Yes(fence),
                None => Written::No(Some(present)),
            });
        }
        let statement = self.write(address, write)?;
        let mut tries = 0;
        loop {
            let rows = self.one_again(&statement, WRITING).await?;
            if let Some(written) = self.judge(write, &rows).await? {
                match &written {
                    Written::Yes(_) => self.note(lock, &write.next),
                    Written::No(Some(present)) => self.note(lock, present),
                    Written::No(None) => {}
                }
                return Ok(written);
            }
            // The snapshot of the statement was older than what it met. Seen from now on, it is what is there.
            tries += 1;
            if tries == TRIES {
                return Err(StoreError::new(ErrorKind::Busy, WRITING));
            }
            pause(tries).await;
        }
    }

    fn write(&self, address: &Address, write: &Write) -> Result<Statement, StoreError> {
        let columns = Columns::of(&write.next)?;
        let texts = &self.texts;
        let (text, guard) = match (Guard::of(write.expect), &columns.long) {
            (None, None) => (&texts.claim, None),
            (None, Some(_)) => (&texts.claim_long, None),
            (Some(guard), None) => (&texts.replace, Some(guard)),
            (Some(guard), Some(_)) => (&texts.replace_long, Some(guard)),
        };
        let mut values: Vec<Value> = Vec::with_capacity(18);
        values.extend(address_values(address));
        let status = columns.status.clone();
        let body = columns.extend(&mut values, status);
        if let Some(guard) = guard {
            values.extend(guard.values());
            values.push(i64::from(write.opens_claim()).into());
        }
        values.extend(body);
        Ok(Statement::new(text, values))
    }

    /// What the statement says; `None`: nothing that is true now.
    async fn judge(&self, write: &Write, rows: &Rows) -> Result<Option<Written>, StoreError> {
        let Some(columns) = rows.rows.first() else {
            // A claim always returns a row, unless it met one that is newer than its snapshot.
            let gone = write.expect != Expect::Absent;
            return Ok(gone.then_some(Written::No(None)));
        };
        let (applied, columns) = columns.split_first().ok_or_else(corrupt)?;
        if applied.int() == Some(1) {
            let fence = columns.first().and_then(Value::int).ok_or_else(corrupt)?;
            return Ok(Some(Written::Yes(Fence::from_u64(fence.cast_unsigned()))));
        }
        let present = self.whole(Row::of(columns).ok_or_else(corrupt)?).await?;
        if let Some(fence) = is_own_write(write, &present) {
            return Ok(Some(Written::Yes(fence)));
        }
        let stale = write.expect.allows(Some(&present));
        Ok((!stale).then_some(Written::No(Some(present))))
    }

    pub(super) async fn remove_if(&self, address: &Address, guard: RemoveIf) -> Result<bool, StoreError> {
        let mut values = Vec::from(address_values(address));
        values.extend(Guard::of_removal(guard).values());
        // Not sent again: once it is gone, "it was not there" would be no answer to whoever removed it.
        let rows = self.one(Statement::new(&self.texts.remove, values), REMOVING, Does::Write).await?;
        Ok(rows.affected == 1)
    }
}

impl Columns {
    /// Adds `$4` to `$11`, and returns the body that goes elsewhere.
    pub(super) fn extend(self, values: &mut Vec<Value>, status: Value) -> Option<Value> {
        let day = self.long.as_ref().map(|long| long.day);
        values.extend([
            self.attempt,
            status,
            self.state.into(),
            self.due_ms,
            self.expires_ms,
            self.resource,
            day.into(),
            self.data,
        ]);
        self.long.map(|long| long.body.into())
    }
}
