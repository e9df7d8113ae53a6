//! The layer on memory against the bare handler, and the peer in the same run.

use anyhow::Result;

use super::{WARM_UP_REQUESTS, contestant, repeated};
use crate::accounting::usage;
use crate::bench::Options;
use crate::bench::figures::{Bound, Row, describe, ratio};
use crate::bench::floors::{bare, peer};
use crate::bench::rounds::{Contestant, Phase, interleave};
use crate::closed::Keys;
use crate::contract::Terms;
use crate::handler::BODY;
use crate::process::Server;
use crate::subjects::service;
use crate::tools::scratch;
use crate::wire::Template;

/// Unique keys of a whole run, over all its rounds.
const UNIQUE_KEYS: u64 = 200_000;
const ACCOUNT: (&str, &str) = ("authorization", "Bearer bench");

/// A share of the unique keys in each round, none twice.
fn unique(options: &Options, phase: Phase, seed: u64) -> (Keys, u64) {
    let share = (UNIQUE_KEYS / options.shrink).div_ceil(options.rounds.max(1) as u64);
    match phase {
        Phase::WarmUp(round) => {
            (Keys::Unique { seed: seed + 1, first: round as u64 * WARM_UP_REQUESTS }, WARM_UP_REQUESTS)
        }
        Phase::Round(round) => (Keys::Unique { seed, first: round as u64 * share }, share),
    }
}

pub(super) fn run(options: &Options) -> Result<Vec<Row>> {
    let scratch = scratch()?;
    let bare = bare("bare", scratch.path())?;
    let ours =
        service("layer", "memory", std::time::Duration::ZERO, Terms::default().lease, None, scratch.path())?;
    let (peer, cookie) = peer(scratch.path())?;
    let side = |name: &str, server: &Server, keys: fn(&Options, Phase, u64) -> (Keys, u64), seed| {
        let target = server.address("listen")?;
        let template = Template::keyed_post(target, "/bench", &[ACCOUNT, ("cookie", &cookie)], BODY);
        let charged = vec![("server", server.pid())];
        Ok::<Contestant<'_>, anyhow::Error>(contestant(name, target, template, charged, move |phase| {
            keys(options, phase, seed)
        }))
    };
    let contestants = [
        side("bare handler", &bare, repeated, 10)?,
        side("unique keys", &ours, unique, 20)?,
        side("replays", &ours, repeated, 30)?,
        side("axum-idempotent, unique keys", &peer, unique, 40)?,
        side("axum-idempotent, replays", &peer, repeated, 50)?,
    ];
    let samples = interleave(&contestants, options.rounds)?;
    let bounds = [Some(Bound::AtLeast(0.65)), Some(Bound::AtLeast(0.9)), None, None];
    let baseline = format!("bare handler: {}", describe(&samples[0]));
    let rows = (1..contestants.len()).zip(bounds).map(|(index, bound)| {
        let (ratio, spread) = ratio(&samples[index], &samples[0], |sample| sample.per_second);
        let memory = usage(contestants[index].processes[0].1).rss_kib / 1024;
        let keys = UNIQUE_KEYS / options.shrink;
        Row {
            name: format!("layer: {}", contestants[index].name),
            baseline: baseline.clone(),
            ratio,
            spread,
            bound,
            detail: format!("{}; {memory} MiB with {keys} keys", describe(&samples[index])),
        }
    });
    Ok(rows.collect())
}
