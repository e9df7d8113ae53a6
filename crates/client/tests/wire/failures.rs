//! V15 on the wire: each failure of the transport, as it is told apart, and what follows from it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use retrysafe_client::{Api, Error, Told};
use retrysafe_core::retry::{Lost, NotSent, Reach, Rule, Stop};
use tokio::io::AsyncReadExt;

use crate::{
    keyed, keyless, post,
    server::{
        Act, Server, answer,
        h2::{Refusal, refuse},
    },
    told, transport,
};

/// A call whose failure is known as "not sent" is tried again, key or not, and ends as one that did not happen.
async fn not_sent(base: &str, how: NotSent) {
    for builder in [keyed(base), keyless(base)] {
        let client = builder.connect_timeout(Duration::from_millis(200)).build().unwrap();
        let error = post(&client).await.unwrap_err();
        assert!(matches!(error, Error::Stopped(_)), "{error}");
        assert_eq!(told(&error), [Told::NotSent(how); 3]);
    }
}

#[tokio::test]
async fn v15_a_refused_connection_was_not_sent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    not_sent(&format!("http://{address}"), NotSent::Refused).await;
}

#[tokio::test]
async fn v15_a_name_that_does_not_resolve_was_not_sent() {
    not_sent("http://retrysafe.invalid", NotSent::Dns).await;
}

#[tokio::test]
async fn v15_a_connect_timeout_is_not_sent_and_no_read_timeout() {
    // A queue of connections that is full: the next handshake is not answered.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut waiting = Vec::new();
    for _ in 0..4 {
        let other = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        other.set_nonblocking(true).unwrap();
        let _in_progress = other.connect(&address.into());
        waiting.push(other);
    }
    not_sent(&format!("http://{address}"), NotSent::ConnectTimeout).await;
}

#[tokio::test]
async fn v15_a_handshake_that_breaks_off_was_not_sent() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut hello = [0; 64];
            let _read = stream.read(&mut hello).await;
        }
    });
    not_sent(&format!("https://{address}"), NotSent::Connect).await;
}

#[tokio::test]
async fn v15_a_certificate_that_is_not_trusted_is_not_tried_again() {
    let certificate = include_bytes!("untrusted.der").to_vec();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(include_bytes!("untrusted.key.der").to_vec());
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.into()], key.into())
            .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _refused = acceptor.accept(stream).await;
        }
    });
    let client = keyed(&format!("https://{address}")).build().unwrap();
    let error = post(&client).await.unwrap_err();
    assert_eq!(told(&error), [Told::NotSent(NotSent::Certificate)]);
    let Error::Stopped(stopped) = error else { panic!("{error}") };
    assert_eq!(stopped.because, Stop::Rule(Rule::Certificate));
}

/// With a key it is sent again under the same key; without one it may have happened, and is said to.
async fn unknown(act: Act, how: Lost) {
    let server = Server::play([act.clone()]).await;
    let client = keyed(&server.url()).build().unwrap();
    let done = post(&client).await.unwrap();
    assert_eq!((done.status().as_u16(), done.attempts()), (201, 2));
    let keys: Vec<_> =
        server.requests().iter().map(|seen| seen.header("idempotency-key").map(String::from)).collect();
    assert!(keys.iter().all(|key| key.is_some() && *key == keys[0]), "{keys:?}");

    let server = Server::play([act]).await;
    let client = keyless(&server.url()).build().unwrap();
    let error = post(&client).await.unwrap_err();
    assert_eq!(told(&error), [Told::Lost(how)]);
    let Error::OutcomeUnknown(unknown) = error else { panic!("{error}") };
    assert_eq!((unknown.attempts, unknown.because), (1, Stop::Rule(Rule::UnsafeToRepeat)));
    assert!(unknown.reach > Reach::Nothing && unknown.window_ends.is_none());
    assert!(server.requests().len() <= 1);
}

#[tokio::test]
async fn i3_a_reset_after_the_request_is_unknown() {
    unknown(Act::Reset, Lost::Reset).await;
}

#[tokio::test]
async fn i8_closed_without_an_answer_is_unknown() {
    unknown(Act::Close, Lost::Closed).await;
}

/// Either the request had not been written (then it is sent again, and arrives once), or nobody can tell.
#[tokio::test]
async fn a_reset_that_came_first_never_leads_to_a_second_request() {
    for _ in 0..20 {
        let server = Server::play([Act::ResetUnread]).await;
        let client = keyless(&server.url()).build().unwrap();
        match post(&client).await {
            Ok(done) => assert_eq!((done.attempts(), server.requests().len()), (2, 1)),
            Err(Error::OutcomeUnknown(_)) => assert!(server.requests().is_empty(), "it is not sent again"),
            Err(error) => panic!("{error}"),
        }
    }
    let server = Server::play([Act::ResetUnread]).await;
    let client = keyed(&server.url()).build().unwrap();
    assert_eq!(post(&client).await.unwrap().attempts(), 2);
}

