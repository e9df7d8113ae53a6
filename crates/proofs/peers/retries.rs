//! What the first try of a call costs with retries around it, ours beside others; and what others do wrong beside what ours
//! does. One process, one run; a JSON object a line.

mod defects;

use std::{
    convert::Infallible,
    future::Ready,
    hint::black_box,
    time::{Duration, Instant},
};

use backon::{ExponentialBuilder, Retryable};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
use retrysafe_client::{Api, Key, Outgoing, Profile, Retries, RetryLayer, retry};
use serde_json::json;
use tower::{Layer, Service, ServiceExt, service_fn};

/// Calls in one sample.
const CALLS: u32 = 20_000;
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

    measure(contestants);
    runtime.block_on(defects::print())
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

fn measure(mut contestants: Vec<Contestant<'_>>) {
    let mut samples = vec![Vec::new(); contestants.len()];
    for _ in 0..SAMPLES {
        for (contestant, samples) in contestants.iter_mut().zip(&mut samples) {
            let began = Instant::now();
            (0..CALLS).for_each(|_| (contestant.call)());
            samples.push(began.elapsed() / CALLS);
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
