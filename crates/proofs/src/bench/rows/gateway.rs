//! The gateway passing through beside nginx, and replaying beside the bare upstream.

use std::net::SocketAddr;

use anyhow::Result;

use super::{ROUND_REQUESTS, contestant, repeated};
use crate::bench::Options;
use crate::bench::figures::{Bound, Row, Sample, describe, ratio};
use crate::bench::floors::{Nginx, bare};
use crate::bench::rounds::interleave;
use crate::contract::{Terms, jwt};
use crate::handler::BODY;
use crate::subjects::{GATEWAY, GatewayStore, gateway};
use crate::tools::scratch;
use crate::wire::Template;

pub(super) fn run(options: &Options) -> Result<Vec<Row>> {
    let scratch = scratch()?;
    let upstream = bare("upstream", scratch.path())?;
    let direct = upstream.address("listen")?;
    let nginx = Nginx::start(direct, scratch.path())?;
    // The account comes from a token that the gateway verifies itself, at every request.
    let terms = Terms { jwt: true, ..Terms::default() };
    let ours = gateway("gateway", direct, &terms, &GatewayStore::Memory, None, scratch.path())?;
    let front = ours.address(GATEWAY)?;
    let token = jwt()?.0;
    let headers = [("authorization", token.as_str())];
    let passed = |target: SocketAddr| Template::plain("POST", target, "/pass", &headers, BODY);
    let keys = |phase| repeated(ROUND_REQUESTS / options.shrink, phase, 40);
    let contestants = [
        contestant("direct", direct, passed(direct), vec![("upstream", upstream.pid())], keys),
        contestant(
            "nginx",
            nginx.address,
            passed(nginx.address),
            vec![("nginx", nginx.pid()), ("upstream", upstream.pid())],
            keys,
        ),
        contestant(
            "gateway, pass-through",
            front,
            passed(front),
            vec![("gateway", ours.pid()), ("upstream", upstream.pid())],
            keys,
        ),
        contestant(
            "gateway, replays",
            front,
            Template::keyed_post(front, "/bench", &headers, BODY),
            vec![("gateway", ours.pid()), ("upstream", upstream.pid())],
            keys,
        ),
    ];
    let samples = interleave(&contestants, options.rounds)?;
    let [direct, nginx, pass, replay] = samples.as_slice() else { anyhow::bail!("four contestants ran") };
    let per_second = |sample: &Sample| sample.per_second;
    let proxy_cpu = |sample: &Sample| sample.cpu_us.first().map_or(f64::NAN, |(_, cpu)| *cpu);
    let row = |name: &str,
               samples: &[Sample],
               base: &[Sample],
               base_name: &str,
               measure: &dyn Fn(&Sample) -> f64,
               bound| {
        let (ratio, spread) = ratio(samples, base, measure);
        Row {
            name: name.to_owned(),
            baseline: format!("{base_name}: {}", describe(base)),
            ratio,
            spread,
            bound,
            detail: describe(samples),
        }
    };
    Ok(vec![
        row(
            "gateway: pass-through, requests/s",
            pass,
            nginx,
            "nginx",
            &per_second,
            Some(Bound::AtLeast(0.85)),
        ),
        row("gateway: pass-through, proxy CPU", pass, nginx, "nginx", &proxy_cpu, Some(Bound::AtMost(1.3))),
        row(
            "gateway: replay on memory",
            replay,
            direct,
            "bare upstream",
            &per_second,
            Some(Bound::AtLeast(0.8)),
        ),
        row("gateway: nginx itself", nginx, direct, "bare upstream", &per_second, None),
    ])
}
