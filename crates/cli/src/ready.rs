//! When to start, and when to stop: the ready file, and the signals.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

/// A file that appears, whole, once everything listens, and goes when the process ends in order. A script waits for
/// it instead of polling ports, and reads from it which ports they are.
#[derive(Debug)]
pub(crate) struct ReadyFile(PathBuf);

impl ReadyFile {
    pub(crate) fn write(path: &Path, addresses: &Value) -> Result<Self, Failure> {
        let fault = |error: std::io::Error| {
            Failure::runtime(format!("cannot write the ready file {}: {error}", path.display()))
        };
        // Renamed into place: a reader never sees half of it.
        let mut draft = path.as_os_str().to_owned();
        draft.push(".draft");
        fs::write(&draft, format!("{addresses}\n")).map_err(fault)?;
        fs::rename(&draft, path).map_err(fault)?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Cancels the token at the first SIGTERM or SIGINT; at the second, the process ends where it stands.
pub(crate) fn on_signals() -> Result<CancellationToken, Failure> {
    let listen = |kind| {
        signal(kind).map_err(|error| Failure::runtime(format!("signals cannot be listened to: {error}")))
    };
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        either(&mut terminate, &mut interrupt).await;
        tracing::info!("stopping: requests in progress are finished first; a second signal ends at once");
        stopping.cancel();
        either(&mut terminate, &mut interrupt).await;
        tracing::warn!("stopped by a second signal; leases decide about what was running");
        std::process::exit(1);
    });
    Ok(stop)
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
