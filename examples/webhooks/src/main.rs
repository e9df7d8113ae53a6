//! Receives webhooks at 127.0.0.1:3001/webhooks, with its file in the present folder. `before` as an argument starts the
//! receiver with the race.

use std::{path::Path, sync::Arc, time::Duration};

use example_webhooks::{LookUp, after, before, database};
use retrysafe::fingerprint_keys_in;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let keys = fingerprint_keys_in("invoices.db.key", "invoices.db")?;
    let store = database(Path::new(".")).await?;
    let look_up: LookUp = Arc::new(|| Box::pin(tokio::time::sleep(Duration::from_millis(200))));
    let router = match std::env::args().nth(1).as_deref() {
        Some("before") => before::app(store, look_up),
        _ => after::app(store, keys, look_up)?,
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3001").await?;
    println!("webhooks are received at http://127.0.0.1:3001/webhooks");
    axum::serve(listener, router).await?;
    Ok(())
}
