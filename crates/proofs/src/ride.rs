//! The service of `examples/rides` as a process that ends itself, or stops itself, at a chosen point of its work.

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use clap::{Args, ValueEnum};
use example_rides::{Books, CONTRACT, Setup, app};
use retrysafe::recovery::{Patience, Point, Recovery, Terms};
use retrysafe_store::mariadb::{MariaOptions, MariaStore};
use retrysafe_store::postgres::{PostgresOptions, PostgresStore, StoreAddress, migrate};
use retrysafe_store::sqlite::{SqliteOptions, SqliteStore};
use rustix::process::{Signal, getpid, kill_process};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::service::fingerprint_keys;
use crate::{Socket, asked_to_stop};

/// How long the turn of a writer may take to end after its commit was answered.
const TURN_ENDS: Duration = Duration::from_millis(50);

#[derive(Args)]
pub(crate) struct RideArgs {
    #[command(flatten)]
    pub(crate) socket: Socket,
    #[command(flatten)]
    pub(crate) terms: RideTerms,
}

#[derive(Args)]
pub(crate) struct RideTerms {
    /// `sqlite:FILE`, `postgres://...` or `mysql://...`
    #[arg(long)]
    store: String,
    #[arg(long)]
    provider: SocketAddr,
    #[arg(long, default_value_t = 1000)]
    lease_ms: u64,
    /// Where every point is written down, a line each
    #[arg(long)]
    trace: PathBuf,
    /// Meets its end at this point, counted from 1; 0: never
    #[arg(long, default_value_t = 0)]
    end_at: usize,
    #[arg(long, value_enum, default_value = "kill")]
    end_by: EndBy,
    /// Complete what others abandoned
    #[arg(long)]
    completer: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum EndBy {
    Kill,
    Stop,
}

type Observer = dyn Fn(Point<'_>) + Send + Sync;

impl RideTerms {
    /// Writes a point down and, if it is the chosen one, ends here. Nothing of this process runs after a `kill`.
    fn observe(&self) -> Result<Arc<Observer>> {
        let file = File::options().create(true).append(true).open(&self.trace)?;
        let (file, count) = (Mutex::new(file), AtomicUsize::new(0));
        let (end_at, end_by) = (self.end_at, self.end_by);
        Ok(Arc::new(move |point| {
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            if let Ok(mut file) = file.lock() {
                let _ = writeln!(file, "{point}");
            }
            if number == end_at {
                let signal = match end_by {
                    EndBy::Kill => Signal::KILL,
                    EndBy::Stop => {
                        // The writer thread of SQLite may be about to give its turn back; stopped before that, it would
                        // block the file (protocol 29). A renewal of the lease can still be under way: the proof looks.
                        std::thread::sleep(TURN_ENDS);
                        Signal::STOP
                    }
                };
                let _ = kill_process(getpid(), signal);
            }
        }))
    }

    fn setup(&self) -> Result<Setup> {
        let contract = CONTRACT.replace("lease = \"2s\"", &format!("lease = \"{}ms\"", self.lease_ms));
        if contract == CONTRACT && self.lease_ms != 2000 {
            bail!("the contract of the example has another lease than this proof expects");
        }
        let terms = Terms {
            pause_first: Duration::from_millis(20),
            pause_longest: Duration::from_millis(200),
            patience: Duration::from_millis(self.lease_ms),
            ..Terms::default()
        };
        let window = if self.completer { Patience::default().window } else { 0 };
        // An effect whose drainer was killed is somebody else's when its lease ends, as a claim is.
        let effect_lease = Duration::from_millis(self.lease_ms);
        let patience =
            Patience { window, effect_lease, pause: Duration::from_millis(20), ..Patience::default() };
        Ok(Setup {
            contract,
            provider: self.provider,
            fingerprint_keys: fingerprint_keys()?,
            terms,
            patience,
            observe: self.observe()?,
        })
    }
}

type Served = (Router, CancellationToken);

/// Opens the database and starts completing and draining.
///
/// # Errors
/// The database is not there.
pub(crate) async fn open(args: RideTerms) -> Result<Served> {
    let setup = args.setup()?;
    if let Some(file) = args.store.strip_prefix("sqlite:") {
        let store = Arc::new(SqliteStore::open(SqliteOptions::new(file))?);
        let (router, recovery) = app(store, setup).await?;
        return Ok((router, start(recovery)));
    }
    if MariaOptions::looks_like(&args.store) {
        let options = MariaOptions::new(&args.store)?;
        MariaStore::migrate(&options).await?;
        let (router, recovery) = app(Arc::new(MariaStore::open(options).await?), setup).await?;
        return Ok((router, start(recovery)));
    }
    let address: StoreAddress = args.store.parse()?;
    let driver = address.driver()?;
    let options = PostgresOptions::default();
    migrate(&driver, &options.schema).await?;
    let store = Arc::new(PostgresStore::open(driver, options).await?);
    let (router, recovery) = app(store, setup).await?;
    Ok((router, start(recovery)))
}

fn start<D: Books>(recovery: Recovery<D>) -> CancellationToken {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    tokio::spawn(async move { recovery.run(stopped).await });
    stop
}

/// Serves until it is asked to stop.
pub(crate) async fn serve(listener: TcpListener, (router, stop): Served) -> Result<()> {
    let _ends = stop.drop_guard();
    axum::serve(listener, router).with_graceful_shutdown(asked_to_stop()).await.context("serve")
}
