//! A record as the columns of a row, and back.
//!
//! `data` is the record in the versioned codec. The other columns exist to be searched and guarded, with two exceptions in
//! which the column is the truth and `data` is not: the fence, which the database issues while it writes the row, and the
//! end of the window, which [`Store::end_resource`](crate::Store::end_resource) moves without reading the record.
//!
//! **A short answer lives in the row, a long body beside it.** So a replay of an ordinary answer is one probe of one
//! index, and the key table stays small: rows of megabytes would make every index build and vacuum of it slow. A long body
//! goes to a table that is partitioned by the day on which it may be reaped; the row names the day.

use bytes::Bytes;
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    ids::Fence,
    outcome::{Body, Outcome},
    record::{Expect, Record, RemoveIf, ResourceId, State},
    time::Wall,
};

use super::Value;
use crate::{ErrorKind, StateName, StoreError, codec};

/// The longest record that is kept in the row itself.
pub(crate) const INLINE_MAX_BYTES: usize = 1024;

const MS_A_DAY: i64 = 24 * 60 * 60 * 1000;

/// The columns of a record.
pub(crate) struct Columns {
    pub(crate) attempt: Value,
    pub(crate) status: Value,
    pub(crate) state: i64,
    pub(crate) due_ms: Value,
    pub(crate) expires_ms: Value,
    pub(crate) resource: Value,
    pub(crate) data: Value,
    pub(crate) long: Option<Long>,
}

/// A body that is kept apart.
pub(crate) struct Long {
    pub(crate) day: i64,
    pub(crate) body: Bytes,
}

impl Columns {
    pub(crate) fn of(record: &Record) -> Result<Self, StoreError> {
        let (due_ms, expires_ms, resource) = match &record.state {
            State::InFlight { lease_until } => (Some(lease_until.unix_ms()), None, None),
            State::Uncertain { .. } => (None, None, None),
            State::Completed { reap_at, expires_at, resource, .. } => {
                let resource = resource.as_ref().map(|ResourceId(id)| Value::bytes(id.as_bytes()));
                (Some(reap_at.unix_ms()), Some(expires_at.unix_ms()), resource)
            }
        };
        let (data, long) = split(record)?;
        Ok(Self {
            attempt: Value::bytes(&record.attempt.as_u128().to_be_bytes()),
            status: Value::bytes(&record.status_id.as_u128().to_be_bytes()),
            state: state_number(StateName::of(&record.state)),
            due_ms: due_ms.into(),
            expires_ms: expires_ms.into(),
            resource: resource.unwrap_or(Value::Null),
            data: Value::Bytes(data.into()),
            long,
        })
    }
}

/// The encoded record, and the body apart from it where both together are long.
fn split(record: &Record) -> Result<(Vec<u8>, Option<Long>), StoreError> {
    if let State::Completed { outcome, reap_at, at, expires_at, resource } = &record.state
        && let Body::Kept(body) = &outcome.body
        && body.len() > INLINE_MAX_BYTES / 2
    {
        let without = State::Completed {
            outcome: Outcome { body: Body::Kept(Bytes::new()), ..Outcome::clone(outcome) }.into(),
            at: *at,
            expires_at: *expires_at,
            reap_at: *reap_at,
            resource: resource.clone(),
        };
        let data = codec::encode(&Record { state: without, ..record.clone() })?;
        if data.len() + body.len() > INLINE_MAX_BYTES {
            if body.len() > codec::MAX_ENCODED_BYTES {
                return Err(StoreError::new(ErrorKind::Full, "encoding a record"));
            }
            let day = day_of(*reap_at);
            return Ok((data, Some(Long { day, body: body.clone() })));
        }
    }
    Ok((codec::encode(record)?, None))
}

/// A row as it was read.
pub(crate) struct Row {
    pub(crate) fence: i64,
    pub(crate) expires_ms: Option<i64>,
    /// Where the body is, if it is not in `data`.
    pub(crate) response_day: Option<i64>,
    pub(crate) data: Bytes,
}

