//! The whole gateway over real sockets, in front of the sample shop and of upstreams that misbehave.

#![allow(clippy::unwrap_used, clippy::panic)] // a test's helpers may fail loudly too

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use retrysafe_core::contract::Contract;
use retrysafe_gateway::{Gateway, GatewayOptions};
use retrysafe_shop::{Shop, ShopOptions};
use retrysafe_store::memory::MemoryStore;
use serde_json::Value;
use support::{echo, read_request, upstream};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const CONTRACT: &str = r#"
api = "Shop"
namespace = "gateway"
longest_retry_chain = "1h"
unlisted = "pass"
answer_timeout = "5s"
scope = { source = "api_key", rotates = false }
failures = { policy = "A" }
client = { drop_stored_statuses = true }
[[endpoint]]
method = "POST"
path = "/orders"
key = "required"
"#;

const PROBE: &str = r#"
probe = { path = "/operations/{key}?fence={fence}", found = [200], absent = [404], status_header = "X-Original-Status", when_absent = "release", fences = true }
"#;

/// A gateway over a real socket.
struct Running {
    address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    gateway: Gateway,
    stop: CancellationToken,
}

#[derive(Clone, Debug, PartialEq)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn code(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        body["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Running {
    /// `more` is added to the table of `POST /orders`.
    async fn start(upstream: SocketAddr, more: &str) -> Self {
        Self::start_with(upstream, &format!("{CONTRACT}{more}")).await
    }

    async fn start_with(upstream: SocketAddr, contract: &str) -> Self {
        let contract = Contract::parse(contract, "test.toml").unwrap_or_else(|f| panic!("{f}"));
        let store = Arc::new(MemoryStore::new(Default::default()));
        let upstream = format!("http://{upstream}").parse().unwrap();
        // As it is deployed; the proxy's own tests run without workers.
        let options = GatewayOptions { workers: 2, ..GatewayOptions::default() };
        let gateway = Gateway::new(contract, store, None, upstream, options).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn({
            let (gateway, stop) = (gateway.clone(), stop.clone());
            async move { gateway.serve(listener, stop).await }
        });
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { address, client, gateway, stop }
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("authorization", "Bearer ada")
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::from(body.to_owned())).unwrap();
        let (parts, body) = self.client.request(request).await.unwrap().into_parts();
        let mut headers = parts.headers;
        headers.remove("date");
        Answer { status: parts.status, headers, body: body.collect().await.unwrap().to_bytes() }
    }

    async fn order(&self, key: &str, more: &[(&str, &str)]) -> Answer {
        let headers = [&[("idempotency-key", key)], more].concat();
        self.send("POST", "/orders", &headers, r#"{"amount":700}"#).await
    }

    async fn effects(&self) -> usize {
        let ledger = self.send("GET", "/ledger", &[], "").await;
        serde_json::from_slice::<Vec<Value>>(&ledger.body).unwrap().len()
    }
}

async fn shop(options: ShopOptions) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let shop = Shop::open(folder.path().join("shop.db")).unwrap();
    tokio::spawn(async move {
        let _folder = folder;
        retrysafe_shop::serve(listener, shop, options, std::future::pending()).await
    });
    address
}

async fn faulty_shop() -> SocketAddr {
    shop(ShopOptions { faults: true, ..ShopOptions::default() }).await
}

const CUT: (&str, &str) = ("x-shop-fault", "once,commit-then-cut");

