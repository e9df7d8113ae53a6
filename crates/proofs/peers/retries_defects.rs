//! The measured defects of other packages (V17), theirs beside ours. A defect of which a package has been cured prints as such.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Barrier,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use aws_smithy_async::rt::sleep::TokioSleep;
use aws_smithy_runtime::client::{
    orchestrator::operation::Operation,
    retries::{RetryPartition, TokenBucket, classifiers::HttpStatusCodeClassifier},
};
use aws_smithy_runtime_api::client::{
    http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn},
    orchestrator::{HttpRequest, HttpResponse, OrchestratorError},
    result::ConnectorError,
    runtime_plugin::StaticRuntimePlugin,
};
use aws_smithy_types::{body::SdkBody, config_bag::Layer, retry::RetryConfig, timeout::TimeoutConfig};
use google_cloud_gax::{
    backoff_policy::BackoffPolicy,
    retry_policy::{AlwaysRetry, RetryPolicyExt},
    retry_state::RetryState,
    retry_throttler::AdaptiveThrottler,
};
use retrysafe_client::{Api, Client, Retries, retry};
use retrysafe_core::retry::{
    Backoff, Budget, Idempotence, Jitter, Mono, Pace, RetryPolicy,
    budget::{Bucket, Ratio, Rules},
    presets::{Curve, Delays, PollyDecorrelated},
};
use serde_json::json;
use tower::retry::budget::{Budget as _, TpsBudget};

pub async fn print() -> anyhow::Result<()> {
    calls_at_once().await?;
    outside_of_the_scope().await?;
    share_of_ten_thousand();
    same_series_every_run();
    more_than_there_is();
    sleeps_at_the_cap();
    Ok(())
}

/// What goes by a clock of its own, which stands still while something runs.
pub fn print_by_another_clock() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(beyond_the_limit());
    Ok(())
}

/// M1a: one place for the permits of all calls of a client.
async fn calls_at_once() -> anyhow::Result<()> {
    const CAPACITY: u32 = 500;
    const COST: u32 = 5;
    for calls in [2_u32, 10, 30, 90] {
        let theirs = smithy_after(calls, CAPACITY, COST).await?;
        let rule = Bucket { capacity: CAPACITY, transient_cost: COST, throttled_cost: COST, refill: 0 };
        let budget = Budget::new(Rules { bucket: Some(rule), ..Rules::NONE });
        let retries = Retries::to("bench")
            .idempotence(Idempotence::Safe)
            .policy(RetryPolicy { backoff: SHORT, ..RetryPolicy::default() })
            .budget(budget.clone());
        let together = tokio::sync::Barrier::new(calls as usize);
        let call = || {
            retry(&retries, |attempt| {
                let together = &together;
                async move {
                    together.wait().await;
                    if attempt.number == 1 { Err(io::Error::from(io::ErrorKind::ConnectionReset)) } else { Ok(()) }
                }
            })
        };
        futures_util::future::try_join_all((0..calls).map(|_| call())).await?;
        let ours = budget.reading(Mono::START).bucket.map_or(0, |bucket| bucket.balance);
        row(
            "M1a",
            "aws-smithy-runtime 1.16.2",
            &format!("{calls} calls at once, each fails once"),
            format!("{theirs} of {CAPACITY} tokens left"),
            same(format!("{ours} of {CAPACITY} tokens left"), "500 of 500 tokens left"),
            "500 of 500 tokens left",
        );
    }
    Ok(())
}

const SHORT: Backoff = Backoff {
    jitter: Jitter::Full,
    base: Duration::from_millis(1),
    throttled_base: Duration::from_millis(1),
    cap: Duration::from_millis(2),
};

/// A connector that lets all calls of a round come together, and fails the first round.
#[derive(Clone, Debug)]
struct FailsOnce {
    calls: u32,
    seen: Arc<AtomicU32>,
    together: Arc<tokio::sync::Barrier>,
}

