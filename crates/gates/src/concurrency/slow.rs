//! A process that is made slow while it is raced: the window between a look and an insert is as wide as a system call is long.

use std::path::Path;

use crate::plan::{ProcessId, SlowPlan};
use crate::trace::{Inject, Tracer, Untraced};

/// Slow from the beginning of the run to the end of its races.
pub(super) enum Slowed {
    /// What is done, for the report.
    Held(Tracer, String),
    Not(Option<Untraced>),
}

impl Slowed {
    pub(super) fn begin(plan: &SlowPlan) -> Self {
        let process = match &plan.process {
            ProcessId::Is(process) => Ok(*process),
            ProcessId::In(file) => number_in(file),
        };
        let held = process.and_then(|process| {
            let tracer = Tracer::attach(process, Inject::Delay(&plan.calls.join(","), plan.by))?;
            let by = plan.by.as_secs_f64() * 1_000.0;
            Ok(Self::Held(tracer, format!("system calls of process {process} began {by} ms later")))
        });
        held.unwrap_or_else(|why| Self::Not(Some(why)))
    }

    /// Lets the process go: what was done to it, or why it was not.
    pub(super) fn end(&mut self) -> Result<String, Untraced> {
        let ended = || Untraced {
            why: "the process that was made slow has ended, or strace has".to_owned(),
            change: "name the process that serves, and not one that starts it",
        };
        match std::mem::replace(self, Self::Not(None)) {
            Self::Held(mut tracer, what) => tracer.holds().then_some(what).ok_or_else(ended),
            Self::Not(why) => Err(why.unwrap_or_else(ended)),
        }
    }
}

fn number_in(file: &Path) -> Result<u32, Untraced> {
    let wrong =
        |why: String| Untraced { why, change: "let the API write its process id there, or give --slow-pid" };
    let text = std::fs::read_to_string(file)
        .map_err(|error| wrong(format!("{} cannot be read: {error}", file.display())))?;
    text.trim().parse().map_err(|_| wrong(format!("{} holds no process id", file.display())))
}
