//! What the journals of databases have in common: rows as values, and back.

use std::fmt::Write as _;

use retrysafe_core::{
    address::Address,
    ids::StatusId,
    record::Write,
    recovery::{Act, DownstreamKey, Entry},
    time::Wall,
};

use super::{
    Rows, Value,
    row::{address_of, address_values, corrupt},
};
use crate::{
    ErrorKind, Store, StoreError, Written,
    codec::entry,
    journal::{
        ENTRY_MAX_BYTES, EffectState, JOURNAL_MAX, LoggedAct, NewAct, NewEffect, Notes, Replays, Sent,
        Staged, StagedCensus, StagedEffect, fits,
    },
    transactional::{Committed, OpenTransaction, Transactional, Undone},
};

pub(crate) const WRITING: &str = "writing to a journal";
pub(crate) const READING: &str = "reading a journal";
pub(crate) const STAGING: &str = "handling staged effects";
pub(crate) const FORGETTING: &str = "forgetting journals";
pub(crate) const LOG: &str = "reading the log of acts";

/// States of staged effects, as rows have them.
const WAITING: i64 = 0;
const SENT: i64 = 1;
const DEAD: i64 = 2;

/// A phase without business rows, in a transaction like any other phase's.
pub(crate) async fn note_if<S: Store + Transactional>(
    store: &S,
    address: &Address,
    write: &Write,
    notes: &Notes,
) -> Result<Written, StoreError> {
    let mut open = Transactional::open(store).await?;
    open.note(address, notes).await?;
    match open.commit(address, write).await? {
        Committed::Yes(fence) => Ok(Written::Yes(fence)),
        Committed::No(Undone::Stale) => Ok(Written::No(store.load(address).await?)),
        Committed::No(Undone::Conflict) => Err(StoreError::new(ErrorKind::Busy, WRITING)),
        Committed::No(Undone::Constraint | Undone::Lost) => {
            Err(StoreError::new(ErrorKind::Unavailable, WRITING))
        }
    }
}

/// Operation.
pub(crate) fn operation(operation: StatusId) -> Value {
    Value::bytes(&operation.as_u128().to_be_bytes())
}

/// Operation, seq, at, namespace, account, key, data: for each entry of `notes`.
pub(crate) fn entries(address: &Address, notes: &Notes) -> Result<Vec<Vec<Value>>, StoreError> {
    let row = |written: &Entry| {
        if usize::try_from(written.seq).unwrap_or(usize::MAX) >= JOURNAL_MAX {
            return Err(StoreError::new(ErrorKind::Full, WRITING));
        }
        let mut row =
            vec![operation(notes.operation), i64::from(written.seq).into(), written.at.unix_ms().into()];
        match written.seq {
            0 => row.extend(address_values(address)),
            _ => row.extend([Value::Null, Value::Null, Value::Null]),
        }
        row.push(Value::Bytes(entry::encode(written)?.into()));
        Ok(row)
    };
    notes.entries.iter().map(row).collect()
}

/// Operation, name, key, payload, due, at: for each effect of `notes`.
pub(crate) fn effects(notes: &Notes) -> Result<Vec<Vec<Value>>, StoreError> {
    let row = |effect: &NewEffect| match effect.payload.len() > ENTRY_MAX_BYTES {
        true => Err(StoreError::new(ErrorKind::Full, WRITING)),
        false => Ok(vec![
            operation(notes.operation),
            Value::bytes(effect.name.as_bytes()),
            Value::bytes(effect.key.as_str().as_bytes()),
            Value::Bytes(effect.payload.clone()),
            effect.due.unix_ms().into(),
            effect.at.unix_ms().into(),
        ]),
    };
    notes.staged.iter().map(row).collect()
}

/// At, operation, namespace, account, key, act, who, why, evidence: for the act of `notes`, if there is one.
pub(crate) fn act(address: &Address, notes: &Notes) -> Result<Option<Vec<Value>>, StoreError> {
    let Some(act) = &notes.act else { return Ok(None) };
    act.fits()?;
    let [namespace, account, key] = address_values(address);
    let text = |text: &str| Value::bytes(text.as_bytes());
    Ok(Some(vec![
        act.at.unix_ms().into(),
        operation(notes.operation),
        namespace,
        account,
        key,
        text(act.act.name()),
        text(&act.who),
        text(&act.why),
        act.evidence.as_deref().map(text).into(),
    ]))
}

/// From the columns `number, at, operation, namespace, account, key, act, who, why, evidence`.
pub(crate) fn acts(rows: &Rows) -> Result<Vec<LoggedAct>, StoreError> {
    fn text(value: &Value) -> Option<Box<str>> {
        Some(std::str::from_utf8(value.as_bytes()?).ok()?.into())
    }
    let logged = |columns: &Vec<Value>| {
        let [number, at, operation, namespace, account, key, act, who, why, evidence] = columns.as_slice()
        else {
            return None;
        };
        let operation: [u8; 16] = operation.as_bytes()?.as_ref().try_into().ok()?;
        Some(LoggedAct {
            number: number.int()?.cast_unsigned(),
            address: address_of(namespace, account, key)?,
            operation: StatusId::new(u128::from_be_bytes(operation)),
            act: NewAct {
                who: text(who)?,
                act: Act::named(&text(act)?)?,
                why: text(why)?,
                evidence: text(evidence),
                at: Wall::from_unix_ms(at.int()?),
            },
        })
    };
    rows.rows.iter().map(|columns| logged(columns).ok_or_else(corrupt)).collect()
}

