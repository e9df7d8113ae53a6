//! What the answers of a server mean: machine codes before statuses, hints, and the contract's own words.

use std::time::Duration;

use retrysafe_client::{Api, Client, Error, Host, Profile, Told};
use retrysafe_core::{
    codes::Code,
    retry::{Rule, Stop},
};

use crate::{
    keyed, post,
    server::{Act, Server, answer, problem},
    told, transport,
};

fn shop(server: &Server) -> Client {
    let contract = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wire/contract.toml");
    let api = Api::contract_file(contract).unwrap_or_else(|fault| panic!("{fault}"));
    Client::builder(api, &server.url()).transport(transport()).build().unwrap()
}

#[tokio::test]
async fn i25_in_flight_waits_and_asks_again_with_the_same_key() {
    let busy = problem(409, "idempotency_key_in_flight", true, "");
    let server = Server::play([Act::Answer(busy.clone()), Act::Answer(busy)]).await;
    let client = keyed(&server.url()).build().unwrap();
    let done = post(&client).await.unwrap();
    assert_eq!((done.status().as_u16(), done.attempts()), (201, 3));
    let requests = server.requests();
    assert!(
        requests.iter().all(|seen| seen.header("idempotency-key") == requests[0].header("idempotency-key"))
    );
    assert!(requests.iter().all(|seen| seen.body == requests[0].body));
}

#[tokio::test]
async fn a_202_in_flight_is_no_success_and_its_status_url_is_polled() {
    let accepted = answer(
        202,
        "content-type: application/json\r\nlocation: /.retrysafe/status/abc\r\n",
        "{\"code\":\"idempotency_key_in_flight\"}",
    );
    let server = Server::play([
        Act::Answer(accepted.clone()),
        Act::Answer(accepted),
        Act::Answer(answer(201, "", "result")),
    ])
    .await;
    let client = keyed(&server.url()).build().unwrap();
    let done = client.post("/orders").header("authorization", "Bearer t").body("{}").send().await.unwrap();
    assert_eq!(done.body().as_ref(), b"result");
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    for poll in &requests[1..] {
        assert!(poll.head.starts_with("GET /.retrysafe/status/abc "), "{}", poll.head);
        assert_eq!(poll.header("authorization"), Some("Bearer t"), "it is authorised again");
        assert_eq!((poll.header("idempotency-key"), poll.body.len()), (None, 0));
    }
}

#[tokio::test]
async fn an_ordinary_202_is_a_result() {
    let server = Server::play([Act::Answer(answer(202, "location: /jobs/1\r\n", ""))]).await;
    let client = keyed(&server.url()).build().unwrap();
    assert_eq!(post(&client).await.unwrap().status().as_u16(), 202);
    assert_eq!(server.requests().len(), 1);
}

/// Whoever answers cannot send a caller's credentials somewhere else.
#[tokio::test]
async fn a_status_url_of_another_origin_gets_no_credentials() {
    let foreign = Server::play([]).await;
    let accepted = answer(
        202,
        &format!("content-type: application/json\r\nlocation: {}/steal\r\n", foreign.url()),
        "{\"code\":\"idempotency_key_in_flight\"}",
    );
    let server = Server::play([Act::Answer(accepted)]).await;
    let client = keyed(&server.url()).build().unwrap();
    assert_eq!(post(&client).await.unwrap().status().as_u16(), 201);
    assert!(foreign.requests().is_empty());
}

#[tokio::test]
async fn a_mismatch_is_final_and_so_is_an_uncertain_key_unless_told() {
    let cases = [
        ("idempotency_key_payload_mismatch", Stop::Rule(Rule::Mismatch)),
        ("idempotency_response_not_kept", Stop::Rule(Rule::AnswerNotKept)),
        ("idempotency_key_too_long", Stop::Rule(Rule::Refused(Code::KeyTooLong))),
    ];
    for (code, because) in cases {
        let server = Server::play([Act::Answer(problem(409, code, false, ""))]).await;
        let client = keyed(&server.url()).build().unwrap();
        let Error::Stopped(stopped) = post(&client).await.unwrap_err() else { panic!("{code}") };
        assert_eq!(stopped.because, because);
        assert_eq!(stopped.answer.unwrap().status().as_u16(), 409);
        assert_eq!(server.requests().len(), 1, "{code}");
    }

    let uncertain = Act::Answer(problem(409, "idempotency_outcome_unknown", false, ""));
    let server = Server::play([uncertain.clone()]).await;
    let client = keyed(&server.url()).build().unwrap();
    let Error::OutcomeUnknown(unknown) = post(&client).await.unwrap_err() else {
        panic!("it may have happened")
    };
    assert_eq!(unknown.because, Stop::Rule(Rule::ServerLooksItUp));

    let server = Server::play([uncertain.clone(), uncertain]).await;
    let mut profile = Profile::plain("test", "idempotency-key");
    profile.policy.backoff.base = Duration::from_millis(2);
    let api = Api::profile(profile).uncertain(retrysafe_core::retry::Uncertain::Ask);
    let client = Client::builder(api, &server.url()).transport(transport()).build().unwrap();
    assert_eq!(post(&client).await.unwrap().status().as_u16(), 201);
}

