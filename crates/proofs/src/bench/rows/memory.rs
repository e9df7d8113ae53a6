//! A million unique keys: what is stored is on disk, and the process stays as small as it was.

use anyhow::Result;

use super::CONNECTIONS;
use crate::accounting::usage;
use crate::bench::Options;
use crate::bench::figures::{Bound, Row, median};
use crate::bench::floors::bare;
use crate::closed::{Keys, Load, run as drive};
use crate::contract::Terms;
use crate::handler::BODY;
use crate::report::Progress;
use crate::subjects::{GATEWAY, GatewayStore, gateway};
use crate::tools::scratch;
use crate::wire::Template;

const KEYS: u64 = 1_000_000;
/// The memory is read this often.
const STEPS: u64 = 40;
/// Steps after which caches and pools have their size.
const SETTLED: usize = 4;

pub(super) fn run(options: &Options) -> Result<Vec<Row>> {
    let scratch = scratch()?;
    let upstream = bare("upstream", scratch.path())?;
    let store = GatewayStore::File(scratch.path().join("retrysafe.db"));
    let server =
        gateway("gateway", upstream.address("listen")?, &Terms::default(), &store, None, scratch.path())?;
    let target = server.address(GATEWAY)?;
    let template = Template::keyed_post(target, "/bench", &[("authorization", "Bearer bench")], BODY);
    let requests = KEYS / options.shrink / STEPS;
    let progress = Progress::new("a million keys", usize::try_from(STEPS)?);
    let (mut sizes, mut rates) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        let keys = Keys::Unique { seed: 70, first: step * requests };
        let load = Load { target, template: template.clone(), keys, connections: CONNECTIONS * 4, requests };
        let run = drive(&load)?;
        run.all_succeeded()?;
        sizes.push(usage(server.pid()).rss_kib as f64);
        rates.push(run.per_second());
        progress.step();
    }
    server.stop()?;
    let settled = sizes.get(SETTLED).copied().unwrap_or(f64::NAN);
    let against = |size: &f64| size / settled;
    let later: Vec<f64> = sizes.iter().skip(SETTLED).map(against).collect();
    let low = later.iter().copied().fold(f64::INFINITY, f64::min);
    let high = later.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Ok(vec![Row {
        name: "memory: gateway after a million keys".to_owned(),
        baseline: format!(
            "itself after {} keys: {:.0} MiB",
            requests * (SETTLED as u64 + 1),
            settled / 1024.0
        ),
        ratio: later.last().copied().unwrap_or(f64::NAN),
        spread: (low, high),
        bound: Some(Bound::AtMost(1.2)),
        detail: format!(
            "{:.0} MiB after {} keys, {:.0} writes/s",
            sizes.last().copied().unwrap_or(f64::NAN) / 1024.0,
            requests * STEPS,
            median(&rates)
        ),
    }])
}
