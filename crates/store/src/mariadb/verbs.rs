//! The verbs on one address.

use retrysafe_core::{
    address::{Account, Address, Namespace},
    ids::{Fence, StatusId},
    record::{Record, RemoveIf, ResourceId, Write},
    time::Wall,
};

use super::{
    Shared,
    calls::{Again, body_values, column_values},
    fault::Does,
    lists::address_of,
    texts::{jump_fence, verdict},
};
use crate::{
    ErrorKind, StoreError, Written, is_own_write,
    sql::{
        Driver, Rows, Statement, Value,
        row::{self, Columns, Guard, Row},
    },
};

const READING: &str = "reading a record";
const WRITING: &str = "writing a record";
const REMOVING: &str = "removing a record";

/// How often a claim is tried again that lost against a record which was gone when it was looked at (R10).
const VANISHED_MAX: u32 = 5;

/// What the first row of an answer says.
pub(super) enum Answer {
    /// Done, with this fence.
    Done(Fence),
    /// Not done; this is there.
    Seen(Option<Row>),
    /// Another transaction holds the address.
    Locked,
    /// Another claim came in between.
    Raced,
    /// The transaction had ended before.
    Lost,
}

impl Answer {
    pub(super) fn of(rows: &Rows) -> Result<Self, StoreError> {
        // The record was removed while we looked.
        let Some(first) = rows.rows.first() else { return Ok(Self::Seen(None)) };
        let [said, rest @ ..] = first.as_slice() else { return Err(row::corrupt()) };
        let fence = || {
            let fence = rest.first().and_then(Value::int).ok_or_else(row::corrupt)?;
            Ok::<_, StoreError>(Fence::from_u64(fence.cast_unsigned()))
        };
        match said.int() {
            Some(verdict::DONE) => Ok(Self::Done(fence()?)),
            Some(verdict::SEEN) => Ok(Self::Seen(Row::of(rest))),
            Some(verdict::LOCKED) => Ok(Self::Locked),
            Some(verdict::RACED) => Ok(Self::Raced),
            Some(verdict::LOST) => Ok(Self::Lost),
            _ => Err(row::corrupt()),
        }
    }
}

impl<D: Driver> Shared<D> {
    pub(super) async fn load(&self, address: &Address) -> Result<Option<Record>, StoreError> {
        let statement = Statement::new(&self.texts.load, row::address_values(address).into());
        for _ in 0..=VANISHED_MAX {
            let rows = self.ask(statement.clone(), READING, Does::Read, Again::Safe).await?;
            let Some(columns) = rows.rows.first() else { return Ok(None) };
            let found = Row::of(columns).ok_or_else(row::corrupt)?;
            if let Some(record) = self.whole(found).await? {
                return Ok(Some(record));
            }
        }
        Err(row::corrupt())
    }

    pub(super) async fn claim(&self, address: &Address, write: &Write) -> Result<Written, StoreError> {
        let columns = Columns::of(&write.next)?;
        self.fits(address, Some(&columns))?;
        let at = row::address_values(address);
        let values = [&at[..], &at[..], &column_values(&columns), &at[..]].concat();
        let statement = Statement::new(&self.texts.claim, values);
        for _ in 0..=VANISHED_MAX {
            // Sent again, it finds its own row.
            let rows = self.ask(statement.clone(), WRITING, Does::Write, Again::Safe).await?;
            match Answer::of(&rows)? {
                Answer::Done(fence) => return Ok(Written::Yes(fence)),
                Answer::Seen(Some(found)) => {
                    if let Some(written) = self.present(found, write).await? {
                        return Ok(written);
                    }
                }
                // It ended between the insert and the look: an empty answer means loop (protocol 11).
                Answer::Seen(None) => {}
                Answer::Locked | Answer::Raced | Answer::Lost => return Err(row::corrupt()),
            }
        }
        Err(StoreError::new(ErrorKind::Busy, WRITING))
    }

    pub(super) async fn update(&self, address: &Address, write: &Write) -> Result<Written, StoreError> {
        let Some(guard) = Guard::of(write.expect) else { return self.claim(address, write).await };
        let columns = Columns::of(&write.next)?;
        self.fits(address, Some(&columns))?;
        let at = row::address_values(address);
        let body = body_values(&columns);
        let mut values: Vec<Value> = body.iter().flatten().cloned().collect();
        values.extend([&column_values(&columns), &at[..], &guard.values(), &at[..]].concat());
        let text = self.texts.update(write.opens_claim(), body.is_some());
        for _ in 0..=VANISHED_MAX {
            let statement = Statement::new(text, values.clone());
            let rows = self.ask(statement, WRITING, Does::Write, Again::Safe).await?;
            match Answer::of(&rows)? {
                Answer::Done(fence) => return Ok(Written::Yes(fence)),
                Answer::Seen(Some(found)) => {
                    if let Some(written) = self.present(found, write).await? {
                        return Ok(written);
                    }
                }
                Answer::Seen(None) => return Ok(Written::No(None)),
                Answer::Locked | Answer::Raced | Answer::Lost => return Err(row::corrupt()),
            }
        }
        Err(StoreError::new(ErrorKind::Busy, WRITING))
    }

