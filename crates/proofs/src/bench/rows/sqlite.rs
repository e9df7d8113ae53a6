//! What a keyed write costs on SQLite at 64 connections: fsyncs, and what sharing them is worth.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::post;
use retrysafe_sim::SyncCounter;
use retrysafe_store::sqlite::{BATCH_MAX, SqliteOptions, SqliteStore};
use tokio::runtime::Runtime;
use tower::ServiceExt;

use crate::bench::Options;
use crate::bench::figures::{Bound, Row, Sample, ratio};
use crate::bench::floors::bare;
use crate::closed::{Keys, Load, run as drive};
use crate::contract::Terms;
use crate::fsyncs;
use crate::handler::{self, BODY};
use crate::process::Server;
use crate::report::Progress;
use crate::service::layer;
use crate::subjects::{GATEWAY, GatewayStore, gateway_command};
use crate::tools::scratch;
use crate::wire::{Key, Template};

const CONNECTIONS: usize = 64;
/// Keyed writes through the gateway while its fsyncs are counted.
const COUNTED_WRITES: u64 = 30_000;
/// What each fsync takes on the disk of the comparison.
const FSYNC: Duration = Duration::from_millis(4);
/// Writes of one round: enough for many groups, few enough to wait for one by one.
const GROUPED_WRITES: u64 = 4_000;
const SINGLE_WRITES: u64 = 250;

pub(super) fn run(options: &Options) -> Result<Vec<Row>> {
    Ok(vec![per_write(options)?, grouped_against_single(options)?])
}

/// fsyncs of the gateway's process per keyed write, counted from outside.
fn per_write(options: &Options) -> Result<Row> {
    let scratch = scratch()?;
    let upstream = bare("upstream", scratch.path())?;
    let store = GatewayStore::File(scratch.path().join("retrysafe.db"));
    let mut command =
        gateway_command(upstream.address("listen")?, &Terms::default(), &store, None, scratch.path())?;
    let counter = fsyncs::count_into(&mut command, scratch.path())?;
    let server = Server::start("gateway", command, scratch.path())?;
    let target = server.address(GATEWAY)?;
    let template = Template::keyed_post(target, "/bench", &[("authorization", "Bearer bench")], BODY);
    let requests = COUNTED_WRITES / options.shrink;
    let before = fsyncs::count(&counter)?;
    let keys = Keys::Unique { seed: 60, first: 0 };
    let run = drive(&Load { target, template, keys, connections: CONNECTIONS, requests })?;
    run.all_succeeded()?;
    let fsyncs = fsyncs::count(&counter)? - before;
    server.stop()?;
    let ratio = fsyncs as f64 / requests as f64;
    Ok(Row {
        name: "sqlite: fsyncs per keyed write".to_owned(),
        baseline: "one keyed write (claim and result), 64 connections".to_owned(),
        ratio,
        spread: (ratio, ratio),
        bound: Some(Bound::AtMost(0.06)),
        detail: format!(
            "{fsyncs} fsyncs for {requests} writes through the gateway, {:.0} writes/s",
            run.per_second()
        ),
    })
}

/// Group commit against a commit for each, on a disk whose every fsync takes the same time.
fn grouped_against_single(options: &Options) -> Result<Row> {
    let scratch = scratch()?;
    let runtime = Runtime::new()?;
    let mut grouped = Side::open("grouped", BATCH_MAX, GROUPED_WRITES / options.shrink, scratch.path())?;
    let mut single = Side::open("single", 1, (SINGLE_WRITES / options.shrink).max(50), scratch.path())?;
    let (mut ours, mut base) = (Vec::new(), Vec::new());
    let progress = Progress::new("group commit", options.rounds);
    for _ in 0..options.rounds {
        ours.push(grouped.round(&runtime)?);
        base.push(single.round(&runtime)?);
        progress.step();
    }
    let (figure, spread) = ratio(&ours, &base, |sample| sample.per_second);
    Ok(Row {
        name: "sqlite: group commit".to_owned(),
        baseline: format!("a commit for each write: {}", single.describe(&base)),
        ratio: figure,
        spread,
        bound: Some(Bound::AtLeast(20.0)),
        detail: format!("{}; each fsync {} ms", grouped.describe(&ours), FSYNC.as_millis()),
    })
}

/// The layer on a store that commits in groups of at most `batch_max`.
struct Side {
    app: Router,
    disk: SyncCounter,
    writes: u64,
    seed: u64,
    next_key: u64,
}

impl Side {
    fn open(name: &str, batch_max: usize, writes: u64, scratch: &Path) -> Result<Self> {
        let disk = SyncCounter::with_delay(FSYNC);
        let options = SqliteOptions {
            batch_max,
            vfs: Some(disk.vfs().to_owned()),
            // The slow side queues 64 writes of two fsyncs each.
            busy_timeout: Duration::from_secs(30),
            ..SqliteOptions::new(scratch.join(format!("{name}.db")))
        };
        let layer = layer(&Terms::default(), Arc::new(SqliteStore::open(options)?))?;
        let app = Router::new().route("/bench", post(handler::order)).layer(layer);
        Ok(Self { app, disk, writes, seed: batch_max as u64, next_key: 0 })
    }

    fn round(&mut self, runtime: &Runtime) -> Result<Sample> {
        let first = self.next_key;
        self.next_key += self.writes;
        let (last, seed) = (self.next_key, self.seed);
        let next = Arc::new(AtomicU64::new(first));
        let start = Instant::now();
        let lanes: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let (app, next) = (self.app.clone(), Arc::clone(&next));
                runtime.spawn(async move {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= last {
                            return anyhow::Ok(());
                        }
                        write(&app, Key::numbered(seed, number)).await?;
                    }
                })
            })
            .collect();
        for lane in lanes {
            runtime.block_on(lane)??;
        }
        Ok(Sample { per_second: self.writes as f64 / start.elapsed().as_secs_f64(), ..Sample::default() })
    }

    fn describe(&self, samples: &[Sample]) -> String {
        let rates: Vec<f64> = samples.iter().map(|sample| sample.per_second).collect();
        let per_write = self.disk.count() as f64 / self.next_key.max(1) as f64;
        format!("{:.0} writes/s, {per_write:.3} fsyncs each", crate::bench::figures::median(&rates))
    }
}

async fn write(app: &Router, key: Key) -> Result<()> {
    let request = Request::post("/bench")
        .header("authorization", "Bearer bench")
        .header("content-type", "application/json")
        .header("idempotency-key", key.as_str())
        .body(Body::from(BODY))?;
    let status = app.clone().oneshot(request).await?.status();
    if !status.is_success() {
        bail!("a keyed write was answered {status}");
    }
    Ok(())
}
