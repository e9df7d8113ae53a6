//! A process whose system calls are made slow.

use std::path::PathBuf;
use std::time::Duration;

use retrysafe_core::contract::walk::{Item, Wrong};

use super::fields::SLOW;
use super::{ProcessId, SlowPlan};

const BY: Duration = Duration::from_millis(2);
/// What lies between a look and an insert: a file of a database, or a message to its server.
const CALLS: [&str; 7] = ["pwrite64", "fsync", "fdatasync", "sendto", "sendmsg", "write", "writev"];

impl SlowPlan {
    /// This process, slowed as it is by default.
    #[must_use]
    pub fn of(process: ProcessId) -> Self {
        Self { process, by: BY, calls: CALLS.map(str::to_owned).to_vec() }
    }
}

pub(super) fn slow(item: &Item<'_>) -> Option<SlowPlan> {
    let section = item.section(SLOW)?;
    let file = section
        .require(
            "pid_file",
            "it says which process is yours",
            "write pid_file = \"server.pid\", or give --slow-pid",
        )
        .and_then(|item| item.text(|text| Ok(PathBuf::from(text))));
    let calls = section.list("calls", call, Vec::new());
    let mut plan = SlowPlan::of(ProcessId::In(file?));
    plan.by = section.time("by", BY);
    if !calls.is_empty() {
        plan.calls = calls;
    }
    Some(plan)
}

fn call(text: &str) -> Result<String, Wrong> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if !text.is_empty() && text.bytes().all(plain) {
        return Ok(text.to_owned());
    }
    Err((format!("{text:?} is not a system call"), "write its name: \"pwrite64\"".to_owned()))
}
