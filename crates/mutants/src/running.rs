//! A server at work: in a thread of its own, until the value is dropped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::behaviour::Mutant;
use crate::books;
use crate::service::{self, Ledger};

/// Where and how.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// The first address; further instances take the next free ones. `None`: any.
    pub listen: Option<SocketAddr>,
    /// Whose call is the effect: `http://127.0.0.1:9099`.
    pub provider: Option<SocketAddr>,
    /// Where claims outlive the process, for the server that keeps them.
    pub state: Option<std::path::PathBuf>,
    /// The database of those that keep their orders in one: `sqlite:FILE` or `postgres://...`.
    pub books: Option<String>,
    /// A log with a line for each effect.
    pub log: Option<std::path::PathBuf>,
    /// Between a look and an insert, of those that look first. `None`: a millisecond.
    pub gap: Option<Duration>,
}

/// A running server.
pub struct Running {
    addresses: Vec<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Starts all instances of a server.
    ///
    /// # Errors
    /// An address cannot be had.
    pub fn start(mutant: &Mutant, terms: &Terms) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let behaviour = mutant.behaviour;
        let ledger = Arc::new(Ledger::new(terms.log.as_deref())?);
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for instance in 0..behaviour.instances {
            let wanted = if instance == 0 { terms.listen.unwrap_or(any) } else { any };
            let listener =
                runtime.block_on(TcpListener::bind(wanted)).with_context(|| format!("bind {wanted}"))?;
            addresses.push(listener.local_addr()?);
            listeners.push(listener);
        }
        let routers = listeners
            .iter()
            .map(|_| match behaviour.booked {
                Some(booking) => runtime.block_on(books::router(booking, terms)),
                None => service::router(behaviour, ledger.clone(), terms),
            })
            .collect::<Result<Vec<_>>>()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            for (listener, router) in listeners.into_iter().zip(routers) {
                runtime.spawn(async move { axum::serve(listener, router).await });
            }
            // An error means that the other end is gone, which means the same.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        });
        Ok(Self { addresses, stop: Some(stop), thread: Some(thread) })
    }

    /// One for each instance.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Runs until the process ends.
    pub fn forever(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
