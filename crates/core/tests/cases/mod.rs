//! Values that the decision tests share.

#![allow(dead_code, unreachable_pub)]

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use retrysafe_core::{
    address::{Account, Address, Key, Namespace},
    decide::Fresh,
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence, StatusId},
    outcome::{Body, Outcome},
    record::{Record, RecoveryClass, State, Uncertainty},
    time::Wall,
};

pub const LEASE: Duration = Duration::from_secs(30);
pub const RECOVERIES: [RecoveryClass; 4] =
    [RecoveryClass::Atomic, RecoveryClass::Phased, RecoveryClass::Outside, RecoveryClass::Deduplicated];

/// Seconds after the start of the test's time.
pub fn at(seconds: u64) -> Wall {
    Wall::from_unix_ms(1_800_000_000_000).plus(Duration::from_secs(seconds))
}

pub fn fingerprint(of: u8) -> Fingerprint {
    Fingerprint::from_parts(1, 1, [of; 32])
}

pub fn fresh(attempt: u128) -> Fresh {
    Fresh { attempt: AttemptId::new(attempt), status_id: StatusId::new(attempt + 1_000) }
}

pub fn address() -> Address {
    Address::new(
        Namespace::new("test").unwrap(),
        Account::new(&["alice"]).unwrap(),
        Key::trusted("k-1").unwrap(),
    )
}

pub fn outcome(status: u16) -> Outcome {
    Outcome { status, headers: vec![], body: Body::Kept(Bytes::from_static(b"the answer")), trailers: vec![] }
}

/// A record of attempt 1, opened at second 0.
pub fn record(recovery: RecoveryClass, state: State) -> Record {
    Record {
        attempt: AttemptId::new(1),
        fence: Fence::from_u64(7),
        status_id: StatusId::new(1_001),
        fingerprint: fingerprint(1),
        recovery,
        contract_version: 3,
        endpoint: "POST /orders".into(),
        opened_at: at(0),
        state,
    }
}

pub fn in_flight(lease_until: Wall) -> State {
    State::InFlight { lease_until }
}

pub fn uncertain() -> State {
    State::Uncertain { since: at(5), why: Uncertainty::HolderLost }
}

/// Completed at second 10, replayed until `expires_at`, kept until `reap_at`.
pub fn completed(expires_at: Wall, reap_at: Wall) -> State {
    State::Completed { outcome: Arc::new(outcome(201)), at: at(10), expires_at, reap_at, resource: None }
}