impl Row {
    /// From the columns `fence, expires_ms, response_day, data`, in this order.
    pub(crate) fn of(columns: &[Value]) -> Option<Self> {
        let [fence, expires_ms, response_day, data] = columns else { return None };
        Some(Self {
            fence: fence.int()?,
            expires_ms: expires_ms.int(),
            response_day: response_day.int(),
            data: data.as_bytes()?.clone(),
        })
    }

    /// The record, but for a body that is kept apart.
    pub(crate) fn record(&self) -> Result<Record, StoreError> {
        let mut record = codec::decode(&self.data)?;
        record.fence = Fence::from_u64(self.fence.cast_unsigned());
        if let (State::Completed { expires_at, .. }, Some(column)) = (&mut record.state, self.expires_ms) {
            *expires_at = Wall::from_unix_ms(column);
        }
        Ok(record)
    }
}

/// Puts the body that was kept apart into its record.
pub(crate) fn with_body(record: Record, body: Bytes) -> Result<Record, StoreError> {
    match record.state {
        State::Completed { outcome, at, expires_at, reap_at, resource } => {
            let outcome = Outcome { body: Body::Kept(body), ..Outcome::clone(&outcome) }.into();
            Ok(Record { state: State::Completed { outcome, at, expires_at, reap_at, resource }, ..record })
        }
        State::InFlight { .. } | State::Uncertain { .. } => Err(corrupt()),
    }
}

pub(crate) fn corrupt() -> StoreError {
    StoreError::new(ErrorKind::Corrupt, "reading a record")
}

/// What a write or a removal expects, as one condition of SQL: this attempt, a state from `lowest` to `highest`, and, if
/// there is an instant, that the row's own time is not after it. Held against [`Expect::allows`] by a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Guard {
    pub(crate) attempt: u128,
    pub(crate) lowest: i64,
    pub(crate) highest: i64,
    pub(crate) not_after_ms: Option<i64>,
}

impl Guard {
    /// `None` for [`Expect::Absent`], which is no condition on a row.
    pub(crate) fn of(expect: Expect) -> Option<Self> {
        let guard = |attempt: retrysafe_core::ids::AttemptId, states: (i64, i64), by: Option<Wall>| Guard {
            attempt: attempt.as_u128(),
            lowest: states.0,
            highest: states.1,
            not_after_ms: by.map(Wall::unix_ms),
        };
        match expect {
            Expect::Absent => None,
            Expect::Attempt(attempt) => Some(guard(attempt, (IN_FLIGHT, UNCERTAIN), None)),
            Expect::Holding(attempt) => Some(guard(attempt, (IN_FLIGHT, IN_FLIGHT), None)),
            Expect::Takeover { attempt, expired_by } => {
                Some(guard(attempt, (IN_FLIGHT, IN_FLIGHT), Some(expired_by)))
            }
            Expect::Expired { attempt, expired_by } => {
                Some(guard(attempt, (COMPLETED, COMPLETED), Some(expired_by)))
            }
        }
    }

    pub(crate) fn of_removal(guard: RemoveIf) -> Self {
        match guard {
            RemoveIf::Attempt(attempt) => {
                Self { attempt: attempt.as_u128(), lowest: IN_FLIGHT, highest: UNCERTAIN, not_after_ms: None }
            }
            RemoveIf::Reapable { attempt, by } => Self {
                attempt: attempt.as_u128(),
                lowest: COMPLETED,
                highest: COMPLETED,
                not_after_ms: Some(by.unix_ms()),
            },
        }
    }

    /// The arguments, in the order of the fields.
    pub(crate) fn values(&self) -> [Value; 4] {
        [
            Value::bytes(&self.attempt.to_be_bytes()),
            self.lowest.into(),
            self.highest.into(),
            self.not_after_ms.into(),
        ]
    }
}

const IN_FLIGHT: i64 = 0;
const UNCERTAIN: i64 = 1;
const COMPLETED: i64 = 2;

/// Numbers of states in rows. They are ordered so that "in flight or uncertain" is a range.
pub(crate) fn state_number(state: StateName) -> i64 {
    match state {
        StateName::InFlight => IN_FLIGHT,
        StateName::Uncertain => UNCERTAIN,
        StateName::Completed => COMPLETED,
    }
}

