//! Calls over tonic against a server of tonic, whose one method takes and gives bytes.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes};
use retrysafe_client::{ATTEMPT_HEADER, CODE_METADATA, Failed, Grpc, GrpcError, Retries};
use retrysafe_core::retry::{Backoff, RetryPolicy, Rule, Stop};
use tonic::{
    Request, Response, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    metadata::MetadataMap,
    server::{NamedService, UnaryService},
    transport::{Channel, Endpoint, server::TcpIncoming},
};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// What the service does with one call.
enum Act {
    Fail(Status),
    Hang,
}

/// Plays its acts; afterwards every call succeeds with its own message.
#[derive(Clone)]
struct Orders {
    acts: Arc<Mutex<VecDeque<Act>>>,
    seen: Arc<Mutex<Vec<(MetadataMap, Bytes)>>>,
}

impl NamedService for Orders {
    const NAME: &'static str = "shop.Orders";
}

impl tower::Service<http::Request<tonic::body::Body>> for Orders {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Boxed<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(tonic::server::Grpc::new(Raw).unary(this, request).await) })
    }
}

impl UnaryService<Bytes> for Orders {
    type Response = Bytes;
    type Future = Boxed<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (metadata, _, message) = request.into_parts();
        self.seen.lock().unwrap().push((metadata, message.clone()));
        let act = self.acts.lock().unwrap().pop_front();
        Box::pin(async move {
            match act {
                None => Ok(Response::new(message)),
                Some(Act::Fail(status)) => Err(status),
                Some(Act::Hang) => std::future::pending().await,
            }
        })
    }
}

