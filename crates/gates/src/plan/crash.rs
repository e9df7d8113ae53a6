//! How the crash gate starts the API, and what it may do to it.

use std::path::PathBuf;
use std::time::Duration;

use retrysafe_core::contract::walk::{Item, Section, Wrong, local_path};

use super::fields::{CRASH, DISK, SECOND};
use super::operations::base;
use super::{CrashPlan, DiskPlan, Plan, SecondPlan};
use crate::trust::Trust;

const READY_WITHIN: Duration = Duration::from_secs(30);
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
const SWEEP: u32 = 20;
/// Each point is a start of the API.
const SWEEP_MAX: i64 = 1_000;
/// A disk that takes more to be filled is not one of the API's own.
const FILL: usize = 256 << 20;
const FILL_MAX: usize = 4 << 30;
const FULL_FOR: Duration = Duration::from_secs(2);

/// The table, before it is known that the rest of the plan is one.
pub(super) struct Crash {
    command: Vec<String>,
    ready: String,
    ready_within: Duration,
    settled_within: Duration,
    completes_within: Option<Duration>,
    lease: Option<Duration>,
    second: Option<SecondPlan>,
    disk: Option<DiskPlan>,
    sweep: u32,
}

impl Crash {
    pub(super) fn of(self, plan: Plan) -> CrashPlan {
        let Self { command, ready, ready_within, settled_within, .. } = self;
        let Self { completes_within, lease, second, disk, sweep, .. } = self;
        CrashPlan {
            plan,
            command,
            ready,
            ready_within,
            settled_within,
            completes_within,
            lease,
            second,
            disk,
            sweep,
        }
    }
}

pub(super) fn crash(item: &Item<'_>, trust: Option<&Trust>) -> Option<Crash> {
    let section = item.section(CRASH)?;
    let command = command(&section, item);
    let ready = section
        .require("ready", "it answers when the API is up", "write ready = \"/health\"")
        .and_then(|item| item.text(local_path));
    let optional = |field: &'static str| section.get(field).and_then(|item| item.time());
    let lease = optional("lease");
    let second = section.get("second").and_then(|item| second(&item, trust));
    if second.is_some() && lease.is_none() {
        let help = "write lease = \"30s\": how long the API holds a claim";
        item.fault("it is not said after which time the second process takes over", help);
    }
    Some(Crash {
        command: command?,
        ready: ready?,
        ready_within: section.time("ready_within", READY_WITHIN),
        settled_within: section.time("settled_within", SETTLED_WITHIN),
        completes_within: optional("completes_within"),
        lease,
        second,
        disk: section.get("disk").and_then(|item| disk(&item)),
        sweep: section.number("sweep", 0..=SWEEP_MAX, SWEEP),
    })
}

fn command(section: &Section<'_>, item: &Item<'_>) -> Option<Vec<String>> {
    let raw = |text: &str| -> Result<String, Wrong> { Ok(text.to_owned()) };
    let help = "write command = [\"./server\", \"--port\", \"8080\"]";
    let words = section.require("command", "the gate starts it", help)?.list();
    let words: Vec<String> = words.iter().filter_map(|one| one.text(raw)).collect();
    if words.is_empty() {
        item.fault("the command is empty", "write the program and its arguments");
    }
    Some(words)
}

fn second(item: &Item<'_>, trust: Option<&Trust>) -> Option<SecondPlan> {
    let section = item.section(SECOND)?;
    let command = command(&section, item);
    let base = section
        .require("base", "the gate has to know where it is", "write base = \"http://127.0.0.1:8081\"")
        .and_then(|item| item.text(base(trust)));
    Some(SecondPlan { command: command?, base: base? })
}

fn disk(item: &Item<'_>) -> Option<DiskPlan> {
    let section = item.section(DISK)?;
    let help = "write folder = \"/mnt/small\", a small file system of its own";
    let folder = section
        .require("folder", "the gate fills the disk that it is on", help)
        .and_then(|item| item.text(|text| Ok(PathBuf::from(text))));
    let at_most = section.size("at_most", 1..=FILL_MAX, FILL) as u64;
    Some(DiskPlan { folder: folder?, at_most, full_for: section.time("full_for", FULL_FOR) })
}
