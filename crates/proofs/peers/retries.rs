//! What the first try of a call costs with retries around it, ours beside others; and what others do wrong beside what ours
//! does. One process, one run; a JSON object a line.

mod defects;

use std::{
    convert::Infallible,
    future::Ready,
    hint::black_box,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
use retrysafe_client::{Api, Client, Key, Outgoing, Profile, Retries, RetryLayer, retry};
use serde_json::json;
use tower::{Layer, Service, ServiceExt, service_fn};

/// Calls in one sample.
const CALLS: u32 = 20_000;
/// The same, where a server is asked.
const CALLS_SERVED: u32 = 2_000;
/// Samples of each contestant, interleaved; the median counts.
const SAMPLES: usize = 15;

type Call<'a> = Box<dyn FnMut() + 'a>;

struct Contestant<'a> {
    name: &'static str,
    /// What it is compared with: the name of a contestant without retries.
    bare: &'static str,
    call: Call<'a>,
}

fn main() -> anyhow::Result<()> {
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut contestants = Vec::new();
    let mut add = |name, bare, call| contestants.push(Contestant { name, bare, call });
    let rt = &runtime;

    add("call", "call", Box::new(move || rt.block_on(async { black_box(op(1).await).unwrap() })));
    let retries = Retries::to("bench");
    add("call, retrysafe", "call", Box::new(move || rt.block_on(async { retry(&retries, |a| op(a.number)).await.unwrap() })));
    let retries = Retries::to("bench");
    add(
        "call, retrysafe with a key",
        "call",
        Box::new(move || {
            rt.block_on(async {
                let key = Key::random().unwrap();
                retry(&retries, |a| op(a.number)).await.unwrap();
                black_box(key);
            })
        }),
    );
    add(
        "call, backon",
        "call",
        Box::new(move || rt.block_on(async { (|| op(1)).retry(ExponentialBuilder::default().with_jitter()).await.unwrap() })),
    );
    let policy = TowerPolicy;
    let mut service = tower::retry::Retry::new(policy, service_fn(|number: u32| op(number)));
    add("call, tower::retry", "call", Box::new(move || rt.block_on(async { service.ready().await.unwrap().call(1).await.unwrap() })));

    let mut bare = service_fn(answer);
    add("request", "request", Box::new(move || rt.block_on(async { drop(bare.ready().await.unwrap().call(request()).await) })));
    let mut ours = RetryLayer::new(Api::profile(Profile::plain("bench", "idempotency-key"))).layer(service_fn(answer_kept));
    add("request, retrysafe RetryLayer (keyed)", "request", Box::new(move || rt.block_on(async { drop(ours.ready().await.unwrap().call(request()).await) })));
    let mut peer = tower::retry::Retry::new(TowerPolicy, service_fn(answer));
    add("request, tower::retry", "request", Box::new(move || rt.block_on(async { drop(peer.ready().await.unwrap().call(request()).await) })));

    let plain = reqwest_client(false)?;
    add("reqwest, canned", "reqwest, canned", Box::new(move || rt.block_on(async { drop(plain.post(URL).body("{}").send().await.unwrap()) })));
    let retried = reqwest_client(true)?;
    add("reqwest, reqwest-retry", "reqwest, canned", Box::new(move || rt.block_on(async { drop(retried.post(URL).body("{}").send().await.unwrap()) })));

    // Ours has no place for a canned answer: all three ask a server on this machine, over one connection.
    let url = loopback()?;
    let address = format!("{url}/orders");
    let bare = ClientBuilder::new(reqwest::Client::builder().no_proxy().build()?).build();
    let to = address.clone();
    add("reqwest, a server", "reqwest, a server", Box::new(move || rt.block_on(async { drop(bare.post(&to).body("{}").send().await.unwrap().bytes().await.unwrap()) })));
    let policy = ExponentialBackoff::builder().build_with_max_retries(2);
    let retried = ClientBuilder::new(reqwest::Client::builder().no_proxy().build()?)
        .with(RetryTransientMiddleware::new_with_policy(policy))
        .build();
    add("a server, reqwest-retry", "reqwest, a server", Box::new(move || rt.block_on(async { drop(retried.post(&address).body("{}").send().await.unwrap().bytes().await.unwrap()) })));
    let api = Api::profile(Profile::plain("bench", "idempotency-key"));
    let client = Client::builder(api, &url).transport(reqwest::Client::builder().no_proxy()).build()?;
    add("a server, retrysafe Client (keyed)", "reqwest, a server", Box::new(move || rt.block_on(async { drop(client.post("/orders").body("{}").send().await.unwrap()) })));

    measure(contestants);
    runtime.block_on(defects::print())?;
    defects::print_by_another_clock()
}

