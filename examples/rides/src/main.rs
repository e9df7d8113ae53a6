//! Serves the ride API, with its completer and its drainer; or plays the provider.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use clap::{Parser, Subcommand};
use example_rides::{CONTRACT, Setup, app, provider::Fake};
use retrysafe::{SqliteOptions, SqliteStore, fingerprint_keys_in};
use tokio_util::sync::CancellationToken;

/// Rides that are charged once, whatever dies in between
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Serve the API on a SQLite file
    Serve {
        /// Where to listen
        #[arg(long, default_value = "127.0.0.1:3000")]
        listen: SocketAddr,
        /// Where the provider is
        #[arg(long, default_value = "127.0.0.1:3001")]
        provider: SocketAddr,
        /// The file
        #[arg(long, default_value = "rides.db")]
        file: PathBuf,
    },
    /// Play the provider
    Provider {
        /// Where to listen
        #[arg(long, default_value = "127.0.0.1:3001")]
        listen: SocketAddr,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().what {
        What::Provider { listen } => {
            let listener = tokio::net::TcpListener::bind(listen).await?;
            println!("the provider takes charges at http://{listen}/charges");
            axum::serve(listener, Fake::new().router()).await?;
        }
        What::Serve { listen, provider, file } => {
            let fingerprint_keys = fingerprint_keys_in(file.with_extension("db.key"), &file)?;
            let store = Arc::new(SqliteStore::open(SqliteOptions::new(&file))?);
            let setup = Setup {
                contract: CONTRACT.to_owned(),
                provider,
                fingerprint_keys,
                terms: Default::default(),
                patience: Default::default(),
                observe: Arc::new(|_| {}),
            };
            let (router, recovery) = app(store, setup).await?;
            tokio::spawn(async move { recovery.run(CancellationToken::new()).await });
            let listener = tokio::net::TcpListener::bind(listen).await?;
            println!("rides are taken at http://{listen}/rides");
            axum::serve(listener, router).await?;
        }
    }
    Ok(())
}
