//! strace on a process of the user's own: it can kill it at a system call, or make system calls slow.
//!
//! No instrumentation, and any language. What it needs is said where it is not there: strace, and the right to trace.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long strace may take to hold the process, or to let it go.
const ATTACH: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(5);

/// What is done at system calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inject<'a> {
    /// The n-th of these calls kills the process.
    KillAt(&'a str, u32),
    /// Each of these calls begins so much later.
    Delay(&'a str, Duration),
}

/// Why a process is not traced, and what to change.
pub(crate) struct Untraced {
    pub(crate) why: String,
    pub(crate) change: &'static str,
}

/// strace on a process and its threads; it lets them go with this value.
pub(crate) struct Tracer(Child);

impl Tracer {
    pub(crate) fn attach(pid: u32, inject: Inject<'_>) -> Result<Self, Untraced> {
        if !installed() {
            return Err(Untraced {
                why: "strace is not installed".to_owned(),
                change: "install it (Debian: apt-get install strace)",
            });
        }
        let refused = |why: String| Untraced {
            why,
            change: "run as the API's user, and allow tracing (ptrace: CAP_SYS_PTRACE, kernel.yama.ptrace_scope)",
        };
        let (calls, what) = match inject {
            Inject::KillAt(calls, point) => (calls, format!("signal=KILL:when={point}")),
            Inject::Delay(calls, by) => (calls, format!("delay_enter={}", by.as_micros())),
        };
        let mut command = Command::new("strace");
        command.args(["-f", "-e", &format!("trace={calls}"), "-e", &format!("inject={calls}:{what}")]);
        command.args(["-o", "/dev/null", "-p", &pid.to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut tracer = Self(child.map_err(|error| refused(format!("strace cannot be started: {error}")))?);
        // It says on its error output when it holds the process.
        let Some(mut said) = tracer.0.stderr.take() else {
            return Err(refused("strace has no output".to_owned()));
        };
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut chunk = [0_u8; 512];
            while let Ok(count @ 1..) = said.read(&mut chunk) {
                let piece = String::from_utf8_lossy(chunk.get(..count).unwrap_or_default()).into_owned();
                // Whoever waited may have what they waited for; its output goes on being read all the same.
                let _ = tell.send(piece);
            }
        });
        let start = Instant::now();
        let mut last = String::new();
        while start.elapsed() < ATTACH {
            match told.recv_timeout(LOOK) {
                Ok(piece) => last += &piece,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            }
            if last.contains("not permitted") {
                break;
            }
            if last.contains("attached") {
                return Ok(tracer);
            }
        }
        Err(refused(format!("strace could not hold the process: {}", last.trim())))
    }

    /// Whether it still holds the process.
    pub(crate) fn holds(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Lets the process go.
    pub(crate) fn end(&mut self) {
        #[cfg(unix)]
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw)
            && self.holds()
        {
            // Asked, it leaves no call half changed.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let start = Instant::now();
            while self.holds() && start.elapsed() < ATTACH {
                std::thread::sleep(LOOK);
            }
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.end();
    }
}

fn installed() -> bool {
    let mut command = Command::new("strace");
    command.arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