/// From the columns `seq, at, data`.
pub(crate) fn journal(rows: &Rows) -> Result<Vec<Entry>, StoreError> {
    let entry = |columns: &Vec<Value>| {
        let [seq, at, data] = columns.as_slice() else { return Err(corrupt()) };
        let seq = seq.int().and_then(|seq| u32::try_from(seq).ok()).ok_or_else(corrupt)?;
        let at = at.int().map(Wall::from_unix_ms).ok_or_else(corrupt)?;
        entry::decode(seq, at, data.as_bytes().ok_or_else(corrupt)?)
    };
    rows.rows.iter().map(entry).collect()
}

/// From the columns `operation, name, key, payload, tries`.
pub(crate) fn taken(rows: &Rows) -> Result<Vec<Staged>, StoreError> {
    let text = |value: &Value| String::from_utf8(value.as_bytes()?.to_vec()).ok();
    let staged = |columns: &Vec<Value>| {
        let [operation, name, key, payload, tries] = columns.as_slice() else { return None };
        let operation: [u8; 16] = operation.as_bytes()?.as_ref().try_into().ok()?;
        Some(Staged {
            operation: StatusId::new(u128::from_be_bytes(operation)),
            name: text(name)?.into(),
            key: DownstreamKey::from_stored(&text(key)?),
            payload: payload.as_bytes()?.clone(),
            tries: u32::try_from(tries.int()?).ok()?,
        })
    };
    rows.rows.iter().map(|columns| staged(columns).ok_or_else(corrupt)).collect()
}

/// Operation, name, tries, state, due, failure, ended.
pub(crate) fn end(staged: &Staged, sent: &Sent, at: Wall) -> Vec<Value> {
    let (state, due, failure) = match sent {
        Sent::Yes => (SENT, 0, None),
        Sent::Later(due, why) => (WAITING, due.unix_ms(), Some(why)),
        Sent::Never(why) => (DEAD, 0, Some(why)),
    };
    vec![
        operation(staged.operation),
        Value::bytes(staged.name.as_bytes()),
        i64::from(staged.tries).into(),
        state.into(),
        due.into(),
        failure.map(|why| Value::bytes(why.as_bytes())).into(),
        (state != WAITING).then(|| Value::Int(at.unix_ms())).into(),
    ]
}

/// From the columns `waiting, dead`.
pub(crate) fn census(rows: &Rows) -> Result<StagedCensus, StoreError> {
    let count = |at| rows.only(at).and_then(Value::int).map(i64::cast_unsigned).ok_or_else(corrupt);
    Ok(StagedCensus { waiting: count(0)?, dead: count(1)? })
}

/// From the columns `name, state, due, tries, staged, ended, failure`.
pub(crate) fn standing(rows: &Rows) -> Result<Vec<StagedEffect>, StoreError> {
    let at = |value: &Value| value.int().map(Wall::from_unix_ms);
    let one = |columns: &Vec<Value>| {
        let [name, state, due, tries, staged, ended, failure] = columns.as_slice() else { return None };
        let state = match state.int()? {
            WAITING => EffectState::Waiting { due: at(due)? },
            SENT => EffectState::Sent { at: at(ended) },
            DEAD => EffectState::GivenUp { at: at(ended) },
            _ => return None,
        };
        Some(StagedEffect {
            name: std::str::from_utf8(name.as_bytes()?).ok()?.into(),
            state,
            staged: at(staged),
            tries: u32::try_from(tries.int()?).ok()?,
            failure: failure.as_bytes().map(|bytes| String::from_utf8_lossy(bytes).into()),
        })
    };
    rows.rows.iter().map(|columns| one(columns).ok_or_else(corrupt)).collect()
}

/// All of `counted` as one JSON text, for a statement whose text is the same however many there are: a list of `o` (the
/// operation in hex), `n` (times), `f` and `l` (first and last).
pub(crate) fn counted(counted: &[Replays]) -> Result<Value, StoreError> {
    fits(counted)?;
    let mut text = String::from("[");
    for (at, one) in counted.iter().enumerate() {
        let Replays { operation, times, first, last } = one;
        let (comma, times) = (if at == 0 { "" } else { "," }, i64::try_from(*times).unwrap_or(i64::MAX));
        let (operation, first, last) = (operation.as_u128(), first.unix_ms(), last.unix_ms());
        let _ = write!(text, r#"{comma}{{"o":"{operation:032x}","n":{times},"f":{first},"l":{last}}}"#);
    }
    text.push(']');
    Ok(Value::bytes(text.as_bytes()))
}

/// From the columns `times, first, last`, of which there is at most one row.
pub(crate) fn replays(operation: StatusId, rows: &Rows) -> Result<Option<Replays>, StoreError> {
    let Some(columns) = rows.rows.first() else { return Ok(None) };
    let [times, first, last] = columns.as_slice() else { return Err(corrupt()) };
    let number = |value: &Value| value.int().ok_or_else(corrupt);
    Ok(Some(Replays {
        operation,
        times: number(times)?.cast_unsigned(),
        first: Wall::from_unix_ms(number(first)?),
        last: Wall::from_unix_ms(number(last)?),
    }))
}