impl HttpConnector for FailsOnce {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        let this = self.clone();
        HttpConnectorFuture::new(async move {
            let first = this.seen.fetch_add(1, Ordering::Relaxed) < this.calls;
            this.together.wait().await;
            let status = if first { 503 } else { 200 };
            let status = status.try_into().map_err(|error| ConnectorError::user(Box::new(error)))?;
            Ok(HttpResponse::new(status, SdkBody::empty()))
        })
    }
}

async fn smithy_after(calls: u32, capacity: u32, cost: u32) -> anyhow::Result<u32> {
    let bucket = TokenBucket::builder().capacity(capacity as usize).retry_cost(cost).timeout_retry_cost(cost).build();
    let mut config = Layer::new("bench");
    config.store_put(RetryPartition::custom("bench").token_bucket(bucket.clone()).build());
    let together = Arc::new(tokio::sync::Barrier::new(calls as usize));
    let connector = FailsOnce { calls, seen: Arc::default(), together };
    let operation = Operation::builder()
        .service_name("bench")
        .operation_name("bench")
        .http_client(http_client_fn(move |_, _| SharedHttpConnector::new(connector.clone())))
        .endpoint_url("http://bench.example")
        .no_auth()
        .standard_retry(&RetryConfig::standard().with_initial_backoff(Duration::from_millis(1)))
        .retry_classifier(HttpStatusCodeClassifier::default())
        .timeout_config(TimeoutConfig::disabled())
        .sleep_impl(TokioSleep::new())
        .runtime_plugin(StaticRuntimePlugin::new().with_config(config.freeze()))
        .serializer(|(): ()| Ok(HttpRequest::new(SdkBody::empty())))
        // What is taken for a success is not classified.
        .deserializer::<(), std::convert::Infallible>(|response| match response.status().as_u16() {
            200 => Ok(()),
            _ => Err(OrchestratorError::other("unavailable")),
        })
        .build();
    let ended = futures_util::future::join_all((0..calls).map(|_| operation.invoke(()))).await;
    anyhow::ensure!(ended.iter().all(Result::is_ok), "a call of the peer failed: {ended:?}");
    // It tells its tokens to nobody; its debug text does.
    let told = format!("{bucket:?}");
    let permits = told.split("permits: ").nth(1).and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    permits.and_then(|permits| permits.parse().ok()).ok_or_else(|| anyhow::anyhow!("no tokens in {told}"))
}

