//! Servers as processes: started until they say they are ready, accounted for, ended for certain.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long a server may take to be ready: an unoptimised build on a busy machine is slow.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// How long one may take to end after SIGTERM.
const STOP_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// A running server; it ends with this value.
pub(crate) struct Server {
    child: Child,
    /// What it wrote when it was ready.
    ready: Value,
    log: PathBuf,
    name: String,
}

impl Server {
    /// Starts a command that takes `--ready-file F` and writes its bound addresses there as JSON.
    ///
    /// Its output goes to a log in `scratch`, quoted in the error if it does not come up.
    ///
    /// # Errors
    /// It cannot be started, ends early, or is not ready in time.
    pub(crate) fn start(name: &str, mut command: Command, scratch: &Path) -> Result<Self> {
        let ready_file = scratch.join(format!("{name}.ready"));
        let log = scratch.join(format!("{name}.log"));
        // A leftover of an earlier life would answer for this one.
        if ready_file.exists() {
            std::fs::remove_file(&ready_file)?;
        }
        let output = File::options().create(true).append(true).open(&log)?;
        command.arg("--ready-file").arg(&ready_file);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // The end of the log is quoted in errors; a backtrace would push the reason out of it.
        command.env_remove("RUST_BACKTRACE");
        let child = command.spawn().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let mut server = Self { child, ready: Value::Null, log, name: name.to_owned() };
        let start = Instant::now();
        loop {
            if let Some(ready) =
                std::fs::read(&ready_file).ok().and_then(|text| serde_json::from_slice(&text).ok())
            {
                server.ready = ready;
                return Ok(server);
            }
            if let Some(status) = server.child.try_wait()? {
                bail!("{name} ended at once with {status}:\n{}", server.log_tail());
            }
            if start.elapsed() > READY_LIMIT {
                bail!("{name} is not ready after {} s:\n{}", READY_LIMIT.as_secs(), server.log_tail());
            }
            std::thread::sleep(POLL);
        }
    }

    /// An address it wrote, by its name.
    ///
    /// # Errors
    /// It wrote none of that name.
    pub(crate) fn address(&self, name: &str) -> Result<SocketAddr> {
        let text = self.ready.get(name).and_then(Value::as_str);
        text.with_context(|| format!("{} wrote no address {name}: {}", self.name, self.ready))?
            .trim_start_matches("http://")
            .trim_end_matches('/')
            .parse()
            .with_context(|| format!("{}: {name}", self.name))
    }

    /// The server's own process: what was started may be a program around it.
    pub(crate) fn pid(&self) -> u32 {
        let own = self.ready.get("pid").and_then(Value::as_u64).and_then(|pid| u32::try_from(pid).ok());
        own.unwrap_or_else(|| self.child.id())
    }

    /// The end of what it printed.
    pub(crate) fn log_tail(&self) -> String {
        const LINES: usize = 12;
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }

    /// SIGKILL: no chance to finish anything.
    ///
    /// # Errors
    /// It had ended before: then nothing was shown.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("kill {}", self.name))?;
        let status = self.child.wait()?;
        self.was_killed(status)
    }

    /// Waits until a SIGKILL that somebody else sends has ended it.
    ///
    /// # Errors
    /// It goes on, or ends in another way.
    pub(crate) fn killed_within(mut self, limit: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return self.was_killed(status);
            }
            if start.elapsed() > limit {
                bail!("{} was to be killed, and goes on:\n{}", self.name, self.log_tail());
            }
            std::thread::sleep(POLL);
        }
    }

    fn was_killed(&self, status: ExitStatus) -> Result<()> {
        if status.signal() != Some(Signal::KILL.as_raw()) {
            bail!("{} was not killed, it ended with {status}:\n{}", self.name, self.log_tail());
        }
        Ok(())
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// The system does not say.
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// SIGTERM, and the wait for its end.
    ///
    /// # Errors
    /// It does not end in time; it is killed then.
    pub(crate) fn stop(mut self) -> Result<()> {
        if let Some(pid) = Pid::from_raw(i32::try_from(self.pid())?) {
            // It may have ended already; then there is nothing to signal.
            let _ = kill_process(pid, Signal::TERM);
        }
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > STOP_LIMIT {
                bail!("{} does not end within {} s of SIGTERM", self.name, STOP_LIMIT.as_secs());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let alive = matches!(self.child.try_wait(), Ok(None));
        if alive && self.pid() != self.child.id() {
            // A program around the server may leave it behind when killed.
            if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This binary as another server (`origin`, `service`).
///
/// # Errors
/// The system does not say where this binary is.
pub(crate) fn own(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("the path of this binary")?);
    command.args(arguments);
    Ok(command)
}

/// Writes a ready file in one step: a reader sees all of it or nothing.
///
/// # Errors
/// The folder cannot be written.
pub(crate) fn write_ready(path: &Path, ready: &Value) -> Result<()> {
    let half = path.with_extension("half");
    std::fs::write(&half, ready.to_string())?;
    std::fs::rename(&half, path).with_context(|| format!("ready file {}", path.display()))
}
