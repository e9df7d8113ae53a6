//! What is sent is what was stored, byte for byte.

use bytes::Bytes;
use retrysafe_core::outcome::{Body, HeaderPair, NotKept, Outcome};

use super::{Place, samples::*};

fn line(name: &str, value: &'static [u8]) -> HeaderPair {
    HeaderPair { name: name.into(), value: Bytes::from_static(value) }
}

pub(super) async fn s10_an_answer_comes_back_byte_for_byte(place: &dyn Place) {
    let store = open(place);
    let every_byte: Vec<u8> = (0..=255).cycle().take(1_000).collect();
    let outcomes = [
        ("binary body", Outcome { body: Body::Kept(every_byte.into()), ..answer(b"") }),
        ("empty body", answer(b"")),
        (
            "s5: repeated names in their order",
            Outcome {
                headers: vec![
                    line("link", b"<b>"),
                    line("etag", b"\"1\""),
                    line("link", b"<a>"),
                    line("link", b"<b>"),
                ],
                ..answer(b"x")
            },
        ),
        (
            "obs-text and an empty value",
            Outcome { headers: vec![line("x", b"caf\xe9\xff"), line("y", b"")], ..answer(b"x") },
        ),
        (
            "s17: trailers",
            Outcome {
                trailers: vec![line("grpc-status", b"5"), line("grpc-message", b"no")],
                ..answer(b"x")
            },
        ),
        ("s18: no headers, no body", Outcome { status: 204, headers: Vec::new(), ..answer(b"") }),
        ("s7: a failure keeps its status", Outcome { status: 503, ..answer(b"busy") }),
        ("tombstone: too large", Outcome { body: Body::NotKept(NotKept::TooLarge), ..answer(b"") }),
        ("tombstone: streamed", Outcome { body: Body::NotKept(NotKept::Streamed), ..answer(b"") }),
        ("tombstone: by contract", Outcome { body: Body::NotKept(NotKept::ByContract), ..answer(b"") }),
    ];
    for (n, (name, outcome)) in (1..).zip(outcomes) {
        let address = address(name);
        let mine = claim(&*store, &address, n).await;
        let stored =
            apply(&*store, &address, holder(&mine), &done_with(&mine, outcome, Some("order/1"))).await;
        let read = store.load(&address).await.unwrap().unwrap();
        assert!(read == stored, "{name}");
    }
}

pub(super) async fn a_large_body_comes_back_byte_for_byte(place: &dyn Place) {
    let store = open(place);
    let address = address("k");
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mine = claim(&*store, &address, 1).await;
    let outcome = Outcome { body: Body::Kept(body.into()), ..answer(b"") };
    let stored = apply(&*store, &address, holder(&mine), &done_with(&mine, outcome, None)).await;
    assert!(store.load(&address).await.unwrap() == Some(stored), "a body of 3 MB");
}