    pub(super) async fn remove(&self, address: &Address, guard: RemoveIf) -> Result<bool, StoreError> {
        let values = [&row::address_values(address)[..], &Guard::of_removal(guard).values()].concat();
        let statement = Statement::new(&self.texts.remove, values);
        let rows = self.ask(statement, REMOVING, Does::Write, Again::Unsafe).await?;
        Ok(rows.affected == 1)
    }

    pub(super) async fn locate(
        &self,
        namespace: &Namespace,
        status: StatusId,
    ) -> Result<Option<Address>, StoreError> {
        let values =
            vec![Value::bytes(&status.as_u128().to_be_bytes()), Value::bytes(namespace.as_str().as_bytes())];
        let statement = Statement::new(&self.texts.locate, values);
        let rows = self.ask(statement, READING, Does::Read, Again::Safe).await?;
        rows.rows.first().map(|columns| address_of(columns)).transpose()
    }

    pub(super) async fn end_resource(
        &self,
        namespace: &Namespace,
        account: &Account,
        resource: &ResourceId,
        expires_at: Wall,
    ) -> Result<usize, StoreError> {
        let ends = Value::Int(expires_at.unix_ms());
        let values = vec![
            ends.clone(),
            Value::bytes(resource.0.as_bytes()),
            Value::bytes(namespace.as_str().as_bytes()),
            Value::bytes(account.as_str().as_bytes()),
            ends,
        ];
        let statement = Statement::new(&self.texts.end_resource, values);
        let rows = self.ask(statement, WRITING, Does::Write, Again::Unsafe).await?;
        Ok(usize::try_from(rows.affected).unwrap_or(usize::MAX))
    }

    /// The first to ask decides.
    pub(super) async fn has_secret(&self, number: u32, proof: &[u8]) -> Result<bool, StoreError> {
        const COMPARING: &str = "comparing the secret of fingerprints";
        let number = Value::Int(i64::from(number));
        let first = Statement::new(&self.texts.claim_secret, vec![number.clone(), Value::bytes(proof)]);
        self.ask(first, COMPARING, Does::Write, Again::Safe).await?;
        let look = Statement::new(&self.texts.proof, vec![number]);
        let rows = self.ask(look, COMPARING, Does::Read, Again::Safe).await?;
        Ok(rows.only(0).and_then(Value::as_bytes).ok_or_else(row::corrupt)? == proof)
    }

    /// Begins a new epoch: the sequence jumps to its first number. It never goes back, so doing it twice is harmless.
    pub(super) async fn bump_epoch(&self) -> Result<u16, StoreError> {
        const BUMPING: &str = "beginning a new epoch of fences";
        let full = || StoreError::new(ErrorKind::Full, BUMPING);
        let next = Statement::plain(&self.texts.next_fence);
        let rows = self.ask(next, BUMPING, Does::Write, Again::Safe).await?;
        let last = rows.only(0).and_then(Value::int).ok_or_else(row::corrupt)?;
        let epoch = Fence::from_u64(last.cast_unsigned()).epoch().checked_add(1).ok_or_else(full)?;
        let first = Fence::new(epoch, 0).ok_or_else(full)?;
        let first = i64::try_from(first.as_u64()).map_err(|_| full())?;
        let jump = Statement::plain(&jump_fence(first));
        self.ask(jump, BUMPING, Does::Write, Again::Safe).await?;
        Ok(epoch)
    }

    /// The answer to a write that was not applied: its own, applied before (R6), or what is there instead. `None`: what is
    /// there was removed before its body could be read.
    async fn present(&self, found: Row, write: &Write) -> Result<Option<Written>, StoreError> {
        let Some(present) = self.whole(found).await? else { return Ok(None) };
        let own = is_own_write(write, &present);
        Ok(Some(own.map_or_else(|| Written::No(Some(present)), Written::Yes)))
    }

    /// The record of a row, with its body. `None`: the body is gone, so the row is too, and has to be read again.
    pub(super) async fn whole(&self, found: Row) -> Result<Option<Record>, StoreError> {
        let record = found.record()?;
        let Some(day) = found.response_day else { return Ok(Some(record)) };
        let values = vec![day.into(), Value::bytes(&record.attempt.as_u128().to_be_bytes())];
        let statement = Statement::new(&self.texts.body, values);
        let rows = self.ask(statement, READING, Does::Read, Again::Safe).await?;
        let Some(body) = rows.only(0).and_then(Value::as_bytes) else { return Ok(None) };
        row::with_body(record, body.clone()).map(Some)
    }
}
