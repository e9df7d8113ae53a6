//! Keys and writes for the tests of this crate.

use std::sync::Arc;

use bytes::Bytes;
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence, StatusId},
    outcome::{Body, HeaderPair, Outcome},
    record::{Expect, Record, RecoveryClass, State, Write},
    time::Wall,
};
use retrysafe_store::{Store, Written, sqlite::SqliteStore};

pub(crate) fn address_of(n: u32) -> Address {
    Address::new(
        Namespace::new("shop").unwrap(),
        Account::new(&["alice"]).unwrap(),
        Key::trusted(&format!("key-{n}")).unwrap(),
    )
}

pub(crate) fn claim_of(n: u32) -> Write {
    let next = Record {
        attempt: AttemptId::new(u128::from(n)),
        fence: Fence::from_u64(0),
        status_id: StatusId::new(u128::from(n)),
        fingerprint: Fingerprint::from_parts(1, 1, [9; 32]),
        recovery: RecoveryClass::Outside,
        contract_version: 1,
        endpoint: "POST /orders".into(),
        opened_at: Wall::from_unix_ms(1),
        state: State::InFlight { lease_until: Wall::from_unix_ms(30_001) },
    };
    Write { expect: Expect::Absent, next }
}

pub(crate) fn completion_of(claimed: &Record, n: u32) -> Write {
    // Bodies of all sizes, up to several pages.
    let body = vec![n as u8; (n as usize * 397) % 9_000];
    let outcome = Outcome {
        status: 201,
        headers: vec![HeaderPair { name: "location".into(), value: Bytes::from(format!("/orders/{n}")) }],
        body: Body::Kept(body.into()),
        trailers: Vec::new(),
    };
    let state = State::Completed {
        outcome: Arc::new(outcome),
        at: Wall::from_unix_ms(2),
        expires_at: Wall::from_unix_ms(3),
        reap_at: Wall::from_unix_ms(4),
        resource: None,
    };
    Write { expect: Expect::Attempt(claimed.attempt), next: Record { state, ..claimed.clone() } }
}

/// Applies a write that nobody competes with.
pub(crate) async fn apply(store: &SqliteStore, address: &Address, write: Write) -> Record {
    match store.write_if(address, &write).await.unwrap() {
        Written::Yes(fence) => Record { fence, ..write.next },
        Written::No(present) => panic!("nobody else writes this key, but found {present:?}"),
    }
}