#[tokio::test]
async fn the_same_key_twice_is_one_order_and_one_answer() {
    let gateway = Running::start(shop(ShopOptions::default()).await, "").await;
    let first = gateway.order("k", &[]).await;
    assert_eq!((first.status, gateway.effects().await), (StatusCode::CREATED, 1));
    assert_eq!(gateway.order("k", &[]).await, first, "status, headers and body");
    assert_eq!(gateway.order("\"k\"", &[]).await, first, "k1: the quoted spelling is the same key");
    assert_eq!(gateway.effects().await, 1);
    let other = gateway.send("POST", "/orders", &[("idempotency-key", "k")], r#"{"amount":1}"#).await;
    assert_eq!(other.code(), "idempotency_key_payload_mismatch");
    assert_eq!(gateway.send("POST", "/orders", &[], "{}").await.code(), "idempotency_key_missing");
    assert_eq!(
        gateway.order("k", &[("authorization", "Bearer bob")]).await.code(),
        "idempotency_scope_missing"
    );
    assert_eq!(gateway.effects().await, 1);
}

#[tokio::test]
async fn fifty_at_once_are_one_order() {
    let options = ShopOptions { handler: Duration::from_millis(50), ..ShopOptions::default() };
    let gateway = Running::start(shop(options).await, "").await;
    let answers = futures_util::future::join_all((0..50).map(|_| gateway.order("k", &[]))).await;
    let won = answers.iter().filter(|answer| answer.status == StatusCode::CREATED).count();
    let waiting = answers.iter().filter(|answer| answer.code() == "idempotency_key_in_flight").count();
    assert!(won >= 1 && won + waiting == 50, "{won} created, {waiting} in flight");
    assert_eq!(gateway.effects().await, 1);
}

#[tokio::test]
async fn a_connection_option_cannot_make_a_keyed_write_keyless() {
    let gateway = Running::start(shop(ShopOptions::default()).await, "").await;
    let named = ("connection", "Idempotency-Key, Authorization");
    let first = gateway.order("k", &[named]).await;
    assert_eq!(first.status, StatusCode::CREATED);
    assert_eq!(gateway.order("k", &[named]).await, first);
    let ledger = gateway.send("GET", "/ledger", &[], "").await;
    let ledger: Value = serde_json::from_slice(&ledger.body).unwrap();
    assert_eq!((&ledger[0]["key"], &ledger[0]["account"]), (&"k".into(), &"ada".into()));
}

#[tokio::test]
async fn what_the_upstream_is_told_of_a_claim() {
    let gateway = Running::start(echo().await, "").await;
    for key in ["\"a-1\"", "a-1;not=quoted"] {
        let told = gateway.order(key, &[("retrysafe-fence", "999999999999")]).await;
        let told = String::from_utf8(told.body.to_vec()).unwrap();
        let line = |name: &str| {
            let lines: Vec<_> = told.lines().filter_map(|line| line.strip_prefix(name)).collect();
            assert_eq!(lines.len(), 1, "{name} in {told}");
            lines[0].to_owned()
        };
        assert_eq!(line("idempotency-key: "), key.trim_matches('"'), "one spelling for one key");
        assert_ne!(line("retrysafe-fence: "), "999999999999", "a client's own fence is not believed");
        assert_eq!(line("retrysafe-hop: "), "gateway");
    }
    let told = gateway.send("POST", "/unlisted", &[("retrysafe-fence", "7")], "").await;
    assert!(!String::from_utf8_lossy(&told.body).contains("retrysafe-fence"));
}

#[tokio::test]
async fn a_lost_answer_leaves_the_key_uncertain_and_nothing_runs_again() {
    let gateway = Running::start(faulty_shop().await, "").await;
    for _ in 0..3 {
        let answer = gateway.order("k", &[CUT]).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (StatusCode::CONFLICT, "idempotency_outcome_unknown")
        );
    }
    assert_eq!(gateway.effects().await, 1);
}

#[tokio::test]
async fn a_5xx_after_the_effect_is_not_passed_on_as_a_failure() {
    let gateway = Running::start(faulty_shop().await, "").await;
    let fault = ("x-shop-fault", "once,commit-then-status=500");
    assert_eq!(gateway.order("k", &[fault]).await.code(), "idempotency_outcome_unknown");
    assert_eq!(gateway.order("k", &[fault]).await.code(), "idempotency_outcome_unknown");
    assert_eq!(gateway.effects().await, 1);
}

#[tokio::test]
async fn a_probe_finds_the_true_answer_of_a_lost_request() {
    let gateway = Running::start(faulty_shop().await, PROBE).await;
    for (effects, key) in [(1, "k/+="), (2, "\"k/ +=\"")] {
        let found = gateway.order(key, &[CUT]).await;
        assert_eq!((found.status, gateway.effects().await), (StatusCode::CREATED, effects), "{key}");
        assert!(found.headers.contains_key("location"));
        assert_eq!(gateway.order(key, &[CUT]).await.body, found.body);
        assert_eq!(gateway.effects().await, effects);
    }
}

#[tokio::test]
async fn a_probe_that_finds_nothing_fences_and_frees_the_key() {
    let gateway = Running::start(faulty_shop().await, PROBE).await;
    let fault = ("x-shop-fault", "once,cut");
    let freed = gateway.order("k", &[fault]).await;
    assert_eq!(
        (freed.status, freed.code().as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, "upstream_unavailable")
    );
    assert!(freed.headers.contains_key("retry-after"));
    let retried = gateway.order("k", &[fault]).await;
    assert_eq!((retried.status, gateway.effects().await), (StatusCode::CREATED, 1));
}

#[tokio::test]
async fn an_upstream_that_deduplicates_is_simply_asked_again() {
    let options = ShopOptions { faults: true, deduplicate: true, ..ShopOptions::default() };
    let gateway = Running::start(shop(options).await, "upstream_deduplicates = true\n").await;
    let lost = gateway.order("k", &[CUT]).await;
    assert_eq!(lost.code(), "upstream_unavailable", "retry with the same key is safe, and said to be");
    // The retry quotes its key, as another library would; the upstream must not take it for another.
    let retried = gateway.order("\"k\"", &[CUT]).await;
    assert_eq!((retried.status, gateway.effects().await), (StatusCode::CREATED, 1));
}

