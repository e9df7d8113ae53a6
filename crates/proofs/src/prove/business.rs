//! transactions.1: on each database, identical requests leave one row of the business for each key.
//!
//! 50 at once and 20 spread over the handler's time, against two processes on one database: what a mutex in a process would
//! pass is not enough (R11). Each of the three promises to a loser is raced apart. The rows are counted by the database
//! itself afterwards; that a claim which came back empty-handed was never told anything wrong is what the judge looks for.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::Scale;
use super::once::{AT_ONCE, Races, collect};
use crate::judge::{Kinds, Patience, Verdict, judge};
use crate::process::Server;
use crate::till::{Place, PlaceKind, TillTerms};
use crate::tools::scratch;

const ROUNDS: usize = 1_000;
const QUICK_ROUNDS: usize = 20;
/// The requests of the race of late arrivals are a tenth of those at once.
const LATE_SHARE: usize = 10;
/// Long enough that others arrive while the row is written and nothing is committed.
const HANDLER: Duration = Duration::from_millis(4);

/// One promise to a loser.
#[derive(Clone, Copy)]
struct Shape {
    path: &'static str,
    what: &'static str,
    /// Nobody is told that a key is in flight: all wait for the answer.
    all_wait: bool,
    /// Of all rounds, these many in a hundred.
    share: usize,
}

const SHAPES: [Shape; 3] = [
    Shape { path: "/orders", what: "one transaction, 409", all_wait: false, share: 50 },
    Shape { path: "/waiting", what: "one transaction, waiting", all_wait: true, share: 25 },
    Shape { path: "/first", what: "claim first, 409", all_wait: false, share: 25 },
];

pub(crate) fn prove(scale: Scale) -> Result<bool> {
    let rounds = scale.of(ROUNDS, QUICK_ROUNDS);
    let mut holds = true;
    for kind in PlaceKind::ALL {
        holds &= on(kind, rounds, scale.seed)?;
    }
    Ok(holds)
}

fn on(kind: PlaceKind, rounds: usize, seed: u64) -> Result<bool> {
    let scratch = scratch()?;
    let place = Place::make(kind, scratch.path());
    let terms = TillTerms { work_ms: u64::try_from(HANDLER.as_millis())?, ..TillTerms::on(&place) };
    let servers = two(&place, &terms, scratch.path())?;
    let mut verdict = Verdict::default();
    let (mut keys, mut shapes) = (0, Vec::new());
    for (shape, nth) in SHAPES.into_iter().zip(0..) {
        let (kinds, raced) = race(shape, &place, &servers, rounds, seed.wrapping_add(nth), &mut verdict)?;
        keys += raced;
        shapes.push(format!(
            "{}: {} replays, {} in flight",
            shape.what,
            kinds.success.saturating_sub(raced as u64),
            kinds.in_flight
        ));
    }
    for server in servers {
        server.stop()?;
    }
    // Rows of keys that nobody sent would be in no race above.
    let rows: usize = place.sales()?.values().map(Vec::len).sum();
    if rows != keys {
        verdict.note(format!("{rows} rows for {keys} keys"));
    }
    println!(
        "{}: {keys} keys in races of {AT_ONCE}, two processes: {rows} business rows, {} replays, {} in flight, {} busy ({})",
        kind.name(),
        verdict.kinds.success.saturating_sub(keys as u64),
        verdict.kinds.in_flight,
        verdict.kinds.busy,
        shapes.join("; ")
    );
    for (violation, count) in verdict.violations() {
        println!("  VIOLATED {count} times: {violation}");
    }
    Ok(verdict.holds())
}

fn two(place: &Place, terms: &TillTerms, scratch: &Path) -> Result<[Server; 2]> {
    Ok([place.till("till-one", terms, scratch)?, place.till("till-two", terms, scratch)?])
}

/// Races one shape; how its requests ended, and how many keys there were.
fn race(
    shape: Shape,
    place: &Place,
    servers: &[Server],
    rounds: usize,
    seed: u64,
    verdict: &mut Verdict,
) -> Result<(Kinds, usize)> {
    let targets: Vec<_> = servers.iter().map(|server| server.address("listen")).collect::<Result<_>>()?;
    let at_once = (rounds * shape.share / 100).max(1);
    let races = Races { at_once, late: (at_once / LATE_SHARE).max(1), seed };
    let name = format!("{}, {}", place.kind.name(), shape.what);
    let all = collect(&name, &targets, shape.path, races)?;
    let sales = place.sales()?;
    // Two processes on one file wait for each other's turns, and say so when that takes too long.
    let patience = if place.kind == PlaceKind::Sqlite { Patience::BusyFile } else { Patience::InFlightOnly };
    let mut kinds = Kinds::default();
    for (key, outcomes) in &all {
        let ids = sales.get(key.as_str()).map(Vec::as_slice).unwrap_or_default();
        verdict.effects += ids.len();
        let judged = judge(outcomes, ids, patience);
        kinds.add(judged.0);
        verdict.add(judged);
    }
    if shape.all_wait && kinds.in_flight > 0 {
        verdict.note(format!("{} told in flight where the contract says wait", kinds.in_flight));
    }
    Ok((kinds, all.len()))
}
