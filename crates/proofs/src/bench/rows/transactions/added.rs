//! What a claim and a stored answer add to a transaction, counted: round trips, messages, fsyncs, bytes of WAL.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use retrysafe_store::transactional::{Begun, OpenTransaction, Transactional};
use retrysafe_testbed::postgres::{Database, Throwaway};

use super::relay::{Counted, Relay};
use super::subject::{OnSqlx, OnTokio, Side, Subject, address, next, opening, replay, won};
use crate::bench::figures::{Bound, Row};

const SCHEMA: &str = "added";
/// Before anything is counted: statements are prepared, pages are there.
const WARM_UP: usize = 20;
/// Of each kind, one after the other; the figure is the middle one, since the store reads the clock in between.
const COUNTED: usize = 51;
const REST: Duration = Duration::from_millis(5);
/// One after the other, so that no two commits share an fsync.
const SYNCED: u32 = 400;
/// Of the server's own processes, which sync beside.
const FSYNCS_SLACK: f64 = 0.05;
const SESSIONS_END: Duration = Duration::from_secs(10);

pub(super) async fn rows(server: &Throwaway, database: &Database) -> Result<Vec<Row>> {
    let relay = Relay::start(&server.address()).await?;
    let url = database.url_at(&relay.address);
    let tokio = OnTokio::open(&url, SCHEMA).await?;
    let bare = each(&relay, async || tokio.one(Side::Bare).await).await?;
    let kept = each(&relay, async || tokio.one(Side::Kept).await).await?;
    let openings = openings(&relay, &tokio, &url, database).await?;
    // The question whether the server can encrypt is no frame.
    let sqlx = OnSqlx::open(&format!("{url}?sslmode=disable"), SCHEMA).await?;
    let sqlx_bare = each(&relay, async || sqlx.one(Side::Bare).await).await?;
    let sqlx_kept = each(&relay, async || sqlx.one(Side::Kept).await).await?;
    drop((tokio, sqlx));

    let bare_written = written(database, Side::Bare).await?;
    let kept_written = written(database, Side::Kept).await?;
    let worst = openings.iter().map(|(_, counted)| counted.trips).max().unwrap_or(u64::MAX);
    let named: Vec<String> =
        openings.iter().map(|(name, counted)| format!("{name} {}", shown(*counted))).collect();
    Ok(vec![
        row(
            "transactions: round trips added to a request",
            kept.trips as f64 - bare.trips as f64,
            Some(Bound::AtMost(0.0)),
            format!("{}; on sqlx {}", shown(kept), shown(sqlx_kept)),
            format!("{} bare; on sqlx {}", shown(bare), shown(sqlx_bare)),
        ),
        row(
            "transactions: round trips of winner's opening, replay, in flight",
            worst as f64,
            Some(Bound::AtMost(1.0)),
            named.join(", "),
            "none".to_owned(),
        ),
        row(
            "transactions: fsyncs added to a request",
            kept_written.fsyncs - bare_written.fsyncs,
            Some(Bound::AtMost(FSYNCS_SLACK)),
            format!("{:.2} a request, one after the other", kept_written.fsyncs),
            format!("{:.2} bare", bare_written.fsyncs),
        ),
        row(
            "transactions: bytes of WAL added to a request",
            kept_written.bytes - bare_written.bytes,
            None,
            format!("{:.0} a request, whose answer has 300 bytes", kept_written.bytes),
            format!("{:.0} bare", bare_written.bytes),
        ),
    ])
}

fn row(name: &str, figure: f64, bound: Option<Bound>, detail: String, baseline: String) -> Row {
    Row { name: name.to_owned(), baseline, ratio: figure, spread: (figure, figure), bound, detail }
}

fn shown(counted: Counted) -> String {
    format!("{} round trips of {} messages", counted.trips, counted.messages)
}

/// What one request of a kind costs.
async fn each(relay: &Relay, request: impl AsyncFn() -> Result<()>) -> Result<Counted> {
    for _ in 0..WARM_UP {
        request().await?;
    }
    let mut counted = Vec::with_capacity(COUNTED);
    for _ in 0..COUNTED {
        // For what nobody waits for: the rollback of who did not win.
        tokio::time::sleep(REST).await;
        let before = relay.counted();
        request().await?;
        let after = relay.counted();
        counted
            .push(Counted { trips: after.trips - before.trips, messages: after.messages - before.messages });
    }
    counted.sort_unstable();
    counted.get(COUNTED / 2).copied().context("requests were counted")
}

/// The first message of a request, whatever it meets.
async fn openings(
    relay: &Relay,
    tokio: &OnTokio,
    url: &str,
    database: &Database,
) -> Result<Vec<(&'static str, Counted)>> {
    let won = each(relay, async || {
        // Given back without a word: what is dropped is rolled back behind it.
        won(&tokio.store, next()).await.map(drop)
    });
    let won = won.await?;
    let seen = each(relay, async || tokio.one(Side::Replay).await).await?;
    // Stored by another process, which is beside the relay.
    let beside = OnTokio::open(&database.url(), SCHEMA).await?;
    let fresh = OnTokio::open(url, SCHEMA).await?;
    let unseen = each(relay, async || {
        let id = next();
        beside.kept(id).await?;
        replay(&fresh.store, id).await
    });
    let unseen = unseen.await?;
    let held = next();
    let holder = super::subject::won(&beside.store, held).await?;
    let locked = each(relay, async || match fresh.store.begin(&address(held)?, &opening(next())).await? {
        Begun::Locked => Ok(()),
        Begun::Won(_) | Begun::Seen(_) => bail!("what is held was not in flight"),
    });
    let locked = locked.await?;
    holder.roll_back().await;
    Ok(vec![
        ("winner", won),
        ("replay", seen),
        ("replay of what another process stored", unseen),
        ("in flight", locked),
    ])
}

struct Written {
    fsyncs: f64,
    bytes: f64,
}

/// What one request writes down, from the server's own counters. They are brought up to date when a session ends.
async fn written(database: &Database, side: Side) -> Result<Written> {
    let subject = OnTokio::open(&database.url(), SCHEMA).await?;
    for _ in 0..WARM_UP {
        subject.one(side).await?;
    }
    drop(subject);
    sessions_end(database).await?;
    let subject = OnTokio::open(&database.url(), SCHEMA).await?;
    let before = counters(database)?;
    for _ in 0..SYNCED {
        subject.one(side).await?;
    }
    drop(subject);
    sessions_end(database).await?;
    let after = counters(database)?;
    let each = |after: f64, before: f64| (after - before) / f64::from(SYNCED);
    Ok(Written { fsyncs: each(after.fsyncs, before.fsyncs), bytes: each(after.bytes, before.bytes) })
}

fn counters(database: &Database) -> Result<Written> {
    let text =
        database.psql("SELECT wal_sync || ' ' || (pg_current_wal_insert_lsn() - '0/0') FROM pg_stat_wal");
    let (fsyncs, bytes) = text.split_once(' ').context("the counters of the WAL")?;
    Ok(Written { fsyncs: fsyncs.parse()?, bytes: bytes.parse()? })
}

async fn sessions_end(database: &Database) -> Result<()> {
    let started = Instant::now();
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    while database.psql(others) != "0" {
        if started.elapsed() > SESSIONS_END {
            bail!("sessions of the bench do not end");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
