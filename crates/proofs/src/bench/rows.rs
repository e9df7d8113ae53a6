//! The groups of rows, each one comparison, and what they share.

mod gateway;
mod layer;
mod memory;
mod sqlite;
mod transactions;

use std::net::SocketAddr;

use anyhow::Result;

use super::Options;
use super::figures::Row;
use super::rounds::{Contestant, Phase};
use crate::closed::{Keys, Load};
use crate::wire::Template;

/// Connections of the driver, as in the measurements the bounds come from.
const CONNECTIONS: usize = 16;
/// Requests of one round where the number of keys does not matter.
const ROUND_REQUESTS: u64 = 60_000;
const WARM_UP_REQUESTS: u64 = 4_000;
/// Keys that replays are asked for.
const REPLAYED_KEYS: u64 = 100;

/// Rows that are measured together.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: fn(&Options) -> Result<Vec<Row>>,
}

pub(crate) const GROUPS: &[Group] = &[
    Group {
        name: "layer",
        what: "the layer on memory in front of a JSON handler, and the peer",
        run: layer::run,
    },
    Group {
        name: "gateway",
        what: "the gateway passing through beside nginx, and replaying",
        run: gateway::run,
    },
    Group { name: "sqlite", what: "group commit at 64 connections", run: sqlite::run },
    Group { name: "memory", what: "a million unique keys through the gateway on SQLite", run: memory::run },
    Group {
        name: "transactions",
        what: "a business transaction of four statements in PostgreSQL, with and without its claim and answer",
        run: transactions::run,
    },
    Group {
        name: "stored-keys",
        what: "the same beside ten million stored keys, across two checkpoints, with reaping on",
        run: transactions::stored::run,
    },
];

/// A round of requests among a few keys; none matters where the request carries no key.
fn repeated(requests: u64, phase: Phase, seed: u64) -> (Keys, u64) {
    let requests = match phase {
        Phase::WarmUp(_) => WARM_UP_REQUESTS,
        Phase::Round(_) => requests,
    };
    (Keys::Among { seed, count: REPLAYED_KEYS }, requests)
}

/// A contestant at an address, with the processes that are charged for it.
fn contestant<'a>(
    name: &str,
    target: SocketAddr,
    template: Template,
    processes: Vec<(&str, u32)>,
    keys: impl Fn(Phase) -> (Keys, u64) + 'a,
) -> Contestant<'a> {
    Contestant {
        name: name.to_owned(),
        processes: processes.into_iter().map(|(name, pid)| (name.to_owned(), pid)).collect(),
        load: Box::new(move |phase| {
            let (keys, requests) = keys(phase);
            Load { target, template: template.clone(), keys, connections: CONNECTIONS, requests }
        }),
    }
}
