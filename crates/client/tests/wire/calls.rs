//! One logical call: its key, its deadline, its budget, its limiters.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use retrysafe_client::{
    Api, Breaker, Bulkhead, Client, Error, Key, Limits, Operation, Profile, Refused, intents::FileIntents,
    within,
};
use retrysafe_core::retry::{
    Rule, Stop,
    budget::{Bucket, Rules},
};

use crate::{
    keyed, post,
    server::{Act, Server, answer},
    transport,
};

fn key_of(server: &Server, request: usize) -> String {
    server.requests()[request].header("idempotency-key").unwrap().to_owned()
}

/// I-16: whatever else there is, the caller's own key is sent, and sent as it is.
#[tokio::test]
async fn i16_the_callers_key_wins() {
    let server = Server::play([Act::Close]).await;
    let client = keyed(&server.url()).build().unwrap();
    let request = client.post("/orders").body("{}").header("Idempotency-Key", "\"mine 1\"");
    request.key(Key::from_event("order", 9).unwrap()).send().await.unwrap();
    assert_eq!((key_of(&server, 0), key_of(&server, 1)), ("\"mine 1\"".into(), "\"mine 1\"".into()));

    for bad in ["undefined", "", "null"] {
        let error =
            client.post("/orders").body("{}").header("Idempotency-Key", bad).send().await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{bad}: {error}");
    }
    assert_eq!(server.requests().len(), 2);
}

/// I-18: made once for a logical call, and never inside of it.
#[tokio::test]
async fn i18_a_key_is_made_once_and_each_call_has_its_own() {
    let server =
        Server::play([Act::Close, Act::Answer(answer(503, "", "")), Act::Answer(answer(200, "", ""))]).await;
    let client = keyed(&server.url()).build().unwrap();
    post(&client).await.unwrap();
    post(&client).await.unwrap();
    assert_eq!(key_of(&server, 0), key_of(&server, 1));
    assert_eq!(key_of(&server, 1), key_of(&server, 2));
    assert_ne!(key_of(&server, 2), key_of(&server, 3));
    assert!(!server.requests()[0].body.is_empty(), "I-26: the bytes go with the key");
    assert_eq!(server.requests()[0].body, server.requests()[2].body);
}

#[tokio::test]
async fn i21_another_body_under_the_same_key_is_refused_before_it_is_sent() {
    let server = Server::play([]).await;
    let client = keyed(&server.url()).build().unwrap();
    let order = |body: &'static str| {
        let request = client.post("/orders").header("content-type", "application/json").body(body);
        request.event("order", 991).unwrap().send()
    };
    order("{\"a\":1,\"b\":2}").await.unwrap();
    order("{\"b\":2, \"a\":1.0}").await.unwrap();
    let error = order("{\"a\":2}").await.unwrap_err();
    assert!(matches!(error, Error::Refused(Refused::BodyChanged)), "{error}");
    assert_eq!(server.requests().len(), 2);
}

/// The life of a key over the tries of one operation.
#[tokio::test]
async fn an_operation_turns_its_key_by_the_outcome() {
    let server = Server::play([
        Act::Answer(answer(402, "", "declined")),
        Act::Close,
        Act::Close,
        Act::Close,
        Act::Answer(answer(201, "", "")),
    ])
    .await;
    let client = keyed(&server.url()).build().unwrap();
    let mut operation = Operation::new();
    let mut keys = Vec::new();
    let declined = client.post("/pay").body("card-1").send_as(&mut operation).await.unwrap();
    assert_eq!(declined.status().as_u16(), 402);
    keys.push(operation.key().unwrap().clone());

    let error = client.post("/pay").body("card-2").send_as(&mut operation).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
    keys.push(operation.key().unwrap().clone());
    assert_ne!(keys[0], keys[1], "a definitive refusal turns the key");

    let error = client.post("/pay").body("card-3").send_as(&mut operation).await.unwrap_err();
    assert!(matches!(error, Error::Refused(Refused::Undecided)), "it may have been paid: {error}");
    client.post("/pay").body("card-2").send_as(&mut operation).await.unwrap();
    assert_eq!(operation.key().unwrap(), &keys[1], "an unknown outcome keeps it");
    client.post("/pay").body("card-2").send_as(&mut operation).await.unwrap();
    assert_ne!(operation.key().unwrap(), &keys[1], "success turns it: the second purchase is another");
}