const URL: &str = "http://bench.example/orders";

async fn op(number: u32) -> Result<(), std::io::Error> {
    black_box(number);
    Ok(())
}

fn request() -> Request<Full<Bytes>> {
    Request::post(URL)
        .header("content-type", "application/json")
        .header("authorization", "Bearer t")
        .body(Full::new(Bytes::from_static(b"{\"amount\":5}")))
        .unwrap()
}

fn answer(request: Request<Full<Bytes>>) -> Ready<Result<Response<Full<Bytes>>, Infallible>> {
    black_box(request);
    std::future::ready(Ok(Response::new(Full::new(Bytes::from_static(b"done")))))
}

fn answer_kept(request: Request<Outgoing<Full<Bytes>>>) -> Ready<Result<Response<Full<Bytes>>, Infallible>> {
    black_box(request);
    std::future::ready(Ok(Response::new(Full::new(Bytes::from_static(b"done")))))
}

#[derive(Clone)]
struct TowerPolicy;

impl<Req: Clone, Res, E> tower::retry::Policy<Req, Res, E> for TowerPolicy {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Req, result: &mut Result<Res, E>) -> Option<Ready<()>> {
        result.is_err().then(|| std::future::ready(()))
    }

    fn clone_request(&mut self, request: &Req) -> Option<Req> {
        Some(request.clone())
    }
}

/// Answers without a network, so that only what is around it is measured.
struct Canned;

#[async_trait::async_trait]
impl Middleware for Canned {
    async fn handle(
        &self,
        request: reqwest::Request,
        _: &mut http::Extensions,
        _: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        black_box(request);
        Ok(Response::new("done").into())
    }
}

fn reqwest_client(retried: bool) -> anyhow::Result<ClientWithMiddleware> {
    let builder = ClientBuilder::new(reqwest::Client::builder().build()?);
    let policy = ExponentialBackoff::builder().build_with_max_retries(2);
    Ok(match retried {
        true => builder.with(RetryTransientMiddleware::new_with_policy(policy)).with(Canned).build(),
        false => builder.with(Canned).build(),
    })
}

/// A server that answers whatever it is asked, one request after the other. Returns its address.
fn loopback() -> anyhow::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    Ok(url)
}

/// Every body is `{}`, so a request ends with it.
fn serve(mut stream: TcpStream) {
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone";
    let (mut read, mut bytes) = (Vec::new(), [0; 4_096]);
    let _nagle = stream.set_nodelay(true);
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        read.extend_from_slice(&bytes[..count]);
        if read.ends_with(b"\r\n\r\n{}") {
            read.clear();
            if stream.write_all(ANSWER).is_err() {
                return;
            }
        }
    }
}

fn measure(mut contestants: Vec<Contestant<'_>>) {
    let mut samples = vec![Vec::new(); contestants.len()];
    for _ in 0..SAMPLES {
        for (contestant, samples) in contestants.iter_mut().zip(&mut samples) {
            let began = Instant::now();
            let calls = if contestant.bare == "reqwest, a server" { CALLS_SERVED } else { CALLS };
            (0..calls).for_each(|_| (contestant.call)());
            samples.push(began.elapsed() / calls);
        }
    }
    let medians: Vec<Duration> = samples.iter_mut().map(|samples| { samples.sort(); samples[SAMPLES / 2] }).collect();
    let allocations: Vec<u64> =
        contestants.iter_mut().map(|contestant| allocation_counter::measure(|| (contestant.call)()).count_total).collect();
    for (at, contestant) in contestants.iter().enumerate() {
        let bare = contestants.iter().position(|other| other.name == contestant.bare).unwrap_or(at);
        let over = medians[at].as_nanos() as i128 - medians[bare].as_nanos() as i128;
        let row = json!({
            "name": contestant.name, "bare": contestant.bare, "ns": medians[at].as_nanos() as u64,
            "over_ns": over as i64, "over_allocations": allocations[at] as i64 - allocations[bare] as i64,
        });
        println!("{row}");
    }
}
