use std::sync::Arc;

use proptest::prelude::*;
use retrysafe_core::{
    fingerprint::Fingerprint,
    ids::{AttemptId, Fence, StatusId},
    outcome::{Body, HeaderPair, NotKept},
    record::{RecoveryClass, ResourceId, State, Uncertainty},
    time::Wall,
};

use super::*;

fn record(state: State) -> Record {
    Record {
        attempt: AttemptId::new(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
        fence: Fence::new(3, 300).unwrap(),
        status_id: StatusId::new(0xff),
        fingerprint: Fingerprint::from_parts(1, 7, [0xab; 32]),
        recovery: RecoveryClass::Outside,
        contract_version: 9,
        endpoint: "POST /orders".into(),
        opened_at: Wall::from_unix_ms(1_700_000_000_000),
        state,
    }
}

fn completed(body: Body) -> State {
    let line =
        |name: &str, value: &'static [u8]| HeaderPair { name: name.into(), value: Bytes::from_static(value) };
    State::Completed {
        outcome: Arc::new(Outcome {
            status: 201,
            headers: vec![line("link", b"<a>"), line("x", b"caf\xe9"), line("link", b"<b>")],
            body,
            trailers: vec![line("grpc-status", b"0")],
        }),
        at: Wall::from_unix_ms(5),
        expires_at: Wall::from_unix_ms(6),
        reap_at: Wall::from_unix_ms(7),
        resource: Some(ResourceId("order/1".into())),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is on people's disks. If this fails, the change needs a version 2 and a reader for both.
#[test]
fn golden_bytes_of_version_1() {
    let golden = [
        (State::InFlight { lease_until: Wall::from_unix_ms(1_700_000_030_000) }, GOLDEN_IN_FLIGHT),
        (
            State::Uncertain { since: Wall::from_unix_ms(-1), why: Uncertainty::UpstreamLost },
            GOLDEN_UNCERTAIN,
        ),
        (completed(Body::Kept(Bytes::from_static(b"\x00\xff{}"))), GOLDEN_COMPLETED),
        (completed(Body::NotKept(NotKept::Streamed)), GOLDEN_TOMBSTONE),
    ];
    for (state, expected) in golden {
        let record = record(state);
        let bytes = encode(&record).unwrap();
        assert_eq!(hex(&bytes), expected.replace(char::is_whitespace, ""), "{:?}", record.state);
        assert_eq!(decode(&bytes.into()).unwrap(), record);
    }
}

const GOLDEN_IN_FLIGHT: &str = "
    01909eb8e8c0e1828589909cb0d080c1818202ac8280808080c001ff010107ababababababababababababababababab
    ababababababababababababababab02090c504f5354202f6f726465727380a0abfef96200e0f4aefef962";
const GOLDEN_UNCERTAIN: &str = "
    01909eb8e8c0e1828589909cb0d080c1818202ac8280808080c001ff010107ababababababababababababababababab
    ababababababababababababababab02090c504f5354202f6f726465727380a0abfef962010101";
const GOLDEN_COMPLETED: &str = "
    01909eb8e8c0e1828589909cb0d080c1818202ac8280808080c001ff010107ababababababababababababababababab
    ababababababababababababababab02090c504f5354202f6f726465727380a0abfef962020a0c0e01076f726465722f
    31c90103046c696e6b033c613e017804636166e9046c696e6b033c623e000400ff7b7d010b677270632d737461747573
    0130";
const GOLDEN_TOMBSTONE: &str = "
    01909eb8e8c0e1828589909cb0d080c1818202ac8280808080c001ff010107ababababababababababababababababab
    ababababababababababababababab02090c504f5354202f6f726465727380a0abfef962020a0c0e01076f726465722f
    31c90103046c696e6b033c613e017804636166e9046c696e6b033c623e0101010b677270632d7374617475730130";

#[test]
fn every_value_survives() {
    use RecoveryClass::*;
    use Uncertainty::*;
    for recovery in [Atomic, Phased, Outside, Deduplicated] {
        let record =
            Record { recovery, ..record(State::InFlight { lease_until: Wall::from_unix_ms(i64::MAX) }) };
        assert_eq!(decode(&encode(&record).unwrap().into()).unwrap(), record);
    }
    for why in [HolderLost, UpstreamLost, Panicked, Declared, ResultNotStored] {
        let record = record(State::Uncertain { since: Wall::from_unix_ms(i64::MIN), why });
        assert_eq!(decode(&encode(&record).unwrap().into()).unwrap(), record);
    }
    for why in [NotKept::TooLarge, NotKept::Streamed, NotKept::ByContract] {
        let record = record(completed(Body::NotKept(why)));
        assert_eq!(decode(&encode(&record).unwrap().into()).unwrap(), record);
    }
}

#[test]
fn s20_an_unknown_version_is_refused_and_not_guessed() {
    let mut bytes = encode(&record(completed(Body::NotKept(NotKept::TooLarge)))).unwrap();
    for version in [0, 2, 255] {
        bytes[0] = version;
        assert_eq!(decode(&bytes.clone().into()).unwrap_err().kind(), ErrorKind::UnknownVersion);
    }
}

#[test]
fn damage_is_corrupt_wherever_the_record_is_cut_and_whatever_is_appended() {
    let bytes = encode(&record(completed(Body::Kept(Bytes::from_static(b"body"))))).unwrap();
    for len in 0..bytes.len() {
        let cut = Bytes::copy_from_slice(&bytes[..len]);
        assert_eq!(decode(&cut).unwrap_err().kind(), ErrorKind::Corrupt, "cut at {len}");
    }
    let mut longer = bytes;
    longer.push(0);
    assert_eq!(decode(&longer.into()).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let mut record = record(completed(Body::NotKept(NotKept::Streamed)));
    let State::Completed { outcome, .. } = &mut record.state else { panic!("completed") };
    let outcome = Arc::make_mut(outcome);
    outcome.headers = vec![outcome.headers[0].clone(); MAX_HEADER_LINES + 1];
    assert_eq!(encode(&record).unwrap_err().kind(), ErrorKind::Full);
}

#[test]
fn a_body_is_read_without_being_copied() {
    let bytes = Bytes::from(encode(&record(completed(Body::Kept(Bytes::from(vec![7; 1000]))))).unwrap());
    let State::Completed { outcome, .. } = decode(&bytes).unwrap().state else { panic!("completed") };
    let Body::Kept(body) = &outcome.body else { panic!("kept") };
    assert!(bytes.as_ptr_range().contains(&body.as_ptr()));
}

fn any_state() -> impl Strategy<Value = State> {
    let line = (".*", proptest::collection::vec(any::<u8>(), 0..40))
        .prop_map(|(name, value)| HeaderPair { name: name.into(), value: value.into() });
    let lines = proptest::collection::vec(line, 0..5);
    let body = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300));
    prop_oneof![
        any::<i64>().prop_map(|ms| State::InFlight { lease_until: Wall::from_unix_ms(ms) }),
        any::<i64>()
            .prop_map(|ms| State::Uncertain { since: Wall::from_unix_ms(ms), why: Uncertainty::Panicked }),
        (any::<u16>(), lines.clone(), body, lines, any::<[i64; 3]>(), proptest::option::of(".*")).prop_map(
            |(status, headers, body, trailers, [at, expires_at, reap_at], resource)| State::Completed {
                outcome: Arc::new(Outcome {
                    status,
                    headers,
                    body: body.map_or(Body::NotKept(NotKept::ByContract), |body| Body::Kept(body.into())),
                    trailers,
                }),
                at: Wall::from_unix_ms(at),
                expires_at: Wall::from_unix_ms(expires_at),
                reap_at: Wall::from_unix_ms(reap_at),
                resource: resource.map(|id| ResourceId(id.into())),
            }
        ),
    ]
}

proptest! {
    #[test]
    fn s10_every_record_comes_back_byte_for_byte(state in any_state(), attempt: u128, fence: u64, endpoint in ".*") {
        let record = Record {
            attempt: AttemptId::new(attempt),
            fence: Fence::from_u64(fence),
            endpoint: endpoint.into(),
            ..record(state)
        };
        prop_assert_eq!(decode(&encode(&record).unwrap().into()).unwrap(), record);
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), known: bool) {
        if known && let Some(version) = bytes.first_mut() {
            *version = VERSION;
        }
        let _ = decode(&bytes.into());
    }

    #[test]
    fn a_flipped_bit_never_panics(state in any_state(), at: prop::sample::Index, bit in 0..8u8) {
        let mut bytes = encode(&record(state)).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let _ = decode(&bytes.into());
    }
}