/// Namespace, account and key.
pub(crate) fn address_values(address: &Address) -> [Value; 3] {
    [
        Value::bytes(address.namespace().as_str().as_bytes()),
        Value::bytes(address.account().as_str().as_bytes()),
        Value::bytes(address.key().as_str().as_bytes()),
    ]
}

/// The address in three columns; `None`: it is none that we wrote.
pub(crate) fn address_of(namespace: &Value, account: &Value, key: &Value) -> Option<Address> {
    fn text(value: &Value) -> Option<&str> {
        std::str::from_utf8(value.as_bytes()?).ok()
    }
    Some(Address::new(
        Namespace::new(text(namespace)?).ok()?,
        Account::from_stored(text(account)?).ok()?,
        Key::trusted(text(key)?).ok()?,
    ))
}

/// The day of an instant, as rows of long bodies name it.
pub(crate) fn day_of(at: Wall) -> i64 {
    at.unix_ms().div_euclid(MS_A_DAY)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use retrysafe_core::ids::AttemptId;

    use super::*;
    use crate::conformance::samples::{START, done, done_with, held, uncertain};

    /// What the condition in the statements says of a row.
    fn allows(guard: Guard, columns: &Columns, by_due: bool) -> bool {
        let time = if by_due || columns.state == IN_FLIGHT { &columns.due_ms } else { &columns.expires_ms };
        columns.attempt.as_bytes().map(|bytes| &bytes[..]) == Some(&guard.attempt.to_be_bytes())
            && (guard.lowest..=guard.highest).contains(&columns.state)
            && guard.not_after_ms.is_none_or(|by| time.int().is_some_and(|time| time <= by))
    }

    #[test]
    fn protocol_6_the_condition_of_the_statements_is_the_one_of_core() {
        let days = |days: u64| START.plus(Duration::from_secs(days * 86_400));
        let records = [held(1), uncertain(&held(1)), done(&held(1)), held(2), done(&held(2))];
        let times = [START, START.plus(Duration::from_secs(30)), days(1), days(3), days(9)];
        let attempt = AttemptId::new(1);
        for record in &records {
            let columns = Columns::of(record).unwrap();
            let mut expects = vec![Expect::Attempt(attempt), Expect::Holding(attempt)];
            let mut removals = vec![RemoveIf::Attempt(attempt)];
            for time in times {
                expects.push(Expect::Takeover { attempt, expired_by: time });
                expects.push(Expect::Expired { attempt, expired_by: time });
                removals.push(RemoveIf::Reapable { attempt, by: time });
            }
            for expect in expects {
                let guard = Guard::of(expect).unwrap();
                assert_eq!(
                    allows(guard, &columns, false),
                    expect.allows(Some(record)),
                    "{expect:?} {record:?}"
                );
            }
            for removal in removals {
                let guard = Guard::of_removal(removal);
                assert_eq!(allows(guard, &columns, true), removal.allows(record), "{removal:?} {record:?}");
            }
        }
        assert_eq!(Guard::of(Expect::Absent), None);
    }

    #[test]
    fn a_record_is_put_together_again_wherever_its_body_is() {
        for length in [0, 10, INLINE_MAX_BYTES / 2, INLINE_MAX_BYTES, 100_000] {
            let body = Body::Kept(vec![7; length].into());
            let outcome = Outcome { body, ..crate::conformance::samples::answer(b"") };
            let record = done_with(&held(1), outcome, Some("order/1"));
            let columns = Columns::of(&record).unwrap();
            let data = columns.data.as_bytes().unwrap().clone();
            assert!(data.len() <= INLINE_MAX_BYTES, "{length}: {}", data.len());
            let row = Row {
                fence: 9,
                expires_ms: columns.expires_ms.int(),
                response_day: columns.long.as_ref().map(|long| long.day),
                data,
            };
            let mut read = row.record().unwrap();
            if let Some(long) = columns.long {
                assert!(length > INLINE_MAX_BYTES / 2);
                read = with_body(read, long.body).unwrap();
            }
            assert_eq!(read, Record { fence: Fence::from_u64(9), ..record });
        }
    }
}