#[tokio::test]
async fn v15_a_read_timeout_is_unknown() {
    let slow = |base: &str, api: Api| {
        retrysafe_client::Client::builder(api.attempt_timeout(Duration::from_millis(150)), base)
            .transport(transport())
            .build()
            .unwrap()
    };
    let server = Server::play([Act::Hang]).await;
    let client = slow(&server.url(), Api::unknown());
    let error = post(&client).await.unwrap_err();
    let Error::OutcomeUnknown(unknown) = &error else { panic!("{error}") };
    assert_eq!(unknown.reach, Reach::Whole);
    assert_eq!(told(&error), [Told::Lost(Lost::Timeout)]);

    let server = Server::play([Act::Hang]).await;
    let profile = retrysafe_client::Profile::plain("test", "idempotency-key");
    let client = slow(&server.url(), Api::profile(profile));
    assert_eq!(post(&client).await.unwrap().attempts(), 2);
}

/// The head of an answer has arrived: it was processed, with this status.
#[tokio::test]
async fn v15_a_body_that_is_cut_off_was_processed() {
    let cut = Act::AnswerAndClose("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".into());
    let server = Server::play([cut.clone()]).await;
    let client = keyed(&server.url()).build().unwrap();
    let done = post(&client).await.unwrap();
    assert_eq!((done.attempts(), done.body().as_ref()), (2, &b"done"[..]), "the next attempt fetches it");

    let server = Server::play([cut]).await;
    let client = keyless(&server.url()).build().unwrap();
    let error = post(&client).await.unwrap_err();
    assert_eq!(told(&error), [Told::Cut(200)]);
    let Error::Stopped(stopped) = error else { panic!("{error}") };
    assert_eq!(stopped.because, Stop::Rule(Rule::AnswerCut { status: 200 }));
    assert_eq!(server.requests().len(), 1);
}

/// A timeout in the body: "headers received" is asked before "is it a timeout".
#[tokio::test]
async fn v15_a_timeout_in_the_body_was_processed() {
    let server =
        Server::play([Act::Answer("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".into())]).await;
    let api = Api::unknown().attempt_timeout(Duration::from_millis(150));
    let client =
        retrysafe_client::Client::builder(api, &server.url()).transport(transport()).build().unwrap();
    let error = post(&client).await.unwrap_err();
    assert_eq!(told(&error), [Told::Cut(200)]);
}

#[tokio::test]
async fn v15_h2_refusals_are_not_processed_by_promise() {
    for refusal in [Refusal::RefusedStream, Refusal::GoAwayBefore] {
        let (address, requests) = refuse(vec![refusal]).await;
        let client = keyless(&format!("http://{address}"))
            .transport(transport().http2_prior_knowledge())
            .build()
            .unwrap();
        let done = post(&client).await.unwrap_or_else(|error| panic!("{refusal:?}: {error}"));
        assert_eq!((done.status().as_u16(), done.attempts()), (200, 2), "{refusal:?}");
        let how = match refusal {
            Refusal::RefusedStream => NotSent::RefusedStream,
            Refusal::GoAwayBefore | Refusal::GoAwayAfter => NotSent::GoAway,
        };
        assert_eq!(done.history().steps()[0].outcome, Told::NotSent(how));
        assert_eq!(*requests.lock().unwrap(), 2);
    }
}

/// A stream that the GOAWAY names may have been processed.
#[tokio::test]
async fn v15_h2_goaway_after_the_stream_is_unknown() {
    let (address, requests) = refuse(vec![Refusal::GoAwayAfter]).await;
    let client =
        keyless(&format!("http://{address}")).transport(transport().http2_prior_knowledge()).build().unwrap();
    let error = post(&client).await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown(_)), "{error}");
    assert_eq!(*requests.lock().unwrap(), 1);
}

/// A failure of the transport whose answer had said something else before is not forgotten.
#[tokio::test]
async fn doubt_survives_a_refusal_that_says_nothing_of_the_first_attempt() {
    let server = Server::play([Act::Close, Act::Answer(answer(401, "", ""))]).await;
    let client = keyed(&server.url()).build().unwrap();
    let error = post(&client).await.unwrap_err();
    let Error::OutcomeUnknown(unknown) = error else { panic!("{error}") };
    assert_eq!(unknown.because, Stop::Rule(Rule::NotListed { status: 401 }));
    assert!(unknown.key.is_some() && unknown.window_ends.is_some());
}
