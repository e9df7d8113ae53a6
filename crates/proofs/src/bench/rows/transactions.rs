//! What a claim and a stored answer cost a business transaction of four statements in PostgreSQL, one-transaction shape.
//!
//! Bare and kept take turns on one throwaway server, whose settings are stated: the ratio is of the same minute and the same
//! caches. WAL bytes are the way that the server's position goes in each side's rounds.
//!
//! # Limits
//! The driver runs in the process of the bench and shares the machine with the server. The tables are almost empty, but for
//! the group [`stored`].

mod added;
mod relay;
pub(super) mod stored;
mod subject;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use retrysafe_testbed::postgres::{Database, Throwaway};
use tokio::runtime::Runtime;

use crate::bench::Options;
use crate::bench::figures::{Bound, Row, Sample, describe_rate, ratio};
use crate::report::Progress;
use subject::{OnSqlx, OnTokio, Side, Subject, TABLES, rate};

/// Clients, and the least share of the bare rate that is kept.
const CLIENTS: [(usize, f64); 3] = [(1, 0.85), (8, 0.72), (32, 0.62)];
/// Of the rate of a plain indexed `SELECT`.
const REPLAY: f64 = 0.9;
const ROUND: Duration = Duration::from_secs(2);
const SETTINGS: [(&str, &str); 2] = [("shared_buffers", "256MB"), ("max_connections", "200")];
const SCHEMA: &str = "bench_keys";

pub(super) fn run(options: &Options) -> Result<Vec<Row>> {
    let server = Throwaway::start(&SETTINGS);
    let database = Database::on(&server.address());
    database.psql(TABLES);
    let runtime = Runtime::new()?;
    let tokio = Arc::new(runtime.block_on(OnTokio::open(&database.url(), SCHEMA))?);
    let sqlx = Arc::new(runtime.block_on(OnSqlx::open(&database.url(), SCHEMA))?);
    let place = Place { runtime: &runtime, database: &database, options };
    let mut rows = Vec::new();
    for (clients, least) in CLIENTS {
        let pair = Pair { base: Side::Bare, ours: Side::Kept, clients, least: Some(least) };
        rows.push(pair.row("transactions: four statements", &tokio, &place)?);
    }
    for (clients, _) in CLIENTS {
        let pair = Pair { base: Side::Bare, ours: Side::Kept, clients, least: None };
        rows.push(pair.row("transactions: four statements on sqlx", &sqlx, &place)?);
    }
    for (clients, _) in CLIENTS {
        let pair = Pair { base: Side::Select, ours: Side::Replay, clients, least: Some(REPLAY) };
        rows.push(pair.row("transactions: replay", &tokio, &place)?);
    }
    drop((tokio, sqlx));
    rows.extend(runtime.block_on(added::rows(&server, &database))?);
    Ok(rows)
}

/// Bytes of WAL that the server has written so far. Its position, since the counters of `pg_stat_wal` come late.
fn written(database: &Database) -> Result<f64> {
    database.psql("SELECT pg_current_wal_insert_lsn() - '0/0'").parse().context("the position of the WAL")
}

struct Place<'a> {
    runtime: &'a Runtime,
    database: &'a Database,
    options: &'a Options,
}

/// Two sides that take turns.
struct Pair {
    base: Side,
    ours: Side,
    clients: usize,
    least: Option<f64>,
}

#[derive(Default)]
struct Cost {
    requests: f64,
    bytes: f64,
}

impl Pair {
    fn row(&self, name: &str, subject: &Arc<impl Subject>, place: &Place<'_>) -> Result<Row> {
        let Place { runtime, database, options } = place;
        let (mut samples, mut costs) = ([Vec::new(), Vec::new()], [Cost::default(), Cost::default()]);
        let length = ROUND / u32::try_from(options.shrink.max(1))?;
        let progress = Progress::new(name, options.rounds);
        for _ in 0..options.rounds {
            for (index, side) in [self.base, self.ours].into_iter().enumerate() {
                // Caches and statements come back first; it is not measured.
                runtime.block_on(rate(subject, self.clients, side, length / 4))?;
                let before = written(database)?;
                let (requests, took) = runtime.block_on(rate(subject, self.clients, side, length))?;
                let after = written(database)?;
                let cost = &mut costs[index];
                cost.requests += requests as f64;
                cost.bytes += after - before;
                samples[index]
                    .push(Sample { per_second: requests as f64 / took.as_secs_f64(), ..Sample::default() });
            }
            progress.step();
        }
        let [base, ours] = samples;
        let (figure, spread) = ratio(&ours, &base, |sample| sample.per_second);
        let each = |cost: &Cost| format!("{:.0} WAL bytes a request", cost.bytes / cost.requests.max(1.0));
        Ok(Row {
            name: format!("{name}, {} clients", self.clients),
            baseline: format!("{} bare, {}", describe_rate(&base), each(&costs[0])),
            ratio: figure,
            spread,
            bound: self.least.map(Bound::AtLeast),
            detail: format!(
                "{}, {}; shared_buffers {}",
                describe_rate(&ours),
                each(&costs[1]),
                SETTINGS[0].1
            ),
        })
    }
}
