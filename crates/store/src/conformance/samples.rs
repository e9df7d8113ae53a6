//! Records, writes and short spellings for the cases.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence, StatusId},
    outcome::{Body, HeaderPair, Outcome},
    record::{Expect, Record, RecoveryClass, RemoveIf, ResourceId, State, Uncertainty, Write},
    time::Wall,
};

use super::Place;
use crate::{Store, Written};

/// When the cases begin.
pub(crate) const START: Wall = Wall::from_unix_ms(1_800_000_000_000);

pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const WINDOW: Duration = Duration::from_secs(24 * 3600);
pub(crate) const REAP: Duration = Duration::from_secs(72 * 3600);

/// `seconds` after the start.
pub(crate) fn at(seconds: u64) -> Wall {
    START.plus(Duration::from_secs(seconds))
}

pub(crate) fn open(place: &dyn Place) -> Arc<dyn Store> {
    place.open().expect("the store opens")
}

pub(crate) fn address(key: &str) -> Address {
    address_of("shop", "alice", key)
}

pub(crate) fn address_of(namespace: &str, account: &str, key: &str) -> Address {
    Address::new(
        Namespace::new(namespace).unwrap(),
        Account::new(&[account]).unwrap(),
        Key::trusted(key).unwrap(),
    )
}

/// A record in flight under attempt `n`, claimed at the start.
pub(crate) fn held(n: u128) -> Record {
    Record {
        attempt: AttemptId::new(n),
        fence: Fence::from_u64(0),
        status_id: StatusId::new(n),
        fingerprint: Fingerprint::from_parts(1, 1, [7; 32]),
        recovery: RecoveryClass::Outside,
        contract_version: 3,
        endpoint: "POST /orders".into(),
        opened_at: START,
        state: State::InFlight { lease_until: START.plus(LEASE) },
    }
}

pub(crate) fn uncertain(record: &Record) -> Record {
    Record { state: State::Uncertain { since: at(40), why: Uncertainty::HolderLost }, ..record.clone() }
}

/// `record` completed at the start.
pub(crate) fn done(record: &Record) -> Record {
    done_with(record, answer(b"{\"id\":1}"), None)
}

pub(crate) fn done_with(record: &Record, outcome: Outcome, resource: Option<&str>) -> Record {
    let state = State::Completed {
        outcome: Arc::new(outcome),
        at: START,
        expires_at: START.plus(WINDOW),
        reap_at: START.plus(REAP),
        resource: resource.map(|id| ResourceId(id.into())),
    };
    Record { state, ..record.clone() }
}

pub(crate) fn answer(body: &'static [u8]) -> Outcome {
    Outcome {
        status: 201,
        headers: vec![HeaderPair { name: "location".into(), value: Bytes::from_static(b"/orders/1") }],
        body: Body::Kept(Bytes::from_static(body)),
        trailers: Vec::new(),
    }
}

pub(crate) fn write(expect: Expect, next: &Record) -> Write {
    Write { expect, next: next.clone() }
}

/// The attempt that holds `record`.
pub(crate) fn holder(record: &Record) -> Expect {
    Expect::Attempt(record.attempt)
}

/// The attempt that holds `record`, as its renewals state it.
pub(crate) fn renewing(record: &Record) -> Expect {
    Expect::Holding(record.attempt)
}

pub(crate) fn takeover(record: &Record, expired_by: Wall) -> Expect {
    Expect::Takeover { attempt: record.attempt, expired_by }
}

pub(crate) fn expired(record: &Record, expired_by: Wall) -> Expect {
    Expect::Expired { attempt: record.attempt, expired_by }
}

pub(crate) fn reapable(record: &Record, by: Wall) -> RemoveIf {
    RemoveIf::Reapable { attempt: record.attempt, by }
}

/// Claims `address` under attempt `n` and returns the record as stored.
pub(crate) async fn claim(store: &dyn Store, address: &Address, n: u128) -> Record {
    let next = held(n);
    let fence = won(store.write_if(address, &write(Expect::Absent, &next)).await.unwrap());
    Record { fence, ..next }
}

/// Applies a write that must be applied, and returns the record as stored.
pub(crate) async fn apply(store: &dyn Store, address: &Address, expect: Expect, next: &Record) -> Record {
    let fence = won(store.write_if(address, &write(expect, next)).await.unwrap());
    Record { fence, ..next.clone() }
}

/// Tries a write that must not be applied, and that must leave `present`.
pub(crate) async fn refused(
    store: &dyn Store,
    address: &Address,
    expect: Expect,
    next: &Record,
    present: Option<&Record>,
) {
    let answer = store.write_if(address, &write(expect, next)).await.unwrap();
    assert_eq!(answer, Written::No(present.cloned()), "{expect:?}");
    assert_eq!(store.load(address).await.unwrap().as_ref(), present, "after {expect:?}");
}

pub(crate) fn won(written: Written) -> Fence {
    match written {
        Written::Yes(fence) => fence,
        Written::No(present) => panic!("must be applied, but found {present:?}"),
    }
}
