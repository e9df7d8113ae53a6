//! Ten million stored answers: what a request costs beside them, across two checkpoints, with reaping on.
//!
//! The same requests take turns on an almost empty table and on a full one of the same server, so checkpoints meet both. Only the
//! full one is reaped meanwhile, a hundredth of its rows being due. Keys are random, so that a request touches another page of
//! the index each time, and writes a whole one after each checkpoint.
//!
//! # Limits
//! The rows are made by the server, all with one answer; their index is as full as inserting at random leaves it. Checkpoints
//! come twice a minute, ten times as often as by default.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use retrysafe_store::Store;
use retrysafe_testbed::postgres::{Database, Throwaway};
use tokio::runtime::Runtime;

use super::subject::{OnTokio, Side, TABLES, rate};
use crate::bench::Options;
use crate::bench::figures::{Bound, Row};
use crate::report::Progress;

const KEYS: u64 = 10_000_000;
const LEAST: f64 = 0.85;
const CLIENTS: usize = 8;
const SLICE: Duration = Duration::from_secs(2);
const CHECKPOINTS: u64 = 2;
/// Two checkpoints by time take half of this.
const LONGEST: Duration = Duration::from_secs(180);
const SETTINGS: [(&str, &str); 5] = [
    ("shared_buffers", "2GB"),
    ("max_connections", "100"),
    ("checkpoint_timeout", "30s"),
    ("max_wal_size", "64GB"),
    ("maintenance_work_mem", "1GB"),
];
/// Sessions that fill the table.
const LOADERS: u64 = 2;
const STEPS: u64 = 20;
/// A batch of the layer's upkeep each second. The layer itself does not rest after a full one.
const REAP_BATCH: usize = 500;
const REAP_PAUSE: Duration = Duration::from_secs(1);

pub(in crate::bench::rows) fn run(options: &Options) -> Result<Vec<Row>> {
    let keys = KEYS / options.shrink.max(1);
    let server = Throwaway::start(&SETTINGS);
    let database = Database::on(&server.address());
    database.psql(TABLES);
    let runtime = Runtime::new()?;
    let few = Arc::new(runtime.block_on(OnTokio::open(&database.url(), "few"))?);
    let many = Arc::new(runtime.block_on(OnTokio::open(&database.url(), "many"))?);
    fill(&database, keys)?;
    runtime.block_on(measure(&few, &many, &database, keys)).map(|row| vec![row])
}

/// Rows like the one that is there, with keys of their own. One in a hundred may be reaped.
fn fill(database: &Database, keys: u64) -> Result<()> {
    // Nothing of this has to survive.
    database.psql("ALTER SYSTEM SET synchronous_commit = off");
    database.psql("ALTER SYSTEM SET full_page_writes = off");
    database.psql("SELECT pg_reload_conf()");
    let progress = Progress::new("filling the table", usize::try_from(STEPS)?);
    let part = keys.div_ceil(STEPS * LOADERS);
    for step in 0..STEPS {
        std::thread::scope(|scope| {
            for loader in 0..LOADERS {
                let first = (step * LOADERS + loader) * part;
                let last = (first + part).min(keys);
                scope.spawn(move || {
                    database.psql(&format!(
                        "INSERT INTO many.key SELECT k.namespace, k.account, convert_to(md5('stored ' || n), 'UTF8'), \
                         decode(md5(n::text), 'hex'), NULL, n + 1000, 2, \
                         CASE WHEN n % 100 = 0 THEN k.due_ms - 10 * 86400000 ELSE k.due_ms + n / 1000 END, \
                         k.expires_ms, NULL, NULL, k.data \
                         FROM (SELECT * FROM many.key WHERE status IS NULL AND length(key) < 32 LIMIT 1) AS k, \
                         generate_series({first}, {last} - 1) AS n"
                    ));
                });
            }
        });
        progress.step();
    }
    database.psql("ALTER SYSTEM RESET ALL");
    database.psql("SELECT pg_reload_conf()");
    database.psql("VACUUM ANALYZE many.key");
    database.psql("CHECKPOINT");
    let found: u64 = database.psql("SELECT count(*) FROM many.key").parse().context("the number of keys")?;
    if found < keys {
        bail!("{found} keys of {keys} are there");
    }
    Ok(())
}