/// M4a (V13, row 4): a limit of 10 s; the first attempt fails at 6 s, 3 s of sleep, and a second one that never answers.
async fn beyond_the_limit() {
    const LIMIT: Duration = Duration::from_secs(10);
    const FIRST: Duration = Duration::from_secs(6);
    #[derive(Debug)]
    struct Fixed;
    impl BackoffPolicy for Fixed {
        fn on_failure(&self, _: &RetryState) -> Duration {
            Duration::from_secs(3)
        }
    }
    let began = tokio::time::Instant::now();
    let mut attempts = 0;
    let inner = async |left: Option<Duration>| -> google_cloud_gax::Result<()> {
        attempts += 1;
        tokio::time::sleep(if attempts == 1 { FIRST } else { left.unwrap_or(LIMIT) }).await;
        Err(google_cloud_gax::error::Error::http(503, http::HeaderMap::new(), bytes::Bytes::new()))
    };
    let _error = google_cloud_gax::retry_loop_internal::retry_loop(
        inner,
        tokio::time::sleep,
        true,
        Arc::new(std::sync::Mutex::new(AdaptiveThrottler::default())),
        Arc::new(AlwaysRetry.with_time_limit(LIMIT)),
        Arc::new(Fixed),
    )
    .await;
    let theirs = began.elapsed();
    let began = tokio::time::Instant::now();
    let backoff = Backoff { base: Duration::from_secs(3), cap: Duration::from_secs(3), ..Backoff::default() };
    let retries = Retries::to("bench")
        .idempotence(Idempotence::Safe)
        .policy(RetryPolicy { elapsed: LIMIT, backoff, ..RetryPolicy::default() });
    let _error = retry(&retries, async |attempt| {
        if attempt.number > 1 {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(FIRST).await;
        Err::<(), _>(io::Error::from(io::ErrorKind::ConnectionReset))
    })
    .await;
    let ours = began.elapsed();
    let told = |elapsed: Duration| format!("ends at {:.1} s", elapsed.as_secs_f64());
    row(
        "M4a",
        "google-cloud-gax 1.15.0",
        "10 s in all: 6 s, a sleep of up to 3 s, no answer",
        told(theirs),
        // A timer of tokio's may be late by its resolution.
        (told(ours), ours <= LIMIT + Duration::from_millis(2)),
        "ends at 10 s",
    );
}

/// M7: a cap that comes after the jitter. Polly is on NuGet alone, which this bench does not ask: its formula stands for it, and so
/// does the one that was published as decorrelated jitter.
fn sleeps_at_the_cap() {
    const DRAWS: u32 = 100_000;
    const CAP: Duration = Duration::from_secs(10);
    let share = |sleep: &dyn Fn() -> Duration| {
        let at_cap = (0..DRAWS).filter(|_| sleep() == CAP).count();
        at_cap as f64 * 100.0 / f64::from(DRAWS)
    };
    let ours = |jitter: Jitter, base: Duration, retry: u32| {
        let backoff = Backoff { jitter, base, cap: CAP, ..Backoff::default() };
        share(&|| {
            let step = |last, retry| backoff.delay(Pace::Transient, retry, last, fastrand::u64(..));
            (0..=retry).fold(Duration::ZERO, step)
        })
    };
    let told = |percent: f64| format!("{percent:.1}% at the cap");
    let second = Duration::from_secs(1);
    for retry in [5_u32, 8] {
        let theirs = share(&|| {
            let mut polly = PollyDecorrelated::new(second);
            (0..=retry).fold(Duration::ZERO, |_, _| polly.sleep(fastrand::u64(..))).min(CAP)
        });
        let ours = ours(Jitter::Full, second, retry);
        let input = format!("1 s up to 10 s, retry {retry}");
        row("M7", "Polly's formula (not on crates.io, npm or PyPI)", &input, told(theirs), (told(ours), ours < 1.0), "0%");
    }
    let curve = Curve { base: Duration::from_millis(100), cap: CAP };
    let theirs = share(&|| {
        let step = |last, retry| Delays::Decorrelated(curve).sleep(retry, last, fastrand::u64(..));
        (0..12).fold(Duration::ZERO, step)
    });
    let ours = ours(Jitter::Decorrelated, curve.base, 11);
    let input = "0.1 s up to 10 s, retry 12";
    row("M7", "decorrelated jitter as published", input, told(theirs), (told(ours), ours < 1.0), "0%");
}

fn row(id: &str, package: &str, input: &str, theirs: String, ours: (String, bool), right: &str) {
    let (ours, holds) = ours;
    println!(
        "{}",
        json!({"defect": id, "package": package, "input": input, "theirs": theirs, "ours": ours, "right": right, "holds": holds})
    );
}

fn same(ours: String, right: &str) -> (String, bool) {
    let holds = ours == right;
    (ours, holds)
}

/// M3: the share is rounded once for each deposit.
fn share_of_ten_thousand() {
    for (share, right) in [(0.6, "6000"), (0.7, "7000"), (0.9, "9000")] {
        let tower = TpsBudget::new(Duration::from_secs(10), 0, share);
        (0..10_000).for_each(|_| tower.deposit());
        let theirs = (0..30_000).take_while(|_| tower.withdraw()).count();
        let per_million = (share * 1e6) as u32;
        let rule = Ratio { per_million, reserve: 0, window: Duration::from_secs(10) };
        let budget = Budget::new(Rules { ratio: Some(rule), ..Rules::NONE });
        (0..10_000).for_each(|_| drop(budget.enter(Mono::START)));
        let mut entry = budget.enter(Mono::START);
        let ours = (0..30_000)
            .take_while(|_| entry.take(Pace::Transient, Mono::START).map(|permit| permit.spend()).is_ok());
        row(
            "M3",
            "tower 0.5.3 TpsBudget",
            &format!("10,000 deposits at {share}"),
            theirs.to_string(),
            same(ours.count().to_string(), right),
            right,
        );
    }
}

/// M6a: check, then take, is two steps.
fn more_than_there_is() {
    const THREADS: usize = 8;
    const TRIALS: usize = 300;
    let trial = |take: &(dyn Fn() -> bool + Sync)| {
        let (granted, barrier) = (AtomicU32::new(0), Barrier::new(THREADS));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    barrier.wait();
                    while take() {
                        granted.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        granted.into_inner()
    };
    let (mut theirs, mut ours) = (0, 0);
    for _ in 0..TRIALS {
        let tower = TpsBudget::new(Duration::from_secs(10), 0, 1.0);
        (0..6_000).for_each(|_| tower.deposit());
        theirs += usize::from(trial(&|| tower.withdraw()) > 6_000);
        let bucket = Bucket { capacity: 6_000, transient_cost: 1, throttled_cost: 1, refill: 0 };
        let budget = Budget::new(Rules { bucket: Some(bucket), ..Rules::NONE });
        let take = || {
            budget.enter(Mono::START).take(Pace::Transient, Mono::START).map(|permit| permit.spend()).is_ok()
        };
        ours += usize::from(trial(&take) > 6_000);
    }
    let trials = |count| format!("{count} of {TRIALS} trials above");
    row(
        "M6a",
        "tower 0.5.3 TpsBudget",
        "8 threads on 6,000 tokens",
        trials(theirs),
        (trials(ours), ours == 0),
        "never above 6,000",
    );
}

/// M5: jitter that is not there.
fn same_series_every_run() {
    let theirs = || {
        let mut backoff =
            exponential_backoff::Backoff::new(4, Duration::from_millis(100), Duration::from_secs(10));
        backoff.set_jitter(0.3);
        backoff.into_iter().flatten().take(3).collect::<Vec<Duration>>()
    };
    let ours = || {
        let backoff = Backoff::default();
        (0..3)
            .map(|retry| backoff.delay(Pace::Transient, retry, Duration::ZERO, fastrand::u64(..)))
            .collect::<Vec<_>>()
    };
    let different = |series: &dyn Fn() -> Vec<Duration>| {
        let first = series();
        (0..20).filter(|_| series() != first).count()
    };
    let told = |count| format!("{count} of 20 runs differ");
    let ours = different(&ours);
    row(
        "M5",
        "exponential-backoff 2.1.0",
        "jitter 0.3",
        told(different(&theirs)),
        (told(ours), ours > 0),
        "they vary",
    );
}

/// M2: a POST to a host that is not in the scope, answered 503.
async fn outside_of_the_scope() -> anyhow::Result<()> {
    let (address, count) = always_unavailable()?;
    let policy = reqwest_012::retry::for_host("a.example").classify_fn(|attempt| match attempt.status() {
        Some(status) if status.as_u16() == 503 => attempt.retryable(),
        _ => attempt.success(),
    });
    let client = reqwest_012::Client::builder().no_proxy().retry(policy).build()?;
    let _answer = client.post(format!("http://{address}/")).body("x").send().await?;
    let theirs = count.swap(0, Ordering::Relaxed);
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let transport = reqwest::Client::builder().no_proxy().tls_backend_preconfigured(tls);
    let client =
        Client::builder(Api::unknown(), &format!("http://{address}")).transport(transport).build()?;
    let _error = client.post("/").body("x").send().await;
    let ours = count.load(Ordering::Relaxed);
    let told = |count| format!("{count} requests");
    row(
        "M2",
        "reqwest 0.12.28 retry",
        "a POST outside of the scope, 503",
        told(theirs),
        (told(ours), ours == 1),
        "1 request",
    );
    Ok(())
}

fn always_unavailable() -> anyhow::Result<(SocketAddr, Arc<AtomicU32>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (address, count) = (listener.local_addr()?, Arc::new(AtomicU32::new(0)));
    let seen = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut bytes = [0; 4_096];
            let _read = stream.read(&mut bytes);
            seen.fetch_add(1, Ordering::Relaxed);
            let _sent = stream.write_all(b"HTTP/1.1 503 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    Ok((address, count))
}
