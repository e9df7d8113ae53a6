//! Records for the tests.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence, StatusId},
    outcome::{Body, HeaderPair, Outcome},
    record::{Expect, Record, RecoveryClass, State, Write},
    time::Wall,
};

pub(crate) const START: Wall = Wall::from_unix_ms(1_800_000_000_000);
pub(crate) const LEASE: Duration = Duration::from_secs(30);
const WINDOW: Duration = Duration::from_secs(24 * 3600);
const REAP: Duration = Duration::from_secs(72 * 3600);

pub(crate) fn address(key: &str) -> Address {
    let (namespace, account) = (Namespace::new("shop").unwrap(), Account::new(&["alice"]).unwrap());
    Address::new(namespace, account, Key::trusted(key).unwrap())
}

/// A record in flight under attempt `n`.
pub(crate) fn held(n: u128) -> Record {
    Record {
        attempt: AttemptId::new(n),
        fence: Fence::from_u64(0),
        status_id: StatusId::new(n),
        fingerprint: Fingerprint::from_parts(1, 1, [7; 32]),
        recovery: RecoveryClass::Atomic,
        contract_version: 3,
        endpoint: "POST /invoices".into(),
        opened_at: START,
        state: State::InFlight { lease_until: START.plus(LEASE) },
    }
}

pub(crate) fn done(record: &Record) -> Record {
    done_with_body(record, b"{\"id\":1}".to_vec())
}

pub(crate) fn done_with_body(record: &Record, body: Vec<u8>) -> Record {
    done_at(record, body, START)
}

pub(crate) fn done_at(record: &Record, body: Vec<u8>, at: Wall) -> Record {
    let outcome = Outcome {
        status: 201,
        headers: vec![HeaderPair { name: "location".into(), value: Bytes::from_static(b"/invoices/1") }],
        body: Body::Kept(body.into()),
        trailers: Vec::new(),
    };
    let state = State::Completed {
        outcome: Arc::new(outcome),
        at,
        expires_at: at.plus(WINDOW),
        reap_at: at.plus(REAP),
        resource: None,
    };
    Record { state, ..record.clone() }
}

/// The one write of a claim in one transaction.
pub(crate) fn completing(opening: &Write) -> Write {
    Write { expect: opening.expect, next: done(&opening.next) }
}

pub(crate) fn takeover(record: &Record, expired_by: Wall) -> Expect {
    Expect::Takeover { attempt: record.attempt, expired_by }
}
