//! Copying the write-ahead log into the database, beside the commits.
//!
//! A checkpoint inside a commit makes its jobs wait for two more syncs and for the copying; so a thread with a
//! connection of its own does it, which blocks nobody. But the log starts over only in a moment when everything is copied,
//! and a busy writer leaves no such moment: at [`RESTART_FACTOR`] times the length the writer makes one, between two
//! batches.

use std::{
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    thread::JoinHandle,
    time::Duration,
};

use rusqlite::Connection;

/// How many times longer than wished the log may get before the writer waits until it can start over.
pub(super) const RESTART_FACTOR: u32 = 4;

/// How long the writer waits for readers that still look at the log. Reads are short; else the next batch tries again.
const RESTART_PATIENCE: Duration = Duration::from_millis(100);

pub(super) struct Checkpointer {
    wake: SyncSender<()>,
    thread: JoinHandle<()>,
    busy_timeout: Duration,
}

impl Checkpointer {
    pub(super) fn start(connection: Connection, busy_timeout: Duration) -> std::io::Result<Self> {
        // One wish to checkpoint is as good as many.
        let (wake, wishes) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("retrysafe-checkpoint".into())
            .spawn(move || copy_when_asked(&connection, &wishes))?;
        Ok(Self { wake, thread, busy_timeout })
    }

    /// Asks for a checkpoint, if none was asked for yet.
    pub(super) fn wake(&self) {
        if let Err(TrySendError::Disconnected(())) = self.wake.try_send(()) {
            tracing::error!(
                "the checkpoint thread is gone; the write-ahead log is shortened by the writer alone"
            );
        }
    }

    /// Copies the rest and lets the log start over, on the writer's own connection.
    pub(super) fn restart(&self, writer: &Connection) {
        let _ = writer.busy_timeout(RESTART_PATIENCE);
        if let Err(error) = checkpoint(writer, "PRAGMA wal_checkpoint(RESTART)") {
            tracing::warn!(%error, "the write-ahead log could not be shortened; the next batch tries again");
        }
        let _ = writer.busy_timeout(self.busy_timeout);
    }

    pub(super) fn stop(self) {
        drop(self.wake);
        // A panic there has been told already, and leaves only a longer log.
        let _ = self.thread.join();
    }
}

fn copy_when_asked(connection: &Connection, wishes: &Receiver<()>) {
    while wishes.recv().is_ok() {
        if let Err(error) = checkpoint(connection, "PRAGMA wal_checkpoint(PASSIVE)") {
            tracing::warn!(%error, "the write-ahead log could not be copied; the next batch tries again");
        }
    }
}

fn checkpoint(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.query_row(sql, [], |_| Ok(()))
}