/// The contract's header, spelling, numbers and words, and nothing of ours.
#[tokio::test]
async fn every_number_and_name_comes_from_the_contract() {
    let draining = answer(503, "content-type: application/json\r\n", "{\"reason\":\"draining\"}");
    let server = Server::play([
        Act::Answer(draining.clone()),
        Act::Answer(answer(503, "", "")),
        Act::Answer(draining),
    ])
    .await;
    let client = shop(&server);
    let done = post(&client).await.unwrap();
    assert_eq!(done.attempts(), 4, "the contract says four");
    for (number, seen) in server.requests().iter().enumerate() {
        let key = seen.header("x-order-key").unwrap();
        assert!(
            key.starts_with('"') && key.ends_with('"') && seen.header("idempotency-key").is_none(),
            "{key}"
        );
        assert_eq!(seen.header("idempotency-attempt"), Some((number + 1).to_string().as_str()));
        let left: u64 = seen.header("x-request-timeout-ms").unwrap().parse().unwrap();
        assert!(left > 0 && left <= 5_000, "{left}");
    }
    let explained = client.api().explain();
    assert_eq!((explained.requests_max, explained.time_max), (4, Duration::from_secs(5)));

    let long = retrysafe_client::Key::from_event("order", "x1".repeat(40)).unwrap();
    let error = client.post("/orders").key(long).body("{}").send().await.unwrap_err();
    assert!(error.to_string().contains("60 bytes"), "{error}");
}

#[tokio::test]
async fn a_key_in_the_body_is_the_same_in_every_attempt() {
    let server = Server::play([Act::Close]).await;
    let client = shop(&server);
    let payment = serde_json::json!({ "amount": 5, "meta": { "note": "n" } });
    let done = client.post("/payments").json(&payment).unwrap().send().await.unwrap();
    assert_eq!(done.attempts(), 2);
    let bodies: Vec<serde_json::Value> =
        server.requests().iter().map(|seen| serde_json::from_slice(&seen.body).unwrap()).collect();
    assert_eq!(bodies[0], bodies[1]);
    assert!(bodies[0]["meta"]["key"].as_str().unwrap().len() == 36 && bodies[0]["amount"] == 5);
    let error = client.post("/payments").body("[]").send().await.unwrap_err();
    assert!(matches!(error, Error::Refused(retrysafe_client::Refused::NoPlaceForKey)), "{error}");
}

/// "Documented as unsafe to retry" outranks the method.
#[tokio::test]
async fn an_operation_that_is_unsafe_by_contract_is_not_repeated() {
    let server = Server::play([Act::Close]).await;
    let client = shop(&server);
    let error = client.request(http::Method::DELETE, "/counters/7").send().await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
    assert_eq!(server.requests().len(), 1);
}

/// Stripe, version 1, keeps a 500 under its key: asking again fetches it again.
#[tokio::test]
async fn a_stored_failure_is_not_worth_the_same_key() {
    let server = Server::play([Act::Answer(answer(500, "", "")), Act::Answer(answer(500, "", ""))]).await;
    let stripe = |profile| {
        let api = Api::profile(profile);
        Client::builder(api, &server.url()).transport(transport()).build().unwrap()
    };
    let done = post(&stripe(Profile::named("stripe-v1").unwrap())).await.unwrap();
    assert_eq!((done.status().as_u16(), server.requests().len()), (500, 1));
    // Version 2 runs failed work to its end.
    let done = post(&stripe(Profile::named("stripe-v2").unwrap())).await.unwrap();
    assert_eq!((done.status().as_u16(), done.attempts()), (201, 2));
}

#[tokio::test]
async fn vendors_words_for_in_flight_and_mismatch_are_known() {
    let busy = answer(
        409,
        "content-type: application/json\r\n",
        "{\"error\":{\"type\":\"idempotency_error\",\"code\":\"idempotency_key_in_use\"}}",
    );
    let reused =
        answer(400, "content-type: application/json\r\n", "{\"error\":{\"type\":\"idempotency_error\"}}");
    let resend =
        answer(409, "content-type: application/json\r\n", "{\"name\":\"concurrent_idempotent_requests\"}");
    let server = Server::play([Act::Answer(busy), Act::Answer(resend), Act::Answer(reused)]).await;
    let client = keyed(&server.url()).build().unwrap();
    let error = post(&client).await.unwrap_err();
    assert_eq!(
        told(&error),
        [
            Told::Answered(409, Some(Code::KeyInFlight)),
            Told::Answered(409, Some(Code::KeyInFlight)),
            Told::Answered(400, Some(Code::PayloadMismatch))
        ]
    );
}

/// I-41, I-45: a wait that does not fit ends the call at once, with both numbers.
#[tokio::test]
async fn i45_an_hour_is_neither_slept_nor_shortened() {
    let server = Server::play([Act::Answer(answer(429, "retry-after: 3600\r\n", ""))]).await;
    let client = {
        let api = Api::profile(Profile::plain("test", "idempotency-key")).host(Host::default().seeded(1));
        Client::builder(api, &server.url()).transport(transport()).build().unwrap()
    };
    let Error::Stopped(stopped) = post(&client).await.unwrap_err() else { panic!("nothing happened") };
    let Stop::RetryAfter { asked, left } = stopped.because else { panic!("{:?}", stopped.because) };
    assert_eq!(asked, Duration::from_secs(3_600));
    assert!(left <= Duration::from_secs(30));
    assert_eq!(server.requests().len(), 1);
}

/// A result that is longer than this side holds was processed: it is not fetched three times.
#[tokio::test]
async fn a_result_that_is_too_long_ends_the_call() {
    let server = Server::play([Act::Answer(answer(200, "", &"x".repeat(5_000)))]).await;
    let client = keyed(&server.url()).answer_max(1_000).build().unwrap();
    let Error::Stopped(stopped) = post(&client).await.unwrap_err() else { panic!("it was processed") };
    assert_eq!((stopped.because, server.requests().len()), (Stop::Rule(Rule::Fault), 1));
}
