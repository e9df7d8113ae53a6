//! What is stored and how it is replayed: byte for byte, or as a tombstone, and never a second run (S3-S18, S21).

use std::time::Duration;

use crate::support::{
    Answer,
    api::{Api, endpoint, json_reply, order},
    faulty::Call,
    post,
};
use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tower::ServiceExt;

fn values<'a>(answer: &'a Answer, name: &str) -> Vec<&'a [u8]> {
    answer.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
}

fn frames(parts: &'static [&'static [u8]]) -> Body {
    let frames = parts.iter().map(|part| Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(part))));
    Body::new(StreamBody::new(futures_util::stream::iter(frames)))
}

#[tokio::test]
async fn s5_s7_s8_s10_status_headers_and_bytes_come_back_as_they_were() {
    let api = Api::new("");
    api.replies(|n| {
        Response::builder()
            .status(299)
            .header("location", format!("/orders/{n}"))
            .header("etag", "\"v1\"")
            .header("link", "</a>; rel=a")
            .header("x-obs-text", HeaderValue::from_bytes(b"caf\xe9\xff").unwrap())
            .header("link", "</b>; rel=b")
            .header("content-type", "image/png")
            .header("content-encoding", "gzip")
            .body(Body::from((0..=255u8).collect::<Vec<_>>()))
            .unwrap()
    });
    let first = api.order("k").await;
    let second = api.order("k").await;
    assert_eq!(second, first);
    assert_eq!(second.status.as_u16(), 299);
    assert_eq!(values(&second, "link"), [b"</a>; rel=a", b"</b>; rel=b"], "S5: never merged, in order");
    assert_eq!(values(&second, "location"), [b"/orders/1"], "S7");
    assert_eq!(values(&second, "x-obs-text"), [b"caf\xe9\xff"], "S10");
    assert_eq!(second.body, (0..=255u8).collect::<Vec<_>>());
    assert_eq!(api.effects(), 1);
}

/// S8: a replayed error keeps its status, under the policy that stores it.
#[tokio::test]
async fn s8_every_stored_status_is_replayed_as_it_was() {
    for status in
        [200, 201, 202, 204, 205, 206, 303, 304, 400, 402, 403, 404, 409, 410, 422, 451, 500, 503, 599]
    {
        let api = Api::new("");
        api.replies(move |_| Response::builder().status(status).body(Body::empty()).unwrap());
        let first = api.order("k").await;
        assert_eq!(first.status.as_u16(), status);
        assert_eq!(api.order("k").await, first);
        assert_eq!(api.effects(), 1, "{status}");
    }
}

#[tokio::test]
async fn s6_a_cookie_made_for_one_session_is_not_handed_to_another() {
    let cookies = |_| {
        Response::builder()
            .header("set-cookie", "session=1; HttpOnly")
            .header("set-cookie", "theme=dark")
            .header("date", "Mon, 30 Nov 2026 10:00:00 GMT")
            .header("connection", "close, x-trace")
            .header("x-trace", "abc")
            .header("x-internal", "secret")
            .body(Body::empty())
            .unwrap()
    };
    let api = Api::new("");
    api.replies(cookies);
    assert_eq!(values(&api.order("k").await, "set-cookie").len(), 2, "the one who made it gets it");
    let replay = api.order("k").await;
    for gone in ["set-cookie", "date", "connection", "x-trace"] {
        assert!(!replay.headers.contains_key(gone), "{gone}");
    }
    let api = Api::new("stored_headers = { keep = [\"set-cookie\"], drop = [\"x-internal\"] }");
    api.replies(cookies);
    assert!(api.order("k").await.headers.contains_key("x-internal"));
    let replay = api.order("k").await;
    assert_eq!(
        values(&replay, "set-cookie"),
        [&b"session=1; HttpOnly"[..], b"theme=dark"],
        "each line apart"
    );
    assert!(!replay.headers.contains_key("x-internal"));
}

/// S3: the layer's own answers are never stored over a record.
#[tokio::test]
async fn s3_own_answers_poison_no_key() {
    let api = Api::new("");
    let first = api.order("k").await;
    for body in [r#"{"amount": 6}"#, "", "not json"] {
        assert_eq!(
            api.send(post("/orders", "alice", "k", body)).await.code(),
            "idempotency_key_payload_mismatch"
        );
    }
    assert_eq!(api.order("k").await, first, "the right body still gets its answer");
    let writes = api.writes();
    assert_eq!(writes[2], 1, "one completion, no other write: {writes:?}");

    // A key that was refused before it had a record leaves none.
    let unnamed =
        axum::extract::Request::post("/orders").header("idempotency-key", "k2").body(Body::empty()).unwrap();
    assert_eq!(api.send(unnamed).await.code(), "idempotency_scope_missing");
    assert_eq!(api.store.records().await.len(), 1);
    assert_eq!(api.effects(), 1);
}

#[tokio::test]
async fn s9_s10_a_body_of_many_frames_is_stored_whole() {
    let api = Api::new("");
    api.replies(|_| Response::new(frames(&[b"\x89PNG", b"", b"\r\n\x1a\n", b"\0\xff"])));
    let first = api.order("k").await;
    assert_eq!(first.body, &b"\x89PNG\r\n\x1a\n\0\xff"[..]);
    assert_eq!(api.order("k").await, first);
}

