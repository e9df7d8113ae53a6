//! The measured defects of other packages (V17), theirs beside ours. A defect of which a package has been cured prints as such.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Barrier,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use retrysafe_client::{Api, Client};
use retrysafe_core::retry::{
    Backoff, Budget, Mono, Pace,
    budget::{Bucket, Ratio, Rules},
};
use serde_json::json;
use tower::retry::budget::{Budget as _, TpsBudget};

pub async fn print() -> anyhow::Result<()> {
    share_of_ten_thousand();
    more_than_there_is();
    same_series_every_run();
    outside_of_the_scope().await
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
