//! A kill at each system call that can leave something behind, one after the other, by strace.
//!
//! No call to anybody is needed for it, and no instrumentation: the n-th write, sync or send after the request's start kills
//! the process, for n from 1 until the request comes through.

use std::time::Instant;

use super::story::Story;
use super::{AGAIN, Crash, FIRST, GONE, Gate, Recovery, judge};
use crate::concurrency::NotRun;
use crate::report::Part;
use crate::trace::{Inject, Tracer, Untraced};

const CALLS: &str = "write,pwrite64,writev,pwritev,fsync,fdatasync,sendto,sendmsg";

/// For people.
pub(super) const ABOUT: (&str, &str) = ("K4", "killed at each system call");

/// The sweep as one part.
pub(super) fn part(gate: &mut Gate<'_>, ends: Instant) -> Result<Part, NotRun> {
    let mut part = Part::new(ABOUT.0, ABOUT.1);
    if gate.plan.sweep == 0 {
        part.said.push("the plan says [crash] sweep = 0".to_owned());
        return Ok(part);
    }
    let (mut landed, mut came_through) = (0, false);
    for point in 1..=gate.plan.sweep {
        if Instant::now() >= ends {
            break;
        }
        let values = gate.ids.fresh();
        let mut api = gate.start()?;
        let Ok(baseline) = gate.observers.baseline() else { break };
        let mut tracer = match Tracer::attach(api.id(), Inject::KillAt(CALLS, point)) {
            Ok(tracer) => tracer,
            Err(Untraced { why, change }) => {
                part.unclear(why, &format!("{change}; or say [crash] sweep = 0"));
                return Ok(part);
            }
        };
        gate.story = Story::default();
        let first = gate.send(&values, FIRST);
        let killed = first.is_none() && api.ended_within(GONE).is_some();
        tracer.end();
        drop(api);
        if !killed {
            came_through = true;
            break;
        }
        landed += 1;
        let again = gate.start()?;
        let (end, _) = gate.end(&values, Recovery::Retry, AGAIN, 0);
        let (seen, missed) = match gate.seen(&values, &baseline) {
            Ok(seen) => (seen, None),
            Err(missed) => (Vec::new(), Some(missed)),
        };
        let crash = Crash {
            missed,
            first: None,
            seen_first: Vec::new(),
            second: None,
            end,
            differs: None,
            calls: gate.calls(&values),
            seen,
            notes: Vec::new(),
        };
        drop(again);
        let shape = format!("after a kill at system call {point}");
        part.add(point, judge(&crash), Some(&|| gate.example(point, &shape, &crash, ABOUT)));
    }
    if landed == 0 {
        part.unclear(
            "no system call of the request was met".to_owned(),
            "is [crash] command the API itself, and not a script that starts it?",
        );
    } else if !came_through && part.verdict == Some(crate::report::Verdict::Pass) {
        part.said.push(format!(
            "{landed} points, and the request had more: raise [crash] sweep to meet all of them"
        ));
    }
    Ok(part)
}