impl Orders {
    async fn play(acts: impl IntoIterator<Item = Act>) -> (Self, Channel) {
        let acts = Arc::new(Mutex::new(acts.into_iter().collect()));
        let orders = Self { acts, seen: Arc::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = tonic::transport::Server::builder().add_service(orders.clone());
        tokio::spawn(router.serve_with_incoming(TcpIncoming::from(listener)));
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
        (orders, channel)
    }

    fn texts(&self, name: &str) -> Vec<String> {
        let text = |metadata: &MetadataMap| metadata.get(name).unwrap().to_str().unwrap().to_owned();
        self.seen.lock().unwrap().iter().map(|(metadata, _)| text(metadata)).collect()
    }

    fn calls(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

fn retries() -> Retries {
    let short = Duration::from_millis(2);
    let backoff = Backoff { base: short, throttled_base: short, ..Backoff::default() };
    Retries::to("orders").policy(RetryPolicy { backoff, ..RetryPolicy::default() })
}

fn keyed() -> Grpc {
    Grpc::new(retries()).keyed("idempotency-key").unwrap()
}

async fn create(grpc: &Grpc, channel: &Channel) -> Result<Response<Bytes>, GrpcError> {
    grpc.call(Request::new(Bytes::from("order 5")), |request| {
        let mut client = tonic::client::Grpc::new(channel.clone());
        async move {
            client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
            let path = http::uri::PathAndQuery::from_static("/shop.Orders/Create");
            client.unary(request, path, Raw).await
        }
    })
    .await
}

fn failed(error: GrpcError) -> Box<retrysafe_client::GrpcFailed> {
    match error {
        GrpcError::Failed(failed) => failed,
        other => panic!("nothing was sent: {other}"),
    }
}

#[tokio::test]
async fn a_call_is_sent_again_with_its_key_its_message_and_the_time_that_is_left() {
    let (orders, channel) = Orders::play([Act::Fail(Status::unavailable("restarting"))]).await;
    let answer = create(&keyed(), &channel).await.unwrap();
    assert_eq!(answer.into_inner(), "order 5");
    assert_eq!(orders.texts(ATTEMPT_HEADER), ["1", "2"]);
    let keys = orders.texts("idempotency-key");
    assert_eq!(keys[0], keys[1]);
    assert_eq!(keys[0].len(), 36);
    let seen = orders.seen.lock().unwrap();
    assert_eq!(seen[0].1, seen[1].1);
    for (metadata, _) in seen.iter() {
        let left = metadata.get("grpc-timeout").unwrap().to_str().unwrap();
        let left = retrysafe_core::retry::deadline::wire::parse_grpc(left).unwrap();
        assert!(left <= Duration::from_secs(30) && left > Duration::from_secs(1), "{left:?}");
    }
}

/// What may have happened is called again under a key only: without one it is a result of its own.
#[tokio::test]
async fn a_service_that_honours_no_keys_is_called_once() {
    let lost = || Act::Fail(Status::deadline_exceeded("too slow"));
    let (orders, channel) = Orders::play([lost()]).await;
    let failed = failed(create(&Grpc::new(retries()), &channel).await.unwrap_err());
    assert!(matches!(failed.failed, Failed::OutcomeUnknown { .. }), "{failed}");
    assert_eq!((orders.calls(), failed.key.is_none()), (1, true));
    let (orders, channel) = Orders::play([lost()]).await;
    assert!(create(&keyed(), &channel).await.is_ok());
    assert_eq!(orders.calls(), 2);
}

/// gRPC A6: a pushback that is no number of milliseconds means "not again".
#[tokio::test]
async fn v5_a_pushback_is_obeyed() {
    let told = |pushback: &'static str| {
        let mut status = Status::unavailable("busy");
        status.metadata_mut().insert("grpc-retry-pushback-ms", pushback.parse().unwrap());
        Act::Fail(status)
    };
    let (orders, channel) = Orders::play([told("-1")]).await;
    let never = failed(create(&keyed(), &channel).await.unwrap_err());
    assert!(matches!(never.failed, Failed::Stopped { because: Stop::Rule(Rule::ToldNotTo), .. }), "{never}");
    assert_eq!(orders.calls(), 1);
    let (orders, channel) = Orders::play([told("3")]).await;
    assert!(create(&keyed(), &channel).await.is_ok());
    assert_eq!(orders.calls(), 2);
    // Beyond the time that is left it is not waited for.
    let (orders, channel) = Orders::play([told("3600000")]).await;
    let late = failed(create(&keyed(), &channel).await.unwrap_err());
    assert!(matches!(late.failed, Failed::Stopped { because: Stop::RetryAfter { .. }, .. }), "{late}");
    assert_eq!(orders.calls(), 1);
}

/// A machine code says more than the status that it comes with: ABORTED alone ends the call.
#[tokio::test]
async fn a_machine_code_rules_over_the_status() {
    let mut in_flight = Status::aborted("in flight");
    in_flight.metadata_mut().insert(CODE_METADATA, "idempotency_key_in_flight".parse().unwrap());
    let (orders, channel) = Orders::play([Act::Fail(in_flight)]).await;
    assert!(create(&keyed(), &channel).await.is_ok());
    assert_eq!(orders.calls(), 2);
    let (orders, channel) = Orders::play([Act::Fail(Status::aborted("another transaction"))]).await;
    assert!(create(&keyed(), &channel).await.is_err());
    assert_eq!(orders.calls(), 1);
}

/// Nothing listens there: nothing was sent, so it is tried again without a key too, and is no unknown outcome.
#[tokio::test]
async fn v15_a_refused_connection_was_not_sent() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let channel = Endpoint::from_shared(url).unwrap().connect_lazy();
    let failed = failed(create(&Grpc::new(retries()), &channel).await.unwrap_err());
    let Failed::Stopped { because, history, .. } = &failed.failed else { panic!("{failed}") };
    assert_eq!(*because, Stop::Attempts { limit: 3 });
    assert_eq!(history.steps().len(), 3);
}

/// No answer until the deadline: it may have happened, and the key says how to ask again.
#[tokio::test]
async fn no_answer_is_an_unknown_outcome_with_its_key() {
    let (orders, channel) = Orders::play((0..3).map(|_| Act::Hang)).await;
    let policy = RetryPolicy {
        elapsed: Duration::from_millis(300),
        useful_attempt: Duration::from_millis(1),
        ..RetryPolicy::default()
    };
    let grpc = Grpc::new(Retries::to("orders").policy(policy)).keyed("idempotency-key").unwrap();
    let failed = failed(create(&grpc, &channel).await.unwrap_err());
    assert!(matches!(failed.failed, Failed::OutcomeUnknown { .. }), "{failed}");
    assert_eq!(orders.texts("idempotency-key")[0], failed.key.unwrap().as_str());
}