#[derive(Default)]
struct Done {
    requests: u64,
    seconds: f64,
    rates: Vec<f64>,
}

impl Done {
    fn rate(&self) -> f64 {
        self.requests as f64 / self.seconds
    }
}

async fn measure(few: &Arc<OnTokio>, many: &Arc<OnTokio>, database: &Database, keys: u64) -> Result<Row> {
    let reaper = Reaper::start(many);
    let (mut beside_few, mut beside_many) = (Done::default(), Done::default());
    rate(few, CLIENTS, Side::Kept, SLICE).await?;
    rate(many, CLIENTS, Side::Kept, SLICE).await?;
    let (started, before) = (Instant::now(), checkpoints(database)?);
    while checkpoints(database)? < before + CHECKPOINTS {
        if started.elapsed() > LONGEST {
            bail!("the server makes no checkpoints");
        }
        for (subject, done) in [(few, &mut beside_few), (many, &mut beside_many)] {
            reaper.on.store(Arc::ptr_eq(subject, many), Ordering::SeqCst);
            let (requests, took) = rate(subject, CLIENTS, Side::Kept, SLICE).await?;
            done.requests += requests;
            done.seconds += took.as_secs_f64();
            done.rates.push(requests as f64 / took.as_secs_f64());
        }
    }
    let reaped = reaper.end().await?;
    if reaped == 0 {
        bail!("nothing was reaped");
    }
    let ratios: Vec<f64> =
        beside_many.rates.iter().zip(&beside_few.rates).map(|(many, few)| many / few).collect();
    let spread =
        ratios.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), one| (low.min(*one), high.max(*one)));
    Ok(Row {
        name: format!("transactions: beside {keys} stored keys, {CLIENTS} clients"),
        baseline: format!("{:.0} req/s on an almost empty table of the same server", beside_few.rate()),
        // Of all that was done, so that the time of the checkpoints counts as much as it lasted.
        ratio: beside_many.rate() / beside_few.rate(),
        spread,
        bound: Some(Bound::AtLeast(LEAST)),
        detail: format!(
            "{:.0} req/s over {:.0} s and {CHECKPOINTS} checkpoints, {reaped} keys reaped; shared_buffers {}, \
             checkpoint_timeout {}, max_wal_size {}",
            beside_many.rate(),
            started.elapsed().as_secs_f64(),
            SETTINGS[0].1,
            SETTINGS[2].1,
            SETTINGS[3].1,
        ),
    })
}

/// Checkpoints that have ended.
fn checkpoints(database: &Database) -> Result<u64> {
    let counted = database.psql("SELECT checkpoints_timed + checkpoints_req FROM pg_stat_bgwriter");
    counted.parse().context("the number of checkpoints")
}

/// Reaps the full table while it is its turn.
struct Reaper {
    on: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    reaped: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Reaper {
    fn start(subject: &Arc<OnTokio>) -> Self {
        let (on, stop, reaped) =
            (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let task =
            tokio::spawn(reap(Arc::clone(subject), Arc::clone(&on), Arc::clone(&stop), Arc::clone(&reaped)));
        Self { on, stop, reaped, task }
    }

    async fn end(self) -> Result<u64> {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await??;
        Ok(self.reaped.load(Ordering::SeqCst))
    }
}

async fn reap(
    subject: Arc<OnTokio>,
    on: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    reaped: Arc<AtomicU64>,
) -> Result<()> {
    while !stop.load(Ordering::SeqCst) {
        if on.load(Ordering::SeqCst) {
            let went = subject.store.reap(subject.store.now()?, REAP_BATCH).await?;
            reaped.fetch_add(went as u64, Ordering::SeqCst);
        }
        tokio::time::sleep(REAP_PAUSE).await;
    }
    Ok(())
}