/// S11, S12: an answer that is too large, or a stream, leaves a tombstone: done, body not kept, never run again.
#[tokio::test]
async fn s11_s12_an_answer_that_is_not_kept_never_leads_to_a_second_run() {
    let limits = "limits = { response_body_max = \"8B\" }";
    let declared = |_| Response::new(Body::from("nine byte"));
    let undeclared = |_| Response::new(frames(&[b"four", b"more", b"x"]));
    let stream = |_| {
        let response = Response::builder().header("content-type", "Text/Event-Stream; charset=utf-8");
        response.body(frames(&[b"data", b": 1"])).unwrap()
    };
    type Case = (&'static str, fn(u64) -> Response, &'static str);
    let cases: [Case; 3] =
        [(limits, declared, "nine byte"), (limits, undeclared, "fourmorex"), ("", stream, "data: 1")];
    for (lines, reply, body) in cases {
        let api = Api::new(lines);
        api.replies(reply);
        let first = api.order("k").await;
        assert_eq!(first.body, body, "its own caller gets every byte");
        for _ in 0..2 {
            let later = api.order("k").await;
            assert_eq!(
                (later.status, later.code()),
                (StatusCode::CONFLICT, "idempotency_response_not_kept".into())
            );
        }
        let mismatch = api.send(post("/orders", "alice", "k", "{}")).await;
        assert_eq!(mismatch.code(), "idempotency_key_payload_mismatch", "the record is a record");
        assert_eq!(api.effects(), 1);
    }
    let api = Api::new(limits);
    api.replies(|_| Response::new(frames(&[b"four", b"more"])));
    assert_eq!(api.order("k").await, api.order("k").await, "exactly the limit is kept");
}

#[tokio::test]
async fn s15_a_replay_cannot_be_told_from_the_original_unless_the_contract_says_so() {
    let plain = Api::new("");
    assert_eq!(plain.order("k").await, plain.order("k").await);
    let marked = Api::new("replay_marker = \"Idempotent-Replayed\"");
    let first = marked.order("k").await;
    assert!(!first.headers.contains_key("idempotent-replayed"));
    let mut second = marked.order("k").await;
    assert_eq!(second.headers.remove("idempotent-replayed"), Some(HeaderValue::from_static("true")));
    assert_eq!(second, first, "and nothing else differs");
}

#[tokio::test]
async fn s17_trailers_are_replayed_as_trailers() {
    let api = Api::new("");
    api.replies(|_| {
        let frames = [
            Frame::data(Bytes::from_static(b"\0\0\0\0\x02hi")),
            Frame::trailers(HeaderMap::from_iter([
                ("grpc-status".parse().unwrap(), HeaderValue::from_static("0")),
                ("grpc-status-details-bin".parse().unwrap(), HeaderValue::from_static("CgA=")),
            ])),
        ];
        let frames = futures_util::stream::iter(frames.map(Ok::<_, std::io::Error>));
        Response::builder()
            .header("content-type", "application/grpc")
            .body(Body::new(StreamBody::new(frames)))
            .unwrap()
    });
    let mut seen = Vec::new();
    for _ in 0..2 {
        let response = api.router.clone().oneshot(order("k")).await.unwrap();
        assert!(!response.headers().contains_key("content-length"), "trailers need room on HTTP/1.1");
        let collected = response.into_body().collect().await.unwrap();
        let trailers = collected.trailers().cloned().unwrap();
        seen.push((collected.to_bytes(), trailers));
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[1].1["grpc-status-details-bin"], "CgA=");
    assert_eq!(api.effects(), 1);
}

/// A body that breaks off is no answer: nobody knows what its sender did.
#[tokio::test]
async fn an_answer_that_breaks_off_is_an_unknown_outcome() {
    let api = Api::new("");
    api.replies(|_| {
        let frames = [Ok(Frame::data(Bytes::from_static(b"{\"id\":"))), Err(std::io::Error::other("reset"))];
        Response::new(Body::new(StreamBody::new(futures_util::stream::iter(frames))))
    });
    assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
    assert_eq!(api.order("k").await.code(), "idempotency_outcome_unknown");
    assert_eq!((api.effects(), api.store.state().await), (1, "uncertain"));
}

/// S21: a replay is history. It tells what was answered then, whatever has become of the order.
#[tokio::test(start_paused = true)]
async fn s21_a_replay_is_history() {
    let api = Api::new("");
    let first = api.order("k").await;
    api.store.pass(Duration::from_secs(3600)).await;
    api.replies(|_| json_reply(410, serde_json::json!({ "gone": true })));
    assert_eq!(api.order("k").await, first);
}

/// SPEC 3.4, K8: equal orders under two keys are two orders (F20).
#[tokio::test]
async fn f20_equal_bodies_under_two_keys_are_two_requests() {
    let api = Api::new("");
    let (one, other) = (api.order("k-1").await, api.order("k-2").await);
    assert_ne!(one.body, other.body);
    assert_eq!(api.effects(), 2);
}

/// What a replay costs the store: one write that loses, and no other (SPEC 10).
#[tokio::test]
async fn a_replay_is_one_round_trip() {
    let api = Api::new("");
    api.order("k").await;
    let before = [Call::Claim, Call::Load, Call::Complete, Call::Remove].map(|call| api.store.count(call));
    api.order("k").await;
    let after = [Call::Claim, Call::Load, Call::Complete, Call::Remove].map(|call| api.store.count(call));
    assert_eq!(after, [before[0] + 1, before[1], before[2], before[3]]);
}

/// Nothing from a response reaches the head of a replay unless it is a header line there too.
#[tokio::test]
async fn a_replay_has_no_line_that_the_original_did_not_have() {
    let api = Api::contract(&endpoint("", ""));
    api.replies(|_| {
        let mut response = json_reply(201, serde_json::json!({ "note": "x\r\nset-cookie: a=1" }));
        response.headers_mut().insert("x-tab", HeaderValue::from_bytes(b"a\tb").unwrap());
        response
    });
    let (first, second) = (api.order("k").await, api.order("k").await);
    assert_eq!(first, second);
    assert!(!second.headers.contains_key("set-cookie"));
}