#[tokio::test]
async fn an_upstream_that_is_not_there_yet_costs_nothing() {
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let gateway = Running::start(address, "").await;
    let absent = gateway.order("k", &[]).await;
    assert_eq!(
        (absent.status, absent.code().as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, "upstream_unavailable")
    );
    assert!(absent.headers.contains_key("retry-after"));
    let unkeyed = gateway.send("GET", "/orders", &[], "").await;
    assert_eq!(
        (unkeyed.status, unkeyed.code().as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, "upstream_unavailable")
    );

    let listener = TcpListener::bind(address).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let shop = Shop::open(folder.path().join("shop.db")).unwrap();
    tokio::spawn(retrysafe_shop::serve(listener, shop, ShopOptions::default(), std::future::pending()));
    assert_eq!(gateway.order("k", &[]).await.status, StatusCode::CREATED, "the key was free");
    assert_eq!(gateway.effects().await, 1);
}

#[tokio::test]
async fn d1_a_client_that_hangs_up_does_not_stop_its_request() {
    let options = ShopOptions { handler: Duration::from_millis(100), ..ShopOptions::default() };
    let gateway =
        Running::start(shop(options).await, "in_flight = { answer = \"wait\", wait_at_most = \"5s\" }\n")
            .await;
    let hung_up = tokio::time::timeout(Duration::from_millis(30), gateway.order("k", &[])).await;
    assert!(hung_up.is_err());
    let retried = gateway.order("k", &[]).await;
    assert_eq!((retried.status, gateway.effects().await), (StatusCode::CREATED, 1));
}

#[tokio::test]
async fn d10_a_drain_waits_for_requests_whose_client_is_gone() {
    let options = ShopOptions { handler: Duration::from_millis(150), ..ShopOptions::default() };
    let address = shop(options).await;
    let gateway = Running::start(address, "").await;
    let hung_up = tokio::time::timeout(Duration::from_millis(50), gateway.order("k", &[])).await;
    assert!(hung_up.is_err());
    gateway.stop.cancel();
    assert_eq!(gateway.gateway.layer().drain(Duration::from_secs(10)).await, 0);
    let after = Running::start(address, "").await;
    assert_eq!(after.effects().await, 1);
}

#[tokio::test]
async fn a_refused_request_claims_nothing() {
    let gateway = Running::start(shop(ShopOptions::default()).await, "").await;
    let asks = [("connection", "upgrade"), ("upgrade", "websocket")];
    assert_eq!(gateway.order("k", &asks).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(gateway.order("k", &[]).await.status, StatusCode::CREATED, "the key is still free");
}

#[tokio::test]
async fn an_answer_cut_in_its_body_is_unknown_to_every_caller() {
    let address = upstream(|_, mut stream| async move {
        use tokio::io::AsyncWriteExt;
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{\"id\":").await.unwrap();
    })
    .await;
    let gateway = Running::start(address, "").await;
    for _ in 0..2 {
        assert_eq!(gateway.order("k", &[]).await.code(), "idempotency_outcome_unknown");
    }
}

#[tokio::test]
async fn http2_clients_are_guarded_alike_and_probed_for() {
    let mut gateway = Running::start(faulty_shop().await, PROBE).await;
    gateway.client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let found = gateway.order("k", &[CUT]).await;
    assert_eq!((found.status, gateway.effects().await), (StatusCode::CREATED, 1));
    assert_eq!(gateway.order("k", &[CUT]).await.body, found.body);
    // Reset in the middle: the stream goes, the request does not.
    let slow = ("x-shop-fault", "delay=100");
    assert!(tokio::time::timeout(Duration::from_millis(30), gateway.order("k2", &[slow])).await.is_err());
    loop {
        let again = gateway.order("k2", &[slow]).await;
        if again.code() != "idempotency_key_in_flight" {
            assert_eq!(again.status, StatusCode::CREATED);
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(gateway.effects().await, 2);
}

#[tokio::test]
async fn two_gateways_with_one_namespace_refuse_instead_of_waiting_for_each_other() {
    let inner = Running::start(shop(ShopOptions::default()).await, "").await;
    let outer = Running::start(inner.address, "").await;
    let answer = outer.order("k", &[]).await;
    assert_ne!(answer.status, StatusCode::CREATED);
    assert_ne!(answer.code(), "idempotency_key_in_flight");
    assert_eq!(inner.effects().await, 0);
}

#[tokio::test]
async fn trace_context_passes_and_the_deadline_shrinks() {
    let deadline =
        |contract: &str| contract.replace("client = {", "client = { deadline_header = \"X-Deadline-Ms\",");
    let gateway = Running::start_with(echo().await, &deadline(CONTRACT)).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let told = gateway.order("k", &[("traceparent", trace), ("x-deadline-ms", "9000")]).await;
    let told = String::from_utf8(told.body.to_vec()).unwrap();
    assert!(told.contains(&format!("traceparent: {trace}\n")), "{told}");
    let left = told.lines().find_map(|line| line.strip_prefix("x-deadline-ms: ")).unwrap();
    assert!((1..=9000).contains(&left.parse::<u64>().unwrap()), "{left}");
    let late = gateway.order("k2", &[("x-deadline-ms", "0")]).await;
    assert_eq!(late.code(), "deadline_exceeded_before_start");
}
