//! The groups of rows, each one comparison.

use anyhow::Result;

use super::Options;
use super::figures::{Row, describe, ratio};
use super::floors::{Nginx, bare, peer};
use super::rounds::{Contestant, Phase, interleave};
use crate::accounting::usage;
use crate::closed::{Keys, Load};
use crate::handler::BODY;
use crate::process::Server;
use crate::tools::scratch;
use crate::wire::Template;

/// Connections of the driver, as in the measurements the bounds come from.
const CONNECTIONS: usize = 16;
/// Unique keys of a whole run, over all its rounds.
const UNIQUE_KEYS: u64 = 200_000;
/// Requests of one round where the number of keys does not matter.
const ROUND_REQUESTS: u64 = 30_000;
const WARM_UP_REQUESTS: u64 = 2_000;
/// Keys that replays are asked for.
const REPLAYED_KEYS: u64 = 100;
const ACCOUNT: (&str, &str) = ("authorization", "Bearer bench");

/// Rows that are measured together.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: fn(&Options) -> Result<Vec<Row>>,
}

pub(crate) const GROUPS: &[Group] = &[
    Group { name: "layer", what: "the layer on memory in front of a JSON handler, and the peer", run: layer },
    Group { name: "gateway", what: "the gateway passing through, and nginx", run: gateway },
];

/// Unique keys: a share of the whole number in each round, none twice.
fn unique(options: &Options, phase: Phase, seed: u64) -> (Keys, u64) {
    let share = (UNIQUE_KEYS / options.shrink).div_ceil(options.rounds.max(1) as u64);
    match phase {
        Phase::WarmUp => (Keys::Unique { seed: seed + 1, first: 0 }, WARM_UP_REQUESTS),
        Phase::Round(round) => (Keys::Unique { seed, first: round as u64 * share }, share),
    }
}

fn replays(options: &Options, phase: Phase, seed: u64) -> (Keys, u64) {
    let requests = match phase {
        Phase::WarmUp => WARM_UP_REQUESTS,
        Phase::Round(_) => ROUND_REQUESTS / options.shrink,
    };
    (Keys::Among { seed, count: REPLAYED_KEYS }, requests)
}

/// A contestant that answers keyed `POST /bench` requests.
fn keyed<'a>(
    name: &str,
    server: &Server,
    cookie: Option<&'a str>,
    keys: impl Fn(Phase) -> (Keys, u64) + 'a,
) -> Result<Contestant<'a>> {
    let target = server.address("listen")?;
    let mut headers = vec![ACCOUNT];
    headers.extend(cookie.map(|cookie| ("cookie", cookie)));
    let template = Template::keyed_post(target, "/bench", &headers, BODY);
    Ok(Contestant {
        name: name.to_owned(),
        processes: vec![("server".to_owned(), server.pid())],
        load: Box::new(move |phase| {
            let (keys, requests) = keys(phase);
            Load { target, template: template.clone(), keys, connections: CONNECTIONS, requests }
        }),
    })
}

fn layer(options: &Options) -> Result<Vec<Row>> {
    let scratch = scratch()?;
    let bare = bare("bare", scratch.path())?;
    let (peer, cookie) = peer(scratch.path())?;
    let contestants = [
        keyed("bare handler", &bare, None, |phase| unique(options, phase, 10))?,
        keyed("axum-idempotent, unique keys", &peer, Some(&cookie), |phase| unique(options, phase, 20))?,
        keyed("axum-idempotent, replays", &peer, Some(&cookie), |phase| replays(options, phase, 30))?,
    ];
    let samples = interleave(&contestants, options.rounds)?;
    let rows = (1..contestants.len()).map(|index| {
        let (ratio, spread) = ratio(&samples[index], &samples[0], |sample| sample.per_second);
        let memory = usage(contestants[index].processes[0].1).rss_kib / 1024;
        Row {
            name: format!("layer: {}", contestants[index].name),
            baseline: format!("bare handler ({})", describe(&samples[0])),
            ratio,
            spread,
            bound: None,
            detail: format!("{}, {memory} MiB", describe(&samples[index])),
        }
    });
    Ok(rows.collect())
}

fn gateway(options: &Options) -> Result<Vec<Row>> {
    let scratch = scratch()?;
    let upstream = bare("upstream", scratch.path())?;
    let nginx = Nginx::start(upstream.address("listen")?, scratch.path())?;
    let direct = upstream.address("listen")?;
    let pass = |name: &str, target, process: Option<(&str, u32)>| {
        let template = Template::plain("POST", target, "/bench", &[ACCOUNT], BODY);
        let mut processes: Vec<(String, u32)> =
            process.map(|(name, pid)| (name.to_owned(), pid)).into_iter().collect();
        processes.push(("upstream".to_owned(), upstream.pid()));
        Contestant {
            name: name.to_owned(),
            processes,
            load: Box::new(move |phase| {
                let (keys, requests) = replays(options, phase, 40);
                Load { target, template: template.clone(), keys, connections: CONNECTIONS, requests }
            }),
        }
    };
    let contestants =
        [pass("direct", direct, None), pass("nginx", nginx.address, Some(("nginx", nginx.pid())))];
    let samples = interleave(&contestants, options.rounds)?;
    let (to_direct, spread) = ratio(&samples[1], &samples[0], |sample| sample.per_second);
    Ok(vec![Row {
        name: "gateway: nginx proxy_pass".to_owned(),
        baseline: format!("direct ({})", describe(&samples[0])),
        ratio: to_direct,
        spread,
        bound: None,
        detail: describe(&samples[1]),
    }])
}
