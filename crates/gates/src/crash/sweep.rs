//! A kill at each system call that can leave something behind, one after the other, by strace.
//!
//! No call to anybody is needed for it, and no instrumentation: the n-th write, sync or send after the request's start kills
//! the process, for n from 1 until the request comes through.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::process::Api;
use super::{Crash, End, GONE, Gate, Recovery, judge};
use crate::concurrency::NotRun;
use crate::report::Part;

const CALLS: &str = "write,pwrite64,writev,pwritev,fsync,fdatasync,sendto,sendmsg";
/// How long strace may take to hold the process.
const ATTACH: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);

/// For people.
pub(super) const ABOUT: (&str, &str) = ("K4", "killed at each system call");

/// The sweep as one part.
pub(super) fn part(gate: &mut Gate<'_>, ends: Instant) -> Result<Part, NotRun> {
    let mut part = Part::new(ABOUT.0, ABOUT.1);
    if gate.plan.sweep == 0 {
        part.said.push("the plan says [crash] sweep = 0".to_owned());
        return Ok(part);
    }
    if !installed() {
        part.unclear(
            "strace is not installed".to_owned(),
            "install it (Debian: apt-get install strace), or say [crash] sweep = 0",
        );
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
        let mut tracer = match Tracer::attach(&api, point) {
            Ok(tracer) => tracer,
            Err(why) => {
                part.unclear(why, "allow tracing (ptrace), or say [crash] sweep = 0");
                return Ok(part);
            }
        };
        let first = gate.send(&values);
        let killed = first.is_none() && api.ended_within(GONE).is_some();
        tracer.end();
        drop(api);
        if !killed {
            came_through = true;
            break;
        }
        landed += 1;
        let again = gate.start()?;
        let end = gate.end(&values, Recovery::Retry);
        let crash = Crash {
            landed: true,
            first: None,
            end,
            calls: gate.calls(&values),
            seen: gate.seen(&values, &baseline),
        };
        drop(again);
        debug_assert!(end != End::NotAsked);
        part.add(point, judge(&crash), None);
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

fn installed() -> bool {
    let mut command = Command::new("strace");
    command.arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// strace on the API's process and its threads.
struct Tracer(Child);

impl Tracer {
    fn attach(api: &Api, point: u32) -> Result<Self, String> {
        let mut command = Command::new("strace");
        command.args([
            "-f",
            "-e",
            &format!("trace={CALLS}"),
            "-e",
            &format!("inject={CALLS}:signal=KILL:when={point}"),
        ]);
        command.args(["-o", "/dev/null", "-p", &api.id().to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut tracer = Self(child.map_err(|error| format!("strace cannot be started: {error}"))?);
        // It says on its error output when it holds the process.
        let Some(mut said) = tracer.0.stderr.take() else { return Err("strace has no output".to_owned()) };
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (mut text, mut chunk) = (String::new(), [0_u8; 512]);
            while let Ok(count) = said.read(&mut chunk) {
                if count == 0 {
                    break;
                }
                text += &String::from_utf8_lossy(chunk.get(..count).unwrap_or_default());
                // Whoever waited may have given up.
                let _ = tell.send(text.clone());
            }
        });
        let start = Instant::now();
        let mut last = String::new();
        while start.elapsed() < ATTACH {
            if let Ok(text) = told.recv_timeout(LOOK) {
                last = text;
            }
            if last.contains("attached") && !last.contains("not permitted") {
                return Ok(tracer);
            }
            if last.contains("not permitted") {
                break;
            }
        }
        Err(format!("strace could not hold the process: {}", last.trim()))
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.end();
    }
}