#[tokio::test]
async fn one_deadline_is_inherited_and_only_tightened() {
    let server = Server::play([Act::Hang]).await;
    let client = keyed(&server.url()).build().unwrap();
    let began = tokio::time::Instant::now();
    let error = within(Duration::from_millis(200), async {
        client.post("/orders").body("{}").within(Duration::from_secs(20)).send().await.unwrap_err()
    })
    .await;
    let Error::OutcomeUnknown(unknown) = error else { panic!("{error}") };
    assert!(matches!(unknown.because, Stop::Deadline { .. }), "{:?}", unknown.because);
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_deadline_that_has_passed_sends_nothing() {
    let server = Server::play([]).await;
    let client = keyed(&server.url()).build().unwrap();
    let error = within(Duration::ZERO, post(&client)).await.unwrap_err();
    assert!(matches!(error, Error::Stopped(_)), "{error}");
    assert!(server.requests().is_empty());
}

/// I-37: one dead host does not silence the retries to another.
#[tokio::test]
async fn i37_each_target_has_its_own_budget() {
    let bad = Server::play([Act::Close, Act::Close, Act::Close, Act::Close]).await;
    let rules = Rules { bucket: Some(Bucket { capacity: 14, ..Bucket::default() }), ..Rules::NONE };
    let mut profile = Profile::plain("test", "idempotency-key");
    profile.policy.backoff.base = Duration::from_millis(2);
    let api = Api::profile(profile).budget(rules);
    let client = |base: &str| Client::builder(api.clone(), base).transport(transport()).build().unwrap();
    let error = post(&client(&bad.url())).await.unwrap_err();
    let Error::OutcomeUnknown(unknown) = &error else { panic!("{error}") };
    assert!(matches!(unknown.because, Stop::Budget(_)), "{error}");
    assert!(error.to_string().contains("0 of 14 tokens"), "I-38: {error}");
    assert_eq!(bad.requests().len(), 2);

    let good = Server::play([Act::Close]).await;
    assert_eq!(post(&client(&good.url())).await.unwrap().attempts(), 2);
}

/// I-52, I-72: dropping a call gives back what it held.
#[tokio::test]
async fn i72_a_dropped_call_leaves_the_budget_balanced() {
    let server = Server::play([Act::Answer(answer(503, "retry-after: 5\r\n", ""))]).await;
    let client = keyed(&server.url()).build().unwrap();
    let gave_up = tokio::time::timeout(Duration::from_millis(300), post(&client)).await;
    assert!(gave_up.is_err());
    let budget = client.api().budget_of(&server.url().parse().unwrap());
    let reading = budget.reading(retrysafe_core::retry::Mono::START);
    let bucket = reading.bucket.unwrap();
    assert_eq!((bucket.held, bucket.spent, bucket.balance), (0, 0, 500));
    assert_eq!((reading.calls, reading.retries), (0, 0));
}

fn limited(server: &Server, limits: Limits, attempts: u32) -> Client {
    let mut profile = Profile::plain("test", "idempotency-key");
    profile.policy.backoff.base = Duration::from_millis(2);
    profile.policy.attempts = attempts.try_into().unwrap();
    let api = Api::profile(profile).limits(limits);
    Client::builder(api, &server.url()).transport(transport()).build().unwrap()
}

/// I-70: an open breaker is waited for where it opens in time, and not beyond the deadline; it costs no attempt.
#[tokio::test]
async fn i70_an_open_breaker_keeps_attempts_back() {
    let rule = Breaker {
        window: 2,
        attempts_min: 2,
        failures_percent: 50,
        open: Duration::from_secs(60),
        trials: 1,
    };
    let server = Server::play([Act::Close, Act::Close]).await;
    let client = limited(&server, Limits { breaker: Some(rule), ..Limits::default() }, 9);
    let error = post(&client).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
    assert_eq!(server.requests().len(), 2, "the third is kept back: it opens after the deadline");

    let rule = Breaker { open: Duration::from_millis(50), ..rule };
    let server = Server::play([Act::Close, Act::Close]).await;
    let client = limited(&server, Limits { breaker: Some(rule), ..Limits::default() }, 3);
    let done = post(&client).await.unwrap();
    assert_eq!((done.attempts(), server.requests().len()), (3, 3));
}

#[tokio::test]
async fn i71_a_full_bulkhead_sheds_or_waits() {
    for (wait_ms, finds_a_place) in [(0, false), (2_000, true)] {
        let rule = Bulkhead { attempts_max: 1, wait_max: Duration::from_millis(wait_ms) };
        let late = Act::Late(Duration::from_millis(200), answer(200, "", ""));
        let server = Server::play([late]).await;
        let client = limited(&server, Limits { bulkhead: Some(rule), ..Limits::default() }, 3);
        let (first, second) = tokio::join!(post(&client), post(&client));
        assert!(first.is_ok());
        match second {
            Ok(_) => assert!(finds_a_place),
            Err(Error::Stopped(stopped)) => {
                assert!(!finds_a_place && stopped.because == Stop::Rule(Rule::Held), "{}", stopped.because);
                assert_eq!(server.requests().len(), 1);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Hedging passes the same gate as retrying.
#[tokio::test]
async fn a_hedge_is_sent_only_where_a_retry_would_be() {
    let late = Act::Late(Duration::from_millis(600), answer(200, "", "slow"));
    let server = Server::play([late.clone()]).await;
    let client = keyed(&server.url()).build().unwrap();
    let done = client.post("/orders").body("{}").hedge(Duration::from_millis(50)).send().await.unwrap();
    assert_eq!(done.body().as_ref(), b"done", "the second attempt was quicker");
    assert_eq!(key_of(&server, 0), key_of(&server, 1));

    let server = Server::play([late]).await;
    let client = crate::keyless(&server.url()).build().unwrap();
    let done = client.post("/orders").body("{}").hedge(Duration::from_millis(50)).send().await.unwrap();
    assert_eq!((done.body().as_ref(), server.requests().len()), (&b"slow"[..], 1));
}

/// M2: a client that checked its scope only from the second attempt on sent a POST twice; and retried within 0.8 ms.
#[tokio::test]
async fn m2_a_call_that_must_not_be_repeated_is_sent_once_and_retries_back_off() {
    let unavailable = || Act::Answer(answer(503, "", ""));
    let server = Server::play([unavailable()]).await;
    let client = crate::keyless(&server.url()).build().unwrap();
    let error = post(&client).await.unwrap_err();
    assert!(matches!(error, Error::Stopped(_)), "{error}");
    assert_eq!(server.requests().len(), 1);

    let server = Server::play([unavailable(), unavailable()]).await;
    let client = keyed(&server.url()).build().unwrap();
    let done = post(&client).await.unwrap();
    let pauses: Vec<_> = done.history().steps().iter().map(|step| step.pause.unwrap().delay).collect();
    assert!(pauses.len() == 2 && pauses.iter().all(|pause| !pause.is_zero()), "{pauses:?}");
}

/// Out of the box: a contract and an address, no transport, no provider of cryptography that somebody has installed.
#[tokio::test]
async fn a_contract_and_an_address_make_a_client() {
    let server = Server::play([]).await;
    let contract = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wire/contract.toml");
    let client = Client::from_contract(contract, &server.url()).unwrap();
    assert_eq!(post(&client).await.unwrap().status().as_u16(), 201);
    assert!(Client::from_contract("missing.toml", &server.url()).is_err());
    assert!(Client::from_contract(contract, "/orders").is_err());
}

/// I-59: a stream that can be made anew is a body like another: the same bytes under the same key.
#[tokio::test]
async fn i59_a_body_that_is_made_anew_is_sent_with_every_attempt() {
    let server = Server::play([Act::Close]).await;
    let client = keyed(&server.url()).build().unwrap();
    let made = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&made);
    let lines = move || {
        count.fetch_add(1, Ordering::Relaxed);
        let frames = ["one\n", "two\n"].map(|line| Ok::<_, std::io::Error>(Frame::data(Bytes::from(line))));
        StreamBody::new(futures_util::stream::iter(frames))
    };
    let request = client.post("/lines").header("content-length", "8").body_with(lines);
    assert_eq!(request.send().await.unwrap().status().as_u16(), 201);
    assert_eq!(made.load(Ordering::Relaxed), 2);
    let seen = server.requests();
    let bodies: Vec<&[u8]> = seen.iter().map(|request| &request.body[..]).collect();
    assert_eq!(bodies, [b"one\ntwo\n", b"one\ntwo\n"]);
    assert_eq!(seen[0].header("idempotency-key"), seen[1].header("idempotency-key"));
}

/// What is written down is bytes: a stream would come back empty after a crash.
#[tokio::test]
async fn a_stream_is_not_written_down_as_an_intent() {
    let server = Server::play([]).await;
    let folder = tempfile::tempdir().unwrap();
    let intents = FileIntents::in_folder(folder.path()).unwrap();
    let client = keyed(&server.url()).intents(intents).build().unwrap();
    let stream = || Full::new(Bytes::from("{}"));
    let refused = client.post("/orders").body_with(stream).durable().send().await.unwrap_err();
    assert!(
        matches!(&refused, Error::Refused(Refused::Intent(text)) if text.contains("stream")),
        "{refused}"
    );
    assert!(client.post("/orders").body_with(stream).intent().is_err());
    assert!(server.requests().is_empty());
}
