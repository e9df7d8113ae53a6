//! `retrysafe shop`: the sample API alone, for demos and measurements with a gateway of one's own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use retrysafe_shop::{Shop, ShopOptions};
use serde_json::json;

use crate::failure::{Failure, bound, listen};
use crate::logs::LogArgs;
use crate::ready::{ReadyFile, on_signals};

/// Run the sample shop alone: an API that makes two orders of two POSTs
///
/// POST /orders and /payments {amount}, POST /v1/charges as Stripe has it, GET /ledger to see what really happened.
/// Any bearer token is an account.
#[derive(Args, Debug)]
pub(crate) struct ShopArgs {
    /// Where it listens
    #[arg(long, default_value = "127.0.0.1:3000", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Its file of effects
    #[arg(long, default_value = "retrysafe-shop.db", value_name = "FILE")]
    effects: PathBuf,
    /// Obey X-Shop-Fault headers and POST /faults: cut, commit-then-cut, delay=MS, commit-then-delay=MS, status=NNN,
    /// commit-then-status=NNN, once
    #[arg(long)]
    faults: bool,
    /// Milliseconds that a write takes before its effect
    #[arg(long, default_value_t = 0, value_name = "MS")]
    handler_ms: u64,
    /// De-duplicate by Idempotency-Key in the effect's own transaction
    #[arg(long)]
    deduplicate: bool,
    /// Write the bound address to this file, as JSON, once it listens
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    #[command(flatten)]
    logs: LogArgs,
}

/// Runs until a signal.
pub(crate) fn run(args: &ShopArgs) -> Result<(), Failure> {
    args.logs.start()?;
    crate::serve::runtime()?.block_on(async {
        let stop = on_signals()?;
        let listener = listen(args.listen, "--listen").await?;
        let address = bound(&listener)?;
        let shop = open(&args.effects)?;
        let options = ShopOptions {
            faults: args.faults,
            handler: Duration::from_millis(args.handler_ms),
            deduplicate: args.deduplicate,
        };
        let addresses = json!({ "shop": address.to_string(), "pid": std::process::id() });
        let _ready = args.ready_file.as_ref().map(|path| ReadyFile::write(path, &addresses)).transpose()?;
        anstream::println!("sample shop on http://{address}, effects in {}", args.effects.display());
        retrysafe_shop::serve(listener, shop, options, stop.cancelled_owned()).await.map_err(Failure::runtime)
    })
}

/// Opens a file of effects.
pub(crate) fn open(path: &std::path::Path) -> Result<Shop, Failure> {
    Shop::open(path).map_err(|error| Failure::runtime(format!("{}: {error}", path.display())))
}
