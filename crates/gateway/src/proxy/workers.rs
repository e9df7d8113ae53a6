//! Threads that run connections, each with a runtime of its own.
//!
//! A proxied request is a few microseconds of work between two sockets. On a runtime whose threads steal from each
//! other, half of it wakes up on the other thread, and waking costs more than the work. Here a client's connection and the
//! upstream connections it uses live on one thread from end to end; new clients go to the threads in turn.

use std::io;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

/// Running threads. They end, and wait for nothing that still runs on them, when this is dropped.
#[derive(Debug)]
pub(crate) struct Workers {
    runtimes: Vec<Handle>,
    threads: Vec<JoinHandle<()>>,
    stop: CancellationToken,
}

impl Workers {
    /// Starts `count` of them.
    ///
    /// # Errors
    /// The system gives no more threads.
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        let mut workers = Self::none();
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            workers.runtimes.push(runtime.handle().clone());
            let stop = workers.stop.clone();
            let thread = thread::Builder::new()
                .name(format!("retrysafe-{number}"))
                .spawn(move || runtime.block_on(stop.cancelled()))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// No threads.
    pub(crate) fn none() -> Self {
        Self { runtimes: Vec::new(), threads: Vec::new(), stop: CancellationToken::new() }
    }

    /// Where to spawn, one for each thread.
    pub(crate) fn runtimes(&self) -> &[Handle] {
        &self.runtimes
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            // A panic was told on the thread; there is nothing to add.
            let _ = thread.join();
        }
    }
}
