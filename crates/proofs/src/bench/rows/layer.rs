//! The layer on memory against the bare handler, and the peer in the same run.

use anyhow::Result;

use super::{WARM_UP_REQUESTS, contestant, repeated};
use crate::accounting::usage;
use crate::bench::Options;
use crate::bench::figures::{Bound, Row, describe, ratio};
use crate::bench::floors::{bare, peer};
use crate::bench::rounds::{Contestant, Phase, one};
use crate::closed::Keys;
use crate::contract::Terms;
use crate::handler::BODY;
use crate::process::Server;
use crate::report::Progress;
use crate::subjects::service;
use crate::tools::scratch;
use crate::wire::Template;

/// Unique keys of each round, as in the measurements the bound comes from; and as many requests to whom they are compared
/// with. A round of seconds shows a server as it runs: one of a tenth of that showed mostly how it wakes up.
const ROUND_REQUESTS: u64 = 200_000;
/// The peer needs many times as long for a unique key, so it gets a share of them.
const PEER_UNIQUE_KEYS: u64 = 25_000;
const ACCOUNT: (&str, &str) = ("authorization", "Bearer bench");

/// Keys that no other round has.
fn unique(requests: u64, phase: Phase, seed: u64) -> (Keys, u64) {
    match phase {
        Phase::WarmUp(round) => {
            (Keys::Unique { seed: seed + 1, first: round as u64 * WARM_UP_REQUESTS }, WARM_UP_REQUESTS)
        }
        Phase::Round(round) => (Keys::Unique { seed, first: round as u64 * requests }, requests),
    }
}

pub(super) fn run(options: &Options) -> Result<Vec<Row>> {
    let scratch = scratch()?;
    let layer = |name: &str| {
        let lease = Terms::default().lease;
        service(name, "memory", std::time::Duration::ZERO, lease, None, scratch.path())
    };
    let bare = bare("bare", scratch.path())?;
    let replaying = layer("replaying")?;
    let (peer, cookie) = peer(scratch.path())?;
    let side =
        |name: &str, server: &Server, keys: fn(u64, Phase, u64) -> (Keys, u64), requests: u64, seed| {
            let target = server.address("listen")?;
            let template = Template::keyed_post(target, "/bench", &[ACCOUNT, ("cookie", &cookie)], BODY);
            let charged = vec![("server", server.pid())];
            let requests = requests / options.shrink;
            Ok::<Contestant<'_>, anyhow::Error>(contestant(name, target, template, charged, move |phase| {
                keys(requests, phase, seed)
            }))
        };
    let progress = Progress::new("rounds", options.rounds * NAMES.len());
    let mut samples = vec![Vec::new(); NAMES.len()];
    let mut memory_mib = [0; NAMES.len()];
    for round in 0..options.rounds {
        // Every round stores as many keys in a memory as empty as the round before.
        let filling = layer(&format!("filling-{round}"))?;
        let contestants = [
            side(NAMES[0], &bare, repeated, ROUND_REQUESTS, 10)?,
            side(NAMES[1], &filling, unique, ROUND_REQUESTS, 20)?,
            side(NAMES[2], &replaying, repeated, ROUND_REQUESTS, 30)?,
            side(NAMES[3], &peer, unique, PEER_UNIQUE_KEYS, 40)?,
            side(NAMES[4], &peer, repeated, ROUND_REQUESTS, 50)?,
        ];
        for (all, sample) in samples.iter_mut().zip(one(&contestants, round, &progress)?) {
            all.push(sample);
        }
        for (mib, contestant) in memory_mib.iter_mut().zip(&contestants) {
            *mib = usage(contestant.processes[0].1).rss_kib / 1024;
        }
    }
    let bounds = [Some(Bound::AtLeast(0.65)), Some(Bound::AtLeast(0.9)), None, None];
    let baseline = format!("bare handler: {}", describe(&samples[0]));
    let rows = (1..NAMES.len()).zip(bounds).map(|(index, bound)| {
        let (ratio, spread) = ratio(&samples[index], &samples[0], |sample| sample.per_second);
        Row {
            name: format!("layer: {}", NAMES[index]),
            baseline: baseline.clone(),
            ratio,
            spread,
            bound,
            detail: format!("{}; {} MiB at the end", describe(&samples[index]), memory_mib[index]),
        }
    });
    Ok(rows.collect())
}

/// The sides, in the order of the rows; all are compared with the first.
const NAMES: [&str; 5] =
    ["bare handler", "unique keys", "replays", "axum-idempotent, unique keys", "axum-idempotent, replays"];
