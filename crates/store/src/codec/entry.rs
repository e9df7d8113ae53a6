//! Entries of journals as bytes. Version 1 of them is frozen as [records](super::v1) are: append values, change none.

use std::sync::Arc;

use bytes::Bytes;
use retrysafe_core::{
    ids::AttemptId,
    recovery::{Act, Attended, DownstreamKey, Entry, Event, Snapshot, StepName, Stopped},
    time::Wall,
};
use serde::{Deserialize, Serialize};

use super::MAX_ENCODED_BYTES;
use crate::{ErrorKind, StoreError};

const VERSION: u8 = 1;
const ENCODING: &str = "encoding an entry of a journal";
const DECODING: &str = "decoding an entry of a journal";

#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    attempt: u128,
    #[serde(borrow)]
    event: StoredEvent<'a>,
}

#[derive(Serialize, Deserialize)]
enum StoredEvent<'a> {
    Opened { plan: &'a str, principal: &'a str, fields: &'a [u8], deadline: i64 },
    Resumed { by: u8 },
    Done { step: &'a str, result: &'a [u8] },
    Intent { step: &'a str, key: &'a str, request: &'a [u8] },
    Resent { step: &'a str },
    NotSent { step: &'a str },
    Result { step: &'a str, result: &'a [u8] },
    Failed { why: &'a str },
    Unresolved { step: &'a str },
    GaveUp { why: &'a str },
    PlanChanged { current: &'a str },
    Abandoned,
    Astray { what: &'a str },
    Ended { status: u16 },
    Operator { who: &'a str, act: u8, why: &'a str },
}

/// The bytes of `entry`, but for its place and time, which are columns.
pub(crate) fn encode(entry: &Entry) -> Result<Vec<u8>, StoreError> {
    let event = match &entry.event {
        Event::Opened { plan, request, deadline } => StoredEvent::Opened {
            plan,
            principal: &request.principal,
            fields: &request.fields,
            deadline: deadline.unix_ms(),
        },
        Event::Resumed { by } => StoredEvent::Resumed {
            by: match by {
                Attended::Retry => 0,
                Attended::Completer => 1,
            },
        },
        Event::Done { step, result } => StoredEvent::Done { step: step.as_str(), result },
        Event::Intent { step, key, request } => {
            StoredEvent::Intent { step: step.as_str(), key: key.as_str(), request }
        }
        Event::Resent { step } => StoredEvent::Resent { step: step.as_str() },
        Event::NotSent { step } => StoredEvent::NotSent { step: step.as_str() },
        Event::Result { step, result } => StoredEvent::Result { step: step.as_str(), result },
        Event::Failed { why } => StoredEvent::Failed { why },
        Event::Stopped(Stopped::Unresolved { step }) => StoredEvent::Unresolved { step: step.as_str() },
        Event::Stopped(Stopped::GaveUp { why }) => StoredEvent::GaveUp { why },
        Event::Stopped(Stopped::PlanChanged { current }) => StoredEvent::PlanChanged { current },
        Event::Stopped(Stopped::Abandoned) => StoredEvent::Abandoned,
        Event::Stopped(Stopped::Astray { what }) => StoredEvent::Astray { what },
        Event::Ended { status } => StoredEvent::Ended { status: *status },
        Event::Operator { who, act, why } => StoredEvent::Operator {
            who,
            act: match act {
                Act::Resume => 0,
                Act::Resolve => 1,
                Act::Release => 2,
            },
            why,
        },
    };
    let stored = Stored { attempt: entry.attempt.as_u128(), event };
    let bytes = postcard::to_extend(&stored, vec![VERSION])
        .map_err(|error| StoreError::with_source(ErrorKind::Corrupt, ENCODING, error))?;
    match bytes.len() > MAX_ENCODED_BYTES {
        true => Err(StoreError::new(ErrorKind::Full, ENCODING)),
        false => Ok(bytes),
    }
}

/// The entry at `seq`, written at `at`, whose bytes are `bytes`.
pub(crate) fn decode(seq: u32, at: Wall, bytes: &[u8]) -> Result<Entry, StoreError> {
    let corrupt = || StoreError::new(ErrorKind::Corrupt, DECODING);
    let Some((version, rest)) = bytes.split_first() else { return Err(corrupt()) };
    if *version != VERSION {
        return Err(StoreError::new(ErrorKind::UnknownVersion, DECODING));
    }
    let (stored, rest) = postcard::take_from_bytes::<Stored<'_>>(rest).map_err(|_| corrupt())?;
    if !rest.is_empty() {
        return Err(corrupt());
    }
    let step = |text: &str| StepName::from_stored(text).map_err(|_| corrupt());
    let kept = Bytes::copy_from_slice;
    let event = match stored.event {
        StoredEvent::Opened { plan, principal, fields, deadline } => Event::Opened {
            plan: Arc::from(plan),
            request: Snapshot { principal: principal.into(), fields: kept(fields) },
            deadline: Wall::from_unix_ms(deadline),
        },
        StoredEvent::Resumed { by: 0 } => Event::Resumed { by: Attended::Retry },
        StoredEvent::Resumed { by: 1 } => Event::Resumed { by: Attended::Completer },
        StoredEvent::Resumed { .. } => return Err(corrupt()),
        StoredEvent::Done { step: name, result } => Event::Done { step: step(name)?, result: kept(result) },
        StoredEvent::Intent { step: name, key, request } => {
            Event::Intent { step: step(name)?, key: DownstreamKey::from_stored(key), request: kept(request) }
        }
        StoredEvent::Resent { step: name } => Event::Resent { step: step(name)? },
        StoredEvent::NotSent { step: name } => Event::NotSent { step: step(name)? },
        StoredEvent::Result { step: name, result } => {
            Event::Result { step: step(name)?, result: kept(result) }
        }
        StoredEvent::Failed { why } => Event::Failed { why: why.into() },
        StoredEvent::Unresolved { step: name } => Event::Stopped(Stopped::Unresolved { step: step(name)? }),
        StoredEvent::GaveUp { why } => Event::Stopped(Stopped::GaveUp { why: why.into() }),
        StoredEvent::PlanChanged { current } => {
            Event::Stopped(Stopped::PlanChanged { current: current.into() })
        }
        StoredEvent::Abandoned => Event::Stopped(Stopped::Abandoned),
        StoredEvent::Astray { what } => Event::Stopped(Stopped::Astray { what: what.into() }),
        StoredEvent::Ended { status } => Event::Ended { status },
        StoredEvent::Operator { who, act, why } => Event::Operator {
            who: who.into(),
            act: match act {
                0 => Act::Resume,
                1 => Act::Resolve,
                2 => Act::Release,
                _ => return Err(corrupt()),
            },
            why: why.into(),
        },
    };
    Ok(Entry { seq, attempt: AttemptId::new(stored.attempt), at, event })
}

#[cfg(test)]
mod tests {
    use retrysafe_core::ids::StatusId;

    use super::*;

    #[test]
    fn every_entry_is_read_as_it_was_written_and_a_later_version_is_refused() {
        let step = || StepName::of_member("notify", "driver 1".replace(' ', "-").as_str()).unwrap();
        let result = || Bytes::from_static(b"\x00\xffresult");
        let request = Snapshot { principal: "rider".into(), fields: result() };
        let events = vec![
            Event::Opened { plan: "rides: a=phase".into(), request, deadline: Wall::from_unix_ms(-5) },
            Event::Resumed { by: Attended::Retry },
            Event::Resumed { by: Attended::Completer },
            Event::Done { step: step(), result: Bytes::new() },
            Event::Intent {
                step: step(),
                key: DownstreamKey::derive(StatusId::new(1), "rides", &step()),
                request: result(),
            },
            Event::Resent { step: step() },
            Event::NotSent { step: step() },
            Event::Result { step: step(), result: result() },
            Event::Failed { why: "down".into() },
            Event::Stopped(Stopped::Unresolved { step: step() }),
            Event::Stopped(Stopped::GaveUp { why: "down".into() }),
            Event::Stopped(Stopped::PlanChanged { current: "rides:".into() }),
            Event::Stopped(Stopped::Abandoned),
            Event::Stopped(Stopped::Astray { what: "back".into() }),
            Event::Ended { status: 201 },
            Event::Operator { who: "ann".into(), act: Act::Resume, why: "up".into() },
            Event::Operator { who: "ann".into(), act: Act::Resolve, why: "seen".into() },
            Event::Operator { who: "ann".into(), act: Act::Release, why: "not seen".into() },
        ];
        for (seq, event) in (0..).zip(events) {
            let entry = Entry { seq, attempt: AttemptId::new(9), at: Wall::from_unix_ms(7), event };
            let mut bytes = encode(&entry).unwrap();
            assert_eq!(decode(seq, entry.at, &bytes).unwrap(), entry);
            for short in 0..bytes.len() {
                assert!(decode(seq, entry.at, &bytes[..short]).is_err(), "{entry:?} cut at {short}");
            }
            bytes[0] = 2;
            assert_eq!(decode(seq, entry.at, &bytes).unwrap_err().kind(), ErrorKind::UnknownVersion);
        }
    }
}
