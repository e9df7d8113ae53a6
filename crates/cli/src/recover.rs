//! `retrysafe recover`: reaper and completer as a process of their own.
//!
//! The reaper works on the store alone. The completer cannot: a plan is a function of the service. So it finds what is
//! abandoned and asks the service to go on with it, at the door that [`Recovery::door`] opens there ([`ask`]); who asks decides
//! nothing. What a round did is counted ([`meters`]) and told ([`Round`]).
//!
//! [`Recovery::door`]: retrysafe_server::recovery::Recovery::door

mod ask;
mod meters;
mod round;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use retrysafe_core::contract::read_duration;
use retrysafe_store::Store;
use tokio_util::sync::CancellationToken;

use crate::failure::{Failure, listen};
use crate::logs::LogArgs;
use crate::place::Place;
use crate::ready::on_signals;
use crate::serve::{self, admin};
use ask::{Service, Url};
use round::{Round, Worker};

/// The longest pause after rounds that the store or the service failed.
const PAUSE_LONGEST: Duration = Duration::from_secs(60);

/// Reap what is past its threshold, and have abandoned requests gone on with, as a process of its own
///
/// The reaper deletes completed records past their reap threshold, in batches, and marks abandoned requests uncertain whose
/// effect was outside. It never deletes what is in flight or uncertain. With --service it is a completer as well: abandoned
/// requests of several steps are run by the service itself, which opens a door for it (`Recovery::door`), and staged
/// effects are sent. What cannot be completed stays uncertain, for people: `retrysafe keys list`.
///
/// A service that calls `Recovery::run` and `Retrysafe::upkeep`, and every gateway, does all this by itself; several of each do no harm.
#[derive(Args, Debug)]
pub(crate) struct RecoverArgs {
    /// The store: a SQLite file, postgres://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE (MariaDB)
    #[arg(long, env = "RETRYSAFE_STORE", default_value = "retrysafe.db", value_name = "FILE|URL")]
    store: Place,
    /// The door of the service: http(s)://HOST:PORT/PATH, as it mounts `Recovery::door`. None: reap only
    #[arg(long, env = "RETRYSAFE_SERVICE", value_name = "URL", requires = "secret_file")]
    service: Option<Url>,
    /// The file with the secret of that door
    #[arg(long, env = "RETRYSAFE_SECRET_FILE", value_name = "FILE", requires = "service")]
    secret_file: Option<PathBuf>,
    /// The authorities, in PEM, that may have signed the certificate of an https door: these and no others. None: those that
    /// browsers trust
    #[arg(long, env = "RETRYSAFE_SERVICE_CA", value_name = "FILE", requires = "service")]
    ca: Option<PathBuf>,
    /// End when nothing moves any more, and print what was done
    #[arg(long)]
    once: bool,
    /// With --once: print one JSON object
    #[arg(long, requires = "once")]
    json: bool,
    /// How many records are changed in one batch
    #[arg(long, default_value_t = 500, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
    /// How many requests the service is asked to go on with at once
    #[arg(long, default_value_t = 8, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    parallel: u32,
    /// The pause between two rounds that found nothing
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = read_duration)]
    pause: Duration,
    /// Serve /metrics, /livez and /readyz here, on a loopback address
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    #[command(flatten)]
    logs: LogArgs,
}

pub(crate) fn run(args: &RecoverArgs) -> Result<(), Failure> {
    args.logs.start()?;
    if let Some(admin) = args.admin.filter(|admin| !admin.ip().is_loopback()) {
        return Err(Failure::usage(format!(
            "--admin {admin} can be reached by other machines; use a loopback address"
        )));
    }
    let service = service(args)?;
    let metrics = args.admin.map(|_| admin::Metrics::install()).transpose()?;
    serve::runtime()?.block_on(async {
        let stop = on_signals()?;
        let store = args.store.open().await?;
        let serving = match (args.admin, metrics) {
            (Some(address), Some(metrics)) => {
                let listener = listen(address, "--admin").await?;
                Some(tokio::spawn(admin::serve(listener, metrics, Arc::clone(&store), stop.clone())))
            }
            _ => None,
        };
        let done = rounds(args, store, service, &stop).await;
        stop.cancel();
        if let Some(serving) = serving {
            let _ = serving.await;
        }
        done
    })
}

fn service(args: &RecoverArgs) -> Result<Option<Service>, Failure> {
    let (Some(url), Some(file)) = (&args.service, &args.secret_file) else { return Ok(None) };
    let secret = std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("the secret {} cannot be read: {error}", file.display())))?;
    Service::new(url.clone(), secret.trim(), args.ca.as_deref()).map(Some)
}

async fn rounds(
    args: &RecoverArgs,
    store: Arc<dyn Store>,
    service: Option<Service>,
    stop: &CancellationToken,
) -> Result<(), Failure> {
    let mut worker = Worker::new(store, service, args.batch as usize, args.parallel as usize);
    let (mut all, mut pause) = (Round::default(), args.pause);
    loop {
        let round = worker.round(stop).await;
        let failed = round.as_ref().map_or(true, |round| round.unreachable > 0);
        match round {
            Ok(round) => {
                all.add(&round);
                if args.once && (!round.moved() || stop.is_cancelled()) {
                    return tell(args, &all, &worker).await;
                }
                pause = if round.moved() { Duration::ZERO } else { args.pause };
            }
            Err(error) if args.once => return Err(Failure::runtime(format!("{}: {error}", args.store))),
            Err(error) => tracing::warn!(%error, "a round failed and is tried again"),
        }
        if failed {
            pause = (pause.max(args.pause) * 2).min(PAUSE_LONGEST);
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// What was done, and what is left for people.
async fn tell(args: &RecoverArgs, all: &Round, worker: &Worker) -> Result<(), Failure> {
    let left =
        worker.needs_people().await.map_err(|error| Failure::runtime(format!("{}: {error}", args.store)))?;
    match args.json {
        true => anstream::println!("{}", all.as_json(left)),
        false => anstream::print!("{}", all.as_text(left)),
    }
    match all.unreachable {
        0 => Ok(()),
        times => Err(Failure::runtime(format!(
            "the service could not be asked {times} times; what it is to go on with is left"
        ))),
    }
}
