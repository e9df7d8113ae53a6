//! The API as a process of the gate's own: started, signalled, killed with everything that it started.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::arrive::{Lanes, Shot};
use crate::plan::{Base, CrashPlan};
use crate::wire::Filled;

const LOOK: Duration = Duration::from_millis(10);
/// How long one look at whether it is up may take.
const READY_LIMIT: Duration = Duration::from_secs(2);
/// How long it may take to end after SIGTERM before it is killed.
const TERM_LIMIT: Duration = Duration::from_secs(30);

/// A signal can be sent from the thread that serves the call: the group is what they share.
#[derive(Clone, Debug)]
pub(super) struct Group(Arc<Mutex<Option<Pid>>>);

impl Group {
    /// Sends a signal to the whole group; nothing where it has ended.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(pid) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // It may have ended in this moment; then there is nothing to signal.
            let _ = kill_process_group(pid, signal);
        }
    }
}

/// A running API; it ends with this value.
pub(super) struct Api {
    child: Child,
    group: Group,
}

impl Api {
    /// Starts it by this command, and waits until it answers at these bases.
    pub(super) fn start(command: &[String], bases: &[Base], plan: &CrashPlan) -> Result<Self, String> {
        let (program, arguments) = command.split_first().ok_or("the command is empty")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // A group of its own: what is started by a script goes with it.
        let child = command.process_group(0).spawn().map_err(|error| {
            format!("{program} cannot be started: {error}; [crash] command is run from the present folder")
        })?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let mut api = Self { child, group: Group(Arc::new(Mutex::new(pid))) };
        let start = Instant::now();
        while !answers(bases, &plan.ready) {
            if let Ok(Some(status)) = api.child.try_wait() {
                return Err(format!("{program} ended at once ({status}); run it by hand to see why"));
            }
            if start.elapsed() > plan.ready_within {
                return Err(format!(
                    "{} does not answer after {} s; is [crash] ready the right path?",
                    plan.ready,
                    plan.ready_within.as_secs()
                ));
            }
            std::thread::sleep(LOOK);
        }
        Ok(api)
    }

    pub(super) fn group(&self) -> Group {
        self.group.clone()
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has within this time.
    pub(super) fn ended_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if start.elapsed() < limit => std::thread::sleep(LOOK),
                _ => return None,
            }
        }
    }

    /// SIGTERM, and the wait for its end; whether it ended by itself.
    pub(super) fn terminate(&mut self) -> bool {
        self.group.signal(Signal::TERM);
        self.ended_within(TERM_LIMIT).is_some()
    }
}

/// Whether a process was ended by SIGKILL.
pub(super) fn was_killed(status: ExitStatus) -> bool {
    // A program around it tells of a killed child by 128 + 9.
    status.signal() == Some(Signal::KILL.as_raw()) || status.code() == Some(128 + Signal::KILL.as_raw())
}

impl Drop for Api {
    fn drop(&mut self) {
        self.group.signal(Signal::CONT);
        self.group.signal(Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn answers(bases: &[Base], ready: &str) -> bool {
    let mut lanes = Lanes::new(bases.to_vec(), Instant::now(), READY_LIMIT);
    lanes
        .one(Shot { base: 0, request: Filled::get(ready, &[]) })
        .outcome
        .is_ok_and(|answer| answer.status < 500)
}
