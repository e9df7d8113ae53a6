//! Calls inside of calls: one layer retries, and the others keep its keys and its deadline.

use std::time::Duration;

use retrysafe_client::{Failed, Retries, inherit, is_retried, retry_by, time_left};
use retrysafe_core::retry::{Idempotence, Lost, Reach, Seen};

use crate::{
    Ended, keyed, post,
    server::{Act, Server},
};

fn outer() -> Retries {
    let mut policy = retrysafe_core::retry::RetryPolicy::default();
    policy.backoff.base = Duration::from_millis(2);
    Retries::to("outer").policy(policy).idempotence(Idempotence::Safe)
}

/// I-66: three times three is nine; here it is three, and the server sees one key.
#[tokio::test]
async fn i66_the_inner_layer_stands_down_and_keeps_its_key() {
    let server = Server::play((0..20).map(|_| Act::Close)).await;
    let client = keyed(&server.url()).build().unwrap();
    let lost = |_: &Ended| Seen::lost(Lost::Other, Reach::Whole);
    let ended = retry_by(&outer(), |_| async { post(&client).await.map(drop) }, lost).await;
    assert!(matches!(ended, Err(Failed::Stopped { .. })));
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    assert!(
        requests.iter().all(|seen| seen.header("idempotency-key") == requests[0].header("idempotency-key"))
    );
}

/// Two calls of one attempt are two operations, each with a key of its own that the next attempt finds again.
#[tokio::test]
async fn nested_calls_keep_their_keys_apart_and_over_attempts() {
    let server = Server::play([]).await;
    let client = keyed(&server.url()).build().unwrap();
    let lost = |_: &Ended| Seen::lost(Lost::Other, Reach::Whole);
    let op = |attempt: retrysafe_client::Attempt| {
        let client = &client;
        async move {
            post(client).await?;
            post(client).await?;
            if attempt.number < 2 {
                Err(Ended::Refused(retrysafe_client::Refused::BodyChanged))
            } else {
                Ok(())
            }
        }
    };
    retry_by(&outer(), op, lost).await.unwrap();
    let keys: Vec<String> =
        server.requests().iter().map(|seen| seen.header("idempotency-key").unwrap().to_owned()).collect();
    assert_eq!(keys.len(), 4);
    assert_eq!((&keys[0], &keys[1]), (&keys[2], &keys[3]));
    assert_ne!(keys[0], keys[1]);
    // Another outer call is another family of keys.
    retry_by(&outer(), |_| async { post(&client).await.map(drop) }, lost).await.unwrap();
    assert_ne!(server.requests()[4].header("idempotency-key"), Some(keys[0].as_str()));
}

#[tokio::test]
async fn a_request_hands_down_its_deadline_and_that_it_is_retried() {
    let mut headers = http::HeaderMap::new();
    headers.insert("x-request-timeout-ms", "150".parse().unwrap());
    headers.insert(retrysafe_client::ATTEMPT_HEADER, "2".parse().unwrap());
    let server = Server::play([Act::Close, Act::Close]).await;
    let client = keyed(&server.url()).build().unwrap();
    inherit(&headers, Some("x-request-timeout-ms"), async {
        assert!(is_retried() && time_left().unwrap() <= Duration::from_millis(150));
        assert!(post(&client).await.is_err());
    })
    .await;
    assert_eq!(server.requests().len(), 1);
    assert!(!is_retried() && time_left().is_none());
}
